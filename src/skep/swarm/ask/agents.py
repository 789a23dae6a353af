"""An agent with tools at work on one task: asks the model, uses the tools it wants, until there is an answer.

Decided in `skep.swarm.ask.agent_talk`; carried out here. Each request and each use of a tool is a step of the trace.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skep.swarm.ask.agent_talk import Final, Talk, Use
from skep.swarm.ask.tool_calls import CallHearing
from skep.swarm.ask.tools import CodeRoom, Told, Toolbox
from skep.swarm.checking.answers import Checking
from skep.swarm.line import Line, Reply
from skep.swarm.orders import Order
from skep.swarm.work import REJECTED, Attempted, request_fields
from skep.tasks import Step, Task

LONGEST_STEP = 6_000  # characters of what was asked or answered, in the trace
MOST_OUTPUT_TOKENS = 16_384  # of one attempt, all its requests together
MOST_PLACES = 3  # of a context that one tool result may fill: a third
_NOT_TAKEN = (400, 404, 415, 422, 500, 501)  # what servers say to `tools` they do not know


@dataclass(slots=True)
class _Account:
    """Of one attempt, over all its requests. A figure that one of them did not tell is unknown for all."""

    task: str
    attempt: int
    steps: list[Step] = field(default_factory=list)
    asked: list[Reply] = field(default_factory=list)

    def sum(self, name: str) -> Any:
        values = [getattr(one, name) for one in self.asked]
        return sum(values) if values and None not in values else None

    def step(self, kind: str, name: str, asked: str, answered: str, times: tuple[float, float], **more: Any) -> None:
        texts = (_cut(asked), _cut(answered))
        self.steps.append(Step(self.task, self.attempt, len(self.steps), kind, name, *texts, *times, **more))


class AgentWork:
    """Tasks that name tools. `room_chars`: of one conversation, as the context allows."""

    def __init__(
        self,
        line: Line,
        checking: Checking,
        order: Order,
        *,
        root: Path,
        room_chars: int,
        allowed: Sequence[str],
        native: bool | None = None,
    ) -> None:
        """`native`: whether the endpoint takes `tools`; None: it is found out."""
        self._line = line
        self._checking = checking
        self._order = order
        self._root = root
        self._room_chars = room_chars
        self._allowed = tuple(allowed)
        self._code_room = CodeRoom()
        self._native: bool | None = None if native else native  # what a server says it takes is tried all the same

    async def attempt(self, task: Task, number: int, complaint: str | None) -> Attempted:
        kinds = tuple(kind for kind in task.tools if kind in self._allowed)
        box = Toolbox(kinds, self._root, self._code_room, max(self._room_chars // MOST_PLACES, 400))
        messages = [dict(one) for one in task.messages]
        if task.schema is not None:
            demand = f"The final answer must be JSON alone, of this JSON schema: {json.dumps(task.schema)}"
            messages.append({"role": "user", "content": demand})
        if complaint is not None:
            again = f"An earlier answer was not accepted: {complaint}. See that yours is better."
            messages.append({"role": "user", "content": again})
        talk = Talk(messages, box.tools, native=self._native is not False, room_chars=self._room_chars)
        account = _Account(task.id, number)
        async with self._code_room:
            return await self._work(task, talk, box, account)

    async def _work(self, task: Task, talk: Talk, box: Toolbox, account: _Account) -> Attempted:
        fields = request_fields(task, self._order)
        fresh = talk.messages()
        while True:
            said = await self._ask(task, talk, {**fields, **talk.fields()}, account, fresh)
            if said.error_kind is not None:
                return _attempted(account, error_kind=said.error_kind, error=said.error)
            does = talk.heard(said.text, said.calls)
            if isinstance(does, Final):
                return await self._finished(task, does.text, account)
            known = len(talk.messages())
            for use in does:
                talk.told(use, await self._use(box, use, account))
            fresh = talk.messages()[known:]
            if (account.sum("output_tokens") or 0) > MOST_OUTPUT_TOKENS:
                why = f"the agent used more than {MOST_OUTPUT_TOKENS:,} tokens without coming to an answer"
                return _attempted(account, error_kind=REJECTED, error=why)

    async def _ask(
        self, task: Task, talk: Talk, fields: dict[str, Any], account: _Account, fresh: list[dict[str, Any]]
    ) -> Reply:
        said = await self._request(task, account, talk, fields)
        account.asked.append(said)
        account.step("model", self._line.endpoint.model, _shown(fresh), _answer(said), (said.started_at, said.ended_at),
                     prompt_tokens=said.prompt_tokens, output_tokens=said.output_tokens, error=said.error)  # fmt: skip
        if talk.native and not self._native:  # unknown, or found out by another agent while this one asked
            if said.error_kind is None:
                self._native = True
            elif said.status in _NOT_TAKEN:
                return await self._ask_plainly(task, talk, fields, account)
        return said

    async def _ask_plainly(self, task: Task, talk: Talk, fields: dict[str, Any], account: _Account) -> Reply:
        """Whether it is the tools that the endpoint minds shows when they are left out."""
        account.asked.pop()  # it told no figures, and is no part of the sum
        talk.give_up_native()
        fields = {name: value for name, value in fields.items() if name != "tools"}
        said = await self._request(task, account, talk, fields)
        account.asked.append(said)
        account.step("model", self._line.endpoint.model, "[the same, tools told in words]", _answer(said),
                     (said.started_at, said.ended_at), prompt_tokens=said.prompt_tokens,
                     output_tokens=said.output_tokens, error=said.error)  # fmt: skip
        if said.error_kind is None:
            self._native = False
        return said

    async def _use(self, box: Toolbox, use: Use, account: _Account) -> Told:
        started = time.time()
        told = Told(use.wrong, ok=False) if use.wrong is not None else await box.use(use.call.name, use.arguments)
        asked = json.dumps(dict(use.arguments), ensure_ascii=False) if use.arguments else use.call.arguments
        error = None if told.ok else told.text.splitlines()[0][:300]
        account.step("tool", use.call.name[:80], asked, told.text, (started, time.time()), error=error)
        return told

    async def _finished(self, task: Task, text: str, account: _Account) -> Attempted:
        checked = await self._checking.check(task, text)
        if checked.ok:
            return _attempted(account, answer=checked.text, value=checked.value)
        why = checked.complaint or "the answer does not count"
        return _attempted(account, answer=text, error_kind=REJECTED, error=why)

    async def _request(self, task: Task, account: _Account, talk: Talk, fields: dict[str, Any]) -> Reply:
        """An agent's requests go to the same replica, which has its conversation in the cache."""
        return await self._line.ask(
            talk.messages(),
            attempt=(task.id, account.attempt),
            fields=fields,
            priority=task.priority or self._order.priority,
            session=f"{task.id}/{account.attempt}",
            hearing=CallHearing,
        )


def _attempted(account: _Account, **what: Any) -> Attempted:
    last = account.asked[-1]
    return Attempted(
        status=last.status,
        prompt_tokens=account.sum("prompt_tokens"),
        output_tokens=account.sum("output_tokens"),
        first_token_at=account.asked[0].first_token_at,
        queued_ms=account.sum("queued_ms"),
        decode_ms=account.sum("decode_ms"),
        finish_reason=last.finish_reason,
        replica=last.replica,
        requests=sum(step.kind == "model" for step in account.steps),
        steps=tuple(account.steps),
        retry_after_s=last.retry_after_s,
        **what,
    )


def _answer(said: Reply) -> str:
    calls = [f"[{one.name} {one.arguments}]" for one in said.calls]
    return "\n".join([*filter(None, [said.text]), *calls])


def _shown(messages: Sequence[dict[str, Any]]) -> str:
    return "\n\n".join(f"[{one.get('role')}] {one.get('content') or ''}" for one in messages)


def _cut(text: str) -> str:
    if len(text) <= LONGEST_STEP:
        return text
    half = LONGEST_STEP // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
