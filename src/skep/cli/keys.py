"""Commands for clients' keys: key add, key list, key remove."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from skep.cli.options import JsonOption, argument, command, group, option
from skep.paths import user_paths
from skep.report.terminal import note, print_list, print_table

if TYPE_CHECKING:
    from skep.config.keys import KeySpec

key_app = group("key", "Manage API keys for clients of the gateway, with priority and limits.")

NameArgument = Annotated[str, argument("Name of the key: 1 to 64 of A-Z a-z 0-9 . _ -")]


@command(key_app, "skep key add nightly-evals --class batch --max-concurrent 8")
def add(
    name: NameArgument,
    priority: Annotated[
        str | None,
        option(
            "Highest priority the key may ask for: interactive, normal or batch (default: any).",
            "--class",
        ),
    ] = None,
    max_concurrent: Annotated[
        int | None, option("Maximum concurrent requests (default: no limit).", min=1)
    ] = None,
    rate: Annotated[
        str | None,
        option(
            "Maximum requests per s, m, h or d, such as 60/m, also in one burst (default: "
            "no limit)."
        ),
    ] = None,
    admin: Annotated[
        bool,
        option(
            "On the dashboard the key may see and change everything: swarm runs, prompts, notes."
        ),
    ] = False,
) -> None:
    """Create a key and print it once. Only its digest is stored."""
    from skep.config.keys import (
        KeySpec,
        add_entry,
        checked,
        digest_of,
        keys_path,
        new_key,
        remove_entry,
    )

    path = keys_path(user_paths(os.environ))
    key = new_key()
    created = datetime.now(UTC).replace(microsecond=0)
    add_entry(
        path,
        checked(KeySpec(name, digest_of(key), priority, max_concurrent, rate, created, admin)),
    )
    try:
        print(key, flush=True)  # noqa: T201
    except OSError:
        remove_entry(path, name)  # nobody has seen it
        raise
    note(f"this is the key of `{name}`, shown only once; {path} stores its digest")
    note("a running deployment accepts it after `skep replica reload`")
    note(
        "from then on every request needs a key, from this machine too: `Authorization: "
        "Bearer KEY`"
    )


@command(key_app, "skep key list --json", name="list")
def list_keys(as_json: JsonOption = False) -> None:
    """List key names and limits. The keys themselves are not stored."""
    from skep.config.keys import keys_path, read_keys

    path = keys_path(user_paths(os.environ))
    entries = read_keys(path)
    none_yet = f"no keys in {path}; `skep key add NAME` makes one"
    table = partial(print_table, "NAME|CLASS|>CONCURRENT|RATE|ADMIN|CREATED", _cells)
    print_list(entries, table, _document, as_json=as_json, none_yet=none_yet)


def _document(entry: KeySpec) -> dict[str, Any]:
    created = entry.created.isoformat() if entry.created else None
    limits = {"class": entry.priority, "max_concurrent": entry.max_concurrent, "rate": entry.rate}
    return {
        "name": entry.name,
        **limits,
        "admin": entry.admin,
        "created": created,
        "sha256": entry.sha256,
    }


def _cells(entry: KeySpec) -> list[Any]:
    row = _document(entry)
    limits = [row[name] or "any" for name in ("class", "max_concurrent", "rate")]
    mark = "yes" if entry.admin else "no"
    return [entry.name, *limits, mark, row["created"]]


@command(key_app, "skep key remove nightly-evals")
def remove(name: NameArgument) -> None:
    """Delete a key. A running deployment accepts it until `skep replica reload`."""
    from skep.config.keys import keys_path, remove_entry

    path = keys_path(user_paths(os.environ))
    stay = remove_entry(path, name)
    note(f"the key of `{name}` is removed" + ("" if stay else "; it was the last one"))
    note("a running deployment still accepts it until `skep replica reload`")
