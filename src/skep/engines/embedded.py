"""The embedded engine: llama.cpp's own server with continuous batching, from the PyPI package xllamacpp.

Also what llama.cpp wants of its options, whoever starts it: it cuts a micro-batch down to the batch without a word, and
ends itself when slots and drafts overflow the batch, which happens under load. Both are refused before the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from skep.catalog.presets import EngineOptions
from skep.engines.adapter import OwnEngine, Refusal, common_refusals, flag, unsupported_options
from skep.engines.base import REPORT_FD, Launch
from skep.errors import EngineError, UserError

BATCH = 2048  # its own default for what one batch holds; a micro-batch cannot be larger
LEAST_BATCH = 2  # what its own first run takes
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
LAYOUTS = ("unified", "split")
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
        yield f'kv_layout = "{options.kv_layout}" is unknown', f"one of {', '.join(LAYOUTS)}"
    if options.flash_attention is False and flash_of(EngineOptions(kv=options.kv)):
        what = f'kv = "{options.kv}" needs flash attention, which is off'
        yield what, 'leave flash_attention out, or write kv = "f16"'
    if options.batch is not None and options.batch < least:
        drafts = f" with {options.draft.depth} drafted tokens each" if options.draft is not None else ""
        slots = f"{launch.slots} slot{'s' if launch.slots > 1 else ''}"
        yield f"batch = {options.batch} is too small for {slots}{drafts}", f"{least} or more"
    if options.batch is not None and options.batched_tokens is not None and options.batched_tokens > options.batch:
        what = f"batched_tokens = {options.batched_tokens} is more than batch = {options.batch}"
        yield what, "a micro-batch is a part of the batch: raise `batch`, or lower `batched_tokens`"
    if options.chunked_prefill is False:
        yield "chunked_prefill = false is not possible: prompts are always read in chunks", "leave it out"


class Embedded(OwnEngine):
    module = "skep.engines.embedded_server"

    def check(self, launch: Launch) -> None:
        if find_spec("xllamacpp") is None:
            raise EngineError("the embedded engine is not installed", hint="install skep again: xllamacpp is missing")
        if launch.weights is None:
            hint = f"run `skep pull {launch.model}`"
            raise UserError(f"the embedded engine has no weights for `{launch.model}`", hint=hint)
        for what, instead in self.refusals(launch):
            raise UserError(f"embedded: {what}", hint=instead)

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        """Free of I/O."""
        kv, draft = launch.options.kv, launch.options.draft
        yield from unsupported_options(launch.options, "embedded")
        if draft is not None and draft.method != "ngram":
            yield f"it has no speculation by `{draft.method}`, only from the text itself", "use ngram, or llamacpp"
        if kv is not None and kv not in KV_TYPES:
            yield f'kv = "{kv}" is not known to the embedded engine', f"one of {', '.join(KV_TYPES)}"
        yield from common_refusals(launch)
        yield from llama_refusals(launch)

    def argv(self, launch: Launch) -> list[str]:
        own = ["--model", launch.weights, "--alias", launch.model, "--slots", launch.slots]
        own += ["--context", launch.context_tokens, "--threads", launch.threads]
        own += ["--host", launch.host, "--port", launch.port, "--report-fd", REPORT_FD]
        # what differs from the server's own way; a launch without options has the same words as ever
        options, batch, flash = launch.options, batch_of(launch), flash_of(launch.options)
        own += flag("--threads-batch", options.threads_batch) + flag("--micro-batch", options.batched_tokens)
        own += flag("--batch", batch if batch != BATCH else None) + flag("--kv", options.kv)
        own += flag("--flash-attention", None if flash is None else "on" if flash else "off")
        own += ["--split"] if options.kv_layout == "split" else []
        own += ["--no-prefix-cache"] if options.prefix_cache is False else []
        own += flag("--ngram", None if options.draft is None else options.draft.depth)
        return self.words(*own, launch=launch)

    def version(self) -> str | None:
        from importlib import metadata

        try:
            return f"xllamacpp {metadata.version('xllamacpp')}"
        except metadata.PackageNotFoundError:
            return None
