"""llama.cpp behind the engine port: llama-server, and the same server embedded (PyPI: xllamacpp).

Flags as in its tools/server/README.md of autumn 2026 (b11434).

It cuts a micro-batch down to the batch without a word, and ends itself when slots and drafts
overflow the batch, which happens under load. Both are refused before the start."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from skep.catalog.presets import Draft, EngineOptions
from skep.engines.adapter import (
    Adapter,
    KnownFlags,
    Refusal,
    common_refusals,
    draft_model,
    either,
    flag,
    on_hub,
    p2p_variables,
    source_of,
)
from skep.engines.base import NO_ORIGIN, Launch, OwnEngine
from skep.engines.embedded_server import NGRAM, http_threads
from skep.errors import EngineError, UserError
from skep.host.processes import ENGINE_KEY, REPORT_FD
from skep.units import GIB, MIB

BATCH = 2048  # its own default for what one batch holds; a micro-batch cannot be larger
LEAST_BATCH = 2  # what its own first run takes
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_PLAIN = ("f32", "f16", "bf16")  # a cache of these needs no flash attention
ALL_LAYERS = 999
_TYPES = {
    "mtp": "draft-mtp", "draft": "draft-simple", "eagle": "draft-eagle3",
    "dflash": "draft-dflash", "ngram": "ngram-map-k",
}  # fmt: skip
_GPU_LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers")


class LlamaCpp(Adapter):
    name = "llamacpp"
    confirms = "slots"
    keyed_by = (ENGINE_KEY, "LLAMA_API_KEY")

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        options = launch.options
        yield from common_refusals(launch)
        yield from llama_refusals(launch)
        if options.tp > 1 and options.pp > 1:
            yield (
                f"tp={options.tp} and pp={options.pp} cannot be combined",
                "split by tensor (tp) or by layer (pp)",
            )
        layout_split = _split(EngineOptions(tp=options.tp, pp=options.pp))
        if (
            options.split is not None
            and layout_split is not None
            and options.split != layout_split
        ):
            yield (
                f'split = "{options.split}" does not fit {_layout(options)}',
                f'write split = "{layout_split}", or omit it',
            )
        if "tensor" in (options.split, layout_split) and options.flash_attention is False:
            yield "a split by tensor needs flash_attention", "leave it out"
        cards = len(launch.gpus)
        if cards and cards < options.cards:
            yield (
                f"{_layout(options)} takes {options.cards} cards, but gpus names {cards}",
                "name as many cards",
            )
        if cards and options.card_shares and len(options.card_shares) != cards:
            yield (
                f"card_shares has {len(options.card_shares)} shares for {cards} gpus",
                "give one for each card",
            )

    def check_weights(self, launch: Launch) -> None:
        source = source_of(launch)
        if source is None:
            hint = "name a GGUF file, or a model of the hub as `organisation/name:Q4_K_M`"
            raise UserError(f"{self.name}: there is no model file for `{launch.model}`", hint=hint)
        self._check_file("model file", source)
        draft = draft_model(launch.options)
        if draft is not None:
            self._check_file("draft model", draft)

    def _check_file(self, kind: str, source: str) -> None:
        path = Path(os.path.expanduser(source))  # noqa: PTH111
        if path.is_dir():
            hint = "name the GGUF file in it; if it has several parts, the first"
            raise UserError(f"{self.name}: the {kind} `{source}` is a folder", hint=hint)
        if not on_hub(source) and not path.exists():
            raise UserError(
                f"{self.name}: the {kind} `{source}` does not exist", hint="check the path"
            )

    def arguments(self, launch: Launch, known_flags: KnownFlags = None) -> list[str]:
        options = launch.options
        words = [
            *_source_words(source_of(launch) or launch.model),
            *("--alias", launch.model),
            *("--host", launch.host, "--port", str(launch.port), "--parallel", str(launch.slots)),
            *_context(launch, known_flags),
            *_layer_words(launch),
            *_batch_words(launch),
        ]
        words += either(options.prefix_cache, "--cache-prompt", "--no-cache-prompt")
        if options.draft is not None:
            words += _speculation(options.draft)
        words += flag("--reasoning-format", options.reasoning_parser)
        words += flag("--chat-template-file", options.chat_template)
        words += flag("--threads", launch.threads or None)
        words += flag("--threads-batch", options.threads_batch)
        words += ["--threads-http", str(http_threads(launch.slots)), "--jinja", "--metrics"]
        return [*words, *_interface_words(known_flags), *launch.extra]

    def variables(self, launch: Launch) -> dict[str, str]:
        """Return the variables; `GGML_CUDA_P2P` is not among them: between cards it goes through
        memory unless the user says otherwise.
        """
        variables = {}
        if launch.api_key:
            variables["LLAMA_ARG_CORS_ORIGINS"] = NO_ORIGIN
        if launch.options.graphs is False:
            variables["GGML_CUDA_DISABLE_GRAPHS"] = "1"
        return variables | p2p_variables(launch)


def _layer_words(launch: Launch) -> list[str]:
    """Return which layers lie on which cards."""
    options = launch.options
    words = []
    if not set(_GPU_LAYERS) & set(launch.extra):
        words += ["--n-gpu-layers", str(ALL_LAYERS)]
    split = options.split or _split(options)
    words += flag("--split-mode", split)
    if split == "tensor":  # it cannot be fitted: docs/multi-gpu.md
        words += ["--fit", "off"]
    shares = ",".join(f"{share:g}" for share in options.card_shares)
    words += flag("--tensor-split", shares or None)
    return words + flag("--n-cpu-moe", options.cpu_moe)


def _batch_words(launch: Launch) -> list[str]:
    """Return the types of the cache, flash attention and the size of a batch."""
    options = launch.options
    words = []
    if options.kv is not None:
        words += ["--cache-type-k", options.kv, "--cache-type-v", options.kv]
    is_tensor = (options.split or _split(options)) == "tensor"
    words += flag("--flash-attn", _on_off(True if is_tensor else flash_of(options)))
    words += flag("--ubatch-size", options.batched_tokens)
    words += flag("--cache-ram", _ram_mib(options))
    batch = batch_of(launch)
    return words + flag("--batch-size", batch if batch != BATCH else None)


def _ram_mib(options: EngineOptions) -> int | None:
    if options.kv_ram is None:
        return None
    return options.kv_ram * (GIB // MIB)


def _on_off(value: bool | None) -> str | None:
    if value is None:
        return None
    return "on" if value else "off"


def _interface_words(known_flags: KnownFlags) -> list[str]:
    """Return the flags that show its slots and hide its web page, as the version has them."""
    if known_flags is None:
        return ["--slots"]
    hiding = [word for word in ("--no-ui", "--no-webui") if word in known_flags][:1]
    return [*(["--slots"] if "--slots" in known_flags else []), *hiding]


def _source_words(source: str) -> list[str]:
    """Return the flags that name the model. `organisation/name:file.gguf` is two of them: behind
    the colon it knows only a quantization.
    """
    if not on_hub(source):
        return ["--model", source]
    repository, _, file = source.partition(":")
    if file.endswith(".gguf"):
        return ["--hf-repo", repository, "--hf-file", file]
    return ["--hf-repo", source]


def _context(launch: Launch, known_flags: KnownFlags) -> list[str]:
    """Return the size of the cache. `--ctx-size` is of all slots together; each has its own part,
    unless one cache for all is asked for.

    With one cache every sequence reads what all slots hold: 155 ms a token with 64 agents of 1,000
    tokens on an H200."""
    words = ["--ctx-size", str(launch.context_tokens * launch.slots)]
    layout = launch.options.kv_layout
    if layout == "split":
        return [*words, "--no-kv-unified"]
    bounded = (
        launch.context_tokens
        and launch.slots > 1
        and known_flags is not None
        and "--kv-unified-per-slot" in known_flags
    )
    bound = ["--kv-unified-per-slot", str(launch.context_tokens)] if bounded else []
    if layout == "unified":
        return [*words, "--kv-unified", *bound]
    return words


def _split(options: EngineOptions) -> str | None:
    if options.tp > 1:
        return "tensor"
    return "layer" if options.pp > 1 else None


def _layout(options: EngineOptions) -> str:
    if options.tp > 1:
        return f"tp={options.tp}"
    return f"pp={options.pp}"


def _speculation(draft: Draft) -> list[str]:
    words = [
        *flag("--model-draft", draft.model),
        "--spec-type",
        _TYPES.get(draft.method, draft.method),
    ]
    if draft.method == "ngram":
        size = "--spec-ngram-map-k-size"
        return [*words, f"{size}-n", str(NGRAM), f"{size}-m", str(draft.depth)]
    return [*words, "--spec-draft-n-max", str(draft.depth)]


def batch_of(launch: Launch) -> int:
    """Return the tokens that one batch holds: as the options say, else its default, or more where
    that is too little.
    """
    options = launch.options
    return options.batch or max(BATCH, options.batched_tokens or 0, least_batch(launch))


def least_batch(launch: Launch) -> int:
    """Return the smallest batch: a token of every slot and all that is drafted for it."""
    draft = launch.options.draft
    drafted = draft.depth if draft is not None else 0
    return max(LEAST_BATCH, launch.slots * (1 + drafted))


def flash_of(options: EngineOptions) -> bool | None:
    """Return whether flash attention is on; None: llama.cpp decides. A quantized one needs it."""
    needs_flash = options.kv is not None and options.kv not in _PLAIN
    if options.flash_attention is None and needs_flash:
        return True
    return options.flash_attention


def llama_refusals(launch: Launch) -> Iterable[tuple[str, str]]:
    options = launch.options
    min_batch = least_batch(launch)
    if options.flash_attention is False and flash_of(EngineOptions(kv=options.kv)):
        text = f'kv = "{options.kv}" needs flash attention, which is off'
        yield text, 'leave flash_attention out, or write kv = "f16"'
    if options.batch is not None and options.batch < min_batch:
        drafts = ""
        if options.draft is not None:
            drafts = f" with {options.draft.depth} drafted tokens each"
        slots = f"{launch.slots} slot{'s' if launch.slots > 1 else ''}"
        yield f"batch = {options.batch} is too small for {slots}{drafts}", f"{min_batch} or more"
    if (
        options.batch is not None
        and options.batched_tokens is not None
        and options.batched_tokens > options.batch
    ):
        text = f"batched_tokens = {options.batched_tokens} is more than batch = {options.batch}"
        yield (
            text,
            "a micro-batch is a part of the batch: raise `batch`, or lower `batched_tokens`",
        )
    if options.chunked_prefill is False:
        yield (
            "chunked_prefill = false is not possible: prompts are always read in chunks",
            "leave it out",
        )


class Embedded(OwnEngine):
    module = "skep.engines.embedded_server"

    def check(self, launch: Launch) -> None:
        if find_spec("xllamacpp") is None:
            raise EngineError(
                "the embedded engine is not installed",
                hint="install skep again: xllamacpp is missing",
            )
        if launch.weights is None:
            hint = f"run `skep pull {launch.model}`"
            raise UserError(f"the embedded engine has no weights for `{launch.model}`", hint=hint)
        for refusal, instead in self.refusals(launch):
            raise UserError(f"embedded: {refusal}", hint=instead)

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        """Yield what it cannot do. Free of I/O."""
        kv = launch.options.kv
        draft = launch.options.draft
        if draft is not None and draft.method != "ngram":
            yield (
                f"it has no speculation by `{draft.method}`, only from the text itself",
                "use ngram, or llamacpp",
            )
        if kv is not None and kv not in KV_TYPES:
            yield (
                f'kv = "{kv}" is not known to the embedded engine',
                f"one of {', '.join(KV_TYPES)}",
            )
        yield from common_refusals(launch)
        yield from llama_refusals(launch)

    def argv(self, launch: Launch) -> list[str]:
        words = ["--model", launch.weights, "--alias", launch.model, "--slots", launch.slots]
        words += ["--context", launch.context_tokens, "--threads", launch.threads]
        words += ["--host", launch.host, "--port", launch.port, "--report-fd", REPORT_FD]
        # what differs from the server's own way: a launch without options has none of it
        options = launch.options
        batch = batch_of(launch)
        words += flag("--threads-batch", options.threads_batch) + flag(
            "--micro-batch", options.batched_tokens
        )
        words += flag("--batch", batch if batch != BATCH else None) + flag("--kv", options.kv)
        words += flag("--flash-attention", _on_off(flash_of(options)))
        words += flag("--cache-ram", _ram_mib(options) or None)
        if options.kv_layout == "split":
            words += ["--split"]
        if options.prefix_cache is False:
            words += ["--no-prefix-cache"]
        words += flag("--ngram", None if options.draft is None else options.draft.depth)
        return self.words(*words, launch=launch)

    def version(self) -> str | None:
        from importlib import metadata

        try:
            return f"xllamacpp {metadata.version('xllamacpp')}"
        except metadata.PackageNotFoundError:
            return None
