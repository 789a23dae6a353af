"""llama.cpp's llama-server behind the engine port. Flags as in its tools/server/README.md of autumn 2026 (b11434)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from skep.catalog.presets import Draft, EngineOptions
from skep.engines.adapter import (
    Adapter,
    Known,
    Refusal,
    common_refusals,
    draft_model,
    either,
    flag,
    p2p_variables,
    source_of,
    unsupported_options,
)
from skep.engines.base import ENGINE_KEY, NO_ORIGIN, Launch
from skep.engines.embedded import BATCH, batch_of, flash_of, llama_refusals
from skep.engines.embedded_server import NGRAM, http_threads
from skep.errors import UserError

ALL_LAYERS = 999
SPLITS = ("layer", "tensor", "row", "none")
_TYPES = {"mtp": "draft-mtp", "draft": "draft-simple", "eagle": "draft-eagle3", "dflash": "draft-dflash",
          "ngram": "ngram-map-k"}  # fmt: skip
_GPU_LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers")


class LlamaCpp(Adapter):
    name = "llamacpp"
    confirms = "slots"
    keyed_by = (ENGINE_KEY, "LLAMA_API_KEY")

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        options = launch.options
        yield from common_refusals(launch)
        yield from unsupported_options(options, self.name)
        yield from llama_refusals(launch)
        if options.tp > 1 and options.pp > 1:
            yield f"tp={options.tp} and pp={options.pp} cannot be combined", "split by tensor (tp) or by layer (pp)"
        if options.split is not None and options.split not in SPLITS:
            yield f'split = "{options.split}" is unknown', f"one of {', '.join(SPLITS)}"
        wanted = _split(EngineOptions(tp=options.tp, pp=options.pp))
        if options.split is not None and wanted is not None and options.split != wanted:
            yield f'split = "{options.split}" does not fit {_layout(options)}', f'write split = "{wanted}", or omit it'
        if "tensor" in (options.split, wanted) and options.flash_attention is False:
            yield "a split by tensor needs flash_attention", "leave it out"
        cards = len(launch.gpus)
        if cards and cards < options.cards:
            yield f"{_layout(options)} takes {options.cards} cards, but gpus names {cards}", "name as many cards"
        if cards and options.card_shares and len(options.card_shares) != cards:
            yield f"card_shares has {len(options.card_shares)} shares for {cards} gpus", "give one for each card"

    def check_weights(self, launch: Launch) -> None:
        for what, source in (("model file", source_of(launch)), ("draft model", draft_model(launch.options))):
            if source is None:
                if what == "model file":
                    hint = "name a GGUF file, or a model of the hub as `organisation/name:Q4_K_M`"
                    raise UserError(f"{self.name}: there is no model file for `{launch.model}`", hint=hint)
                continue
            path = Path(os.path.expanduser(source))  # noqa: PTH111
            if path.is_dir():
                hint = "name the GGUF file in it; if it has several parts, the first"
                raise UserError(f"{self.name}: the {what} `{source}` is a folder", hint=hint)
            if not _on_hub(source) and not path.exists():
                raise UserError(f"{self.name}: the {what} `{source}` does not exist", hint="check the path")

    def arguments(self, launch: Launch, known: Known = None) -> list[str]:
        options, source = launch.options, source_of(launch) or launch.model
        words = [*_source_words(source), "--alias", launch.model]
        words += ["--host", launch.host, "--port", str(launch.port), "--parallel", str(launch.slots)]
        words += _context(launch, known)
        if not set(_GPU_LAYERS) & set(launch.extra):
            words += ["--n-gpu-layers", str(ALL_LAYERS)]
        split = options.split or _split(options)
        words += flag("--split-mode", split)
        words += ["--fit", "off"] if split == "tensor" else []  # it cannot be fitted: docs/multi-gpu.md
        words += flag("--tensor-split", ",".join(f"{share:g}" for share in options.card_shares) or None)
        words += flag("--n-cpu-moe", options.cpu_moe)
        if options.kv is not None:
            words += ["--cache-type-k", options.kv, "--cache-type-v", options.kv]
        flash = True if split == "tensor" else flash_of(options)
        words += flag("--flash-attn", None if flash is None else "on" if flash else "off")
        words += flag("--ubatch-size", options.batched_tokens)
        words += flag("--batch-size", batch_of(launch) if batch_of(launch) != BATCH else None)
        words += either(options.prefix_cache, "--cache-prompt", "--no-cache-prompt")
        words += _speculation(options.draft, known) if options.draft is not None else []
        words += flag("--reasoning-format", options.reasoning_parser)
        words += flag("--chat-template-file", options.chat_template)
        words += flag("--threads", launch.threads or None) + flag("--threads-batch", options.threads_batch)
        words += ["--threads-http", str(http_threads(launch.slots))]
        words += ["--jinja", "--metrics", *(["--slots"] if known is None or "--slots" in known else [])]
        words += [] if known is None else [word for word in ("--no-ui", "--no-webui") if word in known][:1]
        return [*words, *launch.extra]

    def variables(self, launch: Launch) -> dict[str, str]:
        """Between cards it goes through memory unless told otherwise: `GGML_CUDA_P2P` is left alone."""
        found = {"LLAMA_ARG_CORS_ORIGINS": NO_ORIGIN} if launch.api_key else {}
        found |= {"GGML_CUDA_DISABLE_GRAPHS": "1"} if launch.options.graphs is False else {}
        return found | p2p_variables(launch)


def _source_words(source: str) -> list[str]:
    """`organisation/name:file.gguf` is two flags to it: behind its colon it knows only a quantization."""
    if not _on_hub(source):
        return ["--model", source]
    repository, _, file = source.partition(":")
    return ["--hf-repo", repository, "--hf-file", file] if file.endswith(".gguf") else ["--hf-repo", source]


def _context(launch: Launch, known: Known) -> list[str]:
    """`--ctx-size` is of all slots together; each has its own part, unless one cache for all is asked for.

    With one cache every sequence reads what all slots hold: 155 ms a token with 64 agents of 1,000 tokens on an H200.
    """
    words, layout = ["--ctx-size", str(launch.context_tokens * launch.slots)], launch.options.kv_layout
    if layout == "split":
        return [*words, "--no-kv-unified"]
    bounded = launch.context_tokens and launch.slots > 1 and known is not None and "--kv-unified-per-slot" in known
    bound = ["--kv-unified-per-slot", str(launch.context_tokens)] if bounded else []
    return [*words, "--kv-unified", *bound] if layout == "unified" else words


def _split(options: EngineOptions) -> str | None:
    return "tensor" if options.tp > 1 else "layer" if options.pp > 1 else None


def _layout(options: EngineOptions) -> str:
    return f"tp={options.tp}" if options.tp > 1 else f"pp={options.pp}"


def _on_hub(source: str) -> bool:
    """`organisation/name`, `organisation/name:Q4_K_M` or `organisation/name:file.gguf`."""
    plain = not source.startswith(("/", ".", "~")) and not source.partition(":")[0].endswith(".gguf")
    return plain and source.count("/") == 1


def _speculation(draft: Draft, known: Known) -> list[str]:
    """Named anew in 2026; a version that has only the old names gets those."""

    def has(name: str) -> bool:
        return known is None or name in known

    words = flag("--model-draft", draft.model)
    if not has("--spec-type") and has("--draft-max") and draft.method == "draft":
        return [*words, "--draft-max", str(draft.depth)]
    words += ["--spec-type", _TYPES.get(draft.method, draft.method)]
    if draft.method == "ngram":
        size = "--spec-ngram-map-k-size" if has("--spec-ngram-map-k-size-m") else "--spec-ngram-size"
        return [*words, f"{size}-n", str(NGRAM), f"{size}-m", str(draft.depth)]
    return [*words, "--spec-draft-n-max" if has("--spec-draft-n-max") else "--draft-max", str(draft.depth)]
