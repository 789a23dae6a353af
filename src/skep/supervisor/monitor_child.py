"""The monitor as the supervisor sees it: a child that is started again whenever it ends. Knows it
only by its command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, STDOUT

from skep.files import open_log

MONITOR_DELAYS_S = (1.0, 5.0, 30.0, 300.0)
MONITOR_STABLE_S = 60.0
MONITOR_STOP_S = 2.0


class MonitorChild:
    """The monitor, kept running from `wake` to `stop`. It ends with skep, by `--parent-fd`."""

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        begin: bool,
        delays_s: Sequence[float] = MONITOR_DELAYS_S,
    ) -> None:
        """Without `begin` nothing is started until `wake`; without an `argv` nothing is ever
        started.
        """
        self._argv = list(argv)
        self._log = log
        self._delays_s = delays_s
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        if begin:
            self.wake()

    @property
    def pid(self) -> int | None:
        if self._process is None or self._process.returncode is not None:
            return None
        return self._process.pid

    def wake(self) -> bool:
        """Start it where it has a command; return whether it runs or is about to."""
        if self._argv and self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep())
        return self._keeping is not None

    async def become(self, argv: Sequence[str], *, begin: bool) -> None:
        """End what runs and start it with this command line, or with the same one after its
        settings changed.
        """
        keeping = self._keeping
        self._keeping = None
        self._argv = list(argv)
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait({keeping})
        if begin or keeping is not None:
            self.wake()

    async def stop(self) -> None:
        """End it after a short grace: it may be killed at any moment without a loss."""
        await self.become((), begin=False)

    async def _keep(self) -> None:
        """Start it, and again whenever it ends, until cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            # Where no process or descriptor is free, it counts as one that ended at once.
            with contextlib.suppress(OSError):
                await self._run_once()
            if loop.time() - started > MONITOR_STABLE_S:
                failures = 0
            failures += 1
            await asyncio.sleep(self._delays_s[min(failures, len(self._delays_s)) - 1])

    async def _run_once(self) -> None:
        """Run it to its end, or until cancelled, with its output in the log."""
        theirs, ours = os.pipe()
        try:
            with open_log(self._log) as log:
                process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    "--parent-fd",
                    str(theirs),
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=STDOUT,
                    pass_fds=[theirs],
                    start_new_session=True,
                )
            self._process = process
            try:
                await process.wait()
            finally:
                await _end(process)
        finally:
            os.close(theirs)
            os.close(ours)  # it ends by this too, if the start was cancelled


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), MONITOR_STOP_S)
        except TimeoutError:
            process.kill()
    await process.wait()
