"""Commands on recipes that somebody measured:
presets, presets show, presets check, presets new.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from skep.cli.options import ROOT, EndpointOptions, JsonOption, argument, command, group, option
from skep.errors import UserError
from skep.paths import user_paths
from skep.report.terminal import note, print_json

presets_app = group(
    "presets",
    "List presets: setups that somebody measured, with requirements and published figures.",
    default="list",
)
NameArgument = Annotated[str, argument("Preset name from `skep presets`.")]


@command(presets_app, "skep presets --json", name="list")
def list_presets(
    everything: Annotated[
        bool, option("Include presets that a better one has replaced.", "--all")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List presets: setups that somebody measured, with requirements and published figures."""
    from skep.config.presets import read_presets, shipped_presets
    from skep.report.catalog import PRESET_COLUMNS, preset_row
    from skep.report.columns import print_records

    presets = read_presets(_folder())
    listed = sorted(
        {**shipped_presets(), **presets.presets}.values(), key=lambda preset: preset.name
    )
    listed = [preset for preset in listed if everything or not preset.history]
    if as_json:
        print_json([preset_row(preset) for preset in listed])
    else:
        print_records(PRESET_COLUMNS, listed)
    for error in presets.broken:
        note(f"left out: {error.message}")


@command(presets_app, "skep presets show qwen3.6-27b-2x3090-replicas")
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show everything about a preset: requirements, flags, figures, and what to run next."""
    from skep.config.presets import preset
    from skep.report.catalog import preset_document, preset_text

    named_preset = preset(name, _folder())
    if as_json:
        print_json(preset_document(named_preset))
    else:
        print(preset_text(named_preset))  # noqa: T201


@command(presets_app, "skep presets check ./my-27b.toml")
def check(
    file: Annotated[Path, argument("Preset file to check, in any folder.")],
    as_json: JsonOption = False,
) -> None:
    """Check that a file is a valid preset; print every wrong key and value if it is not."""
    from skep.config.presets import read_preset
    from skep.report.catalog import preset_document

    preset = read_preset(file)
    if as_json:
        print_json(preset_document(preset))
        return
    print(f"{file} is a valid preset: {preset.title}")  # noqa: T201
    folder = _folder()
    if file.resolve().parent != folder.resolve():
        note(f"put it into {folder} to use it as `{preset.name}`")


@command(presets_app, "skep presets new my-27b --from qwen3.6-27b-2x3090-awq")
def new(
    name: Annotated[
        str, argument("Name of the new preset: lower-case letters, digits, dots and dashes.")
    ],
    source: Annotated[str, option("Preset to copy.", "--from")],
) -> None:
    """Copy a preset to a new file that you can edit."""
    from skep.config.presets import check_name, find_preset, preset_text

    folder = _folder()
    text = preset_text(source, folder)
    path = folder / f"{check_name(name)}.toml"
    if name != source and not path.exists() and find_preset(name, folder) is not None:
        note(f"`{name}` is also a shipped preset: yours is used from now on")
    folder.mkdir(parents=True, exist_ok=True)
    head = (
        f"# Copied from `{source}`. The figures are its author's: delete those that your "
        "changes invalidate.\n"
    )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{head}\n{text}")
    except FileExistsError:
        hint = f"choose another name, or edit it and run `skep presets check {path}`"
        raise UserError(f"`{path}` already exists", hint=hint) from None
    print(path)  # noqa: T201
    note(f"edit it, then `skep presets check {path}` and `skep up {name}`")


@dataclass(frozen=True, kw_only=True)
class CheckOptions(EndpointOptions):
    preset: Annotated[str, argument("Preset name from `skep presets`.")]
    url: Annotated[
        str | None,
        option(
            "Endpoint that serves it (default: what `skep up` serves, else it is started "
            "and stopped)."
        ),
    ] = None
    concurrency: Annotated[
        str | None, option("Only these published levels, such as 1,4.", "--concurrency", "-c")
    ] = None
    runs: Annotated[
        int | None, option("Number of runs per level (instead of --precision).", min=1)
    ] = None
    precision: Annotated[
        str, option("Repeat a level until the 95 % interval of tok/s is within this.")
    ] = "3%"
    budget: Annotated[
        str, option("Time limit of the measurement; what does not fit is left out.")
    ] = "15m"
    timeout: Annotated[str, option("Time limit of one request.")] = "15m"
    simulate: Annotated[
        bool,
        option(
            "Simulate the preset's rig at the speed the planner predicts; needs no weights "
            "and no GPU."
        ),
    ] = False
    gpu: Annotated[
        str | None,
        option('Simulate it on these GPUs instead, such as "2x rtx-4090".', metavar="RIG"),
    ] = None
    as_json: JsonOption = False


@command(ROOT, "skep check qwen3.6-27b-2x3090-replicas", name="check", runs="check_run.run_check")
def check_preset(options: CheckOptions) -> None:
    """Start a preset, measure the load of its published figures and stop it; print published,
    planned and measured.
    """


def _folder() -> Path:
    from skep.config.presets import presets_folder

    return presets_folder(user_paths(os.environ))
