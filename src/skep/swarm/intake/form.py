"""One task as a JSON object has it: checked strictly, every fault told. Knows nothing of files and lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict

from skep.swarm.checking.schemas import schema_fault
from skep.swarm.intake.checkers import checker_faults
from skep.swarm.intake.naming import like
from skep.swarm.intake.templates import Template
from skep.tasks import Task

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


class Defaults(TypedDict, total=False):
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

    def __init__(self, template: Template | None = None, defaults: Defaults | None = None) -> None:
        self._template = template
        self._defaults: dict[str, Any] = {name: value for name, value in (defaults or {}).items() if value is not None}
        self._schemas: dict[str, tuple[Mapping[str, Any], str | None]] = {}
        self._checkers: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {}

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
            schema=self._schema(told["schema"])[0] if "schema" in told else None,
            checker=self._checker(told["checker"])[0] if "checker" in told else None,
            priority=told.get("priority"),
            extra=dict(told.get("extra", {})),
        )

    def _value_faults(self, told: Mapping[str, Any]) -> Iterator[str]:
        """A field that is null counts as left out."""
        for name, wanted, is_it in _SIMPLE:
            if told.get(name) is not None and not is_it(told[name]):
                yield f"`{name}` must be {wanted}, not {_shown(told[name])}"
        if told.get("schema") is not None:
            fault = self._schema(told["schema"])[1]
            if fault is not None:
                yield f"`schema` is not a JSON schema: {fault}"
        if told.get("checker") is not None:
            yield from self._checker(told["checker"])[1]
        extra = told.get("extra")
        if extra is not None and not isinstance(extra, Mapping):
            yield f"`extra` must be an object, not {_kind(extra)}"
        for name in extra if isinstance(extra, Mapping) else ():
            if name in RESERVED:
                yield f"`extra` must not have `{name}`: {RESERVED[name]}"

    def _schema(self, schema: Any) -> tuple[Mapping[str, Any], str | None]:
        key = json.dumps(schema, sort_keys=True)
        if key not in self._schemas:
            self._schemas[key] = (schema, schema_fault(schema))
        return self._schemas[key]

    def _checker(self, checker: Any) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        key = json.dumps(checker, sort_keys=True)
        if key not in self._checkers:
            self._checkers[key] = (checker, tuple(checker_faults(checker)))
        return self._checkers[key]


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
