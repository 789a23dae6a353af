"""Commands on recipes that somebody measured: presets, presets show, presets check, presets new."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skep.cli.options import JsonOption, argument, command, option
from skep.cli.output import note, print_json, print_table
from skep.errors import UserError
from skep.paths import user_paths

if TYPE_CHECKING:
    from skep.catalog.presets import Preset, Published

presets_app = typer.Typer(
    invoke_without_command=True,
    help="List measured setups: their requirements, how to start them, and the author's figures.",
    epilog="Example: skep presets --json",
    rich_markup_mode=None,
)

_DROPPED = ("SOURCE", "MODEL", "HARDWARE", "ENGINE")  # from a list that a terminal is too narrow for, in this order
_KEY = 18  # columns, of a value's name

NameArgument = Annotated[str, argument("A preset's name as `skep presets` lists it.")]


def register(app: typer.Typer) -> None:
    app.add_typer(presets_app, name="presets")
    presets_app.callback()(list_presets)


def list_presets(context: typer.Context, as_json: JsonOption = False) -> None:
    """Recipes that somebody measured: what they want, how they are started, the figures their author got."""
    if context.invoked_subcommand is not None:
        return
    from skep.config.presets import read_presets, shipped_presets

    own = read_presets(_folder())
    known = sorted({**shipped_presets(), **own.presets}.values(), key=lambda found: found.name)
    if as_json:
        print_json([_row(found) for found in known])
    else:
        _print_list(known, _terminal())
    for error in own.broken:
        note(f"left out: {error.message}")


@command(presets_app, "skep presets show qwen3.6-27b-2x3090-replicas")
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Everything about one: what it wants, its flags, its figures, and what to run next."""
    from skep.config.presets import preset

    found = preset(name, _folder())
    if as_json:
        print_json(_document(found))
    else:
        _print_preset(found, _terminal())


@command(presets_app, "skep presets check ./my-27b.toml")
def check(
    file: Annotated[Path, argument("A preset file of your own, in any folder.")],
    as_json: JsonOption = False,
) -> None:
    """Say whether a file is a valid preset; where not, the first line that is wrong."""
    from skep.config.presets import read_preset

    found = read_preset(file)
    if as_json:
        print_json(_document(found))
        return
    print(f"{file} is a valid preset: {found.title}")  # noqa: T201
    folder = _folder()
    if file.resolve().parent != folder.resolve():
        note(f"put it into {folder} to use it as `{found.name}`")


@command(presets_app, "skep presets new my-27b --from qwen3.6-27b-2x3090-awq")
def new(
    name: Annotated[str, argument("Name of the new preset: lower-case letters, digits, dots and dashes.")],
    source: Annotated[str, option("The preset to copy.", "--from")],
) -> None:
    """Copy a preset into a file of your own, to be changed."""
    from skep.config.presets import check_name, find_preset, preset_text

    folder = _folder()
    text = preset_text(source, folder)
    path = folder / f"{check_name(name)}.toml"
    if name != source and not path.exists() and find_preset(name, folder) is not None:
        note(f"`{name}` is a shipped preset too: from now on yours is used instead")
    folder.mkdir(parents=True, exist_ok=True)
    head = f"# Begun as a copy of `{source}`. The figures are its author's: delete those that your changes make void.\n"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{head}\n{text}")
    except FileExistsError:
        hint = f"choose another name, or edit it and run `skep presets check {path}`"
        raise UserError(f"`{path}` is there already", hint=hint) from None
    print(path)  # noqa: T201
    note(f"edit it, then `skep presets check {path}` and `skep up {name}`")


def markdown_list(known: Sequence[Preset]) -> str:
    """Return the table in docs/presets.md, which a test holds against the files."""
    from skep.catalog.needs import figure_words

    lines = ["| preset | engine | hardware | published |", "|---|---|---|---|"]
    for found in known:
        figures = "; ".join(figure_words(figure) for figure in found.published) or "–"
        lines.append(f"| `{found.name}` | {found.engine} | {_hardware(found)} | {figures} |")
    return "\n".join(lines) + "\n"


def _folder() -> Path:
    from skep.config.presets import presets_folder

    return presets_folder(user_paths(os.environ))


def _row(found: Preset) -> dict[str, Any]:
    return {
        "name": found.name,
        "engine": found.engine,
        "model": found.model,
        "hardware": found.hardware,
        "published": [dataclasses.asdict(figure) for figure in found.published],
        "source": found.source,
    }


def _document(found: Preset) -> dict[str, Any]:
    from skep.config.presets import SHIPPED

    document = dataclasses.asdict(found)
    document["env"] = dict(found.env)
    document["options"] = {**found.options.given, "draft": document["options"]["draft"]}
    return {**document, "capacity": found.capacity, "own": found.origin != SHIPPED, "next": _next(found)}


