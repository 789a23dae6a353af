"""`skep export`: a preset, or the best plan for a model, as one of the texts in `templates/`.

They start the engines without skep, and its gateway in front of them.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec.structs import replace

from skep.catalog.engines import engine_kinds, kind_of
from skep.catalog.gpus import Device
from skep.catalog.models import find_geometry
from skep.catalog.presets import NO_CARDS, Container, Need, Preset, stand_in_words
from skep.config.presets import find_preset, preset, presets_folder, serve_of
from skep.config.rigs import parse_rig
from skep.deploy.commands import launches_of
from skep.deploy.gpu_assignment import assign_cards
from skep.deploy.launches import launch_of
from skep.deploy.resolve import ServeRequest, best_plan, simulated_flags
from skep.engines.adapter import Adapter, adapter_of, on_hub
from skep.engines.base import Launch, engine_named
from skep.engines.discovery import bare_words
from skep.errors import UserError
from skep.host.facts import GpuCard
from skep.paths import HOST, Paths
from skep.planner.setup import of_machines

WIDTH = 110
START_S = 1800
UNIT_FOLDER = "~/.config/systemd/user"
LOCAL_PREFIXES = ("/", "./", "../", "~", "$")
PLACEHOLDER = "path/to/"
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - inside the container; it is published on loopback only
# variables for what lies where only the user knows
CHECKPOINT = "CHECKPOINT"
MODELS = "MODELS"
HUB_CACHE = ("~/.cache/huggingface", "/root/.cache/huggingface")
CHECKPOINT_INSIDE = "/model"
MODELS_INSIDE = "/models"
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


class RecipePath(msgspec.Struct, frozen=True):
    """A path of the machine it will run on: `~` at its beginning and `$NAME` stand for what they
    are there.
    """

    text: str
    after: str = ""  # literal, of the same word


Word = str | RecipePath


# Quoting


def comment(text: str) -> str:
    """Return every line of it behind a `#`: no value ends a comment."""
    return "\n".join(
        f"# {line}".rstrip() for line in re.split(r"[\r\n\x0b\x0c\x85\u2028\u2029]+", text)
    )


def shell_word(word: Word) -> str:
    def literal(text: str) -> str:
        return shlex.quote(text) if text else ""

    return _word(word, literal, '"$HOME"', lambda match: f'"{match[0]}"') or "''"


def systemd_word(word: Word, *, dollars: bool = True) -> str:
    """Return a word of a unit.

    `dollars`: of a command line, where `$` would begin a variable; not so in Environment=.
    """
    quote = partial(_escape, doubled="%$" if dollars else "%")
    text = _word(word, quote, "%h", lambda match: f"${{{match[1] or match[2]}}}")
    # a lone `;` would end the command
    if _PLAIN.fullmatch(re.sub(r"[${}]", "", text)):
        return text
    return f'"{text}"'


def yaml_word(word: Word) -> str:
    """Return a double-quoted scalar. A literal dollar is doubled, as Compose puts variables in."""

    def variable(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name == "HOME":
            return "${HOME}"
        return f"${{{name}:?set its path in .env}}"

    return f'"{_word(word, partial(_escape, doubled="$"), "${HOME}", variable)}"'


def _word(
    word: Word, literal: Callable[[str], str], home: str, variable: Callable[[re.Match[str]], str]
) -> str:
    """Return the word with what is literal in it quoted, and of a path the home folder and
    variables as they are.
    """
    if isinstance(word, str):
        return literal(word)
    parts = []
    text = word.text
    last = 0
    if text == "~" or text.startswith("~/"):
        parts = [home]
        last = 1
    for match in _VARIABLE.finditer(text):
        parts += [literal(text[last : match.start()]), variable(match)]
        last = match.end()
    return "".join((*parts, literal(text[last:]), literal(word.after)))


def _escape(text: str, doubled: str) -> str:
    """Escape as JSON does, which YAML and units read too, and double the signs that mean more to
    them.
    """
    text = json.dumps(text, ensure_ascii=False)[1:-1]
    for sign in doubled:
        text = text.replace(sign, 2 * sign)
    return text


def shell_lines(words: Sequence[Word]) -> str:
    """Return one command, over several lines where it is long."""
    return _folded([shell_word(word) for word in words])


def _folded(quoted: Sequence[str]) -> str:
    """Return one line for each option with its value."""
    lines: list[str] = []
    for word in quoted:
        if lines and not word.startswith("-"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)


# Recipes


class Recipe(msgspec.Struct, frozen=True):
    """Replicas alike, in the order they start.

    `container` None: the engine's public image, where one is asked for.
    """

    name: str
    title: str
    launches: tuple[Launch, ...]
    port: int  # of the endpoint in front of them
    source: str | None = None
    container: Container | None = None
    needs: tuple[Need, ...] = ()
    engine_version: str | None = None
    vendor: str = "nvidia"  # of the cards
    cards: str | None = None  # `--gpu`, of a plan
    stand_in: str | None = None  # said of a checkpoint that its author does not name
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Launch:
        return self.launches[0]


def find_recipe(
    name: str, gpu: str | None, paths: Paths, *, port: int, engine_port: int
) -> Recipe:
    """Return a preset's recipe; with `gpu` that of the best plan for a model on these cards."""
    folder = presets_folder(paths)
    shipped = find_preset(name, folder)
    if gpu is not None:
        if shipped is not None:
            hint = (
                f'leave --gpu out, or export its model: skep export {shipped.model} --gpu "{gpu}"'
            )
            raise UserError(f"the preset `{name}` says its cards itself", hint=hint)
        return _planned(name, gpu, paths, port=port, engine_port=engine_port)
    if shipped is None and find_geometry(name) is not None:
        raise UserError(
            f"`{name}` is a model, not a preset", hint='name the cards: --gpu "2x rtx-3090"'
        )
    return recipe_of(preset(name, folder), port=port, engine_port=engine_port)


