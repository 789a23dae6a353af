"""JSON lines both ways over a stream socket: how skep's own processes talk to each other.

The end of the stream is a message too: the process at the other end is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

from skep.units import MIB

Message = dict[str, Any]


class JsonPipe:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> JsonPipe:
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=4 * MIB))

    async def receive(self) -> Message | None:
        """Return the next message; None when the other side is gone or no longer makes sense."""
        try:
            line = await self._reader.readline()
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def send(self, message: Message) -> None:
        """Never blocks; a message to a process that is gone is dropped."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
