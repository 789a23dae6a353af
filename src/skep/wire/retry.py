"""The table of what can happen to a request, and what is done about it: tried again after which wait, or given up."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from random import Random

REFUSALS = (429, 503)
FULL_OR_AWAY = frozenset((*REFUSALS, 502, 504))  # a server or what stands before it, not the request
TASKS_OWN = range(400, 500)  # what else a server says about the request itself
NOT_TASKS_OWN = (404, 408, 409, 425)  # a model that is being exchanged, a proxy's patience


class ErrorKind(Enum):
    """What an error says of the request and of the server."""

    FINAL = "final"  # the request itself is at fault: asked again, it would be refused again
    KEY = "key"  # the endpoint refuses the key: so it will for every task
    REFUSED = "refused"  # too much at once; says nothing about the task
    AWAY = "away"  # nobody answers at the address; says nothing about the task
    BROKEN = "broken"  # the answer was broken off: the endpoint's fault, unless it happens to one task again and again
    TRY = "try"  # the task has had its chance: too slow, nonsense, rejected


# The name of an error as it is stored: what it says, in words and for whoever may try again. All others are a TRY, but
# for `http_NNN`, whose status says it.
KINDS: Mapping[str, tuple[ErrorKind, str]] = {
    "connect": (ErrorKind.AWAY, "it cannot be reached"),
    "closed": (ErrorKind.BROKEN, "the connection was closed"),
    "cut": (ErrorKind.BROKEN, "the answer was interrupted"),
    "engine_error": (ErrorKind.BROKEN, "the engine reported an error"),
    "protocol": (ErrorKind.BROKEN, "it does not speak HTTP"),
    "timeout": (ErrorKind.TRY, "no answer in time"),
}


def classify_error(error_kind: str | None, status: int | None) -> ErrorKind | None:
    """Return the kind of an error; None if there was none."""
    if error_kind is None:
        return None
    if not error_kind.startswith("http_") or status is None:
        return KINDS[error_kind][0] if error_kind in KINDS else ErrorKind.TRY
    if status == 401:
        return ErrorKind.KEY
    if status in REFUSALS:
        return ErrorKind.REFUSED
    return ErrorKind.FINAL if status in TASKS_OWN and status not in NOT_TASKS_OWN else ErrorKind.BROKEN


def wait_s(mishap: ErrorKind, times: int, rng: Random, retry_after_s: float | None = None) -> float:
    """Before the same task is tried again, when this has happened to it so often in a row.

    With chance in it, so that those who failed together do not come back together. A wait that was asked for is kept,
    and some comes on top.
    """
    if mishap is ErrorKind.TRY:
        return 0.0 if times <= 1 else 0.5 * rng.random()
    first, longest = (0.5, 30.0) if mishap is ErrorKind.REFUSED else (0.1, 10.0)
    backoff = min(longest, first * 2.0 ** min(times - 1, 16)) * (0.5 + rng.random())
    if retry_after_s is None:
        return backoff
    return retry_after_s + min(backoff, first + 0.1 * retry_after_s)
