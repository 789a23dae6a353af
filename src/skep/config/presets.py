"""Presets as TOML files named like the preset, shipped ones and one's own, which win. Says the line of a mistake."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date as Day  # noqa: N812 - `date` is a key here
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.models import find_geometry
from skep.catalog.names import did_you_mean, similar_names, squeeze
from skep.catalog.options import Draft
from skep.catalog.presets import Preset
from skep.config.load import FileProblem, KeyPath, TableReader, check_words, rules_of, written
from skep.config.preset_rules import Contradiction, contradictions
from skep.config.settings import OWN_ENGINES, Serve, default_context
from skep.errors import UserError
from skep.paths import Paths


def toml_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of every key, table and array element by its path: `("published", 0, "tok_s")`.

    Each beginning of the text is parsed, with the brackets closed that may be open there: what is new in it began at
    the first line after the last beginning that could be parsed.
    """
    found: dict[KeyPath, int] = {}
    lines, parsed = text.split("\n"), 0
    for number in range(1, len(lines) + 1):
        for end in ("", "]", "]]", "]}", "}]"):
            try:
                document = tomllib.loads("\n".join((*lines[:number], end)))
            except tomllib.TOMLDecodeError:
                continue
            found = dict.fromkeys(_paths(document), parsed + 1) | found
            parsed = number
            break
    return found


def _paths(value: object, place: KeyPath = ()) -> Iterator[KeyPath]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*place, key)
        yield from _paths(inner, (*place, key))


def line_of(place: Sequence[str | int], lines: Mapping[KeyPath, int]) -> int:
    """Of the value itself, or of the nearest thing around it: a missing key has no line of its own."""
    path = tuple(place)
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


SHIPPED = "shipped"
USUAL_CONTEXT = 8192  # where the author does not say and no figure wants more: what a whole card's default refuses
_FOLDER = "recipes"
_ENCODING = "utf-8-sig"  # some editors begin a file with a byte order mark
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_HINT = "docs/presets.md has every key"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WIDE_LINE = 100  # characters; a longer list gets a line for each
_TOML_LINE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)")


class PresetFolder(msgspec.Struct, frozen=True):
    """A folder's presets by name, and what is wrong with the files that are none."""

    presets: Mapping[str, Preset] = {}
    broken: tuple[UserError, ...] = ()


def presets_folder(paths: Paths) -> Path:
    return paths.config / "presets"


@lru_cache(maxsize=1)
def shipped_presets() -> dict[str, Preset]:
    return {name: _shipped(name) for name in _shipped_names()}


def preset_tables(model: str) -> dict[str, dict[str, Any]]:
    """Return the files of the shipped ones of a model as they are written: quicker than all that a preset can be."""
    line, texts = f'model = "{model}"\n', {name: _shipped_text(name) for name in _shipped_names()}
    return {name: tomllib.loads(text) for name, text in texts.items() if line in text}


def read_presets(folder: Path) -> PresetFolder:
    """One's own. A broken file hides no other one; a folder that is not there is an empty one."""
    presets: dict[str, Preset] = {}
    broken: list[UserError] = []
    for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
        try:
            presets[path.stem] = read_preset(path)
        except UserError as error:
            broken.append(error)
    return PresetFolder(presets, tuple(broken))


def all_presets(folder: Path) -> dict[str, Preset]:
    """Shipped and one's own that can be read, by name."""
    return dict(sorted({**shipped_presets(), **read_presets(folder).presets}.items()))


def find_preset(name: str, folder: Path) -> Preset | None:
    """Looks at no other file: a broken one elsewhere does not matter here."""
    if not _NAME.fullmatch(name):
        return None
    own = folder / f"{name}.toml"
    if own.is_file():
        return read_preset(own)
    return _shipped(name) if name in _shipped_names() else None


def preset(name: str, folder: Path) -> Preset:
    found = find_preset(name, folder)
    if found is None:
        own = (path.stem for path in folder.glob("*.toml")) if folder.is_dir() else ()
        names = {squeeze(known): known for known in (*_shipped_names(), *own)}
        hint = did_you_mean(similar_names(name, names), "`skep presets` lists them")
        raise UserError(f"no preset is called `{name}`", hint=hint)
    return found


