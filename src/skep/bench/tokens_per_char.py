"""How long a prompt is in this engine's tokens: asked of its tokenizer where it has one, else learnt from `usage`."""

from __future__ import annotations

import asyncio
import time
from random import Random

from skep.bench.endpoint import Endpoint
from skep.bench.request import BenchTask, Sender
from skep.errors import EndpointError
from skep.wire.client import Pool
from skep.wire.fetch import fetch_if_there
from skep.workload.calibration import TokenCalibration, calibrate, sample_prompts
from skep.workload.prompts import Prompt, messages

SAMPLES = 12
ASKED_OF_USAGE = 6


async def calibrate_on(
    endpoint: Endpoint, tokens: int | None, seed: int, *, timeout_s: float = 120.0
) -> TokenCalibration:
    """The template's own tokens are known only from `usage`, so a few requests of one token are made in any case."""
    prompts = sample_prompts(Random(f"{seed}/lengths"), tokens=tokens, count=SAMPLES)
    pool = Pool(endpoint.origin)
    try:
        counts = await asyncio.gather(*(count_tokens(pool, endpoint, prompt.text) for prompt in prompts))
        known = [(prompt, count) for prompt, count in zip(prompts, counts, strict=True) if count]
        asked = prompts[: 1 if len(known) == len(prompts) else ASKED_OF_USAGE]
        told = [(prompt, await _usage(pool, endpoint, prompt, timeout_s)) for prompt in asked]
    finally:
        await pool.close()
    if len(known) < len(prompts):
        return calibrate((prompt.text, count) for prompt, count in told)
    prompt, with_template = told[0]
    template = with_template - {one.text: count for one, count in known}[prompt.text]
    return calibrate((one.text, count + template) for one, count in known)


async def count_tokens(pool: Pool, endpoint: Endpoint, text: str) -> int | None:
    """Return how many tokens the engine's tokenizer finds; None where it has none.

    llama.cpp wants `content` and gives the tokens; vLLM and SGLang want `prompt` and give a count.
    """
    body = {"model": endpoint.model, "content": text, "prompt": text}
    headers = dict(endpoint.headers)
    answer = await fetch_if_there(pool, "POST", "/tokenize", body=body, headers=headers, timeout_s=10.0)
    document = answer.document() if answer else {}
    count, tokens = document.get("count"), document.get("tokens")
    if isinstance(count, int):
        return count
    return len(tokens) if isinstance(tokens, list) else None


async def _usage(pool: Pool, endpoint: Endpoint, prompt: Prompt, timeout_s: float) -> int:
    sender = Sender(endpoint, pool, time.monotonic(), timeout_s=timeout_s)
    row, _ = await sender.ask(BenchTask(0, 0, 0, prompt.kind, messages(prompt), 1))
    if row.prompt_tokens is None:
        why = row.error or "it says nothing of the prompt's tokens"
        hint = "without --prompt-tokens no count is needed"
        raise EndpointError(f"{endpoint.url} did not count a prompt: {why}", hint=hint)
    return row.prompt_tokens