def recipe_of(preset: Preset, *, port: int, engine_port: int) -> Recipe:
    """Return a preset's replicas, on the cards it names or on the first ones."""
    _check_engine(preset.engine, preset.name)
    cards_each = preset.options.cards
    cards: tuple[Device, ...] = ()
    if preset.hardware != NO_CARDS:
        cards = parse_rig(preset.hardware).cards
    needed = max((*preset.gpus, cards_each * preset.replicas - 1)) + 1
    placed = assign_cards(
        preset.replicas, cards_each, preset.gpus, [GpuCard(number) for number in range(needed)]
    )
    divides_itself = not preset.gpus and preset.replicas == 1 and cards_each < len(cards)
    if divides_itself or not cards:  # over the cards it sees
        placed = [()] * preset.replicas
    serve = serve_of(preset)
    name = file_name(preset.name)
    launch = replace(
        launch_of(serve, name, None, preset.checkpoint, threads=preset.threads or 0),
        model=preset.served_as,
    )
    launches = [
        replace(launch, name=f"{name}-{number}", gpus=gpus) for number, gpus in enumerate(placed)
    ]
    names = ("name", "title", "source", "container", "needs", "engine_version", "notes")
    alike: dict[str, Any] = {name: getattr(preset, name) for name in names}
    vendor = cards[0].vendor if cards else ""
    stand_in = stand_in_words(preset)
    return Recipe(
        launches=_on_ports(launches, port, engine_port),
        port=port,
        vendor=vendor,
        stand_in=stand_in,
        **alike,
    )


def _planned(model: str, gpu: str, paths: Paths, *, port: int, engine_port: int) -> Recipe:
    """Return the recipe of the best plan of `skep plan MODEL --gpu ...`."""
    plan = best_plan(simulated_flags(ServeRequest(model, gpu=(gpu,))), paths.store)
    setup = plan.setup
    rig = plan.rated.rig
    if of_machines(rig):
        raise UserError(
            f"`{gpu}` is several machines", hint=f"`skep plan {model}` prints a command for each"
        )
    _check_engine(setup.engine, model)
    title = (
        f"{setup.model.title}, {setup.quant.title}, {setup.layout} on {rig.title}: the best "
        "that skep plans"
    )
    launches = _on_ports(launches_of(setup, rig, checkpoint=plan.checkpoint), port, engine_port)
    return Recipe(
        file_name(launches[0].model), title, launches, port, vendor=rig.cards[0].vendor, cards=gpu
    )


