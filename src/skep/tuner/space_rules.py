"""Settings that contradict each other inside an engine, whatever the cards. Repeats none of the planner's rules."""

from __future__ import annotations

from collections.abc import Iterator

from skep.catalog.presets import Preset
from skep.errors import UserError
from skep.tuner.variants import LLAMA, plain_kv, tokens_of, turned, where
from skep.tunings import Config


def own_refusal(config: Config, base: Preset) -> str | None:
    """Why these values cannot go together; None: nothing is known against them."""
    try:
        preset = turned(base, config)
    except UserError as error:
        return error.message
    rules = _llama if preset.engine in LLAMA else _pooled
    return next(rules(preset), None)


def _llama(preset: Preset) -> Iterator[str]:
    micro, batch = tokens_of(preset, "batched_tokens"), tokens_of(preset, "batch")
    if micro > batch:
        yield f"a micro-batch of {micro} tokens is more than the batch of {batch} that it is a part of"
    draft = preset.options.draft
    busy = preset.slots * (1 + (draft.depth if draft is not None else 0))
    if busy > batch:
        yield f"a batch of {batch} tokens does not hold the {busy} that {preset.slots} slots and their drafts decode"
    flash = where(preset, "flash_attention")
    kv = where(preset, "kv")
    if kv not in (plain_kv(preset.engine), "f32", "bf16") and not flash:
        yield f"a KV cache in {kv} needs flash attention, which is off"
    if preset.options.tp > 1 and not flash:
        yield f"layers cut over {preset.options.tp} cards need flash attention, which is off"


def _pooled(preset: Preset) -> Iterator[str]:
    tokens, context = tokens_of(preset, "batched_tokens"), preset.context_tokens or 0
    if where(preset, "chunked_prefill") is False and tokens < context:
        yield f"without chunked prefill a step must hold a whole prompt: {tokens} batched tokens, context {context}"
    slots = -(-preset.slots // preset.options.dp)
    if preset.engine == "vllm" and tokens < slots:
        yield f"{tokens} batched tokens are fewer than {slots} sequences"
