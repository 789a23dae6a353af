"""The actor that makes load on its node: it keeps one load process, hands frames on and tells the time, nothing more.

The process is the one that makes load on one machine too, so figures do not depend on who started it; and Ray's threads
are not in it. It ends with the actor, whose end closes its input.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

from skep import __version__
from skep.bench.local_crowd import LoadProcess


class LoadHand:
    def __init__(self) -> None:
        self._process: LoadProcess | None = None

    async def begin(self) -> dict[str, Any]:
        """Ready for a job when it returns. Who it is."""
        import ray

        self._process = await LoadProcess.start()
        await self._process.ready()
        return {
            "skep": __version__,
            "node": ray.util.get_node_ip_address(),
            "node_id": ray.get_runtime_context().get_node_id(),
            "pids": [os.getpid(), self._process.pid],
        }

    async def now(self) -> float:
        return time.monotonic()

    async def why_not(self, host: str, port: int, timeout_s: float) -> str | None:
        """Why nothing is reached there from here; None: it is."""
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        except socket.gaierror as error:
            return error.strerror or str(error)
        except OSError as error:  # its own text is asyncio's, with the address again
            return os.strerror(error.errno) if error.errno else str(error)
        writer.close()
        return None

    async def prepare(self, job: bytes) -> None:
        assert self._process is not None
        await self._process.prepare(job)

    async def work(self, begin: bytes) -> AsyncIterator[bytes]:
        assert self._process is not None
        async for frame in self._process.work(begin):
            yield frame
