"""Calls of tools with arguments that fit the schema of each client's own tool.

Clients name the same things differently: `Write(file_path, content)`, `write(filePath, content)`,
`write_file`, or have a shell alone."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from skep.errors import UserError
from skep.testing.agent_turn import ToolOffer

PATHS = ("file_path", "filePath", "path", "absolute_path", "filename")
CONTENTS = ("content", "contents", "text", "file_text")
COMMANDS = ("command", "cmd", "script", "commands")
ORDERS = ("prompt", "message", "task", "instructions")
WRITERS = re.compile(r"(?i)^(write|create)(_?(to_)?file)?$")
SHELLS = re.compile(
    r"(?i)^(bash|shell|exec_command|run_shell_command|shell_command|execute_command|run_commands)$"
)
DELEGATES = re.compile(r"(?i)^(task|agent|spawn_agent|delegate|subagent|spawn_subagent)$")
AGENT_KINDS = ("general-purpose", "general")


class ToolCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str  # JSON
    namespace: str | None = None


def forced_call(offer: ToolOffer) -> ToolCall:
    """Return a call with a value for whatever the schema requires; for everything, where it
    requires nothing.
    """
    schema = offer.schema
    required = schema.get("required") or list(properties_of(schema))
    return call_of(offer, samples_of(required, schema))


def write_call(offers: Iterable[ToolOffer], path: str, content: str) -> ToolCall:
    """Return a call that writes a file.

    Raise UserError where the client has neither a tool that writes files nor a shell.
    """
    offered = list(offers)
    for offer in offered:
        names = properties_of(offer.schema)
        path_name = first_of(PATHS, names)
        content_name = first_of(CONTENTS, names)
        if WRITERS.match(offer.name) and path_name and content_name:
            return filled(offer, {path_name: path, content_name: content})
    command = f"printf %s {shlex.quote(content)} > {shlex.quote(path)}"
    return shell_call(offered, command)


def shell_call(offers: Iterable[ToolOffer], command: str) -> ToolCall:
    for offer in offers:
        names = properties_of(offer.schema)
        name = first_of(COMMANDS, names)
        if SHELLS.match(offer.name) and name:
            is_list = names[name].get("type") == "array"
            if not is_list:
                argument: str | list[str] = command
            elif name == "command":
                argument = ["bash", "-c", command]
            else:
                argument = [command]
            return filled(offer, {name: argument})
    raise UserError("the client offers neither a tool that writes files nor a shell")


def delegate_call(offers: Iterable[ToolOffer], prompt: str) -> ToolCall:
    for offer in offers:
        names = properties_of(offer.schema)
        name = first_of(ORDERS, names)
        if DELEGATES.match(offer.name) and name:
            arguments: dict[str, Any] = {name: prompt}
            kind = names.get("subagent_type")
            if kind is not None:
                kinds = kind.get("enum")
                fitting = [word for word in AGENT_KINDS if word in (kinds or offer.description)]
                arguments["subagent_type"] = (fitting or kinds or AGENT_KINDS)[0]
            return filled(offer, arguments)
    raise UserError("the client offers no tool that starts a sub-agent")


def filled(offer: ToolOffer, arguments: dict[str, Any]) -> ToolCall:
    """Return a call with these arguments and a sample of each other one that is required."""
    schema = offer.schema
    required = schema.get("required") or ()
    missing = [name for name in required if name not in arguments]
    samples = samples_of(missing, schema)
    return call_of(offer, arguments | samples)


def samples_of(names: Iterable[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a small value for each of these properties."""
    return {name: sample(property_of(schema, name), schema) for name in names}


def call_of(offer: ToolOffer, arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall(
        name=offer.name,
        arguments=json.dumps(arguments, ensure_ascii=False),
        namespace=offer.namespace,
    )


def first_of(names: Iterable[str], offered: Iterable[str]) -> str | None:
    return next((name for name in names if name in offered), None)


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema.get("properties") or {}


def property_of(schema: Mapping[str, Any], name: str) -> Any:
    return properties_of(schema).get(name) or {}


def sample(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a small value that the schema takes."""
    if not isinstance(schema, dict) or depth > 8:
        return "x"
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    if "$ref" in schema:
        target = resolved(schema["$ref"], root)
        return sample(target, root, depth + 1)
    for name in ("anyOf", "oneOf", "allOf"):
        parts = [part for part in schema.get(name) or () if part != {"type": "null"}]
        if parts:
            return sample(parts[0], root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "string")
    return sample_of_kind(kind, schema, root, depth)


def sample_of_kind(
    kind: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
) -> Any:
    match kind:
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            return [
                sample(schema.get("items"), root, depth + 1)
                for _ in range(schema.get("minItems", 1))
            ]
        case "object":
            names = schema.get("required") or ()
            return {name: sample(property_of(schema, name), root, depth + 1) for name in names}
    return "x" * max(1, schema.get("minLength", 1))


def resolved(reference: str, root: Mapping[str, Any]) -> Any:
    value: Any = root
    for step in reference.removeprefix("#/").split("/"):
        value = value.get(step) if isinstance(value, dict) else None
    return value
