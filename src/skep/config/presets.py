"""Presets as TOML files named like the preset: shipped ones and the user's own, which win."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date as Day  # noqa: N812 - `date` is a key here
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of, model_engines
from skep.catalog.models import Geometry, find_geometry, geometry
from skep.catalog.names import did_you_mean, recipe_texts, similar_names, squeeze
from skep.catalog.presets import NO_CARDS, Draft, Preset, own_flag, own_name
from skep.config.load import (
    Check,
    check_printed,
    check_words,
    parse_toml,
    read_table,
    read_text_file,
    rules_of,
)
from skep.config.problems import Problems
from skep.config.rigs import parse_rig
from skep.config.settings import Serve, default_context
from skep.errors import UserError
from skep.paths import Paths
from skep.planner.rules import valid_rungs
from skep.planner.setup import Rig
from skep.units import shortened

SHIPPED = "shipped"
# where the author does not say and no figure wants more: what a whole card's default refuses
USUAL_CONTEXT = 8192
_ENCODING = "utf-8-sig"  # some editors begin a file with a byte order mark
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_LONGEST_TOLD = 300  # characters of what is wrong, and of what to do: names in them are the file's
_HINT = "docs/presets.md has every key"
# of flags and variables that give a model a longer context than it was made with
_STRETCHED = ("rope", "yarn", "hf-overrides", "long-max-model-len")


class PresetFolder(msgspec.Struct, frozen=True):
    """A folder's presets by name, and the errors of the files that are none."""

    presets: Mapping[str, Preset] = {}
    broken: tuple[UserError, ...] = ()


def presets_folder(paths: Paths) -> Path:
    return paths.config / "presets"


def shipped_preset(name: str) -> Preset | None:
    """Return a shipped preset without reading the others."""
    if name in recipe_texts():
        return _shipped(name)
    return None


@lru_cache(maxsize=1)
def shipped_presets() -> dict[str, Preset]:
    return {name: _shipped(name) for name in recipe_texts()}


def read_presets(folder: Path) -> PresetFolder:
    """Return the presets of a folder. A broken file hides no other; no folder is an empty one."""
    presets: dict[str, Preset] = {}
    broken: list[UserError] = []
    for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
        try:
            presets[path.stem] = read_preset(path)
        except UserError as error:
            broken.append(error)
    return PresetFolder(presets, tuple(broken))


def all_presets(folder: Path) -> dict[str, Preset]:
    """Return shipped presets and the user's own that can be read, by name."""
    return dict(sorted({**shipped_presets(), **read_presets(folder).presets}.items()))


def find_preset(name: str, folder: Path) -> Preset | None:
    """Return a preset by its name; None: there is none. No other file is read, broken or not."""
    if not _NAME.fullmatch(name):
        return None
    path = folder / f"{name}.toml"
    if path.is_file():
        return read_preset(path)
    if name in recipe_texts():
        return _shipped(name)
    return None


def preset(name: str, folder: Path) -> Preset:
    preset = find_preset(name, folder)
    if preset is None:
        user_names = [path.stem for path in folder.glob("*.toml")] if folder.is_dir() else []
        names = {
            squeeze(preset_name): preset_name for preset_name in (*recipe_texts(), *user_names)
        }
        hint = did_you_mean(similar_names(name, names), "`skep presets` lists them")
        raise UserError(f"no preset is called `{name}`", hint=hint)
    return preset


def preset_text(name: str, folder: Path) -> str:
    """Return the file as it is written, the user's own or shipped."""
    named_preset = preset(name, folder)
    if named_preset.origin == SHIPPED:
        return recipe_texts()[name]
    return Path(named_preset.origin).read_text(encoding=_ENCODING)


def read_preset(path: Path) -> Preset:
    """Return the preset of one file, wherever it lies."""
    try:
        text = read_text_file(path, _ENCODING)
    except FileNotFoundError:
        raise UserError(
            f"the preset `{path}` does not exist", hint="`skep presets` lists those that do"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"the preset `{path}` cannot be read: {why}", hint="it is a TOML file in UTF-8"
        ) from None
    return parse_preset(text, check_name(path.stem), str(path))


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        hint = "lower-case letters, digits, dots, dashes and underscores: `my-27b`"
        raise UserError(f"`{name}` is not a valid preset name", hint=hint)
    return name


