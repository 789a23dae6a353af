"""The proxy: carries out what admission decides. Body bytes pass unchanged both ways.

One `Exchange` per request ties a client's connection to a replica's. No task, no await on the way of a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import time
from typing import Any

from skep.gateway.admission import Action, Admission, Forward, Reject, ReplicaSpec
from skep.gateway.dialect import ERRORS, JSON, error_body, error_event, rejection
from skep.wire.client import Call, Pool, WireFailure
from skep.wire.fetch import fetch
from skep.wire.heads import HOP_BY_HOP, ResponseHead, parse_url, request_bytes
from skep.wire.server import Incoming

CONFIRM_EVERY_S = 0.1
TICK_S = 0.25


class Proxy:
    def __init__(self, admission: Admission, *, api_key: str | None = None) -> None:
        self.admission = admission
        self._key_digest = hashlib.sha256(api_key.encode()).digest() if api_key else None
        self._exchanges: dict[str, Exchange] = {}
        self._pools: dict[str, Pool] = {}  # by replica URL
        self._wake = asyncio.Event()  # something may be in release: do not wait for the next tick
        self._prefix = secrets.token_hex(3)
        self._counter = 0
        self.drained = asyncio.Event()  # set while no exchange is open
        self.drained.set()

    def __repr__(self) -> str:
        return f"<Proxy {self.admission!r}>"

    # The border

    def handle(self, request: Incoming) -> None:
        path = request.path
        if path in ("/health", "/healthz"):
            request.respond(200, [JSON], b'{"status":"ok"}')
        elif not self._allowed(request):
            self._answer_error(
                request, "invalid_api_key", "this endpoint wants its API key as `Authorization: Bearer KEY`"
            )
        elif request.method == b"GET" and path in ("/v1/models", "/models"):
            request.respond(200, [JSON], self._models_body())
        elif request.method == b"POST":
            self._admit(request)
        else:
            known = "POST /v1/chat/completions, /v1/completions, /v1/embeddings; GET /v1/models, /health"
            self._answer_error(
                request, "not_found", f"{request.method.decode()} {path} is not served here; known: {known}"
            )

    def set_replicas(self, specs: tuple[ReplicaSpec, ...], models: tuple[str, ...]) -> None:
        for url in self._pools.keys() - {spec.url for spec in specs}:
            self._pools.pop(url).retire()
        self.carry_out(self.admission.set_replicas(specs, time.monotonic(), models=models))
        self._wake.set()

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            exchange = self._exchanges[action.request_id]
            if isinstance(action, Forward):
                exchange.forward(action)
            else:
                exchange.reject(action)

    async def run_clock(self) -> None:
        """Deadlines, and asking engines about slots in release. Runs until cancelled."""
        asking: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self.carry_out(self.admission.tick(time.monotonic()))
                releasing = self.admission.releasing()
                for spec in releasing:
                    if spec.name not in asking:
                        asking.add(spec.name)
                        tasks.create_task(self._ask_busy(spec)).add_done_callback(
                            lambda _, name=spec.name: asking.discard(name)  # type: ignore[misc]
                        )
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CONFIRM_EVERY_S if releasing else TICK_S):
                        await self._wake.wait()

    def cut_all(self) -> None:
        """The end of this process: nobody is left without a word."""
        self.carry_out(self.admission.close())
        for exchange in list(self._exchanges.values()):
            exchange.cut("the gateway is ending")

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()

    # For exchanges

    def pool(self, spec: ReplicaSpec) -> Pool:
        pool = self._pools.get(spec.url)
        if pool is None:
            origin, _ = parse_url(spec.url, name="replica URL")
            pool = self._pools[spec.url] = Pool(origin, max_idle=spec.slots)
        return pool

    def ended(self, exchange: Exchange, actions: list[Action]) -> None:
        self._exchanges.pop(exchange.id, None)
        self.carry_out(actions)
        if not self._exchanges:
            self.drained.set()

    def left(self, exchange: Exchange, actions: list[Action]) -> None:
        self.ended(exchange, actions)
        self._wake.set()

    # Inside

    def _allowed(self, request: Incoming) -> bool:
        if self._key_digest is None:
            return True
        given = (request.get(b"authorization") or b"").removeprefix(b"Bearer ") or request.get(b"x-api-key") or b""
        return hmac.compare_digest(hashlib.sha256(given).digest(), self._key_digest)

    def _admit(self, request: Incoming) -> None:
        model = self._model_of(request)
        if model is None:
            self._answer_error(request, "bad_request", "the body is not a JSON object with a `model`")
            return
        self._counter += 1
        exchange = Exchange(
            f"{self._prefix}-{self._counter}", request, model, self, forward_auth=self._key_digest is None
        )
        self._exchanges[exchange.id] = exchange
        self.drained.clear()
        self.carry_out(self.admission.arrive(exchange.id, model, time.monotonic()))

    def _model_of(self, request: Incoming) -> str | None:
        """The body's `model`; where it names none, the one model served here."""
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            return None
        model = body.get("model") if isinstance(body, dict) else None
        if model is None and isinstance(body, dict) and len(self.admission.models) == 1:
            return self.admission.models[0]
        return model if isinstance(model, str) else None

    def _models_body(self) -> bytes:
        data = [
            {"id": model, "object": "model", "created": 0, "owned_by": "skep", "skep": self._serving(model)}
            for model in self.admission.models
        ]
        return json.dumps({"object": "list", "data": data}).encode()

    def _serving(self, model: str) -> dict[str, Any]:
        specs = [spec for spec in self.admission.replicas() if spec.model == model]
        return {
            "replicas": len(specs),
            "slots": sum(spec.slots for spec in specs),
            "engine": ", ".join(sorted({spec.engine for spec in specs})),
            "simulated": any(spec.simulated for spec in specs),
        }

    def _answer_error(self, request: Incoming, code: str, message: str) -> None:
        request.respond(ERRORS[code][0], [JSON], error_body(code, message))

    async def _ask_busy(self, spec: ReplicaSpec) -> None:
        asked_at = time.monotonic()
        try:
            answer = await fetch(self.pool(spec), "GET", "/slots", timeout_s=5.0)
        except WireFailure:
            return
        busy = count_busy(answer.json())
        if busy is not None:
            self.carry_out(self.admission.engine_busy(spec.name, busy, asked_at, time.monotonic()))


