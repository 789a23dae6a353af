"""The user's own service: what it is, and paused while something else needs the machine. Knows nothing of tuning."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from skep.errors import EngineError, SkepError
from skep.paths import Paths
from skep.supervisor.control import NO_REPLICAS, NotRunning, ask, connected, socket_of


@dataclass(frozen=True, slots=True)
class Service:
    """What `skep up` serves on this machine."""

    url: str
    models: tuple[str, ...]
    pid: int
    gpus: tuple[int, ...]

    def __str__(self) -> str:
        cards = f" on GPU {', '.join(map(str, self.gpus))}" if self.gpus else ""
        return f"skep serves {', '.join(self.models) or 'no model'}{cards} at {self.url} (pid {self.pid})"

    def shares(self, cards: Sequence[int]) -> tuple[int, ...]:
        """Return which of its cards another one would have too, who takes these; none named: any."""
        return tuple(card for card in self.gpus if not cards or card in cards)


def running_service(paths: Paths) -> Service | None:
    """None: nothing runs."""
    try:
        status = ask(socket_of(paths.lock, paths.socket), {"op": "status"})
    except NotRunning:
        return None
    rows = [row for row in status["rows"] if row["kind"] not in NO_REPLICAS]
    models = tuple(sorted({row["model"] for row in rows if row["model"]}))
    rooms = {name for row in rows for name in row.get("room") or {} if name.startswith("gpu")}
    gpus = tuple(sorted(int(name.removeprefix("gpu")) for name in rooms))
    return Service(status["url"], models, status["pid"], gpus)


@contextmanager
def service_paused(paths: Paths) -> Iterator[Service | None]:
    """Its engines are ended while the block runs, after their answers; they serve again when it has been left.

    The running skep starts them by itself when this process is killed. Yields None where nothing was running.
    """
    service = running_service(paths)
    if service is None:
        yield None
        return
    with connected(socket_of(paths.lock, paths.socket), None) as say:
        _pause(say)
        error: BaseException | None = None
        try:
            yield service
        except BaseException as raised:
            error = raised
        trouble = _resume(say)
    if trouble is not None and isinstance(error, SkepError):  # both are told
        error.hint = "; ".join(filter(None, (f"{trouble}: {trouble.hint}", error.hint)))
    elif trouble is not None:
        raise trouble from error
    if error is not None:
        raise error


def _pause(say: Callable[[dict[str, Any]], object]) -> None:
    try:
        say({"op": "pause", "pid": os.getpid()})
    except EngineError as error:
        if "unknown request" in error.message:
            hint = "`skep down`, then `skep up -d`, brings it to this version"
            raise EngineError("the running skep is of an earlier version, which cannot pause", hint=hint) from None
        raise


def _resume(say: Callable[[dict[str, Any]], object]) -> EngineError | None:
    """Return what keeps it from serving again."""
    try:
        say({"op": "resume"})
    except NotRunning:
        return EngineError("the service was stopped meanwhile", hint="start it with `skep up -d`")
    except SkepError as error:
        return EngineError(f"the service could not be started again: {error.message}", hint=error.hint)
    return None