def _check_engine(engine: str, name: str) -> None:
    if kind_of(engine).weights == "store":
        title = kind_of(engine).title
    elif not isinstance(engine_named(engine), Adapter):
        title = f"skep's own {engine} engine"
    else:
        return
    raise UserError(
        f"`{name}` runs in {title}, which needs no export", hint=f"`skep up {name}` starts it"
    )


def _on_ports(launches: Sequence[Launch], port: int, engine_port: int) -> tuple[Launch, ...]:
    """Return the launches with ports one after the other, none of them the endpoint's."""
    last = engine_port + len(launches) - 1
    if last > 65535 or engine_port <= port <= last:
        hint = f"they would use ports {engine_port} to {last}, the endpoint uses {port}"
        raise UserError(
            f"--engine-port {engine_port} does not fit {len(launches)} replicas", hint=hint
        )
    return tuple(
        replace(launch, port=engine_port + number) for number, launch in enumerate(launches)
    )


def file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "model"


# What starts a replica


def native_words(launch: Launch, release: str | None = None) -> list[Word]:
    """Return the command line as somebody types it: nothing is looked for on this machine."""
    words = [
        *bare_words(launch.engine, launch.binary),
        *adapter_of(launch.engine, release=release).arguments(launch),
    ]
    return [
        RecipePath(word) if word == launch.checkpoint and word.startswith(("~", "$")) else word
        for word in words
    ]


def native_command(recipe: Recipe, launch: Launch) -> list[Word]:
    """Return how a shell starts the engine."""
    words = [f"{name}={value}" for name, value in environment(launch, recipe.vendor).items()]
    return ["env", *words, *native_words(launch)]


def environment(launch: Launch, vendor: str = "nvidia") -> dict[str, str]:
    return adapter_of(launch.engine, vendor).environment(launch)


def gateway_words(recipe: Recipe, skep: Sequence[str] = ("skep",)) -> list[Word]:
    """Return the command line of the gateway. `skep`: how skep itself is started."""
    words: list[Word] = [*skep, "gateway"]
    for launch in recipe.launches:
        words += ["--upstream", f"http://{HOST}:{launch.port}"]
    words += ["--slots", str(recipe.first.slots), "--model", recipe.first.model]
    if recipe.first.reserve:
        words += ["--reserve", str(recipe.first.reserve)]
    return [*words, "--port", str(recipe.port)]


def own_command() -> tuple[str, ...]:
    """Return the words that start the skep that runs now: a unit has no search path."""
    beside = Path(sys.executable).with_name("skep")
    if beside.exists():
        return (str(beside),)
    return (sys.executable, "-m", "skep")


def health_path(launch: Launch) -> str:
    return launch.health_path or adapter_of(launch.engine).health_path


# Containers


class ContainerSpec(msgspec.Struct, frozen=True):
    """One replica in its container.

    `program` None: the image's own entry point gets the arguments.
    """

    name: str
    image: str
    gpus: tuple[int, ...]
    nvidia: bool  # its toolkit hands the cards in; others the user adds
    port: int
    inside_port: int
    mounts: tuple[tuple[RecipePath, str, bool], ...]  # host, inside, read only
    env: Mapping[str, str]
    passed: tuple[str, ...]  # variables handed on as they are, where they are set
    shm: str | None
    ipc_host: bool
    program: str | None
    arguments: tuple[str, ...]
    health: tuple[str, ...]


def container_of(recipe: Recipe, launch: Launch) -> ContainerSpec:
    public = image_of(launch.engine, recipe.engine_version)
    # processes of one engine on several cards talk through shared memory, of which a container has
    # 64 MiB
    container = recipe.container or Container(
        public, ipc_host=kind_of(launch.engine).weights == "checkpoint"
    )
    host, inside, read_only, checkpoint = _weights(launch, container)
    port = engine_kinds()[launch.engine].image_port
    inner = replace(launch, port=port, gpus=(), checkpoint=checkpoint, binary=None)
    program, arguments = _started(
        launch.engine, _inner_words(inner, launch, recipe.engine_version), container.before
    )
    mounts = [
        (RecipePath(mount.host), mount.inside, mount.read_only) for mount in container.mounts
    ]
    if inside and inside not in (mount.inside for mount in container.mounts):
        mounts.insert(0, (RecipePath(host), inside, read_only))
    variables = environment(inner)
    hub = on_hub(checkpoint or "")
    cache = kind_of(launch.engine).image_cache
    if hub and cache is not None:
        variables |= {"LLAMA_CACHE": cache[1]}
    return ContainerSpec(
        name=launch.name,
        image=container.image,
        gpus=launch.gpus,
        nvidia=recipe.vendor == "nvidia",
        port=launch.port,
        inside_port=port,
        mounts=tuple(mounts),
        env=variables,
        passed=("HF_TOKEN",) if hub else (),
        shm=container.shm,
        ipc_host=container.ipc_host,
        program=program,
        arguments=arguments,
        health=_health_check(launch, port),
    )


