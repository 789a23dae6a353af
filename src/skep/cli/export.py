"""`skep export`: a preset, or the best plan for a model, as text for those who start it without skep."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from skep.cli.options import argument, command, group, option
from skep.errors import UserError
from skep.files import OutputFile
from skep.paths import user_paths
from skep.report.terminal import note

FORM_NAMES = "shell, docker, compose or systemd"
Port = Annotated[int, option("Port of the gateway.", min=1, max=65535)]
EnginePort = Annotated[int, option("Port of the first engine; the others take the next ones.", min=1, max=65535)]


export_app = group(
    "export", "Print what starts a preset, or skep itself, as a service or without skep.", default="preset"
)


@command(export_app, "skep export service > ~/.config/systemd/user/skep.service")
def service() -> None:
    """Print a systemd user unit that runs `skep up` at login."""
    from skep.deploy.export import service_unit

    print(service_unit(Path.cwd()), end="")  # noqa: T201


@command(export_app, "skep export qwen3.6-27b-2x3090-replicas --as docker", name="preset")
def export(
    name: Annotated[str, argument("A preset as `skep presets` lists it, or a model with --gpu.", metavar="PRESET")],
    form: Annotated[str, option(f"{FORM_NAMES}.", "--as")],
    gpu: Annotated[str | None, option('Of a model: the best plan for these cards, such as "2x rtx-3090".')] = None,
    port: Port = 8400,
    engine_port: EnginePort = 8500,
    output: Annotated[OutputFile | None, option("A file; default: standard output.", "-o", "--output")] = None,
) -> None:
    """Print what starts a preset without skep: a script, containers or systemd units."""
    from skep.deploy.export import FORMS, find_recipe, own_command

    if form not in FORMS:
        raise UserError(f"--as `{form}` is unknown: choose {FORM_NAMES}")
    if output is not None:
        output.checked()
    recipe = find_recipe(name, gpu, user_paths(os.environ), port=port, engine_port=engine_port)
    text = FORMS[form](replace(recipe, skep=own_command()) if form == "systemd" else recipe)
    if output is None:
        print(text, end="")  # noqa: T201
        return
    output.write(text)
    if form in ("shell", "docker"):
        output.chmod(0o755)
    note(f"written to {output}")
