"""Tasks as JSON Lines, text (a prompt a line) or CSV (template, columns).

Faults are told before anything runs.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any, BinaryIO, TypedDict, Unpack

import msgspec

from skep.errors import UserError
from skep.swarm.records import Task
from skep.swarm.schemas import NotJson, check_schema, parse, schema_fault
from skep.units import one_line, shortened
from skep.workload.banks import checker_faults
from skep.workload.items import Demand, field_faults, real_number, short, whole_number

_LOOKS = '{"id": "a", "prompt": "..."}'


class Template(msgspec.Struct, frozen=True):
    """A prompt with places to fill in: `Summarise {title}: {text}`. Literal braces are doubled.

    Nothing but names: it cannot reach into an object, and what is filled in is never looked at for
    places again. `parts`: a piece of text and the name of what follows it; None: nothing does."""

    parts: tuple[tuple[str, str | None], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, name in self.parts if name is not None))

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the prompt; KeyError where a value is missing.

        Numbers, lists and objects are written as JSON.
        """
        written: dict[str | None, str] = {None: ""}
        for name in self.names:
            written[name] = _written(values[name])
        return "".join(text + written[name] for text, name in self.parts)

    def missing(self, names: Iterable[str]) -> str | None:
        """Return in words which of the template's names are not among these; None: all are."""
        given = list(names)
        missing = [f"`{{{name}}}`" for name in self.names if name not in given]
        if not missing:
            return None
        given_names = [f"`{shortened(name, 60)}`" for name in given if name]
        known = shortened(", ".join(given_names), 600) or "nothing"
        return f"the template asks for {', '.join(missing)}; known: {known}"


