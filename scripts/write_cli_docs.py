"""Writes docs/cli.md and docs/json.md from the commands and the records.

`--check` says whether they are up to date.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from generated import write_or_check

from skep.cli.main import ALIASES, GROUPS, NAMES, PARTS, tree_of
from skep.report.schemas import read_documents

DOCS = Path(__file__).parent.parent / "docs"
COMMON = 3  # commands that share an option with one meaning, before it is explained once for all
CLI_INTRO = """\
# The command line

Every command with one example. `skep COMMAND --help` explains all of its options, `skep help --all` lists the commands,
`skep help topics` the pages of this documentation.
This page is written by `make docs`.

- Data goes to stdout; narration and progress go to stderr.
- `--json` prints [one JSON document](json.md).
- An error is one line `error: ...` and, where there is something to do, one line `hint: ...`.
- `skep --install-completion` prints the line that makes your shell complete commands and options.

| exit code | meaning |
|---|---|
| 0 | ok |
| 1 | failed |
| 2 | wrong usage, or something it needs is missing |
| 3 | does not fit the GPUs or the memory |
| 4 | regression (`bench ab`, `runs compare`), or something is wrong (`monitor check`) |
| 130 | a measurement, a tuning or a swarm run was interrupted; what it has is kept |
"""
OPTIONS_INTRO = """\
## Options with the same meaning everywhere

| option | meaning |
|---|---|
"""
OWN_INTRO = """\
## Options of each command

Names only, of commands with three or more; the options above are left out. `skep COMMAND --help` explains them.
"""


def cli_reference() -> str:
    """Return docs/cli.md."""
    root = tree_of(PARTS)
    pages = [CLI_INTRO]
    for title, commands in GROUPS.items():
        rows = [
            _command_row(path, leaf) for name in commands for path, leaf in _leaves(root, name)
        ]
        pages.append(
            f"## {title}\n\n| command | what it does | example |\n|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )
    leaves = [
        leave for commands in GROUPS.values() for name in commands for leave in _leaves(root, name)
    ]
    common = _common_options([leaf for _, leaf in leaves])
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in sorted(common.items())]
    pages.append(OPTIONS_INTRO + "\n".join(rows) + "\n")
    own = (
        (
            path,
            [
                _name(option)
                for option in _options(leaf)
                if common.get(_name(option)) != option.help
            ],
        )
        for path, leaf in leaves
    )
    lines = [f"- `{' '.join(path)}`: {' '.join(names)}" for path, names in own if len(names) > 2]
    pages.append(OWN_INTRO + "\n" + "\n".join(lines) + "\n")
    return "\n".join([*pages, _other_names()])


def _leaves(root: click.Group, name: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command, or those below it, each with its words; the word that may be left out is
    left out.
    """
    command = root.commands[name]
    default = getattr(command, "default", "")
    for below, child in getattr(command, "commands", {}).items():
        yield (name,) if below == default else (name, below), child
    if not getattr(command, "commands", {}):
        yield (name,), command


def _command_row(path: tuple[str, ...], command: click.Command) -> str:
    """Return the row of a command: the first part of what its help says, and its example where
    that says more.
    """
    words = " ".join(path)
    what = re.split(r"(?<=[.?]) |; ", (command.help or "").replace("\n", " "))[0].rstrip(".")
    example = (command.epilog or "").removeprefix("Example: ")
    return (
        f"| `{words}` | {_cell(what)} | "
        f"{f'`{_cell(example)}`' if example != f'skep {words}' else ''} |"
    )


def _options(command: click.Command) -> list[click.Option]:
    return [
        param for param in command.params if isinstance(param, click.Option) and not param.hidden
    ]


def _name(option: click.Option) -> str:
    return max(option.opts, key=len)


def _common_options(commands: list[click.Command]) -> dict[str, str]:
    """Return the options that several commands explain in the same words, with these."""
    counts = Counter(
        (_name(option), option.help or "") for command in commands for option in _options(command)
    )
    return {
        name: text for (name, text), count in reversed(counts.most_common()) if count >= COMMON
    }


def _other_names() -> str:
    """Return the names that are understood beside the present ones."""
    words = {old: new for old, new in ALIASES.items() if old.split()[-1] != new.split()[-1]}
    short = ", ".join(f"`{old}`" for old in ALIASES if old not in words and " " not in old)
    below = ", ".join(f"`{old}` for `{new}`" for old, new in NAMES["below"].items())
    also: dict[str, list[str]] = {}
    for options in NAMES["options"].values():
        for old, new in options.items():
            if old not in also.setdefault(new, []) and len(also[new]) < 1:
                also[new].append(old)
    commands = ", ".join(f"`{old}` for `{new}`" for old, new in words.items())
    options = "; ".join(f"`{new}`: {' '.join(old)}" for new, old in sorted(also.items()))
    return (
        "## Other names\n\n"
        f"- Commands: {commands}; below a command, {below}.\n"
        f"- Without their first word: {short}.\n"
        f"- Options, vLLM's own names among them, such as: {options}.\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def json_reference() -> str:
    """Return docs/json.md."""
    documents = read_documents()["document"]
    lines = (
        f"- {', '.join(f'`{name}`' for name in document['commands'])}: {document['what']}"
        for document in documents
    )
    return "\n".join([read_documents()["intro"].lstrip(), *lines]) + "\n"


PAGES = {DOCS / "cli.md": cli_reference, DOCS / "json.md": json_reference}


if __name__ == "__main__":
    sys.exit(write_or_check(PAGES))
