"""Unlimited distinct coding prompts of one length, from a seed.

Each prompt begins with a tag of its own, so that a prefix cache saves nothing beyond the chat template's first
tokens: every request pays for its prompt. Prompts of one size differ little in length, so that the levels of a
sweep are comparable. Only `random()` and `getrandbits()` of the generator are used: they give the same numbers on
every Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal, TypeVar

from skep.errors import UserError
from skep.workload.ideas import FULL, TINY, Idea
from skep.workload.vocabulary import FIELDS, THINGS, WISHES

Kind = Literal["implement", "test", "fix", "document"]
Size = Literal["short", "medium", "long"]
KINDS: tuple[Kind, ...] = ("implement", "test", "fix", "document")

# In characters, system and user message together: about 50, 250 and 1000 tokens, fewer or more by tokenizer.
TARGETS: Mapping[Size, int] = {"short": 155, "medium": 900, "long": 3600}
FEWEST_WORDS = 30
_WORDS_FOR_FULL_IDEAS = 120

_TASKS: Mapping[Kind, str] = {
    "implement": "Write a Python function `{name}` that {summary}.",
    "test": "Write pytest tests for:\n{code}",
    "fix": "Fix the bug in:\n{code}",
    "document": "Write the docstring of:\n{code}",
}
_MODULE = "\n\nIt belongs to this module:\n{code}"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Prompt:
    kind: Kind
    system: str
    user: str

    @property
    def text(self) -> str:
        return f"{self.system}\n\n{self.user}"


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """As the chat API wants them."""
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]


def coding_prompts(rng: Random, *, size: Size = "medium", words: int | None = None) -> Iterator[Prompt]:
    """Endless; the four kinds take turns in an order drawn once, so that any four in a row hold each kind.

    `words`, if given, asks for about that many words in all instead of a size.
    """
    if words is not None and words < FEWEST_WORDS:
        raise UserError(f"`{words}` words are too few for a coding prompt", hint=f"ask for {FEWEST_WORDS} or more")
    budget = _budget(size, words)
    order = _shuffled(rng, KINDS)
    return (_compose(rng, order[serial % len(order)], serial, budget) for serial in count())


@dataclass(frozen=True, slots=True)
class _Budget:
    measure: Callable[[str], int]
    target: int
    full: bool  # large enough for the longer functions

    def left(self, *parts: str) -> int:
        return self.target - sum(map(self.measure, parts))


def _budget(size: Size, words: int | None) -> _Budget:
    if words is None:
        return _Budget(len, TARGETS[size], full=size != "short")
    return _Budget(lambda text: len(text.split()), words, full=words >= _WORDS_FOR_FULL_IDEAS)


def _compose(rng: Random, kind: Kind, serial: int, budget: _Budget) -> Prompt:
    system = f"{rng.getrandbits(24):06x}-{serial} You write Python."
    names = _names(rng)
    tasks = [_task(kind, idea, names, fenced=budget.full) for idea in (FULL if budget.full else TINY)]
    user = _pick(rng, [task for task in tasks if budget.left(system, task) >= 0] or tasks)
    if budget.full:
        user += _module(rng, budget, budget.left(system, user, _MODULE))
    wishes = _wishes(rng, names, budget, budget.left(system, user))
    return Prompt(kind, system, f"{user}\n\n{wishes}" if wishes else user)


def _task(kind: Kind, idea: Idea, names: Mapping[str, str], *, fenced: bool) -> str:
    code = (idea.broken_code if kind == "fix" else idea.code).format_map(names)
    return _TASKS[kind].format(
        name=idea.name.format_map(names),
        summary=idea.summary.format_map(names),
        code=_fenced(code) if fenced else code,
    )


def _module(rng: Random, budget: _Budget, room: int) -> str:
    """Functions, each with names of its own, until no more fits; empty where there is no room for one."""
    functions: list[str] = []
    while True:
        names = _names(rng)
        texts = [idea.code.format_map(names).rstrip() + "\n\n\n" for idea in (*FULL, *TINY)]
        fitting = [text for text in texts if budget.measure(text) <= room]
        if not fitting:
            break
        functions.append(_pick(rng, fitting))
        room -= budget.measure(functions[-1])
    return _MODULE.format(code=_fenced("".join(functions))) if functions else ""


def _wishes(rng: Random, names: Mapping[str, str], budget: _Budget, room: int) -> str:
    chosen: list[str] = []
    for wish in _shuffled(rng, WISHES):
        text = wish.format_map(names)
        if budget.measure(text) < room:
            chosen.append(text)
            room -= budget.measure(text) + budget.measure(" ")
    return " ".join(chosen)


def _names(rng: Random) -> dict[str, str]:
    thing, things = _pick(rng, THINGS)
    number = str(2 + int(rng.random() * 998))
    return {"thing": thing, "things": things, "Thing": thing.title(), "field": _pick(rng, FIELDS), "number": number}


def _fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def _pick(rng: Random, items: Sequence[_T]) -> _T:
    return items[int(rng.random() * len(items))]


def _shuffled(rng: Random, items: Sequence[_T]) -> list[_T]:
    return [item for _, _, item in sorted((rng.random(), place, item) for place, item in enumerate(items))]
