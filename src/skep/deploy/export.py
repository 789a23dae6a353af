"""`skep export`: a preset, or the best plan for a model, as one of the texts in `templates/`, to start without skep."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from skep.catalog.models import find_geometry
from skep.config.presets import find_preset, preset, presets_folder
from skep.deploy import export_container, export_recipe
from skep.deploy.commands import launches_of
from skep.deploy.export_recipe import HERE, OLLAMA, Recipe, Word, environment, file_name, native_words
from skep.deploy.resolve import ServeRequest, best_plan, simulated_flags
from skep.engines.base import Launch
from skep.errors import UserError
from skep.paths import Paths
from skep.planner.rigs import of_machines

START_S = 1800
FOLDER = "~/.config/systemd/user"


@cache
def _templates() -> Environment:
    found = Environment(  # noqa: S701 - no HTML: each form has a quoting of its own
        loader=PackageLoader("skep.deploy"), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    found.filters |= {
        "command": lambda words: export_recipe.folded(
            ["/usr/bin/env", *map(export_recipe.systemd_word, words)]
        ),  # a unit has no search path
        "commented": lambda text: export_recipe.comment(text.strip("\n")) + "\n",
        "health_url": lambda launch: f"http://{HERE}:{launch.port}{export_recipe.health_path(launch)}",
        "plain": lambda text: re.sub(r"\s+", " ", text).replace("%", "%%").rstrip("\\"),
        "service": lambda launch: re.sub(r"[^a-z0-9_-]+", "-", file_name(launch.name).lower()),
        "shell": export_recipe.shell_word,
        "shell_lines": export_recipe.shell_lines,
        "systemd": export_recipe.systemd_word,
        "unit": lambda launch: f"skep-{file_name(launch.name)}.service",
        "yaml": export_recipe.yaml_word,
    }
    functions = (
        export_container.container_of, export_container.docker_words, export_container.variables_of, environment,
        export_recipe.before, export_recipe.gateway_words, file_name, native_command, native_words,
    )  # fmt: skip
    found.globals |= {function.__name__: function for function in functions}
    found.globals |= {"here": HERE, "start_s": START_S, "folder": FOLDER}
    return found


def native_command(recipe: Recipe, launch: Launch, pulled: str | None = None) -> list[Word]:
    """Return how a shell starts the engine; with `pulled`, how the running one is told to fetch that."""
    given = environment(launch, recipe.vendor).items()
    words = [f"{name}={value}" for name, value in given if pulled is None or name == OLLAMA]
    own = native_words(launch)
    return ["env", *words, *(own if pulled is None else [own[0], "pull", pulled])]


def _export(form: str, recipe: Recipe) -> str:
    contained = form in ("docker", "compose") or (form == "systemd" and recipe.container is not None)
    lines = [*export_recipe.head(recipe, form), *export_recipe.wants(recipe, contained=contained)]
    lines += export_container.tag_notes(recipe) if contained and form != "systemd" else []
    lines += export_container.fetching(recipe) if contained else []
    pulled = recipe.first.checkpoint if recipe.first.engine == "ollama" else None  # before Ollama answers for it
    return _templates().get_template(f"{form}.j2").render(recipe=recipe, about="\n".join(lines), pulled=pulled)


FORMS: Mapping[str, Callable[[Recipe], str]] = {
    form: partial(_export, form) for form in ("shell", "docker", "compose", "systemd")
}


def find_recipe(name: str, gpu: str | None, paths: Paths, *, port: int, engine_port: int) -> Recipe:
    """Return a preset's recipe; with `gpu` that of the best plan for a model on these cards."""
    if gpu is not None:
        return _planned(name, gpu, paths, port=port, engine_port=engine_port)
    folder = presets_folder(paths)
    if find_preset(name, folder) is None and find_geometry(name) is not None:
        raise UserError(f"`{name}` is a model, not a preset", hint='name the cards: --gpu "2x rtx-3090"')
    return export_recipe.recipe_of(preset(name, folder), port=port, engine_port=engine_port)


def _planned(model: str, gpu: str, paths: Paths, *, port: int, engine_port: int) -> Recipe:
    """As `skep plan MODEL --gpu ...` has it, with the checkpoint that it names."""
    plan = best_plan(simulated_flags(ServeRequest(model, gpu=(gpu,)), paths), paths.store)
    setup, rig = plan.setup, plan.rated.rig
    if of_machines(rig):
        raise UserError(f"`{gpu}` is several machines", hint=f"`skep plan {model}` prints a command for each")
    export_recipe.check_engine(setup.engine, model)
    title = f"{setup.model.title}, {setup.quant.title}, {setup.layout} on {rig.title}: the best that skep plans"
    launches = launches_of(setup, rig, checkpoint=plan.checkpoint)
    return export_recipe.recipe_with(
        launches, rig.cards[0].vendor, title=title, cards=gpu, port=port, engine_port=engine_port
    )


def service_unit(folder: Path) -> str:
    """Return a unit for the skep that runs now, started in this folder, so that a skep.toml there is found."""
    command = " ".join(map(export_recipe.systemd_word, own_command()))
    return _templates().get_template("service.j2").render(command=command, folder=str(folder).replace("%", "%%"))


def own_command() -> tuple[str, ...]:
    """Return the skep that runs now: a unit does not search where a shell does."""
    beside = Path(sys.executable).with_name("skep")
    return (str(beside),) if beside.exists() else (sys.executable, "-m", "skep")
