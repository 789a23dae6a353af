"""JSON lines both ways over a stream socket: how skep's own processes talk to each other.

The end of the stream is a message too: the process at the other end is gone. A question has a
number, `id`, which its answer repeats. The module also turns values into documents and back, in
which paths are texts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL
from typing import IO, Any, Generic, TypeVar

import msgspec

from skep.units import MIB

Message = dict[str, Any]
T = TypeVar("T")


def _from_text(kind: type, text: object) -> Any:
    return kind(text)


ENCODER = msgspec.json.Encoder(enc_hook=str)


def to_document(value: object) -> Message:
    document: Message = msgspec.to_builtins(value, enc_hook=str)
    return document


def from_document(document: object, kind: Any) -> Any:
    """Return the value of `kind`; raise `msgspec.ValidationError`, a ValueError, if it is none."""
    return msgspec.convert(document, kind, dec_hook=_from_text)


class JsonPipe(Generic[T]):
    """Sends and receives over one socket. `kind`: of the messages received; others are ignored."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Any
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind, dec_hook=_from_text)
        self._ids = itertools.count(1)
        self._questions: dict[int, asyncio.Future[T | None]] = {}

    @classmethod
    async def over(cls, sock: socket.socket, kind: Any) -> JsonPipe[T]:
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=4 * MIB), kind)

    async def receive(self) -> T | None:
        """Return the next message that answers no question; None when the other side is gone or
        sends nonsense.
        """
        while (message := await self._next()) is not None:
            question = self._questions.get(getattr(message, "id", 0))
            if question is None:
                return message
            if not question.done():
                question.set_result(message)
        for question in self._questions.values():
            if not question.done():
                question.set_result(None)
        return None

    async def _next(self) -> T | None:
        while True:
            try:
                line = await self._reader.readline()
                if line.endswith(b"\n"):
                    return self._decoder.decode(line)
                return None
            except msgspec.ValidationError:
                continue  # a message of another version of skep
            except (OSError, ValueError, RecursionError):
                return None

    async def ask(self, question: msgspec.Struct, timeout_s: float) -> T | None:
        """Return the answer, while somebody calls `receive`; None if it does not come in time or
        never will.
        """
        number = next(self._ids)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        self.send(msgspec.structs.replace(question, id=number))
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            return None
        finally:
            del self._questions[number]

    def send(self, message: object) -> None:
        """Send without blocking; a message to a process that is gone is dropped."""
        if not self._writer.is_closing():
            self._writer.write(ENCODER.encode(message) + b"\n")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def start_linked(
    program: Sequence[str],
    kind: Any,
    *args: str,
    output: IO[bytes] | int | None = None,
    fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
) -> tuple[asyncio.subprocess.Process, JsonPipe[Any]]:
    """Start `program --link-fd N args`, and return the process with the pipe to it; OSError where
    it cannot be started.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            fd = theirs.fileno()
            process = await asyncio.create_subprocess_exec(
                *program,
                "--link-fd",
                str(fd),
                *args,
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                pass_fds=[fd, *fds],
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return process, await JsonPipe.over(ours, kind)
