"""One attempt at one task: its request, the check of its answer, and what the model is told of an
answer that was rejected. Knows nothing of other tasks, of retries and of when to send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from skep.swarm.answer_check import AnswerChecker
from skep.swarm.client import SwarmClient
from skep.swarm.records import REJECTED, AttemptResult, SwarmRunOptions, Task

# What servers say to a `response_format` they do not know.
_UNKNOWN_FORMAT_STATUSES = (400, 404, 415, 422, 500, 501)
_CORRECTION = (
    "That answer was not accepted: {complaint}. Answer again, with nothing but the corrected "
    "answer."
)


class ChatWorker:
    """Sends one streamed request for each attempt; after a rejected answer, with that answer and
    what was wrong with it.

    A further attempt at a task goes to another replica if there is one: it names a session of its
    own."""

    def __init__(
        self, client: SwarmClient, checker: AnswerChecker, options: SwarmRunOptions
    ) -> None:
        self._client = client
        self._checker = checker
        self._options = options
        self._rejected: dict[str, str] = {}  # the last rejected answer by task
        # Schemas, as JSON, that this engine cannot hold an answer to.
        self._unsupported_schemas: set[str] = set()

    async def attempt(
        self, task: Task, number: int, complaint: str | None, lease: int = 0
    ) -> AttemptResult:
        result = await self._request(task, number, complaint, lease)
        if result.error_kind is not None:
            return result
        answer = result.answer or ""
        checked = await self._checker.check(task, answer)
        if checked.ok:
            self._rejected.pop(task.id, None)
            return replace(result, answer=checked.text, value=checked.value)
        self._rejected[task.id] = answer
        return replace(result, answer=answer, error_kind=REJECTED, error=checked.complaint)

    async def _request(
        self, task: Task, number: int, complaint: str | None, lease: int
    ) -> AttemptResult:
        """Send the request; without a `response_format` where the server does not know it."""
        fields = self._fields(task)
        send = partial(
            self._client.ask,
            self._messages(task, complaint),
            lease=lease,
            priority=self._options.priority,
            session=f"{task.id}/{number}" if number > 1 else None,
        )
        if task.schema is None or "response_format" in fields:
            return await send(fields=fields)
        schema = json.dumps(task.schema)
        if schema in self._unsupported_schemas:
            return await send(fields=fields)
        response_format = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": dict(task.schema)},
        }
        result = await send(fields={**fields, "response_format": response_format})
        if result.error_kind is not None and result.status in _UNKNOWN_FORMAT_STATUSES:
            plain_result = await send(fields=fields)
            if plain_result.error_kind is None:
                self._unsupported_schemas.add(schema)
                return plain_result
        return result

    def _messages(self, task: Task, complaint: str | None) -> list[dict[str, Any]]:
        messages = [dict(message) for message in task.messages]
        if task.schema is not None:
            _append_schema(messages, task.schema)
        if complaint is not None:
            rejected_answer = self._rejected.get(task.id)
            if rejected_answer:
                messages.append({"role": "assistant", "content": rejected_answer})
            correction = _CORRECTION.format(complaint=complaint)
            messages.append({"role": "user", "content": correction})
        return messages

    def _fields(self, task: Task) -> dict[str, Any]:
        """Return further fields of the request: the task's own go before those of the run."""
        fields: dict[str, Any] = {}
        max_tokens = task.max_tokens
        if max_tokens is None:
            max_tokens = self._options.max_tokens
        if max_tokens is not None and "max_completion_tokens" not in task.extra:
            fields["max_tokens"] = max_tokens
        if task.temperature is not None:
            fields["temperature"] = task.temperature
        return {**fields, **task.extra}


def _append_schema(messages: list[dict[str, Any]], schema: Mapping[str, Any]) -> None:
    """Show the schema to the model: engines that hold an answer to a schema do not."""
    schema_text = json.dumps(schema, ensure_ascii=False)
    text = f"Answer with JSON alone, of the form of this JSON schema: {schema_text}"
    last = messages[-1] if messages else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        last["content"] = f"{last['content']}\n\n{text}"
    else:
        messages.append({"role": "user", "content": text})
