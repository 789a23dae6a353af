"""Streams that wait for a model to be loaded: their clients get a head and comments at once, then the engine's events.

Proxies and clients give up on a connection on which nothing happens; a comment is something, and no event.
"""

from __future__ import annotations

import json
from typing import Protocol

import msgspec

from skep.wire.client import WireFailure
from skep.wire.heads import ResponseHead, lines_of

ERROR_BYTES = 65_536  # of an engine's complaint
ERROR_CHARACTERS = 500  # of it that are repeated
STREAM_LINES = lines_of([(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])
# Where `"stream": true` means server-sent events; elsewhere it may mean something else.
STREAM_PATHS = frozenset(
    (
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
        "/chat/completions", "/completions", "/completion", "/responses",
    )
)  # fmt: skip


class _StreamField(msgspec.Struct):
    stream: bool = False


_stream_field = msgspec.json.Decoder(_StreamField)


def wants_stream(path: str, body: bytes) -> bool:
    if path not in STREAM_PATHS:
        return False
    try:
        return _stream_field.decode(body.removeprefix(b"\xef\xbb\xbf")).stream
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def comment(words: str, waited_s: float) -> bytes:
    return f": {' '.join(words.split())}, {waited_s:.0f} s\n\n".encode()


class KeepaliveExchange(Protocol):
    """The exchange behind it. `aloud`: the engine's own events have not begun."""

    aloud: bool
    takes_chunks: bool
    heard_at: float

    def on_head(self, head: ResponseHead, at: float) -> None: ...
    def on_body(self, data: bytes, at: float) -> None: ...
    def on_chunks(self, raw: bytes, carried: int, at: float) -> None: ...
    def on_end(self, at: float) -> None: ...
    def on_failure(self, failure: WireFailure, at: float) -> None: ...
    def on_complaint(self, why: str, at: float) -> None: ...


class KeepaliveReceiver:
    """Receives in place of the exchange, so that no other one pays for the question whether its head was sent.

    An answer that is no stream of events cannot be handed on any more: it becomes one error event.
    """

    def __init__(self, exchange: KeepaliveExchange) -> None:
        self._exchange = exchange
        self._status = 0
        self._said = b""
        self.takes_chunks = False

    def on_head(self, head: ResponseHead, at: float) -> None:
        self._status = head.status
        self._exchange.on_head(head, at)
        self.takes_chunks = self._exchange.takes_chunks

    def on_body(self, data: bytes, at: float) -> None:
        if not self._exchange.aloud:
            self._exchange.on_body(data, at)
            return
        self._exchange.heard_at = at
        if len(self._said) < ERROR_BYTES:
            self._said += data

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        self._exchange.on_chunks(raw, carried, at)

    def on_end(self, at: float) -> None:
        if self._exchange.aloud:
            self._exchange.on_complaint(f"the engine answered HTTP {self._status}: {_message(self._said)}", at)
        else:
            self._exchange.on_end(at)

    def on_failure(self, failure: WireFailure, at: float) -> None:
        self._exchange.on_failure(failure, at)


def _message(said: bytes) -> str:
    """Return what the engine complains of, in OpenAI's, Anthropic's or its own form."""
    try:
        document = json.loads(said)
        error = document.get("error", document) if isinstance(document, dict) else document
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, RecursionError):
        text = said.decode("utf-8", "replace")
    return str(text)[:ERROR_CHARACTERS] or "no reason given"
