"""`skep export`: a preset, or the best plan for a model, as text for those who start it without skep."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from skep.catalog.models import find_geometry
from skep.config.presets import find_preset, preset, presets_folder
from skep.deploy.commands import launches_of
from skep.deploy.export_container import (
    ContainerSpec,
    container_of,
    docker,
    docker_words,
    fetching,
    tag_notes,
    variables_of,
)
from skep.deploy.export_recipe import (
    HERE,
    OLLAMA,
    Recipe,
    RecipePath,
    Word,
    before,
    check_engine,
    comments,
    environment,
    file_name,
    folded,
    gateway_words,
    head,
    health_path,
    native_words,
    pulling,
    recipe_of,
    recipe_with,
    shell_lines,
    shell_word,
    systemd_word,
    wants,
    yaml_word,
)
from skep.deploy.resolve import ServeRequest, best_plan, simulated_flags
from skep.engines.base import Launch
from skep.errors import UserError
from skep.paths import Paths
from skep.planner.rigs import of_machines

START_S = 1800


def compose(recipe: Recipe) -> str:
    lines = [*head(recipe, "compose"), *wants(recipe, contained=True), *tag_notes(recipe), *fetching(recipe)]
    for name, place in variables_of(recipe).items():
        lines.append(f"Into .env beside this file: {name}={(place or '...').replace('~', '/home/you', 1)}")
    lines.append("Start: docker compose up -d --wait")
    model = pulling(recipe)
    if model is not None:
        inside = f"docker compose exec {_name(recipe.first)} ollama pull {shell_word(model)}"
        lines.append(f"Then, once, before the first request: {inside}")
    parts = [comments(lines), "services:\n"]
    parts += [_service(recipe, place) for place in range(len(recipe.launches))]
    gateway = shell_lines(gateway_words(recipe)).replace(" \\\n  ", " ")  # no service: skep has no public image
    parts.append("\n" + comments([f"In front, on this machine: {gateway}"]))
    return "".join(parts)


def _service(recipe: Recipe, place: int) -> str:
    launch = recipe.launches[place]
    one = container_of(recipe, launch)
    earlier = before(recipe.launches, place)
    lines = [
        f"  {_name(launch)}:",
        f"    image: {yaml_word(one.image)}",
        f"    container_name: {yaml_word(one.name)}",
        "    restart: unless-stopped",
        f"    ports: [{yaml_word(f'{HERE}:{one.port}:{one.inside_port}')}]",
    ]
    lines += ['    ipc: "host"'] if one.ipc_host else []
    lines += [f"    shm_size: {yaml_word(one.shm)}"] if one.shm else []
    lines += _mounts(one)
    lines += _environment(one)
    lines += [f"    entrypoint: [{yaml_word(one.program)}]"] if one.program else []
    lines += _listed("command", one.arguments)
    lines += _listed("test", one.health, above="healthcheck")
    lines += ["      interval: 10s", "      timeout: 10s", "      retries: 3", f"      start_period: {START_S}s"]
    lines += _cards(one)
    if earlier is not None:
        lines += ["    depends_on:", f"      {_name(earlier)}:", "        condition: service_healthy"]
    return "\n".join(lines) + "\n"


def _mounts(one: ContainerSpec) -> list[str]:
    """Return the long form: a colon in a path divides nothing."""
    lines = ["    volumes:"] if one.mounts else []
    for host, inside, read_only in one.mounts:
        lines += ["      - type: bind", f"        source: {yaml_word(RecipePath(host.text))}"]
        lines += [f"        target: {yaml_word(inside)}", f"        read_only: {str(read_only).lower()}"]
    return lines


def _environment(one: ContainerSpec) -> list[str]:
    lines = ["    environment:"] if one.env or one.passed else []
    lines += [f"      {yaml_word(name)}: {yaml_word(value)}" for name, value in one.env]
    return lines + [f'      {name}: "${{{name}:-}}"' for name in one.passed]


def _listed(key: str, words: tuple[str, ...], *, above: str | None = None) -> list[str]:
    lines, deep = ([f"    {above}:"], "      ") if above else ([], "    ")
    if not words:
        return []
    return [*lines, f"{deep}{key}:", *(f"{deep}  - {yaml_word(word)}" for word in words)]


def _cards(one: ContainerSpec) -> list[str]:
    if one.devices is not None:
        return (
            [f"    devices: [{', '.join(yaml_word(f'{device}:{device}') for device in one.devices)}]"]
            if one.devices
            else []
        )
    which = f"device_ids: [{', '.join(yaml_word(str(gpu)) for gpu in one.gpus)}]" if one.gpus else "count: all"
    lines = ["deploy:", "  resources:", "    reservations:", "      devices:", "        - driver: nvidia"]
    return [f"    {line}" for line in (*lines, f"          {which}", "          capabilities: [gpu]")]


def _name(launch: Launch) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", file_name(launch.name).lower())


# An engine may take minutes to load and to capture its graphs: the wait ends with the engine, not with a clock.
_FRAME = """\
set -euo pipefail

