"""vLLM and SGLang behind the engine port.

Flags of vLLM as in vllm/engine/arg_utils.py and the front end's cli_args of 0.19 to 0.32, of
SGLang as in python/sglang/srt/server_args.py of August 2026."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from skep.catalog.presets import Draft
from skep.catalog.tool_calling import NONE, ToolCalling, find_tool_calling, usable
from skep.engines import discovery
from skep.engines.adapter import (
    Adapter,
    Known,
    Refusal,
    common_refusals,
    draft_model,
    either,
    flag,
    is_hybrid,
    p2p_variables,
    source_of,
)
from skep.engines.base import Launch
from skep.errors import UserError
from skep.host.processes import ENGINE_KEY, KEY_FILE_HERE, KEY_HERE

_METHODS = {"draft": "draft_model", "eagle": "eagle3"}
_ALGORITHMS = {
    "mtp": "NEXTN",
    "eagle": "EAGLE3",
    "draft": "STANDALONE",
    "ngram": "NGRAM",
    "dflash": "DFLASH",
}
_ORIGINS = "--allowed-origins"
_TOOLS = "--tool-call-parser"
_REASONING = "--reasoning-parser"
_TEMPLATE = "--chat-template"
_CACHING = "--enable-prefix-caching"
_UNCHUNKED = ("--no-enable-chunked-prefill", "--disable-chunked-mm-input")
_OLD_STRATEGY = "--mamba-scheduler-strategy"
_STRATEGY = "--mamba-radix-cache-strategy"
_WHERE_KNOWN = (
    "--enable-prompt-tokens-details",
    "--enable-per-request-metrics",
)  # figures of a request in its answer


class CheckpointEngine(Adapter):
    """vLLM and SGLang: they read a checkpoint of the hub's form and give every card the same
    share.
    """

    confirms = "metrics"

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from common_refusals(launch)
        options = launch.options
        count = len(launch.gpus)
        if count and options.cards != count:  # the layout says how many cards they take
            sizes = {"tp": options.tp, "pp": options.pp, "dp": options.dp}
            layout = (
                " x ".join(f"{name}={value}" for name, value in sizes.items() if value > 1)
                or "tp=1"
            )
            what = (
                f"{layout} takes {options.cards} card{'s' if options.cards > 1 else ''}, but "
                f"gpus names {count}"
            )
            yield (
                what,
                f"set tp = {count}, name as many gpus as it takes, or start several replicas",
            )

    def check_weights(self, launch: Launch) -> None:
        source = source_of(launch)
        if source is None:
            hint = "name a folder, or a model of the hub as `organisation/name`"
            raise UserError(f"{self.name}: there is no checkpoint for `{launch.model}`", hint=hint)
        for what, name in (("checkpoint", source), ("draft model", draft_model(launch.options))):
            path = Path(os.path.expanduser(name or ""))  # noqa: PTH111
            if name is None or not (is_path(name) or path.exists()):
                continue
            if not path.exists():
                raise UserError(
                    f"{self.name}: the {what} `{name}` does not exist", hint="check the path"
                )
            if path.is_dir() and not any(
                (path / one).exists() for one in ("config.json", "params.json")
            ):
                hint = "name the folder that config.json is in"
                raise UserError(f"{self.name}: the {what} `{name}` has no config.json", hint=hint)

    def tool_calling(self, launch: Launch, known: Known = None) -> ToolCalling:
        """Return the parsers it is started with: as the options say, else the model's that this
        version has.

        What `extra` sets is left out here. "none" in an option is no parser.
        """
        options = launch.options
        has_template = options.chat_template is not None or in_extra(launch, _TEMPLATE)
        calling = find_tool_calling(self.name, launch.model, source_of(launch)) or ToolCalling()
        calling = usable(calling, self.name, version=self.known_version, has_template=has_template)

        def parser(name: str, wanted: str | None, usual: str | None) -> str | None:
            chosen = wanted or (usual if takes(known, name) else None)
            if in_extra(launch, name) or chosen == NONE:
                return None
            return chosen

        return replace(
            calling,
            tool_parser=parser(_TOOLS, options.tool_parser, calling.tool_parser),
            reasoning_parser=parser(
                _REASONING, options.reasoning_parser, calling.reasoning_parser
            ),
            flags=() if calling.flags and in_extra(launch, calling.flags[0]) else calling.flags,
        )

    def variables(self, launch: Launch) -> dict[str, str]:
        """Where all it reads lies in folders, the hub need not be asked."""
        named = any(word.startswith("--tokenizer") for word in launch.extra)
        read = [
            source
            for source in (source_of(launch), draft_model(launch.options))
            if source is not None
        ]
        local = source_of(launch) is not None and all(map(is_path, read)) and not named
        return p2p_variables(launch) | ({"HF_HUB_OFFLINE": "1"} if local else {})


def is_path(source: str) -> bool:
    """By its looks: hub names are `organisation/name` and nothing else."""
    return (
        source.startswith(("/", "./", "../", "~", "path/to/"))
        or source.endswith(".gguf")
        or source.count("/") > 1
    )


class Vllm(CheckpointEngine):
    name = "vllm"
    # Of its paths it closes /v1 by it, and leaves others open.
    keyed_by = (
        ENGINE_KEY,
        "VLLM_API_KEY",
    )

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from super().refusals(launch)
        if launch.options.ep and launch.options.tp * launch.options.dp == 1:
            yield (
                "ep = true has one card to spread the experts over",
                "set tp or dp, or leave ep out",
            )

    def arguments(self, launch: Launch, known: Known = None) -> list[str]:
        """`--max-num-seqs` and `--max-model-len` are of one data-parallel rank."""
        options = launch.options
        words = [source_of(launch) or launch.model, "--served-model-name", launch.model]
        words += ["--host", launch.host, "--port", str(launch.port)]
        words += ["--max-num-seqs", str(-(-launch.slots // options.dp))]
        if (
            launch.api_key
            and _ORIGINS not in launch.extra
            and (known is None or _ORIGINS in known)
        ):
            words += [_ORIGINS, "[]"]  # no web page; it would give leave to all
        words += flag("--max-model-len", launch.context_tokens or None)
        words += flag("--quantization", options.quant) + flag("--dtype", options.dtype)
        words += flag("--kv-cache-dtype", options.kv)
        for name, size in (("tensor", options.tp), ("pipeline", options.pp), ("data", options.dp)):
            words += flag(f"--{name}-parallel-size", size if size > 1 else None)
        words += either(options.ep or None, "--enable-expert-parallel", None)
        words += flag("--gpu-memory-utilization", options.memory_share)
        words += either(options.graphs, "--no-enforce-eager", "--enforce-eager")
        words += either(
            options.chunked_prefill, "--enable-chunked-prefill", "--no-enable-chunked-prefill"
        )
        words += flag("--max-num-batched-tokens", options.batched_tokens)
        words += _prefix_caching(launch, known)
        if options.draft is not None:
            words += ["--speculative-config", speculative_config(options.draft)]
        # It reads the other cards' memory itself.
        apart = options.p2p == "off" and options.custom_all_reduce is None
        words += either(
            False if apart else options.custom_all_reduce, None, "--disable-custom-all-reduce"
        )
        words += either(options.text_only or None, "--language-model-only", None)
        words += either(options.trust_remote_code or None, "--trust-remote-code", None)
        calling = self.tool_calling(launch, known)
        words += flag(_REASONING, calling.reasoning_parser)
        if calling.tool_parser is not None:  # neither of the two does anything without the other
            words += ["--enable-auto-tool-choice", _TOOLS, calling.tool_parser]
        words += [*calling.flags, *flag(_TEMPLATE, options.chat_template)]
        # Without its statistics it refuses to tell of a request.
        counted = "--disable-log-stats" not in launch.extra
        words += [
            w
            for w in _WHERE_KNOWN
            if known is not None and w in known and w not in launch.extra and counted
        ]
        return [*words, *launch.extra]

    def variables(self, launch: Launch) -> dict[str, str]:
        return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **super().variables(launch)}


def in_extra(launch: Launch, name: str) -> bool:
    """Return whether the user sets this flag, with its value behind it or behind a `=`."""
    return any(word.partition("=")[0].replace("_", "-") == name for word in launch.extra)


def takes(known: Known, name: str) -> bool:
    """Return whether the version has the flag, as far as its flags are known."""
    return known is None or name in known


def _prefix_caching(launch: Launch, known: Known) -> list[str]:
    """On for every model: for hybrids it is off by default in vLLM before 0.28.

    There it needs prefill in chunks.
    """
    prefix_cache = launch.options.prefix_cache
    if prefix_cache is not None:
        return [_CACHING if prefix_cache else "--no-enable-prefix-caching"]
    given = in_extra(launch, _CACHING) or in_extra(launch, "--no-enable-prefix-caching")
    if given or not takes(known, _CACHING):
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


class Sglang(CheckpointEngine):
    """`--max-running-requests` is of all data-parallel ranks together, and TP counts the cards of
    all of them.
    """

    name = "sglang"

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from super().refusals(launch)
        if launch.options.chunked_prefill is False and launch.options.batched_tokens is not None:
            yield (
                "batched_tokens is the size of a chunk, and chunked_prefill is false",
                "leave one of the two out",
            )

    def arguments(self, launch: Launch, known: Known = None) -> list[str]:
        options = launch.options
        words = [
            "--model-path",
            source_of(launch) or launch.model,
            "--served-model-name",
            launch.model,
        ]
        words += [
            "--host",
            launch.host,
            "--port",
            str(launch.port),
            "--max-running-requests",
            str(launch.slots),
        ]
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
        if options.chunked_prefill is False:
            chunk: int | None = -1
        else:
            chunk = options.batched_tokens
        words += flag("--chunked-prefill-size", chunk)
        words += either(options.prefix_cache, None, "--disable-radix-cache")
        words += _speculation(options.draft) if options.draft is not None else []
        # It reads the other cards' memory itself.
        apart = options.p2p == "off" and options.custom_all_reduce is None
        words += either(
            False if apart else options.custom_all_reduce, None, "--disable-custom-all-reduce"
        )
        words += either(options.trust_remote_code or None, "--trust-remote-code", None)
        words += [_OLD_STRATEGY, "extra_buffer"] if _needs_extra_buffer(launch, known) else []
        calling = self.tool_calling(launch, known)
        words += flag(_REASONING, calling.reasoning_parser) + flag(_TOOLS, calling.tool_parser)
        words += [*calling.flags, *flag(_TEMPLATE, options.chat_template)]
        return [*words, "--enable-metrics", "--enable-cache-report", *launch.extra]

    def variables(self, launch: Launch) -> dict[str, str]:
        if self._program is None:
            known = None
        else:
            known = discovery.remembered_flags(self._program, self._cache_dir)
        buffered = _needs_extra_buffer(launch, known)
        buffering = {"SGLANG_ENABLE_SPEC_V2": "1"} if buffered else {}
        return buffering | super().variables(launch)


def _needs_extra_buffer(launch: Launch, known: Known) -> bool:
    """SGLang 0.5.7 to 0.5.13 refuses hybrids with drafts and a prefix cache otherwise; later ones
    choose themselves.
    """
    if (
        known is None
        or _OLD_STRATEGY not in known
        or _STRATEGY in known
        or in_extra(launch, _OLD_STRATEGY)
    ):
        return False
    caches = launch.options.prefix_cache is not False and not in_extra(
        launch, "--disable-radix-cache"
    )
    return (
        launch.options.draft is not None
        and caches
        and is_hybrid(launch.model, source_of(launch)) is True
    )


def _key_words(launch: Launch, known: Known) -> list[str]:
    """It has no variable.

    A version without `--config`, of which it takes one only, shows the key to `ps`.
    """
    by_file = known is not None and "--config" in known and "--config" not in launch.extra
    if by_file:
        return ["--config", KEY_FILE_HERE]
    return ["--api-key", KEY_HERE]


def _speculation(draft: Draft) -> list[str]:
    words = ["--speculative-algorithm", _ALGORITHMS.get(draft.method, draft.method.upper())]
    words += flag("--speculative-draft-model-path", draft.model)
    if draft.method != "ngram":
        words += ["--speculative-num-steps", str(draft.depth), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(draft.depth + 1)]
