"""Writes docs/cli.md and docs/json.md from the commands and the records. `--check` says whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from skep.cli.main import ALIASES, NAMES, PARTS, help_page, tree_of
from skep.cli.options import ROOT
from skep.report.schemas import read_documents, schema_of_type

DOCS = Path(__file__).parent.parent / "docs"
CLI_INTRO = """\
# The command line

Written by `make docs` from the commands' own help; a test holds it against them.

Data goes to stdout, narration and progress to stderr. `--json` prints [one JSON document](json.md) on stdout.
Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 does not fit, 4 regression.

Other names are understood: `ls` for `list`, `rm` for `remove`, and

{names}
"""


def cli_reference() -> str:
    """Return docs/cli.md, with a fixed width, so that it does not depend on a terminal."""
    names = [f"- `skep {old}` is `skep {new}`" for old, new in ALIASES.items()]
    for command, options in NAMES["options"].items():
        words = ", ".join(f"`{old}` for `{new}`" for old, new in options.items())
        names.append(f"- of `skep {command}`: {words}")
    pages = [CLI_INTRO.format(names="\n".join(names))]
    for path, command in _walk(tree_of(PARTS), ("skep",)):
        context = click.Context(command, info_name=" ".join(path), terminal_width=100, **ROOT.context_settings)
        text = help_page(everything=True) if path == ("skep",) else command.get_help(context).rstrip()
        pages.append(f"## `{' '.join(path)}`\n\n```text\n{text}\n```\n")
    return "\n".join(pages)


def _walk(command: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    found = [(path, command)]
    for name, child in sorted(getattr(command, "commands", {}).items()):
        found.extend(_walk(child, (*path, name)))
    return found


def json_reference() -> str:
    """Return the page docs/json.md."""
    pages, seen = [read_documents()["intro"]], set[str]()
    for one in read_documents()["document"]:
        heading = ", ".join(f"`skep {name} --json`" for name in one["commands"])
        pages.append(f"## {heading}\n\n{_words(one['is'])}. {one.get('about', '')}".rstrip() + "\n")
        parts: dict[str, Any] = {}
        schema_of_type(one["is"], parts)
        for name in (name for name in parts if name not in seen and "properties" in parts[name]):
            seen.add(name)
            rows = (
                f"| `{key}` | {_words_of(field)} | {field.get('description', '')} |"
                for key, field in parts[name]["properties"].items()
            )
            pages.append("\n".join([f"| key of `{name}` | type | meaning |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(pages)


def _words(kind: str) -> str:
    kinds = (f"A list of `{one[1:-1]}`" if one.startswith("[") else f"`{one}`" for one in kind.split("|"))
    return " or ".join(kinds)


def _words_of(field: dict[str, Any]) -> str:
    """Return a schema as documents.toml would write it."""
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    if "anyOf" in field:
        kinds = [_words_of(one) for one in field["anyOf"]]
        return " or ".join(one for one in kinds if one != "null") + ("?" if "null" in kinds else "")
    kind = str(field.get("type", "any"))
    if kind == "array":
        inner = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"[{_words_of(inner or {})}]"
    if kind == "object":
        more = field.get("additionalProperties", {})
        return "{" + _words_of(more if isinstance(more, dict) else {}) + "}"
    return {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}.get(kind, kind)


PAGES = {DOCS / "cli.md": cli_reference, DOCS / "json.md": json_reference}


def main() -> int:
    if "--check" in sys.argv:
        return 0 if all(page.read_text() == text() for page, text in PAGES.items()) else 1
    for page, text in PAGES.items():
        page.write_text(text())
        print(f"wrote {page.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
