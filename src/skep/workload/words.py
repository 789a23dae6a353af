"""Small Python functions with holes for names and numbers: each can be asked for, tested, mended or documented.

`{thing}`, `{things}`, `{field}` and `{number}` are filled in by the caller. `bug` is a text of the code and what it
becomes in the broken version.
"""

from __future__ import annotations

from dataclasses import dataclass

from skep.workload.data import read_data


@dataclass(frozen=True, slots=True)
class Idea:
    name: str
    summary: str  # completes "a Python function that ..."
    code: str
    bug: tuple[str, str]

    @property
    def broken_code(self) -> str:
        return self.code.replace(*self.bug, 1)


def _ideas(kind: str) -> tuple[Idea, ...]:
    return tuple(
        Idea(one["name"], one["summary"], one["code"], (one["bug"][0], one["bug"][1]))
        for one in read_data("words.toml")[kind]
    )


TINY = _ideas("tiny")
FULL = _ideas("full")


_DATA = read_data("words.toml")

THINGS: tuple[tuple[str, str], ...] = tuple(
    (one, many) for one, _, many in (pair.partition("/") for pair in _DATA["things"].split())
)
FIELDS: tuple[str, ...] = tuple(_DATA["fields"].split())
ADJECTIVES: tuple[str, ...] = tuple(_DATA["adjectives"].split())
CLOSINGS: tuple[str, ...] = tuple(_DATA["closings"])
REQUIREMENTS: tuple[str, ...] = tuple(_DATA["wishes"])
