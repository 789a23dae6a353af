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

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device, ValueOrigin
from skep.catalog.models import Checkpoint, Geometry, checkpoints_of
from skep.catalog.presets import Preset, Published, best_figure, figure_words, stand_in_words
from skep.config.presets import SHIPPED
from skep.engines.install import EngineStatus
from skep.planner.memory import weights_bits
from skep.planner.setup import QUANTS, parts_of
from skep.report.columns import Column, as_count, plural, print_records
from skep.report.terminal import note
from skep.units import format_bytes, number

if TYPE_CHECKING:
    from skep.engines.install import EngineStatus
    from skep.planner.validation import Spread, ValidationReport
    from skep.store.records import CalibrationRecord

_SIZED = ("bf16", "fp8", "awq", "nvfp4", "q4_k_m", "q6_k", "q8_0")
_text_column = partial(Column, right=False)


def _billions(count: float) -> str:
    if count >= 1e7:
        return f"{count / 1e9:,.2f} B"
    return f"{count / 1e6:,.2f} M"


DEVICES: tuple[Column[Device], ...] = (
    _text_column("id", "GPU", lambda card: card.id),
    _text_column("arch", "ARCH", lambda card: card.arch, rank=2),
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
    _text_column("formats", "FORMATS", lambda card: " ".join(card.formats), rank=1),
    Column("nvlink_gbs", "NVLINK GB/s", lambda card: card.nvlink_gbs, as_count, rank=3),
    Column("tdp_w", "WATT", lambda card: card.tdp_w, as_count, rank=3),
)
MODELS: tuple[Column[Geometry], ...] = (
    _text_column("id", "MODEL", lambda model: model.id),
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
    _text_column("value", "VALUE", lambda row: row[0]),
    Column("", "", lambda row: _value_text(row[1])),
    _text_column("confidence", "SURE", lambda row: row[2] and row[2].confidence),
    _text_column("source", "SOURCE", lambda row: row[2] and row[2].source),
)


CHECKPOINTS: tuple[Column[Checkpoint], ...] = (
    _text_column("hub", "CHECKPOINT", lambda checkpoint: checkpoint.hub),
    _text_column(
        "format",
        "FORMAT",
        lambda checkpoint: " ".join(QUANTS[name].title for name in checkpoint.formats),
    ),
    _text_column("engines", "ENGINES", lambda checkpoint: " ".join(checkpoint.engines)),
    Column("gb", "GB", lambda checkpoint: checkpoint.disk_gb, partial(number, digits=1)),
    _text_column(
        "has",
        "HAS",
        lambda checkpoint: " ".join(
            w for w in ("mtp", "vision", "gated") if getattr(checkpoint, w)
        ),
        rank=1,
    ),
    _text_column("sure", "SURE", lambda checkpoint: checkpoint.origin.confidence, rank=1),
)


def print_device(card: Device) -> None:
    _print_values(f"{card.id}: {card.title}, {card.vendor}, {card.arch}", card)


def print_model(model: Geometry) -> None:
    if model.estimated:
        guess = ", estimated from its parameter counts"
    else:
        guess = ""
    _print_values(f"{model.id}: {model.title}{guess}", model)
    sizes = {"KV of a token, 16 bit": f"{model.kv_bytes_per_token(2):,.0f} B"}
    if model.sliding_layers:
        sizes["KV of the full windows of a sequence"] = format_bytes(
            round(model.window_bytes(float("inf"), 2))
        )
    if model.linear_layers:
        sizes["state of a sequence"] = format_bytes(round(model.state_bytes))
    sizes |= {
        f"weights as {QUANTS[q].title}": format_bytes(size) for q, size in _sizes(model).items()
    }
    print()  # noqa: T201
    columns: list[Column[Any]] = [
        _text_column("kept", "KEPT", itemgetter(0)),
        Column("bytes", "BYTES", itemgetter(1)),
    ]
    print_records(columns, list(sizes.items()))
    if checkpoints := checkpoints_of(model.id):
        print()  # noqa: T201
        print_records(CHECKPOINTS, checkpoints)


