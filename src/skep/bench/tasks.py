"""A workload and a seed become tasks, tasks become requests, and answers become rows."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from random import Random
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.errors import EndpointError
from skep.store.records import EngineTimings, Request
from skep.store.rows import storable
from skep.wire.client import Pool, fetch_if_there
from skep.wire.openai import CHAT, OpenAIClient, StreamReader
from skep.workload import prompts
from skep.workload.prompts import ConversationScript, TokenCalibration, calibrate, sample_prompts

OLLAMA_CHAT = "/api/chat"
SHARED_TOKENS = 2048
FIRST_TURN_TOKENS = 120
TASK_TOKENS = 60  # behind a shared prefix, without the chat template's own
SAMPLES = 12
ASKED_OF_USAGE = 6

Shape = Literal["steady", "burst", "conversation", "shared-prefix"]


class BenchTask(msgspec.Struct, frozen=True):
    """One request to be made, with its place in the run."""

    level: int
    repeat: int
    index: int
    kind: str
    messages: list[dict[str, Any]]
    max_tokens: int
    # Ask the engine to go on to max_tokens (llama.cpp and vLLM know how).
    fixed_output: bool = False
    temperature: float = 0.0
    traffic: str = ""
    scheduled_s: float | None = None  # on the run's clock
    session: int | None = None
    turn: int | None = None
    body: Mapping[str, Any] = {}  # more fields of the request, as the engine knows them
    headers: Mapping[str, str] = {}  # of this request alone


# A task, and its head and body as they go over the wire.
EncodedRequest = tuple[BenchTask, tuple[bytes, bytes]]


def body_of(task: BenchTask, endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.api == "ollama":
        options: dict[str, Any] = {"num_predict": task.max_tokens, "temperature": task.temperature}
        return {
            "model": endpoint.model,
            "messages": task.messages,
            "stream": True,
            "options": options,
        }
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": task.messages,
        "max_tokens": task.max_tokens,
        "temperature": task.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if task.fixed_output:
        body["ignore_eos"] = True
    body |= task.body
    return body


class Sender:
    """Sends tasks to one endpoint and makes rows of the answers.

    Rows are made when nothing else is to be done: requests go first.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        pool: Pool,
        origin_s: float,
        *,
        timeout_s: float,
        keep_text: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.pool = pool
        self.origin_s = origin_s  # rows count their seconds from here, on `time.monotonic()`
        if endpoint.api == "ollama":
            path = OLLAMA_CHAT
        else:
            path = f"{endpoint.base}{CHAT}"
        self._client = OpenAIClient(pool, path, endpoint.headers, timeout_s=timeout_s)
        self._keep_text = keep_text
        self._finished_answers: deque[
            tuple[BenchTask, StreamReader, Callable[[Request], None]]
        ] = deque()
        self._row_task: asyncio.Task[None] | None = None

    def now(self) -> float:
        return time.monotonic() - self.origin_s

    @property
    def in_flight(self) -> set[StreamReader]:
        return self._client.in_flight

    def reads(self) -> int:
        """Return the network reads of the answers under way: about as many as their tokens."""
        return sum(reading.reads for reading in self._client.in_flight)

    def encode(self, task: BenchTask) -> EncodedRequest:
        return task, self._client.encode(body_of(task, self.endpoint), task.headers)

    async def send(self, encoded: EncodedRequest, on_row: Callable[[Request], None]) -> None:
        """Send a request and return when its answer has ended; the row follows soon after.

        Does not raise for faults.
        """
        task, request = encoded
        self._finished_answers.append((task, await self._exchange(request), on_row))
        if self._row_task is None or self._row_task.done():
            if self._row_task is not None:
                self._row_task.result()  # an error in making a row ends the load
            self._row_task = asyncio.get_running_loop().create_task(self._flush_rows_when_idle())

    async def ask(self, task: BenchTask) -> tuple[Request, str]:
        """Send a task; return its row and the answer's text."""
        reading = await self._exchange(self.encode(task)[1])
        return self._row(task, reading), storable("".join(reading.text)) or ""

    async def ask_with(self, task: BenchTask, reading: StreamReader) -> Request:
        """Send a task whose answer is read by the caller's own reader; return its row."""
        await self._exchange(self.encode(task)[1], reading)
        return self._row(task, reading)

    async def settle(self) -> None:
        """Wait until every row has been handed on."""
        emitting = self._row_task
        self._row_task = None
        if emitting is not None:
            await emitting

    def flush_rows(self) -> None:
        """Hand on all rows at once: the load was broken off, and its measurements are kept."""
        emitting = self._row_task
        self._row_task = None
        if emitting is not None:
            emitting.cancel()
        while self._finished_answers:
            self._emit_next_row()

    async def _exchange(
        self, request: tuple[bytes, bytes], reading: StreamReader | None = None
    ) -> StreamReader:
        if not self.pool.has_idle():
            await self.pool.prepare(1)  # the time to connect is not the engine's
        return await self._client.send(request, reading)

    async def _flush_rows_when_idle(self) -> None:
        while self._finished_answers:
            self._emit_next_row()
            await asyncio.sleep(0)  # data that has arrived goes first

    def _emit_next_row(self) -> None:
        task, reading, on_row = self._finished_answers.popleft()
        on_row(self._row(task, reading))

    def _row(self, task: BenchTask, reading: StreamReader) -> Request:
        reading.digest()
        output_tokens = reading.output_tokens
        kind = reading.error_kind
        error = reading.error
        if kind is None and output_tokens is None:
            kind = "no_usage"
            error = "the server sent no `usage`, so its tokens are unknown"
        origin = self.origin_s
        arrivals = tuple([at - origin for at in reading.arrivals])
        return Request(
            level=task.level,
            repeat=task.repeat,
            index=task.index,
            kind=task.kind,
            started_s=reading.started_at - origin,
            ended_s=reading.ended_at - origin,
            first_byte_s=None if reading.first_byte is None else reading.first_byte - origin,
            first_token_s=arrivals[0] if arrivals else None,
            last_token_s=arrivals[-1] if arrivals else None,
            prompt_tokens=reading.prompt_tokens,
            output_tokens=output_tokens,
            status=reading.status,
            error_kind=kind,
            error=storable(error),
            finish_reason=storable(reading.finish_reason),
            replica=reading.replica,
            queued_ms=reading.queued_ms,
            engine=EngineTimings(**reading.engine_figures()),
            arrivals_s=arrivals,
            traffic=task.traffic,
            scheduled_s=task.scheduled_s,
            session=task.session,
            turn=task.turn,
            **self._texts(task, reading),
        )

    def _texts(self, task: BenchTask, reading: StreamReader) -> dict[str, str | None]:
        """Return the fields of a row that hold text; none unless text is kept."""
        if not self._keep_text:
            return {}
        prompt = "\n".join(str(message.get("content")) for message in task.messages)
        return {
            "prompt": storable(prompt),
            "answer": storable("".join(reading.text)),
            "reasoning": storable("".join(reading.reasoning)) or None,
        }


