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
    return [name for document in read_documents()["document"] for name in document["commands"]]


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of what `skep COMMAND --json` prints; raise UserError for other names."""
    about_commands = read_documents()["document"]
    document = next((entry for entry in about_commands if command in entry["commands"]), None)
    if document is None:
        raise UserError(f"there is no document `{command}`", hint="`skep schema` lists the names")
    parts: dict[str, Any] = {}
    schema = schema_of_type(document["is"], parts)
    description = f"{document['what']}. {document.get('about', '')}"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"skep {command} --json",
        "description": " ".join(description.split()),
        **schema,
        "$defs": dict(sorted(parts.items())),
    }


def schema_of_type(kind: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type as documents.toml writes it; `parts` gets the types that it
    refers to.
    """
    if "|" in kind:
        return {"anyOf": [schema_of_type(part, parts) for part in kind.split("|")]}
    if kind.endswith("?"):
        return {"anyOf": [schema_of_type(kind[:-1], parts), {"type": "null"}]}
    if kind[0] == "[":
        return {"type": "array", "items": schema_of_type(kind[1:-1], parts)}
    if kind[0] == "{":
        return {"type": "object", "additionalProperties": schema_of_type(kind[1:-1], parts)}
    if kind == "any":
        return {}
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if kind not in parts:
        parts[kind] = {}  # it may hold itself
        parts[kind] = _schema_of_table(kind, parts)
    return {"$ref": f"#/$defs/{kind}"}


def _schema_of_table(kind: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a table of documents.toml: of the fields that it names, after those of
    the record that it is made `of`, and of the table that it is `like`.
    """
    types = read_documents()["type"]
    table = dict(types[kind])
    table = {**types.get(table.pop("like", ""), {}), **table}
    properties: dict[str, Any] = {}
    if "of" in table:
        properties = _fields_of(table.pop("of"), parts)
    required = list(properties)
    for name, about in table.items():
        key = name.removesuffix("?")
        field_type, _, meaning = about.partition(":")
        if field_type:
            properties[key] = schema_of_type(field_type, parts)
        if meaning:
            properties[key]["description"] = meaning.strip()
        if name == key and key not in required:
            required.append(key)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [key for key in required if key != "*"],
    }
    if properties.pop("*", None) is not None:
        schema["additionalProperties"] = True
    return schema


def _fields_of(path: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, "MODULE.CLASS" below skep."""
    module, _, name = path.rpartition(".")
    record = getattr(import_module(f"skep.{module}"), name)
    _, schemas = msgspec.json.schema_components(
        [record],
        schema_hook=lambda _path: {"type": "string"},
        ref_template="#/$defs/{name}",
    )
    for title, schema in schemas.items():
        if "properties" in schema:  # what is printed has all fields, also those with a default
            schema["required"] = [*schema["properties"]]
        if title in read_documents()["type"]:
            schema_of_type(title, parts)
        elif title != name:
            parts[title] = schema
    return {key: dict(field) for key, field in schemas[name]["properties"].items()}
