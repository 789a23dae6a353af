"""The gateway process with the batch API mounted into it: `python -m skep.frontdoor --listen-fd N --link-fd M`.

The gateway and the swarm's batch API do not know each other. Here a batch's request becomes one of the gateway's own:
it comes on no connection, waits in the class `batch`, and is counted like every other.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

from skep.gateway.exchange import Exchange
from skep.gateway.process import Gateway, end, main
from skep.gateway.proxy import Proxy
from skep.swarm.batch.api import BatchApi
from skep.swarm.batch.course import Answer
from skep.wire.incoming import Incoming
from skep.wire.link import Message

READY_POLL_S = 0.05


class ProxyErrand:
    """One request without a connection: its own carrier, which gathers the answer until it is whole or broken off."""

    def __init__(self, proxy: Proxy, owner: str, over: Callable[[], None]) -> None:
        self._proxy = proxy
        self._owner = owner
        self._over: Callable[[], None] | None = over  # None: it has been called
        self._answered: Callable[[Answer], None] = lambda _answer: None
        self._received: list[bytes] = []
        self._request: Incoming | None = None
        self._exchange: Exchange | None = None

    @property
    def waiting(self) -> bool:
        exchange = self._exchange
        return self._over is not None and (exchange is None or not exchange.under_way)

    def go(self, endpoint: str, body: bytes, answered: Callable[[Answer], None]) -> None:
        """As HTTP/1.0, whose answers have no chunks to be taken apart again."""
        request = self._request = Incoming(self, b"POST", endpoint.encode(), [], "1.0")
        request.body = body
        self._answered = answered
        self._exchange = self._proxy.hand_in(request, self._owner)

    def give_up(self) -> None:
        request, self._request = self._request, None
        if self._is_over() and request is not None and request.on_gone is not None:
            request.on_gone()

    # The carrier's side

    def send(self, request: Incoming, data: bytes) -> None:  # noqa: ARG002
        self._received.append(data)

    def finished(self, request: Incoming) -> None:  # noqa: ARG002
        received, self._received = b"".join(self._received), []  # the accounts keep the request for a while
        self._request = None
        if self._is_over():
            self._answered(answer_of(received))

    def abort(self) -> None:
        self._request, self._received = None, []
        if self._is_over():
            self._answered(Answer(None))

    def _is_over(self) -> bool:
        """Whether it is over with this, and was not before."""
        over, self._over = self._over, None
        if over is not None:
            over()
        return over is not None


class BatchDoor:
    """The gateway, as the batch API sees it."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._out: Counter[str] = Counter()  # requests of batches, by owner

    def owner_of(self, request: Incoming) -> str | None:
        key = self._proxy.key_of(request)
        return None if key is None else key.name

    def complaint_of(self, model: str | None) -> str | None:
        models = self._proxy.admission.models
        known = ", ".join(models)
        if model is None:
            return None if len(models) == 1 else f"several models are served here: {known}; name one in the body"
        if self._proxy.admission.knows(model) or any(fnmatchcase(model, alias) for alias in self._proxy.policy.aliases):
            return None
        return f"the model `{model[:80]}` is not served here; known: {known}"

    def errand(self, owner: str) -> ProxyErrand | None:
        """All batches of a key have one less than the key may have, so that it can be used beside them."""
        most = next((key.max_concurrent for key in self._proxy.policy.keys if key.name == owner), None)
        if most is not None and self._out[owner] >= max(1, most - 1):
            return None

        def over() -> None:
            self._out[owner] -= 1

        self._out[owner] += 1
        return ProxyErrand(self._proxy, owner, over)

    async def ready(self) -> None:
        while not self._proxy.admission.models:
            await asyncio.sleep(READY_POLL_S)


def answer_of(received: bytes) -> Answer:
    """Of the bytes of a whole answer."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    retry_after_s = None
    with contextlib.suppress(KeyError, ValueError):
        retry_after_s = float(fields[b"retry-after"])
    return Answer(int(first.split(b" ", 2)[1]), body, fields.get(b"x-skep-request-id", b"").decode(), retry_after_s)


def mount_batches(gateway: Gateway, setup: Message) -> BatchApi:
    said = ""

    def say(text: str) -> None:
        """What is in the way is found again every few seconds, and said once."""
        nonlocal said
        if text != said:
            said = text
            sys.stderr.write(f"batches: {text}\n")
            sys.stderr.flush()

    places = setup["batches"]
    return BatchApi(BatchDoor(gateway.proxy), store=Path(places["store"]), folder=Path(places["files"]), say=say)


if __name__ == "__main__":
    end(main((mount_batches,)))