def _health_check(launch: Launch, port: int) -> tuple[str, ...]:
    """Return the command that asks the engine, with what its image has."""
    url = f"http://{HOST}:{port}{health_path(launch)}"
    if kind_of(launch.engine).image_program:
        return ("CMD", "curl", "-f", url)
    script = f"import urllib.request as u; u.urlopen({url!r}, timeout=5)"
    return ("CMD", "python3", "-c", script)


def docker_words(spec: ContainerSpec) -> list[Word]:
    """Return what stands behind `docker run`: options, image, command."""
    words: list[Word] = ["--name", spec.name]
    if spec.nvidia:
        words += ["--gpus", f'"device={",".join(map(str, spec.gpus))}"' if spec.gpus else "all"]
    words += ["-p", f"{HOST}:{spec.port}:{spec.inside_port}"]
    if spec.ipc_host:
        words += ["--ipc=host"]
    if spec.shm:
        words += [f"--shm-size={spec.shm}"]
    for host, inside, read_only in spec.mounts:
        words += ["-v", RecipePath(host.text, f":{inside}{':ro' if read_only else ''}")]
    for variable in (*(f"{name}={value}" for name, value in spec.env.items()), *spec.passed):
        words += ["-e", variable]
    if spec.program:
        words += ["--entrypoint", spec.program]
    return [*words, spec.image, *spec.arguments]


def image_of(engine: str, version: str | None) -> str:
    """Return the engine's public image, of the version that was measured where there is one."""
    kind = engine_kinds()[engine]
    name = kind.image
    if kind.image_tag:
        build = re.fullmatch(r"b[0-9]+", version or "")
        return f"{name}:{kind.image_tag}" + (f"-{build[0]}" if build else "")
    release = re.fullmatch(r"v?([0-9]+\.[0-9]+\.[0-9]+(?:\.?(?:post|rc)[0-9]+)?)", version or "")
    if release:
        return f"{name}:v{release[1]}"
    return f"{name}:latest"


def variables_of(recipe: Recipe) -> dict[str, str | None]:
    """Return the variables in the mounts, each with a usual path; None: only the user knows it."""
    texts = [host.text for host, _, _ in container_of(recipe, recipe.first).mounts]
    names = [match[1] or match[2] for text in texts for match in _VARIABLE.finditer(text)]
    of_weights = weights_variable(recipe)
    name = (recipe.first.checkpoint or "").rpartition("/")[2]
    place = "~/models" if name.endswith(".gguf") else f"~/models/{file_name(name)}"
    return {
        variable: place if variable == of_weights else None
        for variable in dict.fromkeys(names)
        if variable != "HOME"
    }


def weights_variable(recipe: Recipe) -> str | None:
    """Return the name that stands for where the weights lie, if one does."""
    inside = {
        CHECKPOINT_INSIDE,
        MODELS_INSIDE,
        recipe.container.checkpoint if recipe.container else None,
    }
    mounts = container_of(recipe, recipe.first).mounts
    whole = (_VARIABLE.fullmatch(host.text) for host, target, _ in mounts if target in inside)
    return next((match[1] or match[2] for match in whole if match), None)


def _weights(launch: Launch, container: Container) -> tuple[str, str, bool, str | None]:
    """Return what is mounted for the weights, where inside, whether read-only, and the checkpoint
    that the engine inside is told.
    """
    checkpoint = launch.checkpoint
    if checkpoint is None:
        return "", "", False, None
    folder, _, name = checkpoint.rpartition("/")
    is_local = checkpoint.startswith(LOCAL_PREFIXES)
    if container.checkpoint is None and on_hub(checkpoint):
        outside, inside = kind_of(launch.engine).image_cache or HUB_CACHE
        return outside, inside, False, checkpoint
    if container.checkpoint is None and checkpoint.endswith(".gguf"):
        return folder if is_local else f"${MODELS}", MODELS_INSIDE, True, f"{MODELS_INSIDE}/{name}"
    inside = container.checkpoint or CHECKPOINT_INSIDE
    return checkpoint if is_local else f"${CHECKPOINT}", inside, True, inside


