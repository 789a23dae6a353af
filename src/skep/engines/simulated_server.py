"""A simulated engine as a real process: `python -m skep.engines.simulated_server --model NAME --plan JSON`.

Speaks vLLM's protocol and keeps the times of the plan. No model runs: every answer says that it is simulated.
"""

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
from dataclasses import replace
from typing import Any

import uvloop

from skep.engines.base import EXIT_FINAL, REFUSED, shows_key, take_key
from skep.engines.simulated import SimulatedPlan, plan_from_json
from skep.engines.simulated_loop import SimulatedLoop, SimulatedMetrics
from skep.engines.simulated_requests import (
    SimulatedAnswer,
    SimulatedRefusal,
    error_document,
    parse_query,
)
from skep.errors import UserError
from skep.planner.predict import SimulatedReplica
from skep.wire.heads import Origin
from skep.wire.listen import HOST, cannot_listen, socket_for
from skep.wire.server import HttpServer, ServerRequest

GENERATIONS = {"/v1/chat/completions": True, "/v1/completions": False}  # path: is it a chat
_MARK = (b"x-skep-simulated", b"1")
_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_PLAIN = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class SimulatedServer:
    """The routes. Made inside the running loop; its loading begins then."""

    def __init__(self, plan: SimulatedPlan, model: str, key: str = "") -> None:
        self.plan = plan
        self.model = model
        self._key = key
        self.meters = SimulatedMetrics(self.model)
        replica = SimulatedReplica(plan.step, plan.slots, plan.pool_tokens, plan.chunk_tokens)
        self.simulated_loop = SimulatedLoop(replica, self.meters, asyncio.get_running_loop())
        self._created = int(time.time())
        self._ready_s = time.monotonic() + plan.load_s
        self._answers = 0
        self._routes: dict[tuple[bytes, str], Callable[[ServerRequest], None]] = {
            (b"GET", "/health"): lambda request: _send(request, 200, {"status": "ok", "simulated": True}),
            (b"GET", "/v1/models"): self._models,
            (b"GET", "/metrics"): self._metrics,
            (b"GET", "/simulated"): lambda request: request.respond(200, [_JSON, _MARK], plan.to_json().encode()),
            (b"GET", "/version"): lambda request: _send(request, 200, {"version": "simulated", "simulated": True}),
        }

    def handle(self, request: ServerRequest) -> None:
        path = request.path
        shown = next((value for name, value in request.headers if name == b"authorization"), None)
        if path != "/health" and not shows_key(self._key, shown):
            _refuse(request, 401, REFUSED)
            return
        if time.monotonic() < self._ready_s:
            _refuse(request, 503, "the simulated weights are being loaded")
            return
        if request.method == b"POST" and path in GENERATIONS:
            self._generate(request, chat=GENERATIONS[path])
        elif (route := self._routes.get((request.method, path))) is not None:
            route(request)
        else:
            _refuse(request, 404, f"no route {request.method.decode('latin-1')} {path}")

    def _generate(self, request: ServerRequest, *, chat: bool) -> None:
        try:
            ask = parse_query(request.body, chat=chat, model=self.model, context_tokens=self.plan.context_tokens)
        except SimulatedRefusal as refused:
            _refuse(request, refused.status, str(refused))
            return
        self._answers += 1
        answer = SimulatedAnswer(ask, self._answers, self.model, int(time.time()))
        begun = False

        def gain(count: int) -> None:
            nonlocal begun
            if ask.stream:
                if not begun:
                    request.start(200, [_EVENTS, (b"cache-control", b"no-cache"), _MARK], None)
                    begun = True
                request.write(answer.more(count))

        def end() -> None:
            self.meters.ended[ask.script.finish_reason] += 1
            if ask.stream:
                request.write(answer.ending())
                request.finish()
            else:
                request.respond(200, [_JSON, _MARK], answer.whole())

        work = self.simulated_loop.submit(ask.prompt_tokens, ask.script.tokens, gain, end)
        request.on_gone = lambda: self.simulated_loop.cancel(work)

    def _models(self, request: ServerRequest) -> None:
        plan = self.plan
        told = {"simulated": True, "engine": f"simulated: {plan.about}", "slots": plan.slots}
        model = {
            "id": self.model, "object": "model", "created": self._created, "owned_by": "skep-simulated",
            "root": self.model, "max_model_len": plan.context_tokens, "simulated": True, "skep": told,
        }  # fmt: skip
        _send(request, 200, {"object": "list", "data": [model], "simulated": True})

    def _metrics(self, request: ServerRequest) -> None:
        replica = self.simulated_loop.replica
        used = min(1.0, max(0.0, replica.kv_tokens / replica.pool_tokens)) if replica.pool_tokens else 0.0
        gauges = {
            "num_requests_running": replica.running,
            "num_requests_waiting": len(replica.waiting),
            "kv_cache_usage_perc": used,
            "gpu_cache_usage_perc": used,
        }
        request.respond(200, [_PLAIN, _MARK], self.meters.text(gauges))


def _send(request: ServerRequest, status: int, document: dict[str, Any]) -> None:
    request.respond(status, [_JSON, _MARK], json.dumps(document).encode())


def _refuse(request: ServerRequest, status: int, message: str) -> None:
    _send(request, status, error_document(status, message))


async def serve(plan: SimulatedPlan, model: str, listener: socket.socket, report_fd: int | None, key: str = "") -> None:
    """Until a signal says stop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await HttpServer(SimulatedServer(plan, model, key).handle).listen(listener)
    told = json.dumps({"url": str(Origin(*listener.getsockname()[:2]))})
    if report_fd is None:
        print(told, flush=True)  # noqa: T201 - whoever starts it by hand reads it
    else:
        os.write(report_fd, told.encode() + b"\n")
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
    key, listener = take_key(), socket_for(args.host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        plan = plan_from_json(args.plan)
        listener.bind((args.host, args.port))
    except UserError as error:
        return _fail(error.message)
    except OSError as error:
        return _fail(cannot_listen(args.host, args.port, error))
    listener.listen(1024)
    changed = {"slots": args.slots, "context_tokens": args.context}
    plan = replace(plan, **{key: value for key, value in changed.items() if value is not None})
    print(f"simulated: {plan.about}", file=sys.stderr, flush=True)  # noqa: T201 - the first line of its log
    uvloop.run(serve(plan, args.model, listener, args.report_fd, key))
    return 0


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the guard reads it
    return EXIT_FINAL


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # open streams are cut, as an engine that is told to stop cuts them