pids=()
stop() {
  trap - EXIT INT TERM
  [ "${#pids[@]}" -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ready() {  # NAME PID URL
  until curl -fsS -o /dev/null --max-time 5 "$3" 2>/dev/null; do
    kill -0 "$2" 2>/dev/null || { echo "$1 ended before it was ready" >&2; exit 1; }
    sleep 1
  done
  echo "$1 is ready" >&2
}
"""


def shell(recipe: Recipe) -> str:
    lines = ["#!/usr/bin/env bash\n", comments((*head(recipe, "shell"), *wants(recipe, contained=False))), _FRAME]
    waits: dict[str, str] = {}
    for place, launch in enumerate(recipe.launches):
        earlier = before(recipe.launches, place)
        if earlier is not None and earlier.name in waits:
            lines.append(waits.pop(earlier.name))
        words = [f"{name}={value}" for name, value in environment(launch, recipe.vendor).items()]
        lines.append(f"\n{shell_lines(['env', *words, *native_words(launch)])} &\n")
        lines.append(f"pids+=($!) replica_{place}=$!\n")
        url = f"http://{HERE}:{launch.port}{health_path(launch)}"
        waits[launch.name] = f'ready {shell_word(launch.name)} "$replica_{place}" {shell_word(url)}\n'
    lines += ["\n", *waits.values()]
    model, first = pulling(recipe), recipe.first
    if model is not None:  # replicas of one user share what is pulled
        words = [f"{name}={value}" for name, value in environment(first, recipe.vendor).items() if name == OLLAMA]
        lines.append(f"\n{shell_lines(['env', *words, *native_words(first)[:1], 'pull', model])}\n")
    lines.append(f"\n{shell_lines(gateway_words(recipe))} &\npids+=($!)\n")
    lines.append("wait -n  # whichever ends first ends the others\n")
    return "".join(lines)


FOLDER = "~/.config/systemd/user"


def systemd(recipe: Recipe) -> str:
    contained = recipe.container is not None
    names = [f"{_unit(launch)}.service" for launch in recipe.launches]
    front = f"skep-{file_name(recipe.name)}-gateway.service"
    keys, engines = (f"%h/.config/skep/{file_name(recipe.name)}{kind}.env" for kind in ("", "-engine"))
    lines = [
        *head(recipe, "systemd"),
        *wants(recipe, contained=contained),
        *(fetching(recipe) if contained else ()),
        f"What engines may know goes into {engines.replace('%h', '~')}, one NAME=value a line:",
        f"  {', '.join(f'{name}=...' for name in ('HF_TOKEN', *_paths(recipe)))}; a path without ~",
        f"The gateway's own key goes into {keys.replace('%h', '~')}: SKEP_API_KEY=...",
        f"Write each part below into {FOLDER}, then:",
        f"systemctl --user daemon-reload && systemctl --user enable --now {' '.join((*names, front))}",
        *_pulling(recipe),
        "loginctl enable-linger   # to serve without being logged in",
    ]
    parts = [comments(lines)]
    parts += [_replica(recipe, place, engines) for place in range(len(recipe.launches))]
    parts.append(_part(
        front,
        unit=[f"Description={_plain(recipe.name)}: skep's gateway", f"Wants={' '.join(names)}", "After=network.target"],
        service=[f"EnvironmentFile=-{keys}", _path(), f"ExecStart={_command(gateway_words(recipe))}"],
        rest=["KillMode=mixed", "TimeoutStopSec=90", "LimitNOFILE=65536"],
    ))  # fmt: skip
    return "\n".join(parts)


def _pulling(recipe: Recipe) -> list[str]:
    model = pulling(recipe)
    if model is None:
        return []
    words = f"OLLAMA_HOST={HERE}:{recipe.first.port} ollama pull {shell_word(model)}"
    if recipe.container is not None:
        words = f"docker exec {shell_word(recipe.first.name)} ollama pull {shell_word(model)}"
    return [f"Then, once, before the first request: {words}"]


def _replica(recipe: Recipe, place: int, keys: str) -> str:
    launch = recipe.launches[place]
    earlier = before(recipe.launches, place)
    after = f"After=network.target {_unit(earlier)}.service" if earlier else "After=network.target"
    variables = variables_of(recipe).items() if recipe.container is not None else ()
    service = [f"Environment={name}={(place or 'unset').replace('~', '%h', 1)}" for name, place in variables]
    service += [f"EnvironmentFile=-{keys}", _path()]
    rest = [f"TimeoutStartSec={START_S}", "TimeoutStopSec=90", "LimitNOFILE=65536"]
    if recipe.container is not None:
        found = container_of(recipe, launch)
        words = ["docker", "run", "--rm", *docker_words(found)]
        service.append(f"ExecStartPre=-/usr/bin/env docker rm -f {systemd_word(launch.name)}")
        service.append(f"ExecStart={_command(words)}")
        service.append(f"ExecStop=/usr/bin/env docker stop {systemd_word(launch.name)}")
    else:
        given = environment(launch, recipe.vendor).items()
        service += [f"Environment={systemd_word(f'{name}={value}', dollars=False)}" for name, value in given]
        service.append(f"ExecStart={_command(native_words(launch))}")
        rest = ["KillMode=mixed", *rest]
    later = range(place + 1, len(recipe.launches))
    if any(before(recipe.launches, other) is launch for other in later):
        service.append(_ready(launch))
    unit = [f"Description={_plain(recipe.name)}: {launch.engine} replica {place}", after]
    return _part(f"{_unit(launch)}.service", unit=unit, service=service, rest=rest)


def _ready(launch: Launch) -> str:
    """The unit has started when the engine answers: what comes after it finds the card as it will stay."""
    url = f"http://{HERE}:{launch.port}{health_path(launch)}"
    words = ["curl", "-fsS", "-o", "/dev/null", "--retry", str(START_S), "--retry-delay", "1", "--retry-all-errors"]
    return f"ExecStartPost={_command([*words, url])}"


def _part(name: str, *, unit: list[str], service: list[str], rest: list[str]) -> str:
    lines = ["[Unit]", *unit, "", "[Service]", "Type=exec", *service, "Restart=on-failure", "RestartSec=5", *rest]
    return "\n".join((f"# {FOLDER}/{name}", *lines, "", "[Install]", "WantedBy=default.target", ""))


def _command(words: list[Word]) -> str:
    """By `env`: a unit's own search path is not the shell's."""
    return folded(["/usr/bin/env", *(systemd_word(word) for word in words)])


def _paths(recipe: Recipe) -> list[str]:
    return list(variables_of(recipe)) if recipe.container is not None else []


def _path() -> str:
    return "Environment=PATH=%h/.local/bin:/usr/local/bin:/usr/bin:/bin"


def _unit(launch: Launch) -> str:
    return f"skep-{file_name(launch.name)}"


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("%", "%%").rstrip("\\")


FORMS: Mapping[str, Callable[[Recipe], str]] = {
    "shell": shell,
    "docker": docker,
    "compose": compose,
    "systemd": systemd,
}


def find_recipe(name: str, gpu: str | None, paths: Paths, *, port: int, engine_port: int) -> Recipe:
    """Return a preset's recipe; with `gpu` that of the best plan for a model on these cards."""
    if gpu is not None:
        return _planned(name, gpu, paths, port=port, engine_port=engine_port)
    folder = presets_folder(paths)
    if find_preset(name, folder) is None and find_geometry(name) is not None:
        raise UserError(f"`{name}` is a model, not a preset", hint='say on which cards: --gpu "2x rtx-3090"')
    return recipe_of(preset(name, folder), port=port, engine_port=engine_port)


def _planned(model: str, gpu: str, paths: Paths, *, port: int, engine_port: int) -> Recipe:
    """As `skep plan MODEL --gpu ...` has it; which files the weights are is left to the user."""
    plan = best_plan(simulated_flags(ServeRequest(model, gpu=(gpu,)), paths), paths.store)
    setup, rig = plan.setup, plan.rated.rig
    if of_machines(rig):
        raise UserError(f"`{gpu}` are machines of their own", hint=f"`skep plan {model}` prints a line for each")
    check_engine(setup.engine, model)
    title = f"{setup.model.title}, {setup.quant.title}, {setup.layout} on {rig.title}: the best that skep plans"
    launches = launches_of(setup, rig)
    return recipe_with(launches, rig.cards[0].vendor, title=title, cards=gpu, port=port, engine_port=engine_port)


# KillMode=mixed: skep gets TERM and drains; what is left after the time-out is killed.
_SERVICE = """\
# ~/.config/systemd/user/skep.service
# systemctl --user daemon-reload && systemctl --user enable --now skep
# loginctl enable-linger   # to serve without being logged in
[Unit]
Description=skep: one endpoint for a swarm of agents
After=network.target

[Service]
Type=exec
ExecStart={command} up
ExecReload={command} replica reload
WorkingDirectory={folder}
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec=120
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""


def service_unit(folder: Path) -> str:
    """Return a unit for the skep that runs now, started in this folder, so that a skep.toml there is found."""
    command = " ".join(map(systemd_word, own_command()))
    return _SERVICE.format(command=command, folder=str(folder).replace("%", "%%"))


def own_command() -> tuple[str, ...]:
    """Return the skep that runs now: a unit does not search where a shell does."""
    beside = Path(sys.executable).with_name("skep")
    return (str(beside),) if beside.exists() else (sys.executable, "-m", "skep")
