"""What llama.cpp wants of its options, whoever starts it: `llama-server` or the embedded engine. Pure.

It cuts a micro-batch down to the batch without a word, and ends itself when slots and drafts overflow the batch, which
happens under load: both are refused here, before the start.
"""

from __future__ import annotations

from collections.abc import Iterable

from skep.catalog.options import EngineOptions
from skep.engines.base import Launch

BATCH = 2048  # its own default for what one batch holds; a micro-batch cannot be larger
LEAST_BATCH = 2  # what its own first run takes
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
LAYOUTS = ("unified", "split")
NGRAM = 3  # tokens that must have stood in the text before, for what followed them to be drafted
_PLAIN = ("f32", "f16", "bf16")  # a cache of these needs no flash attention


def batch_of(launch: Launch) -> int:
    """Tokens that one batch holds: as told, else its default, or more where that is too little."""
    options = launch.options
    return options.batch or max(BATCH, options.batched_tokens or 0, least_batch(launch))


def least_batch(launch: Launch) -> int:
    """A token of every slot and all that is drafted for it go into one batch."""
    draft = launch.options.draft
    return max(LEAST_BATCH, launch.slots * (1 + (draft.depth if draft is not None else 0)))


def flash_of(options: EngineOptions) -> bool | None:
    """None: llama.cpp finds out. A quantized cache wants it."""
    wanted = options.kv is not None and options.kv not in _PLAIN
    return True if options.flash_attention is None and wanted else options.flash_attention


def llama_refusals(launch: Launch) -> Iterable[tuple[str, str]]:
    options, least = launch.options, least_batch(launch)
    if options.kv_layout not in (None, *LAYOUTS):
        yield f'kv_layout = "{options.kv_layout}" is none', f"one of {', '.join(LAYOUTS)}"
    if options.flash_attention is False and flash_of(EngineOptions(kv=options.kv)):
        yield (
            f'kv = "{options.kv}" wants flash attention, which is off',
            'leave flash_attention out, or write kv = "f16"',
        )
    if options.batch is not None and options.batch < least:
        drafts = f" with {options.draft.depth} drafted tokens each" if options.draft is not None else ""
        slots = f"{launch.slots} slot{'s' if launch.slots > 1 else ''}"
        yield f"batch = {options.batch} does not hold a token of {slots}{drafts}", f"{least} or more"
    if options.batch is not None and options.batched_tokens is not None and options.batched_tokens > options.batch:
        what = f"batched_tokens = {options.batched_tokens} is more than batch = {options.batch}"
        yield what, "a micro-batch is a part of the batch: raise `batch`, or lower `batched_tokens`"
    if options.chunked_prefill is False:
        yield "chunked_prefill = false cannot be: prompts are always taken in pieces", "leave it out"
