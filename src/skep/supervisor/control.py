"""The client of a hive's control socket: asks the supervisor, stops it, and reads the key of its
engines. Knows the messages as JSON and nothing of what they mean to the supervisor.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from skep.errors import EngineError, SkepError, UserError
from skep.host.processes import process_stat
from skep.paths import LOOPBACK, Paths

EXIT_S = 5.0
EXIT_POLL_S = 0.01
STOP_S = 15.0  # for ending engines and gateway once the drain is over


class NotRunning(UserError):
    exit_code = 1

    def __init__(self) -> None:
        super().__init__("skep is not running", hint="start it with `skep up -d`")


class NoAnswer(EngineError):
    """Somebody listens on the control socket and does not answer in time."""

    def __init__(self, error: OSError) -> None:
        hint = "see `skep logs skep`; `skep down` ends it where it stays silent"
        super().__init__(f"skep does not answer on its control socket: {error}", hint=hint)


# Requests


def ask(
    socket_path: Path, message: dict[str, Any], *, timeout_s: float | None = 10.0
) -> dict[str, Any]:
    """Return the supervisor's answer.

    Raise NotRunning where none runs, EngineError for an answer that is an error.
    """
    with connected(socket_path, timeout_s) as send:
        return send(message)


@contextmanager
def connected(
    socket_path: Path, timeout_s: float | None
) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Yield a function that sends requests over one connection; it raises as `ask` does."""
    with _connect(socket_path, timeout_s) as sock, sock.makefile("rb") as answers:
        yield partial(_exchange, sock, answers)


def ask_down(socket_path: Path, drain_s: float | None = None) -> list[str]:
    """Ask the hive to drain for `drain_s` (None: as configured) and stop, and wait until it has.

    Return what it could not end, in words.
    """
    last_line = b""
    with _connect(socket_path, 10.0) as sock, sock.makefile("rb") as answers:
        answer = _exchange(sock, answers, {"op": "down", "drain_s": drain_s})
        limit_s = answer["drain_s"] + answer.get("stop_s", STOP_S)
        sock.settimeout(limit_s)
        try:
            last_line = answers.readline()
        except TimeoutError:
            hint = "run `skep down` again to stop without waiting for running requests"
            raise EngineError(f"skep did not stop within {limit_s:g} s", hint=hint) from None
        except OSError:
            pass
    _await_exit(answer["pid"])
    if last_line.endswith(b"\n"):
        return list(json.loads(last_line)["left_behind"])
    return []  # it was killed, and could not tell


def _await_exit(pid: int) -> None:
    """Wait until that process has ended, for EXIT_S at most: it closes its socket a moment before
    it ends.
    """
    deadline = time.monotonic() + EXIT_S
    with suppress(OSError):
        while time.monotonic() < deadline and process_stat(pid)[0] != "Z":
            time.sleep(EXIT_POLL_S)


def socket_of(lock_path: Path, default: Path) -> Path:
    """Return the control socket that the lock file names; the running skep may use another runtime
    folder.
    """
    try:
        return Path(lock_path.read_text().splitlines()[1])
    except (OSError, IndexError, UnicodeDecodeError):
        return default


def _connect(socket_path: Path, timeout_s: float | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    try:
        sock.connect(str(socket_path))
    except OSError:
        sock.close()
        raise NotRunning from None
    return sock


def _exchange(
    sock: socket.socket, answers: BufferedReader, message: dict[str, Any]
) -> dict[str, Any]:
    try:
        sock.sendall(json.dumps(message).encode() + b"\n")
        line = answers.readline()
    except ConnectionError:  # the hive ended
        raise NotRunning from None
    except OSError as error:
        raise NoAnswer(error) from None
    if not line.endswith(b"\n"):
        raise NotRunning
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise error_of(answer)
    return answer


def error_of(answer: Mapping[str, Any]) -> EngineError:
    """Return the error that a hive sent as JSON."""
    error = EngineError(answer["error"], hint=answer.get("hint"))
    error.exit_code = answer.get("exit_code", error.exit_code)
    return error


# Keys


def local_key(url: str, env: Mapping[str, str], paths: Paths) -> str | None:
    """Return the key of a server on this machine: the hive's for its replicas, otherwise the
    gateway's SKEP_API_KEY.
    """
    from skep.engines.base import GATEWAY_KEY
    from skep.wire.heads import parse_url

    if parse_url(url)[0].host not in LOOPBACK:
        return None
    return replica_key(url, paths) or env.get(GATEWAY_KEY) or None


def replica_key(url: str, paths: Paths) -> str | None:
    """Return the key of the hive that runs here if the URL is that of one of its replicas on this
    machine.
    """
    from skep.engines.base import ANSWER_S, KEY_FILE
    from skep.wire.heads import parse_url

    origin = parse_url(url)[0]
    if origin.host not in LOOPBACK:
        return None
    try:
        key = (paths.state / KEY_FILE).read_text().strip()
        socket_path = socket_of(paths.lock, paths.socket)
        status = ask(socket_path, {"op": "status"}, timeout_s=ANSWER_S)
    except (OSError, SkepError):
        return None
    replicas = [row for row in status["rows"] if row["kind"] == "replica" and row["url"]]
    for row in replicas:
        replica = parse_url(row["url"])[0]
        if replica.host in LOOPBACK and replica.port == origin.port:
            return key
    return None
