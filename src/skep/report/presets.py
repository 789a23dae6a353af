"""Presets for people: the list, one preset in words, and the table of docs/presets.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

import msgspec

from skep.catalog.presets import Preset, Published, best_figure, figure_words, stand_in_words
from skep.config.presets import SHIPPED
from skep.report.columns import Column

_KEY = 18  # columns, of a value's name


def _hardware(found: Preset) -> str:
    return f"{found.hardware}, {found.link}" if found.link else found.hardware


def _short(source: str) -> str:
    """Return a title without what stands behind it in brackets, after a colon or as an address."""
    title = source.partition(", http")[0].partition(" (")[0].partition(": ")[0]
    return title if len(title) <= 48 else f"{title[:47].rstrip()}…"


LIST: tuple[Column[Preset], ...] = (
    Column("name", "NAME", lambda p: p.name if p.origin == SHIPPED else f"{p.name} (own)", right=False),
    Column("engine", "ENGINE", lambda found: found.engine, rank=1, right=False),
    Column("model", "MODEL", lambda found: found.model, rank=3, right=False),
    Column("hardware", "HARDWARE", _hardware, rank=2, right=False),
    Column("best", "BEST PUBLISHED", best_figure, figure_words, right=False),
    Column("source", "SOURCE", lambda found: _short(found.source), rank=4, right=False),
)
# Of the table in docs/presets.md, which a test holds against the files
IN_DOCS: tuple[Column[Preset], ...] = (
    Column("preset", "preset", lambda found: f"`{found.name}`", right=False),
    Column("best", "best published", best_figure, figure_words, right=False),
)


def preset_row(found: Preset) -> dict[str, Any]:
    document = msgspec.to_builtins(found)
    return {key: document[key] for key in ("name", "engine", "model", "hardware", "published", "source")}


def preset_document(found: Preset) -> dict[str, Any]:
    document = msgspec.to_builtins(found)
    document["env"] = dict(found.env)
    document["options"] = {**found.options.given, "draft": document["options"]["draft"]}
    return {**document, "capacity": found.capacity, "own": found.origin != SHIPPED, "next": _next(found)}


def preset_text(found: Preset, width: int | None = None) -> str:
    """Return a preset in words, its lines broken where the terminal ends; None: nowhere."""
    lines = []
    for text, deep in _paragraphs(found):
        if width is None or text.startswith("  "):
            lines.append(text)
            continue
        lines += [""] if text.startswith("\n") else []
        lines += wrap(text.strip(), width, subsequent_indent=" " * deep, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _paragraphs(found: Preset) -> Iterator[tuple[str, int]]:
    """Yield each with how far its later lines are indented."""
    yield f"{found.name}: {found.title}", 0
    for name, value in (*_wants(found), *_flags(found)):
        yield f"{name:<{_KEY - 1}} {value}", _KEY
    if stand_in := stand_in_words(found):
        yield f"\n{stand_in[:1].upper()}{stand_in[1:]}.", 0
    if found.needs:
        yield "\nIts figures rest on", 0
    for need in found.needs:
        yield f"- {need.id} ({need.kind}): {need.what}: {need.why}", 2
    yield "\nPublished" if found.published else "\nNo figures are published.", 0
    ids = [need.id for need in found.needs]
    for place, figure in enumerate(found.published, start=1):
        yield f"{place}. {_figure_line(figure, ids)}", 3
    if found.notes:
        yield "\nNotes", 0
    for line in found.notes:
        yield f"- {line}", 2
    yield "\nNext", 0
    for line in _next(found):
        yield f"  {line}", 0
    if found.origin != SHIPPED:
        yield f"\nYour own, from {found.origin}", 0


def _wants(found: Preset) -> list[list[str]]:
    named = " (chosen by skep: the author names none)" if found.stand_in else ""
    version = f" {found.engine_version}" if found.engine_version else ", version not published"
    rows = [
        ["hardware", _hardware(found)],
        ["engine", f"{found.engine}{version}"],
        ["model", found.model if found.served_as == found.model else f"{found.model}, served as {found.served_as}"],
        ["checkpoint", f"{found.checkpoint}{named}"],
        ["capacity", f"{found.capacity}: {_count(found.replicas, 'replica')} of {_count(found.slots, 'slot')}"],
        ["context", f"{found.context_tokens:,} tokens a slot" if found.context_tokens else "not published"],
    ]
    if found.container is not None:
        rows.append(["image", found.container.image])
        rows += [["mount", f"{mount.host} -> {mount.inside}"] for mount in found.container.mounts]
        rows += [["before", step] for step in found.container.before]
    return [*rows, ["source", f"{found.source} ({found.date})" if found.date else found.source]]


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


def _figure_line(figure: Published, needs: Sequence[str]) -> str:
    """One figure in words, with what it rests on where that is not all of the preset's `needs`."""
    counts = ((figure.input_tokens, "in"), (figure.output_tokens, "out"))
    said = [
        f"{figure.tok_s:,g} tok/s {figure.metric} at C={figure.concurrency}",
        ", ".join(f"{count:,} tokens {way}" for count, way in counts if count is not None) or "lengths not said",
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


def _next(found: Preset) -> list[str]:
    commands = [f"skep up {found.name}", f"skep export {found.name} --as docker"]
    return [*commands, f"skep bench sweep --against-preset {found.name}"] if found.published else commands
