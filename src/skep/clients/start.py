"""How a client is started: its variables, arguments and the files that skep keeps for it; and the
same as lines for a shell.
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
    """What a client is started with. The contents of files are by path."""

    program: str
    args: list[str]
    env: dict[str, str]
    unset: list[str]
    files: dict[str, str]

    def write_files(self) -> None:
        for path, text in self.files.items():
            write_secret(Path(path), text)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the client's process: those of `env`, then its own."""
        inherited = {name: value for name, value in env.items() if name not in self.unset}
        return {**inherited, **self.env}


def start_of(
    client: Client, facts: EndpointFacts, folder: Path, env: Mapping[str, str]
) -> ClientStart:
    """Return how the client starts.

    `folder`: of the files of our own, with one for each endpoint and model in it.
    """
    mark = sha256(f"{facts.root} {facts.model}".encode()).hexdigest()[:8]
    own_paths = [folder / client.program / mark / file.name for file in client.own_files]
    if own_paths:
        facts = msgspec.structs.replace(facts, own_file=str(own_paths[0]))
    values = client.started_values(facts)
    variables = client.variables(facts)
    files: dict[str, str] = {}
    for path, file in zip(own_paths, client.own_files, strict=True):
        files[str(path)] = _own_text(file, values, facts, env)
        if file.variable is None:
            continue
        if file.is_folder:
            variables[file.variable] = str(path.parent)
        else:
            variables[file.variable] = str(path)
    if client.content_variable is not None:
        variables[client.content_variable] = json.dumps(values)
    return ClientStart(
        program=client.program,
        args=[*filled(client.args, facts), *_flags(client, values)],
        env=variables,
        unset=client.unset,
        files=files,
    )


def _flags(client: Client, values: dict[str, Any]) -> list[str]:
    """Return the values as flags, for a client that takes them so."""
    flags: list[str] = []
    if client.flag is None:
        return flags
    for names, value in leaves(values):
        name = ".".join(names)
        flags.append(client.flag)
        flags.append(f"{name}={toml_value(value)}")
    return flags


def _own_text(
    file: OwnFile, values: dict[str, Any], facts: EndpointFacts, env: Mapping[str, str]
) -> str:
    """Return what a file of skep's own holds: its values over those of the user's file."""
    content = values
    if file.values:
        content = filled(file.values, facts)
    if file.extends:
        user_path = first_path(file.extends, env)
        if user_path.exists():
            user_values = parsed(read_user_text(user_path), "json", str(user_path))
            content = merged(user_values, content)
    text = json.dumps(content, indent=2)
    return file.wrap.replace("{json}", text)


def shell_lines(start: ClientStart, arguments: tuple[str, ...], key_variable: str) -> list[str]:
    """Return lines that do the same in a shell; the key stands there as its variable."""
    lines = []
    for path, text in start.files.items():
        file = shlex.quote(path)
        folder = shlex.quote(str(Path(path).parent))
        lines.append(f"mkdir -p {folder} && touch {file} && chmod 600 {file}")
        lines.append(f"cat > {file} <<SKEP")
        lines.append(_in_document(text, key_variable).rstrip("\n"))
        lines.append("SKEP")
    lines += [f"unset {name}" for name in start.unset]
    for name, value in start.env.items():
        lines.append(f"export {name}={_quoted(value, key_variable)}")
    command = (start.program, *start.args, *arguments)
    words = [_quoted(word, key_variable) for word in command]
    lines.append(" ".join(words))
    return lines


def shown(value: str, key_variable: str) -> str:
    """Return a text with the name of the key's variable in the key's place."""
    return value.replace(HIDDEN_KEY, f"${key_variable}")


def _quoted(value: str, key_variable: str) -> str:
    """Return a word for the shell, in which the key's variable is still replaced."""
    parts = [shlex.quote(part) if part else "" for part in value.split(HIDDEN_KEY)]
    if len(parts) > 1:
        return f'"${key_variable}"'.join(parts)
    return shlex.quote(value)


def _in_document(text: str, key_variable: str) -> str:
    """Return a text for a here-document, in which only the key's variable is replaced."""
    for special in ("\\", "$", "`"):
        text = text.replace(special, f"\\{special}")
    return shown(text, key_variable)
