"""What skep knows, for people: cards and models with the source of every value, presets,
calibrations, engines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import asdict

from skep.catalog.gpus import Device, ValueOrigin
from skep.catalog.models import Checkpoint, Geometry, checkpoints_of
from skep.catalog.presets import Preset, Published, best_figure, figure_words, stand_in_words
from skep.config.presets import SHIPPED
from skep.engines.install import EngineStatus
from skep.planner.memory import weights_bits
from skep.planner.setup import QUANTS, parts_of
from skep.report.columns import Column, as_count, print_records
from skep.report.terminal import note
from skep.units import format_bytes, number

if TYPE_CHECKING:
    from skep.engines.install import EngineStatus
    from skep.planner.validation import Spread, ValidationReport
    from skep.store.records import CalibrationRecord

_SIZED = ("bf16", "fp8", "awq", "nvfp4", "q4_k_m", "q6_k", "q8_0")
_left = partial(Column, right=False)


def _billions(count: float) -> str:
    if count >= 1e7:
        return f"{count / 1e9:,.2f} B"
    return f"{count / 1e6:,.2f} M"


DEVICES: tuple[Column[Device], ...] = (
    _left("id", "GPU", lambda card: card.id),
    _left("arch", "ARCH", lambda card: card.arch, rank=2),
    Column("memory_gib", "MEMORY GiB", lambda card: f"{card.memory_gib:g}"),
    Column("bandwidth_gbs", "GB/s", lambda card: card.bandwidth_gbs, as_count),
    Column("fp16_tflops", "FP16 TFLOPS", lambda card: card.fp16_tflops, partial(number, digits=1)),
    Column(
        "compute_capability",
        "CC",
        lambda card: card.compute_capability,
        partial(number, digits=1),
        rank=4,
    ),
    _left("formats", "FORMATS", lambda card: " ".join(card.formats), rank=1),
    Column("nvlink_gbs", "NVLINK GB/s", lambda card: card.nvlink_gbs, as_count, rank=3),
    Column("tdp_w", "WATT", lambda card: card.tdp_w, as_count, rank=3),
)
MODELS: tuple[Column[Geometry], ...] = (
    _left("id", "MODEL", lambda model: model.id),
    Column("params_total", "PARAMETERS", lambda model: model.params_total, _billions),
    Column("params_active", "ACTIVE", lambda model: model.params_active, _billions),
    Column("layers", "LAYERS", lambda model: model.layers, rank=2),
    Column("full_layers", "FULL", lambda model: model.full_layers, rank=3),
    Column("sliding_layers", "SLIDING", lambda model: model.sliding_layers or None, rank=3),
    Column("linear_layers", "LINEAR", lambda model: model.linear_layers or None, rank=3),
    Column(
        "experts",
        "EXPERTS",
        lambda m: f"{m.experts_per_token} of {m.experts}" if m.is_moe else None,
        rank=1,
    ),
    Column("kv_bytes", "KV B/TOKEN", lambda model: model.kv_bytes_per_token(2), as_count, rank=1),
    Column("max_context", "CONTEXT", lambda model: model.max_context or None, as_count),
)
_VALUES: tuple[Column[tuple[str, Any, ValueOrigin | None]], ...] = (
    _left("value", "VALUE", lambda row: row[0]),
    Column("", "", lambda row: _shown(row[1])),
    _left("confidence", "SURE", lambda row: row[2] and row[2].confidence),
    _left("source", "SOURCE", lambda row: row[2] and row[2].source),
)


CHECKPOINTS: tuple[Column[Checkpoint], ...] = (
    _left("hub", "CHECKPOINT", lambda one: one.hub),
    _left("format", "FORMAT", lambda one: " ".join(QUANTS[name].title for name in one.formats)),
    _left("engines", "ENGINES", lambda one: " ".join(one.engines)),
    Column("gb", "GB", lambda one: one.disk_gb, partial(number, digits=1)),
    _left(
        "has",
        "HAS",
        lambda one: " ".join(w for w in ("mtp", "vision", "gated") if getattr(one, w)),
        rank=1,
    ),
    _left("sure", "SURE", lambda one: one.origin.confidence, rank=1),
)


def print_device(found: Device) -> None:
    _print_values(f"{found.id}: {found.title}, {found.vendor}, {found.arch}", found)


def print_model(found: Geometry) -> None:
    if found.estimated:
        guess = ", estimated from its parameter counts"
    else:
        guess = ""
    _print_values(f"{found.id}: {found.title}{guess}", found)
    kept = {"KV of a token, 16 bit": f"{found.kv_bytes_per_token(2):,.0f} B"}
    if found.sliding_layers:
        kept["KV of the full windows of a sequence"] = format_bytes(
            round(found.window_bytes(float("inf"), 2))
        )
    if found.linear_layers:
        kept["state of a sequence"] = format_bytes(round(found.state_bytes))
    kept |= {
        f"weights as {QUANTS[q].title}": format_bytes(size) for q, size in _sizes(found).items()
    }
    print()  # noqa: T201
    columns: list[Column[Any]] = [
        _left("kept", "KEPT", itemgetter(0)),
        Column("bytes", "BYTES", itemgetter(1)),
    ]
    print_records(columns, list(kept.items()))
    if checkpoints := checkpoints_of(found.id):
        print()  # noqa: T201
        print_records(CHECKPOINTS, checkpoints)


def _print_values(title: str, found: Device | Geometry) -> None:
    print(title)  # noqa: T201
    origins = found.origins
    print_records(
        _VALUES,
        [(k, v, origins.get(k) or origins.get("geometry")) for k, v in _values(found).items()],
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, bool | str):
        if isinstance(value, bool):
            return str(value).lower()
        return value
    if isinstance(value, float) and value >= 1e6:
        return _billions(value)
    return f"{value:,}"


def _values(found: Device | Geometry) -> dict[str, Any]:
    """Return what is known: no unknowns, no zeros that stand for `has none`."""
    skipped = ("id", "title", "vendor", "arch", "aliases", "origins")
    told = {
        field.name: getattr(found, field.name)
        for field in fields(found)
        if field.name not in skipped
    }
    return {name: value for name, value in told.items() if value not in (None, 0, (), False)}


def device_document(found: Device) -> dict[str, Any]:
    head = {"id": found.id, "title": found.title, "vendor": found.vendor, "arch": found.arch}
    return {**head, **_values(found), "origins": to_builtins(dict(found.origins))}


def model_document(found: Geometry) -> dict[str, Any]:
    return {
        "id": found.id,
        "title": found.title,
        "aliases": found.aliases,
        **_values(found),
        "checkpoints": to_builtins(checkpoints_of(found.id)),
        "parts": asdict(parts_of(found)),
        "kv_bytes_per_token": found.kv_bytes_per_token(2),
        "window_bytes": found.window_bytes(float("inf"), 2) if found.sliding_layers else 0,
        "state_bytes": found.state_bytes,
        "weights_bytes": _sizes(found),
        "origins": to_builtins(dict(found.origins)),
    }


def _sizes(found: Geometry) -> dict[str, int]:
    """Return bytes of a checkpoint in each format, its vision tower included, without draft
    layers.
    """
    return {QUANTS[name].id: round(weights_bits(found, QUANTS[name]) / 8) for name in _SIZED}


def print_engines(found: Sequence[EngineStatus]) -> None:
    columns: list[Column[EngineStatus]] = [
        Column("engine", "ENGINE", lambda one: one.engine, right=False),
        Column(
            "version",
            "VERSION",
            lambda one: one.version if one.path else "not installed",
            right=False,
        ),
        Column("where", "WHERE", lambda one: one.path or one.install, right=False),
        Column(
            "by",
            "INSTALLED BY",
            lambda one: "skep" if one.own else "you" if one.path else None,
            right=False,
        ),
    ]
    print_records(columns, found)


def _hardware(found: Preset) -> str:
    if found.link:
        return f"{found.hardware}, {found.link}"
    return found.hardware


def _short(source: str) -> str:
    """Return a title without what stands behind it in brackets, after a colon or as an address."""
    title = source.partition(", http")[0].partition(" (")[0].partition(": ")[0]
    if len(title) <= 48:
        return title
    return f"{title[:47].rstrip()}…"


def _best_words(found: Preset) -> str | None:
    best = best_figure(found)
    if best is not None:
        return figure_words(best)
    return "does not start" if found.broken else None


LIST: tuple[Column[Preset], ...] = (
    Column(
        "name", "NAME", lambda p: p.name if p.origin == SHIPPED else f"{p.name} (own)", right=False
    ),
    Column("engine", "ENGINE", lambda found: found.engine, rank=1, right=False),
    Column("model", "MODEL", lambda found: found.model, rank=3, right=False),
    Column("hardware", "HARDWARE", _hardware, rank=2, right=False),
    Column("best", "BEST PUBLISHED", _best_words, right=False),
    Column("source", "SOURCE", lambda found: _short(found.source), rank=4, right=False),
)
# Of the table in docs/presets.md, which a test holds against the files
IN_DOCS: tuple[Column[Preset], ...] = (
    Column("preset", "preset", lambda found: f"`{found.name}`", right=False),
    Column("best", "best published", _best_words, right=False),
)


def preset_row(found: Preset) -> dict[str, Any]:
    document = to_builtins(found)
    return {
        key: document[key]
        for key in ("name", "engine", "model", "hardware", "published", "source")
    }


def preset_document(found: Preset) -> dict[str, Any]:
    document = to_builtins(found)
    document["env"] = dict(found.env)
    document["options"] = {**found.options.given, "draft": document["options"]["draft"]}
    return {
        **document,
        "capacity": found.capacity,
        "own": found.origin != SHIPPED,
        "next": _next(found),
    }


def preset_text(found: Preset) -> str:
    """Return a preset in words."""
    from skep.report.page import render_text

    told = {
        "gpus": found.gpus,
        "reserve": found.reserve,
        "threads": found.threads,
        "extra": found.extra,
    }
    given = {**found.options.given, **{name: value for name, value in told.items() if value}}
    return render_text(
        "preset.txt",
        preset=found,
        hardware=_hardware,
        settings=[(name, _setting(value)) for name, value in given.items()],
        stand_in=stand_in_words(found),
        figure_line=partial(_figure_line, needs=[need.id for need in found.needs]),
        next=_next(found),
        shipped=SHIPPED,
    )


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(str(part) for part in value)
    return str(value)


def _figure_line(figure: Published, needs: Sequence[str]) -> str:
    """One figure in words, with what it rests on where that is not all of the preset's `needs`."""
    counts = ((figure.input_tokens, "in"), (figure.output_tokens, "out"))
    said = [
        f"{figure.tok_s:,g} tok/s {figure.metric} at C={figure.concurrency}",
        ", ".join(f"{count:,} tokens {way}" for count, way in counts if count is not None)
        or "lengths not said",
        f"TTFT {figure.ttft_ms:,g} ms" if figure.ttft_ms is not None else "",
        f"TPOT {figure.tpot_ms:,g} ms" if figure.tpot_ms is not None else "",
        f"{figure.per_task_tok_s:,g} tok/s a task" if figure.per_task_tok_s is not None else "",
        f"the {figure.clock}'s clock" if figure.clock else "clock not said",
        f"version {figure.engine_version}" if figure.engine_version else "version not said",
        figure.runs or "",
        f"rests on {', '.join(figure.needs) or 'none of them'}"
        if set(figure.needs) != set(needs)
        else "",
        figure.note or "",
    ]
    return "; ".join(part for part in said if part)


