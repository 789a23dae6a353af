"""A fake engine as a real process: `python -m skep.testing.fake_engine --slots 2 --token-ms 10`.

Speaks the OpenAI protocol with words for tokens, answers in the times it is set to, and fails on
command. `--help` lists everything; POST /fake/fault breaks it while it runs; tests start it
through `skep.testing.process`."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import uvloop

from skep.errors import UserError
from skep.testing.answer_choice import AnswerChoice
from skep.testing.engine_words import Refusal, plain_refusal
from skep.testing.fake_answers import AnswerHead, FakeAnswer, FakeRequest, StreamEncoder
from skep.testing.fake_http import FakeConnection, HttpRequest
from skep.testing.fake_options import (
    DecodeClock,
    FaultKind,
    FaultPlan,
    InjectedFault,
    parse_options,
)
from skep.testing.part_encoder import PartEncoder
from skep.testing.protocols import (
    COUNT_PATH,
    DIALECTS,
    ID_BEGINNINGS,
    parse,
    stream_encoder,
    whole_answer,
)

J = TypeVar("J")


class SlotTable(Generic[J]):
    """Jobs in slots and in a queue.

    A job is in one of them or unknown; a slot is free only if the queue is empty.
    """

    def __init__(self, slots: int) -> None:
        self.slots: list[J | None] = [None] * slots
        self._queue: deque[J] = deque()
        self.running = 0
        self.max_running = 0
        self.max_inside = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def enter(self, job: J) -> bool:
        """Give a job a slot, or a place in the queue. Return whether it has a slot."""
        has_slot = None in self.slots
        if has_slot:
            self.slots[self.slots.index(None)] = job
            self.running += 1
        else:
            self._queue.append(job)
        self.max_running = max(self.max_running, self.running)
        self.max_inside = max(self.max_inside, self.running + self.waiting)
        return has_slot

    def leave(self, job: J) -> J | None:
        """Remove a job and return the one that may start in its slot.

        Leaving twice changes nothing.
        """
        if job in self._queue:
            self._queue.remove(job)
        elif job in self.slots:
            next_job = self._queue.popleft() if self._queue else None
            self.slots[self.slots.index(job)] = next_job
            if next_job is None:
                self.running -= 1
            return next_job
        return None


# Event loops fire timers to the millisecond: what is due within half of one is due.
TIMER_STEP_S = 0.0005


@dataclass(eq=False, repr=False)
class FakeJob:
    """One generation.

    `on_leave` is called once, when its slot is free again or it has left the queue.
    """

    ask: FakeRequest
    answer: FakeAnswer
    head: AnswerHead
    options: argparse.Namespace
    fault: InjectedFault | None
    connection: FakeConnection
    on_leave: Callable[[FakeJob], None]
    late_s: float = 0.0  # before the first token, beside the prefill
    produced: int = 0

    def __post_init__(self) -> None:
        self._table: SlotTable[FakeJob] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stream: StreamEncoder | PartEncoder | None = None
        self._started_s = 0.0
        self._first_s = 0.0
        self._last_s = 0.0

    def start(self, table: SlotTable[FakeJob]) -> None:
        """Begin the prefill: the job has a slot."""
        self._table = table
        self._started_s = time.monotonic()
        if self.fault is not None and self.fault.kind is FaultKind.HANG_FIRST:
            return
        prompt_tokens = self.ask.prompt_tokens
        if self.options.prefix_cache == "used":
            prompt_tokens -= self.head.cached_tokens
        self._clock = DecodeClock(self.options.speed, self._started_s + self.late_s, prompt_tokens)
        if self.ask.stream:
            usage = self.ask.include_usage and not self.options.no_usage
            per_chunk = self.options.chunk_tokens
            self._stream = stream_encoder(
                self.ask.dialect, self.head, self.answer, per_chunk=per_chunk, usage=usage
            )
        self._wait()

    def hang_up(self) -> None:
        """End the job: its client has hung up. A deaf engine does not notice that at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._table is not None and self.options.deaf_s:
            asyncio.get_running_loop().call_later(self.options.deaf_s, self.on_leave, self)
        else:
            self.on_leave(self)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._clock.deadline_s, self._tick)

    def _tick(self) -> None:
        """Send what is due, then wait for the next deadline."""
        assert self._table is not None
        while True:
            if self._stream is not None and self.produced == 0:
                self.connection.begin_stream()
            if self._is_struck():
                return
            self._last_s = time.monotonic()
            if self.produced == 0:
                self._first_s = self._last_s
            if self._stream is not None:
                data = self._stream.token(self.answer.tokens[self.produced])
                if data:
                    self.connection.chunk(data)
            self.produced += 1
            if self.produced == len(self.answer.tokens):
                self._finish()
                return
            due_s = self._clock.advance(
                self._last_s, busy=self._table.running, waiting=self._table.waiting
            )
            if due_s > self._last_s + TIMER_STEP_S:
                break
        self._wait()

    def _is_struck(self) -> bool:
        """Have the fault strike if it is due. Return whether the job is over."""
        fault = self.fault
        if fault is None or not fault.kind.is_mid or self.produced < fault.after_tokens:
            return False
        if fault.kind is FaultKind.CRASH:
            os._exit(fault.exit_code)
        if fault.kind is FaultKind.CLOSE_MID:
            self.connection.close(reset=fault.reset)
            self.on_leave(self)
        return True

    def _finish(self) -> None:
        timings = self._timings()
        self.on_leave(self)
        if self._stream is None:
            usage = not self.options.no_usage
            self.connection.send(
                200, whole_answer(self.ask.dialect, self.head, self.answer, timings, usage=usage)
            )
        else:
            self.connection.chunk(self._stream.ending(self.answer.finish_reason, timings))
            self.connection.end_stream()

    def _timings(self) -> dict[str, Any]:
        """Return timings as llama.cpp reports them, from the moments when tokens really left."""
        cached = self.head.cached_tokens
        count = self.ask.prompt_tokens - cached
        prompt_ms = (self._first_s - self._started_s) * 1000
        decode_ms = (self._last_s - self._first_s) * 1000
        timings: dict[str, Any] = {"cache_n": cached, "prompt_n": count, "prompt_ms": prompt_ms}
        timings["prompt_per_second"] = count / max(prompt_ms, 0.001) * 1000
        timings |= {"predicted_n": self.produced, "predicted_ms": decode_ms}
        if self.produced > 1 and decode_ms > 0:
            timings["predicted_per_token_ms"] = decode_ms / (self.produced - 1)
            timings["predicted_per_second"] = (self.produced - 1) / decode_ms * 1000
        return timings