def _print_values(title: str, entry: Device | Geometry) -> None:
    print(title)  # noqa: T201
    origins = entry.origins
    rows = [
        (name, value, origins.get(name) or origins.get("geometry"))
        for name, value in _values(entry).items()
    ]
    print_records(_VALUES, rows)


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value >= 1e6:
        return _billions(value)
    return f"{value:,}"


def _values(entry: Device | Geometry) -> dict[str, Any]:
    """Return what is known: no unknowns, no zeros that stand for `has none`."""
    skipped = ("id", "title", "vendor", "arch", "aliases", "origins")
    values = {
        field.name: getattr(entry, field.name)
        for field in fields(entry)
        if field.name not in skipped
    }
    return {name: value for name, value in values.items() if value not in (None, 0, (), False)}


def device_document(card: Device) -> dict[str, Any]:
    head = {"id": card.id, "title": card.title, "vendor": card.vendor, "arch": card.arch}
    return {**head, **_values(card), "origins": to_builtins(dict(card.origins))}


def model_document(model: Geometry) -> dict[str, Any]:
    return {
        "id": model.id,
        "title": model.title,
        "aliases": model.aliases,
        **_values(model),
        "checkpoints": to_builtins(checkpoints_of(model.id)),
        "parts": asdict(parts_of(model)),
        "kv_bytes_per_token": model.kv_bytes_per_token(2),
        "window_bytes": model.window_bytes(float("inf"), 2) if model.sliding_layers else 0,
        "state_bytes": model.state_bytes,
        "weights_bytes": _sizes(model),
        "origins": to_builtins(dict(model.origins)),
    }


def _sizes(model: Geometry) -> dict[str, int]:
    """Return bytes of a checkpoint in each format, its vision tower included, without draft
    layers.
    """
    return {QUANTS[name].id: round(weights_bits(model, QUANTS[name]) / 8) for name in _SIZED}


def _installed_by(engine: EngineStatus) -> str | None:
    if engine.own:
        return "skep"
    if engine.path:
        return "you"
    return None


def print_engines(engines: Sequence[EngineStatus]) -> None:
    columns: list[Column[EngineStatus]] = [
        Column("engine", "ENGINE", lambda engine: engine.engine, right=False),
        Column(
            "version",
            "VERSION",
            lambda engine: engine.version if engine.path else "not installed",
            right=False,
        ),
        Column("where", "WHERE", lambda engine: engine.path or engine.install, right=False),
        Column("by", "INSTALLED BY", _installed_by, right=False),
    ]
    print_records(columns, engines)


def _hardware(preset: Preset) -> str:
    if preset.link:
        return f"{preset.hardware}, {preset.link}"
    return preset.hardware


def _short(source: str) -> str:
    """Return a title without what stands behind it in brackets, after a colon or as an address."""
    title = source.partition(", http")[0].partition(" (")[0].partition(": ")[0]
    if len(title) <= 48:
        return title
    return f"{title[:47].rstrip()}…"


def _best_words(preset: Preset) -> str | None:
    best = best_figure(preset)
    if best is not None:
        return figure_words(best)
    if preset.broken:
        return "does not start"
    return None


PRESET_COLUMNS: tuple[Column[Preset], ...] = (
    Column(
        "name", "NAME", lambda p: p.name if p.origin == SHIPPED else f"{p.name} (own)", right=False
    ),
    Column("engine", "ENGINE", lambda preset: preset.engine, rank=1, right=False),
    Column("model", "MODEL", lambda preset: preset.model, rank=3, right=False),
    Column("hardware", "HARDWARE", _hardware, rank=2, right=False),
    Column("best", "BEST PUBLISHED", _best_words, right=False),
    Column("source", "SOURCE", lambda preset: _short(preset.source), rank=4, right=False),
)
# Of the table in docs/presets.md, which a test holds against the files
IN_DOCS: tuple[Column[Preset], ...] = (
    Column("preset", "preset", lambda preset: f"`{preset.name}`", right=False),
    Column("best", "best published", _best_words, right=False),
)


def preset_row(preset: Preset) -> dict[str, Any]:
    document = to_builtins(preset)
    return {
        key: document[key]
        for key in ("name", "engine", "model", "hardware", "published", "source")
    }