def _written(value: Any) -> str:
    """Return a value as a prompt has it."""
    if value is None or isinstance(value, int | float | dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def parse_template(text: str) -> Template:
    """Return the template; UserError for a text that is none."""
    try:
        fields = list(Formatter().parse(text))
    except ValueError as error:
        hint = "literal braces are doubled: `{{` and `}}`"
        raise UserError(f"`{shortened(text, 60)}` is not a template: {error}", hint=hint) from None
    parts: list[tuple[str, str | None]] = []
    for literal, name, form, conversion in fields:
        if form or conversion or (name and any(sign in name for sign in ".[]!")):
            hint = "a place is a name in braces; literal braces are doubled: `{{` and `}}`"
            raise UserError(
                f"`{{{shortened(name or '', 60)}}}` in the template is more than a name", hint=hint
            )
        parts.append((literal, name))
    template = Template(tuple(parts))
    if not template.names:
        hint = "name a column or a field in braces: `Summarise {text}`"
        raise UserError(f"the template `{shortened(text, 60)}` has no place to fill in", hint=hint)
    return template


LONGEST_ID = 200
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# What the runner says itself: under `extra` it would contradict.
RESERVED = ("messages", "max_tokens", "temperature", "model", "stream", "stream_options", "n")
_MESSAGE_LOOKS = '{"role": "user", "content": "..."}'
_OBJECT: Demand = ("an object", lambda value: isinstance(value, Mapping))


def _is_id(value: Any) -> bool:
    text = str(value)
    return (
        type(value) in (str, int)
        and bool(text.strip())
        and len(text) <= LONGEST_ID
        and text.isprintable()
    )


FIELDS: Mapping[str, Demand] = {
    "id": (f"a whole number or 1 to {LONGEST_ID} printable characters", _is_id),
    "prompt": (
        "a text that is not blank",
        lambda value: isinstance(value, str) and bool(value.strip()),
    ),
    "messages": (
        f"a list such as [{_MESSAGE_LOOKS}]",
        lambda value: isinstance(value, list | tuple) and bool(value),
    ),
    "system": ("a text", lambda value: isinstance(value, str)),
    "schema": _OBJECT,
    "max_tokens": whole_number(1, 10_000_000),
    "temperature": real_number(0, 100),
    "checker": _OBJECT,
    "extra": (
        f"an object, without {', '.join(RESERVED)}",
        lambda value: _OBJECT[1](value) and _is_free(value),
    ),
}


def _is_free(extra: Mapping[str, Any]) -> bool:
    return not any(name in RESERVED for name in extra)


_SETTINGS = ("max_tokens", "temperature", "extra")


class TaskDefaults(TypedDict, total=False):
    """What holds for tasks that do not say otherwise."""

    system: str | None
    schema: Mapping[str, Any] | None
    checker: Mapping[str, Any] | None
    max_tokens: int | None
    temperature: float | None


class Faulty(Exception):
    """Why a document is no task: every reason, each in a line."""

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.faults = faults


class TaskForm:
    """Makes tasks of documents.

    Remembers schemas: a thousand lines with the same one share it, checked once.
    """

    def __init__(self, template: str | None, defaults: TaskDefaults) -> None:
        if template is None:
            self.template = None
        else:
            self.template = parse_template(template)
        self._defaults: dict[str, Any] = {
            name: value for name, value in defaults.items() if value is not None
        }
        self._checked: dict[tuple[str, str], tuple[Mapping[str, Any], tuple[str, ...]]] = {}
        for fault in self._faults(self._defaults):
            raise UserError(fault)

    def task(self, document: Any, default_id: str) -> Task:
        """Return the task that a document describes, or raise Faulty."""
        if isinstance(document, str):
            document = {"prompt": document}
        if not isinstance(document, Mapping):
            raise Faulty(f"a task is an object such as {_LOOKS}, not `{short(document)}`")
        fields = self._filled_in(document)
        faults = _first_faults(self._faults(fields))
        if not faults:
            faults = _first_faults(_message_faults(fields))
        if faults:
            raise Faulty(*faults)
        fields = {**self._defaults, **fields}
        settings = {name: fields[name] for name in _SETTINGS if name in fields}
        for name in ("schema", "checker"):
            if name in fields:
                settings[name], _ = self._check_once(name, fields[name])
        return Task(
            id=str(fields.get("id", default_id)),
            messages=_messages_of(fields),
            **settings,
        )

    def _filled_in(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that the document has, with the template's prompt where it has none
        of its own.
        """
        fields = {name: value for name, value in document.items() if value is not None}
        if self.template is None or "prompt" in document or "messages" in document:
            return fields
        missing = self.template.missing(document)
        if missing is not None:
            raise Faulty(missing)
        fields = {name: value for name, value in fields.items() if name in FIELDS}
        fields["prompt"] = self.template.fill(document)
        return fields

    def _faults(self, fields: Mapping[str, Any]) -> Iterator[str]:
        yield from field_faults(fields, {}, FIELDS)
        for name in ("schema", "checker"):
            value = fields.get(name)
            if isinstance(value, Mapping):
                _, faults = self._check_once(name, value)
                yield from faults

    def _check_once(self, name: str, value: Any) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the first schema or checker that was equal to this one, with its faults."""
        key = (name, json.dumps(value, sort_keys=True))
        if key not in self._checked:
            if name == "checker":
                faults = _first_faults(checker_faults(value))
            else:
                fault = schema_fault(value)
                if fault is None:
                    faults = ()
                else:
                    faults = (f"`schema` is not a JSON schema: {fault}",)
            self._checked[key] = (value, faults)
        return self._checked[key]


def _messages_of(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    messages = [dict(message) for message in fields.get("messages", ())]
    if not messages:
        messages = [{"role": "user", "content": fields["prompt"]}]
    system = fields.get("system")
    roles = [message["role"] for message in messages]
    has_system = "system" in roles or "developer" in roles
    if system and not has_system:
        messages.insert(0, {"role": "system", "content": system})
    return tuple(messages)


def _first_faults(faults: Iterable[str]) -> tuple[str, ...]:
    return tuple(islice(faults, MOST_OF_TASK))


def _message_faults(fields: Mapping[str, Any]) -> Iterator[str]:
    if "prompt" in fields and "messages" in fields:
        yield "`prompt` and `messages` are both given: give one of them"
    if "prompt" not in fields and "messages" not in fields:
        yield "neither `prompt` nor `messages` is given"
    messages = fields.get("messages")
    if not isinstance(messages, list | tuple):
        return
    for place, message in enumerate(messages):
        given = message if isinstance(message, Mapping) else {}
        role = given.get("role")
        content = given.get("content")
        calls = role == "assistant" and (given.get("tool_calls") or given.get("function_call"))
        if role not in ROLES:
            yield (
                f"`messages[{place}].role` must be one of {', '.join(ROLES)}, not `{short(role)}`"
            )
        elif not isinstance(content, str | list) and not (content is None and calls):
            yield (
                f"`messages[{place}].content` must be a text, or a list of parts, not "
                f"`{short(content)}`"
            )


# Line and document; a `Faulty` stands for a document that could not be read.
Rows = Iterable[tuple[int, Any]]


def _lines_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without white space around them; blank ones are left out."""
    number = begin = 0
    while begin <= len(text):
        number += 1
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        line = text[begin:end].strip()
        if line:
            yield number, line
        begin = end + 1


def _json_rows(text: str) -> Rows:
    for number, written in _lines_in(text):
        try:
            document = parse(written, once=True)
        except NotJson as error:
            why = str(error).replace(" at line 1 column ", " at column ")
            document = Faulty(f"not JSON: {why} in `{one_line(written[:200], 50)}`")
        if isinstance(document, list | str):
            document = Faulty(f"write one object a line, such as {_LOOKS}")
        yield number, document


def _csv_rows(text: str, name: str, template: Template | None) -> Rows:
    """Yield the rows; UserError where the columns are not those that the template asks for.

    A quoted field may hold line ends.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    line = 1  # where the next row begins
    try:
        for row in reader:
            if row:
                rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{name}, line {line}: broken CSV: {error}") from None
    if not rows:
        rows = [(1, [])]
    header_line, header = rows.pop(0)
    columns = [column.strip() for column in header]
    _check_columns(columns, name, header_line, template)
    for begin, row in rows:
        if len(row) != len(columns):
            yield begin, Faulty(f"{len(row)} fields, and the header has {len(columns)}")
            continue
        fields = dict(zip(columns, row, strict=True))
        task_fields = {key: fields[key] for key in ("id", "system") if fields.get(key, "").strip()}
        if template is None:
            task_fields["prompt"] = fields["prompt"]
        else:
            task_fields["prompt"] = template.fill(fields)
        yield begin, task_fields


def _check_columns(columns: list[str], name: str, line: int, template: Template | None) -> None:
    if not any(columns):
        raise UserError(f"{name} is empty", hint="the first row of a CSV file names its columns")
    for column in columns:
        if columns.count(column) > 1:
            raise UserError(f"{name}, line {line}: the column `{column}` appears twice")
    if template is None and "prompt" not in columns:
        named = ", ".join(f"`{column}`" for column in columns[:12])
        hint = "say how a row becomes a prompt: --template 'Summarise {title}: {text}'"
        raise UserError(f"{name} has no column `prompt`; it has {named}", hint=hint)
    if template is not None:
        missing = template.missing(columns)
        if missing is not None:
            raise UserError(f"{name}: {missing}")


MOST_TOLD = 10  # faults of a file
MOST_OF_TASK = 100  # faults of one task that are counted


def read_tasks(
    path: Path | str,
    *,
    template: str | None = None,
    stdin: BinaryIO | None = None,
    **defaults: Unpack[TaskDefaults],
) -> list[Task]:
    """Return the tasks of a file; `-` is stdin.

    A `.csv` file has columns, a `.txt` file a prompt a line; others are JSON Lines.
    """
    piped = str(path) == "-"
    name = "stdin" if piped else str(path)
    ending = Path(name).suffix.lower()
    maker = TaskForm(template, defaults)
    if piped:
        data = (stdin or sys.stdin.buffer).read()
    else:
        data = _read(Path(path))
    text = _decoded(data, name)
    hint = "every line is checked first; nothing was run"
    if ending == ".csv":
        rows = _csv_rows(text, name, maker.template)
    elif ending == ".txt":  # with a template, `{}` or `{line}` is the line
        is_plain = maker.template is None
        rows = (
            (number, {"prompt": line} if is_plain else {"": line, "line": line})
            for number, line in _lines_in(text)
        )
    else:
        rows = _json_rows(text)
        if not text.lstrip().startswith(("{", "[")):
            hint += "; a prompt a line goes into a .txt file"
    return _gathered(rows, maker, name, "line", hint)


def tasks_of(
    documents: Iterable[Any],
    *,
    template: str | None = None,
    **defaults: Unpack[TaskDefaults],
) -> list[Task]:
    """Return the tasks of a list of objects as a JSONL line has them, or of plain prompts."""
    rows: list[tuple[int, Any]] = []
    for number, document in enumerate(documents, 1):
        try:
            written = json.dumps(document, allow_nan=False)
            row = parse(written)
        except (TypeError, ValueError, RecursionError) as error:
            # What Python takes, not JSON: NaN, sets, circles.
            row = Faulty(f"not JSON: {error}")
        rows.append((number, row))
    return _gathered(
        rows,
        maker=TaskForm(template, defaults),
        name="the list",
        unit="task",
        hint="every task is checked first; nothing was run",
    )


def read_schema(path: Path) -> dict[str, Any]:
    """Return the schema of `--schema FILE`."""
    try:
        text = _decoded(_read(path), str(path))
        schema = parse(text, once=True)
        check_schema(schema)
    except NotJson as error:
        raise UserError(f"`{path}` is not JSON: {error}") from None
    except UserError as error:
        raise UserError(f"`{path}`: {error.message}", hint=error.hint) from None
    assert isinstance(schema, dict)
    return schema


@dataclass
class FaultList:
    """The faults of a file: how many there are, and the first ones.

    A file of 100 MB may have as many as lines.
    """

    unit: str
    count: int = 0
    is_exact: bool = True  # no task has more faults than are counted

    def __post_init__(self) -> None:
        self._first: list[str] = []

    def add(self, number: int, *faults: str) -> None:
        self.count += len(faults)
        self.is_exact &= len(faults) < MOST_OF_TASK
        self._first += [
            f"{self.unit} {number}: {fault}" for fault in faults[: MOST_TOLD - len(self._first)]
        ]

    def describe(self, name: str) -> str:
        if self.count == 1:
            return f"{name}, {self._first[0]}"
        qualifier = "" if self.is_exact else "at least "
        lines = [f"{name} has {qualifier}{self.count} faults:", *self._first]
        if self.count > MOST_TOLD:
            lines.append(f"and {self.count - MOST_TOLD} more")
        return "\n  ".join(lines)


def _gathered(rows: Rows, maker: TaskForm, name: str, unit: str, hint: str) -> list[Task]:
    """Return the tasks; UserError with the first faults and the number of all,
    if there are any.
    """
    tasks: list[Task] = []
    faults = FaultList(unit)
    places: dict[str, int] = {}
    for number, document in rows:
        try:
            if isinstance(document, Faulty):
                raise document
            task = maker.task(document, str(number))
        except Faulty as error:
            faults.add(number, *error.faults)
            continue
        if (first := places.setdefault(task.id, number)) != number:
            faults.add(number, f"the id `{task.id}` is already used in {unit} {first}")
        tasks.append(task)
    if faults.count:
        raise UserError(faults.describe(name), hint=hint)
    if not tasks:
        raise UserError(f"{name} has no tasks")
    return tasks


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        hint = "name the file of tasks; `-` reads stdin"
        raise UserError(f"`{path}` cannot be read: {error.strerror or error}", hint=hint) from None


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        hint = f"tasks are text in UTF-8; from UTF-16: iconv -f UTF-16 -t UTF-8 {name}"
        raise UserError(f"{name}, line {line}: a byte that is not UTF-8", hint=hint) from None