Route = Callable[[HttpRequest, FakeConnection], None]
ENDLESS_PIECE = 262_144  # bytes
FAULT_ERRORS = {  # status, message, type
    FaultKind.ERROR_500: (500, "the fake engine fails as asked", "server_error"),
    FaultKind.BUSY_503: (503, "busy as asked", "unavailable_error"),
    FaultKind.LIMIT_429: (429, "too many requests, as asked", "rate_limit_error"),
}
COUNTERS = frozenset({"requests", "hangups", "connections_total", "max_running", "max_inside"})


class FakeServer:
    """The state of one fake engine, its listeners, and the connections that wait for a state."""

    def __init__(self, options: argparse.Namespace, grandchildren: Sequence[int] = ()) -> None:
        self.options = options
        self._grandchildren = grandchildren
        self._listener: asyncio.Server | None = None
        self._opening: asyncio.Future[None] | None = None
        self._port = options.port
        self._waiters: list[tuple[Mapping[str, Any], FakeConnection]] = []
        self.table: SlotTable[FakeJob] = SlotTable(options.slots)
        self.faults = FaultPlan()
        self._answers = AnswerChoice(options)
        self.connections: set[FakeConnection] = set()
        self.connections_total = 0
        self.requests = 0
        self.hangups = 0
        self.prompt_tokens = 0
        self._finished_tokens = 0  # of output, of jobs that have left
        self.last_request: HttpRequest | None = None
        self._ready_at_s = time.monotonic() + options.load_s
        self.routes: dict[tuple[str, str], Route] = {("GET", "/metrics"): self._metrics}
        for path in ("/health", "/v1/models", "/slots", "/props"):
            self.routes["GET", path] = self._describe

    @property
    def output_tokens(self) -> int:
        running = sum(job.produced for job in self.table.slots if job is not None)
        return self._finished_tokens + running

    async def open(self) -> dict[str, str]:
        """Listen. Return the addresses under the names of the report line."""
        await self._listen()
        host = self.options.host
        if ":" in host:
            host = f"[{host}]"
        report = {"url": f"http://{host}:{self._port}"}
        if self.options.control_port is not None:
            loop = asyncio.get_running_loop()
            port = self.options.control_port
            listener = await loop.create_server(
                lambda: FakeConnection(self, counted=False), "127.0.0.1", port
            )
            report["control"] = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            self._own_listener = listener
        for fault in self.options.faults:
            self._apply(fault)
        return report

    # What a connection calls.

    def opened(self, connection: FakeConnection) -> None:
        if not connection.counted:
            return
        self.connections.add(connection)
        self.connections_total += 1
        fault = self.faults.take(lambda fault: fault.kind is FaultKind.SLOW_ACCEPT)
        if fault is not None:
            connection.pause(fault.delay_ms / 1000)
        self._changed()

    def closed(self, connection: FakeConnection) -> None:
        self.connections.discard(connection)
        self._waiters = [waiter for waiter in self._waiters if waiter[1] is not connection]
        self._changed()

    def handle(self, request: HttpRequest, connection: FakeConnection) -> None:
        authorization = request.headers.get("authorization")
        key = self.options.key
        needs_key = key and connection.counted and request.path != "/health"
        if needs_key and authorization != f"Bearer {key}":
            _send_error(connection, 401, "the fake engine wants its key", "authentication_error")
            return
        if request.path.startswith("/fake/"):
            self._control(request, connection)
            return
        fault = self.faults.take(lambda fault: fault.strikes(request.method, request.path))
        if fault is not None and self._strike(fault, request, connection):
            return
        if time.monotonic() < self._ready_at_s:
            _send_error(connection, 503, "Loading model", "unavailable_error")
            return
        if request.method == "POST" and request.path.startswith("/v1/"):
            self._post(request, connection, fault)
            return
        route = self.routes.get((request.method, request.path))
        if route is None:
            message = f"no route {request.method} {request.path}"
            _send_error(connection, 404, message, "not_found_error")
            return
        route(request, connection)

    # Generation.

    def _post(
        self, request: HttpRequest, connection: FakeConnection, fault: InjectedFault | None
    ) -> None:
        self.requests += 1
        self.last_request = request
        if self.options.record is not None:
            record(self.options.record, request)
        if request.path == COUNT_PATH:
            self._count(request, connection)
            return
        if request.path not in DIALECTS:
            _send_echo(request, connection)
            return
        dialect = DIALECTS[request.path]
        try:
            ask = parse(request.body, dialect)
            self._generate(ask, connection, fault)
        except UserError as error:
            _send_refusal(
                connection, plain_refusal(400, error.message, "invalid_request_error", dialect)
            )
        self._changed()

    def _count(self, request: HttpRequest, connection: FakeConnection) -> None:
        """Answer how many tokens a prompt of Anthropic's clients has."""
        try:
            ask = parse(request.body, "messages")
        except UserError as error:
            _send_refusal(
                connection, plain_refusal(400, error.message, "invalid_request_error", "messages")
            )
            return
        connection.send_json(200, {"input_tokens": ask.prompt_tokens})

    def _generate(
        self, ask: FakeRequest, connection: FakeConnection, fault: InjectedFault | None
    ) -> None:
        options = self.options
        table = self.table
        choice = self._answers.choose(ask, inside=table.running + table.waiting + 1)
        if choice.refusal is not None:
            _send_refusal(connection, choice.refusal)
            return
        assert choice.answer is not None
        if fault is None and choice.cut_after is not None:
            fault = InjectedFault(FaultKind.CLOSE_MID, after_tokens=choice.cut_after)
        name = f"{ID_BEGINNINGS[ask.dialect]}-{self.requests}"
        head = AnswerHead(
            name,
            options.model,
            int(time.time()),
            ask.chat,
            ask.prompt_tokens,
            choice.cached_tokens,
        )
        job = FakeJob(
            ask,
            choice.answer,
            head,
            options,
            fault,
            connection,
            on_leave=self._on_leave,
            late_s=choice.late_s,
        )
        connection.on_hang_up = lambda: self._hung_up(job)
        if table.enter(job):
            job.start(table)

    def _hung_up(self, job: FakeJob | None = None) -> None:
        self.hangups += 1
        if job is not None:
            job.hang_up()
        self._changed()

    def _on_leave(self, job: FakeJob) -> None:
        self._finished_tokens += job.produced
        if job.produced:
            self.prompt_tokens += job.ask.prompt_tokens
        next_job = self.table.leave(job)
        if next_job is not None:
            next_job.start(self.table)
        self._changed()

    # Faults that strike before the answer.

    def _strike(
        self, fault: InjectedFault, request: HttpRequest, connection: FakeConnection
    ) -> bool:
        """Have a fault strike instead of the answer. Return False where it strikes later."""
        if fault.kind.is_mid and request.path in DIALECTS:
            return False
        self.requests += 1
        self.last_request = request
        self._changed()
        if fault.kind in FAULT_ERRORS:
            _send_fault_error(connection, fault)
        elif fault.kind is FaultKind.CRASH:
            os._exit(fault.exit_code)
        else:
            self._break_answer(fault, request, connection)
        return True

    def _break_answer(
        self, fault: InjectedFault, request: HttpRequest, connection: FakeConnection
    ) -> None:
        """Send something that is no answer, or nothing: any other fault hangs."""
        match fault.kind:
            case FaultKind.CLOSE_FIRST | FaultKind.CLOSE_MID:
                connection.close(reset=fault.reset)
            case FaultKind.GARBAGE:
                connection.write(b"\x15\x03\x01\x00\x02\x02\x16 not HTTP at all\n")
                connection.close()
            case FaultKind.HTML:
                page = b"<!doctype html><title>Welcome</title><h1>It works</h1>"
                connection.send(200, page, content_type="text/html; charset=utf-8")
            case FaultKind.INVALID_JSON:
                _send_invalid_json(request, connection)
            case FaultKind.SHORT_BODY:
                connection.send(200, b'{"choices":[{"index":0,', 500)
            case FaultKind.ENDLESS:
                connection.on_hang_up = self._hung_up
                connection.begin_stream("application/json")
                connection.repeat(b" " * ENDLESS_PIECE)

    # What the engine reports of itself.

    def _describe(self, request: HttpRequest, connection: FakeConnection) -> None:
        name = self.options.model
        ctx = self.options.ctx
        model = {"id": name, "object": "model", "created": 0, "owned_by": "skep-fake"}
        model["meta"] = {"n_ctx": ctx, "n_ctx_train": ctx}
        props = {"default_generation_settings": {"n_ctx": ctx}, "total_slots": self.options.slots}
        props |= {"model_alias": name, "model_path": f"{name}.gguf", "build_info": "skep-fake"}
        jobs = enumerate(self.table.slots)
        documents = {
            "/health": {"status": "ok"},
            "/v1/models": {"object": "list", "data": [model]},
            "/slots": [
                {"id": place, "n_ctx": ctx, "is_processing": job is not None}
                for place, job in jobs
            ],
            "/props": props,
        }
        connection.send_json(200, documents[request.path])

    def _metrics(self, _request: HttpRequest, connection: FakeConnection) -> None:
        label = f'{{model_name="{self.options.model}"}}'
        figures = (  # vLLM's name, llama.cpp's name, kind, value
            ("num_requests_running", "requests_processing", "gauge", self.table.running),
            ("num_requests_waiting", "requests_deferred", "gauge", self.table.waiting),
            ("prompt_tokens_total", "prompt_tokens_total", "counter", self.prompt_tokens),
            ("generation_tokens_total", "tokens_predicted_total", "counter", self.output_tokens),
        )
        lines = [
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{label} {value}\n"
            for name, _, kind, value in figures
        ]
        lines += [
            f"# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
            for _, name, kind, value in figures
        ]
        connection.send(200, "".join(lines).encode(), content_type="text/plain; version=0.0.4")

    # The control port, or /fake/ on the other one.

    def _control(self, request: HttpRequest, connection: FakeConnection) -> None:
        try:
            match request.method, request.path:
                case "GET", "/fake/state":
                    connection.send_json(200, self.state())
                case "POST", "/fake/fault":
                    self._apply(msgspec.json.decode(request.body, type=InjectedFault))
                    if self._opening is None:
                        connection.send_json(200, {})
                    else:  # once the listener is open again
                        self._opening.add_done_callback(lambda _: connection.send_json(200, {}))
                case "POST", "/fake/wait":
                    self._waiters.append((json.loads(request.body), connection))
                    self._changed()
                case _:
                    connection.send_json(404, {"error": {"message": f"no route {request.path}"}})
        except (UserError, ValueError, TypeError, msgspec.ValidationError) as error:
            connection.send_json(400, {"error": {"message": str(error)}})

    def state(self) -> dict[str, Any]:
        last = self.last_request
        slots = {
            name: getattr(self.table, name)
            for name in ("running", "waiting", "max_running", "max_inside")
        }
        counts = {
            name: getattr(self, name)
            for name in ("requests", "hangups", "connections_total", "output_tokens")
        }
        return {
            **counts,
            **slots,
            "connections_open": len(self.connections),
            "grandchildren": list(self._grandchildren),
            "last_path": last.path if last else None,
            "last_headers": dict(last.headers) if last else None,
            "last_body_sha256": hashlib.sha256(last.body).hexdigest() if last else None,
            "rules": dict(self._answers.script.decided),
        }

    def _changed(self) -> None:
        if not self._waiters:
            return
        state = self.state()
        met = [waiter for waiter in self._waiters if is_met(waiter[0], state)]
        self._waiters = [waiter for waiter in self._waiters if waiter not in met]
        for _, connection in met:
            connection.send_json(200, state)

    def _apply(self, fault: InjectedFault) -> None:
        if fault.kind is FaultKind.REFUSE:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            if fault.for_s is not None:
                asyncio.get_running_loop().call_later(fault.for_s, self._listen_again)
        elif fault.kind is FaultKind.NONE:
            self.faults.faults.clear()
            self._listen_again()
        else:
            self.faults.faults.append(fault)

    def _listen_again(self) -> None:
        if self._listener is None and self._opening is None:
            self._opening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        options = self.options
        connect = partial(FakeConnection, self, idle_close_s=options.idle_close_s)
        self._listener = await loop.create_server(connect, options.host, self._port, backlog=1024)
        self._opening = None
        self._port = self._listener.sockets[0].getsockname()[1]


