"""Cards and models of the catalogue for people: the lists, and one entry with the source of every value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import itemgetter
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from skep.catalog.gpus import Device, ValueOrigin
from skep.catalog.models import Checkpoint, Geometry, checkpoints_of, geometry
from skep.engines.install import EngineStatus
from skep.planner.candidates import as_published
from skep.planner.memory import weights_bits
from skep.planner.quants import QUANTS, parts_of
from skep.report.columns import Column, as_count, print_records
from skep.units import GIB, format_bytes, number

_SIZED = ("bf16", "fp8", "awq", "nvfp4", "q4_k_m", "q6_k", "q8_0")
_left = partial(Column, right=False)


def _billions(count: float) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 1e7 else f"{count / 1e6:,.2f} M"


DEVICES: tuple[Column[Device], ...] = (
    _left("id", "GPU", lambda card: card.id),
    _left("arch", "ARCH", lambda card: card.arch, rank=2),
    Column("memory_gib", "MEMORY GiB", lambda card: f"{card.memory_gib:g}"),
    Column("bandwidth_gbs", "GB/s", lambda card: card.bandwidth_gbs, as_count),
    Column("fp16_tflops", "FP16 TFLOPS", lambda card: card.fp16_tflops, partial(number, digits=1)),
    Column("compute_capability", "CC", lambda card: card.compute_capability, partial(number, digits=1), rank=4),
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
    Column("experts", "EXPERTS", lambda m: f"{m.experts_per_token} of {m.experts}" if m.is_moe else None, rank=1),
    Column("kv_bytes", "KV B/TOKEN", lambda model: model.kv_bytes_per_token(2), as_count, rank=1),
    Column("max_context", "CONTEXT", lambda model: model.max_context or None, as_count),
)
_VALUES: tuple[Column[tuple[str, Any, ValueOrigin | None]], ...] = (
    _left("value", "VALUE", lambda row: row[0]),
    Column("", "", lambda row: _shown(row[1])),
    _left("confidence", "SURE", lambda row: row[2] and row[2].confidence),
    _left("source", "SOURCE", lambda row: row[2] and row[2].source),
)


def loaded_gib(one: Checkpoint) -> float:
    """Return what its weights take of a card, without pictures and drafts, in the smallest of its formats."""
    model = geometry(one.model)
    made = (as_published(QUANTS[name], model, one.engines[0]) for name in one.formats)
    return min(weights_bits(model, quant, with_vision=False) for quant in made) / 8 / GIB


CHECKPOINTS: tuple[Column[Checkpoint], ...] = (
    _left("hub", "CHECKPOINT", lambda one: one.hub),
    _left("format", "FORMAT", lambda one: " ".join(QUANTS[name].title for name in one.formats)),
    _left("engines", "ENGINES", lambda one: " ".join(one.engines)),
    Column("gb", "GB", lambda one: one.disk_gb, partial(number, digits=1)),
    Column("loaded", "LOADED GiB", loaded_gib, partial(number, digits=1), rank=2),
    _left("has", "HAS", lambda one: " ".join(w for w in ("mtp", "vision", "gated") if getattr(one, w)), rank=1),
    _left("sure", "SURE", lambda one: one.origin.confidence, rank=1),
)


def print_device(found: Device) -> None:
    _print_values(f"{found.id}: {found.title}, {found.vendor}, {found.arch}", found)


def print_model(found: Geometry) -> None:
    guess = ", estimated from its parameter counts" if found.estimated else ""
    _print_values(f"{found.id}: {found.title}{guess}", found)
    _print_pairs("PART", "PARAMETERS", {p: _billions(n) for p, n in asdict(parts_of(found)).items() if n})
    kept = {"KV of a token, 16 bit": f"{found.kv_bytes_per_token(2):,.0f} B"}
    if found.sliding_layers:
        kept["KV of the full windows of a sequence"] = format_bytes(round(found.window_bytes(float("inf"), 2)))
    if found.linear_layers:
        kept["state of a sequence"] = format_bytes(round(found.state_bytes))
    _print_pairs("KEPT", "BYTES", kept)
    _print_pairs("WEIGHTS AS", "BYTES", {QUANTS[q].title: format_bytes(size) for q, size in _sizes(found).items()})
    if known := checkpoints_of(found.id):
        print()  # noqa: T201
        print_records(CHECKPOINTS, known)


def _print_pairs(title: str, value: str, pairs: Mapping[str, str]) -> None:
    print()  # noqa: T201
    columns: list[Column[Any]] = [_left("name", title, itemgetter(0)), Column("value", value, itemgetter(1))]
    print_records(columns, list(pairs.items()))


def _print_values(title: str, found: Device | Geometry) -> None:
    print(title)  # noqa: T201
    origins = found.origins
    print_records(_VALUES, [(k, v, origins.get(k) or origins.get("geometry")) for k, v in _values(found).items()])


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    return _billions(value) if isinstance(value, float) and value >= 1e6 else f"{value:,}"


def _values(found: Device | Geometry) -> dict[str, Any]:
    """Return what is known: no unknowns, no zeros that stand for `has none`."""
    skipped = ("id", "title", "vendor", "arch", "aliases", "origins")
    told = {field.name: getattr(found, field.name) for field in fields(found) if field.name not in skipped}
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
    """Return bytes of a checkpoint in each format, its vision tower included, without draft layers."""
    return {QUANTS[name].id: round(weights_bits(found, QUANTS[name]) / 8) for name in _SIZED}


def print_engines(found: Sequence[EngineStatus]) -> None:
    columns: list[Column[EngineStatus]] = [
        Column("engine", "ENGINE", lambda one: one.engine, right=False),
        Column("version", "VERSION", lambda one: one.version if one.path else "not installed", right=False),
        Column("where", "WHERE", lambda one: one.path or one.install, right=False),
        Column("by", "INSTALLED BY", lambda one: "skep" if one.own else "you" if one.path else None, right=False),
    ]
    print_records(columns, found)
