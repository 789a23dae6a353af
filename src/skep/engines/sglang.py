"""SGLang behind the engine port. Flags as in python/sglang/srt/server_args.py of August 2026."""

from __future__ import annotations

from collections.abc import Iterable

from skep.catalog.presets import Draft
from skep.engines.adapter import CheckpointEngine, Known, Refusal, either, flag, source_of
from skep.engines.base import KEY_FILE_HERE, KEY_HERE, Launch

_ALGORITHMS = {"mtp": "NEXTN", "eagle": "EAGLE3", "draft": "STANDALONE", "ngram": "NGRAM", "dflash": "DFLASH"}


class Sglang(CheckpointEngine):
    """`--max-running-requests` is of all data-parallel ranks together, and TP counts the cards of all of them."""

    name = "sglang"

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from super().refusals(launch)
        if launch.options.chunked_prefill is False and launch.options.batched_tokens is not None:
            yield "batched_tokens is the size of a chunk, and chunked_prefill is false", "leave one of the two out"

    def arguments(self, launch: Launch, known: Known = None) -> list[str]:
        options = launch.options
        words = ["--model-path", source_of(launch) or launch.model, "--served-model-name", launch.model]
        words += ["--host", launch.host, "--port", str(launch.port), "--max-running-requests", str(launch.slots)]
        words += _key_words(launch, known) if launch.api_key else []
        words += flag("--context-length", launch.context_tokens or None)
        words += flag("--quantization", options.quant) + flag("--dtype", options.dtype)
        words += flag("--kv-cache-dtype", options.kv)
        world = options.tp * options.dp
        words += flag("--tp-size", world if world > 1 else None)
        words += ["--dp-size", str(options.dp), "--enable-dp-attention"] if options.dp > 1 else []
        words += flag("--pp-size", options.pp if options.pp > 1 else None)
        words += flag("--ep-size", world if options.ep else None)
        words += flag("--mem-fraction-static", options.memory_share)
        words += either(options.graphs, None, "--disable-cuda-graph")
        chunk = -1 if options.chunked_prefill is False else options.batched_tokens
        words += flag("--chunked-prefill-size", chunk)
        words += either(options.prefix_cache, None, "--disable-radix-cache")
        words += _speculation(options.draft) if options.draft is not None else []
        apart = options.p2p == "off" and options.custom_all_reduce is None  # it reads the other cards' memory itself
        words += either(False if apart else options.custom_all_reduce, None, "--disable-custom-all-reduce")
        words += either(options.trust_remote_code or None, "--trust-remote-code", None)
        words += flag("--reasoning-parser", options.reasoning_parser)
        words += flag("--tool-call-parser", options.tool_parser) + flag("--chat-template", options.chat_template)
        return [*words, "--enable-metrics", "--enable-cache-report", *launch.extra]


def _key_words(launch: Launch, known: Known) -> list[str]:
    """It has no variable. A version without `--config`, of which it takes one only, shows the key to `ps`."""
    by_file = known is not None and "--config" in known and "--config" not in launch.extra
    return ["--config", KEY_FILE_HERE] if by_file else ["--api-key", KEY_HERE]


def _speculation(draft: Draft) -> list[str]:
    words = ["--speculative-algorithm", _ALGORITHMS.get(draft.method, draft.method.upper())]
    words += flag("--speculative-draft-model-path", draft.model)
    if draft.method != "ngram":
        words += ["--speculative-num-steps", str(draft.depth), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(draft.depth + 1)]
