"""Traffic that is described or recorded: when requests arrive, classes of traffic at once, and traces.

A Mooncake line tells when a request came, its lengths, and which 512-token blocks its prompt consists of. Their texts
were not published: one is made for each id, the same every time, so that a prefix cache can hit where it hit then.
A batch line of OpenAI's is a request as it was sent; it does not say when. docs/measure.md shows a file of classes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate, count, islice
from random import Random
from typing import Any, Literal, Unpack, get_args

import msgspec
from msgspec.structs import replace

from skep.errors import UserError
from skep.workload.filling import Lengths, cut, endless_functions, exponential, pieces, pieces_for
from skep.workload.filling import gamma as draw_gamma
from skep.workload.items import Demand, field_faults, one_of, real_number, whole_number

# When requests arrive, of a rate per second: endless offsets in seconds from the beginning of a load, never falling.
# The first of a random process comes after a gap as well: it has no beginning of its own.
Arrivals = Callable[[float, Random], Iterator[float]]
_ARRIVALS = "`poisson`, `constant` or `gamma:CV` with a CV from 0 to 20, such as `gamma:2.0`"
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
    name, _, value = text.strip().lower().partition(":")
    if not _is_arrivals(text):
        raise UserError(f"arrivals `{text}` are not known", hint=f"write {_ARRIVALS}; 1 is Poisson")
    if name == "gamma":
        return lambda rate, rng: gamma(rate, float(value), rng)
    return poisson if name == "poisson" else lambda rate, _: constant(rate)


def _is_arrivals(text: str) -> bool:
    name, colon, value = text.strip().lower().partition(":")
    if name != "gamma" or not colon:
        return not colon and name in ("poisson", "constant")
    try:
        return 0 <= float(value) <= _LARGEST_CV
    except ValueError:
        return False


Shape = Literal["steady", "open", "conversation"]
Priority = Literal["interactive", "normal", "batch"]


class TrafficClass(msgspec.Struct, frozen=True):
    """One kind of traffic. An open one has a rate; the others have agents."""

    name: str
    shape: Shape
    agents: int | None = None
    rate: float | None = None  # requests per second
    arrivals: str = "poisson"
    priority: Priority = "normal"
    prompt_tokens: int = 250  # of the first turn, in a conversation
    max_tokens: int = 128
    prefix_tokens: int = 0  # of a system prompt that all its requests share
    turns: int = 1
    turn_tokens: int = 40  # of each further turn
    think_s: float = 0.0  # mean pause of an agent between two requests


_ONLY_IN: Mapping[str, tuple[Shape, ...]] = {
    "agents": ("steady", "conversation"),
    "rate": ("open",),
    "arrivals": ("open",),
    "turns": ("conversation",),
    "think_s": ("steady", "conversation"),
}


def parse_classes(table: Mapping[str, Any]) -> tuple[TrafficClass, ...]:
    """Name → fields, in the order given."""
    if not table:
        raise UserError("the mix names no class of traffic", hint="write at least one, such as `[class.chat]`")
    for name, values in table.items():
        if not re.fullmatch(r"(?=.*[A-Za-z0-9])[\w-]{1,40}", name, re.ASCII):
            hint = "letters, digits, `-` and `_`, at most 40"
            raise UserError(f"`{name}` is not a name for a class of traffic", hint=hint)
        if (fault := next(_class_faults(values), None)) is not None:
            raise UserError(f"class `{name}`: {fault}", hint="docs/measure.md shows a file of classes")
    return tuple(msgspec.convert({"name": name, **values}, TrafficClass) for name, values in table.items())


def _class_faults(values: Any) -> Iterator[str]:
    if not isinstance(values, Mapping):
        yield "it is not a table of fields, such as `shape`, `agents` and `prompt_tokens`"
        return
    others: dict[str, Demand] = {
        "agents": whole_number(1, 100_000),
        "rate": real_number(0.0001, 100_000.0),
        "arrivals": (_ARRIVALS, lambda value: isinstance(value, str) and _is_arrivals(value)),
        "priority": one_of(get_args(Priority)),
        "prompt_tokens": whole_number(30, 1_000_000),
        "max_tokens": whole_number(1, 1_000_000),
        "prefix_tokens": whole_number(0, 1_000_000),
        "turns": whole_number(1, 1000),
        "turn_tokens": whole_number(15, 1_000_000),
        "think_s": real_number(0.0, 86_400.0),
    }
    yield from field_faults(values, {"shape": one_of(get_args(Shape))}, others)
    shape = values["shape"]
    for field, shapes in _ONLY_IN.items():
        if field in values and shape not in shapes:
            yield f"`{field}` has no meaning for the shape `{shape}`: it belongs to {' and '.join(shapes)}"
    if shape == "open" and "rate" not in values:
        yield "`rate` is missing: an open class needs its requests per second"
    if shape != "open" and "agents" not in values:
        yield f"`agents` is missing: a {shape} class needs a number of them"
    if shape == "conversation" and values.get("turns", 1) < 2:
        yield "`turns` is 1: a conversation has two turns or more; else it is `steady`"


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
_LOOKS = (
    'one JSON object a line: {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]} or '
    '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'
)
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
        raise UserError("the trace holds no requests", hint=_LOOKS)
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
        where = f"line {number} of the trace"
        try:
            values = json.loads(text)
        except ValueError as error:
            raise UserError(f"{where} is not JSON: {error}", hint=_LOOKS) from None
        if not isinstance(values, dict):
            raise UserError(f"{where} is not a JSON object", hint=_LOOKS)
        shape: TraceFormat = "batch" if "body" in values or "custom_id" in values else "mooncake"
        if seen is not None and shape != seen:
            raise UserError(f"{where} is a {shape} line among {seen} lines", hint="give each format its own file")
        faults = _mooncake_faults(values) if shape == "mooncake" else _batch_faults(values)
        if (fault := next(faults, None)) is not None:
            raise UserError(f"{where}: {fault}", hint=_LOOKS)
        item = _mooncake(number, values) if shape == "mooncake" else _batch(number, values)
        if item.custom_id is not None and (earlier := ids.setdefault(item.custom_id, number)) != number:
            raise UserError(f"{where} has the custom_id `{item.custom_id}` of line {earlier}")
        seen = shape
        yield item


@cache
def _mooncake_fields() -> Mapping[str, Demand]:
    count, is_ids = whole_number(1), lambda value: isinstance(value, list) and {*map(type, value)} <= {int}
    ids: Demand = ("a list of whole numbers", is_ids)
    return {"timestamp": real_number(0, 1e15), "input_length": count, "output_length": count, "hash_ids": ids}


_LIMITS = ("max_completion_tokens", "max_tokens")


def _mooncake_faults(values: Mapping[str, Any]) -> Iterator[str]:
    wanted = _mooncake_fields()
    yield from field_faults({name: values[name] for name in wanted if name in values}, wanted, {})
    blocks, needed = len(values["hash_ids"]), -(-values["input_length"] // BLOCK_TOKENS)
    if blocks != needed:
        yield f"{values['input_length']} tokens are {needed} blocks of {BLOCK_TOKENS}, not {blocks}"


def _mooncake(number: int, values: Mapping[str, Any]) -> TraceItem:
    tokens, blocks = values["input_length"], tuple(values["hash_ids"])
    return TraceItem(number, values["timestamp"] / 1000, tokens, values["output_length"], blocks=blocks)


def _batch_faults(values: Mapping[str, Any]) -> Iterator[str]:
    custom_id, body = values.get("custom_id"), values.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        yield "it has no `custom_id`"
    if values.get("method", "POST") != "POST" or values.get("url", CHAT_PATH) != CHAT_PATH:
        yield f"it is not a POST to {CHAT_PATH}"
    if not isinstance(body, dict):
        yield "it has no `body`"
        return
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        yield "`body.messages` is not a list of messages with a role"
    limits = {name: body[name] for name in _LIMITS if body.get(name) is not None}
    yield from field_faults(limits, {}, dict.fromkeys(_LIMITS, whole_number(1)), place="body.")


def _batch(number: int, values: Mapping[str, Any]) -> TraceItem:
    body = values["body"]
    most = next((body[name] for name in _LIMITS if body.get(name) is not None), None)
    extras = {name: value for name, value in body.items() if name not in _OURS}
    messages = tuple(body["messages"])
    return TraceItem(number, None, None, most, messages=messages, custom_id=values["custom_id"], extras=extras)
