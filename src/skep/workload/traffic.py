"""Traffic that is described or recorded: when requests arrive, classes of traffic at once, and traces.

A Mooncake line tells when a request came, its lengths, and which 512-token blocks its prompt consists of. Their texts
were not published: one is made for each id, the same every time, so that a prefix cache can hit where it hit then.
A batch line of OpenAI's is a request as it was sent; it does not say when. docs/measure.md shows a file of classes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate, count, islice
from random import Random
from typing import Any, Literal, TypeVar, Unpack, get_args

import msgspec
from msgspec.structs import replace

from skep.catalog.names import did_you_mean
from skep.errors import UserError
from skep.workload.filling import Lengths, cut, endless_functions, exponential, pieces, pieces_for
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


BLOCK_TOKENS = 512
CHAT_PATH = "/v1/chat/completions"

TraceFormat = Literal["mooncake", "batch"]
_LOOKS = {
    "mooncake": '{"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}',
    "batch": '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}',
}
# Of a batch line's body: the bench says these itself.
_OURS = frozenset({"messages", "max_tokens", "max_completion_tokens", "model", "stream", "stream_options"})


class TraceItem(msgspec.Struct, frozen=True):
    """One request of a trace: either `blocks` or `messages` say what it asks."""

    line: int
    at_s: float | None  # since the first request, at the speed asked for; None: the trace does not say
    prompt_tokens: int | None  # None: nobody has counted
    max_tokens: int | None  # None: as long as the model likes
    blocks: tuple[int, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    custom_id: str | None = None
    extras: Mapping[str, Any] = {}  # the rest of the body, passed on as it is


def read_trace(lines: Iterable[str], *, speed: float = 1.0, limit: int | None = None) -> tuple[TraceItem, ...]:
    """In the order of arrival. `speed` 2 replays in half the time; `limit` takes so many from the beginning."""
    if not (math.isfinite(speed) and speed > 0):
        raise UserError(f"speed `{speed}` is not possible", hint="1 is as recorded, 2 is twice as fast")
    if limit is not None and limit < 1:
        raise UserError(f"limit `{limit}` is too small: no request would be replayed", hint="give 1 or more")
    items = sorted(islice(_items(lines), limit), key=lambda item: item.at_s or 0.0)
    if not items:
        raise UserError("the trace holds no requests", hint=f"one JSON object a line, such as {_LOOKS['mooncake']}")
    first = items[0].at_s
    if first is None:
        return tuple(items)
    return tuple(replace(item, at_s=((item.at_s or 0.0) - first) / speed) for item in items)


def trace_messages(item: TraceItem, *, seed: int = 0, **lengths: Unpack[Lengths]) -> list[dict[str, Any]]:
    """Return what is sent for one item. Another seed gives other texts: a replay that no earlier one has warmed."""
    if item.messages:
        return [dict(message) for message in item.messages]
    last_tokens = (item.prompt_tokens or 0) - BLOCK_TOKENS * (len(item.blocks) - 1)
    last = max(1, pieces_for(last_tokens, **lengths))
    lengths["overhead_tokens"] = 0.0
    sizes = [pieces_for(BLOCK_TOKENS, **lengths)] * (len(item.blocks) - 1) + [last]
    texts = [_block(seed, block, size) for block, size in zip(item.blocks, sizes, strict=True)]
    return [{"role": "user", "content": "".join(texts)}]


def _block(seed: int, block: int, length: int) -> str:
    """The text of an id; a shorter one is the beginning of a longer one."""
    rng = Random(f"{seed}/{block}")
    parts = [f"\n{rng.getrandbits(32) % 10_000_000:07d} # {block}\n"]
    left = length - pieces(parts[0])
    for text in endless_functions(rng):
        if left <= 0:
            break
        parts.append(text)
        left -= pieces(text)
    return cut("".join(parts), length)


def _items(lines: Iterable[str]) -> Iterator[TraceItem]:
    seen: TraceFormat | None = None
    ids: dict[str, int] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            values, shape = _read(text)
            if seen is not None and shape != seen:
                raise UserError(f" is a {shape} line among {seen} lines", hint="give each format its own file")
            item = _mooncake(number, values) if shape == "mooncake" else _batch(number, values)
            if item.custom_id is not None and (earlier := ids.setdefault(item.custom_id, number)) != number:
                raise UserError(f" has the custom_id `{item.custom_id}` of line {earlier}")
        except UserError as error:
            raise UserError(f"line {number} of the trace{error.message}", hint=error.hint) from None
        seen = shape
        yield item


def _read(text: str) -> tuple[dict[str, Any], TraceFormat]:
    """Return the object of a line, and of which format it is. Errors here begin behind `line 5 of the trace`."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UserError(f" is not JSON: {error}", hint="one JSON object a line") from None
    if not isinstance(values, dict):
        raise UserError(" is not a JSON object", hint=f"such as {_LOOKS['mooncake']}")
    if "body" in values or "custom_id" in values:
        return values, "batch"
    if "input_length" in values or "hash_ids" in values:
        return values, "mooncake"
    raise UserError(" is in an unknown format", hint=f"Mooncake's: {_LOOKS['mooncake']}; OpenAI's: {_LOOKS['batch']}")


def _mooncake(number: int, values: Mapping[str, Any]) -> TraceItem:
    at_ms, blocks = values.get("timestamp"), values.get("hash_ids")
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not 0 <= at_ms < math.inf:
        raise UserError(f": `timestamp` is {_shown(at_ms)}, not a number from 0 up")
    tokens, max_tokens = _count(values, "input_length"), _count(values, "output_length")
    if not isinstance(blocks, list) or any(type(block) is not int for block in blocks):
        raise UserError(": `hash_ids` is not a list of whole numbers")
    needed = -(-tokens // BLOCK_TOKENS)
    if len(blocks) != needed:
        hint = f"only traces with blocks of {BLOCK_TOKENS} tokens can be replayed"
        raise UserError(f": {tokens} tokens are {needed} blocks of {BLOCK_TOKENS}, not {len(blocks)}", hint=hint)
    return TraceItem(number, at_ms / 1000, tokens, max_tokens, blocks=tuple(blocks))


def _batch(number: int, values: Mapping[str, Any]) -> TraceItem:
    custom_id, body = values.get("custom_id"), values.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise UserError(" has no `custom_id`", hint=f"such as {_LOOKS['batch']}")
    if values.get("method", "POST") != "POST" or values.get("url", CHAT_PATH) != CHAT_PATH:
        raise UserError(f" is not a POST to {CHAT_PATH}", hint="leave such lines out")
    if not isinstance(body, dict):
        raise UserError(" has no `body`", hint=f"such as {_LOOKS['batch']}")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise UserError(": `body.messages` is not a list of messages with a role")
    limits = [name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    most = _count(body, limits[0]) if limits else None
    extras = {name: value for name, value in body.items() if name not in _OURS}
    return TraceItem(number, None, None, most, messages=tuple(messages), custom_id=custom_id, extras=extras)


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or value < 1:
        raise UserError(f": `{name}` is {_shown(value)}, not a whole number from 1 up")
    return value


def _shown(value: Any) -> str:
    return "missing" if value is None else f"`{str(value)[:40]}`"