def parse_preset(text: str, name: str, origin: str) -> Preset:
    try:
        document = parse_toml(text)
        check_printed(document)
    except ValueError as error:
        raise UserError(f"{origin}: this is not TOML: {error}", hint=_HINT) from None
    except UserError as error:
        raise UserError(f"{origin}: {error.message}", hint=error.hint) from None
    if isinstance(document.get("date"), Day):  # TOML has dates, and people leave the quotes out
        document["date"] = str(document["date"])
    checks: Mapping[type, Check] = {Preset: _check_preset}
    preset: Preset = read_table(
        document, Preset, origin, _HINT, checks=checks, name=name, origin=origin
    )
    return replace(preset, served_as=preset.served_as or preset.model)


def _check_preset(
    preset: Preset, _table: Mapping[str, Any], _place: str, problems: Problems
) -> None:
    with problems.gathered():
        check_words(dict(preset.env), *preset.extra, preset.checkpoint)
    for error in contradictions(preset):
        hint = shortened(error.hint or "", _LONGEST_TOLD) or None
        problems.add(UserError(shortened(error.message, _LONGEST_TOLD), hint=hint))


def serve_of(preset: Preset) -> Serve:
    """Return a preset as a table to serve. Cards are chosen where it does not name them."""
    alike = (
        "engine", "replicas", "slots", "threads", "extra", "reserve", "checkpoint", "options",
        "gpus", "env",
    )  # fmt: skip
    context = preset.context_tokens or _usual_context(preset)
    fields = {name: getattr(preset, name) for name in alike}
    return Serve(model=preset.served_as, context_tokens=context, preset=preset.name, **fields)


def _usual_context(preset: Preset) -> int:
    """Return enough for the figures and for a task: a model's whole context seldom fits."""
    if kind_of(preset.engine).part_of_skep:
        return default_context(preset.engine)
    lengths = [
        (figure.input_tokens or 0) + (figure.output_tokens or 0) for figure in preset.published
    ]
    model = find_geometry(preset.model)
    max_context = (model.max_context if model is not None else None) or USUAL_CONTEXT
    return min(max_context, max(USUAL_CONTEXT, *lengths, 0))


@lru_cache(maxsize=128)
def _shipped(name: str) -> Preset:
    return parse_preset(recipe_texts()[name], name, SHIPPED)


# What a preset may not say, held against the catalogue's cards and models


def contradictions(preset: Preset) -> list[UserError]:
    """Return all of them, those of names first. What rests on an unknown name is not checked."""
    return [UserError(message, hint=instead) for message, instead in _contradictions(preset)]


def _contradictions(preset: Preset) -> Iterator[tuple[str, str | None]]:
    if preset.reserve >= preset.slots:
        text = f"`reserve` = {preset.reserve} of {preset.slots} slots leaves none for the others"
        yield text, f"at most {preset.slots - 1}"
    engines = model_engines()
    if preset.engine not in engines:
        near = get_close_matches(preset.engine.casefold(), engines, n=1)
        hint = did_you_mean(near, f"known: {', '.join(engines)}")
        yield f"no engine is called `{preset.engine}`", hint
    if refused := own_flag(preset.engine, preset.extra):
        yield f"`extra` has {refused[0]}, which skep sets itself", refused[1]
    try:
        model = geometry(preset.model)
    except UserError as error:  # what the catalogue has not is called as its checkpoint is
        id_of_checkpoint = own_name(preset.checkpoint)
        if preset.model.casefold() != id_of_checkpoint:
            yield (
                error.message,
                f"{error.hint}; for a model that is not in the catalogue, `{id_of_checkpoint}`",
            )
    else:
        yield from _of_model(preset, model)
    try:
        rig = Rig(()) if preset.hardware == NO_CARDS else parse_rig(preset.hardware)
    except UserError as error:
        yield error.message.replace("--gpu ", "`hardware` = "), error.hint
        return
    if preset.link == "nvlink" and any(not card.nvlink_gbs for card in rig.cards):
        yield (
            f"`link` = `nvlink`, but {preset.hardware} has no NVLink",
            "leave `link` out where it is not known",
        )
    yield from _of_cards(preset, rig)


