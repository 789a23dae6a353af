"""The gateway's answer to one request of a dashboard's visitor, read piece by piece as fast as the
browser takes it.

Knows nothing of pages and keys.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from skep.units import KIB
from skep.wire.client import Call, Pool, WireFailure
from skep.wire.heads import Headers, ResponseHead, lines_of

MOST_WAITING_BYTES = (
    256 * KIB
)  # for a browser that reads slowly; beyond it the gateway has to wait
MOST_ERROR_BYTES = 64 * KIB
ERROR_S = 10.0  # for the body of an error to come


class ClientGone(Exception):
    """Whoever asked has left, or is no longer admitted."""


class GatewayAnswer:
    """Receives the answer.

    `close` ends the request, wherever it is: the gateway gives its slot back at once.
    """

    takes_chunks = False

    def __init__(self, pool: Pool) -> None:
        self.head: asyncio.Future[ResponseHead] = asyncio.get_running_loop().create_future()
        self._pool = pool
        self._call: Call | None = None
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._has_ended = False
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        flags = f"paused={self._is_paused} ended={self._has_ended}"
        return f"<GatewayAnswer {flags} waiting_bytes={self._waiting_bytes}>"

    def ask(self, target: str, headers: Headers, body: bytes) -> None:
        request_line = f"POST {self._pool.prefix.decode()}{target} HTTP/1.1\r\n".encode()
        fields = [*headers, (b"content-length", b"%d" % len(body))]
        head = request_line + self._pool.host_line + lines_of(fields) + b"\r\n"
        self._call = self._pool.send(head, self, body)

    async def wait_for_head(self, receive: Receive, timeout_s: float) -> ResponseHead:
        """Return the head.

        Raise ClientGone if the client leaves before it, TimeoutError, WireFailure.
        """
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(_until_gone(receive))
            awaited: set[asyncio.Future[Any]] = {self.head, leaving}
            await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            is_gone = leaving.done()
            leaving.cancel()
        if self.head.done():
            return self.head.result()
        raise ClientGone if is_gone else TimeoutError

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            while not self._pieces and not self._has_ended:
                self._changed.clear()
                await self._changed.wait()
            if not self._pieces:
                return
            piece = self._pieces.popleft()
            self._waiting_bytes -= len(piece)
            if self._is_paused and not self._pieces:
                self._resume()
            yield piece

    async def error_text(self) -> bytes:
        """Return the body of an answer that is an error: its beginning, where it is long."""
        text = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(ERROR_S):
                async for piece in self.pieces():
                    text += piece
                    if len(text) > MOST_ERROR_BYTES:
                        break
        return text[:MOST_ERROR_BYTES]

    async def close(self) -> None:
        if self._call is not None:
            self._call.abort()
        if not self.head.done():
            self.head.cancel()
        await self._pool.close()

    # The connection's side

    def on_head(self, head: ResponseHead, at: float) -> None:  # noqa: ARG002
        if not self.head.done():
            self.head.set_result(head)

    def on_body(self, data: bytes, at: float) -> None:  # noqa: ARG002
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        self._changed.set()
        if self._waiting_bytes >= MOST_WAITING_BYTES and self._call is not None:
            self._is_paused = True
            self._call.pause()

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:  # noqa: ARG002
        raise AssertionError("chunks were not asked for")

    def on_end(self, at: float) -> None:  # noqa: ARG002
        self._has_ended = True
        self._changed.set()

    def on_failure(self, failure: WireFailure, at: float) -> None:
        if self.head.done():
            self._pieces.append(_error_event(f"the answer broke off: {failure}"))
        else:
            self.head.set_exception(failure)
        self.on_end(at)

    def _resume(self) -> None:
        self._is_paused = False
        if self._call is not None:
            self._call.resume()


def _error_event(message: str) -> bytes:
    """Return the last event of a stream that was cut; a blank line first, as the one before may be
    cut too.
    """
    return b"\n\ndata: " + json.dumps({"error": {"message": message}}).encode() + b"\n\n"


async def _until_gone(receive: Receive) -> None:
    """Return when the client has closed its connection; its body has been read before."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


class RelayedStream(StreamingResponse):
    """An answer of the gateway on its way to a browser.

    However it ends, the request behind it ends too.
    """

    def __init__(self, answer: GatewayAnswer) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(answer.pieces(), media_type="text/event-stream", headers=headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.close()
