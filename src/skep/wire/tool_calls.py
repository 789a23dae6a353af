"""Tool calls of a streamed answer, put together from their parts.

A server may send anything: there are at most so many calls, names and arguments are cut, and an
answer that goes on past its bound is given up. Knows nothing of what the calls mean.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import msgspec

from skep.wire.openai import StreamReader

MOST_CALLS = 32  # of one answer; more are counted, not kept
LONGEST_ARGUMENTS = 64_000  # characters of one call
LONGEST_NAME = 200
MOST_ANSWER_BYTES = 48 << 20  # of one stream, what frames its tokens included


class ReceivedCall(msgspec.Struct, frozen=True):
    """A call as it came. `is_cut`: its arguments were longer than is kept."""

    id: str
    name: str
    arguments: str
    is_cut: bool = False


class _CallParts:
    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.length = 0
        self.is_cut = False

    def add(self, call: dict[str, Any]) -> None:
        call_id = call.get("id")
        if isinstance(call_id, str) and call_id and not self.id:
            self.id = call_id[:LONGEST_NAME]
        function = call.get("function")
        if not isinstance(function, dict):
            return
        name = function.get("name")
        if isinstance(name, str) and name and not self.name:
            self.name = name[:LONGEST_NAME]
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # some servers send them parsed
            arguments = json.dumps(arguments)
        if not isinstance(arguments, str):
            return
        room = LONGEST_ARGUMENTS - self.length
        self.is_cut = self.is_cut or len(arguments) > room
        self.arguments.append(arguments[:room])
        self.length += min(len(arguments), room)


class ToolCallReader(StreamReader):
    """Receives one answer with its tool calls."""

    def __init__(self, done: asyncio.Future[float]) -> None:
        super().__init__(done)
        self._calls: dict[int, _CallParts] = {}
        self.calls_left_out = 0  # parts of calls past the most that are kept

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        super().on_chunks(raw, carried, at)
        self._check_length(carried, at)

    def on_body(self, data: bytes, at: float) -> None:
        super().on_body(data, at)
        self._check_length(len(data), at)

    _received = 0

    def _check_length(self, added: int, at: float) -> None:
        self._received += added
        if self._received > MOST_ANSWER_BYTES:
            message = f"the answer is longer than {MOST_ANSWER_BYTES >> 20} MiB"
            self.give_up("garbage", message, at)

    def take_calls(self, calls: bytes | list[Any]) -> None:
        parts: Any = calls
        if not isinstance(calls, list):
            parts = []
            with suppress(ValueError, RecursionError):
                parts = json.loads(bytes(calls))
        if not isinstance(parts, list):
            return
        for place, part in enumerate(parts):
            if isinstance(part, dict):
                self._add(part, place)

    def _add(self, part: dict[str, Any], place: int) -> None:
        index = part.get("index", place)
        if not isinstance(index, int):
            index = place
        if index not in self._calls and len(self._calls) >= MOST_CALLS:
            self.calls_left_out += 1
            return
        self._calls.setdefault(index, _CallParts()).add(part)

    @property
    def calls(self) -> tuple[ReceivedCall, ...]:
        return tuple(
            ReceivedCall(parts.id, parts.name, "".join(parts.arguments), parts.is_cut)
            for _, parts in sorted(self._calls.items())
        )
