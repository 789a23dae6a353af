"""Commands on what is known by name: catalog gpus, catalog models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from skep.cli.options import JsonOption, argument, command, group, registering
from skep.cli.output import number, print_json, print_table
from skep.units import format_bytes

if TYPE_CHECKING:
    from skep.catalog.gpus import Device, ValueOrigin
    from skep.catalog.models import Geometry

catalog_app = group("Show the known GPUs and models, with the source and the certainty of each value.")
register = registering(catalog_app, "catalog")
_SIZED = ("bf16", "fp8", "awq", "nvfp4", "q4_k_m", "q6_k", "q8_0")


@command(catalog_app, "skep catalog gpus rtx-3090")
def gpus(
    name: Annotated[str | None, argument("Show one GPU, with the source of every value.")] = None,
    as_json: JsonOption = False,
) -> None:
    """The GPUs that plans can name: memory, bandwidth, tensor throughput, formats, links."""
    from skep.catalog.gpus import device, devices

    if name is not None:
        found = device(name)
        title = f"{found.id}: {found.title}, {found.vendor}, {found.arch}"
        print_json(_device_document(found)) if as_json else _print_values(title, _values(found), found.origins)
    elif as_json:
        print_json([_device_document(known) for known in devices().values()])
    else:
        _print_devices(list(devices().values()))


@command(catalog_app, "skep catalog models qwen3.6-27b --json")
def models(
    name: Annotated[str | None, argument("Show every value of one model, of a config.json or of a GGUF file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """The models that plans can name: layers by kind, experts, KV bytes a token, sizes by quantization."""
    from skep.catalog.models import geometries

    if name is not None:
        found = _geometry(name)
        print_json(_model_document(found)) if as_json else _print_model(found)
    elif as_json:
        print_json([_model_document(known) for known in geometries().values()])
    else:
        _print_models(list(geometries().values()))


def _geometry(name: str) -> Geometry:
    """A path wins only where it looks like one: `qwen3-8b` is a name even beside a folder of that name."""
    from skep.catalog.models import geometry

    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        from skep.weights.gguf import read_header
        from skep.weights.gguf_geometry import geometry_of

        return geometry_of(read_header(path))
    if path.suffix == ".json" or name.startswith((".", "/", "~")):
        from skep.weights.config_json import read_config

        return read_config(path)
    return geometry(name)


def _print_devices(known: list[Device]) -> None:
    rows = [
        [
            found.id, found.arch, f"{found.memory_gib:g}", number(found.bandwidth_gbs, 0), number(found.fp16_tflops),
            number(found.compute_capability), " ".join(found.formats), number(found.nvlink_gbs, 0),
            number(found.tdp_w, 0),
        ]
        for found in known
    ]  # fmt: skip
    print_table("GPU|ARCH|>MEMORY GiB|>GB/s|>FP16 TFLOPS|>CC|FORMATS|>NVLINK GB/s|>WATT", rows)


def _print_models(known: list[Geometry]) -> None:
    rows = [
        [
            found.id, _billions(found.params_total), _billions(found.params_active), str(found.layers),
            str(found.full_layers), str(found.sliding_layers or "–"), str(found.linear_layers or "–"),
            f"{found.experts_per_token} of {found.experts}" if found.is_moe else "–",
            f"{found.kv_bytes_per_token(2):,.0f}", f"{found.max_context:,}" if found.max_context else "–",
        ]
        for found in known
    ]  # fmt: skip
    columns = "MODEL|>PARAMETERS|>ACTIVE|>LAYERS|>FULL|>SLIDING|>LINEAR|>EXPERTS|>KV B/TOKEN|>CONTEXT"
    print_table(columns, rows)


def _print_model(found: Geometry) -> None:
    guess = ", estimated from its parameter counts" if found.estimated else ""
    _print_values(f"{found.id}: {found.title}{guess}", _values(found), found.origins)
    print()  # noqa: T201
    parts = [[part, _billions(count)] for part, count in _parts(found).items() if count]
    print_table("PART|>PARAMETERS", parts)
    print()  # noqa: T201
    kept = [["KV of a token, 16 bit", f"{found.kv_bytes_per_token(2):,.0f} B"]]
    if found.sliding_layers:
        kept.append(["KV of the full windows of a sequence", format_bytes(round(found.window_bytes(float("inf"), 2)))])
    if found.linear_layers:
        kept.append(["state of a sequence", format_bytes(round(found.state_bytes))])
    print_table("KEPT|>BYTES", kept)
    print()  # noqa: T201
    sizes = [[title, format_bytes(round(size))] for title, size in _sizes(found).values()]
    print_table("WEIGHTS AS|>BYTES", sizes)


def _print_values(title: str, values: Mapping[str, Any], origins: Mapping[str, ValueOrigin]) -> None:
    print(title)  # noqa: T201
    rows = []
    for key, value in values.items():
        origin = origins.get(key) or origins.get("geometry")
        rows.append([key, _shown(value), origin.confidence if origin else "–", origin.source if origin else "–"])
    print_table("VALUE|>|SURE|SOURCE", rows)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    return _billions(value) if isinstance(value, float) and value >= 1e6 else f"{value:,}"


def _values(found: Device | Geometry) -> dict[str, Any]:
    """Return what is known: no unknowns, no zeros that stand for `has none`."""
    skipped = ("id", "title", "vendor", "arch", "aliases", "origins")
    names = [field.name for field in dataclasses.fields(found) if field.name not in skipped]
    told = {name: getattr(found, name) for name in names}
    return {name: value for name, value in told.items() if value not in (None, 0, (), False)}


def _device_document(found: Device) -> dict[str, Any]:
    head = {"id": found.id, "title": found.title, "vendor": found.vendor, "arch": found.arch}
    return {**head, **_values(found), "origins": _origins(found.origins)}


def _model_document(found: Geometry) -> dict[str, Any]:
    head = {"id": found.id, "title": found.title, "aliases": list(found.aliases)}
    return {
        **head,
        **_values(found),
        "parts": _parts(found),
        "kv_bytes_per_token": found.kv_bytes_per_token(2),
        "window_bytes": found.window_bytes(float("inf"), 2) if found.sliding_layers else 0,
        "state_bytes": found.state_bytes,
        "weights_bytes": {quant: round(size) for quant, (_, size) in _sizes(found).items()},
        "origins": _origins(found.origins),
    }


def _origins(origins: Mapping[str, ValueOrigin]) -> dict[str, dict[str, str]]:
    return {key: {"source": origin.source, "confidence": origin.confidence} for key, origin in origins.items()}


def _parts(found: Geometry) -> dict[str, float]:
    from skep.planner.parts import parts_of

    return dataclasses.asdict(parts_of(found))


def _sizes(found: Geometry) -> dict[str, tuple[str, float]]:
    """Return bytes of a checkpoint in each format, its vision tower included, without draft layers."""
    from skep.planner.parts import part_bits, parts_of
    from skep.planner.quants import QUANTS

    parts, sizes = parts_of(found), {}
    for quant in (QUANTS[name] for name in _SIZED if name in QUANTS):
        bits = part_bits(quant, found)
        held = (parts.embedding + parts.head) * bits["ends"] + parts.small * bits["small"] + parts.mlp * bits["mlp"]
        held += parts.experts * bits["experts"] + parts.vision * bits["vision"]
        sizes[quant.id] = (quant.title, held / 8)
    return sizes


def _billions(count: float) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 1e7 else f"{count / 1e6:,.2f} M"
