"""One request on its way, as its sender holds it."""

from __future__ import annotations

from typing import Protocol

from skep.wire.receiver import Receiver


class Carrier(Protocol):
    """What a call needs of its connection."""

    def close(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Call:
    """One request on its way. `abort` closes its connection at once; after it no callback comes."""

    __slots__ = ("aborted", "body", "carrier", "head", "receiver", "retried")

    def __init__(self, head: bytes, receiver: Receiver, body: bytes) -> None:
        self.head = head
        self.body = body
        self.receiver = receiver
        self.retried = False
        self.aborted = False
        self.carrier: Carrier | None = None  # the connection it is on

    def abort(self) -> None:
        self.aborted = True
        if self.carrier is not None:
            self.carrier.close()

    def pause(self) -> None:
        if self.carrier is not None:
            self.carrier.pause()

    def resume(self) -> None:
        if self.carrier is not None:
            self.carrier.resume()
