"""A compose.yaml: a service a replica, with its cards reserved and its health asked."""

from __future__ import annotations

import re

from skep.engines.base import Launch
from skep.engines.export.container import Contained, container_of, fetching, tag_notes, variables_of
from skep.engines.export.recipe import HERE, Recipe, before, file_name, gateway_words, head, pulling, wants
from skep.engines.export.words import Path, comments, shell_lines, shell_word, yaml_word

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


def _mounts(one: Contained) -> list[str]:
    """The long form: a colon in a path divides nothing."""
    lines = ["    volumes:"] if one.mounts else []
    for host, inside, read_only in one.mounts:
        lines += ["      - type: bind", f"        source: {yaml_word(Path(host.text))}"]
        lines += [f"        target: {yaml_word(inside)}", f"        read_only: {str(read_only).lower()}"]
    return lines


def _environment(one: Contained) -> list[str]:
    lines = ["    environment:"] if one.env or one.passed else []
    lines += [f"      {yaml_word(name)}: {yaml_word(value)}" for name, value in one.env]
    return lines + [f'      {name}: "${{{name}:-}}"' for name in one.passed]


def _listed(key: str, words: tuple[str, ...], *, above: str | None = None) -> list[str]:
    lines, deep = ([f"    {above}:"], "      ") if above else ([], "    ")
    if not words:
        return []
    return [*lines, f"{deep}{key}:", *(f"{deep}  - {yaml_word(word)}" for word in words)]


def _cards(one: Contained) -> list[str]:
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
