"""The JSON Schema of what `--json` prints, from documents.toml and the records that it names; also
for docs/json.md.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import import_module, resources
from typing import Any

import msgspec

from skep.errors import UserError

PLAIN = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
}  # here and in JSON Schema


@cache
def read_documents() -> dict[str, Any]:
    return tomllib.loads(
        resources.files("skep.report").joinpath("documents.toml").read_text(encoding="utf-8")
    )


def document_names() -> list[str]:
    return [name for one in read_documents()["document"] for name in one["commands"]]


def schema_of(command: str) -> dict[str, Any]:
    found = next((one for one in read_documents()["document"] if command in one["commands"]), None)
    if found is None:
        raise UserError(f"there is no document `{command}`", hint="`skep schema` lists the names")
    parts: dict[str, Any] = {}
    schema = schema_of_type(found["is"], parts)
    draft = "https://json-schema.org/draft/2020-12/schema"
    about = " ".join(f"{found['what']}. {found.get('about', '')}".split())
    head = {"$schema": draft, "title": f"skep {command} --json", "description": about}
    return {**head, **schema, "$defs": dict(sorted(parts.items()))}


def schema_of_type(kind: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type as documents.toml writes it; `parts` gets the types that it
    refers to.
    """
    if "|" in kind:
        return {"anyOf": [schema_of_type(one, parts) for one in kind.split("|")]}
    if kind.endswith("?"):
        return {"anyOf": [schema_of_type(kind[:-1], parts), {"type": "null"}]}
    if kind[0] in "[{":
        inner = schema_of_type(kind[1:-1], parts)
        is_list = kind[0] == "["
        if is_list:
            return {"type": "array", "items": inner}
        return {"type": "object", "additionalProperties": inner}
    if kind == "any" or kind in PLAIN:
        if kind in PLAIN:
            return {"type": PLAIN[kind]}
        return {}
    if kind not in parts:
        parts[kind] = {}  # it may hold itself
        types = read_documents()["type"]
        table = dict(types[kind])
        table = {**types.get(table.pop("like", ""), {}), **table}
        if "of" in table:
            properties = _fields_of(table.pop("of"), parts)
        else:
            properties = {}
        required = [*properties]
        for word, about in table.items():
            key, (own, _, meaning) = word.removesuffix("?"), about.partition(":")
            properties[key] = schema_of_type(own, parts) if own else properties[key]
            properties[key] |= {"description": meaning.strip()} if meaning else {}
            required += [key] if word == key and key not in required else []
        is_open = properties.pop("*", None) is not None
        parts[kind] = {
            "type": "object",
            "properties": properties,
            "required": [one for one in required if one != "*"],
        }
        parts[kind] |= {"additionalProperties": True} if is_open else {}
    return {"$ref": f"#/$defs/{kind}"}


def _fields_of(path: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, "MODULE.CLASS" below skep."""
    module, _, name = path.rpartition(".")
    record = getattr(import_module(f"skep.{module}"), name)
    # Of a path.
    hook = {
        "schema_hook": lambda _kind: {"type": "string"},
        "ref_template": "#/$defs/{name}",
    }
    _, found = msgspec.json.schema_components([record], **hook)  # type: ignore[arg-type]
    for title, one in found.items():
        if "properties" in one:  # what is printed has all fields, also those with a default
            one["required"] = [*one["properties"]]
        if title in read_documents()["type"]:
            schema_of_type(title, parts)
        elif title != name:
            parts[title] = one
    return {key: dict(field) for key, field in found[name]["properties"].items()}