class Workload(msgspec.Struct, frozen=True):
    """How tasks are made; `prompt_tokens` None: short prompts, which need no calibration."""

    shape: Shape = "steady"
    prompt_tokens: int | None = None
    max_tokens: int = 1024  # where an answer does not end before
    fixed_output: bool = False
    temperature: float = 0.0
    seed: int = 0
    turns: int = 4  # of a conversation
    think_s: float = 2.0


class TaskMaker:
    """Makes the tasks of a workload.

    Every prompt begins with a tag of its own, so that no cache has seen it; `salt` makes other
    tags of the same seed.
    """

    def __init__(
        self, workload: Workload, calibration: TokenCalibration | None = None, *, salt: str = ""
    ) -> None:
        self.workload = workload
        self._calibration = calibration or TokenCalibration()
        self._salt = salt

    @property
    def lengths(self) -> dict[str, float | None]:
        """Return the lengths as measured on this engine, for the record; None where none were."""
        lengths = self._calibration.lengths
        if not self._calibration.samples:
            return dict.fromkeys(lengths)
        return {**lengths}

    def tasks(self, level: int, repeat: int, count: int, *, same: bool = False) -> list[BenchTask]:
        """Return the tasks of one run of a level.

        `same`: those that every other level has too, each behind another first line.
        """
        if same:
            place = f"{repeat}"
            first = f"{self._salt}{level}."
        else:
            place = f"{level}/{repeat}"
            first = self._salt
        return [
            self._task(level, repeat, index, prompt, first)
            for index, prompt in enumerate(islice(self._prompts(place), count))
        ]

    def warm_up(self, count: int, begin: int, max_tokens: int) -> list[BenchTask]:
        """Return tasks of level 0: prompts of the same kind, with short answers."""
        warm_up_prompts = islice(self._prompts(f"warm/{begin}"), count)
        warm_up_tasks = (
            self._task(0, 0, begin + index, prompt, self._salt)
            for index, prompt in enumerate(warm_up_prompts)
        )
        return [replace(task, max_tokens=max_tokens) for task in warm_up_tasks]

    def scripts(self, level: int, repeat: int) -> Iterator[prompts.ConversationScript]:
        load = self.workload
        rng = Random(f"{self.workload.seed}/talk/{level}/{repeat}")
        lengths = {
            "tokens_first": load.prompt_tokens or FIRST_TURN_TOKENS,
            **self._calibration.lengths,
        }
        scripts = prompts.conversations(rng, turns=load.turns, think_s=load.think_s, **lengths)
        if not self._salt:
            return scripts
        return (replace(script, system=f"{self._salt} {script.system}") for script in scripts)

    def _prompts(self, place: str) -> Iterator[prompts.Prompt]:
        load = self.workload
        rng = Random(f"{self.workload.seed}/{place}")
        measure = self._calibration.lengths
        if load.shape == "shared-prefix":
            task_tokens = math.ceil(TASK_TOKENS + self._calibration.overhead_tokens)
            return prompts.shared_prefix(
                rng, tokens=load.prompt_tokens or SHARED_TOKENS, task_tokens=task_tokens, **measure
            )
        if load.prompt_tokens is None:
            return prompts.coding_prompts(rng)
        return prompts.coding_prompts(rng, tokens=load.prompt_tokens, **measure)

    def _task(
        self, level: int, repeat: int, index: int, prompt: prompts.Prompt, first: str
    ) -> BenchTask:
        messages = prompt.messages
        if first:
            messages[0]["content"] = f"{first} {messages[0]['content']}"
        return self._base_task(level, repeat, index, prompt.kind, messages)

    def _base_task(
        self, level: int, repeat: int, index: int, kind: str, messages: list[dict[str, str]]
    ) -> BenchTask:
        load = self.workload
        return BenchTask(
            level,
            repeat,
            index,
            kind,
            messages,
            load.max_tokens,
            load.fixed_output,
            load.temperature,
        )

    def conversations(
        self, level: int, repeat: int, count: int
    ) -> list[tuple[BenchTask, ConversationScript]]:
        """Return conversations for `level` agents, until about `count` turns are had.

        Each comes with the task of its first turn.
        """
        turns = self.workload.turns
        number = max(level, math.ceil(count / turns))
        conversations = []
        for session, script in enumerate(islice(self.scripts(level, repeat), number)):
            first = self._base_task(level, repeat, session * turns, script.kind, [])
            conversations.append((replace(first, session=session), script))
        return conversations