def preset_document(preset: Preset) -> dict[str, Any]:
    document = to_builtins(preset)
    document["env"] = dict(preset.env)
    document["options"] = {**preset.options.given, "draft": document["options"]["draft"]}
    return {
        **document,
        "capacity": preset.capacity,
        "own": preset.origin != SHIPPED,
        "next": _next(preset),
    }


def preset_text(preset: Preset) -> str:
    """Return a preset in words."""
    from skep.report.page import render_text

    settings = {
        "gpus": preset.gpus,
        "reserve": preset.reserve,
        "threads": preset.threads,
        "extra": preset.extra,
    }
    given = {**preset.options.given, **{name: value for name, value in settings.items() if value}}
    return render_text(
        "preset.txt",
        preset=preset,
        hardware=_hardware,
        settings=[(name, _setting(value)) for name, value in given.items()],
        stand_in=stand_in_words(preset),
        figure_line=partial(_figure_line, needs=[need.id for need in preset.needs]),
        next=_next(preset),
        shipped=SHIPPED,
    )


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(str(part) for part in value)
    return str(value)


def _figure_line(figure: Published, needs: Sequence[str]) -> str:
    """Return one figure in words, with what it rests on where that is not all of the preset's
    `needs`.
    """
    counts = ((figure.input_tokens, "in"), (figure.output_tokens, "out"))
    lengths = ", ".join(f"{count:,} tokens {way}" for count, way in counts if count is not None)
    parts = [
        f"{figure.tok_s:,g} tok/s {figure.metric} at C={figure.concurrency}",
        lengths or "lengths not said",
    ]
    if figure.ttft_ms is not None:
        parts.append(f"TTFT {figure.ttft_ms:,g} ms")
    if figure.tpot_ms is not None:
        parts.append(f"TPOT {figure.tpot_ms:,g} ms")
    if figure.per_task_tok_s is not None:
        parts.append(f"{figure.per_task_tok_s:,g} tok/s a task")
    parts.append(f"the {figure.clock}'s clock" if figure.clock else "clock not said")
    version = figure.engine_version
    parts.append(f"version {version}" if version else "version not said")
    if figure.runs:
        parts.append(figure.runs)
    if set(figure.needs) != set(needs):
        parts.append(f"rests on {', '.join(figure.needs) or 'none of them'}")
    if figure.note:
        parts.append(figure.note)
    return "; ".join(parts)


def _next(preset: Preset) -> list[str]:
    """Return the commands that one may want next."""
    commands = [f"skep up {preset.name}"]
    if kind_of(preset.engine).weights != "store":
        commands.append(f"skep export {preset.name} --as docker")
    if preset.published:
        commands.append(f"skep check {preset.name}")
    repeat = _repeating_sweep(preset)
    if repeat:
        commands.append(repeat)
    return commands


def _repeating_sweep(preset: Preset) -> str | None:
    """Return the sweep that repeats the published figures, of the lengths that most of them
    have.
    """
    counts: Counter[tuple[int, int]] = Counter()
    levels: dict[tuple[int, int], set[int]] = {}
    for figure in preset.published:
        if figure.input_tokens is not None and figure.output_tokens is not None:
            lengths = (figure.input_tokens, figure.output_tokens)
            counts[lengths] += 1
            levels.setdefault(lengths, set()).add(figure.concurrency)
    if not counts:
        return None
    ((usual, _),) = counts.most_common(1)
    prompt, answer = usual
    concurrency = ",".join(map(str, sorted(levels[usual])))
    return (
        f"skep bench sweep -c {concurrency} --prompt-tokens {prompt} --output-tokens {answer} "
        "--fixed-output"
    )


def print_calibration(row: CalibrationRecord) -> None:
    from skep.deploy.stored_calibration import fitted_now, levels_json, measured_of

    fitted = fitted_now(row)
    title = f"{row.model} {row.quant}, {row.layout} on {row.rig}, {row.engine}"
    print(f"{title}: {fitted}")  # noqa: T201

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
    for fact, rows in sorted(missing.items(), key=lambda entry: -len(entry[1])):
        note(f"not predicted, {fact}: {plural(len(rows), 'row')}")
