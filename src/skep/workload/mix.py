"""Several kinds of traffic at once, each with a shape, a size and a priority of its own.

A mapping as a TOML file holds it becomes frozen classes:

    [class.chat]                  # people who wait for an answer
    shape = "conversation"
    agents = 4
    priority = "interactive"
    prompt_tokens = 400
    max_tokens = 200
    turns = 5
    think_s = 8

    [class.hooks]                 # whatever comes, when it comes
    shape = "open"
    rate = 1.5                    # requests per second
    arrivals = "gamma:2.0"

    [class.nightly]               # a swarm that may wait
    shape = "steady"
    share = 1.0                   # of the agents that no other class has taken
    priority = "batch"
    prompt_tokens = 2000
    prefix_tokens = 4000          # a system prompt that its agents share

    >>> classes = parse_classes({"hooks": {"shape": "open", "rate": 1.5}})
    >>> classes[0].arrivals
    'poisson'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args

from skep.errors import UserError
from skep.workload.arrivals import parse_arrivals
from skep.workload.checkers import Demand

Shape = Literal["steady", "open", "conversation"]
Priority = Literal["interactive", "normal", "batch"]

_T = TypeVar("_T")
_NAME = "letters, digits, `-` and `_`, at most 40"
_ONLY_IN: Mapping[str, tuple[Shape, ...]] = {
    "agents": ("steady", "conversation"),
    "share": ("steady", "conversation"),
    "rate": ("open",),
    "arrivals": ("open",),
    "turns": ("conversation",),
    "think_s": ("steady", "conversation"),
}


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """One kind of traffic. An open one has a rate; the others have agents, or a share of those not given to others."""

    name: str
    shape: Shape
    agents: int | None = None
    share: float | None = None
    rate: float | None = None  # requests per second
    arrivals: str = "poisson"
    priority: Priority = "normal"
    prompt_tokens: int = 250  # of the first turn, in a conversation
    max_tokens: int = 128
    prefix_tokens: int = 0  # of a system prompt that all its requests share
    turns: int = 1
    turn_tokens: int = 40  # of each further turn
    think_s: float = 0.0  # mean pause of an agent between two requests


def parse_classes(table: Mapping[str, Any]) -> tuple[TrafficClass, ...]:
    """Name → fields, in the order given."""
    if not table:
        raise UserError("the mix names no class of traffic", hint="write at least one, such as `[class.chat]`")
    return tuple(_parse(name, values) for name, values in table.items())


def with_agents(classes: Sequence[TrafficClass], agents: int) -> tuple[TrafficClass, ...]:
    """Shares become agents: `agents` in all, less those that classes have of their own; each has one at least."""
    sharing = [one for one in classes if one.share is not None]
    if not sharing:
        return tuple(classes)
    free = agents - sum(one.agents or 0 for one in classes)
    if free < len(sharing):
        names = ", ".join(f"`{one.name}`" for one in sharing)
        raise UserError(f"{agents} agents leave {max(free, 0)} for the shares of {names}", hint="ask for more agents")
    given = dict(
        zip((one.name for one in sharing), _apportion([one.share or 0.0 for one in sharing], free), strict=True)
    )
    return tuple(replace(one, agents=given[one.name], share=None) if one.name in given else one for one in classes)


def _apportion(shares: Sequence[float], whole: int) -> list[int]:
    """At least one each, the rest by the largest remainder."""
    rest = whole - len(shares)
    exact = [rest * share / sum(shares) for share in shares]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda place: counts[place] - exact[place])
    for place in by_remainder[: rest - sum(counts)]:
        counts[place] += 1
    return [1 + count for count in counts]


def _parse(name: str, values: Any) -> TrafficClass:
    if not (0 < len(name) <= 40 and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        raise UserError(f"`{name}` is not a name for a class of traffic", hint=_NAME)
    if not isinstance(values, Mapping):
        raise _wrong(name, None, "is not a table of fields", "such as `shape`, `agents` and `prompt_tokens`")
    known = [one.name for one in fields(TrafficClass) if one.name != "name"]
    for field in values:
        if field not in known:
            near = get_close_matches(str(field), known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are: {', '.join(known)}"
            raise _wrong(name, str(field), "is not known", hint)
    shape = _one_of(name, "shape", values.get("shape"), get_args(Shape))
    for field, shapes in _ONLY_IN.items():
        if field in values and shape not in shapes:
            only = " or ".join(f"`{one}`" for one in shapes)
            raise _wrong(name, field, f"has no meaning for the shape `{shape}`", f"it belongs to {only}")
    checked = {field: _checked(name, field, value) for field, value in values.items() if field != "shape"}
    return _complete(TrafficClass(name, shape, **checked))


def _complete(made: TrafficClass) -> TrafficClass:
    if made.shape == "open":
        if made.rate is None:
            raise _wrong(made.name, "rate", "is missing", "an open class needs its requests per second")
        return made
    if (made.agents is None) == (made.share is None):
        both = "stand together" if made.agents is not None else "are both missing"
        raise _wrong(made.name, None, f"has `agents` and `share` that {both}", "give one of the two")
    if made.shape == "conversation" and made.turns < 2:
        raise _wrong(
            made.name, "turns", f"is {made.turns}", "a conversation has two turns or more; else it is `steady`"
        )
    return made


def _wrong(name: str, field: str | None, what: str, hint: str) -> UserError:
    where = f"class `{name}`: `{field}`" if field else f"class `{name}`"
    return UserError(f"{where} {what}", hint=hint)


def _one_of(name: str, field: str, value: Any, known: tuple[_T, ...]) -> _T:
    for one in known:
        if value == one:
            return one
    hint = "one of " + ", ".join(f"`{one}`" for one in known)
    if value is None:
        raise _wrong(name, field, "is missing", hint)
    near = get_close_matches(str(value), [str(one) for one in known], 1)
    raise _wrong(name, field, f"is `{value}`", f"did you mean `{near[0]}`?" if near else hint)


def _whole(least: int, most: int) -> Demand:
    return f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most


def _real(least: float, most: float) -> Demand:
    def is_it(value: Any) -> bool:
        return type(value) in (int, float) and least <= value <= most

    return f"a number from {least:g} to {most:g}", is_it


def _checked(name: str, field: str, value: Any) -> Any:
    if field == "priority":
        return _one_of(name, field, value, get_args(Priority))
    if field == "arrivals":
        try:
            parse_arrivals(str(value))
        except UserError as error:
            raise _wrong(name, field, f"is `{value}`", error.hint or error.message) from None
        return str(value)
    wanted, is_it = _NUMBERS[field]
    if not is_it(value):
        raise _wrong(name, field, f"is `{value}`", wanted)
    return float(value) if field in ("share", "rate", "think_s") else value


_NUMBERS: Mapping[str, Demand] = {
    "agents": _whole(1, 100_000),
    "share": _real(0.001, 1000.0),
    "rate": _real(0.0001, 100_000.0),
    "prompt_tokens": _whole(30, 1_000_000),
    "max_tokens": _whole(1, 1_000_000),
    "prefix_tokens": _whole(0, 1_000_000),
    "turns": _whole(1, 1000),
    "turn_tokens": _whole(15, 1_000_000),
    "think_s": _real(0.0, 86_400.0),
}
