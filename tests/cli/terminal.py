"""A terminal in which `skep` draws."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios


class Terminal:
    """`skep ARGS...` in a terminal."""

    def __init__(self, env, *args, columns=100, lines=30):
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.modes = termios.tcgetattr(self._slave)
        self.raw = ""
        env = {key: value for key, value in env.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skep", *args],
            **dict.fromkeys(("stdin", "stdout", "stderr"), self._slave),
            env={**env, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
        )

    @property
    def output(self):
        """Without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.raw)

    def until(self, text):
        while text not in self.output:
            assert self._read(30), self.output

    def ended(self):
        """The exit code, when all that was drawn has been read."""
        while self._read(0.1) or self.process.poll() is None:
            pass
        return self.process.returncode

    def _read(self, timeout_s):
        """Read what comes; False where nothing has come in time."""
        if has_output := bool(select.select([self._master], [], [], timeout_s)[0]):
            self.raw += os.read(self._master, 65536).decode(errors="replace")
        return has_output

    def press(self, key):
        os.write(self._master, key)

    def left(self):
        """The exit code; the terminal is as it was before."""
        self.until("\x1b[?1049l")
        code = self.process.wait(30)
        assert termios.tcgetattr(self._slave) == self.modes
        # The cursor is shown again.
        assert self.output.rindex("\x1b[?25h") > self.output.rindex("\x1b[?25l")
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)
