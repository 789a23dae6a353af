"""The monitor process beside the gateway: kept running, never waited for, and not needed for the hive to be ready.

Knows its child only by a command line. The child gets `--parent-fd N`, the reading end of a pipe: it ends when skep
does, however skep ends. Its output goes to a rotated log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from skep.files import RotatingLog

RESTART_DELAYS_S = (1.0, 5.0, 30.0, 300.0)
STABLE_S = 60.0
STOP_S = 2.0
LAST_WORDS_S = 1.0  # after its exit: processes it started may hold its output open


class MonitorChild:
    """`wake` starts it, `run` keeps it running from then on, `stop` ends it."""

    def __init__(
        self, argv: Sequence[str], log: Path, *, begin: bool, delays_s: Sequence[float] = RESTART_DELAYS_S
    ) -> None:
        """Without `begin` nothing is started until `wake`; without an `argv` nothing is ever started."""
        self._argv = list(argv)
        self._log = log
        self._delays_s = delays_s
        self._process: asyncio.subprocess.Process | None = None
        self._parent_fd: int | None = None  # our end of the pipe
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._renewed = asyncio.Event()  # ends the pause before the next start
        self.starts = 0
        if begin:
            self.wake()

    def __repr__(self) -> str:
        return f"<MonitorChild pid {self.pid}, {self.starts} starts>"

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    def wake(self) -> bool:
        """Start it where it has a command; return whether it runs or is about to."""
        if self._argv and not self._stopping.is_set():
            self._wanted.set()
        return self._wanted.is_set() and not self._stopping.is_set()

    async def run(self) -> None:
        """Start it once it is wanted, and again whenever it ends, until `stop`."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            await self._wanted.wait()
            if self._stopping.is_set():
                return
            self._renewed.clear()
            started = loop.time()
            try:
                self._process = await self._start()
                if self._renewed.is_set():  # asked for while it was being started
                    await self._end()
                await self._listen(self._process)
            except OSError:
                pass  # no process or descriptor is free: treated as a process that ended at once
            finally:
                self._close_pipe()  # where `run` is cancelled, this ends the child
            failures = 1 if loop.time() - started > STABLE_S else failures + 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._delays_s[min(failures, len(self._delays_s)) - 1]):
                    await self._renewed.wait()

    async def become(self, argv: Sequence[str], *, begin: bool) -> None:
        """End what runs and start it with this command line, or with the same one after its settings changed."""
        was_wanted = self._wanted.is_set()
        self._argv = list(argv)
        self._wanted.clear()
        self._renewed.set()
        await self._end()
        if begin or was_wanted:
            self.wake()

    async def stop(self) -> None:
        """End it after a short grace: it may be killed at any moment without a loss."""
        self._stopping.set()
        self._wanted.set()
        self._renewed.set()
        await self._end()

    async def _end(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        self.starts += 1
        theirs, self._parent_fd = os.pipe()
        try:
            return await asyncio.create_subprocess_exec(
                *self._argv,
                *("--parent-fd", str(theirs)),
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(theirs)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Copy its output to the log until it has ended."""
        assert process.stdout is not None
        log = RotatingLog(self._log)
        hearing = asyncio.ensure_future(_copy(process.stdout, log))
        try:
            await process.wait()
            await asyncio.wait({hearing}, timeout=LAST_WORDS_S)
        finally:
            hearing.cancel()
            log.close()

    def _close_pipe(self) -> None:
        if self._parent_fd is not None:
            os.close(self._parent_fd)
            self._parent_fd = None


async def _copy(output: asyncio.StreamReader, log: RotatingLog) -> None:
    while data := await output.read(65536):
        log.write(data)
