"""Tasks as files and documents have them. Every fault is told, with its line, before anything runs.

Three forms: JSON Lines (an object a line), text (a prompt a line) and CSV (a template and its columns).
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO, TypedDict, Unpack

from skep.errors import UserError
from skep.swarm.checking.extract_json import NotJson, parse
from skep.swarm.checking.schemas import check_schema, schema_fault
from skep.swarm.records import Task
from skep.swarm.templates import Template, parse_template
from skep.workload.items import EXECUTED, READ
from skep.workload.reading_checks import value_of


def like(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"there is {', '.join(f'`{one}`' for one in known)}"


KINDS = (*READ, *EXECUTED)
Demand = tuple[str, Callable[[Any], bool]]  # what is wanted, in words, and whether a value is it


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) and one for one in value)


def _is_calls(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, list) for one in value)


def _is_cases(value: Any) -> bool:
    return _is_calls(value) and all(len(one) == 2 and isinstance(one[0], list) for one in value)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""


def _is_number(value: Any, least: float = -math.inf) -> bool:
    number = value_of(value)
    return number is not None and number.is_finite() and number >= least


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True


_TEXT: Demand = ("a text", lambda value: isinstance(value, str))
_NAME: Demand = ("a name", lambda value: isinstance(value, str) and value.isidentifier())
_YES_NO: Demand = ("true or false", lambda value: isinstance(value, bool))

_NEEDED: Mapping[str, Mapping[str, Demand]] = {
    "exact": {"answer": ("a text or a number", _is_answer)},
    "choice": {"answer": ("a text", _is_answer), "options": ("a list of texts", _is_texts)},
    "number": {"answer": ("a number", _is_number)},
    "contains": {"all": ("a list of texts", _is_texts)},
    "regex": {"pattern": ("a regular expression", _is_pattern)},
    "python": {"tests": _TEXT},
    "completion": {"prompt": _TEXT, "entry_point": _NAME, "tests": _TEXT},
    "cases": {"entry_point": _NAME},
}
_ALLOWED: Mapping[str, Mapping[str, Demand]] = {
    "exact": {"ignore_case": _YES_NO},
    "contains": {"ignore_case": _YES_NO},
    "number": {"tolerance": ("a number from 0 on", lambda value: _is_number(value, 0))},
    "python": {"entry_point": _NAME},
    "cases": {"cases": ("a list of [[arguments], result]", _is_cases), "raises": ("a list of [arguments]", _is_calls)},
}


def checker_faults(checker: Any) -> Iterator[str]:
    """Yield what is wrong with it, each in a line; none: it is sound."""
    if not isinstance(checker, Mapping):
        yield '`checker` must be an object such as {"kind": "contains", "all": ["x"]}'
        return
    kind = checker.get("kind")
    if kind not in KINDS:
        said = "has no `kind`" if kind is None else f"has the unknown kind `{str(kind)[:40]}`"
        yield f"`checker` {said}; {like(str(kind or ''), KINDS)}"
        return
    needed, allowed = _NEEDED[kind], _ALLOWED.get(kind, {})
    for name, (wanted, is_it) in {**needed, **allowed}.items():
        if name in checker and not is_it(checker[name]):
            yield f"`checker.{name}` must be {wanted}"
        elif name in needed and name not in checker:
            yield f"`checker` of kind `{kind}` lacks `{name}`: {wanted}"
    known = {"kind", *needed, *allowed}
    for name in checker:
        if name not in known:
            yield f"`checker` of kind `{kind}` has no `{name[:40]}`; {like(name, sorted(known))}"
    yield from _together(kind, checker)


def _together(kind: str, checker: Mapping[str, Any]) -> Iterator[str]:
    """Yield what single values cannot show."""
    options, answer = checker.get("options"), checker.get("answer")
    given = {one.casefold() for one in options or ()} if kind == "choice" and _is_texts(options) else None
    if given is not None and answer is not None and str(answer).casefold() not in given:
        yield "`checker.answer` is none of its options"
    if kind == "cases" and not checker.get("cases") and not checker.get("raises"):
        yield "`checker` of kind `cases` has neither `cases` nor `raises`"


FIELDS = ("id", "prompt", "messages", "system", "schema", "max_tokens", "temperature", "priority", "checker", "extra")
PRIORITIES = ("interactive", "normal", "batch")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
LONGEST_ID = 200
# Of a chat request, and no fields of a task: they belong under `extra`.
CHAT_FIELDS = (
    *("frequency_penalty", "logit_bias", "logprobs", "parallel_tool_calls", "presence_penalty", "reasoning_effort"),
    *("response_format", "seed", "stop", "tool_choice", "tools", "top_logprobs", "top_p", "user"),
    *("chat_template_kwargs", "grammar", "min_p", "repeat_penalty", "top_k"),
)
# What the runner says itself: under `extra` it would contradict.
RESERVED = {
    "messages": "it is a field of the task",
    "max_tokens": "it is a field of the task",
    "temperature": "it is a field of the task",
    "model": "it is the run's: `--model`",
    "stream": "answers are always streamed",
    "stream_options": "answers are always streamed",
    "n": "a task has one answer",
}


class TaskDefaults(TypedDict, total=False):
    """For tasks that do not say otherwise."""

    system: str | None
    schema: Mapping[str, Any] | None
    checker: Mapping[str, Any] | None
    max_tokens: int | None
    temperature: float | None
    priority: str | None


class Faulty(Exception):
    """Why a document is no task: every reason, each in a line."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class TaskForm:
    """Makes tasks of documents. Remembers schemas: a thousand lines with the same one share it, checked once."""

    def __init__(self, template: Template | None = None, defaults: TaskDefaults | None = None) -> None:
        self._template = template
        self._defaults: dict[str, Any] = {name: value for name, value in (defaults or {}).items() if value is not None}
        self._checked: dict[tuple[str, str], tuple[Mapping[str, Any], tuple[str, ...]]] = {}

    def default_faults(self) -> list[str]:
        return list(self._value_faults(self._defaults))

    def task(self, document: Any, default_id: str) -> Task:
        """Faulty where it is none."""
        if isinstance(document, str):
            document = {"prompt": document}
        if not isinstance(document, Mapping):
            raise Faulty((f"an object is wanted, this is {_kind(document)}",))
        filled = self._template is not None and "prompt" not in document and "messages" not in document
        told = dict(document)
        faults = [] if filled else list(_unknown(told))
        if filled:
            assert self._template is not None
            missing = self._template.missing(told)
            if missing is not None:
                raise Faulty((missing,))
            told["prompt"] = self._template.fill(told)
        if not (faults and "prompt" not in told and "messages" not in told):  # misspelt: told once is enough
            faults += _message_faults(told)
        faults += [*_id_faults(told), *self._value_faults(told)]
        if faults:
            raise Faulty(tuple(faults))
        return self._made(told, default_id)

    def _made(self, told: Mapping[str, Any], default_id: str) -> Task:
        told = {**self._defaults, **{name: value for name, value in told.items() if value is not None}}
        messages = [dict(one) for one in told.get("messages", ())]
        if not messages:
            messages = [{"role": "user", "content": told["prompt"]}]
        if told.get("system") and not any(one["role"] in ("system", "developer") for one in messages):
            messages.insert(0, {"role": "system", "content": told["system"]})
        return Task(
            id=str(told.get("id", default_id)),
            messages=tuple(messages),
            max_tokens=told.get("max_tokens"),
            temperature=told.get("temperature"),
            schema=self._check_once("schema", told["schema"])[0] if "schema" in told else None,
            checker=self._check_once("checker", told["checker"])[0] if "checker" in told else None,
            priority=told.get("priority"),
            extra=dict(told.get("extra", {})),
        )

    def _value_faults(self, told: Mapping[str, Any]) -> Iterator[str]:
        """Yield a field that is null counts as left out."""
        for name, wanted, is_it in _SIMPLE:
            if told.get(name) is not None and not is_it(told[name]):
                yield f"`{name}` must be {wanted}, not {_shown(told[name])}"
        for name in ("schema", "checker"):
            if told.get(name) is not None:
                yield from self._check_once(name, told[name])[1]
        extra = told.get("extra")
        if extra is not None and not isinstance(extra, Mapping):
            yield f"`extra` must be an object, not {_kind(extra)}"
        for name in extra if isinstance(extra, Mapping) else ():
            if name in RESERVED:
                yield f"`extra` must not have `{name}`: {RESERVED[name]}"

    def _check_once(self, name: str, value: Any) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the first schema or checker that was equal to this one, with its faults."""
        key = (name, json.dumps(value, sort_keys=True))
        if key not in self._checked:
            faults = _schema_faults(value) if name == "schema" else checker_faults(value)
            self._checked[key] = (value, tuple(faults))
        return self._checked[key]


def _schema_faults(schema: Any) -> Iterator[str]:
    if (fault := schema_fault(schema)) is not None:
        yield f"`schema` is not a JSON schema: {fault}"


def _unknown(told: Mapping[str, Any]) -> Iterator[str]:
    for name in told:
        if name in CHAT_FIELDS:
            yield f'`{name}` is no field of a task; as a field of the request it goes under `extra`: {{"{name}": ...}}'
        elif name not in FIELDS:
            yield f"`{str(name)[:40]}` is no field of a task; {like(str(name), FIELDS)}"


def _id_faults(told: Mapping[str, Any]) -> Iterator[str]:
    given = told.get("id")
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, str | int):
        yield f"`id` must be a text or a whole number, not {_shown(given)}"
    elif not str(given).strip() or len(str(given)) > LONGEST_ID or not str(given).isprintable():
        yield f"`id` must be 1 to {LONGEST_ID} printable characters, not {_shown(given)}"


def _message_faults(told: Mapping[str, Any]) -> Iterator[str]:
    prompt, messages = told.get("prompt"), told.get("messages")
    if prompt is not None and messages is not None:
        yield "`prompt` and `messages` are both given: one of them is wanted"
    elif prompt is None and messages is None:
        yield "neither `prompt` nor `messages` is given"
    elif prompt is not None:
        if not isinstance(prompt, str):
            yield f"`prompt` must be a text, not {_kind(prompt)}"
        elif not prompt.strip():
            yield "`prompt` is empty"
    elif not isinstance(messages, list | tuple) or not messages:
        yield "`messages` must be a list of at least one message"
    else:
        for place, message in enumerate(messages):
            yield from _one_message(f"messages[{place}]", message)
        first = messages[0]
        if told.get("system") is not None and isinstance(first, Mapping) and first.get("role") == "system":
            yield "`system` is given, and `messages` begins with one of its own"


def _one_message(place: str, message: Any) -> Iterator[str]:
    if not isinstance(message, Mapping):
        yield f"`{place}` must be an object with `role` and `content`, not {_kind(message)}"
        return
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        yield f"`{place}.role` must be one of {', '.join(ROLES)}, not {_shown(role)}"
    if content is None and role == "assistant" and (message.get("tool_calls") or message.get("function_call")):
        return
    if isinstance(content, list):
        if not content or not all(isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content):
            yield f"`{place}.content` must be a text, or a list of parts that have a `type`"
    elif not isinstance(content, str):
        yield f"`{place}.content` must be a text, or a list of parts, not {_kind(content)}"


def _is_tokens(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10_000_000


def _is_temperature(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 100


_SIMPLE: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("system", "a text", lambda value: isinstance(value, str)),
    ("max_tokens", "a whole number from 1 on", _is_tokens),
    ("temperature", "a number from 0 on", _is_temperature),
    ("priority", f"one of {', '.join(PRIORITIES)}", lambda value: value in PRIORITIES),
)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _shown(value: Any) -> str:
    text = " ".join(json.dumps(value, ensure_ascii=False, default=str).split())
    return f"`{text}`" if len(text) <= 60 else f"`{text[:59]}…`"


FORMS = ("jsonl", "text", "csv")


@dataclass(frozen=True, slots=True)
class TaskRow:
    """`number`: the id of a task that has none. `place`: in words, for messages."""

    number: int
    place: str
    document: Any = None
    fault: str | None = None


def json_rows(text: str) -> Iterator[TaskRow]:
    """Blank lines are left out, and counted."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            document = parse(line.strip(), once=True)
        except NotJson as error:
            yield TaskRow(number, place, fault=_not_json(line, str(error).replace(" at line 1 column ", " at column ")))
            continue
        if isinstance(document, dict):
            yield TaskRow(number, place, document)
        else:
            yield TaskRow(number, place, fault=_no_object(document))


