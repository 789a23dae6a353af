"""The fake engine's routes: the OpenAI protocol, what llama.cpp and vLLM tell about themselves, and faults.

Answers go out through `fake_http`, generations run in `fake_jobs`; who runs and who waits is `fake_slots`' word.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import Any

from skep.errors import UserError
from skep.testing.fake_answers import Answer, Ask, answer, parse_ask
from skep.testing.fake_faults import Fault, FaultKind, FaultPlan
from skep.testing.fake_http import Connection, HttpRequest
from skep.testing.fake_jobs import Job, Work
from skep.testing.fake_options import Options
from skep.testing.fake_quality import Decision, Mind, halved, thinking
from skep.testing.fake_slots import Entry, SlotTable
from skep.testing.fake_streams import AnswerHead

Route = Callable[[HttpRequest, Connection], None]
GENERATIONS = {"/v1/chat/completions": True, "/v1/completions": False}  # path: is it a chat
ENDLESS_PIECE = 262_144  # bytes


class FakeServer:
    """Everything one fake engine knows. `changed` is called after each change of its state."""

    def __init__(self, options: Options, *, control: Route, changed: Callable[[], None]) -> None:
        self.options = options
        self.table: SlotTable[Job] = SlotTable(options.slots, options.inner_queue)
        self.faults = FaultPlan()
        self._mind = Mind(options.answers, options.quality)
        self.connections: set[Connection] = set()
        self.connections_total = 0
        self.requests = 0
        self.hangups = 0
        self.prompt_tokens = 0
        self._tokens_of_the_gone = 0
        self.last_request: HttpRequest | None = None
        self._control = control
        self._changed = changed
        self._ready_at_s = time.monotonic() + options.load_s
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): lambda _, connection: connection.send_json(200, {"status": "ok"}),
            ("GET", "/v1/models"): self._models,
            ("GET", "/slots"): self._slots,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/props"): self._props,
        }

    @property
    def output_tokens(self) -> int:
        return self._tokens_of_the_gone + sum(job.produced for job in self.table.slots() if job is not None)

    # What a connection calls.

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.connections_total += 1
        fault = self.faults.for_connection()
        delay_s = fault.delay_ms / 1000 if fault else self.options.accept_delay_s
        if delay_s:
            connection.pause(delay_s)
        self._changed()

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._changed()

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        if request.path != "/health" and not request.shows(self.options.key):
            _send_error(connection, 401, "the fake engine wants its key", "authentication_error")
            return
        if request.path.startswith("/fake/"):
            self._control(request, connection)
            return
        fault = self.faults.for_request(request.method, request.path)
        if fault is not None and self._strike(fault, request, connection):
            return
        if time.monotonic() < self._ready_at_s:
            _send_error(connection, 503, "Loading model", "unavailable_error")
        elif request.method == "POST" and request.path.startswith("/v1/"):
            self._post(request, connection, fault)
        elif (route := self._routes.get((request.method, request.path))) is not None:
            route(request, connection)
        else:
            _send_error(connection, 404, f"no route {request.method} {request.path}", "not_found_error")

    # Generation.

    def _post(self, request: HttpRequest, connection: Connection, fault: Fault | None) -> None:
        self.requests += 1
        self.last_request = request
        if request.path not in GENERATIONS:
            self._echo(request, connection)
            return
        try:
            ask = parse_ask(request.body, chat=GENERATIONS[request.path])
        except UserError as error:
            _send_error(connection, 400, error.message, "invalid_request_error")
            return
        if ask.prompt_tokens >= self.options.ctx:
            text = f"the prompt has {ask.prompt_tokens} tokens, the context holds {self.options.ctx}"
            _send_error(connection, 400, text, "invalid_request_error", code="context_length_exceeded")
            return
        decision = self._mind.decide(ask, inside=self.table.running + self.table.waiting + 1)
        if decision.fails:
            _send_error(connection, 500, "the fake engine fails under load as asked", "server_error")
        else:
            self._enter(self._job(ask, decision, fault, connection), connection)
        self._changed()

    def _words(self, ask: Ask, decision: Decision) -> Answer:
        limits = {"default_tokens": self.options.default_tokens, "ctx": self.options.ctx}
        words = answer(ask, answers=decision.answers, **limits)
        if decision.cut:
            words = halved(words)
        if self.options.reasoning is not None and ask.chat:
            words = thinking(words, self.options.reasoning, room=ask.room(**limits))
        return words

    def _job(self, ask: Ask, decision: Decision, fault: Fault | None, connection: Connection) -> Job:
        options = self.options
        words = self._words(ask, decision)
        kind = "chatcmpl" if ask.chat else "cmpl"
        head = AnswerHead(f"{kind}-{self.requests}", options.model, int(time.time()), ask.chat, ask.prompt_tokens)
        work = Work(ask, words, head, options.form, fault, options.timings)
        return Job(work, options.speed, connection, deaf_s=options.deaf_s, left=self._left)

    def _enter(self, job: Job, connection: Connection) -> None:
        entry = self.table.enter(job)
        if entry is Entry.TURNED_AWAY:
            _send_error(connection, 503, "the engine's queue is full", "unavailable_error", retry_after_s=1)
            return
        connection.on_hang_up = lambda: self._hung_up(job)
        if entry is Entry.RUNS:
            job.start(self.table)

    def _hung_up(self, job: Job) -> None:
        self.hangups += 1
        job.hang_up()

    def _count_hang_up(self) -> None:
        self.hangups += 1
        self._changed()

    def _left(self, job: Job) -> None:
        self._tokens_of_the_gone += job.produced
        self.prompt_tokens += job.prompt_tokens if job.produced else 0
        heir = self.table.leave(job)
        if heir is not None:
            heir.start(self.table)
        self._changed()

    # Faults that strike before the answer.

    def _strike(self, fault: Fault, request: HttpRequest, connection: Connection) -> bool:
        if fault.kind.is_mid and request.path in GENERATIONS:
            return False
        self.requests += 1
        self.last_request = request
        self._changed()
        match fault.kind:
            case FaultKind.CLOSE_FIRST | FaultKind.CLOSE_MID:
                connection.close(reset=fault.reset)
            case FaultKind.CRASH:
                os._exit(fault.exit_code)
            case FaultKind.ERROR_500:
                _send_error(connection, 500, "the fake engine fails as asked", "server_error")
            case FaultKind.BUSY_503:
                text = "the fake engine is busy as asked"
                _send_error(connection, 503, text, "unavailable_error", retry_after_s=fault.retry_after_s)
            case FaultKind.LIMIT_429:
                text = "too many requests, as asked"
                _send_error(connection, 429, text, "rate_limit_error", retry_after_s=fault.retry_after_s)
            case FaultKind.GARBAGE:
                connection.write(b"\x15\x03\x01\x00\x02\x02\x16 not HTTP at all\n")
                connection.close()
            case FaultKind.HTML:
                page = b"<!doctype html><title>Welcome</title><h1>It works</h1>"
                connection.send(200, page, content_type="text/html; charset=utf-8")
            case FaultKind.INVALID_JSON:
                _send_invalid_json(request, connection)
            case FaultKind.SHORT_BODY:
                connection.send(200, b'{"choices":[{"index":0,', missing_bytes=500)
            case FaultKind.ENDLESS:
                connection.on_hang_up = self._count_hang_up
                connection.begin_stream("application/json")
                connection.repeat(b" " * ENDLESS_PIECE)
            case _:
                pass  # hangs: no answer, ever
        return True

    # What the engine tells about itself.

    def _models(self, _request: HttpRequest, connection: Connection) -> None:
        model = {"id": self.options.model, "object": "model", "created": 0, "owned_by": "skep-fake"}
        model["meta"] = {"n_ctx": self.options.ctx, "n_ctx_train": self.options.ctx}
        connection.send_json(200, {"object": "list", "data": [model]})

    def _slots(self, _request: HttpRequest, connection: Connection) -> None:
        slots = [
            {"id": place, "n_ctx": self.options.ctx, "is_processing": job is not None}
            for place, job in enumerate(self.table.slots())
        ]
        connection.send_json(200, slots)

    def _props(self, _request: HttpRequest, connection: Connection) -> None:
        props = {
            "default_generation_settings": {"n_ctx": self.options.ctx},
            "total_slots": self.options.slots,
            "model_alias": self.options.model,
            "model_path": f"{self.options.model}.gguf",
            "build_info": "skep-fake",
        }
        connection.send_json(200, props)

    def _metrics(self, _request: HttpRequest, connection: Connection) -> None:
        label = f'{{model_name="{self.options.model}"}}'
        figures = (
            ("gauge", f"vllm:num_requests_running{label}", self.table.running),
            ("gauge", f"vllm:num_requests_waiting{label}", self.table.waiting),
            ("counter", f"vllm:prompt_tokens_total{label}", self.prompt_tokens),
            ("counter", f"vllm:generation_tokens_total{label}", self.output_tokens),
            ("gauge", "llamacpp:requests_processing", self.table.running),
            ("gauge", "llamacpp:requests_deferred", self.table.waiting),
            ("counter", "llamacpp:prompt_tokens_total", self.prompt_tokens),
            ("counter", "llamacpp:tokens_predicted_total", self.output_tokens),
        )
        lines = [f"# TYPE {name.partition('{')[0]} {kind}\n{name} {value}\n" for kind, name, value in figures]
        connection.send(200, "".join(lines).encode(), content_type="text/plain; version=0.0.4")

    def _echo(self, request: HttpRequest, connection: Connection) -> None:
        kind = request.headers.get("content-type", "application/octet-stream")
        digest = hashlib.sha256(request.body).hexdigest()
        connection.send(200, request.body, content_type=kind, headers={"x-body-sha256": digest})


def _send_invalid_json(request: HttpRequest, connection: Connection) -> None:
    if b'"stream": true' in request.body or b'"stream":true' in request.body:
        connection.begin_stream()
        connection.chunk(b'data: {"choices": [\n\ndata: [DONE]\n\n')
        connection.end_stream()
    else:
        connection.send(200, b'{"choices": [')


def _send_error(
    connection: Connection,
    status: int,
    message: str,
    kind: str,
    *,
    code: str | int | None = None,
    retry_after_s: int | None = None,
) -> None:
    error: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": code or status}
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    connection.send_json(status, {"error": error}, headers)
