"""What a drill family gives: a question, its one right answer, and how the answer is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, TypeVar

from skep.workload.drill_words import WORDS
from skep.workload.items import Checker

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Task:
    question: str
    answer: str
    kind: str = "exact"  # "exact" | "number" | "choice"
    options: tuple[str, ...] = ()
    ignore_case: bool = True

    @property
    def checker(self) -> Checker:
        values: dict[str, Any] = {"answer": self.answer}
        if self.kind == "number":
            values["answer"] = int(self.answer)
        elif self.kind == "choice":
            values["options"] = list(self.options)
        elif not self.ignore_case:
            values["ignore_case"] = False
        return Checker(self.kind, values)


Maker = Callable[[Random, int], Task]


@dataclass(frozen=True, slots=True)
class Family:
    """`says` is the instruction by grade, or for all grades; `make` draws a task of a grade."""

    name: str
    grades: tuple[int, ...]
    says: str | Mapping[int, str]
    make: Maker
    tokens: int = 24  # the longest right answer takes fewer

    def instruction(self, grade: int) -> str:
        return self.says if isinstance(self.says, str) else self.says[grade]


def between(rng: Random, low: int, high: int) -> int:
    """Both ends included."""
    return low + int(rng.random() * (high - low + 1))


def some(rng: Random, items: Sequence[_T], count: int) -> list[_T]:
    """Different ones, in any order."""
    return [items[place] for place in some_numbers(rng, count, 0, len(items) - 1)]


def some_words(rng: Random, count: int, *, longest: int = 99, shortest: int = 1) -> list[str]:
    return some(rng, _words(shortest, longest), count)


@cache
def _words(shortest: int, longest: int) -> tuple[str, ...]:
    return tuple(word for word in WORDS if shortest <= len(word) <= longest)


def some_numbers(rng: Random, count: int, low: int, high: int) -> list[int]:
    """Different ones."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[between(rng, low, high)] = None
    return list(found)


def coin(rng: Random) -> bool:
    return rng.random() < 0.5


def number(question: str, answer: int) -> Task:
    return Task(question, str(answer), kind="number")


def choice(question: str, answer: str, options: Sequence[str]) -> Task:
    return Task(question, answer, kind="choice", options=tuple(options))


def listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))