def _send_error(
    connection: FakeConnection,
    status: int,
    message: str,
    kind: str,
    *,
    code: str | None = None,
    **headers: str,
) -> None:
    error = {"message": message, "type": kind, "param": None, "code": code or status}
    connection.send_json(status, {"error": error}, **headers)


def _send_echo(request: HttpRequest, connection: FakeConnection) -> None:
    connection.send(
        200,
        request.body,
        content_type=request.headers.get("content-type", "application/octet-stream"),
        x_body_sha256=hashlib.sha256(request.body).hexdigest(),
    )


def _send_fault_error(connection: FakeConnection, fault: InjectedFault) -> None:
    status, message, kind = FAULT_ERRORS[fault.kind]
    headers = {}
    if fault.kind is not FaultKind.ERROR_500:
        headers["retry_after"] = str(fault.retry_after_s)
    _send_error(connection, status, message, kind, **headers)


def _send_invalid_json(request: HttpRequest, connection: FakeConnection) -> None:
    if b'"stream": true' in request.body or b'"stream":true' in request.body:
        connection.begin_stream()
        connection.chunk(b'data: {"choices": [\n\ndata: [DONE]\n\n')
        connection.end_stream()
    else:
        connection.send(200, b'{"choices": [')


def record(path: str, request: HttpRequest) -> None:
    """Append a request to a file, as one line of JSON."""
    text = request.body.decode("utf-8", "replace")
    row = {"path": request.path, "headers": dict(request.headers), "body": text}
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _send_refusal(connection: FakeConnection, refusal: Refusal) -> None:
    connection.send_json(refusal.status, refusal.body)


