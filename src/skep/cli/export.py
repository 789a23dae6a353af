"""`skep export`: a preset, or the best plan for a model, as text for those who start it without skep."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from skep.cli.options import ServeOptions, argument, command, group, option, registering
from skep.cli.output import note, write_whole
from skep.errors import UserError
from skep.paths import user_paths

if TYPE_CHECKING:
    from skep.deploy.export_recipe import Recipe

FORM_NAMES = "shell, docker, compose or systemd"
Port = Annotated[int, option("Port of the gateway.", min=1, max=65535)]
EnginePort = Annotated[int, option("Port of the first engine; the others take the next ones.", min=1, max=65535)]


export_app = group("Print what starts a preset, or skep itself, as a service or without skep.", default="preset")
register = registering(export_app, "export")


@command(export_app, "skep export service > ~/.config/systemd/user/skep.service", runs="serve.service")
def service() -> None:
    """Print a systemd user unit that runs `skep up` at login."""


@command(export_app, "skep export qwen3.6-27b-2x3090-replicas --as docker", name="preset")
def export(
    name: Annotated[str, argument("A preset as `skep presets` lists it, or a model with --gpu.", metavar="PRESET")],
    form: Annotated[str, option(f"{FORM_NAMES}.", "--as")],
    gpu: Annotated[str | None, option('Of a model: the best plan for these cards, such as "2x rtx-3090".')] = None,
    port: Port = 8400,
    engine_port: EnginePort = 8500,
    output: Annotated[Path | None, option("A file; default: standard output.", "-o", "--output")] = None,
) -> None:
    """Print what starts a preset without skep: a script, containers or systemd units."""
    from skep.deploy.export import FORMS
    from skep.deploy.export import export as text_of

    if form not in FORMS:
        raise UserError(f"--as `{form}` is unknown: choose {FORM_NAMES}")
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        what = "is a folder" if output.is_dir() else "lies in a folder that does not exist"
        raise UserError(f"--output `{output}` {what}", hint="name a file")
    recipe = _planned(name, gpu, port, engine_port) if gpu is not None else _preset(name, port, engine_port)
    if form == "systemd":
        recipe = replace(recipe, skep=_own_command())
    text = text_of(recipe, form)
    if output is None:
        print(text, end="")  # noqa: T201
        return
    write_whole(output, text)
    if form in ("shell", "docker"):
        output.chmod(0o755)
    note(f"written to {output}")


def _preset(name: str, port: int, engine_port: int) -> Recipe:
    from skep.catalog.models import find_geometry
    from skep.config.presets import find_preset, preset, presets_folder, serve_of
    from skep.deploy.export_recipe import recipe_of

    folder = presets_folder(user_paths(os.environ))
    if find_preset(name, folder) is None and find_geometry(name) is not None:
        raise UserError(f"`{name}` is a model, not a preset", hint='say on which cards: --gpu "2x rtx-3090"')
    found = preset(name, folder)
    return recipe_of(found, context_tokens=serve_of(found).context_tokens, port=port, engine_port=engine_port)


def _planned(model: str, gpu: str, port: int, engine_port: int) -> Recipe:
    """As `skep plan MODEL --gpu ...` has it; which files the weights are is left to the user."""
    from skep.cli.simulate import best_plan, simulated_flags
    from skep.deploy.commands import launches_of
    from skep.deploy.export_recipe import check_engine, recipe_with
    from skep.planner.rigs import of_machines

    plan = best_plan(simulated_flags(ServeOptions(model, gpu=(gpu,))))
    setup, rig = plan.setup, plan.rated.rig
    if of_machines(rig):
        raise UserError(f"`{gpu}` are machines of their own", hint=f"`skep plan {model}` prints a line for each")
    check_engine(setup.engine, model)
    title = f"{setup.model.title}, {setup.quant.title}, {setup.layout} on {rig.title}: the best that skep plans"
    launches = launches_of(setup, rig)
    return recipe_with(launches, rig.cards[0].vendor, title=title, cards=gpu, port=port, engine_port=engine_port)


def _own_command() -> tuple[str, ...]:
    """Return the skep that runs now: a unit does not search where a shell does."""
    beside = Path(sys.executable).with_name("skep")
    return (str(beside),) if beside.exists() else (sys.executable, "-m", "skep")
