"""`skep` commands as real processes without paying for the imports each time: one process imports, children are forked.

A child has its own environment, folder, standard files and end, as one started by `python -m skep` has. Used for
commands that run to their end; what tests send signals to is started the long way.
"""

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path

MESSAGE = 1 << 20


class Forked:
    """The side of the tests."""

    def __init__(self):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE)
        self._link = here
        self._child = subprocess.Popen(
            [sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
        )
        there.close()

    def close(self):
        self._link.close()
        self._child.wait(20)

    def run(self, args, *, env, cwd, timeout):
        """Like `subprocess.run([python, "-m", "skep", *args], capture_output=True, text=True)`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            order = json.dumps({"args": args, "env": env, "cwd": str(cwd)}).encode()
            socket.send_fds(self._link, [order], [out.fileno(), err.fileno()])
            self._link.settimeout(20)
            pid = int(self._link.recv(100))
            self._link.settimeout(timeout)
            try:
                code = int(self._link.recv(100))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._link.settimeout(20)
                self._link.recv(100)
                raise subprocess.TimeoutExpired(["skep", *args], timeout, _text(out), _text(err)) from None
            return subprocess.CompletedProcess(["skep", *args], code, _text(out), _text(err))


def _text(file):
    file.seek(0)
    return file.read().decode()


def serve(link):
    """The side of the one that has imported everything."""
    main = import_module("skep.cli.main")
    for part in main.PARTS:
        import_module(f"skep.cli.{part}")
    for name in ("rich.table", "rich.console", "skep.bench.sweep", "skep.store.database", "skep.supervisor.main"):
        import_module(name)
    gc.freeze()
    while True:
        order, files, _, _ = socket.recv_fds(link, MESSAGE, 2)
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            link.close()
            _become(json.loads(order), files, main.main)
        for file in files:
            os.close(file)
        link.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        link.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(order, files, main):
    code = 1
    try:
        os.dup2(files[0], 1)
        os.dup2(files[1], 2)
        for file in files:
            os.close(file)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(order["env"])
        if (wanted := order["env"].get("PYTHONIOENCODING")) is not None:
            name, _, errors = wanted.partition(":")
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(encoding=name or None, errors=errors or None)
        os.chdir(order["cwd"])
        sys.path.insert(0, order["cwd"])
        sys.argv = [str(Path(sys.modules["skep"].__file__).parent / "__main__.py"), *order["args"]]
        try:
            code = main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:  # as Python itself ends with it
            sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(socket.socket(fileno=int(sys.argv[1])))
