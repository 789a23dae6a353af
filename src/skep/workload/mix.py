"""Several kinds of traffic at once, each with its own shape, size and priority: docs/measure.md shows a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate, count
from random import Random
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from skep.catalog.names import did_you_mean
from skep.errors import UserError
from skep.workload.filling import exponential
from skep.workload.filling import gamma as draw_gamma

# When requests arrive, of a rate per second: endless offsets in seconds from the beginning of a load, never falling.
# The first of a random process comes after a gap as well: it has no beginning of its own.
Arrivals = Callable[[float, Random], Iterator[float]]
_HINT = "write `poisson`, `constant` or `gamma:CV`, such as `gamma:2.0`"
_LARGEST_CV = 20.0


def constant(rate: float) -> Iterator[float]:
    """0, 1/rate, 2/rate, ...: not summed up, so that nothing drifts."""
    _check_rate(rate)
    return (place / rate for place in count())


def poisson(rate: float, rng: Random) -> Iterator[float]:
    _check_rate(rate)
    return accumulate(exponential(rng, 1.0 / rate) for _ in count())


def gamma(rate: float, cv: float, rng: Random) -> Iterator[float]:
    """`cv` is the gaps' deviation over their mean: 1 is Poisson, above it is burstier, 0 gives constant gaps."""
    if cv == 0:
        return constant(rate)
    _check_rate(rate)
    shape = 1.0 / (cv * cv)
    return accumulate(draw_gamma(rng, shape) / (shape * rate) for _ in count())


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and rate > 0):
        raise UserError(f"`{rate}` requests per second is not a rate", hint="give a number above zero")


def parse_arrivals(text: str) -> Arrivals:
    """ "poisson", "constant" or "gamma:2.0": what makes offsets of a rate and a generator."""
    name, colon, value = text.strip().lower().partition(":")
    if not colon and name in ("poisson", "constant"):
        return poisson if name == "poisson" else lambda rate, _: constant(rate)
    if name != "gamma" or not colon:
        raise UserError(f"arrivals `{text}` are not known", hint=_HINT)
    try:
        cv = float(value)
    except ValueError:
        raise UserError(f"arrivals `{text}`: `{value}` is not a number", hint=_HINT) from None
    if not 0 <= cv <= _LARGEST_CV:
        hint = f"give a value between 0 and {_LARGEST_CV:g}; 1 is Poisson"
        raise UserError(f"arrivals `{text}` have an impossible coefficient of variation", hint=hint)
    return lambda rate, rng: gamma(rate, cv, rng)


Shape = Literal["steady", "open", "conversation"]
Priority = Literal["interactive", "normal", "batch"]

_T = TypeVar("_T")
_ONLY_IN: Mapping[str, tuple[Shape, ...]] = {
    "agents": ("steady", "conversation"),
    "share": ("steady", "conversation"),
    "rate": ("open",),
    "arrivals": ("open",),
    "turns": ("conversation",),
    "think_s": ("steady", "conversation"),
}


class TrafficClass(msgspec.Struct, frozen=True):
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
    shares = {one.name: one.share for one in classes if one.share is not None}
    if not shares:
        return tuple(classes)
    free = agents - sum(one.agents or 0 for one in classes)
    if free < len(shares):
        names = ", ".join(f"`{name}`" for name in shares)
        raise UserError(f"{agents} agents leave {max(free, 0)} for the shares of {names}", hint="ask for more agents")
    rest = free - len(shares)  # by the largest remainder
    exact = {name: rest * share / sum(shares.values()) for name, share in shares.items()}
    given = {name: 1 + math.floor(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda name: math.floor(exact[name]) - exact[name])[: free - sum(given.values())]:
        given[name] += 1
    return tuple(replace(one, agents=given[one.name], share=None) if one.name in given else one for one in classes)


def _parse(name: str, values: Any) -> TrafficClass:
    if not (0 < len(name) <= 40 and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        hint = "letters, digits, `-` and `_`, at most 40"
        raise UserError(f"`{name}` is not a name for a class of traffic", hint=hint)
    if not isinstance(values, Mapping):
        raise _wrong(name, None, "is not a table of fields", "such as `shape`, `agents` and `prompt_tokens`")
    known = [name for name in TrafficClass.__struct_fields__ if name != "name"]
    for field in values:
        if field not in known:
            hint = did_you_mean(get_close_matches(str(field), known, 1), f"known: {', '.join(known)}")
            raise _wrong(name, str(field), "is not known", hint)
    shape = _one_of(name, "shape", values.get("shape"), get_args(Shape))
    for field, shapes in _ONLY_IN.items():
        if field in values and shape not in shapes:
            only = " or ".join(f"`{one}`" for one in shapes)
            raise _wrong(name, field, f"has no meaning for the shape `{shape}`", f"it belongs to {only}")
    checked = {field: _checked(name, field, value) for field, value in values.items() if field != "shape"}
    made = TrafficClass(name, shape, **checked)
    if shape == "open":
        if made.rate is None:
            raise _wrong(name, "rate", "is missing", "an open class needs its requests per second")
    elif (made.agents is None) == (made.share is None):
        both = "are both given" if made.agents is not None else "are both missing"
        raise _wrong(name, None, f"has `agents` and `share` that {both}", "give one of the two")
    elif shape == "conversation" and made.turns < 2:
        raise _wrong(name, "turns", f"is {made.turns}", "a conversation has two turns or more; else it is `steady`")
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
    raise _wrong(name, field, f"is `{value}`", did_you_mean(near, hint))


def _checked(name: str, field: str, value: Any) -> Any:
    if field == "priority":
        return _one_of(name, field, value, get_args(Priority))
    if field == "arrivals":
        try:
            parse_arrivals(str(value))
        except UserError as error:
            raise _wrong(name, field, f"is `{value}`", error.hint or error.message) from None
        return str(value)
    kind, least, most = _NUMBERS[field]
    if type(value) not in (int, kind) or not least <= value <= most:
        wanted = f"a whole number from {least} to {most}" if kind is int else f"a number from {least:g} to {most:g}"
        raise _wrong(name, field, f"is `{value}`", wanted)
    return kind(value)


_NUMBERS: Mapping[str, tuple[type, float, float]] = {
    "agents": (int, 1, 100_000),
    "share": (float, 0.001, 1000.0),
    "rate": (float, 0.0001, 100_000.0),
    "prompt_tokens": (int, 30, 1_000_000),
    "max_tokens": (int, 1, 1_000_000),
    "prefix_tokens": (int, 0, 1_000_000),
    "turns": (int, 1, 1000),
    "turn_tokens": (int, 15, 1_000_000),
    "think_s": (float, 0.0, 86_400.0),
}
MOST_RATE = 2000.0


def parse_rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate <= MOST_RATE for rate in rates):
        hint = f"write it as --rate 0.5,1,2; at most {MOST_RATE:g}"
        raise UserError(f"--rate `{text}` is not a list of requests per second", hint=hint)
    return rates
