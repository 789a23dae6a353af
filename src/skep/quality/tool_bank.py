"""A bank of tools made ready for one endpoint: which sizes of context fit, and the conversations
before the tasks, as long as its tokenizer makes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, context_tokens
from skep.bench.tasks import count_by_usage, count_tokens
from skep.errors import UserError
from skep.quality.banks import Bank, tools_bank
from skep.wire.client import Pool
from skep.workload.filling import CHARS_PER_PIECE, pieces
from skep.workload.tool_history import Message, tool_history
from skep.workload.tool_tasks import (
    LONGEST_WITHOUT_TOLD_CONTEXT,
    MAX_TOKENS,
    ROOM_TOKENS,
    SIZES,
    TOOLS,
    sizes_named,
)

LONGEST_SAMPLE = "32k"  # of the texts that show how the endpoint's tokenizer counts
COUNTING_S = 600.0  # where it has to read the text to count it
STEPS_PER_CHARACTER = 20  # chars per token are rounded: the same tokenizer gives the same texts


class ReadyTools(msgspec.Struct, frozen=True):
    """A bank whose tasks fit, the conversations before them by size, and what was left out."""

    bank: Bank
    histories: Mapping[str, Sequence[Message]]
    left_out: tuple[str, ...] = ()


async def ready_tools(
    endpoint: Endpoint,
    name: str,
    *,
    seed: int,
    count: int,
    max_tokens: int | None = None,
    sizes: Sequence[str] = (),
) -> ReadyTools:
    """Return the bank of that name as this endpoint can be asked it.

    `max_tokens`: of one answer; None: the bank's own. `sizes`: instead of those of the name.
    Raises UserError where no size fits.
    """
    if endpoint.api == "ollama":
        raise UserError(f"--bank {TOOLS} is asked over the OpenAI API", hint="leave out --api")
    async with open_pool(endpoint) as pool:
        context = await context_tokens(pool, endpoint)
    answer_tokens = max_tokens or MAX_TOKENS
    chosen = tuple(sizes) or sizes_named(name)
    left_out = [
        line
        for line in (_why_left_out(size, context, answer_tokens, len(chosen)) for size in chosen)
        if line
    ]
    fitting = [
        size for size in chosen if not _why_left_out(size, context, answer_tokens, len(chosen))
    ]
    if not fitting:
        hint = "serve it with a longer context per session, or choose another bank"
        raise UserError(left_out[0], hint=hint)
    chars_per_token = await measured_chars_per_token(endpoint, seed, fitting[-1])
    histories = {size: tool_history(seed, size, chars_per_token) for size in fitting}
    bank = tools_bank(name, seed=seed, count=count, sizes=fitting)
    if max_tokens is not None:
        items = tuple(replace(item, max_tokens=max_tokens) for item in bank.items)
        bank = replace(bank, items=items)
    return ReadyTools(bank, histories, tuple(left_out))


async def measured_chars_per_token(endpoint: Endpoint, seed: int, size: str) -> float:
    """Return how the endpoint counts such conversations, rounded: the same tokenizer gives the
    same texts each time.
    """
    sample_size = min(size, LONGEST_SAMPLE, key=SIZES.__getitem__)
    messages = tool_history(seed, sample_size)
    text = "\n".join(str(message["content"]) for message in messages)
    async with open_pool(endpoint) as pool:
        count = await count_tokens(pool, endpoint, text)
        if not count:
            sample = [{"role": "user", "content": text}]
            count = await count_by_usage(pool, endpoint, sample, COUNTING_S)
    chars_per_token = pieces(text) * CHARS_PER_PIECE / max(1, count)
    return max(1, round(chars_per_token * STEPS_PER_CHARACTER)) / STEPS_PER_CHARACTER


@asynccontextmanager
async def open_pool(endpoint: Endpoint) -> AsyncIterator[Pool]:
    pool = Pool(endpoint.origin)
    try:
        yield pool
    finally:
        await pool.close()


def _why_left_out(size: str, context: int | None, answer_tokens: int, chosen: int) -> str:
    """Return why a size of context cannot be asked; empty: it can.

    `chosen`: how many sizes were; one that was named alone is asked unless it cannot fit.
    """
    needed = SIZES[size] + ROOM_TOKENS + max(0, answer_tokens - MAX_TOKENS)
    if context is None:
        if chosen > 1 and SIZES[size] > LONGEST_WITHOUT_TOLD_CONTEXT:
            return f"{TOOLS}:{size} is left out: the endpoint does not tell its context"
        return ""
    if needed <= context:
        return ""
    return (
        f"{TOOLS}:{size} is left out: it needs a context of {needed:,} tokens, the endpoint has "
        f"{context:,}"
    )
