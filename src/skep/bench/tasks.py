"""What is asked: a workload and a seed become the tasks of every run of every level, the same ones each time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Literal

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import TrafficStream
from skep.bench.request import BenchTask, Sender
from skep.errors import EndpointError
from skep.wire.client import Pool, fetch_if_there
from skep.workload import prompts
from skep.workload.calibration import TokenCalibration, calibrate, sample_prompts

Shape = Literal["steady", "burst", "conversation", "shared-prefix", "prefill"]

SHARED_TOKENS = 2048
PREFILL_TOKENS = 8192
FIRST_TURN_TOKENS = 120
TASK_TOKENS = 60  # behind a shared prefix, without the chat template's own
SAMPLES = 12
ASKED_OF_USAGE = 6


class Workload(msgspec.Struct, frozen=True):
    """What tasks are like; `prompt_tokens` None: a size, in characters, that needs no calibration."""

    shape: Shape = "steady"
    size: prompts.Size = "short"
    prompt_tokens: int | None = None
    max_tokens: int = 128
    fixed_output: bool = False
    temperature: float = 0.0
    seed: int = 0
    turns: int = 4  # of a conversation
    think_s: float = 2.0


class TaskMaker:
    """Every prompt begins with a tag of its own, so that no cache has seen it; `salt` makes other tags of the same."""

    def __init__(self, workload: Workload, calibration: TokenCalibration | None = None, *, salt: str = "") -> None:
        self.workload = workload
        self._calibration = calibration or TokenCalibration()
        self._salt = salt

    @property
    def lengths(self) -> dict[str, float | None]:
        """As measured on this engine, for the record; None where nothing was."""
        known = self._calibration
        return {name: value if known.samples else None for name, value in known.lengths.items()}

    def tasks(self, level: int, repeat: int, count: int, *, same: bool = False) -> list[BenchTask]:
        """`same`: those that every other level has too, each behind another first line."""
        found = islice(self._prompts(f"{repeat}" if same else f"{level}/{repeat}"), count)
        first = f"{self._salt}{level}." if same else self._salt
        return [self._task(level, repeat, index, prompt, first) for index, prompt in enumerate(found)]

    def warm_up(self, count: int, begin: int, max_tokens: int) -> list[BenchTask]:
        """Level 0: prompts of the same kind, short answers."""
        found = islice(self._prompts(f"warm/{begin}"), count)
        made = (self._task(0, 0, begin + index, prompt, self._salt) for index, prompt in enumerate(found))
        return [replace(task, max_tokens=max_tokens) for task in made]

    def scripts(self, level: int, repeat: int) -> Iterator[prompts.ConversationScript]:
        load, rng = self.workload, Random(f"{self.workload.seed}/talk/{level}/{repeat}")
        lengths = {"tokens_first": load.prompt_tokens or FIRST_TURN_TOKENS, **self._calibration.lengths}
        found = prompts.conversations(rng, turns=load.turns, think_s=load.think_s, **lengths)
        if not self._salt:
            return found
        return (replace(script, system=f"{self._salt} {script.system}") for script in found)

    def _prompts(self, place: str) -> Iterator[prompts.Prompt]:
        load, rng = self.workload, Random(f"{self.workload.seed}/{place}")
        measure = self._calibration.lengths
        if load.shape == "shared-prefix":
            least = math.ceil(TASK_TOKENS + self._calibration.overhead_tokens)
            return prompts.shared_prefix(rng, tokens=load.prompt_tokens or SHARED_TOKENS, task_tokens=least, **measure)
        if load.shape == "prefill":
            return prompts.prefill_heavy(rng, tokens=load.prompt_tokens or PREFILL_TOKENS, **measure)
        if load.prompt_tokens is None:
            return prompts.coding_prompts(rng, size=load.size)
        return prompts.coding_prompts(rng, tokens=load.prompt_tokens, **measure)

    def _task(self, level: int, repeat: int, index: int, prompt: prompts.Prompt, first: str) -> BenchTask:
        said = prompt.messages
        if first:
            said[0]["content"] = f"{first} {said[0]['content']}"
        return self._base_task(level, repeat, index, prompt.kind, said)

    def _base_task(self, level: int, repeat: int, index: int, kind: str, said: list[dict[str, str]]) -> BenchTask:
        load = self.workload
        return BenchTask(level, repeat, index, kind, said, load.max_tokens, load.fixed_output, load.temperature)

    def conversation_stream(self, level: int, repeat: int, count: int) -> TrafficStream:
        """`level` agents in conversation until about `count` turns were had."""
        turns = self.workload.turns
        scripts = [*islice(self.scripts(level, repeat), max(level, -(-count // turns)))]
        firsts = [
            replace(self._base_task(level, repeat, place * turns, script.kind, []), session=place)
            for place, script in enumerate(scripts)
        ]
        return TrafficStream(firsts, level, scripts=scripts)


async def calibrate_on(
    endpoint: Endpoint, tokens: int | None, seed: int, *, timeout_s: float = 120.0
) -> TokenCalibration:
    """The template's own tokens are known only from `usage`, so a few requests of one token are made in any case."""
    samples = sample_prompts(Random(f"{seed}/lengths"), tokens=tokens, count=SAMPLES)
    pool = Pool(endpoint.origin)
    try:
        counts = await asyncio.gather(*(count_tokens(pool, endpoint, prompt.text) for prompt in samples))
        known = [(prompt, count) for prompt, count in zip(samples, counts, strict=True) if count]
        asked = samples[: 1 if len(known) == len(samples) else ASKED_OF_USAGE]
        told = [(prompt, await _usage(pool, endpoint, prompt, timeout_s)) for prompt in asked]
    finally:
        await pool.close()
    if len(known) < len(samples):
        return calibrate((prompt.text, count) for prompt, count in told)
    prompt, with_template = told[0]
    template = with_template - {one.text: count for one, count in known}[prompt.text]
    return calibrate((one.text, count + template) for one, count in known)


async def count_tokens(pool: Pool, endpoint: Endpoint, text: str) -> int | None:
    """Return how many tokens the engine's tokenizer finds; None where it has none."""
    # llama.cpp wants `content` and gives the tokens; vLLM and SGLang want `prompt` and give a count
    body, headers = {"model": endpoint.model, "content": text, "prompt": text}, dict(endpoint.headers)
    answer = await fetch_if_there(pool, "POST", "/tokenize", body=body, headers=headers, timeout_s=10.0)
    document = answer.document() if answer else {}
    count, tokens = document.get("count"), document.get("tokens")
    if isinstance(count, int):
        return count
    return len(tokens) if isinstance(tokens, list) else None


async def _usage(pool: Pool, endpoint: Endpoint, prompt: prompts.Prompt, timeout_s: float) -> int:
    sender = Sender(endpoint, pool, time.monotonic(), timeout_s=timeout_s)
    row, _ = await sender.ask(BenchTask(0, 0, 0, prompt.kind, prompt.messages, 1))
    if row.prompt_tokens is None:
        why = row.error or "it does not report the prompt's tokens"
        hint = "leave --prompt-tokens out: then skep needs no count"
        raise EndpointError(f"{endpoint.url} did not count a prompt: {why}", hint=hint)
    return row.prompt_tokens
