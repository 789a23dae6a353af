"""What the deciding gateway process and its relay workers say to each other, and the socket that
carries it.

Messages of one turn of the event loop leave in one write: a length, then a packed list of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from skep.gateway.admission_messages import Arrival, Event
from skep.gateway.request_log import RequestColumns
from skep.gateway.sessions import RequestSession
from skep.wire.heads import Headers

T = TypeVar("T")
_LENGTH_BYTES = 4


# From a worker


class Arrived(Struct, array_like=True, tag=0):
    arrival: Arrival
    path: str
    key: str | None
    light: bool
    loads_model: bool


class Happened(Struct, array_like=True, tag=1):
    """As `Admission.happened` takes it; also the end of a request without a slot, of which
    admission knows nothing.
    """

    event: Event
    id: str
    flag: bool = False


class Accounted(Struct, array_like=True, tag=2):
    """A request that ended, as `RequestAccounting.account` takes it."""

    row: RequestColumns
    now: float
    events: int
    leased: bool
    session: RequestSession | None = None


class WorkerState(Struct, array_like=True, tag=3):
    """Sent a few times a second, and as the answer to `Settle`."""

    taken: int = 0  # connections so far, refused and lost ones among them
    open: int = 0
    heard: dict[str, float] = {}  # by replica: when its last byte came
    # Connections with a request under way; in an answer, or when the gateway is to end.
    active: int = 0
    events: dict[str, int] = {}  # by replica: of streams under way; in an answer
    settled: int = 0
    full: bool = False  # it takes no connection now
    refused: dict[str, int] = {}  # connections so far, by reason


FromWorker = Arrived | Happened | Accounted | WorkerState


# To a worker


class Granted(Struct, array_like=True, tag=0):
    id: str
    replica: str
    queued_s: float
    attempt: int
    leased: bool
    may_retry: bool


class Refused(Struct, array_like=True, tag=1):
    """The request's answer; `code` is one of `ERRORS`."""

    id: str
    status: int
    headers: Headers
    body: bytes
    code: str


class Withdrawn(Struct, array_like=True, tag=2):
    id: str


class Waits(Struct, array_like=True, tag=3):
    """Its model is being loaded: if it is a stream, it gets comments."""

    id: str


class Order(Struct, array_like=True, tag=4):
    """A message of the supervisor's, for every worker."""

    message: bytes  # JSON, as the supervisor sends it


class Settle(Struct, array_like=True, tag=5):
    number: int


ToWorker = Granted | Refused | Withdrawn | Waits | Order | Settle


class MessageSocket(asyncio.Protocol, Generic[T]):
    """`take` gets each message, `on_lost` is called once when the other process is gone."""

    def __init__(self, kind: Any, take: Callable[[T], None], on_lost: Callable[[], None]) -> None:
        self._decode = cast(
            "Callable[[memoryview], list[T]]", msgspec.msgpack.Decoder(list[kind]).decode
        )
        self._encode = msgspec.msgpack.Encoder().encode
        self._take = take
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Struct] = []
        self._unread = bytearray()

    async def connect(self, sock: socket.socket) -> None:
        await self._loop.create_unix_connection(lambda: self, sock=sock)

    @property
    def is_behind(self) -> bool:
        """Whether the other process has not taken yet what was sent earlier."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def send(self, message: Struct) -> None:
        """Send a message with the others of this turn of the loop. It is dropped where the other
        process is gone.
        """
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(message)

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def flush(self) -> None:
        if self._unsent and self._transport is not None:
            packed = self._encode(self._unsent)
            self._transport.write(len(packed).to_bytes(_LENGTH_BYTES) + packed)
        self._unsent = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        unread += data
        begin = 0
        whole = len(unread)
        while whole - begin >= _LENGTH_BYTES:
            end = begin + _LENGTH_BYTES + int.from_bytes(unread[begin : begin + _LENGTH_BYTES])
            if end > whole:
                break
            for message in self._decode(memoryview(bytes(unread[begin + _LENGTH_BYTES : end]))):
                self._take(message)
            begin = end
        del unread[:begin]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._on_lost()
