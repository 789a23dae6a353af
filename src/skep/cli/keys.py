"""Commands for clients' keys: key add, key list, key remove."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from skep.cli.options import JsonOption, argument, command, group, option
from skep.paths import user_paths
from skep.report.terminal import note, print_list

if TYPE_CHECKING:
    from skep.config.keys import KeyEntry

key_app = group("key", "Manage the API keys of the gateway's clients, with their priority and limits.")

NameArgument = Annotated[str, argument("1 to 64 of the characters A-Z a-z 0-9 . _ -")]


@command(key_app, "skep key add nightly-evals --class batch --max-concurrent 8")
def add(
    name: NameArgument,
    priority: Annotated[
        str | None,
        option("Highest priority of the key: interactive, normal or batch. Default: as the client asks.", "--class"),
    ] = None,
    max_concurrent: Annotated[int | None, option("Concurrent requests. Default: no limit.", min=1)] = None,
    rate: Annotated[
        str | None, option("Requests per s, m, h or d, such as 60/m, which may also come at once. Default: no limit.")
    ] = None,
) -> None:
    """Make a key and print it, this once: only its digest is kept."""
    from skep.config.keys import KeyEntry, add_entry, checked, digest_of, keys_path, new_key, remove_entry

    path = keys_path(user_paths(os.environ))
    key = new_key()
    created = datetime.now(UTC).replace(microsecond=0)
    add_entry(path, checked(KeyEntry(name, digest_of(key), priority, max_concurrent, rate, created)))
    try:
        print(key, flush=True)  # noqa: T201
    except OSError:
        remove_entry(path, name)  # nobody has seen it
        raise
    note(f"this is the key of `{name}`, shown this once; {path} has its digest")
    note("`skep replica reload` makes a running hive take it")


@command(key_app, "skep key list --json", name="list")
def list_keys(as_json: JsonOption = False) -> None:
    """The keys' names and limits. The keys themselves are not stored."""
    from skep.config.keys import keys_path, loose_mode, read_entries

    path = keys_path(user_paths(os.environ))
    entries = read_entries(path)
    if warning := loose_mode(path):
        note(f"warning: {warning}")
    none_yet = f"no keys in {path}; `skep key add NAME` makes one"
    print_list(entries, "NAME|CLASS|>AT ONCE|RATE|CREATED", _cells, _document, as_json=as_json, none_yet=none_yet)


def _document(entry: KeyEntry) -> dict[str, Any]:
    created = entry.created.isoformat() if entry.created else None
    limits = {"class": entry.priority, "max_concurrent": entry.max_concurrent, "rate": entry.rate}
    return {"name": entry.name, **limits, "created": created, "sha256": entry.sha256}


def _cells(entry: KeyEntry) -> list[Any]:
    row = _document(entry)
    return [row["name"], *(row[key] or "any" for key in ("class", "max_concurrent", "rate")), row["created"]]


@command(key_app, "skep key remove nightly-evals")
def remove(name: NameArgument) -> None:
    """Take a key back."""
    from skep.config.keys import keys_path, remove_entry

    path = keys_path(user_paths(os.environ))
    stay = remove_entry(path, name)
    note(f"the key of `{name}` is removed" + ("" if stay else "; it was the last one"))
    note("a running hive still takes it until `skep replica reload`")
