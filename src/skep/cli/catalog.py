"""Commands on what is known by name: catalog gpus, catalog models, schema."""

from __future__ import annotations

from typing import Annotated

from skep.cli.options import ROOT, JsonOption, argument, command, group
from skep.report.terminal import print_json

catalog_app = group(
    "catalog", "Show the GPUs and models that skep knows, with source and certainty of each value."
)


@command(catalog_app, "skep catalog gpus rtx-3090")
def gpus(
    name: Annotated[
        str | None, argument("Show every value of one GPU with its source (default: list all).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the GPUs that plans can use: memory, bandwidth, tensor throughput, formats, links."""
    from skep.catalog.gpus import device, devices
    from skep.report.catalog import DEVICES, device_document, print_device
    from skep.report.columns import print_records

    if name is not None:
        gpu = device(name)
        print_json(device_document(gpu)) if as_json else print_device(gpu)
    elif as_json:
        print_json([device_document(device) for device in devices().values()])
    else:
        print_records(DEVICES, list(devices().values()))


@command(catalog_app, "skep catalog models qwen3.6-27b --json")
def models(
    name: Annotated[
        str | None, argument("Show one model, config.json or GGUF file in full (default: all).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the models that plans can use: layers, experts, KV bytes per token, size per
    quantization.
    """
    from skep.catalog.models import geometries
    from skep.deploy.plan_request import read_model
    from skep.report.catalog import MODELS, model_document, print_model
    from skep.report.columns import print_records

    if name is not None:
        geometry = read_model(name).geometry
        print_json(model_document(geometry)) if as_json else print_model(geometry)
    elif as_json:
        print_json([model_document(geometry) for geometry in geometries().values()])
    else:
        print_records(MODELS, list(geometries().values()))


@command(ROOT, "skep schema bench sweep > sweep.schema.json")
def schema(
    name: Annotated[
        tuple[str, ...], argument("Command with --json, such as bench sweep (default: list all).")
    ] = (),
) -> None:
    """Print the JSON Schema of a command's --json output, or list the commands that have one."""
    from skep.report.schemas import document_names, schema_of

    if name:
        print_json(schema_of(" ".join(name)))
    else:
        print("\n".join(document_names()))  # noqa: T201
