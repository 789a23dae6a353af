"""Requests of batches, made requests of the gateway's own: each comes on no connection, waits in the class `batch`, and
is counted like every other. Bounds what is held of answers that are not whole yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from fnmatch import fnmatchcase

from skep.gateway.batch.scheduler import MOST_ANSWER_BYTES, BatchAnswer
from skep.gateway.proxy import Proxy
from skep.units import MIB
from skep.wire.heads import gateway_fields
from skep.wire.server_request import ServerRequest

READY_POLL_S = 0.05
MOST_HELD_BYTES = 512 * MIB  # of all answers together while they come in; beyond it the largest is sent for again later


class InternalRequest:
    """One request without a connection: its own carrier, which gathers the answer until it is whole or given up."""

    def __init__(
        self, port: BatchGatewayPort, owner: str, endpoint: str, body: bytes, on_end: Callable[[], None]
    ) -> None:
        """With the rights of its owner. As HTTP/1.0, whose answers have no chunks to be taken apart again."""
        self.owner = owner
        self.answer: BatchAnswer | None = None  # None: not whole yet, or nobody wants it
        self.held_bytes = 0
        self._port, self._on_end = port, on_end
        self._received: list[bytes] = []
        request = ServerRequest(self, b"POST", endpoint.encode(), [], body=body, version="1.0")
        self._request: ServerRequest | None = request  # None: it is over
        port.out.add(self)
        self._exchange = port.proxy.submit_internal(request, owner)

    @property
    def waiting(self) -> bool:
        """No replica has it yet."""
        return self._request is not None and self._exchange is not None and not self._exchange.under_way

    def end(self, answer: BatchAnswer | None = None) -> None:
        """Drop what came and end the call to the replica: in the next round, for the exchange may be writing just now.
        None: nobody wants the answer any more. Repeats have no effect.
        """
        request, self._request = self._request, None  # the accounts keep the request for a while
        if request is None:
            return
        self.answer, self._received = answer, []
        self._port.out.discard(self)

        def hang_up() -> None:
            if request.on_gone is not None:
                request.on_gone()

        asyncio.get_running_loop().call_soon(hang_up)
        self._on_end()

    # The carrier's side

    def send(self, request: ServerRequest, data: bytes) -> None:  # noqa: ARG002
        if self._request is not None:
            self._received.append(data)
            self.held_bytes += len(data)
            self._port.bound(self)

    def finished(self, request: ServerRequest) -> None:  # noqa: ARG002
        if self._request is not None:
            self.end(_parse_answer(b"".join(self._received)))

    def abort(self) -> None:
        self.end(BatchAnswer(None))


class BatchGatewayPort:
    """The gateway, as the batch API sees it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.out: set[InternalRequest] = set()

    def bound(self, call: InternalRequest) -> None:
        """Give up an answer that is too large, or the largest of all where they are too large together."""
        if call.held_bytes > MOST_ANSWER_BYTES:
            call.end(BatchAnswer(None, fault="answer_too_large"))
        elif sum(one.held_bytes for one in self.out) > MOST_HELD_BYTES:
            max(self.out, key=lambda one: one.held_bytes).end(BatchAnswer(None))

    def complaint_of(self, model: str | None) -> str | None:
        """Return why a request for this model would not be served; None: it would."""
        models = self.proxy.admission.models
        known = ", ".join(models)
        if model is None:
            return None if len(models) == 1 else f"several models are served here: {known}; name one in the body"
        if self.proxy.admission.knows(model) or any(fnmatchcase(model, alias) for alias in self.proxy.policy.aliases):
            return None
        return f"the model `{model[:80]}` is not served here; known: {known}"

    def has_room(self, owner: str) -> bool:
        """Return whether one more request of this owner may be out: a key can be used beside its batches."""
        most = next((key.max_concurrent for key in self.proxy.policy.keys if key.name == owner), None)
        return most is None or sum(call.owner == owner for call in self.out) < max(1, most - 1)

    def send(self, owner: str, endpoint: str, body: bytes, on_end: Callable[[], None]) -> InternalRequest:
        return InternalRequest(self, owner, endpoint, body, on_end)

    async def ready(self) -> None:
        """Until it knows what it serves."""
        while not self.proxy.admission.models:
            await asyncio.sleep(READY_POLL_S)


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
