"""What fills a prompt up to its length: a module of distinct functions, then wishes about the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

from skep.workload.chance import pick, shuffled
from skep.workload.words import ADJECTIVES, CLOSINGS, FIELDS, FULL, REQUIREMENTS, THINGS, TINY, Idea

Names = Mapping[str, str]
Measure = Callable[[str], int]

MODULE = "\n\n{lead}\n{code}"
BETWEEN_FUNCTIONS = "\n\n\n"
_IDEAS = (*FULL, *TINY)
_ATTEMPTS = 8  # at a name that the module does not hold yet


def draw_names(rng: Random, *, qualified: bool = False) -> Names:
    """What fills an idea's holes. A qualified thing (`late_order`) is one of many more."""
    thing, things = pick(rng, THINGS)
    number = str(2 + int(rng.random() * 998))
    field = pick(rng, FIELDS)
    if not qualified:
        return {"thing": thing, "things": things, "Thing": thing.title(), "field": field, "number": number}
    adjective = pick(rng, ADJECTIVES)
    return {
        "thing": f"{adjective}_{thing}",
        "things": f"{adjective}_{things}",
        "Thing": adjective.title() + thing.title(),
        "field": field,
        "number": number,
    }


def fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def module(rng: Random, measure: Measure, room: int, lead: str) -> str:
    """A paragraph with functions that fill the room; empty where there is no room for one."""
    code = functions(rng, measure, room - measure(MODULE.format(lead=lead, code=fenced(""))))
    return MODULE.format(lead=lead, code=fenced(code)) if code else ""


def functions(rng: Random, measure: Measure, room: int) -> str:
    """Functions of distinct names, as long as one fits."""
    made: list[str] = []
    taken: set[str] = set()
    while True:
        name, text = _function(rng, taken)
        needed = measure(text)
        if needed > room:
            last = _last_function(rng, measure, room, taken)
            if last is None:
                return "".join(made)
            name, text = last
            needed = measure(text)
        made.append(text)
        taken.add(name)
        room -= needed


def endless_functions(rng: Random) -> Iterator[str]:
    taken: set[str] = set()
    while True:
        name, text = _function(rng, taken)
        taken.add(name)
        yield text


def _function(rng: Random, taken: set[str]) -> tuple[str, str]:
    for _ in range(_ATTEMPTS):
        idea, names = pick(rng, _IDEAS), draw_names(rng, qualified=True)
        name = idea.name.format_map(names)
        if name not in taken:
            break
    return name, _text(idea, names)


def _last_function(rng: Random, measure: Measure, room: int, taken: set[str]) -> tuple[str, str] | None:
    names = draw_names(rng, qualified=True)
    texts = {idea.name.format_map(names): _text(idea, names) for idea in _IDEAS}
    fitting = [(name, text) for name, text in texts.items() if name not in taken and measure(text) <= room]
    return pick(rng, fitting) if fitting else None


def _text(idea: Idea, names: Names) -> str:
    return idea.code.format_map(names).rstrip() + BETWEEN_FUNCTIONS


def draw_requirements(
    rng: Random, names: Names, measure: Measure, room: int, *, exact: bool = False, said: str = ""
) -> str:
    """Sentences that fit into the room and are not `said` yet; `exact` fills the rest with a closing word or more."""
    chosen: list[str] = []
    for wish in shuffled(rng, REQUIREMENTS):
        text = wish.format_map(names)
        if said and text in said:
            continue
        needed = measure(text) + measure(" ")
        if needed <= room:
            chosen.append(text)
            room -= needed
    if exact:
        chosen += [closing for closing in CLOSINGS if measure(closing) == room][:1]
    return " ".join(chosen)
