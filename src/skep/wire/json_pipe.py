"""JSON lines both ways over a stream socket: how skep's own processes talk to each other.

The end of the stream is a message too: the process at the other end is gone. Also how a value becomes a document and
is read from one: paths are texts there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Generic, TypeVar

import msgspec

from skep.units import MIB

Message = dict[str, Any]
T = TypeVar("T")


def _made(kind: type, text: object) -> Any:
    return kind(text)


ENCODER = msgspec.json.Encoder(enc_hook=str)


def to_document(value: object) -> Message:
    document: Message = msgspec.to_builtins(value, enc_hook=str)
    return document


def from_document(document: object, kind: Any) -> Any:
    """Raise `msgspec.ValidationError`, a ValueError, for a document of something else."""
    return msgspec.convert(document, kind, dec_hook=_made)


class JsonPipe(Generic[T]):
    """`kind`: the messages that come in, of which others are passed over."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind, dec_hook=_made)

    @classmethod
    async def over(cls, sock: socket.socket, kind: Any) -> JsonPipe[T]:
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=4 * MIB), kind)

    async def receive(self) -> T | None:
        """Return the next message; None when the other side is gone or no longer makes sense."""
        while True:
            try:
                line = await self._reader.readline()
                return self._decoder.decode(line) if line.endswith(b"\n") else None
            except msgspec.ValidationError:
                continue  # of another version of skep
            except (OSError, ValueError, RecursionError):
                return None

    def send(self, message: object) -> None:
        """Never blocks; a message to a process that is gone is dropped."""
        if not self._writer.is_closing():
            self._writer.write(ENCODER.encode(message) + b"\n")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
