"""The page docs/cli.md, from the commands themselves."""

from __future__ import annotations

from typing import Any

import click

from skep.cli.main import ALIASES, OPTION_ALIASES, PARTS, help_page, tree_of
from skep.cli.options import ROOT

_INTRO = """\
# The command line

Written by `make docs` from the commands' own help; a test holds it against them.

Data goes to stdout, narration and progress to stderr. `--json` prints [one JSON document](json.md) on stdout.
Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 does not fit, 4 regression.

Other names are understood: `ls` for `list`, `rm` for `remove`, and

{names}
"""


def cli_reference() -> str:
    root = tree_of(PARTS)
    names = [f"- `skep {old}` is `skep {new}`" for old, new in ALIASES.items()]
    for command, options in OPTION_ALIASES.items():
        words = ", ".join(f"`{old}` for `{new}`" for old, new in options.items())
        names.append(f"- of `skep {command}`: {words}")
    pages = [_INTRO.format(names="\n".join(names))]
    for path, command in _walk(root, ("skep",)):
        context = _context(command, path)
        text = help_page(everything=True) if path == ("skep",) else command.get_help(context).rstrip()
        pages.append(f"## `{' '.join(path)}`\n\n```text\n{text}\n```\n")
    return "\n".join(pages)


def _walk(command: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    found = [(path, command)]
    for name, child in sorted(getattr(command, "commands", {}).items()):
        found.extend(_walk(child, (*path, name)))
    return found


def _context(command: Any, path: tuple[str, ...]) -> Any:
    """Return a fixed width, so that the page does not depend on a terminal."""
    return click.Context(command, info_name=" ".join(path), terminal_width=100, **ROOT.context_settings)
