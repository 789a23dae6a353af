"""Results of other tools as levels of ours: `vllm bench serve --save-result` and guidellm's JSON report. Pure.

What a file does not tell is None. Where it lists its requests, figures are made from them by our definitions; else they
are the tool's own. A level needs a concurrency: what was asked for, else how many were in flight on average.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from skep.bench.foreign import EXPECTED, Told, levels_told
from skep.bench.guidellm_report import read_guidellm
from skep.bench.vllm_result import read_vllm
from skep.errors import StoreError, UserError
from skep.records import LevelSummary, Request


@dataclass(frozen=True, slots=True)
class Imported:
    """Levels are in order of C; two of the same C stay two. `rows` are there where the file lists every request."""

    tool: str  # "vllm bench serve" | "guidellm 0.8.1"
    model: str | None
    created_at: float | None  # unix time
    config: Mapping[str, Any]  # what the tool was asked to do, as it wrote it down
    levels: tuple[LevelSummary, ...]
    rows: tuple[Request, ...] = ()


def read_import(text: str, name: str) -> Imported:
    """`name` is the file's, for messages. Raises UserError for what cannot become levels."""
    documents = _documents(text, name)
    if len(documents) == 1 and isinstance(documents[0].get("benchmarks"), list):
        found = read_guidellm(documents[0], name)
    elif all("duration" in document and "completed" in document for document in documents):
        found = read_vllm(documents, name)
    else:
        raise UserError(f"`{name}` is no result of a tool that is known", hint=EXPECTED)
    return Imported(
        tool=found.tool,
        model=found.model,
        created_at=found.created_at,
        config={"file": name, "results": [dict(told.config or {}) for told in found.told]},
        levels=levels_told(found.told),
        rows=_rows(found.told),
    )


def imported_levels_json(levels: Iterable[LevelSummary]) -> list[dict[str, Any]]:
    """Plain JSON values, to be stored; `levels_from_json` gives the same levels back."""
    plain: list[dict[str, Any]] = msgspec.to_builtins(list(levels))
    return plain


def levels_from_json(stored: Any) -> tuple[LevelSummary, ...]:
    try:
        return msgspec.convert(stored, tuple[LevelSummary, ...])
    except msgspec.ValidationError as error:
        raise StoreError(f"stored levels cannot be read: {error}", hint="import the file again") from None


def _documents(text: str, name: str) -> list[dict[str, Any]]:
    """One object, or one a line, as `--append-result` writes them."""
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            found = []
    if not found or not all(isinstance(document, dict) for document in found):
        raise UserError(f"`{name}` is not a JSON object", hint=EXPECTED)
    return found


def _rows(told: Sequence[Told]) -> tuple[Request, ...]:
    """Only where the file tells all of them with their times. A level that comes again is its next run."""
    seen: Counter[int] = Counter()
    rows: list[Request] = []
    for one in told:
        if one.all_times:
            rows += [replace(row, repeat=seen[one.concurrency]) for row in one.rows]
            seen[one.concurrency] += 1
    return tuple(rows)
