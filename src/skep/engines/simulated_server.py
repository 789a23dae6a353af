"""A simulated engine as a real process: `python -m skep.engines.simulated_server --model NAME
--plan JSON`.

Speaks vLLM's protocol and keeps the times of the plan. No model runs: every answer says that it is
simulated."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvloop
from msgspec.structs import replace

from skep.engines.base import REFUSED, fail_for_good, shows_key, take_key
from skep.engines.simulated import SimulatedPlan, plan_from_json
from skep.engines.simulated_requests import (
    SimulatedAnswer,
    SimulatedRefusal,
    error_document,
    parse_query,
)
from skep.engines.simulated_tokens import block_names
from skep.errors import UserError
from skep.paths import HOST
from skep.planner.batching import BatchPass, PassResult, Sequence
from skep.planner.caching import CacheCounts, CachingReplica, KvTier
from skep.wire.heads import Origin
from skep.wire.listen import cannot_listen, socket_for
from skep.wire.prometheus import Counter, Gauge, Histogram, Labels, Metric, metrics_text
from skep.wire.server import HttpServer
from skep.wire.server_request import ServerRequest

_SECONDS = (0.01, 0.1, 1.0, 10.0, 100.0)
_OF_MODEL = ("model_name", "engine")
_TIMES = (
    "time_to_first_token", "request_time_per_output_token", "request_queue_time",
    "request_prefill_time", "request_decode_time", "e2e_request_latency",
)  # fmt: skip


class SimulatedMetrics:
    """Counters and times since the start.

    A time to the first token is added when that token comes, the other times of a request when
    it ends.
    """

    def __init__(self, model: str = "") -> None:
        self.prompt_tokens = self.output_tokens = self.drafts = self.drafted_tokens = (
            self.passes
        ) = 0
        self.accepted_tokens = 0.0
        self.behind_s = 0.0
        self.ended = {"stop": 0, "length": 0, "abort": 0}
        self.labels = (model, "0")
        self.times = {
            name: Histogram(f"vllm:{name}_seconds", "", _OF_MODEL, _SECONDS) for name in _TIMES
        }
        for name in _TIMES:
            self.observe(
                name, 0.0, times=0
            )  # the metric exists from the beginning, as vLLM's does

    def observe(self, name: str, seconds: float, times: int = 1) -> None:
        self.times[name].observe(self.labels, seconds, times)

    def text(self, gauges: dict[str, float], cache: CacheCounts) -> bytes:
        """Return the page of metrics. `gauges`: values of this moment, by vLLM's names without the
        prefix.
        """
        counters = {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.output_tokens,
            "prefix_cache_queries_total": round(cache.prompt_tokens),
            "prefix_cache_hits_total": round(cache.hit_tokens),
            "external_prefix_cache_hits_total": round(cache.ram_tokens),
            "num_preemptions_total": cache.preemptions,
        }
        if self.drafts:
            counters["spec_decode_num_drafts_total"] = self.drafts
            counters["spec_decode_num_draft_tokens_total"] = self.drafted_tokens
            counters["spec_decode_num_accepted_tokens_total"] = round(self.accepted_tokens)
        ended: dict[Labels, float] = {
            (*self.labels, why): count for why, count in self.ended.items()
        }
        metrics: list[Metric] = [
            Gauge(
                "skep_simulated",
                "These figures are a prediction: no model runs here.",
                (),
                {(): 1},
            ),
            *(
                Gauge(f"vllm:{name}", "", _OF_MODEL, {self.labels: value})
                for name, value in gauges.items()
            ),
            *(
                Counter(f"vllm:{name}", "", _OF_MODEL, {self.labels: count})
                for name, count in counters.items()
            ),
            Counter("vllm:request_success_total", "", (*_OF_MODEL, "finished_reason"), ended),
            *self.times.values(),
            Counter("skep_simulated_passes_total", "", (), {(): self.passes}),
            Counter("skep_simulated_behind_seconds_total", "", (), {(): round(self.behind_s, 6)}),
        ]
        return metrics_text(metrics)


# A delay of a pass beyond which the time is not made up: the machine slept, or is too slow for
# this rig.
TOO_LATE_S = 0.5


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request inside the engine.

    `gain` is called with the number of new tokens, `end` once after the last of them.
    """

    sequence: Sequence
    total: int
    gain: Callable[[int], None]
    end: Callable[[], None]
    sent_s: float
    let_in_s: float | None = None
    first_s: float | None = None
    tokens_sent: int = 0
    cached_tokens: int = 0  # of its prompt, when it began
    # `_gained` of the loop when its first token came; set anew where it goes on after it was
    # preempted.
    base: float = 0.0


