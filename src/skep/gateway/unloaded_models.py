"""Models that have to be loaded before anybody answers: which, in what state, and who was told that they are wanted.

Streams that wait for one get a head and comments at once: proxies and clients give up on a connection on which nothing
happens; a comment is something, and no event. Knows times handed to it; no clock, no socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from skep.config.gateway_messages import UnloadedModel
from skep.wire.heads import lines_of

STREAM_LINES = lines_of([(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])
# Where `"stream": true` means server-sent events; elsewhere it may mean something else.
STREAM_PATHS = frozenset((
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
    "/chat/completions", "/completions", "/completion", "/responses",
))  # fmt: skip
NOT_COMING = ("unloaded", "unloading")  # unless somebody says that it is wanted
GIVEN_UP = "failed"  # it is not tried again before the user says so


class UnloadedModels:
    def __init__(self) -> None:
        self.states: dict[str, str] = {}  # by model; empty while all are loaded: all that a request then pays for
        self._told: set[str] = set()  # the supervisor was told, and has not said what it makes of it
        self._failures: dict[str, tuple[str, float]] = {}  # why, and until when it is not tried again

    def become(
        self, table: Mapping[str, UnloadedModel], serving: Iterable[str], models: Iterable[str] = ()
    ) -> list[str]:
        """What the supervisor says; the models that have just been loaded. Those on their way have not failed.

        One of the `models` that failed, and of which nothing else is said, has been given up.
        """
        before, served = self.states, set(serving)
        self.states = {model: said.state for model, said in table.items()}
        self._told = {model for model in self._told if self.states.get(model) in NOT_COMING}
        moving = {model for model, state in self.states.items() if state not in (*NOT_COMING, GIVEN_UP)} | served
        self._failures = {model: found for model, found in self._failures.items() if model not in moving}
        for model, state in self.states.items():
            if state == GIVEN_UP and model not in self._failures:
                self._failures[model] = (table[model].why or "it did not start", float("-inf"))
        self.states |= dict.fromkeys(self._failures.keys() & set(models) - self.states.keys(), GIVEN_UP)
        return [model for model, state in before.items() if state == "loading" and model in served - self.states.keys()]

    def should_request_load(self, model: str) -> bool:
        """Return whether the supervisor has to hear that it is wanted; once, until it moves."""
        if self.states.get(model) not in NOT_COMING or model in self._told:
            return False
        self._told.add(model)
        return True

    def failed(self, model: str, why: str, until: float) -> None:
        self._failures[model] = (why, until)
        self._told.discard(model)

    def failure(self, model: str, now: float) -> tuple[str, float | None] | None:
        """Return why it could not be loaded, and after how long to come back; None: nobody tries by himself."""
        if model not in self._failures:
            return None
        why, until = self._failures[model]
        if now < until:
            return why, until - now
        return (why, None) if self.states.get(model) == GIVEN_UP else None

    def words(self, model: str) -> str:
        """For those who wait."""
        does = {"loading": "loading", "waiting": "waiting for room to load"}
        return f"{does.get(self.states.get(model, ''), 'waiting for')} {model}"


class _StreamField(msgspec.Struct):
    stream: bool = False


def wants_stream(path: str, body: bytes) -> bool:
    if path not in STREAM_PATHS:
        return False
    try:
        return msgspec.json.decode(body.removeprefix(b"\xef\xbb\xbf"), type=_StreamField).stream
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def comment(words: str, waited_s: float) -> bytes:
    return f": {' '.join(words.split())}, {waited_s:.0f} s\n\n".encode()