def preset_text(name: str, folder: Path) -> str:
    """Return the file as it is written, one's own or shipped."""
    found = preset(name, folder)
    return _shipped_text(name) if found.origin == SHIPPED else Path(found.origin).read_text(encoding=_ENCODING)


def read_preset(path: Path) -> Preset:
    """Return the preset of one file, wherever it lies."""
    try:
        text = path.read_text(encoding=_ENCODING)
    except FileNotFoundError:
        raise UserError(f"the preset `{path}` does not exist", hint="`skep presets` lists those that do") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"the preset `{path}` cannot be read: {why}", hint="it is a TOML file in UTF-8") from None
    return parse_preset(text, check_name(path.stem), str(path))


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        hint = "lower-case letters, digits, dots, dashes and underscores: `my-27b`"
        raise UserError(f"`{name}` is not a valid preset name", hint=hint)
    return name


def parse_preset(text: str, name: str, origin: str) -> Preset:
    """The first complaint, by line, and how many more there are."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _TOML_LINE.search(str(error))
        line = int(at[1]) if at and at[1] else text.count("\n") + 1
        message = f"{origin}:{line}: this is not TOML: {_TOML_LINE.sub('', str(error)).lower()}"
        raise UserError(message, hint=_HINT) from None
    if isinstance(document.get("date"), Day):  # TOML has dates, and people leave the quotes out
        document["date"] = str(document["date"])
    reader = TableReader()
    found: Preset = reader.table(document, Preset, name=name, origin=origin)
    wrong = _complaints(reader.problems) or _unusable_words(found) or contradictions(found)
    if wrong:  # a key that is missing has no line of its own: what stands there goes first
        lines, rest = toml_lines(text), f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        first = min(wrong, key=lambda one: (one.place not in lines, line_of(one.place, lines)))
        message = f"{origin}:{line_of(first.place, lines)}: {first.message}{rest}"
        raise UserError(message, hint=first.hint or _HINT)
    return replace(found, served_as=found.served_as or found.model)


def _unusable_words(found: Preset) -> list[Contradiction]:
    try:
        check_words(dict(found.env), *found.extra, found.checkpoint)
    except UserError as error:
        return [Contradiction(("env" if "env" in error.message else "extra",), error.message, error.hint)]
    return []


def serve_of(wanted: Preset) -> Serve:
    """Return what it is when it is served. Its cards are chosen where it does not name them."""
    alike = ("engine", "replicas", "slots", "threads", "extra", "reserve", "checkpoint", "options", "gpus", "env")
    context = wanted.context_tokens or _usual_context(wanted)
    own = {name: getattr(wanted, name) for name in alike}
    return Serve(model=wanted.served_as, context_tokens=context, preset=wanted.name, **own)


def _usual_context(wanted: Preset) -> int:
    """A model's whole context seldom fits beside its weights: enough for the figures, and for a task."""
    if wanted.engine in OWN_ENGINES:
        return default_context(wanted.engine)
    lengths = [(figure.input_tokens or 0) + (figure.output_tokens or 0) for figure in wanted.published]
    model = find_geometry(wanted.model)
    most = model.max_context if model is not None and model.max_context else USUAL_CONTEXT
    return min(most, max(USUAL_CONTEXT, *lengths, 0))


def _shipped_names() -> tuple[str, ...]:
    found = files("skep.catalog").joinpath(_FOLDER).iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in found if entry.name.endswith(".toml")))


def _shipped_text(name: str) -> str:
    return files("skep.catalog").joinpath(_FOLDER, f"{name}.toml").read_text(encoding="utf-8")


@lru_cache(maxsize=128)
def _shipped(name: str) -> Preset:
    return parse_preset(_shipped_text(name), name, SHIPPED)


# Complaints


