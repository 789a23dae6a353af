"""An answer with the tools that the model calls in it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from skep.store.rows import storable
from skep.swarm.line import Call, Hearing, Line

MOST_CALLS = 16  # of one answer
LONGEST_ARGUMENTS = 200_000  # characters


@dataclass(slots=True)
class _Growing:
    """A call whose parts are still coming."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class CallHearing(Hearing):
    """Keeps what belongs to tools, which comes in parts as text does."""

    def __init__(self, done: asyncio.Future[float], line: Line, attempt: tuple[str, int]) -> None:
        super().__init__(done, line, attempt)
        self._growing: dict[int, _Growing] = {}

    def calls(self) -> tuple[Call, ...]:
        return tuple(
            Call(storable(one.id) or f"call-{index}", storable(one.name) or "", storable("".join(one.arguments)) or "")
            for index, one in sorted(self._growing.items())
            if one.name
        )

    def _event(self, payload: bytes, at: float) -> None:
        super()._event(payload, at)
        if b'"tool_calls"' in payload:
            self._take_calls(payload, "delta")

    def _whole(self, at: float) -> None:
        """Of a server that does not stream."""
        raw = b"".join(one[0] if isinstance(one, tuple) else one for one in self._reads)
        super()._whole(at)
        if b'"tool_calls"' in raw:
            self._take_calls(raw, "message")

    def _take_calls(self, payload: bytes, where: str) -> None:
        try:
            document = json.loads(payload)
            calls = document["choices"][0][where]["tool_calls"] or []
        except (ValueError, RecursionError, LookupError, TypeError):
            return
        for place, one in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(one, dict):
                self._take_call(one, place)

    def _take_call(self, one: dict[str, Any], place: int) -> None:
        index = one.get("index")
        index = index if isinstance(index, int) else place
        if index not in self._growing and len(self._growing) >= MOST_CALLS:
            return
        call = self._growing.setdefault(index, _Growing())
        function = one.get("function")
        function = function if isinstance(function, dict) else {}
        if isinstance(one.get("id"), str) and one["id"]:
            call.id = one["id"]
        if isinstance(function.get("name"), str):
            call.name = function["name"] or call.name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # Ollama's way
            arguments = json.dumps(arguments)
        if isinstance(arguments, str) and sum(map(len, call.arguments)) < LONGEST_ARGUMENTS:
            call.arguments.append(arguments)
