"""The guard: one small process per replica that owns the engine and everything it starts.

`python -m skep.supervisor.process_guard --link-fd N --log FILE -- ENGINE ARGS...`

It holds one end of a socket pair whose other end is skep's. When skep dies, however it dies, the
socket ends and the guard kills the engine with all its descendants. Those that left the process
group are among them, because the guard is their subreaper and finds them by their parents; a
parent-death signal alone would reach only the engine itself."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from skep.files import RotatingLog, write_secret
from skep.host.processes import (
    ENGINE_KEY,
    KEY_FILE_HERE,
    KEY_HERE,
    MARK,
    REPORT_FD,
    kill_descendants,
    signal_descendants,
)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.2
TELL_S = 5.0


class Terminate(Struct, frozen=True, tag_field="op", tag="term"):
    """The only message to a guard: TERM, then KILL after the grace."""

    grace_s: float


class Spawned(Struct, frozen=True, tag_field="event", tag="spawned"):
    pid: int  # of the engine


class EngineAddress(Struct, frozen=True, tag_field="event", tag="address"):
    url: str


class Exited(Struct, frozen=True, tag_field="event", tag="exit"):
    code: int
    tail: list[str]  # the last lines of its output


FromGuard = Spawned | EngineAddress | Exited


class ProcessGuard:
    """The engine process, its log and the link to the supervisor."""

    def __init__(
        self, link: socket.socket, log: RotatingLog, argv: list[str], mark: str, key_file: Path
    ) -> None:
        self._link = link
        self._log = log
        self._argv = argv
        self._mark = mark
        self._key_file = key_file
        self._selector = selectors.DefaultSelector()
        self._inbox = b""  # the beginning of a message of skep
        self._report = b""  # the beginning of the engine's report of its address
        self._kill_at: float | None = None

    def run(self) -> int:
        report_read, report_write = os.pipe()
        try:
            engine = self._spawn(report_write)
        except OSError as error:
            self._key_file.unlink(missing_ok=True)
            self._tell(Exited(127, [f"error: cannot start {self._argv[0]}: {error.strerror}"]))
            return 1
        finally:
            os.close(report_write)
        self._log.remark(f"started, pid {engine.pid}")
        self._tell(Spawned(engine.pid))
        assert engine.stdout is not None
        os.set_blocking(report_read, False)
        os.set_blocking(engine.stdout.fileno(), False)
        self._selector.register(self._link, selectors.EVENT_READ, self._read_link)
        self._selector.register(report_read, selectors.EVENT_READ, self._read_report)
        self._selector.register(engine.stdout, selectors.EVENT_READ, self._read_output)
        if hasattr(os, "pidfd_open"):
            self._selector.register(
                os.pidfd_open(engine.pid), selectors.EVENT_READ, lambda _: None
            )
        while engine.poll() is None:
            for key, _ in self._selector.select(POLL_S):
                key.data(key.fd)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                signal_descendants(os.getpid(), signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    engine.kill()
        kill_descendants(os.getpid())
        self._key_file.unlink(missing_ok=True)
        # The rest of the pipe, whose writers are all dead.
        with contextlib.suppress(BlockingIOError):
            while data := os.read(engine.stdout.fileno(), 1 << 20):
                self._log.write(data)
        self._tell(Exited(engine.returncode, self._log.tail))
        self._log.remark(f"ended, code {engine.returncode}")
        return 0

    def _spawn(self, report_fd: int) -> subprocess.Popen[bytes]:
        key = os.environ.get(ENGINE_KEY, "")
        if KEY_FILE_HERE in self._argv:
            write_secret(self._key_file, f"api-key: {json.dumps(key)}\n")
        replaced = {KEY_HERE: key, KEY_FILE_HERE: str(self._key_file)}
        argv = [replaced.get(word, word).replace(REPORT_FD, str(report_fd)) for word in self._argv]
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[report_fd],
            env={**os.environ, MARK: self._mark},
            process_group=0,
            # The guard has one thread.
            preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )

    def _read_link(self, _fd: int) -> None:
        try:
            data = self._link.recv(65536)
        except OSError:
            data = b""
        if not data:  # skep is gone
            self._selector.unregister(self._link)
            self._kill_at = 0.0
            return
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            grace_s = msgspec.json.decode(line, type=Terminate).grace_s
            signal_descendants(os.getpid(), signal.SIGTERM)
            self._kill_at = time.monotonic() + grace_s

    def _read_report(self, fd: int) -> None:
        data = os.read(fd, 65536)
        self._report += data
        if self._report.endswith(b"\n"):
            with contextlib.suppress(ValueError):
                self._tell(EngineAddress(json.loads(self._report)["url"]))
            self._report = b""
        if not data:
            self._selector.unregister(fd)
            os.close(fd)

    def _read_output(self, fd: int) -> None:
        """Read once a round: an engine that floods its output must not delay the message that
        skep has ended.
        """
        try:
            data = os.read(fd, 1 << 20)
        except BlockingIOError:
            return
        self._log.write(data)
        if not data:
            self._selector.unregister(fd)

    def _tell(self, message: FromGuard) -> None:
        self._link.settimeout(TELL_S)
        with contextlib.suppress(OSError):
            self._link.sendall(msgspec.json.encode(message) + b"\n")
        self._link.setblocking(False)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="skep-process-guard")
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--mark", required=True)
    parser.add_argument("argv", nargs="+")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only a message from skep, or the end of skep, ends the engine. Not SIG_IGN: the engine
        # would inherit it.
        signal.signal(number, lambda *_: None)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    log = RotatingLog(args.log, hidden=os.environ.get(ENGINE_KEY, ""))
    link = socket.socket(fileno=args.link_fd)
    key_file = args.log.with_suffix(".key.yaml")
    return ProcessGuard(link, log, args.argv, args.mark, key_file).run()


if __name__ == "__main__":
    sys.exit(main())
