"""Who gets an answer from the client, piece by piece."""

from __future__ import annotations

from typing import Protocol

from skep.wire.heads import ResponseHead


class Receiver(Protocol):
    """Gets one answer, piece by piece. `at` is `time.monotonic()` as the bytes arrived, before they were parsed.

    Not the loop's clock: uvloop's stands still while it works through one round of events, in whole milliseconds.
    """

    takes_chunks: bool  # looked at after `on_head`: `on_chunks` may be called instead of `on_body`

    def on_head(self, head: ResponseHead, at: float) -> None: ...
    def on_body(self, data: bytes, at: float) -> None: ...
    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        """Whole chunks as they came, and how many bytes of the body they carry."""

    def on_end(self, at: float) -> None: ...
    def on_failure(self, failure: WireFailure, at: float) -> None: ...


class Unchunked:
    """For receivers that want the body alone."""

    __slots__ = ()
    takes_chunks = False

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:  # noqa: ARG002
        raise AssertionError("chunks were not asked for")


class WireFailure(Exception):
    """Why an answer did not come whole. `kind`: connect, timeout, closed or protocol."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
