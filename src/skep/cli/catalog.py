"""Commands on what is known by name: catalog gpus, catalog models, schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from skep.cli.options import ROOT, JsonOption, argument, command, group
from skep.report.terminal import print_json

if TYPE_CHECKING:
    from skep.catalog.models import Geometry

catalog_app = group("catalog", "Show the known GPUs and models, with the source and the certainty of each value.")


@command(catalog_app, "skep catalog gpus rtx-3090")
def gpus(
    name: Annotated[str | None, argument("Show one GPU, with the source of every value.")] = None,
    as_json: JsonOption = False,
) -> None:
    """The GPUs that plans can name: memory, bandwidth, tensor throughput, formats, links."""
    from skep.catalog.gpus import device, devices
    from skep.report.catalog import DEVICES, device_document, print_device
    from skep.report.columns import print_records

    if name is not None:
        found = device(name)
        print_json(device_document(found)) if as_json else print_device(found)
    elif as_json:
        print_json([device_document(known) for known in devices().values()])
    else:
        print_records(DEVICES, list(devices().values()))


@command(catalog_app, "skep catalog models qwen3.6-27b --json")
def models(
    name: Annotated[str | None, argument("Show every value of one model, of a config.json or of a GGUF file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """The models that plans can name: layers by kind, experts, KV bytes a token, sizes by quantization."""
    from skep.catalog.models import geometries
    from skep.report.catalog import MODELS, model_document, print_model
    from skep.report.columns import print_records

    if name is not None:
        found = _geometry(name)
        print_json(model_document(found)) if as_json else print_model(found)
    elif as_json:
        print_json([model_document(known) for known in geometries().values()])
    else:
        print_records(MODELS, list(geometries().values()))


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


@command(ROOT, "skep schema bench sweep > sweep.schema.json")
def schema(
    name: Annotated[
        tuple[str, ...], argument("The command that prints it, such as bench sweep; default: list all.")
    ] = (),
) -> None:
    """Print the JSON Schema of what a command prints with --json, or the names of all such documents."""
    from skep.report.schemas import document_names, schema_of

    if name:
        print_json(schema_of(" ".join(name)))
    else:
        print("\n".join(document_names()))  # noqa: T201
