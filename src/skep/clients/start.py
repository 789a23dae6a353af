"""How a client is started: variables, arguments, files of our own; and the same as lines for a
shell.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from skep.clients.catalog import (
    Client,
    EndpointFacts,
    OwnFile,
    filled,
    first_path,
    leaves,
    merged,
    toml_value,
)
from skep.clients.edits import parsed
from skep.files import read_user_text, write_secret

HIDDEN_KEY = "@@the-key-of-skep@@"  # stands for the key in what is shown


class ClientStart(msgspec.Struct, frozen=True):
    """What is set before the client runs. The contents of files are by path."""

    program: str
    args: list[str]
    env: dict[str, str]
    unset: list[str]
    files: dict[str, str]

    def write_files(self) -> None:
        for path, text in self.files.items():
            write_secret(Path(path), text)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in env.items() if name not in self.unset}
        return {**inherited, **self.env}


def start_of(
    client: Client, facts: EndpointFacts, folder: Path, env: Mapping[str, str]
) -> ClientStart:
    """Return how the client starts.

    `folder`: of the files of our own, with one for each endpoint and model in it.
    """
    mark = sha256(f"{facts.root} {facts.model}".encode()).hexdigest()[:8]
    places = [folder / client.program / mark / file.name for file in client.own_files]
    facts = msgspec.structs.replace(facts, own=str(places[0]) if places else "")
    values = client.started_values(facts)
    variables = client.variables(facts)
    files: dict[str, str] = {}
    for place, file in zip(places, client.own_files, strict=True):
        files[str(place)] = _own_text(file, values, facts, env)
        if file.variable is not None:
            variables[file.variable] = str(place.parent if file.is_folder else place)
    if client.content_variable is not None:
        variables[client.content_variable] = json.dumps(values)
    args = filled(client.args, facts)
    if client.flag is not None:
        for path, value in leaves(values):
            args += [client.flag, f"{'.'.join(path)}={toml_value(value)}"]
    return ClientStart(client.program, args, variables, client.unset, files)


def _own_text(
    file: OwnFile, values: dict[str, Any], facts: EndpointFacts, env: Mapping[str, str]
) -> str:
    content = filled(file.values, facts) if file.values else values
    if file.extends and (users := first_path(file.extends, env)).exists():
        content = merged(parsed(read_user_text(users), "json", str(users)), content)
    return file.wrap.replace("{json}", json.dumps(content, indent=2))


def shell_lines(start: ClientStart, arguments: tuple[str, ...], key_variable: str) -> list[str]:
    """Return lines that do the same in a shell; the key stands there as its variable."""
    lines = []
    for path, text in start.files.items():
        place = shlex.quote(path)
        folder = shlex.quote(str(Path(path).parent))
        lines.append(f"mkdir -p {folder} && touch {place} && chmod 600 {place}")
        lines += [f"cat > {place} <<SKEP", _in_document(text, key_variable).rstrip("\n"), "SKEP"]
    lines += [f"unset {name}" for name in start.unset]
    lines += [f"export {name}={_quoted(value, key_variable)}" for name, value in start.env.items()]
    return [
        *lines,
        " ".join(_quoted(word, key_variable) for word in (start.program, *start.args, *arguments)),
    ]


def shown(value: str, key_variable: str) -> str:
    """Return a text with the name of the key's variable in the key's place."""
    return value.replace(HIDDEN_KEY, f"${key_variable}")


def _quoted(value: str, key_variable: str) -> str:
    parts = [shlex.quote(part) if part else "" for part in value.split(HIDDEN_KEY)]
    if len(parts) > 1:
        return f'"${key_variable}"'.join(parts)
    return shlex.quote(value)


def _in_document(text: str, key_variable: str) -> str:
    for special in ("\\", "$", "`"):
        text = text.replace(special, f"\\{special}")
    return shown(text, key_variable)
