"""vLLM behind the engine port. Flags as in vllm/engine/arg_utils.py and the front end's cli_args of 0.19 to 0.32."""

from __future__ import annotations

import json
from collections.abc import Iterable

from skep.catalog.presets import Draft
from skep.engines.adapter import CheckpointEngine, Known, Refusal, either, flag, source_of
from skep.engines.base import ENGINE_KEY, Launch

_METHODS = {"draft": "draft_model", "eagle": "eagle3"}
_ORIGINS = "--allowed-origins"
_TEXT_ONLY = "--language-model-only"
_WHERE_KNOWN = ("--enable-prompt-tokens-details", "--enable-per-request-metrics")  # figures of a request in its answer


class Vllm(CheckpointEngine):
    name = "vllm"
    keyed_by = (ENGINE_KEY, "VLLM_API_KEY")  # of its paths it closes /v1 by it, and leaves others open

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from super().refusals(launch)
        if launch.options.ep and launch.options.tp * launch.options.dp == 1:
            yield "ep = true has one card to spread the experts over", "set tp or dp, or leave ep out"

    def arguments(self, launch: Launch, known: Known = None) -> list[str]:
        """`--max-num-seqs` and `--max-model-len` are of one data-parallel rank."""
        options = launch.options
        words = [source_of(launch) or launch.model, "--served-model-name", launch.model]
        words += ["--host", launch.host, "--port", str(launch.port)]
        words += ["--max-num-seqs", str(-(-launch.slots // options.dp))]
        if launch.api_key and _ORIGINS not in launch.extra and (known is None or _ORIGINS in known):
            words += [_ORIGINS, "[]"]  # no web page; it would give leave to all
        words += flag("--max-model-len", launch.context_tokens or None)
        words += flag("--quantization", options.quant) + flag("--dtype", options.dtype)
        words += flag("--kv-cache-dtype", options.kv)
        for name, size in (("tensor", options.tp), ("pipeline", options.pp), ("data", options.dp)):
            words += flag(f"--{name}-parallel-size", size if size > 1 else None)
        words += either(options.ep or None, "--enable-expert-parallel", None)
        words += flag("--gpu-memory-utilization", options.memory_share)
        words += either(options.graphs, "--no-enforce-eager", "--enforce-eager")
        words += either(options.chunked_prefill, "--enable-chunked-prefill", "--no-enable-chunked-prefill")
        words += flag("--max-num-batched-tokens", options.batched_tokens)
        words += either(options.prefix_cache, "--enable-prefix-caching", "--no-enable-prefix-caching")
        if options.draft is not None:
            words += ["--speculative-config", speculative_config(options.draft)]
        apart = options.p2p == "off" and options.custom_all_reduce is None  # it reads the other cards' memory itself
        words += either(False if apart else options.custom_all_reduce, None, "--disable-custom-all-reduce")
        words += _text_only(known) if options.text_only else []
        words += either(options.trust_remote_code or None, "--trust-remote-code", None)
        words += flag("--reasoning-parser", options.reasoning_parser)
        if options.tool_parser is not None:
            words += ["--enable-auto-tool-choice", "--tool-call-parser", options.tool_parser]
        words += flag("--chat-template", options.chat_template)
        counted = "--disable-log-stats" not in launch.extra  # without its statistics it refuses to tell of a request
        words += [w for w in _WHERE_KNOWN if known is not None and w in known and w not in launch.extra and counted]
        return [*words, *launch.extra]

    def variables(self, launch: Launch) -> dict[str, str]:
        return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **super().variables(launch)}


def _text_only(known: Known) -> list[str]:
    """Versions before 0.14 know no such flag, but load no tower that may be given nothing."""
    if known is not None and _TEXT_ONLY not in known:
        return ["--limit-mm-per-prompt", '{"image": 0, "video": 0}']
    return [_TEXT_ONLY]


def speculative_config(draft: Draft) -> str:
    config: dict[str, object] = {"method": _METHODS.get(draft.method, draft.method)}
    config["num_speculative_tokens"] = draft.depth
    if draft.model is not None:
        config["model"] = draft.model
    if draft.method == "ngram":
        config["prompt_lookup_max"] = max(3, draft.depth)
    return json.dumps(config)
