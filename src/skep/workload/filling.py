"""What fills a prompt up to its length: a module of distinct functions, then wishes about the
answer. Knows nothing of who is asked.

The functions and words are data (`words.toml`): `{thing}`, `{things}`, `{field}` and `{number}`
are filled in; `bug` is a text of the code and what it becomes in the broken version.

A length is counted without the engine's tokenizer. Characters are a poor measure: prose has more
of them to a token than code. *Pieces* are a better one: a word, a digit, an underscore, a run of
signs, or a line break with its indent is one piece, and about one token in today's vocabularies.
How many tokens there are to a piece is measured once for each engine (`calibrate` in
`prompts.py`).

Draws use only `random()` and `getrandbits()` of a generator: they are the same on every Python.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from skep.errors import UserError

_T = TypeVar("_T")


def pick(rng: Random, items: Sequence[_T]) -> _T:
    return items[int(rng.random() * len(items))]


def shuffled(rng: Random, items: Sequence[_T]) -> list[_T]:
    ranks = [rng.random() for _ in items]
    places = sorted(range(len(items)), key=ranks.__getitem__)
    return [items[place] for place in places]


def exponential(rng: Random, mean: float) -> float:
    return -math.log(1.0 - rng.random()) * mean


def capped_exponential(rng: Random, mean: float) -> float:
    """Draw from an exponential distribution that is cut at five times its scale and has this
    mean.
    """
    scale = mean / (1.0 - math.exp(-5.0))
    return min(exponential(rng, scale), 5.0 * scale)


@cache
def read_data(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


class Idea(msgspec.Struct, frozen=True):
    name: str
    summary: str  # completes "a Python function that ..."
    code: str
    bug: tuple[str, str]


_DATA = read_data("words.toml")
TINY_IDEAS = msgspec.convert(_DATA["tiny"], tuple[Idea, ...])
FULL_IDEAS = msgspec.convert(_DATA["full"], tuple[Idea, ...])
# Each with its plural.
THINGS = msgspec.convert(
    [pair.split("/") for pair in _DATA["things"].split()], tuple[tuple[str, str], ...]
)
FIELDS: tuple[str, ...] = tuple(_DATA["fields"].split())
ADJECTIVES: tuple[str, ...] = tuple(_DATA["adjectives"].split())

Names = Mapping[str, str]
Measure = Callable[[str], int]

MODULE = "\n\n{lead}\n{code}"
BETWEEN_FUNCTIONS = "\n\n\n"
_IDEAS = (*FULL_IDEAS, *TINY_IDEAS)
_ATTEMPTS = 8  # at a name that the module does not hold yet


def draw_names(rng: Random, *, qualified: bool = False) -> Names:
    """Return what fills an idea's holes. A qualified thing (`late_order`) is one of many more."""
    noun, plural = pick(rng, THINGS)
    number = str(2 + int(rng.random() * 998))
    field = pick(rng, FIELDS)
    names = {
        "thing": noun,
        "things": plural,
        "Thing": noun.title(),
        "field": field,
        "number": number,
    }
    if qualified:
        adjective = pick(rng, ADJECTIVES)
        names |= {"thing": f"{adjective}_{noun}", "things": f"{adjective}_{plural}"}
        names["Thing"] = adjective.title() + noun.title()
    return names


def fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def module(rng: Random, measure: Measure, room: int, lead: str) -> str:
    """Return a paragraph with functions that fill the room;
    empty where there is no room for one.
    """
    code = functions(rng, measure, room - measure(MODULE.format(lead=lead, code=fenced(""))))
    if code:
        return MODULE.format(lead=lead, code=fenced(code))
    return ""


