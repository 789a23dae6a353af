"""Requests of batches, made requests of the gateway's own: each comes on no connection, waits in the class `batch`, and
is counted like every other. Bounds what is held of answers that are not whole yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from fnmatch import fnmatchcase
from itertools import chain

from skep.gateway.batch.scheduler import MOST_ANSWER_BYTES, BatchAnswer
from skep.gateway.proxied_request import Exchange
from skep.gateway.proxy import Proxy
from skep.units import MIB
from skep.wire.heads import gateway_fields
from skep.wire.server_request import ServerRequest

READY_POLL_S = 0.05
MOST_HELD_BYTES = 512 * MIB  # of all answers together while they come in; beyond it the largest is sent for again later


class InternalRequest:
    """One request without a connection: its own carrier, which gathers the answer until it is whole or given up."""

    def __init__(self, gateway: BatchGatewayPort, owner: str) -> None:
        self._gateway, self._owner = gateway, owner
        self._is_over = False
        self._answer: asyncio.Future[BatchAnswer] = asyncio.get_running_loop().create_future()
        self._received: list[bytes] = []
        self._request: ServerRequest | None = None
        self._exchange: Exchange | None = None
        self.held_bytes = 0

    @property
    def waiting(self) -> bool:
        """No replica has it yet."""
        return not self._is_over and (self._exchange is None or not self._exchange.under_way)

    def go(self, endpoint: str, body: bytes) -> asyncio.Future[BatchAnswer]:
        """With the rights of its owner. As HTTP/1.0, whose answers have no chunks to be taken apart again."""
        request = self._request = ServerRequest(self, b"POST", endpoint.encode(), [], body=body, version="1.0")
        self._exchange = self._gateway.proxy.submit_internal(request, self._owner)
        return self._answer

    def give_up(self) -> None:
        """Nobody wants the answer any more, and none comes. Nothing happens where one has come."""
        _hang_up(self._end())

    def break_off(self, why: BatchAnswer) -> None:
        """Drop what came and end the call to the replica: in the next round, for the exchange is writing just now."""
        asyncio.get_running_loop().call_soon(_hang_up, self._end(why))

    # The carrier's side

    def send(self, request: ServerRequest, data: bytes) -> None:  # noqa: ARG002
        if not self._is_over:
            self._received.append(data)
            self.held_bytes += len(data)
            self._gateway.received(self, len(data))

    def finished(self, request: ServerRequest) -> None:  # noqa: ARG002
        if not self._is_over:
            self._end(_parse_answer(b"".join(self._received)))

    def abort(self) -> None:
        self._end(BatchAnswer(None))

    def _end(self, answer: BatchAnswer | None = None) -> ServerRequest | None:
        """The request, if it was sent and not over before. What came of its answer is not kept any longer."""
        if self._is_over:
            return None
        self._is_over = True
        self._gateway.ended(self, self._owner)
        if answer is not None and not self._answer.done():
            self._answer.set_result(answer)
        request, self._request, self._received = self._request, None, []  # the accounts keep the request for a while
        return request


class BatchGatewayPort:
    """The gateway, as the batch API sees it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._out: dict[str, set[InternalRequest]] = defaultdict(set)  # by owner
        self._held_bytes = 0

    def received(self, call: InternalRequest, more_bytes: int) -> None:
        self._held_bytes += more_bytes
        if call.held_bytes > MOST_ANSWER_BYTES:
            call.break_off(BatchAnswer(None, fault="answer_too_large"))
        elif self._held_bytes > MOST_HELD_BYTES:
            max(chain(*self._out.values()), key=lambda one: one.held_bytes).break_off(BatchAnswer(None))

    def ended(self, call: InternalRequest, owner: str) -> None:
        self._held_bytes -= call.held_bytes
        self._out[owner].discard(call)

    def complaint_of(self, model: str | None) -> str | None:
        """Return why a request for this model would not be served; None: it would."""
        models = self.proxy.admission.models
        known = ", ".join(models)
        if model is None:
            return None if len(models) == 1 else f"several models are served here: {known}; name one in the body"
        if self.proxy.admission.knows(model) or any(fnmatchcase(model, alias) for alias in self.proxy.policy.aliases):
            return None
        return f"the model `{model[:80]}` is not served here; known: {known}"

    def open_call(self, owner: str) -> InternalRequest | None:
        """Return a request, one of its owner's until it ends. None: too many; a key can be used beside its batches."""
        most = next((key.max_concurrent for key in self.proxy.policy.keys if key.name == owner), None)
        if most is not None and len(self._out[owner]) >= max(1, most - 1):
            return None
        call = InternalRequest(self, owner)
        self._out[owner].add(call)
        return call

    async def ready(self) -> None:
        """Until it knows what it serves."""
        while not self.proxy.admission.models:
            await asyncio.sleep(READY_POLL_S)


def _hang_up(request: ServerRequest | None) -> None:
    if request is not None and request.on_gone is not None:
        request.on_gone()


def _parse_answer(received: bytes) -> BatchAnswer:
    """Of the bytes of a whole answer."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    retry_after_s = None
    with contextlib.suppress(KeyError, ValueError):
        retry_after_s = float(fields[b"retry-after"])
    request_id = gateway_fields(fields.get(b"x-skep")).get("id", "")
    return BatchAnswer(int(first.split(b" ", 2)[1]), body, request_id, retry_after_s)
