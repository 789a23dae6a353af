"""A client's connection, written down to the socket and apart from skep's own client: an auditor
keeps his own books.

Reads exactly what was promised and says what was not kept: silence, an end too early, bytes too
many."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

from skep.wire.heads import gateway_fields

READ_BYTES = 65_536
RESET = struct.pack("ii", 1, 0)


class Silent(Exception):
    """Not a byte for longer than anybody should wait."""


class Ended(Exception):
    """The gateway closed or reset the connection where more was promised."""


class Nonsense(Exception):
    """What came is no HTTP."""


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    fields: dict[str, str]

    @property
    def told(self) -> dict[str, str]:
        """By the gateway."""
        return gateway_fields(self.fields.get("x-skep"))

    @property
    def length(self) -> int | None:
        if "content-length" in self.fields:
            return int(self.fields["content-length"])
        return None

    @property
    def chunked(self) -> bool:
        return self.fields.get("transfer-encoding") == "chunked"

    @property
    def last(self) -> bool:
        return self.fields.get("connection") == "close"


class Line:
    def __init__(self, sock: socket.socket, silence_s: float) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._buffer = bytearray()
        self.pace_s = 0.0  # a pause before each read
        self.step_bytes = READ_BYTES
        self.longest_s = 0.0  # the longest wait for a byte

    @classmethod
    async def open(cls, port: int, *, silence_s: float, receive_bytes: int | None = None) -> Line:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        line = cls(sock, silence_s)
        try:
            async with asyncio.timeout(silence_s):
                await line._loop.sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return line

    async def send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._silence_s):
                await self._loop.sock_sendall(self._sock, data)
        except TimeoutError:
            raise Silent from None
        except OSError as error:
            raise Ended(repr(error)) from None

    async def head(self) -> Head:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            await self._more()
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        if not first.startswith("HTTP/1.1 ") or not first[9:12].isdigit():
            raise Nonsense(first[:80])
        pairs = [line.partition(":") for line in lines]
        names = [name.lower() for name, _, _ in pairs]
        if doubled := {name for name in names if names.count(name) > 1}:
            raise Nonsense(f"headers twice: {sorted(doubled)}")
        fields = {name.lower(): value.strip() for name, _, value in pairs}
        if ("content-length" in fields) == ("transfer-encoding" in fields):
            raise Nonsense(f"no framing, or two: {fields}")
        return Head(int(first[9:12]), fields)

    async def pieces(self, head: Head) -> AsyncIterator[bytes]:
        """The body as it comes, to its promised end."""
        if head.length is not None:
            left = head.length
            while left:
                if not self._buffer:
                    await self._more()
                piece = bytes(self._buffer[:left])
                del self._buffer[:left]
                left -= len(piece)
                yield piece
            return
        while True:
            while (end := self._buffer.find(b"\r\n")) < 0:
                await self._more()
            try:
                size = int(bytes(self._buffer[:end]), 16)
            except ValueError:
                raise Nonsense(f"chunk size {bytes(self._buffer[:40])!r}") from None
            while len(self._buffer) < end + 2 + size + 2:
                await self._more()
            piece = bytes(self._buffer[end + 2 : end + 2 + size])
            tail = self._buffer[end + 2 + size : end + 4 + size]
            if tail != b"\r\n":
                raise Nonsense(f"chunk of {size} bytes ends with {bytes(tail)!r}")
            del self._buffer[: end + 4 + size]
            if not size:
                return
            yield piece

    def surplus(self) -> bytes | None:
        """Bytes that came although nothing is asked: of an answer given twice, or of another's.

        None: it is closed.
        """
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return bytes(self._buffer)
        except OSError:
            data = b""
        return bytes(self._buffer) + data or None

    def close(self, *, reset: bool = False) -> None:
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._sock.close()

    async def _more(self) -> None:
        if self.pace_s:
            await asyncio.sleep(self.pace_s)
        began = self._loop.time()
        try:
            async with asyncio.timeout(self._silence_s):
                data = await self._loop.sock_recv(self._sock, self.step_bytes)
        except TimeoutError:
            raise Silent from None
        except OSError as error:
            raise Ended(repr(error)) from None
        finally:
            self.longest_s = max(self.longest_s, self._loop.time() - began)
        if not data:
            raise Ended("end of stream")
        self._buffer += data
