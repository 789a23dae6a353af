"""The words prompts are made of: things a program handles, what is known of them, and wishes about the answer."""

from __future__ import annotations

from skep.workload.data import read_data

_DATA = read_data("words.toml")

THINGS: tuple[tuple[str, str], ...] = tuple(
    (one, many) for one, _, many in (pair.partition("/") for pair in _DATA["things"].split())
)
FIELDS: tuple[str, ...] = tuple(_DATA["fields"].split())
ADJECTIVES: tuple[str, ...] = tuple(_DATA["adjectives"].split())
CLOSINGS: tuple[str, ...] = tuple(_DATA["closings"])
WISHES: tuple[str, ...] = tuple(_DATA["wishes"])