async def calibrate_on(
    endpoint: Endpoint, tokens: int | None, seed: int, *, timeout_s: float = 120.0
) -> TokenCalibration:
    """Measure how many tokens the engine makes of a text.

    The tokens of the chat template are known only from `usage`, so a few requests of one token
    are made in any case.
    """
    samples = sample_prompts(Random(f"{seed}/lengths"), tokens=tokens, count=SAMPLES)
    pool = Pool(endpoint.origin)
    try:
        counts = await asyncio.gather(
            *(count_tokens(pool, endpoint, prompt.text) for prompt in samples)
        )
        counted = [
            (prompt.text, count) for prompt, count in zip(samples, counts, strict=True) if count
        ]
        has_tokenizer = len(counted) == len(samples)
        usage_counts = [
            (prompt.text, await count_by_usage(pool, endpoint, prompt.messages, timeout_s))
            for prompt in samples[: 1 if has_tokenizer else ASKED_OF_USAGE]
        ]
    finally:
        await pool.close()
    if not has_tokenizer:
        return calibrate(usage_counts)
    first_text, with_template = usage_counts[0]
    template_tokens = with_template - dict(counted)[first_text]
    return calibrate((text, count + template_tokens) for text, count in counted)


async def count_tokens(pool: Pool, endpoint: Endpoint, text: str) -> int | None:
    """Return how many tokens the engine's tokenizer counts; None where it has none."""
    # llama.cpp reads `content` and gives the tokens; vLLM and SGLang read `prompt` and give a
    # count.
    body = {"model": endpoint.model, "content": text, "prompt": text}
    headers = dict(endpoint.headers)
    answer = await fetch_if_there(
        pool, "POST", "/tokenize", body=body, headers=headers, timeout_s=10.0
    )
    document = answer.document() if answer else {}
    count = document.get("count")
    tokens = document.get("tokens")
    if isinstance(count, int):
        return count
    if isinstance(tokens, list):
        return len(tokens)
    return None


async def count_by_usage(
    pool: Pool, endpoint: Endpoint, messages: list[dict[str, str]], timeout_s: float
) -> int:
    """Return the tokens of a prompt as a request of one token tells them, the chat template's
    included.
    """
    sender = Sender(endpoint, pool, time.monotonic(), timeout_s=timeout_s)
    row, _ = await sender.ask(BenchTask(0, 0, 0, "count", messages, 1))
    if row.prompt_tokens is None:
        why = row.error or "it does not report the prompt's tokens"
        hint = "leave --prompt-tokens out: then skep needs no count"
        raise EndpointError(f"{endpoint.url} did not count a prompt: {why}", hint=hint)
    return row.prompt_tokens
