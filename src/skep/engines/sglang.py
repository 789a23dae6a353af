"""SGLang behind the engine port.

Flags as in python/sglang/srt/server_args.py of August 2026."""

from __future__ import annotations

from collections.abc import Iterable

from skep.catalog.presets import Draft, EngineOptions
from skep.engines import discovery
from skep.engines.adapter import KnownFlags, Refusal, either, flag, is_hybrid, source_of
from skep.engines.base import Launch
from skep.engines.checkpoint_engine import (
    REASONING,
    TEMPLATE,
    TOOLS,
    CheckpointEngine,
    custom_all_reduce,
    in_extra,
    kv_ram_refusals,
)
from skep.host.processes import KEY_FILE_HERE, KEY_HERE
from skep.units import GIB

_ALGORITHMS = {
    "mtp": "NEXTN",
    "eagle": "EAGLE3",
    "draft": "STANDALONE",
    "ngram": "NGRAM",
    "dflash": "DFLASH",
}
_OLD_STRATEGY = "--mamba-scheduler-strategy"
_STRATEGY = "--mamba-radix-cache-strategy"


class Sglang(CheckpointEngine):
    """`--max-running-requests` is of all data-parallel ranks together, and TP counts the cards of
    all of them.
    """

    name = "sglang"

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from super().refusals(launch)
        yield from kv_ram_refusals(launch)
        if launch.options.chunked_prefill is False and launch.options.batched_tokens is not None:
            yield (
                "batched_tokens is the size of a chunk, and chunked_prefill is false",
                "leave one of the two out",
            )

    def arguments(self, launch: Launch, known_flags: KnownFlags = None) -> list[str]:
        options = launch.options
        calling = self.tool_calling(launch, known_flags)
        return [
            *_address_words(launch, known_flags),
            *_layout_words(launch),
            *_step_words(launch, known_flags),
            *flag(REASONING, calling.reasoning_parser),
            *flag(TOOLS, calling.tool_parser),
            *calling.flags,
            *flag(TEMPLATE, options.chat_template),
            "--enable-metrics",
            "--enable-cache-report",
            *launch.extra,
        ]

    def variables(self, launch: Launch) -> dict[str, str]:
        known_flags = None
        if self._program is not None:
            known_flags = discovery.remembered_flags(self._program, self._cache_dir)
        buffered = _needs_extra_buffer(launch, known_flags)
        buffering = {"SGLANG_ENABLE_SPEC_V2": "1"} if buffered else {}
        return buffering | super().variables(launch)


def _address_words(launch: Launch, known_flags: KnownFlags) -> list[str]:
    words = ["--model-path", source_of(launch) or launch.model]
    words += ["--served-model-name", launch.model]
    words += ["--host", launch.host, "--port", str(launch.port)]
    words += ["--max-running-requests", str(launch.slots)]
    if launch.api_key:
        words += _key_words(launch, known_flags)
    return words + flag("--context-length", launch.context_tokens or None)


def _layout_words(launch: Launch) -> list[str]:
    """Return how weights and cache are kept, and over which cards."""
    options = launch.options
    words = flag("--quantization", options.quant) + flag("--dtype", options.dtype)
    words += flag("--kv-cache-dtype", options.kv)
    if options.kv_ram:
        words += ["--enable-hierarchical-cache", "--hicache-size", str(_ram_gb_each(options))]
    world = options.tp * options.dp
    words += flag("--tp-size", world if world > 1 else None)
    if options.dp > 1:
        words += ["--dp-size", str(options.dp), "--enable-dp-attention"]
    words += flag("--pp-size", options.pp if options.pp > 1 else None)
    words += flag("--ep-size", world if options.ep else None)
    return words + flag("--mem-fraction-static", options.memory_share)


def _ram_gb_each(options: EngineOptions) -> int:
    """Return the memory of each card's process, in the GB of 10^9 bytes that it counts in."""
    total_gb = (options.kv_ram or 0) * GIB / 1e9
    return max(1, int(total_gb / options.cards))


def _step_words(launch: Launch, known_flags: KnownFlags) -> list[str]:
    """Return how it computes: graphs, prefill, prefix cache and drafts."""
    options = launch.options
    words = either(options.graphs, None, "--disable-cuda-graph")
    chunk = -1 if options.chunked_prefill is False else options.batched_tokens
    words += flag("--chunked-prefill-size", chunk)
    words += either(options.prefix_cache, None, "--disable-radix-cache")
    if options.draft is not None:
        words += _speculation(options.draft)
    words += either(custom_all_reduce(launch), None, "--disable-custom-all-reduce")
    words += either(options.trust_remote_code or None, "--trust-remote-code", None)
    if _needs_extra_buffer(launch, known_flags):
        words += [_OLD_STRATEGY, "extra_buffer"]
    return words


def _needs_extra_buffer(launch: Launch, known_flags: KnownFlags) -> bool:
    """Return whether it has to be told of a buffer: 0.5.7 to 0.5.13 refuse hybrids with drafts and
    a prefix cache otherwise. Later ones choose themselves.
    """
    if known_flags is None or _OLD_STRATEGY not in known_flags or _STRATEGY in known_flags:
        return False
    if in_extra(launch, _OLD_STRATEGY) or launch.options.draft is None:
        return False
    if launch.options.prefix_cache is False or in_extra(launch, "--disable-radix-cache"):
        return False
    return is_hybrid(launch.model, source_of(launch)) is True


def _key_words(launch: Launch, known_flags: KnownFlags) -> list[str]:
    """Return how it gets its key: it has no variable.

    A version without `--config`, of which it takes one only, shows the key to `ps`.
    """
    has_config = known_flags is not None and "--config" in known_flags
    if has_config and "--config" not in launch.extra:
        return ["--config", KEY_FILE_HERE]
    return ["--api-key", KEY_HERE]


def _speculation(draft: Draft) -> list[str]:
    words = ["--speculative-algorithm", _ALGORITHMS.get(draft.method, draft.method.upper())]
    words += flag("--speculative-draft-model-path", draft.model)
    if draft.method != "ngram":
        words += ["--speculative-num-steps", str(draft.depth), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(draft.depth + 1)]
