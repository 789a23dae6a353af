"""A real gateway process for tests and benchmarks, told its replicas over its link as the supervisor would."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self


class GatewayProcess:
    """Listens when constructed; ends with its maker. `python`: another checkout's interpreter, to have its gateway.

    with GatewayProcess(log, limits={"max_queue": 8}) as door:
        door.serve([{"name": "r0", "model": "m", "url": engine.url, "slots": 2, "confirms": "slots"}])
    """

    def __init__(self, log: Path, /, *, python: str = sys.executable, **setup: Any) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.link, theirs = socket.socketpair()
        fds = (self.listener.fileno(), theirs.fileno())
        argv = ["-m", "skep.gateway.main", "--listen-fd", str(fds[0]), "--link-fd", str(fds[1])]
        with log.open("wb") as output, theirs:
            self.process = subprocess.Popen([python, *argv], pass_fds=fds, stderr=output)
        self._lines = self.link.makefile("r")
        self.send({"op": "settings", **setup})
        assert self.read() == {"event": "listening"}

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
        return {"id": answer["id"], **answer["status"]} if "status" in answer else answer

    def serve(self, replicas: Sequence[dict[str, Any]], models: Sequence[str] = ()) -> None:
        """The whole table: the fields of `skep.config.gateway_messages.ReplicaSpec`."""
        self.send({"op": "replicas", "replicas": list(replicas), "models": list(models)})

    def close(self) -> None:
        self.link.close()
        self._lines.close()
        self.listener.close()
        self.process.wait(10)