def functions(rng: Random, measure: Measure, room: int) -> str:
    """Return functions of distinct names, one more as long as one fits."""
    texts_so_far: list[str] = []
    taken: set[str] = set()
    while True:
        name, text = _function(rng, taken)
        if measure(text) > room:
            names = draw_names(rng, qualified=True)
            texts = {idea.name.format_map(names): _text(idea, names) for idea in _IDEAS}
            fitting = [
                (name, text)
                for name, text in texts.items()
                if name not in taken and measure(text) <= room
            ]
            if not fitting:
                return "".join(texts_so_far)
            name, text = pick(rng, fitting)
        texts_so_far.append(text)
        taken.add(name)
        room -= measure(text)


def _function(rng: Random, taken: set[str]) -> tuple[str, str]:
    for _ in range(_ATTEMPTS):
        idea = pick(rng, _IDEAS)
        names = draw_names(rng, qualified=True)
        name = idea.name.format_map(names)
        if name not in taken:
            break
    return name, _text(idea, names)


def _text(idea: Idea, names: Names) -> str:
    return idea.code.format_map(names).rstrip() + BETWEEN_FUNCTIONS


def draw_requirements(
    rng: Random,
    names: Names,
    measure: Measure,
    room: int,
    *,
    exact: bool = False,
    earlier_text: str = "",
) -> str:
    """Return sentences that fit into the room and do not stand in `earlier_text`; `exact` fills
    the rest with a closing word or more.
    """
    chosen: list[str] = []
    for wish in shuffled(rng, _DATA["wishes"]):
        text = wish.format_map(names)
        if earlier_text and text in earlier_text:
            continue
        needed = measure(text) + measure(" ")
        if needed <= room:
            chosen.append(text)
            room -= needed
    if exact:
        chosen += [closing for closing in _DATA["closings"] if measure(closing) == room][:1]
    return " ".join(chosen)


CHARS_PER_PIECE = 3.57  # of these prompts, on average
TYPICAL_CHARS_PER_TOKEN = 3.4  # where nothing was measured
MOST_TOKENS = 1_000_000

_PIECE = re.compile(r"[^\W\d_]+|\d|_|[^\w\s]+|\n\s*")


def pieces(text: str) -> int:
    return len(_PIECE.findall(text))


class Lengths(TypedDict, total=False):
    """How an engine counts, as a `TokenCalibration` found it; `overhead_tokens` are the chat
    template's.
    """

    chars_per_token: float
    overhead_tokens: float


def pieces_for(
    tokens: float,
    *,
    chars_per_token: float = TYPICAL_CHARS_PER_TOKEN,
    overhead_tokens: float = 0.0,
) -> int:
    """Return how many pieces make so many tokens, the chat template's own included.

    May be negative.
    """
    if not 0 < chars_per_token < math.inf:
        raise UserError(
            f"`{chars_per_token}` characters per token is not possible",
            hint="between 2 and 6 is usual",
        )
    return round((tokens - overhead_tokens) * chars_per_token / CHARS_PER_PIECE)


def room_for(subject: str, tokens: int, fewest: int, **lengths: Unpack[Lengths]) -> int:
    """Return `pieces_for` the tokens; UserError for a text that is too short (`fewest` pieces) or
    beyond any model.
    """
    room = pieces_for(tokens, **lengths)
    if room < fewest:
        per_token = lengths.get("chars_per_token", TYPICAL_CHARS_PER_TOKEN)
        min_tokens = math.ceil(
            fewest * CHARS_PER_PIECE / per_token + lengths.get("overhead_tokens", 0.0)
        )
        raise UserError(
            f"`{tokens}` tokens are too few for {subject}", hint=f"ask for {min_tokens} or more"
        )
    if tokens > MOST_TOKENS:
        raise UserError(
            f"`{tokens}` tokens are too many for {subject}", hint=f"ask for {MOST_TOKENS} or fewer"
        )
    return room


class Budget(msgspec.Struct, frozen=True):
    """A length to be kept to, in whatever `measure` counts."""

    measure: Callable[[str], int]
    target: int

    def left(self, *parts: str) -> int:
        return self.target - sum(map(self.measure, parts))
