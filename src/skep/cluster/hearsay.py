"""What others of the cluster say, read one by one: what is not understood costs what it said, and nothing else.

Posts and doors may be of another skep. Knows rows and figures; knows no link, and not who asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from skep.cluster.values import launch_of
from skep.engines.base import Launch, engine_named
from skep.engines.front import together
from skep.errors import SkepError
from skep.wire.link import Message

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, SkepError)


def not_understood(error: BaseException) -> str:
    return f"what the cluster says is not understood ({type(error).__name__}: {error})"


class Misread:
    """What is not understood at this moment, by what it is about: forgotten once that is understood again."""

    def __init__(self) -> None:
        self._troubles: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Misread {sorted(self._troubles)}>"

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """What a cluster with another skep says may not be understood: that costs what it said, and nothing else."""
        try:
            yield
        except UNREADABLE as error:
            self.note(what, not_understood(error))
        else:
            self.note(what, None)

    def note(self, what: str, trouble: str | None) -> None:
        self._troubles.pop(what, None)
        if trouble is not None:
            self._troubles[what] = trouble

    @property
    def newest(self) -> str | None:
        return next(reversed(self._troubles.values()), None)


@dataclass(frozen=True, slots=True)
class Standing:
    """The replicas that another door keeps, as far as they are understood; and what of it is not."""

    launches: tuple[Launch, ...]
    trouble: str | None = None


def standing(rows: Iterable[Message]) -> Standing:
    """With the key that their posts have. One without a launch has no post that speaks for it."""
    launches, trouble = [], None
    for row in rows:
        try:
            if row.get("launch") is None:
                continue
            launch = replace(launch_of(row["launch"]), slots=int(row["slots"]))
            engine_named(launch.engine, launch.binary)
        except UNREADABLE as error:
            trouble = not_understood(error)
        else:
            launches.append(launch)
    return Standing(tuple(launches), trouble)


@dataclass(frozen=True, slots=True)
class Told:
    """What the other doors say, as one."""

    figures: dict[str, Message]  # by model
    drained: frozenset[str]
    trouble: str | None = None


def told_by(others: Iterable[Message]) -> Told:
    figures: dict[str, Message] = {}
    drained: set[str] = set()
    trouble = None
    for said in others:
        try:
            drained.update(str(name) for name in said.get("drained", ()))
            for model, some in said.get("models", {}).items():
                figures[model] = together(figures.get(model), _figures(some))
        except UNREADABLE as error:
            trouble = not_understood(error)
    return Told(figures, frozenset(drained), trouble)


def _figures(said: Message) -> Message:
    idle_s: Any = said["idle_s"]
    counts = {key: int(said[key]) for key in ("queued", "busy")}
    return {**counts, "idle_s": None if idle_s is None else float(idle_s)}
