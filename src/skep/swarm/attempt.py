"""What came of one attempt at one task. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from skep.swarm.checking.answers import AnswerChecker
from skep.swarm.client import Reply, SwarmClient
from skep.swarm.records import Attempt, AttemptOutcome, Task, TaskEnding, TaskResult, Why
from skep.swarm.run_options import SwarmRunOptions

REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """`error_kind` None: an answer that counts; "rejected": one that does not."""

    answer: str | None = None
    value: Any = None
    error_kind: str | None = None
    error: str | None = None
    status: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    first_token_at: float | None = None  # unix seconds
    queued_ms: float | None = None
    decode_ms: float | None = None
    finish_reason: str | None = None
    replica: str | None = None
    retry_after_s: float | None = None


class StartedAttempt(Protocol):
    @property
    def task(self) -> Task: ...
    @property
    def number(self) -> int: ...
    @property
    def agent(self) -> int: ...
    @property
    def why(self) -> Why: ...
    @property
    def started(self) -> float: ...


def attempt_of(
    lease: StartedAttempt, outcome: AttemptOutcome, came: AttemptResult, *, session: int, epoch: float, now: float
) -> Attempt:
    """`epoch`: added to a time of the steady clock, it gives unix seconds."""
    return Attempt(
        task=lease.task.id,
        session=session,
        number=lease.number,
        agent=lease.agent,
        why=lease.why,
        outcome=outcome,
        started_at=lease.started + epoch,
        ended_at=now + epoch,
        first_token_at=came.first_token_at,
        queued_ms=came.queued_ms,
        prompt_tokens=came.prompt_tokens,
        output_tokens=came.output_tokens,
        decode_ms=came.decode_ms,
        status=came.status,
        error_kind=came.error_kind,
        error=came.error,
        finish_reason=came.finish_reason,
        replica=came.replica,
        answer=None if outcome is AttemptOutcome.DONE else came.answer,
    )


def result_of(attempt: Attempt, came: AttemptResult, *, tries: int, started_at: float) -> TaskResult:
    """Of an attempt that counts."""
    return TaskResult(
        task=attempt.task,
        ending=TaskEnding.DONE,
        answer=came.answer,
        value=came.value,
        error_kind=None,
        error=None,
        tries=tries,
        started_at=started_at,
        ended_at=attempt.ended_at,
        prompt_tokens=came.prompt_tokens,
        output_tokens=came.output_tokens,
        finish_reason=came.finish_reason,
        replica=came.replica,
    )


def failed_result(task: str, last: AttemptResult, *, tries: int, started_at: float, ended_at: float) -> TaskResult:
    """Of a task that is set aside, with the last thing that went wrong."""
    return TaskResult(
        task=task,
        ending=TaskEnding.FAILED,
        answer=last.answer,
        value=None,
        error_kind=last.error_kind,
        error=last.error,
        tries=tries,
        started_at=started_at,
        ended_at=ended_at,
        prompt_tokens=last.prompt_tokens,
        output_tokens=last.output_tokens,
        finish_reason=last.finish_reason,
        replica=last.replica,
    )


__all__ = [
    "REJECTED",
    "AttemptResult",
    "ChatWorker",
    "TaskWorker",
    "attempted",
    "request_fields",
    "response_format",
]

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
            return attempted(reply)
        checked = await self._checking.check(task, reply.text)
        if checked.ok:
            self._rejected.pop(task.id, None)
            return attempted(reply, answer=checked.text, value=checked.value)
        self._rejected[task.id] = reply.text
        return attempted(
            reply, answer=reply.text, kind=REJECTED, error=checked.complaint or "the answer does not count"
        )

    async def _ask(self, task: Task, number: int, complaint: str | None) -> Reply:
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

    async def _send(self, task: Task, number: int, messages: list[dict[str, Any]], fields: Mapping[str, Any]) -> Reply:
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


def attempted(
    reply: Reply, *, answer: str | None = None, value: Any = None, kind: str | None = None, error: str | None = None
) -> AttemptResult:
    """Of a single request."""
    return AttemptResult(
        answer=answer if answer is not None else reply.text or None,
        value=value,
        error_kind=kind or reply.error_kind,
        error=error or reply.error,
        status=reply.status,
        prompt_tokens=reply.prompt_tokens,
        output_tokens=reply.output_tokens,
        first_token_at=reply.first_token_at,
        queued_ms=reply.queued_ms,
        decode_ms=reply.decode_ms,
        finish_reason=reply.finish_reason,
        replica=reply.replica,
        retry_after_s=reply.retry_after_s,
    )


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