def _inner_words(inner: Launch, launch: Launch, release: str | None) -> list[str]:
    """Return the command line inside.

    Which parsers a model takes depends on its own name, not on its folder in the container.
    """
    named = inner
    if kind_of(launch.engine).weights == "checkpoint":
        named = replace(inner, checkpoint=launch.checkpoint)
    words = [
        word.text if isinstance(word, RecipePath) else word
        for word in native_words(named, release)
    ]
    return [
        inner.checkpoint if inner.checkpoint and word == named.checkpoint else word
        for word in words
    ]


def _started(
    engine: str, words: list[str], steps: Sequence[str]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the container's entry point (None: the image's own) and the arguments behind it.

    `steps`: commands that run before the engine.
    """
    words[0] = words[0].rpartition("/")[2]
    if words[0].startswith("python"):
        words[0] = "python3"
    # listening on all of the container's own addresses: only one port of it is published
    if "--host" in words:
        words[words.index("--host") + 1] = ALL_ADDRESSES
    else:
        words += ["--host", ALL_ADDRESSES]
    if steps:
        start = kind_of(engine).image_program or words[0]
        script = "\n".join(("set -e", *steps, f"exec {shell_lines([start, *words[1:]])}"))
        return "/bin/bash", ("-c", script)
    entry_point = None if kind_of(engine).image_program else words[0]
    return entry_point, tuple(words[1:])


# Texts


@cache
def _templates() -> Environment:
    templates = Environment(  # noqa: S701 - no HTML: each form has a quoting of its own
        loader=PackageLoader("skep.deploy"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    templates.filters |= {
        # a unit has no search path
        "command": lambda words: _folded(["/usr/bin/env", *map(systemd_word, words)]),
        "commented": lambda text: comment(text.strip("\n")) + "\n",
        "health_url": lambda launch: f"http://{HOST}:{launch.port}{health_path(launch)}",
        "plain": lambda text: re.sub(r"\s+", " ", text).replace("%", "%%").rstrip("\\"),
        "service": lambda launch: re.sub(r"[^a-z0-9_-]+", "-", file_name(launch.name).lower()),
        "shell": shell_word,
        "shell_lines": shell_lines,
        "systemd": systemd_word,
        "unit": lambda launch: f"skep-{file_name(launch.name)}.service",
        "yaml": yaml_word,
    }
    functions = (
        container_of, docker_words, variables_of, environment, gateway_words, file_name,
        native_command, native_words, own_command, image_of, weights_variable, on_hub,
    )  # fmt: skip
    templates.globals |= {function.__name__: function for function in functions}
    templates.globals |= {
        "here": HOST,
        "start_s": START_S,
        "folder": UNIT_FOLDER,
        "placeholder": PLACEHOLDER,
    }
    return templates


def _export(form: str, recipe: Recipe) -> str:
    in_unit = form == "systemd" and recipe.container is not None
    contained = form in ("docker", "compose") or in_unit
    about = (
        _templates().get_template("about.j2").render(recipe=recipe, contained=contained, form=form)
    )
    style: dict[str, Any] = {
        "subsequent_indent": "  ",
        "break_long_words": False,
        "break_on_hyphens": False,
    }
    lines = [part for line in about.splitlines() for part in wrap(line, WIDTH, **style)]
    return _templates().get_template(f"{form}.j2").render(recipe=recipe, about="\n".join(lines))


FORMS: Mapping[str, Callable[[Recipe], str]] = {
    form: partial(_export, form) for form in ("shell", "docker", "compose", "systemd")
}


def service_unit(folder: Path) -> str:
    """Return a unit for the skep that runs now, started in this folder, so that a skep.toml there
    is found.
    """
    command = " ".join(map(systemd_word, own_command()))
    return (
        _templates()
        .get_template("service.j2")
        .render(command=command, folder=str(folder).replace("%", "%%"))
    )
