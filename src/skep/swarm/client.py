"""Requests to one endpoint, streamed, with what was heard of each so far; one attempt at one task
made of them; and the check of its answer: JSON that meets the task's schema, and the task's own
checker.

Thinking is removed first. An empty answer, or one of thinking alone, is rejected. The complaint
about a rejected answer is one line, which the model is given back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.engines.base import GATEWAY_KEY
from skep.errors import SkepError
from skep.paths import DEFAULT_PORT, Paths, user_paths
from skep.quality.judging import Judge, check_packages, look_at, needs_sandbox
from skep.sandbox.runner import Sandbox, open_sandbox
from skep.store.rows import storable
from skep.supervisor.control import ask, local_key, socket_of
from skep.swarm.records import AnswerFigures, SwarmRunOptions, Task
from skep.swarm.schemas import may_be_slow, one_line, value_faults, values_in, why_none
from skep.wire.client import LARGEST_ANSWER_BYTES, Pool
from skep.wire.heads import ResponseHead, parse_url
from skep.wire.openai import CHAT, OpenAIClient, StreamReader
from skep.workload.extraction import split_answer
from skep.workload.items import Checker, Item

REJECTED = "rejected"
_NOT_TAKEN = (
    400,
    404,
    415,
    422,
    500,
    501,
)  # what servers say to a `response_format` they do not know
MOST_IDLE = 1024  # connections; a server that minds has closed them by then


class AttemptResult(AnswerFigures, frozen=True, kw_only=True):
    """What came of an attempt. `error_kind` None: an answer that counts; "rejected": one that does
    not.

    Other kinds are those of a request: connect, closed, cut, timeout, too_long, garbage,
    engine_error, http_500 ..."""

    value: Any = None
    status: int | None = None
    retry_after_s: float | None = None


class SwarmClient:
    """One endpoint's connections."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, flow: str = "") -> None:
        """`flow`: whose requests these are, for a gateway that shares fairly between several."""
        self.endpoint = endpoint
        self.total = 0  # events of all answers: each carries one token or several
        self.heard: dict[
            int, int
        ] = {}  # the same by attempt, of those that whoever sends them has put in here
        # Every byte of an attempt's answer is here: another may take its place while it is still
        # being read.
        self.on_whole: Callable[[int], None] = lambda _: None
        self.is_gateway = "replicas" in endpoint.engine
        headers = {
            **endpoint.headers,
            **({"x-skep-agent": flow} if flow and self.is_gateway else {}),
        }
        self.pool = Pool(endpoint.origin, max_idle=MOST_IDLE)
        self._client = OpenAIClient(
            self.pool, f"{endpoint.base}{CHAT}", headers, timeout_s=timeout_s
        )

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
        """One streamed request; faults are told, not raised.

        `fields`: of the body; `session`: of skep's gateway.
        """
        body = {
            **(fields or {}),
            "model": self.endpoint.model,
            "messages": [dict(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.is_gateway:
            own = {"x-skep-priority": priority, "x-skep-session": session}
        else:
            own = {}
        reading = CountingReader(asyncio.get_running_loop().create_future(), self, lease)
        epoch = time.time() - time.monotonic()
        await self._client.send(self._client.encode(body, own), reading, timeout_s=timeout_s)
        if reading.status == 200 and not reading.is_given_up:  # it is whole
            self.on_whole(lease)
            # When many end at once, those that follow are sent before these are read.
            await asyncio.sleep(0)
        reading.digest()
        names = (
            "error_kind",
            "status",
            "prompt_tokens",
            "output_tokens",
            "queued_ms",
            "replica",
            "retry_after_s",
        )
        return AttemptResult(
            **{name: getattr(reading, name) for name in names},
            answer=storable("".join(reading.text)) or None,
            error=storable(reading.error),
            first_token_at=reading.arrivals[0] + epoch if reading.arrivals else None,
            decode_ms=reading.engine_figures()["decode_ms"],
            finish_reason=storable(reading.finish_reason),
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
        """Return whether it may go on.

        An answer that never ends is given up, and nothing of it is kept.
        """
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
    """One streamed request an attempt; after a rejected answer, with that answer and what was
    wrong with it.

    A further attempt at a task goes to another replica if there is one: it names a session of its
    own."""

    def __init__(self, line: SwarmClient, checking: AnswerChecker, order: SwarmRunOptions) -> None:
        self._line = line
        self._checking = checking
        self._order = order
        self._rejected: dict[str, str] = {}  # by task
        # Schemas that this engine cannot hold an answer to.
        self._forms_not_taken: set[str] = set()

    async def attempt(
        self, task: Task, number: int, complaint: str | None, lease: int = 0
    ) -> AttemptResult:
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

    async def _ask(
        self, task: Task, number: int, complaint: str | None, lease: int
    ) -> AttemptResult:
        messages = [dict(message) for message in task.messages]
        if (
            task.schema is not None
        ):  # engines that hold an answer to a schema do not tell the model of it
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
            text = (
                f"That answer was not accepted: {complaint}. Answer again, with nothing but the "
                "corrected answer."
            )
            messages.append({"role": "user", "content": text})
        # What the task says goes before what the run says.
        if task.max_tokens is not None:
            most: int | None = task.max_tokens
        else:
            most = self._order.max_tokens
        told = {
            "max_tokens": None if "max_completion_tokens" in task.extra else most,
            "temperature": task.temperature,
        }
        fields = {
            **{name: value for name, value in told.items() if value is not None},
            **task.extra,
        }
        send = partial(
            self._line.ask,
            messages,
            lease=lease,
            priority=self._order.priority,
            session=f"{task.id}/{number}" if number > 1 else None,
        )
        if task.schema is None:
            form = None
        else:
            form = json.dumps(task.schema)
        if form is None or "response_format" in fields or form in self._forms_not_taken:
            return await send(fields=fields)
        held = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": dict(task.schema or {})},
        }
        reply = await send(fields={**fields, "response_format": held})
        if reply.error_kind is not None and reply.status in _NOT_TAKEN:
            plain = await send(fields=fields)
            if plain.error_kind is None:
                self._forms_not_taken.add(form)
                return plain
        return reply


ANSWER_S = 2.0
URL_VARIABLE = "SKEP_URL"


def url_here(paths: Paths, env: Mapping[str, str]) -> str:
    """Return the address; where no skep runs, the one where it would: a run waits there until it
    does.
    """
    if env.get(URL_VARIABLE):
        return env[URL_VARIABLE]
    try:
        return str(
            ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=ANSWER_S)["url"]
        )
    except SkepError:
        return f"http://127.0.0.1:{DEFAULT_PORT}"


def key_here(url: str, env: Mapping[str, str]) -> str | None:
    """The key where none is named: on this machine what `local_key` finds, for `SKEP_URL` that of
    its gateway.
    """
    if (found := local_key(url, env, user_paths(env))) is not None:
        return found
    named = env.get(URL_VARIABLE)
    if named and parse_url(named)[0] == parse_url(url)[0]:
        return env.get(GATEWAY_KEY) or None
    return None


TOO_LONG = (
    "the check of the schema took too long: a `pattern` in it may never finish on this answer"
)
COMPUTE_S = 2.0
PATIENCE_S = (
    30.0  # of the wall clock, on a busy machine; the child's own computing is bounded far closer
)
PYTHON_VARIABLES = ("PYTHON", "LANG", "LC_", "LD_LIBRARY_PATH", "DYLD_")
LONGEST_HERE = 20_000  # characters of JSON that are checked in this process


class WrittenValue(NamedTuple):
    """A value of an answer, and how it is written as JSON:
    writing it takes as long as reading it.
    """

    value: Any
    document: str


def written_values(text: str) -> list[WrittenValue]:
    """Return the values that an answer holds, as `values_in` has them."""
    return [WrittenValue(value, json.dumps(value)) for value in values_in(text)]


async def schema_check(
    schema: Mapping[str, Any], written: WrittenValue, compute_s: float = COMPUTE_S
) -> str | None:
    """Return where the value is not as the schema says, in one line; None: it is. In a child where
    that may take long.

    The child has a session of its own: Ctrl-C is the runner's alone. `-P`: nothing is imported
    from the user's folder."""
    value, document = written
    if len(document) <= LONGEST_HERE and not may_be_slow(schema):
        return await look_at(document, lambda: value_faults(schema, value))
    argv = (sys.executable, "-P", "-m", "skep.swarm.schemas", str(compute_s))
    pipe = asyncio.subprocess.PIPE
    nowhere = asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=pipe,
        stdout=pipe,
        stderr=nowhere,
        start_new_session=True,
        env=_python_environment(),
    )
    job = f'{{"schema": {json.dumps(schema)}, "value": {document}}}'.encode()
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer, _ = await child.communicate(job)
    except TimeoutError:
        return TOO_LONG
    finally:
        if child.returncode is None:
            child.kill()
            await asyncio.shield(child.wait())
    if child.returncode == -signal.SIGPROF:
        return TOO_LONG
    if child.returncode != 0:
        raise SkepError(
            "the process that checks a schema was ended", hint="check that memory is left"
        )
    fault: str | None = json.loads(answer)["fault"]
    return fault


def _python_environment() -> dict[str, str]:
    """Return what Python itself looks at: the check of a schema has no business with keys."""
    return {name: value for name, value in os.environ.items() if name.startswith(PYTHON_VARIABLES)}


Demand = Callable[[Any], str | None]
KNOWN_ANSWER = (
    "exact",
    "choice",
    "number",
)  # what is wrong with an answer would tell the right one


class CheckedAnswer(msgspec.Struct, frozen=True):
    """An answer and whether it counts.

    `text` has no thinking; `value` is the JSON of a task with a schema.
    """

    ok: bool
    text: str
    value: Any = None
    complaint: str | None = (
        None  # the model is told it, and must not learn the right answer from it
    )


class AnswerChecker(AbstractAsyncContextManager["AnswerChecker"]):
    """The checks of a run."""

    def __init__(self, demand: Demand | None = None) -> None:
        """`demand`: a further one on every value, beyond its schema: what is wrong with it, or
        None.

        It is asked in a thread where the value is long.
        """
        self._demand = demand
        self._sandbox: Sandbox | None = None
        self._judge = Judge(None)
        self._slow_checks = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def __aexit__(self, *_: object) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()

    async def prepare(self, tasks: Iterable[Task]) -> None:
        """Open the sandbox if these tasks need it.

        UserError where their checkers cannot be carried out here.
        """
        items = [_item(task) for task in tasks if task.checker is not None]
        check_packages(items)
        if needs_sandbox(items) and self._sandbox is None:
            opening = asyncio.ensure_future(asyncio.to_thread(open_sandbox))
            try:
                self._sandbox = await asyncio.shield(opening)
            except asyncio.CancelledError:  # it is waited for, so that it is closed
                self._sandbox = await opening
                raise
            self._judge = Judge(self._sandbox)

    async def check(self, task: Task, text: str) -> CheckedAnswer:
        said = await look_at(text, lambda: split_answer(text, None))
        if not said.text.strip():
            if said.reasoning:
                silence = "nothing but thinking, no answer"
            else:
                silence = "the answer is empty"
            return CheckedAnswer(False, "", complaint=silence)
        value = complaint = None
        if task.schema is not None:
            value, complaint = await self._read(task.schema, said.text)
        if complaint is None and task.checker is not None:
            complaint = await self._judged(_item(task), said.text)
        return CheckedAnswer(complaint is None, said.text, value, complaint)

    async def _read(self, schema: Mapping[str, Any], text: str) -> tuple[Any, str | None]:
        """The first value that is as it should be; else what is wrong with the first, or with the
        largest beside it.
        """
        faults = []
        for written in await look_at(text, lambda: written_values(text)):
            async with self._slow_checks:
                fault = await schema_check(schema, written)
            if fault is None:
                return written.value, await self._demanded(written)
            faults.append((len(written.document), fault))
        if not faults:
            why = await look_at(text, lambda: why_none(text))
            return None, f"{why}; answer with JSON alone"
        return None, max(faults, key=lambda fault: fault[0])[1]

    async def _demanded(self, written: WrittenValue) -> str | None:
        """Return what is wrong with a value that meets its schema; None: nothing."""
        demand = self._demand
        if demand is None:
            return None
        return await look_at(written.document, lambda: demand(written.value))

    async def _judged(self, item: Item, text: str) -> str | None:
        found = await self._judge.judge_text(item, text)
        if found.outcome.passed:
            return None
        if item.checker.kind in KNOWN_ANSWER:
            return f"the answer is wrong ({item.checker.kind})"
        return one_line(
            f"does not pass its check ({item.checker.kind}): {found.detail or found.outcome.value}"
        )


def _item(task: Task) -> Item:
    messages = []
    values = dict(task.checker or {})
    for message in task.messages:
        content = message.get("content")
        if isinstance(content, Sequence) and not isinstance(
            content, str
        ):  # of a message in parts, the texts
            content = "\n".join(
                str(part.get("text", "")) for part in content if isinstance(part, Mapping)
            )
        messages.append({"role": str(message.get("role", "user")), "content": str(content or "")})
    return Item(task.id, tuple(messages), Checker(str(values.pop("kind", "")), values))
