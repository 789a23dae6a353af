"""Requests to one endpoint, streamed, with what was heard of each so far; and one attempt at one task made of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.engines.base import GATEWAY_KEY
from skep.errors import SkepError
from skep.paths import DEFAULT_PORT, Paths, user_paths
from skep.store.rows import storable
from skep.supervisor.control import ask, local_key, socket_of
from skep.swarm.checking.answers import AnswerChecker
from skep.swarm.records import AnswerFigures, SwarmRunOptions, Task
from skep.wire.client import LARGEST_ANSWER_BYTES, Pool
from skep.wire.heads import ResponseHead, parse_url
from skep.wire.openai import CHAT, OpenAIClient, StreamReader

REJECTED = "rejected"
_NOT_TAKEN = (400, 404, 415, 422, 500, 501)  # what servers say to a `response_format` they do not know
MOST_IDLE = 1024  # connections; a server that minds has closed them by then


class AttemptResult(AnswerFigures, frozen=True, kw_only=True):
    """What came of an attempt. `error_kind` None: an answer that counts; "rejected": one that does not.

    Other kinds are those of a request: connect, closed, cut, timeout, too_long, garbage, engine_error, http_500 ...
    """

    value: Any = None
    status: int | None = None
    retry_after_s: float | None = None


class SwarmClient:
    """One endpoint's connections."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, flow: str = "") -> None:
        """`flow`: whose requests these are, for a gateway that shares fairly between several."""
        self.endpoint = endpoint
        self.total = 0  # events of all answers: about as many as tokens
        self.heard: dict[int, int] = {}  # the same by attempt, of those that whoever sends them has put in here
        # Every byte of an attempt's answer is here: another may take its place while it is still being read.
        self.on_whole: Callable[[int], None] = lambda _: None
        self.is_gateway = "replicas" in endpoint.engine
        headers = {**endpoint.headers, **({"x-skep-agent": flow} if flow and self.is_gateway else {})}
        self.pool = Pool(endpoint.origin, max_idle=MOST_IDLE)
        self._client = OpenAIClient(self.pool, f"{endpoint.base}{CHAT}", headers, timeout_s=timeout_s)

    async def aclose(self) -> None:
        await self.pool.close()

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        lease: int = 0,
        fields: Mapping[str, Any] | None = None,
        priority: str | None = None,
        session: str | None = None,
        timeout_s: float | None = None,
    ) -> AttemptResult:
        """One streamed request; faults are told, not raised. `fields`: of the body; `session`: of skep's gateway."""
        body = {
            **(fields or {}),
            "model": self.endpoint.model,
            "messages": [dict(one) for one in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        own = {"x-skep-priority": priority, "x-skep-session": session} if self.is_gateway else {}
        reading = CountingReader(asyncio.get_running_loop().create_future(), self, lease)
        epoch = time.time() - time.monotonic()
        await self._client.send(self._client.encode(body, own), reading, timeout_s=timeout_s)
        if reading.status == 200 and not reading.is_given_up:  # it is whole
            self.on_whole(lease)
            await asyncio.sleep(0)  # when many end at once, those that follow are sent before these are read
        reading.digest()
        return AttemptResult(
            answer=storable("".join(reading.text)) or None,
            error_kind=reading.error_kind,
            error=storable(reading.error),
            status=reading.status,
            prompt_tokens=reading.prompt_tokens,
            output_tokens=reading.output_tokens,
            first_token_at=reading.arrivals[0] + epoch if reading.arrivals else None,
            queued_ms=reading.queued_ms,
            decode_ms=reading.engine_figures()["decode_ms"],
            finish_reason=storable(reading.finish_reason),
            replica=reading.replica,
            retry_after_s=reading.retry_after_s,
        )

    def took(self, lease: int, events: int) -> None:
        self.total += events
        if lease in self.heard:
            self.heard[lease] += events


class CountingReader(StreamReader):
    """Counts events as they arrive: a read may hold several."""

    def __init__(self, done: asyncio.Future[float], line: SwarmClient, lease: int) -> None:
        super().__init__(done)
        self._owner = line
        self._lease = lease
        self._received_bytes = 0

    def on_head(self, head: ResponseHead, at: float) -> None:
        super().on_head(head, at)
        self._mark = b"\n" if self._stream == "ndjson" else b"data:"

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        if self._has_room(carried, at):
            super().on_chunks(raw, carried, at)
            self._count(raw)

    def on_body(self, data: bytes, at: float) -> None:
        if self._has_room(len(data), at):
            super().on_body(data, at)
            if self._stream:
                self._count(data)

    def _has_room(self, size: int, at: float) -> bool:
        """Return whether it may go on. An answer that never ends is given up, and nothing of it is kept."""
        self._received_bytes += size
        if self._received_bytes <= LARGEST_ANSWER_BYTES:
            return True
        for kept in (self.text, self.reasoning, self._times, self._reads):
            kept.clear()
        self.give_up("too_long", f"the answer has more than {LARGEST_ANSWER_BYTES:,} bytes", at)
        return False

    def _count(self, data: bytes) -> None:
        if not self.done.done():
            self._owner.took(self._lease, data.count(self._mark))


class ChatWorker:
    """One streamed request an attempt; after a rejected answer, with that answer and what was wrong with it.

    The second attempt at a task goes to another replica if there is one: it names a session of its own.
    """

    def __init__(self, line: SwarmClient, checking: AnswerChecker, order: SwarmRunOptions) -> None:
        self._line = line
        self._checking = checking
        self._order = order
        self._rejected: dict[str, str] = {}  # by task
        self._takes_formats: bool | None = None  # None: nobody knows yet
        self._forms_not_taken: set[str] = set()  # schemas that this engine cannot hold an answer to

    async def attempt(self, task: Task, number: int, complaint: str | None, lease: int = 0) -> AttemptResult:
        reply = await self._ask(task, number, complaint, lease)
        if reply.error_kind is not None:
            return reply
        said = reply.answer or ""
        checked = await self._checking.check(task, said)
        if checked.ok:
            self._rejected.pop(task.id, None)
            return replace(reply, answer=checked.text, value=checked.value)
        self._rejected[task.id] = said
        return replace(reply, answer=said, error_kind=REJECTED, error=checked.complaint)

    async def _ask(self, task: Task, number: int, complaint: str | None, lease: int) -> AttemptResult:
        messages = [dict(one) for one in task.messages]
        if task.schema is not None:  # engines that hold an answer to a schema do not tell the model of it
            form_told = json.dumps(task.schema, ensure_ascii=False)
            text = f"Answer with JSON alone, of the form of this JSON schema: {form_told}"
            last = messages[-1] if messages else {}
            if last.get("role") == "user" and isinstance(last.get("content"), str):
                last["content"] = f"{last['content']}\n\n{text}"
            else:
                messages.append({"role": "user", "content": text})
        if complaint is not None:
            said = self._rejected.get(task.id)
            messages += [{"role": "assistant", "content": said}] if said else []
            text = f"That answer was not accepted: {complaint}. Answer again, with nothing but the corrected answer."
            messages.append({"role": "user", "content": text})
        # What the task says goes before what the run says.
        most = task.max_tokens if task.max_tokens is not None else self._order.max_tokens
        told = {"max_tokens": None if "max_completion_tokens" in task.extra else most, "temperature": task.temperature}
        fields = {**{name: value for name, value in told.items() if value is not None}, **task.extra}
        send = partial(
            self._line.ask,
            messages,
            lease=lease,
            priority=task.priority or self._order.priority,
            session=f"{task.id}/{number}" if number > 1 else None,
        )
        form = None if task.schema is None else json.dumps(task.schema)
        if form is None or "response_format" in fields or self._takes_formats is False or form in self._forms_not_taken:
            return await send(fields=fields)
        held = {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(task.schema or {})}}
        reply = await send(fields={**fields, "response_format": held})
        if reply.error_kind is None:
            self._takes_formats = True
        elif reply.status in _NOT_TAKEN:
            plain = await send(fields=fields)
            if plain.error_kind is None:
                self._forms_not_taken.add(form)
                self._takes_formats = self._takes_formats or False
                return plain
        return reply


ANSWER_S = 2.0
URL_VARIABLE = "SKEP_URL"


def url_here(paths: Paths, env: Mapping[str, str]) -> str:
    """Return the address; where no skep runs, the one where it would: a run waits there until it does."""
    if env.get(URL_VARIABLE):
        return env[URL_VARIABLE]
    try:
        return str(ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=ANSWER_S)["url"])
    except SkepError:
        return f"http://127.0.0.1:{DEFAULT_PORT}"


def key_here(url: str, env: Mapping[str, str]) -> str | None:
    """The key where none is named: on this machine what `local_key` finds, for `SKEP_URL` that of its gateway."""
    if (found := local_key(url, env, user_paths(env))) is not None:
        return found
    named = env.get(URL_VARIABLE)
    return env.get(GATEWAY_KEY) or None if named and parse_url(named)[0] == parse_url(url)[0] else None
