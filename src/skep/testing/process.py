"""The fake engine and the gateway for tests: real processes that leave nothing behind.

    with FakeEngine(slots=2, token_ms=5, chunk_tokens=3) as engine:
        engine.fault(kind="close-mid", after_tokens=3)
        ...
        assert engine.state()["hangups"] == 0

Calls block for a few milliseconds; from async code that the engine depends on, use
`asyncio.to_thread`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, Self
from urllib.parse import urlsplit

from skep.errors import EngineError
from skep.testing.fake_options import KEY_VARIABLE

START_S = 20.0


class FakeEngine:
    """A fake engine.

    Options are those of `fake_engine --help`: `token_ms=5` is `--token-ms 5`, `True` is a flag, a
    list repeats the option.
    """

    # Starts the process, and that of the gateway below; may be replaced.
    popen: ClassVar[Callable[..., Any]] = subprocess.Popen

    def __init__(self, *, key: str = "", **options: Any) -> None:
        self._options = options
        self._env = {**os.environ, KEY_VARIABLE: key} if key else None
        self._process: Any = None
        self._parent_fd: int | None = None
        self._stderr: IO[bytes] | None = None
        self.url = self._control = ""

    def start(self) -> Self:
        """Start the engine, and return when it listens.

        Raise `EngineError` with its stderr when it dies before.
        """
        report_read, report_write = os.pipe()
        parent_read, self._parent_fd = os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        links = f"--report-fd {report_write} --parent-fd {parent_read} --control-port 0".split()
        argv = [sys.executable, "-m", "skep.testing.fake_engine", *links, *to_argv(self._options)]
        try:
            self._process = self.popen(
                argv,
                pass_fds=(report_write, parent_read),
                stdin=subprocess.DEVNULL,
                stderr=self._stderr,
                env=self._env,
            )
        finally:
            os.close(report_write)
            os.close(parent_read)
        with os.fdopen(report_read, "rb") as report:
            if select.select([report], [], [], START_S)[0]:
                line = report.readline()
            else:
                line = b""
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            status = self._process.poll()
            text = self.stderr().strip()
            self.close()
            raise EngineError(f"the fake engine did not start, exit status {status}: {text}")
        addresses = json.loads(line)
        self.url = addresses["url"]
        self._control = addresses["control"]
        return self

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def state(self) -> dict[str, Any]:
        return self._call("GET", "/fake/state")

    def fault(self, **fault: Any) -> None:
        """Inject a fault, `fault(kind="500", times=2)`, by the fields of
        `fake_options.InjectedFault`.
        """
        self._call("POST", "/fake/fault", fault)

    def wait_for(self, timeout_s: float = 30.0, **state: Any) -> dict[str, Any]:
        """Wait for a state, such as `wait_for(running=1)`, and return it.

        A counter may be higher than asked for.
        """
        return self._call("POST", "/fake/wait", state, timeout_s)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send a signal, wait, and return the exit status as `subprocess` has it: -9 for
        SIGKILL.
        """
        self._process.send_signal(number)
        return self.wait()

    def wait(self, timeout_s: float = 10.0) -> int:
        return int(self._process.wait(timeout_s))

    def stderr(self) -> str:
        if self._stderr is None:
            output = b""
        else:
            output = os.pread(self._stderr.fileno(), 1 << 20, 0)
        return output.decode("utf-8", "replace")

    def close(self) -> None:
        if self._parent_fd is not None:
            os.close(self._parent_fd)
            self._parent_fd = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self, method: str, path: str, value: Any = None, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        connection = http.client.HTTPConnection(urlsplit(self._control).netloc, timeout=timeout_s)
        try:
            connection.request(method, path, None if value is None else json.dumps(value))
            answer = connection.getresponse()
            body: dict[str, Any] = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise EngineError(f"the fake engine refused {path}: {body['error']['message']}")
        return body


def to_argv(options: dict[str, Any]) -> list[str]:
    """Return options as arguments; None and False are left out."""
    argv: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else [value]
        for item in values:
            if item is True:
                argv.append(flag)
            elif isinstance(item, dict):
                argv.append(f"{flag}={json.dumps(item)}")
            elif item is not None and item is not False:
                argv.append(f"{flag}={item}")
    return argv


# The variable with the number of relay workers of gateways that name none; `make test-workers`
# sets it.
WORKERS = "SKEP_TEST_WORKERS"


def _start_with(open_files: int) -> Callable[..., Any]:
    """Return a `Popen` whose process may open so many files."""

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    return partial(subprocess.Popen, preexec_fn=limit_files)


class GatewayProcess:
    """A gateway that listens once it is constructed, and ends with the process that made it.

    `python`: another checkout's interpreter, to have its gateway. `open_files`: how many each of
    its processes may have open, soft and hard.

    with GatewayProcess(log, limits={"max_queue": 8}) as door:
        door.serve([{"name": "r0", "model": "m", "url": engine.url, "slots": 2, "confirms":
        "slots"}])
    """

    def __init__(
        self,
        log: Path,
        /,
        *,
        python: str = sys.executable,
        open_files: int | None = None,
        **setup: Any,
    ) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.link, theirs = socket.socketpair()
        fds = (self.listener.fileno(), theirs.fileno())
        argv = ["-m", "skep.gateway.main", "--listen-fd", str(fds[0]), "--link-fd", str(fds[1])]
        with log.open("wb") as output, theirs:
            if open_files is None:
                start = FakeEngine.popen
            else:
                start = _start_with(open_files)
            self.process = start([python, *argv], pass_fds=fds, stderr=output)
        self._lines = self.link.makefile("r")
        setup = {"workers": int(os.environ.get(WORKERS, "1")), **setup}
        self._has_workers = setup["workers"] > 1
        self.send({"op": "settings", **setup})
        assert self.read()["event"] == "listening"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: dict[str, Any]) -> None:
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._lines.readline())
        return message

    def ask(self, **message: Any) -> dict[str, Any]:
        self.send({"id": 1, **message})
        answer = self.read()
        if "status" in answer:
            return {"id": answer["id"], **answer["status"]}
        return answer

    def serve(self, replicas: Sequence[dict[str, Any]], models: Sequence[str] = ()) -> None:
        """Send the whole table: the fields of `skep.config.gateway_messages.ReplicaSpec`."""
        self.send({"op": "replicas", "replicas": list(replicas), "models": list(models)})
        if self._has_workers:
            self.ask(op="status")  # it answers once all workers have the table

    def close(self) -> None:
        self.link.close()
        self._lines.close()
        self.listener.close()
        self.process.wait(10)
