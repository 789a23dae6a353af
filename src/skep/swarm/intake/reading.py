"""Tasks as files and documents have them. Every fault is told, with its line, before anything runs.

Three forms: JSON Lines (an object a line), text (a prompt a line) and CSV (a template and its columns).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Unpack

from skep.errors import UserError
from skep.swarm.checking.said_json import NotJson, parse
from skep.swarm.checking.schemas import check_schema
from skep.swarm.intake.form import Defaults, Faulty, TaskForm
from skep.swarm.intake.rows import FORMS, Row, csv_rows, json_rows, text_rows
from skep.swarm.intake.templates import Template, parse_template
from skep.tasks import Task

__all__ = ["FORMS", "Defaults", "read_schema", "read_tasks", "tasks_of"]

MOST_TOLD = 10
ENDINGS = {".txt": "text", ".text": "text", ".csv": "csv", ".tsv": "csv"}  # everything else: jsonl
HINT = "every line is checked first; nothing was run"


def read_tasks(
    path: Path | str,
    *,
    template: str | None = None,
    form: str | None = None,
    stdin: BinaryIO | None = None,
    **defaults: Unpack[Defaults],
) -> list[Task]:
    """`path`: `-` is stdin. `form`: jsonl, text or csv; by the name's ending unless told."""
    if form is not None and form not in FORMS:
        raise UserError(f"there is no form `{form}`", hint=f"there are {', '.join(FORMS)}")
    piped = str(path) == "-"
    name = "stdin" if piped else str(path)
    form = form or ENDINGS.get(Path(name).suffix.lower(), "jsonl")
    parsed = None if template is None else parse_template(template)
    maker = _maker(parsed, defaults)
    text = _decoded((stdin or sys.stdin.buffer).read() if piped else _read(Path(path)), name)
    if form == "csv":
        rows: Iterator[Row] = csv_rows(text, name, parsed, "\t" if name.lower().endswith(".tsv") else ",")
    elif form == "text":
        rows = text_rows(text, parsed)
    else:
        rows = json_rows(text)
    hint = f"{HINT}; `--form text` takes a prompt a line" if form == "jsonl" and _is_prose(text) else HINT
    return _gathered(rows, maker, name, hint)


def tasks_of(documents: Iterable[Any], *, template: str | None = None, **defaults: Unpack[Defaults]) -> list[Task]:
    """Of JSON that came another way: a list of objects as a JSONL line has them, or of plain prompts."""
    maker = _maker(None if template is None else parse_template(template), defaults)
    rows = (_row(number, document) for number, document in enumerate(documents, 1))
    return _gathered(rows, maker, "the list", "every task is checked first; nothing was run")


def _row(number: int, document: Any) -> Row:
    """What Python takes and JSON does not is a fault as well: NaN, sets, circles."""
    try:
        return Row(number, f"task {number}", parse(json.dumps(document, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        return Row(number, f"task {number}", fault=f"not JSON: {error}")


def read_schema(path: Path) -> dict[str, Any]:
    """Of `--schema FILE`."""
    try:
        schema = parse(_decoded(_read(path), str(path)), once=True)
    except NotJson as error:
        raise UserError(f"`{path}` is not JSON: {error}") from None
    try:
        check_schema(schema)
    except UserError as error:
        raise UserError(f"`{path}`: {error.message}", hint=error.hint) from None
    assert isinstance(schema, dict)
    return schema


def _maker(template: Template | None, defaults: Defaults) -> TaskForm:
    maker = TaskForm(template, defaults)
    for fault in maker.default_faults():
        raise UserError(fault)
    return maker


def _gathered(rows: Iterable[Row], maker: TaskForm, name: str, hint: str) -> list[Task]:
    tasks: list[Task] = []
    faults = _Faults(name, hint)
    places: dict[str, str] = {}
    for row in rows:
        if row.fault is not None:
            faults.add(row.place, row.fault)
            continue
        try:
            task = maker.task(row.document, str(row.number))
        except Faulty as error:
            for fault in error.faults:
                faults.add(row.place, fault)
            continue
        first = places.setdefault(task.id, row.place)
        if first is not row.place:
            faults.add(row.place, f"the id `{task.id}` is that of {first} too")
        tasks.append(task)
    faults.tell()
    if not tasks:
        raise UserError(f"there is no task in {name}")
    return tasks


class _Faults:
    """The first ones in words, the others in number."""

    def __init__(self, name: str, hint: str) -> None:
        self._name, self._hint = name, hint
        self._told: list[str] = []
        self._more = 0

    def add(self, place: str, fault: str) -> None:
        if len(self._told) < MOST_TOLD:
            self._told.append(f"{place}: {fault}")
        else:
            self._more += 1

    def tell(self) -> None:
        if not self._told:
            return
        if len(self._told) == 1:
            raise UserError(f"{self._name}, {self._told[0]}", hint=self._hint)
        count = len(self._told) + self._more
        more = [f"and {self._more} more"] if self._more else []
        raise UserError("\n  ".join([f"{self._name} has {count} faults:", *self._told, *more]), hint=self._hint)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no file `{path}`") from None
    except IsADirectoryError:
        raise UserError(f"`{path}` is a folder; a file of tasks is wanted") from None
    except OSError as error:
        raise UserError(f"`{path}` cannot be read: {error.strerror or error}") from None


def _decoded(data: bytes, name: str) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{name} is UTF-16", hint=f"convert it: iconv -f UTF-16 -t UTF-8 {name}")
    for bad, what in ((data.find(b"\0"), "a NUL byte"), (_broken_at(data), "a byte that is not UTF-8")):
        if bad >= 0:
            line = data.count(b"\n", 0, bad) + 1
            raise UserError(f"{name}, line {line}: {what}", hint="tasks are text in UTF-8")
    return data.decode("utf-8-sig")


def _broken_at(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1


def _is_prose(text: str) -> bool:
    return not text.lstrip().startswith(("{", "["))
