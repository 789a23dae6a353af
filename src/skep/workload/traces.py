"""Recorded traffic, as JSON lines: Mooncake's traces and OpenAI's batch files.

A Mooncake line tells when a request came, its lengths, and which 512-token blocks its prompt consists of. Their texts
were not published: one is made for each id, the same every time, so that a prefix cache can hit where it hit then.
A batch line is a request as it was sent; it does not say when.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from random import Random
from typing import Any, Literal, Unpack

import msgspec
from msgspec.structs import replace

from skep.errors import UserError
from skep.workload.filling import Lengths, cut, endless_functions, pieces, pieces_for

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
