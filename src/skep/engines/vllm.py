"""vLLM behind the engine port.

Flags as in vllm/engine/arg_utils.py and the front end's cli_args of 0.19 to 0.32."""

from __future__ import annotations

import json
from collections.abc import Iterable

from skep.catalog.presets import Draft
from skep.engines.adapter import KnownFlags, Refusal, either, flag, is_hybrid, source_of
from skep.engines.base import Launch
from skep.engines.checkpoint_engine import (
    REASONING,
    TEMPLATE,
    TOOLS,
    CheckpointEngine,
    custom_all_reduce,
    has_flag,
    in_extra,
    kv_ram_refusals,
)
from skep.host.processes import ENGINE_KEY

_METHODS = {"draft": "draft_model", "eagle": "eagle3"}
_ORIGINS = "--allowed-origins"
_CACHING = "--enable-prefix-caching"
_NO_CACHING = "--no-enable-prefix-caching"
_UNCHUNKED = ("--no-enable-chunked-prefill", "--disable-chunked-mm-input")
# figures of a request in its answer, where the version has them
_FIGURES = ("--enable-prompt-tokens-details", "--enable-per-request-metrics")


class Vllm(CheckpointEngine):
    name = "vllm"
    # By the second one it closes /v1, and leaves its other paths open.
    keyed_by = (ENGINE_KEY, "VLLM_API_KEY")

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from super().refusals(launch)
        yield from kv_ram_refusals(launch)
        if launch.options.ep and launch.options.tp * launch.options.dp == 1:
            yield (
                "ep = true has one card to spread the experts over",
                "set tp or dp, or leave ep out",
            )

    def arguments(self, launch: Launch, known_flags: KnownFlags = None) -> list[str]:
        return [
            *_address_words(launch, known_flags),
            *_layout_words(launch),
            *_step_words(launch, known_flags),
            *self._tool_words(launch, known_flags),
            *_figure_words(launch, known_flags),
            *launch.extra,
        ]

    def variables(self, launch: Launch) -> dict[str, str]:
        return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **super().variables(launch)}

    def _tool_words(self, launch: Launch, known_flags: KnownFlags) -> list[str]:
        calling = self.tool_calling(launch, known_flags)
        words = flag(REASONING, calling.reasoning_parser)
        if calling.tool_parser is not None:  # neither of the two does anything without the other
            words += ["--enable-auto-tool-choice", TOOLS, calling.tool_parser]
        return [*words, *calling.flags, *flag(TEMPLATE, launch.options.chat_template)]


def _address_words(launch: Launch, known_flags: KnownFlags) -> list[str]:
    """Return the words for model, address, slots and context. `--max-num-seqs` and
    `--max-model-len` are of one data-parallel rank.
    """
    words = [source_of(launch) or launch.model, "--served-model-name", launch.model]
    words += ["--host", launch.host, "--port", str(launch.port)]
    words += ["--max-num-seqs", str(-(-launch.slots // launch.options.dp))]
    if launch.api_key and _ORIGINS not in launch.extra and has_flag(known_flags, _ORIGINS):
        words += [_ORIGINS, "[]"]  # no web page; it would give leave to all
    return words + flag("--max-model-len", launch.context_tokens or None)


def _layout_words(launch: Launch) -> list[str]:
    """Return how weights and cache are kept, and over which cards."""
    options = launch.options
    words = flag("--quantization", options.quant) + flag("--dtype", options.dtype)
    words += flag("--kv-cache-dtype", options.kv)
    if options.kv_ram:  # of all cards of a replica together
        words += ["--kv-offloading-size", str(options.kv_ram)]
        words += ["--kv-offloading-backend", "native"]
    for name, size in (("tensor", options.tp), ("pipeline", options.pp), ("data", options.dp)):
        words += flag(f"--{name}-parallel-size", size if size > 1 else None)
    words += either(options.ep or None, "--enable-expert-parallel", None)
    return words + flag("--gpu-memory-utilization", options.memory_share)


def _step_words(launch: Launch, known_flags: KnownFlags) -> list[str]:
    """Return how it computes: graphs, prefill, prefix cache, drafts, and what it does not load."""
    options = launch.options
    words = either(options.graphs, "--no-enforce-eager", "--enforce-eager")
    words += either(
        options.chunked_prefill, "--enable-chunked-prefill", "--no-enable-chunked-prefill"
    )
    words += flag("--max-num-batched-tokens", options.batched_tokens)
    words += _prefix_caching(launch, known_flags)
    if options.draft is not None:
        words += ["--speculative-config", speculative_config(options.draft)]
    words += either(custom_all_reduce(launch), None, "--disable-custom-all-reduce")
    words += either(options.text_only or None, "--language-model-only", None)
    return words + either(options.trust_remote_code or None, "--trust-remote-code", None)


def _figure_words(launch: Launch, known_flags: KnownFlags) -> list[str]:
    """Return the flags that make it tell figures of a request; none without its statistics, when
    it would refuse them.
    """
    if known_flags is None or "--disable-log-stats" in launch.extra:
        return []
    return [word for word in _FIGURES if word in known_flags and word not in launch.extra]


def _prefix_caching(launch: Launch, known_flags: KnownFlags) -> list[str]:
    """Return the flag that turns it on for every model: for hybrids it is off by default in vLLM
    before 0.28.

    There it needs prefill in chunks.
    """
    prefix_cache = launch.options.prefix_cache
    if prefix_cache is not None:
        return [_CACHING if prefix_cache else _NO_CACHING]
    given = in_extra(launch, _CACHING) or in_extra(launch, _NO_CACHING)
    if given or not has_flag(known_flags, _CACHING):
        return []
    unchunked = launch.options.chunked_prefill is False or any(
        in_extra(launch, name) for name in _UNCHUNKED
    )
    if unchunked and is_hybrid(launch.model, source_of(launch)) is not False:
        return []
    return [_CACHING]


def speculative_config(draft: Draft) -> str:
    config: dict[str, object] = {"method": _METHODS.get(draft.method, draft.method)}
    config["num_speculative_tokens"] = draft.depth
    if draft.model is not None:
        config["model"] = draft.model
    if draft.method == "ngram":
        config["prompt_lookup_max"] = max(3, draft.depth)
    return json.dumps(config)