def _print_list(known: Sequence[Preset], width: int | None = None) -> None:
    """`width`: of the terminal, which loses columns before it breaks lines; the name says most of what they do."""
    from skep.catalog.needs import best_figure, figure_words
    from skep.config.presets import SHIPPED

    rows = []
    for found in known:
        best = best_figure(found)
        name = found.name if found.origin == SHIPPED else f"{found.name} (own)"
        published = figure_words(best) if best else "–"
        rows.append([name, found.engine, found.model, _hardware(found), published, _short(found.source)])
    columns = ("NAME", "ENGINE", "MODEL", "HARDWARE", "BEST PUBLISHED", "SOURCE")
    kept = _fitting(columns, rows, width)
    print_table([columns[place] for place in kept], [[row[place] for place in kept] for row in rows])
    if len(kept) < len(columns):
        note("`skep presets show NAME` has the rest; a wider terminal has more columns")


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Places of the columns that fit side by side."""
    kept = list(range(len(columns)))
    wide = [max(len(column), *(len(row[place]) for row in rows), 0) for place, column in enumerate(columns)]
    for dropped in (columns.index(name) for name in _DROPPED):
        if width is None or sum(wide[place] + 2 for place in kept) - 2 <= width:
            break
        kept.remove(dropped)
    return kept


def _short(source: str) -> str:
    """Return a title without what stands behind it in brackets, after a colon or as an address."""
    title = source.partition(", http")[0].partition(" (")[0].partition(": ")[0]
    return title if len(title) <= 48 else f"{title[:47].rstrip()}…"


def _hardware(found: Preset) -> str:
    return f"{found.hardware}, {found.link}" if found.link else found.hardware


def _print_preset(found: Preset, width: int | None = None) -> None:
    """Text rather than tables: reasons and notes are sentences, which a table would break in the middle."""
    from skep.catalog.needs import stand_in_words
    from skep.config.presets import SHIPPED

    _say(f"{found.name}: {found.title}", width)
    for name, value in (*_wants(found), *_flags(found)):
        _say(f"{name:<{_KEY - 1}} {value}", width, deep=_KEY)
    if stand_in := stand_in_words(found):
        _say(f"\n{stand_in[:1].upper()}{stand_in[1:]}.", width)
    if found.needs:
        _say("\nIts figures rest on", width)
    for need in found.needs:
        _say(f"- {need.id} ({need.kind}): {need.what}: {need.why}", width, deep=2)
    _say("\nPublished" if found.published else "\nNo figures are published.", width)
    ids = [need.id for need in found.needs]
    for place, figure in enumerate(found.published, start=1):
        _say(f"{place}. {figure_line(figure, ids)}", width, deep=3)
    if found.notes:
        _say("\nNotes", width)
    for line in found.notes:
        _say(f"- {line}", width, deep=2)
    _say("\nNext", width)
    for line in _next(found):
        print(f"  {line}")  # noqa: T201
    if found.origin != SHIPPED:
        print(f"\nYour own, from {found.origin}")  # noqa: T201


def _say(text: str, width: int | None, *, deep: int = 0) -> None:
    """Broken between words where a terminal ends, the later lines `deep` columns in."""
    if width is None:
        print(text)  # noqa: T201
        return
    if text.startswith("\n"):
        print()  # noqa: T201
    for line in wrap(text.strip(), width, subsequent_indent=" " * deep, break_long_words=False, break_on_hyphens=False):
        print(line)  # noqa: T201


def _terminal() -> int | None:
    """Columns of the terminal that is written to; None: it is none, and no line is broken."""
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def _wants(found: Preset) -> list[list[str]]:
    named = " (the author names none: a stand-in)" if found.stand_in else ""
    version = f" {found.engine_version}" if found.engine_version else ", version not published"
    context = f"{found.context_tokens:,} tokens a slot" if found.context_tokens else "not published"
    rows = [
        ["hardware", _hardware(found)],
        ["engine", f"{found.engine}{version}"],
        ["model", found.model if found.served_as == found.model else f"{found.model}, served as {found.served_as}"],
        ["checkpoint", f"{found.checkpoint}{named}"],
        ["capacity", f"{found.capacity}: {_count(found.replicas, 'replica')} of {_count(found.slots, 'slot')}"],
        ["context", context],
    ]
    if found.container is not None:
        rows.append(["image", found.container.image])
        rows += [["mount", f"{mount.host} -> {mount.inside}"] for mount in found.container.mounts]
        rows += [["before", step] for step in found.container.before]
    published = f" ({found.date})" if found.date else ""
    return [*rows, ["source", f"{found.source}{published}"]]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _flags(found: Preset) -> list[list[str]]:
    rows = [[name, _shown(value)] for name, value in found.options.given.items()]
    told = {"gpus": found.gpus, "reserve": found.reserve, "threads": found.threads, "extra": found.extra}
    rows += [[name, _shown(value)] for name, value in told.items() if value]
    return [*rows, *(["env", f"{name}={value}"] for name, value in found.env)]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(str(part) for part in value) if isinstance(value, tuple) else str(value)


def figure_line(figure: Published, needs: Sequence[str] = ()) -> str:
    """One figure in words, with what it rests on where that is not all of the preset's `needs`.

    Of what is not published, lengths, clock and version are said not to be.
    """
    lengths = [f"{count:,} tokens {way}" for count, way in _lengths(figure) if count is not None]
    said = [
        f"{figure.tok_s:,g} tok/s {figure.metric} at C={figure.concurrency}",
        ", ".join(lengths) or "lengths not said",
        f"TTFT {figure.ttft_ms:,g} ms" if figure.ttft_ms is not None else "",
        f"TPOT {figure.tpot_ms:,g} ms" if figure.tpot_ms is not None else "",
        f"{figure.per_task_tok_s:,g} tok/s a task" if figure.per_task_tok_s is not None else "",
        f"the {figure.clock}'s clock" if figure.clock else "clock not said",
        f"version {figure.engine_version}" if figure.engine_version else "version not said",
        figure.runs or "",
        f"rests on {', '.join(figure.needs) or 'none of them'}" if set(figure.needs) != set(needs) else "",
        figure.note or "",
    ]
    return "; ".join(part for part in said if part)


def _lengths(figure: Published) -> tuple[tuple[int | None, str], ...]:
    return (figure.input_tokens, "in"), (figure.output_tokens, "out")


def _next(found: Preset) -> list[str]:
    commands = [f"skep up {found.name}", f"skep export {found.name} --as docker"]
    return [*commands, f"skep bench sweep --against-preset {found.name}"] if found.published else commands