def _complaints(problems: Sequence[FileProblem]) -> list[Contradiction]:
    """A misspelt key is one mistake, not also the one that is missing."""
    meant = {(*one.place[:-1], guess) for one in problems for guess in _meant(one)}
    return [_complaint(one) for one in problems if one.kind != "missing" or one.place not in meant]


def _meant(problem: FileProblem) -> tuple[str, ...]:
    return similar_names(str(problem.place[-1]), {squeeze(name): name for name in problem.known}, count=1)


def _complaint(problem: FileProblem) -> Contradiction:
    place, words, hint = problem.place, problem.words, problem.hint
    key, table = place[-1], next((part for part in reversed(place[:-1]) if isinstance(part, str)), None)
    inside = "a preset" if table is None else _TABLES.get(table, f"`{table}`")
    if problem.kind == "unknown":
        close = _meant(problem)
        guess = f"; {did_you_mean(close, '')}" if close else ""
        words, hint = f"`{key}` is not a key of {inside}{guess}", f"known: {', '.join(problem.known)}"
    elif problem.kind != "refused":
        named = f"{key + 1} of `{place[-2]}`" if isinstance(key, int) and len(place) > 1 else f"`{key}`"
        missing = f"`{key}` is missing in {inside}"
        words = missing if problem.kind == "missing" else f"{named} = {written(problem.value)}: {words}"
        hint = _MISSING.get(str(key))
    return Contradiction(place, words, hint)


_MISSING = {
    "slots": "how many sequences a replica decodes at a time: vLLM --max-num-seqs, llama-server -np",
    "hardware": 'as `skep plan --gpu` takes it: "2x rtx-3090"; "cpu" for none',
    "source": "who published it and where; any text for a preset of your own",
}
_TABLES = {"options": "[options]", "container": "[container]", "mounts": "a mount", "need": "a [[need]]",
           "published": "a [[published]]"}  # fmt: skip


# Written


def preset_toml(preset: Preset) -> str:
    """Return a file that is read back as this preset (but for name and origin), without what goes without saying."""
    told = _told(preset)
    if preset.served_as == preset.model:
        del told["served_as"]
    inner = {key: told.pop(key) for key in ("options", "env", "container") if key in told}
    several = {key: told.pop(key) for key in ("need", "published") if key in told}
    parts = [_table("", told), *(_table(f"[{key}]", table) for key, table in inner.items() if table)]
    parts += [_table(f"[[{key}]]", table) for key, tables in several.items() for table in tables]
    return "\n".join(parts)


def _told(value: Any) -> dict[str, Any]:
    """Return what was said, under its keys: a value that its field has by itself needs no line."""
    found: dict[str, Any] = {}
    kind: type = type(value)
    rules = rules_of(kind)
    for one in msgspec.structs.fields(value):
        rule, inner = rules[one.name], getattr(value, one.name)
        if "hidden" in rule or inner == (None if one.default is msgspec.NODEFAULT else one.default):
            continue
        if isinstance(inner, Draft):  # two texts: how it stands in a file
            found |= {"speculation": str(inner)} | ({"draft_model": inner.model} if inner.model is not None else {})
        elif isinstance(inner, msgspec.Struct):
            found[rule.get("key", one.name)] = _told(inner)
        elif one.name == "env":
            found["env"] = dict(inner)
        else:
            several = isinstance(inner, tuple) and bool(inner) and isinstance(inner[0], msgspec.Struct)
            found[rule.get("key", one.name)] = [_told(each) for each in inner] if several else inner
    return found


def _table(head: str, values: Mapping[str, Any]) -> str:
    lines = [head] if head else []
    for name, value in values.items():
        short = f"{_key(name)} = {_value(value)}"
        if isinstance(value, tuple | list) and len(short) > _WIDE_LINE:
            lines += [f"{_key(name)} = [", *(f"    {_value(one)}," for one in value), "]"]
        else:
            lines.append(short)
    return "".join(f"{line}\n" for line in lines)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items()) + " }"
    return _text(str(value))


def _text(text: str) -> str:
    """A string of JSON is one of TOML, but for the DEL that only TOML forbids."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
