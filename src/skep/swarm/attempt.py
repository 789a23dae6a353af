"""One attempt at one task: the request that is sent, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from skep.swarm.checking.answers import AnswerChecker
from skep.swarm.client import AttemptResult, SwarmClient
from skep.swarm.records import Attempt, SwarmRunOptions, Task, TaskResult

REJECTED = "rejected"


T = TypeVar("T", AttemptResult, Attempt, TaskResult)
_NOT_TAKEN = (400, 404, 415, 422, 500, 501)  # what servers say to a `response_format` they do not know


class TaskWorker(Protocol):
    """Faults are told in what is returned. Cancelled: whatever is under way is broken off."""

    async def attempt(self, task: Task, number: int, complaint: str | None) -> AttemptResult: ...


WorkerFactory = Callable[[SwarmClient, AnswerChecker, SwarmRunOptions], TaskWorker]


class ChatWorker:
    """One streamed request an attempt.

    After a rejected answer, the next attempt is given that answer and what was wrong with it. The second attempt at a
    task goes to another replica if there is one: it names a session of its own.
    """

    def __init__(self, line: SwarmClient, checking: AnswerChecker, order: SwarmRunOptions) -> None:
        self._line = line
        self._checking = checking
        self._order = order
        self._rejected: dict[str, str] = {}  # by task
        self._takes_formats: bool | None = None  # None: nobody knows yet
        self._forms_not_taken: set[str] = set()  # schemas that this engine cannot hold an answer to

    async def attempt(self, task: Task, number: int, complaint: str | None) -> AttemptResult:
        reply = await self._ask(task, number, complaint)
        if reply.error_kind is not None:
            return reply
        said = reply.answer or ""
        checked = await self._checking.check(task, said)
        if checked.ok:
            self._rejected.pop(task.id, None)
            return replace(reply, answer=checked.text, value=checked.value)
        self._rejected[task.id] = said
        why = checked.complaint or "the answer does not count"
        return replace(reply, answer=said, error_kind=REJECTED, error=why)

    async def _ask(self, task: Task, number: int, complaint: str | None) -> AttemptResult:
        messages = [dict(one) for one in task.messages]
        if task.schema is not None:
            _append(messages, _demand(task.schema))
        if complaint is not None:
            messages += self._corrected(task.id, complaint)
        fields = request_fields(task, self._order)
        form = None if task.schema is None else json.dumps(task.schema)
        if form is None or "response_format" in fields or self._takes_formats is False or form in self._forms_not_taken:
            return await self._send(task, number, messages, fields)
        held = {**fields, "response_format": response_format(task.schema or {})}
        reply = await self._send(task, number, messages, held)
        if reply.error_kind is None:
            self._takes_formats = True
        elif reply.status in _NOT_TAKEN:
            plain = await self._send(task, number, messages, fields)
            if plain.error_kind is None:
                self._forms_not_taken.add(form)
                self._takes_formats = self._takes_formats or False
                return plain
        return reply

    async def _send(
        self, task: Task, number: int, messages: list[dict[str, Any]], fields: Mapping[str, Any]
    ) -> AttemptResult:
        return await self._line.ask(
            messages,
            attempt=(task.id, number),
            fields=fields,
            priority=task.priority or self._order.priority,
            session=f"{task.id}/{number}" if number > 1 else None,
        )

    def _corrected(self, task: str, complaint: str) -> list[dict[str, Any]]:
        said = self._rejected.get(task)
        before = [{"role": "assistant", "content": said}] if said else []
        text = f"That answer was not accepted: {complaint}. Answer again, with nothing but the corrected answer."
        return [*before, {"role": "user", "content": text}]


def request_fields(task: Task, order: SwarmRunOptions) -> dict[str, Any]:
    """Of the body, beside model and messages. What the task says goes before what the run says."""
    fields: dict[str, Any] = {}
    most = task.max_tokens if task.max_tokens is not None else order.max_tokens
    if most is not None and "max_completion_tokens" not in task.extra:
        fields["max_tokens"] = most
    if task.temperature is not None:
        fields["temperature"] = task.temperature
    return {**fields, **task.extra}


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """As OpenAI, vLLM and llama.cpp take it."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}


def copied(kind: type[T], source: AttemptResult, **own: Any) -> T:
    """Make a dataclass from the fields that it shares with another one, and from `own`, which go first."""
    known = {field.name for field in fields(source)}
    shared = {field.name: getattr(source, field.name) for field in fields(kind) if field.name in known}
    return kind(**{**shared, **own})


def _demand(schema: Mapping[str, Any]) -> str:
    """Engines that hold an answer to a schema do not tell the model of it."""
    return f"Answer with JSON alone, of the form of this JSON schema: {json.dumps(schema, ensure_ascii=False)}"


def _append(messages: list[dict[str, Any]], text: str) -> None:
    """To the last message, where it is a person's and plain text; else as one of its own."""
    last = messages[-1] if messages else None
    if last is not None and last.get("role") == "user" and isinstance(last.get("content"), str):
        last["content"] = f"{last['content']}\n\n{text}"
    else:
        messages.append({"role": "user", "content": text})
