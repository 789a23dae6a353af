"""`skep export`: a preset, or the best plan for a model, as text for those who start engines
themselves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from skep.cli.options import argument, command, group, option
from skep.errors import UserError
from skep.files import OutputFile
from skep.paths import user_paths
from skep.report.terminal import note

FORM_NAMES = "shell, docker, compose or systemd"
Port = Annotated[int, option("Port of the gateway.", min=1, max=65535)]
EnginePort = Annotated[
    int, option("Port of the first engine; the others use the next ports.", min=1, max=65535)
]


export_app = group(
    "export",
    (
        "Print files that start a preset's engines and `skep gateway`, or a systemd unit for "
        "`skep up`."
    ),
    default="preset",
)


@command(export_app, "skep export service > ~/.config/systemd/user/skep.service")
def service() -> None:
    """Print a systemd user unit that runs `skep up` at login."""
    from skep.deploy.export import service_unit

    print(service_unit(Path.cwd()), end="")  # noqa: T201


@command(export_app, "skep export qwen3.6-27b-2x3090-replicas --as docker", name="preset")
def export(
    name: Annotated[
        str,
        argument("Preset from `skep presets`, or a model together with --gpu.", metavar="PRESET"),
    ],
    form: Annotated[str, option(f"Form of the output: {FORM_NAMES}.", "--as")],
    gpu: Annotated[
        str | None, option('Export the best plan of a model for these GPUs: "2x rtx-3090".')
    ] = None,
    port: Port = 8400,
    engine_port: EnginePort = 8500,
    output: Annotated[
        OutputFile | None, option("File to write (default: stdout).", "-o", "--output")
    ] = None,
) -> None:
    """Print a script, containers or systemd units: engines without skep, `skep gateway` in front
    of them.
    """
    from skep.deploy.export import FORMS, find_recipe

    if form not in FORMS:
        raise UserError(f"--as `{form}` is unknown: choose {FORM_NAMES}")
    if output is not None:
        output.checked()
    recipe = find_recipe(name, gpu, user_paths(os.environ), port=port, engine_port=engine_port)
    text = FORMS[form](recipe)
    if output is None:
        print(text, end="")  # noqa: T201
        return
    output.write(text)
    if form in ("shell", "docker"):
        output.chmod(0o755)
    note(f"written to {output}")
