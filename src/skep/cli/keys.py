"""Commands for clients' keys: key add, key list, key remove."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from skep.cli.options import JsonOption

key_app = typer.Typer(
    no_args_is_help=True,
    help="Manage the API keys of the gateway's clients, with their priority and limits.",
    rich_markup_mode=None,
)

NameArgument = Annotated[str, typer.Argument(help="1 to 64 of the characters A-Z a-z 0-9 . _ -")]


def register(app: typer.Typer) -> None:
    app.add_typer(key_app, name="key")
    key_app.command("add", epilog="Example: skep key add nightly-evals --class batch --max-concurrent 8")(add)
    key_app.command("list", epilog="Example: skep key list --json")(list_keys)
    key_app.command("remove", epilog="Example: skep key remove nightly-evals")(remove)


def add(
    name: NameArgument,
    priority: Annotated[
        str | None,
        typer.Option(
            "--class", help="Highest priority of the key: interactive, normal or batch. Default: as the client asks."
        ),
    ] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Concurrent requests. Default: no limit.")] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Requests per s, m, h or d, such as 60/m, which may also come at once. Default: no limit."),
    ] = None,
) -> None:
    """Make a key and print it, this once: only its digest is kept."""
    from datetime import UTC, datetime

    from skep.cli.output import note
    from skep.config.keys import add_entry, digest_of, keys_path, make_entry, new_key, remove_entry
    from skep.paths import user_paths

    path = keys_path(user_paths(os.environ))
    key = new_key()
    created = datetime.now(UTC).replace(microsecond=0)
    entry = make_entry(
        name, digest_of(key), priority=priority, max_concurrent=max_concurrent, rate=rate, created=created
    )
    add_entry(path, entry)
    try:
        print(key, flush=True)  # noqa: T201
    except OSError:
        remove_entry(path, name)  # nobody has seen it
        raise
    note(f"this is the key of `{name}`, shown this once; {path} has its digest")
    note("`skep reload` makes a running hive take it")


def list_keys(as_json: JsonOption = False) -> None:
    """The keys' names and limits. The keys themselves are not stored."""
    from skep.cli.output import note, print_json, print_table
    from skep.config.keys import keys_path, loose_mode, read_entries
    from skep.paths import user_paths

    path = keys_path(user_paths(os.environ))
    entries = read_entries(path)
    if warning := loose_mode(path):
        note(f"warning: {warning}")
    rows: list[dict[str, Any]] = [
        {
            "name": entry.spec.name,
            "class": entry.spec.priority,
            "max_concurrent": entry.spec.max_concurrent,
            "rate": entry.rate,
            "created": entry.created.isoformat() if entry.created else None,
            "sha256": entry.spec.sha256,
        }
        for entry in entries
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        note(f"no keys in {path}; `skep key add NAME` makes one")
    else:
        limits = ("class", "max_concurrent", "rate")
        cells = [[row["name"], *(str(row[key] or "any") for key in limits), row["created"] or "–"] for row in rows]
        print_table(("NAME", "CLASS", "AT ONCE", "RATE", "CREATED"), cells, right=("AT ONCE",))


def remove(name: NameArgument) -> None:
    """Take a key back."""
    from skep.cli.output import note
    from skep.config.keys import keys_path, remove_entry
    from skep.paths import user_paths

    path = keys_path(user_paths(os.environ))
    stay = remove_entry(path, name)
    note(f"the key of `{name}` is removed" + ("" if stay else "; it was the last one"))
    note("a running hive still takes it until `skep reload`")
