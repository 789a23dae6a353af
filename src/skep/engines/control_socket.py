"""The supervisor's side of the control socket: who may connect, and that nothing asked over it ends anything.

Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from skep.errors import SkepError
from skep.units import MIB
from skep.wire.link import Link, Message

Answer = Callable[[Message], Awaitable[Message]]


@asynccontextmanager
async def control_socket(
    path: Path | None,
    answer: Answer,
    last_words: Callable[[], Message] = dict,
    released: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """For this user alone, while the block runs; None: there is none.

    Whoever's last answer said that there is `more` hears the `last_words` when the block has ended.
    `released` is called when a connection ends of which an answer said that it `holds` something.
    """
    if path is None:
        yield
        return
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await _serve(Link(reader, writer), answer, last_words, released)
        finally:
            connections.discard(task)

    server = await asyncio.start_unix_server(serve, path, limit=4 * MIB)
    os.chmod(path, 0o600)  # noqa: PTH101
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one name, at the very end
        for task in list(connections):
            task.cancel()
        while connections:
            await asyncio.sleep(0)


async def _serve(link: Link, answer: Answer, last_words: Callable[[], Message], released: Callable[[], None]) -> None:
    told: Message = {}
    holds = False
    try:
        while (message := await link.receive()) is not None:
            told = {}  # one whose answer is cut short hears the end of the connection
            told = await _answered(message, answer)
            holds = holds or "holds" in told
            link.send(told)
    except asyncio.CancelledError:  # the hive is down; the end of the connection says so
        if told.get("more"):
            link.send(last_words())
    finally:
        if holds:
            released()
        await link.close()


async def _answered(message: Message, answer: Answer) -> Message:
    try:
        return await answer(message)
    except (SkepError, OSError) as error:
        code = getattr(error, "exit_code", 1)
        return {"error": str(error), "hint": getattr(error, "hint", None), "exit_code": code}
    except Exception as error:  # a bug of ours is told to who asked, and ends nothing
        return {"error": f"unexpected {type(error).__name__}: {error}", "hint": "please report it"}