def _of_model(preset: Preset, model: Geometry) -> Iterator[tuple[str, str]]:
    options = preset.options
    if options.ep and not model.is_moe:
        yield f"{model.id} is dense: `ep` has no experts to spread", "leave `ep` out"
    if options.tp > 1 and not kind_of(preset.engine).reads_gguf:
        rungs = valid_rungs(model)
        if options.tp not in rungs:
            heads = f"the heads of {model.id} ({model.heads} of attention)"
            text = f"`tp` = {options.tp} does not divide {heads}"
            yield text, f"valid: {', '.join(map(str, rungs))}"
    if preset.context_tokens is not None and model.max_context:
        is_beyond = preset.context_tokens > model.max_context
        if is_beyond and not _stretches_context(preset):
            hint = "lower it, or put the engine's flags that stretch it (rope, yarn) into `extra`"
            limit = f"the {model.max_context} tokens of {model.id}"
            yield f"`context` = {preset.context_tokens} is beyond {limit}", hint


def _stretches_context(preset: Preset) -> bool:
    """Return whether its flags or variables give the model a longer context."""
    names = (*preset.extra, *(name for name, _ in preset.env))
    text = " ".join(names).casefold().replace("_", "-")
    return any(word in text for word in _STRETCHED)


def _of_cards(preset: Preset, rig: Rig) -> Iterator[tuple[str, str]]:
    options = preset.options
    present = len(rig.cards)
    needed = preset.replicas * options.cards
    if not present:
        if options.cards > 1 or preset.gpus:
            key = "gpus" if preset.gpus else "options"
            yield f"`hardware` = `cpu` has no cards for `{key}`", "name them, or leave it out"
        return
    if needed > present:
        has = (
            f"`hardware` = `{preset.hardware}` has {present} {'card' if present == 1 else 'cards'}"
        )
        yield (
            f"replicas x tp x pp x dp = {needed} cards, {has}",
            "name all cards in `hardware`, or ask for fewer",
        )


# Written


def preset_toml(preset: Preset) -> str:
    """Return a file that is read back as this preset (but for name and origin), without values
    that a field has by default.
    """
    stated = _stated(preset)
    if preset.served_as == preset.model:
        del stated["served_as"]
    inner = {key: stated.pop(key) for key in ("options", "env", "container") if key in stated}
    several = {key: stated.pop(key) for key in ("need", "published") if key in stated}
    parts = [
        _table("", stated),
        *(_table(f"[{key}]", table) for key, table in inner.items() if table),
    ]
    parts += [_table(f"[[{key}]]", table) for key, tables in several.items() for table in tables]
    return "\n".join(parts)


def _stated(value: Any) -> dict[str, Any]:
    """Return the values under their keys, without those that a field has by default."""
    stated: dict[str, Any] = {}
    kind: type = type(value)
    rules = rules_of(kind)
    for field in msgspec.structs.fields(value):
        rule = rules[field.name]
        key = rule.get("key", field.name)
        inner = getattr(value, field.name)
        default = None if field.default is msgspec.NODEFAULT else field.default
        if "hidden" in rule or inner == default:
            continue
        if isinstance(inner, Draft):  # two texts in a file
            stated["speculation"] = str(inner)
            if inner.model is not None:
                stated["draft_model"] = inner.model
        elif isinstance(inner, msgspec.Struct):
            stated[key] = _stated(inner)
        elif field.name == "env":
            stated["env"] = dict(inner)
        elif isinstance(inner, tuple) and inner and isinstance(inner[0], msgspec.Struct):
            stated[key] = [_stated(table) for table in inner]
        else:
            stated[key] = inner
    return stated


def _table(head: str, values: Mapping[str, Any]) -> str:
    lines = [
        *filter(None, [head]),
        *(f"{name} = {_value(value)}" for name, value in values.items()),
    ]
    return "".join(f"{line}\n" for line in lines)


def _value(value: Any) -> str:
    """Return a value as TOML writes it: as JSON does, but for the DEL that only TOML forbids."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{name} = {_value(entry)}" for name, entry in value.items()) + " }"
        )
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