def text_rows(text: str, template: Template | None) -> Iterator[TaskRow]:
    """With a template, `{}` or `{line}` is the line."""
    for number, line in enumerate(text.split("\n"), 1):
        prompt = line.strip()
        if prompt:
            yield TaskRow(
                number, f"line {number}", {"prompt": prompt} if template is None else {"": prompt, "line": prompt}
            )


def csv_rows(text: str, name: str, template: Template | None, delimiter: str) -> Iterator[TaskRow]:
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
            yield TaskRow(line, place, fault=fault)
        elif len(row) != len(columns):
            yield TaskRow(line, place, fault=f"{len(row)} fields, and the header has {len(columns)}")
        else:
            yield TaskRow(line, place, _document(dict(zip(columns, row, strict=True)), template))


def _records(text: str, delimiter: str) -> list[tuple[int, list[str], str | None]]:
    """Return the line where each begins, its fields, and what is wrong. After a broken quote, nothing more is read."""
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


__all__ = ["FORMS", "TaskDefaults", "read_schema", "read_tasks", "tasks_of"]

MOST_TOLD = 10
ENDINGS = {".txt": "text", ".text": "text", ".csv": "csv", ".tsv": "csv"}  # everything else: jsonl
HINT = "every line is checked first; nothing was run"


def read_tasks(
    path: Path | str,
    *,
    template: str | None = None,
    form: str | None = None,
    stdin: BinaryIO | None = None,
    **defaults: Unpack[TaskDefaults],
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
        rows: Iterator[TaskRow] = csv_rows(text, name, parsed, "\t" if name.lower().endswith(".tsv") else ",")
    elif form == "text":
        rows = text_rows(text, parsed)
    else:
        rows = json_rows(text)
    hint = f"{HINT}; `--form text` takes a prompt a line" if form == "jsonl" and _is_prose(text) else HINT
    return _gathered(rows, maker, name, hint)


def tasks_of(documents: Iterable[Any], *, template: str | None = None, **defaults: Unpack[TaskDefaults]) -> list[Task]:
    """Of JSON that came another way: a list of objects as a JSONL line has them, or of plain prompts."""
    maker = _maker(None if template is None else parse_template(template), defaults)
    rows = (_row(number, document) for number, document in enumerate(documents, 1))
    return _gathered(rows, maker, "the list", "every task is checked first; nothing was run")


def _row(number: int, document: Any) -> TaskRow:
    """Return what Python takes and JSON does not is a fault as well: NaN, sets, circles."""
    try:
        return TaskRow(number, f"task {number}", parse(json.dumps(document, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        return TaskRow(number, f"task {number}", fault=f"not JSON: {error}")


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


def _maker(template: Template | None, defaults: TaskDefaults) -> TaskForm:
    maker = TaskForm(template, defaults)
    for fault in maker.default_faults():
        raise UserError(fault)
    return maker


def _gathered(rows: Iterable[TaskRow], maker: TaskForm, name: str, hint: str) -> list[Task]:
    tasks: list[Task] = []
    faults: list[str] = []
    places: dict[str, str] = {}
    for row in rows:
        if row.fault is not None:
            faults.append(f"{row.place}: {row.fault}")
            continue
        try:
            task = maker.task(row.document, str(row.number))
        except Faulty as error:
            faults += [f"{row.place}: {fault}" for fault in error.faults]
            continue
        first = places.setdefault(task.id, row.place)
        if first is not row.place:
            faults.append(f"{row.place}: the id `{task.id}` is that of {first} too")
        tasks.append(task)
    _raise_faults(name, faults, hint)
    if not tasks:
        raise UserError(f"there is no task in {name}")
    return tasks


def _raise_faults(name: str, faults: Sequence[str], hint: str) -> None:
    """Raise a UserError with the first faults and the number of all, if there are any."""
    if len(faults) == 1:
        raise UserError(f"{name}, {faults[0]}", hint=hint)
    if faults:
        more = [f"and {len(faults) - MOST_TOLD} more"] if len(faults) > MOST_TOLD else []
        lines = [f"{name} has {len(faults)} faults:", *faults[:MOST_TOLD], *more]
        raise UserError("\n  ".join(lines), hint=hint)


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
