"""What vLLM, SGLang and engines like them have in common.

They read a checkpoint of the hub's form, are told a model's parsers, and give every card the same
share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from skep.catalog.tool_calling import NONE, ToolCalling, find_tool_calling, usable
from skep.engines.adapter import (
    Adapter,
    KnownFlags,
    Refusal,
    common_refusals,
    draft_model,
    p2p_variables,
    source_of,
)
from skep.engines.base import Launch
from skep.errors import UserError

TOOLS = "--tool-call-parser"
REASONING = "--reasoning-parser"
TEMPLATE = "--chat-template"
_CONFIGURATIONS = ("config.json", "params.json")


class CheckpointEngine(Adapter):
    """An engine that reads a checkpoint of the hub's form and gives every card the same share."""

    confirms = "metrics"

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        yield from common_refusals(launch)
        options = launch.options
        count = len(launch.gpus)
        if count and options.cards != count:  # the layout says how many cards they take
            sizes = {"tp": options.tp, "pp": options.pp, "dp": options.dp}
            sides = [f"{name}={value}" for name, value in sizes.items() if value > 1]
            layout = " x ".join(sides) or "tp=1"
            cards = f"{options.cards} card{'s' if options.cards > 1 else ''}"
            yield (
                f"{layout} takes {cards}, but gpus names {count}",
                f"set tp = {count}, name as many gpus as it takes, or start several replicas",
            )

    def check_weights(self, launch: Launch) -> None:
        source = source_of(launch)
        if source is None:
            hint = "name a folder, or a model of the hub as `organisation/name`"
            raise UserError(f"{self.name}: there is no checkpoint for `{launch.model}`", hint=hint)
        self._check_path("checkpoint", source)
        draft = draft_model(launch.options)
        if draft is not None:
            self._check_path("draft model", draft)

    def _check_path(self, kind: str, name: str) -> None:
        """Raise where a path does not exist, or is a folder without a configuration."""
        path = Path(os.path.expanduser(name))  # noqa: PTH111
        if not path.exists():
            if is_path(name):
                raise UserError(
                    f"{self.name}: the {kind} `{name}` does not exist", hint="check the path"
                )
            return
        if path.is_dir() and not any((path / file).exists() for file in _CONFIGURATIONS):
            hint = "name the folder that config.json is in"
            raise UserError(f"{self.name}: the {kind} `{name}` has no config.json", hint=hint)

    def tool_calling(self, launch: Launch, known_flags: KnownFlags = None) -> ToolCalling:
        """Return the parsers it is started with: as the options say, else the model's that this
        version has.

        What `extra` sets is left out here. "none" in an option is no parser.
        """
        options = launch.options
        has_template = options.chat_template is not None or in_extra(launch, TEMPLATE)
        calling = find_tool_calling(self.name, launch.model, source_of(launch)) or ToolCalling()
        calling = usable(calling, self.name, version=self.known_version, has_template=has_template)

        def parser(flag_name: str, option: str | None, usual: str | None) -> str | None:
            chosen = option or (usual if has_flag(known_flags, flag_name) else None)
            if in_extra(launch, flag_name) or chosen == NONE:
                return None
            return chosen

        return replace(
            calling,
            tool_parser=parser(TOOLS, options.tool_parser, calling.tool_parser),
            reasoning_parser=parser(REASONING, options.reasoning_parser, calling.reasoning_parser),
            flags=() if calling.flags and in_extra(launch, calling.flags[0]) else calling.flags,
        )

    def variables(self, launch: Launch) -> dict[str, str]:
        """Return those of the links. The hub need not be asked where all lies in folders."""
        named = any(word.startswith("--tokenizer") for word in launch.extra)
        read = [
            source
            for source in (source_of(launch), draft_model(launch.options))
            if source is not None
        ]
        local = source_of(launch) is not None and all(map(is_path, read)) and not named
        return p2p_variables(launch) | ({"HF_HUB_OFFLINE": "1"} if local else {})


def kv_ram_refusals(launch: Launch) -> Iterable[Refusal]:
    """Yield why KV in RAM is of no use: what it keeps is found by the prefix cache."""
    options = launch.options
    if options.kv_ram and options.prefix_cache is False:
        yield (
            f"kv_ram = {options.kv_ram} is found by the prefix cache, and prefix_cache is false",
            "leave one of the two out",
        )


def is_path(source: str) -> bool:
    """Return whether it looks like a path: hub names are `organisation/name` and nothing else."""
    return (
        source.startswith(("/", "./", "../", "~", "path/to/"))
        or source.endswith(".gguf")
        or source.count("/") > 1
    )


def in_extra(launch: Launch, name: str) -> bool:
    """Return whether the user sets this flag, with its value behind it or behind a `=`."""
    return any(word.partition("=")[0].replace("_", "-") == name for word in launch.extra)


def has_flag(known_flags: KnownFlags, name: str) -> bool:
    """Return whether the version has the flag, as far as its flags are known."""
    return known_flags is None or name in known_flags


def custom_all_reduce(launch: Launch) -> bool | None:
    """Return whether it may use its own all-reduce, which reads the other cards' memory itself;
    None: as it likes.
    """
    options = launch.options
    if options.custom_all_reduce is None and options.p2p == "off":
        return False
    return options.custom_all_reduce
