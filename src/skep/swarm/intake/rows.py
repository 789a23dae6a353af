"""The rows of a tasks file, one document each, by its form. A row that cannot be read is a row with a fault."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Any

from skep.errors import UserError
from skep.swarm.checking.said_json import NotJson, parse
from skep.swarm.intake.templates import Template

FORMS = ("jsonl", "text", "csv")


@dataclass(frozen=True, slots=True)
class Row:
    """`number`: the id of a task that has none. `place`: in words, for messages."""

    number: int
    place: str
    document: Any = None
    fault: str | None = None


def json_rows(text: str) -> Iterator[Row]:
    """Blank lines are left out, and counted."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            document = parse(line.strip(), once=True)
        except NotJson as error:
            yield Row(number, place, fault=_not_json(line, str(error).replace(" at line 1 column ", " at column ")))
            continue
        if isinstance(document, dict):
            yield Row(number, place, document)
        else:
            yield Row(number, place, fault=_no_object(document))


def text_rows(text: str, template: Template | None) -> Iterator[Row]:
    """With a template, `{}` or `{line}` is the line."""
    for number, line in enumerate(text.split("\n"), 1):
        prompt = line.strip()
        if prompt:
            yield Row(
                number, f"line {number}", {"prompt": prompt} if template is None else {"": prompt, "line": prompt}
            )


def csv_rows(text: str, name: str, template: Template | None, delimiter: str) -> Iterator[Row]:
    """UserError where the columns are not those that the template asks for. A quoted field may hold line ends."""
    before = csv.field_size_limit(len(text) + 1)  # the module's own limit, for all of the process: put back
    try:
        rows = _records(text, delimiter)
    finally:
        csv.field_size_limit(before)
    header_at, header = next(((line, row) for line, row, _ in rows if row), (1, []))
    columns = [column.strip() for column in header]
    _check_columns(columns, name, header_at, template)
    for line, row, fault in rows:
        if line <= header_at or (not row and fault is None):
            continue
        place = f"line {line}"
        if fault is not None:
            yield Row(line, place, fault=fault)
        elif len(row) != len(columns):
            yield Row(line, place, fault=f"{len(row)} fields, and the header has {len(columns)}")
        else:
            yield Row(line, place, _document(dict(zip(columns, row, strict=True)), template))


def _records(text: str, delimiter: str) -> list[tuple[int, list[str], str | None]]:
    """The line where each begins, its fields, and what is wrong. After a broken quote, nothing more is read."""
    reader = csv.reader(StringIO(text, newline=""), strict=True, delimiter=delimiter)
    found: list[tuple[int, list[str], str | None]] = []
    while True:
        line = reader.line_num + 1
        try:
            found.append((line, next(reader), None))
        except StopIteration:
            return found
        except csv.Error as error:
            found.append((line, [], f"broken CSV: {error}"))
            return found


def _check_columns(columns: list[str], name: str, line: int, template: Template | None) -> None:
    if not any(columns):
        raise UserError(f"{name} is empty", hint="the first row of a CSV file names its columns")
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise UserError(f"{name}, line {line}: the column `{twice}` is there twice")
    if template is None and "prompt" not in columns:
        named = ", ".join(f"`{column}`" for column in columns[:12])
        hint = "say how a row becomes a prompt: --template 'Summarise {title}: {text}'"
        raise UserError(f"{name} has no column `prompt`; it has {named}", hint=hint)
    missing = None if template is None else template.missing(columns)
    if missing is not None:
        raise UserError(f"{name}: {missing}")


def _document(fields: dict[str, str], template: Template | None) -> dict[str, Any]:
    """An empty id or system counts as left out."""
    document: dict[str, Any] = {key: fields[key] for key in ("id", "system") if fields.get(key, "").strip()}
    document["prompt"] = fields["prompt"] if template is None else template.fill(fields)
    return document


def _not_json(line: str, why: str) -> str:
    shown = " ".join(line.split())
    return f"not JSON: {why} in `{shown if len(shown) <= 50 else f'{shown[:49]}…'}`"


def _no_object(document: Any) -> str:
    if isinstance(document, list):
        return "a list; one object a line is wanted (`jq -c '.[]'` makes them)"
    return 'an object is wanted, such as {"id": "a", "prompt": "..."}'
