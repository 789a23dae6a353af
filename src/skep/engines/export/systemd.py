"""User units: one a replica, one for skep's gateway, each behind the name of its file.

A preset with an image runs in its container; else the engine is started as it is installed.
"""

from __future__ import annotations

import re

from skep.engines.base import Launch
from skep.engines.export.container import container_of, docker_words, fetching, variables_of
from skep.engines.export.recipe import (
    HERE,
    Recipe,
    before,
    environment,
    file_name,
    gateway_words,
    head,
    health_path,
    native_words,
    pulling,
    wants,
)
from skep.engines.export.words import Word, comments, folded, shell_word, systemd_word

FOLDER = "~/.config/systemd/user"
START_S = 1800  # weights to be read, graphs to be captured


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