def _next(found: Preset) -> list[str]:
    commands = [f"skep up {found.name}"]
    commands += [f"skep export {found.name} --as docker"] if found.engine != "ollama" else []
    commands += [f"skep check {found.name}"] if found.published else []
    repeat = _repeating_sweep(found)
    return [*commands, repeat] if repeat else commands


def _repeating_sweep(found: Preset) -> str | None:
    """Return the sweep that repeats the published figures,
    of the lengths that most of them have.
    """
    lengths = [(figure.input_tokens, figure.output_tokens) for figure in found.published]
    known = Counter(pair for pair in lengths if None not in pair).most_common(1)
    if not known:
        return None
    of_them = zip(found.published, lengths, strict=True)
    levels = ",".join(
        map(str, sorted({figure.concurrency for figure, pair in of_them if pair == known[0][0]}))
    )
    prompt, answer = known[0][0]
    return (
        f"skep bench sweep -c {levels} --prompt-tokens {prompt} --output-tokens {answer} "
        "--fixed-output"
    )


def print_calibration(row: CalibrationRecord) -> None:
    from skep.deploy.stored_calibration import fitted_now, levels_json, measured_of

    fitted = fitted_now(row)
    print(f"{row.model} {row.quant}, {row.layout} on {row.rig}, {row.engine}: {fitted}")  # noqa: T201

    columns: list[Column[dict[str, Any]]] = [
        Column("concurrency", "C", itemgetter("concurrency")),
        Column("runs", "RUNS", itemgetter("runs")),
        Column(
            "measured",
            "tok/s EACH",
            lambda level: f"{level['task_tok_s']:.1f} ± {level['spread']:.1%}",
        ),
        Column("before", "BEFORE", itemgetter("predicted_before"), partial(number, digits=1)),
        Column("after", "AFTER", itemgetter("predicted_after"), partial(number, digits=1)),
        Column(
            "off",
            "OFF",
            lambda level: f"{level['predicted_after'] / level['task_tok_s'] - 1:+.1%}",
        ),
        Column("fitted", "FITTED", itemgetter("fitted")),
    ]
    print_records(columns, levels_json(row, fitted))
    if (prompts := measured_of(row.document).prompts) is None:
        return
    spread = 100 * prompts.ttft_s.half_width
    print(  # noqa: T201
        f"first token of {prompts.input_tokens:.0f} tokens: "
        f"{1000 * prompts.ttft_s.estimate:.0f} ms ± {spread:.0f} %"
    )


def print_validation(report: ValidationReport, name: str) -> None:
    note(f"{name}: {len(report.points)} of {report.rows} rows predicted")
    groups = {
        **report.spreads(),
        **{f"source {name}": spread for name, spread in report.by_source().items()},
    }
    columns: list[Column[tuple[str, Spread]]] = [
        Column("group", "ROWS OF", lambda pair: pair[0], right=False),
        Column("rows", "N", lambda pair: pair[1].rows),
        Column("median_ape", "MEDIAN |ERROR|", lambda pair: pair[1].median_ape, "{:.1%}".format),
        Column("p90_ape", "P90 |ERROR|", lambda pair: pair[1].p90_ape, "{:.1%}".format),
    ]
    print_records(columns, list(groups.items()))
    if report.covered is not None:
        note(f"the 80 % band holds {report.covered:.0%} of the rows")
    missing = defaultdict[str, list[int]](list)
    for row, why in report.unpredicted:
        missing[why.split(":")[0]].append(row)
    for fact, without in sorted(missing.items(), key=lambda found: -len(found[1])):
        note(f"not predicted, {fact}: {len(without)} {'row' if len(without) == 1 else 'rows'}")
