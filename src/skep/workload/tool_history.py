"""The conversation before a task: an agent's earlier turns, with calls of tools and what they
brought, up to a size in tokens.

All tasks of a size have the same one, as the turns of one session have: an engine with a prefix
cache reads it once, so that 128K of context can be afforded. Notes that a task asks for later
stand in it at even distances.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from skep.workload.drills import between
from skep.workload.filling import CHARS_PER_PIECE, THINGS, TYPICAL_CHARS_PER_TOKEN, pick, pieces
from skep.workload.prompts import TokenCalibration
from skep.workload.session_text import SessionTexts
from skep.workload.tool_tasks import SIZES, Fact, facts_of

RESULT_TOKENS = 1_500  # of what a tool brought in one turn
SHORT_RESULT_TOKENS = 300  # in a conversation of 2K
SHORT_CONTEXT_TOKENS = 4_096
TEMPLATE_TOKENS = 8  # of a message, that the chat template adds
FEWEST_RESULT_TOKENS = 60
SYSTEM = (
    "You are an agent that works in a small company's workspace: its files, its issues, its store "
    "of parts and its calendar. Use the tools for whatever you look up or change; do not guess. "
    "Do what is asked and nothing else. When it is done, answer in one short line."
)

Message = dict[str, Any]


def tool_history(
    seed: int, size: str, chars_per_token: float = TYPICAL_CHARS_PER_TOKEN
) -> list[Message]:
    """Return the messages before the tasks of a size, the system prompt first."""
    return HistoryWriter(seed, size, chars_per_token).messages()


class HistoryWriter:
    """Writes turns until the room is used up."""

    def __init__(self, seed: int, size: str, chars_per_token: float) -> None:
        self._name = f"{seed}/tools/{size}/history"
        self._rng = Random(self._name)
        self._chars_per_token = chars_per_token
        calibration = TokenCalibration(chars_per_token=chars_per_token)
        self._texts = SessionTexts(seed, calibration)
        self._tokens = SIZES[size]
        self._facts = facts_of(seed, size)
        self._room = float(self._tokens)
        self._calls = 0

    def messages(self) -> list[Message]:
        messages = self._taken([{"role": "system", "content": SYSTEM}])
        notes = [self._note(fact) for fact in self._facts]
        self._room -= sum(map(self._length, notes))
        for number, note in enumerate(notes):
            # What is left is shared evenly among the stretches before the notes and behind them.
            stretches = len(notes) - number + 1
            messages += self._stretch(self._room / stretches)
            messages += note
        return [*messages, *self._stretch(self._room)]

    def _stretch(self, tokens: float) -> Iterator[Message]:
        """Yield turns that have together about so many tokens."""
        end = self._room - tokens
        longest = RESULT_TOKENS
        if self._tokens < SHORT_CONTEXT_TOKENS:
            longest = SHORT_RESULT_TOKENS
        while True:
            frame = self._reading("")
            room = self._room - end - self._length(frame)
            if room < FEWEST_RESULT_TOKENS:
                return
            result = self._texts.turn(self._name, self._calls, min(longest, int(room)))
            self._calls += 1
            frame[2]["content"] = result
            yield from self._taken(frame)

    def _taken(self, messages: list[Message]) -> list[Message]:
        self._room -= self._length(messages)
        return messages

    def _length(self, messages: list[Message]) -> float:
        """Return about how many tokens the messages have."""
        text = "".join(
            f"{message['content']}{json.dumps(message.get('tool_calls', ''))}"
            for message in messages
        )
        tokens = pieces(text) * CHARS_PER_PIECE / self._chars_per_token
        return tokens + TEMPLATE_TOKENS * len(messages)

    def _reading(self, result: str) -> list[Message]:
        """Return a turn in which a file was read."""
        _, nouns = pick(self._rng, THINGS)
        path = f"archive/{nouns}_{between(self._rng, 100, 999)}.py"
        call_id = f"call{self._calls:05d}"  # nine letters and digits: some templates ask for that
        function = {"name": "read_file", "arguments": json.dumps({"path": path})}
        call = {"id": call_id, "type": "function", "function": function}
        return [
            {"role": "user", "content": f"Have a look at `{path}` and tell me when you have it."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": result},
            {"role": "assistant", "content": f"I have read `{path}`: functions about {nouns}."},
        ]

    def _note(self, fact: Fact) -> list[Message]:
        return [
            {"role": "user", "content": f"Note for later: the `{fact.key}` is {fact.value}."},
            {"role": "assistant", "content": "Noted."},
        ]