class SimulatedLoop:
    """The passes of a simulated replica, one after the other in real time; the replica says what
    is in them.

    Each pass ends at a moment reckoned from the end of the last one, not from when the timer rang:
    no error adds up."""

    def __init__(
        self, replica: CachingReplica, metrics: SimulatedMetrics, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.replica = replica
        self.metrics = metrics
        self._loop = loop
        self._timer: object | None = None  # None: nothing to do
        self._under_way: dict[int, SimulatedRequest] = {}
        self._decoding: dict[int, SimulatedRequest] = {}
        self._gained = 0.0  # tokens of a sequence that decoded in every pass until now
        self._submitted = 0

    def submit(
        self,
        prompt: int,
        total: int,
        gain: Callable[[int], None],
        end: Callable[[], None],
        tokens: bytes = b"",
    ) -> SimulatedRequest:
        """Add a request, and return it. `tokens`: of prompt and answer, as `simulated_tokens` has
        them; without them, nothing of it is found in the prefix cache.
        """
        self._submitted += 1
        sequence = Sequence(self._submitted, float(prompt), float(total))
        names = block_names(tokens, self.replica.block_tokens)
        full = prompt // self.replica.block_tokens
        sequence.blocks = names[:full]
        sequence.answer_blocks = names[full:]
        work = SimulatedRequest(sequence, total, gain, end, self._loop.time())
        self._under_way[sequence.id] = work
        self.replica.submit(sequence)
        if self._timer is None:
            self._begin(self._loop.time())
        return work

    def cancel(self, work: SimulatedRequest) -> None:
        """End a request whose client left: its slot is free for the next pass. One that has ended
        is ignored.
        """
        if self._under_way.pop(work.sequence.id, None) is None:
            return
        self._decoding.pop(work.sequence.id, None)
        self.replica.cancel(work.sequence)
        self.metrics.ended["abort"] += 1

    def _begin(self, at: float) -> None:
        """Begin the next pass at this moment, if there is one."""
        following = self.replica.next_pass(at_most=1)
        if following is None:
            self._timer = None
            return
        for sequence, _ in following.pieces:
            work = self._under_way[sequence.id]
            if work.let_in_s is None:
                work.let_in_s = at
        ends = at + following.seconds
        self._timer = self._loop.call_at(ends, self._finish, following, ends)

    def _finish(self, done: BatchPass, at: float) -> None:
        progress = self.replica.finish(done)
        self._count(done)
        now = self._loop.time()
        if now - at > TOO_LATE_S:
            self.metrics.behind_s += now - at
            at = now
        decoding = tuple(self._decoding.values())
        self._note_preempted(progress)
        for sequence in progress.started:
            work = self._under_way[sequence.id]
            work.base = self._gained
            self._decoding[sequence.id] = work
        ended = [
            self._under_way.pop(sequence.id)
            for sequence in progress.ended
            if sequence.id in self._under_way
        ]
        for work in ended:
            self._decoding.pop(work.sequence.id, None)
        self._begin(at)  # the next pass does not wait for the writing
        last = {work.sequence.id: work for work in ended}
        for sequence in progress.started:
            started = self._under_way.get(sequence.id) or last.get(sequence.id)
            if started is not None:  # its client may have left while the others were written to
                started.first_s = at
                started.cached_tokens = round(sequence.cached)
                self.metrics.prompt_tokens += round(sequence.cached + sequence.prompt)
                self.metrics.observe("time_to_first_token", at - started.sent_s)
                self._give(started, 1)
        for work in decoding:
            if work.sequence.id in last:
                self._give(work, work.total - work.tokens_sent)
            elif work.sequence.id in self._under_way:
                self._give(
                    work,
                    min(work.total, 1 + int(self._gained - work.base + 1e-6)) - work.tokens_sent,
                )
        for work in ended:
            self._close(work, at)

    def _note_preempted(self, progress: PassResult) -> None:
        """Stop counting tokens of sequences that lost their KV, and go on where they decode again
        with the token that this pass has brought.
        """
        for sequence in progress.preempted:
            self._decoding.pop(sequence.id, None)
        for sequence in progress.resumed:
            work = self._under_way.get(sequence.id)
            if work is not None:
                work.base = self._gained - work.tokens_sent
                self._decoding[sequence.id] = work

    def _count(self, done: BatchPass) -> None:
        metrics = self.metrics
        metrics.passes += 1
        if not done.decoding:
            return
        self._gained += done.tokens_each * done.steps
        depth = self.replica.step.depth
        if depth:
            metrics.drafts += done.decoding
            metrics.drafted_tokens += depth * done.decoding
            metrics.accepted_tokens += (done.tokens_each - 1.0) * done.decoding

    def _give(self, work: SimulatedRequest, count: int) -> None:
        if count > 0:
            work.tokens_sent += count
            self.metrics.output_tokens += count
            work.gain(count)

    def _close(self, work: SimulatedRequest, at: float) -> None:
        observe = self.metrics.observe
        first = work.first_s or at
        let_in = work.let_in_s or at
        observe("request_queue_time", let_in - work.sent_s)
        observe("request_prefill_time", first - let_in)
        observe("request_decode_time", at - first)
        observe("e2e_request_latency", at - work.sent_s)
        if work.total > 1:
            observe("request_time_per_output_token", (at - first) / (work.total - 1))
        work.end()


_MARK = (b"x-skep-simulated", b"1")
_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_PLAIN = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class SimulatedServer:
    """Answers by route and method. Made inside the running event loop; the simulated weights begin
    to load then.
    """

    def __init__(self, plan: SimulatedPlan, model: str, key: str = "") -> None:
        self.plan = plan
        self.model = model
        self._key = key
        self.metrics = SimulatedMetrics(self.model)
        replica = CachingReplica(
            plan.step,
            plan.slots,
            plan.pool_tokens,
            plan.chunk_tokens,
            block_tokens=plan.block_tokens,
            state_blocks=plan.state_blocks,
            ram=KvTier(plan.ram_tokens, plan.ram_tokens_s) if plan.ram_tokens else None,
        )
        self.simulated_loop = SimulatedLoop(replica, self.metrics, asyncio.get_running_loop())
        self._created = int(time.time())
        self._ready_s = time.monotonic() + plan.load_s
        self._answers = 0
        self._routes: dict[tuple[bytes, str], Callable[[ServerRequest], None]] = {
            (b"POST", "/v1/chat/completions"): self._generate,
            (b"GET", "/health"): lambda request: _send(
                request, 200, {"status": "ok", "simulated": True}
            ),
            (b"GET", "/v1/models"): self._models,
            (b"GET", "/metrics"): self._metrics,
            (b"GET", "/simulated"): lambda request: request.respond(
                200, [_JSON, _MARK], plan.to_json().encode()
            ),
            (b"GET", "/version"): lambda request: _send(
                request, 200, {"version": "simulated", "simulated": True}
            ),
        }

    def handle(self, request: ServerRequest) -> None:
        path = request.path
        authorization = next(
            (value for name, value in request.headers if name == b"authorization"), None
        )
        if path != "/health" and not shows_key(self._key, authorization):
            _refuse(request, 401, REFUSED)
            return
        if time.monotonic() < self._ready_s:
            _refuse(request, 503, "the simulated weights are being loaded")
            return
        if (route := self._routes.get((request.method, path))) is not None:
            route(request)
        else:
            _refuse(request, 404, f"no route {request.method.decode('latin-1')} {path}")

    def _generate(self, request: ServerRequest) -> None:
        try:
            query = parse_query(
                request.body, model=self.model, context_tokens=self.plan.context_tokens
            )
        except SimulatedRefusal as refused:
            _refuse(request, refused.status, str(refused))
            return
        self._answers += 1
        answer = SimulatedAnswer(query, self._answers, self.model, int(time.time()))
        begun = False

        def gain(count: int) -> None:
            nonlocal begun
            if query.stream:
                if not begun:
                    request.start(200, [_EVENTS, (b"cache-control", b"no-cache"), _MARK], None)
                    begun = True
                request.write(answer.more(count))

        def end() -> None:
            answer.cached_tokens = work.cached_tokens
            self.metrics.ended[query.script.finish_reason] += 1
            if query.stream:
                request.write(answer.ending())
                request.finish()
            else:
                request.respond(200, [_JSON, _MARK], answer.whole())

        work = self.simulated_loop.submit(
            query.prompt_tokens, query.script.tokens, gain, end, query.tokens
        )
        request.on_gone = lambda: self.simulated_loop.cancel(work)

    def _models(self, request: ServerRequest) -> None:
        plan = self.plan
        about = {"simulated": True, "engine": f"simulated: {plan.about}", "slots": plan.slots}
        model = {
            "id": self.model, "object": "model", "created": self._created,
            "owned_by": "skep-simulated", "root": self.model,
            "max_model_len": plan.context_tokens, "simulated": True, "skep": about,
        }  # fmt: skip
        _send(request, 200, {"object": "list", "data": [model], "simulated": True})

    def _metrics(self, request: ServerRequest) -> None:
        replica = self.simulated_loop.replica
        if replica.pool_tokens:
            used = min(1.0, max(0.0, replica.kv_tokens / replica.pool_tokens))
        else:
            used = 0.0
        gauges: dict[str, float] = {"kv_cache_usage_perc": used}
        gauges |= {
            "num_requests_running": replica.running,
            "num_requests_waiting": len(replica.waiting),
        }
        request.respond(200, [_PLAIN, _MARK], self.metrics.text(gauges, replica.counts))


def _send(request: ServerRequest, status: int, document: dict[str, Any]) -> None:
    request.respond(status, [_JSON, _MARK], json.dumps(document).encode())


def _refuse(request: ServerRequest, status: int, message: str) -> None:
    _send(request, status, error_document(status, message))


async def serve(
    plan: SimulatedPlan, model: str, listener: socket.socket, report_fd: int | None, key: str = ""
) -> None:
    """Serve until a signal says stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await HttpServer(SimulatedServer(plan, model, key).handle).listen(listener)
    address = json.dumps({"url": str(Origin(*listener.getsockname()[:2]))})
    if report_fd is None:
        print(address, flush=True)  # noqa: T201 - whoever starts it by hand reads it
    else:
        os.write(report_fd, address.encode() + b"\n")
        os.close(report_fd)
    await stop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="skep-simulated")
    parser.add_argument("--model", required=True)
    parser.add_argument("--plan", required=True, help="JSON, as SimulatedPlan writes it")
    parser.add_argument("--slots", type=int, help="instead of the plan's")
    parser.add_argument("--context", type=int, help="tokens of a sequence, instead of the plan's")
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--report-fd", type=int)
    args = parser.parse_args()
    key = take_key()
    listener = socket_for(args.host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        plan = plan_from_json(args.plan)
        listener.bind((args.host, args.port))
    except UserError as error:
        return fail_for_good(error.message)
    except OSError as error:
        return fail_for_good(cannot_listen(args.host, args.port, error))
    listener.listen(1024)
    changed = {"slots": args.slots, "context_tokens": args.context}
    plan = replace(plan, **{key: value for key, value in changed.items() if value is not None})
    # This is the first line of its log.
    print((f"simulated: {plan.about}"), file=sys.stderr, flush=True)  # noqa: T201
    uvloop.run(serve(plan, args.model, listener, args.report_fd, key))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # open streams are cut, as an engine that is told to stop cuts them
