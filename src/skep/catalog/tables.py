"""A packaged TOML file taken apart by table, so that asking for one entry does not read the hundred others.

The files are written so that a line that begins with `[` begins a table; a test holds the pieces against the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from skep.catalog.names import squeeze


@lru_cache(maxsize=4)
def table_texts(file_name: str) -> Mapping[str, str]:
    """Return the text of each table by its name, in the order of the file."""
    from importlib.resources import files

    text = files("skep.catalog").joinpath(file_name).read_text(encoding="utf-8")
    parts = ("\n" + text).split("\n[")[1:]
    return {name.strip('"'): body for name, _, body in (part.partition("]\n") for part in parts)}


def table(file_name: str, name: str) -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(table_texts(file_name)[name])


@lru_cache(maxsize=4)
def spellings(file_name: str) -> Mapping[str, str]:
    """Return every squeezed id, title and alias with the id it stands for; where two claim one, the id goes first."""
    import tomllib

    kept = ("title = ", "aliases = ")
    texts = (
        "\n".join([f'["{name}"]', *(line for line in body.splitlines() if line.startswith(kept))])
        for name, body in table_texts(file_name).items()
    )
    told = tomllib.loads("\n".join(texts))
    called = ((name, alias) for name, said in told.items() for alias in (*said.get("aliases", ()), said["title"]))
    return {squeeze(alias): name for name, alias in called} | {squeeze(name): name for name in told}


def find_name(file_name: str, spelled: Sequence[str]) -> str | None:
    """Return the id that the first known spelling stands for. Where that is an id itself, no alias is read."""
    ids = {squeeze(name): name for name in table_texts(file_name)}
    if spelled and spelled[0] in ids:
        return ids[spelled[0]]
    known = spellings(file_name)
    return next((known[spelling] for spelling in spelled if spelling in known), None)
