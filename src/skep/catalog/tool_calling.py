"""How models call tools: which parsers an engine has to be told of, from `tool_calling.toml`.

Knows names and versions; whether an engine, a template or a checkpoint is there, others find out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import msgspec

from skep.catalog.engines import gguf_engine, kind_of
from skep.catalog.models import checkpoint_of, find_geometry
from skep.catalog.names import table, table_texts

NONE = "none"  # the word for no parser, in settings
NO_TOOLS = "its chat template knows no tools"
_FILE = "tool_calling.toml"
_CACHED = re.compile(r"models--([^/]+?)--([^/]+)")  # a folder of the hub's cache
_PART = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")
_GGUF_FORMAT = re.compile(
    r"[-._](?:ud-)?(?:i?q[0-9][a-z0-9_]{0,16}|bf16|f16|f32|mxfp4(?:_moe)?)$", re.IGNORECASE
)
_RELEASE = re.compile(
    r"(?<![0-9.])([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?(?:\.?post([0-9]{1,6}))?"
)

Release = tuple[int, int, int, int]


class ToolCalling(msgspec.Struct, frozen=True):
    """What an engine is told of one model, so that agents can call tools with it."""

    tool_parser: str | None = None
    reasoning_parser: str | None = None
    flags: tuple[str, ...] = ()  # further ones that the engine takes with them
    # the first release that has both parsers; empty: every one, or it is not known
    since: str = ""
    template: str | None = None  # a chat template without which the model never hears of tools
    why_not: str | None = None  # why agents cannot call tools, in a few words; None: they can
    unreliable: str | None = None  # why calls often fail all the same


def find_tool_calling(
    engine: str, model: str, checkpoint: str | None = None
) -> ToolCalling | None:
    """Return how this engine reads the calls of a model; None: engine or model is not known.

    `model` is its name, `checkpoint` what is loaded: a name on the hub, a folder or a file.
    """
    slug, name = _model_and_name(model, checkpoint)
    if slug is not None:
        entry = _entry(slug, name.rpartition("/")[2].casefold())
    else:
        entry = None
    if entry is None:
        return None
    if _goes_by_template(engine):
        readable = entry.get(gguf_engine(), "no") != "no"
        return ToolCalling(why_not=None if readable else NO_TOOLS)
    if kind_of(engine).told_parsers:
        return _parsers_of(engine, entry, name)
    return None


def _goes_by_template(engine: str) -> bool:
    """Return whether the engine reads calls as the model's chat template writes them."""
    return kind_of(engine).weights == "gguf"


def launched_model(model: str, checkpoint: str | None = None) -> str | None:
    """Return which model of the catalogue is loaded; None where the names spell none."""
    return _model_and_name(model, checkpoint)[0]


def _parsers_of(engine: str, entry: Mapping[str, Any], name: str) -> ToolCalling:
    tool_parser = entry.get(engine) or None
    reasoning_parser = entry.get(f"{engine}_reasoning") or None
    owner = entry.get(f"{engine}_reasoning_owner")
    if owner is not None and not name.casefold().startswith(f"{owner}/"):
        reasoning_parser = None
    reason = entry.get("reason", f"no parser of {engine} reads its calls")
    return ToolCalling(
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        flags=tuple(entry.get(f"{engine}_flags", ())),
        since=entry.get(f"{engine}_since", ""),
        template=entry.get(f"{engine}_template"),
        why_not=None if tool_parser else reason,
        unreliable=entry.get("unreliable") if tool_parser else None,
    )


def usable(
    calling: ToolCalling, engine: str, *, version: str | None = None, has_template: bool = False
) -> ToolCalling:
    """Return what this version of the engine can be told. `version` None: not known, taken as new
    enough.

    `has_template`: a chat template is given, which is taken for the one that the model needs.
    """
    installed = release_of(version)
    first = release_of(calling.since)
    if installed is not None and first is not None and installed < first:
        why_not = calling.why_not or f"{engine} has its parser since {calling.since}"
        return ToolCalling(why_not=why_not)
    if calling.tool_parser is not None and calling.template is not None and not has_template:
        needed = f"it needs the chat template {calling.template}, which {engine} does not bring"
        why_not = f"{needed}: name yours with chat_template"
        return msgspec.structs.replace(calling, tool_parser=None, why_not=why_not)
    return calling


def with_template(calling: ToolCalling, engine: str, *, takes_tools: bool | None) -> ToolCalling:
    """Return the tool calling of a checkpoint: what its own chat template says wins over what is
    known of its model.

    `takes_tools` None: the template was not read.
    """
    if takes_tools is None or (calling.template is not None and not takes_tools):
        return calling
    if not takes_tools and calling.why_not is None:
        return msgspec.structs.replace(calling, tool_parser=None, why_not=NO_TOOLS)
    if takes_tools and calling.why_not == NO_TOOLS:
        why_not = None
        if not _goes_by_template(engine):
            why_not = f"no parser of {engine} is known for its calls, name yours with tool_parser"
        return msgspec.structs.replace(calling, why_not=why_not)
    return calling


def release_of(version: str | None) -> Release | None:
    """Return the release in a text such as `vllm 0.19.1`; None where it has none, or names a
    development version.
    """
    match = _RELEASE.search(version or "")
    if match is None or "dev" in (version or ""):
        return None
    major, minor, patch, post = (int(part or 0) for part in match.groups())
    return major, minor, patch, post


def hub_name(source: str) -> str:
    """Return `organisation/name`, also of a folder of the hub's cache; else the last part of the
    path, without the endings of a GGUF file.
    """
    cached = _CACHED.search(source)
    if cached is not None and not source.endswith(".gguf"):
        return f"{cached[1]}/{cached[2]}"
    named = source.partition(":")[0]
    is_path = named.startswith(("/", ".", "~", "$")) or named.endswith(".gguf")
    if named.count("/") == 1 and not is_path:
        return named
    name = source.rstrip("/").rpartition("/")[2]
    if name.endswith(".gguf"):
        name = _GGUF_FORMAT.sub("", _PART.sub("", name.removesuffix(".gguf")))
    return name


def _model_and_name(model: str, checkpoint: str | None) -> tuple[str | None, str]:
    """Return the model of the catalogue and the name that spells it: of what is loaded, else the
    name that it is served as.
    """
    for source in (checkpoint, model):
        name = hub_name(source) if source else ""
        slug = _slug(name) if name else None
        if slug is not None:
            return slug, name
    return None, ""


@lru_cache(maxsize=128)
def _slug(name: str) -> str | None:
    checkpoint = checkpoint_of(name) if "/" in name else None
    if checkpoint is not None:
        return checkpoint.model
    geometry = find_geometry(name)
    return None if geometry is None else geometry.id


@lru_cache(maxsize=128)
def _entry(slug: str, name: str) -> Mapping[str, Any] | None:
    """Return what is known of a model, and of its checkpoint of that name where that differs."""
    texts = table_texts(_FILE)
    group = next(
        (title for title, text in texts.items() if "models = [" in text and f'"{slug}"' in text),
        None,
    )
    if group is None:
        return None
    entry = table(_FILE, group)
    for title, text in texts.items():
        if text.startswith(f'of = "{group}"\n'):
            variant = table(_FILE, title)
            if any(fnmatchcase(name, pattern) for pattern in variant["names"]):
                return {**entry, **variant}
    return entry