def is_met(required: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return whether a state is as required: a counter may be past its value, all else equals."""
    return all(
        state[name] >= value if name in COUNTERS else state[name] == value
        for name, value in required.items()
    )


RoutesOf = Callable[[FakeServer], Mapping[tuple[str, str], Route]]
GRANDCHILD_LIFE_S = 120
GRANDCHILD = (
    "import select, sys; select.select([int(fd) for fd in sys.argv[2:]], [], [], "
    "float(sys.argv[1]))"
)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_options(sys.argv[1:] if argv is None else argv)
    if options.crash_at_start is not None:
        sys.stderr.write(options.crash_at_start + "\n")
        return int(options.exit_code)
    grandchildren = tuple(
        start_grandchild(options.parent_fd) for _ in range(options.grandchildren)
    )
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    uvloop.new_event_loop().run_until_complete(serve(options, grandchildren))
    os._exit(0)  # open streams are cut, as by an engine that is stopped


async def serve(
    options: argparse.Namespace, grandchildren: Sequence[int] = (), routes: RoutesOf = lambda _: {}
) -> None:
    """Serve until a signal ends it.

    The address is reported last: whoever knows it may send the signal.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if not options.ignore_term:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    if options.parent_fd is not None:
        loop.add_reader(options.parent_fd, os._exit, 0)
    server = FakeServer(options, grandchildren)
    server.routes.update(routes(server))
    addresses = await server.open()
    if options.report_fd is None:
        print(f"listening on {addresses['url']}", flush=True)  # noqa: T201 - for a start by hand
    else:
        with os.fdopen(options.report_fd, "w", encoding="utf-8") as out:
            out.write(json.dumps(addresses) + "\n")
    await stop.wait()


def start_grandchild(parent_fd: int | None) -> int:
    """Run a process in a session of its own that ignores SIGTERM; it ends with `parent_fd` or
    after two minutes.
    """
    fds = () if parent_fd is None else (parent_fd,)
    program = [sys.executable, "-I", "-S", "-c", GRANDCHILD]
    argv = [*program, str(GRANDCHILD_LIFE_S), *map(str, fds)]
    # A signal that is ignored stays so over exec.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            argv, pass_fds=fds, start_new_session=True, stdin=subprocess.DEVNULL
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    return child.pid


if __name__ == "__main__":
    sys.exit(main())
