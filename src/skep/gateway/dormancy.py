"""Models that have to be loaded before anybody answers: which, in what state, and who was told that they are wanted.

Knows times handed to it; no clock, no socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NOT_COMING = ("unloaded", "unloading")  # unless somebody says that it is wanted


@dataclass(frozen=True, slots=True)
class Failure:
    """A model could not be loaded, and is not tried again before that time."""

    why: str
    until: float


class Dormancy:
    def __init__(self) -> None:
        self.states: dict[str, str] = {}  # by model; empty while all are loaded: all that a request then pays for
        self._told: set[str] = set()  # the supervisor was told, and has not said what it makes of it
        self._failures: dict[str, Failure] = {}

    def __repr__(self) -> str:
        return f"<Dormancy {self.states}>"

    def become(self, table: Mapping[str, Mapping[str, Any]], serving: Iterable[str]) -> list[str]:
        """What the supervisor says; the models that have just been loaded. Those on their way have not failed."""
        before, served = self.states, set(serving)
        self.states = {model: str(said["state"]) for model, said in table.items()}
        self._told = {model for model in self._told if self.states.get(model) in NOT_COMING}
        moving = {model for model, state in self.states.items() if state not in NOT_COMING} | served
        self._failures = {model: found for model, found in self._failures.items() if model not in moving}
        return [model for model, state in before.items() if state == "loading" and model in served - self.states.keys()]

    def is_to_be_told(self, model: str) -> bool:
        """Whether the supervisor has to hear that it is wanted; once, until it moves."""
        if self.states.get(model) not in NOT_COMING or model in self._told:
            return False
        self._told.add(model)
        return True

    def failed(self, model: str, why: str, until: float) -> None:
        self._failures[model] = Failure(why, until)
        self._told.discard(model)

    def failure(self, model: str, now: float) -> Failure | None:
        found = self._failures.get(model)
        return found if found is not None and now < found.until else None

    def words(self, model: str) -> str:
        """For those who wait."""
        state = self.states.get(model)
        if state == "loading":
            return f"loading {model}"
        return f"waiting for {model}" if state is None else f"waiting for room to load {model}"