class Exchange:
    """One client's request, from arrival to its one end. Receives the replica's answer."""

    def __init__(self, request_id: str, request: Incoming, model: str, proxy: Proxy, *, forward_auth: bool) -> None:
        self.id = request_id
        self._request = request
        self._model = model
        self._proxy = proxy
        self._forward_auth = forward_auth
        self._call: Call | None = None
        self._granted: Forward | None = None
        self._streaming = False
        request.on_gone = self._client_gone
        request.on_pause = self._pause
        request.on_resume = self._resume

    # Admission's side

    def forward(self, action: Forward) -> None:
        self._granted = action
        pool = self._proxy.pool(action.replica)
        head = request_bytes(self._request.method, self._request.target, self._upstream_headers(pool.origin.authority))
        self._call = pool.send(head + self._request.body, self)

    def reject(self, action: Reject) -> None:
        status, headers, body = rejection(action, model=self._model, models=self._proxy.admission.models)
        self._request.on_gone = None
        self._request.respond(status, [*headers, (b"x-skep-request-id", self.id.encode())], body)
        self._proxy.ended(self, [])

    # The replica's side

    def on_head(self, head: ResponseHead, at: float) -> None:  # noqa: ARG002
        assert self._granted is not None
        self._proxy.admission.answering(self.id)
        self._streaming = (head.get(b"content-type") or b"").startswith(b"text/event-stream")
        headers = [(k, v) for k, v in head.headers if k not in HOP_BY_HOP and k != b"content-length"]
        headers.append((b"x-skep-replica", self._granted.replica.name.encode()))
        headers.append((b"x-skep-queue-ms", b"%.1f" % max(0.0, self._granted.queued_s * 1000)))
        headers.append((b"x-skep-request-id", self.id.encode()))
        self._request.start(head.status, headers, head.length)

    def on_body(self, data: bytes, at: float) -> None:  # noqa: ARG002
        self._request.write(data)

    def on_end(self, at: float) -> None:
        self._request.on_gone = None
        self._request.finish()
        self._proxy.ended(self, self._proxy.admission.finished(self.id, at))

    def on_failure(self, failure: WireFailure, at: float) -> None:
        self._call = None
        if self._request.started:
            self._break_off(f"the replica broke off: {failure}")
            self._proxy.ended(self, self._proxy.admission.finished(self.id, at))
        else:
            counts = failure.kind != "connect"  # a refused connection costs no attempt: nothing was sent
            self._proxy.carry_out(self._proxy.admission.failed(self.id, at, counts=counts))

    def cut(self, why: str) -> None:
        if self._call is not None:
            self._call.abort()
        if self._request.started:
            self._break_off(why)
        else:
            self._request.on_gone = None
            self._request.respond(503, [JSON, (b"retry-after", b"1")], error_body("shutting_down", why))

    def _break_off(self, why: str) -> None:
        """The answer began and will not be whole: said inside a stream, by a broken connection elsewhere."""
        self._request.on_gone = None
        if self._streaming:
            self._request.keep_alive = False
            self._request.write(error_event("stream_cut", why))
            self._request.finish()
        else:
            self._request.cut()

    # The client's side

    def _client_gone(self) -> None:
        if self._call is not None:
            self._call.abort()
        now = time.monotonic()
        self._proxy.left(self, self._proxy.admission.hung_up(self.id, now))

    def _pause(self) -> None:
        if self._call is not None:
            self._call.pause()

    def _resume(self) -> None:
        if self._call is not None:
            self._call.resume()

    def _upstream_headers(self, authority: bytes) -> list[tuple[bytes, bytes]]:
        own = {b"host", b"content-length", b"expect"} | HOP_BY_HOP
        if not self._forward_auth:
            own |= {b"authorization", b"x-api-key"}
        kept = [(name, value) for name, value in self._request.headers if name not in own]
        return [(b"host", authority), *kept, (b"content-length", b"%d" % len(self._request.body))]


def count_busy(slots: Any) -> int | None:
    """llama.cpp's `/slots`: how many are processing. None where the answer is something else."""
    if not isinstance(slots, list):
        return None
    return sum(1 for slot in slots if isinstance(slot, dict) and slot.get("is_processing"))
