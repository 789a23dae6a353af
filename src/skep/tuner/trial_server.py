"""One configuration served for as long as it is measured: supervisor, engines and gateway, in
folders of its own.

The user's hive, socket, lock and store are not touched. Nothing is healed: an engine that dies is
a result. However the tuner ends, the keepers end the engines."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import socket
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from skep.catalog.presets import Preset
from skep.config.presets import serve_of
from skep.config.settings import GatewaySettings, Monitor, Serve, Settings
from skep.deploy.launches import PullProgress
from skep.engines.base import Diagnosis
from skep.errors import SkepError, first_of
from skep.files import hold_lock
from skep.host.power import gpu_memory_used, wait_until_clear
from skep.host.processes import kill_marked
from skep.paths import Paths, make_private
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.main import build_hive
from skep.supervisor.replica import Replica
from skep.supervisor.supervisor import Hive, Supervisor
from skep.tuner.records import OUT_OF_MEMORY, ConfigFailed, ConfigFailure
from skep.wire.listen import bind

CLEAR_S = 60.0  # for a card to be given back by the engine that was there before
_COMPLAINT = ("error", "failed", "exception", "fatal", "out of memory", "cannot")
# Words about memory of any kind, in a cause, a remedy or a line of a log.
_MEMORY = re.compile(
    r"out of (?:\w+ )?memory|\bOutOfMemory|\bOOM\b|no (?:GPU )?memory|not enough (?:GPU "
    r")?memory|bad_alloc"
    r"|(?:lower|raise) memory_share|room in the KV cache|memory for the (?:KV cache|cache blocks)"
    r"|the KV cache ran out|max seq len|increas\w{1,10} "
    r"\S{0,80}(?:gpu_memory_utilization|mem-fraction-static)",
    re.IGNORECASE,
)


def tuner_lock(paths: Paths) -> AbstractContextManager[None]:
    """Hold the lock of the tuner: two at a time would measure each other."""
    return hold_lock(
        paths.state / "tune.lock", "a tuner", "wait for it, or stop it with Ctrl-C where it runs"
    )


def failure_of(diagnosis: Diagnosis, *, under_load: bool) -> ConfigFailure:
    """`under_load`: it had answered before."""
    if under_load:
        cause = f"died under load: {diagnosis.cause}"
    else:
        cause = diagnosis.cause
    text = " ".join(filter(None, (diagnosis.cause, diagnosis.evidence, diagnosis.remedy)))
    if _MEMORY.search(text):
        kind = OUT_OF_MEMORY
    else:
        kind = "crash-under-load" if under_load else "no-start"
    return ConfigFailure(kind, cause, diagnosis.evidence, diagnosis.remedy)


@dataclass(eq=False)
class TrialServers:
    """Serves configurations, one at a time.

    `work`: this tuning's own folder; logs of what failed stay in it.
    """

    paths: Paths  # the user's
    work: Path
    start_deadline_s: float | None = None
    binary: str | None = None
    progress: PullProgress = lambda _done, _total: None

    def __post_init__(self) -> None:
        self.work = self.work.absolute()
        self._clear = gpu_memory_used()

    @asynccontextmanager
    async def open(self, preset: Preset, serve: Serve | None = None) -> AsyncIterator[TrialServer]:
        """Up until the block ends, on any end. Raises ConfigFailed where it does not start.

        `serve`: what is started in the preset's place, such as its simulated rig.
        """
        folder = next(
            candidate
            for candidate in (self.work / f"start-{n}" for n in itertools.count(1))
            if not candidate.exists()
        )
        # Its own but for weights.
        paths = Paths(folder / "config", folder / "data", self.paths.cache, folder, folder / "run")
        await asyncio.to_thread(self._sweep_up)
        try:
            make_private(paths.logs)
            with bind(_GATEWAY.host, _GATEWAY.port, guarded=False) as listener:
                async with TrialServer(
                    await self._hive(serve or serve_of(preset), paths, listener), listener
                ).up() as served:
                    yield served
            shutil.rmtree(folder, ignore_errors=True)
        except asyncio.CancelledError:  # nothing that its log could tell
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(paths.data, ignore_errors=True)

    async def _hive(self, serve: Serve, paths: Paths, listener: socket.socket) -> Hive:
        serve = replace(serve, binary=self.binary)
        monitor = replace(Monitor(), with_up=False)
        deadline_s = self.start_deadline_s
        settings = Settings(
            _GATEWAY, (serve,), drain_s=0.0, start_deadline_s=deadline_s, monitor=monitor
        )
        try:
            hive = await asyncio.to_thread(build_hive, settings, paths, listener, self.progress)
        except SkepError as error:
            raise ConfigFailed(
                ConfigFailure("refused", error.message, remedy=error.hint)
            ) from None
        once = {"failures_before_ready": 1, "failures_after_ready": 1, "fallbacks": 0}
        return replace(hive, policy=replace(hive.policy, **once, checked_before_ready_s=None))

    def _sweep_up(self) -> None:
        """What a killed tuner left, and cards that are not given back yet."""
        kill_marked(f"{self.work}/")
        for data_folder in self.work.glob("start-*/data"):
            shutil.rmtree(data_folder, ignore_errors=True)
        if self._clear:
            wait_until_clear(gpu_memory_used, self._clear, CLEAR_S)


_GATEWAY = GatewaySettings(port=0, store_requests=False)


class TrialServer:
    """One configuration that answers: a supervisor in this event loop,
    from its start to its end.
    """

    def __init__(self, hive: Hive, listener: socket.socket) -> None:
        self.url = hive.url
        self.model = hive.replicas[0].model
        self.start_s = 0.0  # from the start of its first process until it answered
        self._hive = hive
        self._supervisor = Supervisor(hive, listener, self._changed)
        self._moved = asyncio.Event()
        self._over = asyncio.Event()
        self._ready = False
        self._failure: ConfigFailure | None = None

    @asynccontextmanager
    async def up(self) -> AsyncIterator[TrialServer]:
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run())
                try:
                    while not self._ready and not self._over.is_set():
                        self._moved.clear()
                        await self._moved.wait()
                    if not self._ready:
                        raise ConfigFailed(
                            self._failure
                            or ConfigFailure("no-start", "it ended before it was ready")
                        )
                    self.start_s = time.monotonic() - began
                    yield self
                finally:
                    self._supervisor.stop(0.0)
                    await self._over.wait()
        except BaseExceptionGroup as group:  # what ends a task group is told as itself
            raise first_of(group) from None

    async def _run(self) -> None:
        """How it ends is told by `trouble`."""
        try:
            await self._supervisor.run()
        except SkepError as error:
            self._failure = self._failure or ConfigFailure(
                "no-start", error.message, remedy=error.hint
            )
        finally:
            self._over.set()
            self._moved.set()

    def _changed(self, supervisor: Supervisor) -> None:
        """The first failure is the one to tell: the others are ended for it."""
        failed = (
            member
            for member in supervisor.replica_set.members
            if member.life.state is ReplicaState.FAILED
        )
        if self._failure is None and (member := next(failed, None)) is not None:
            if isinstance(member, Replica):
                diagnosis = member.diagnosis
            else:
                diagnosis = None
            if diagnosis is None:
                self._failure = ConfigFailure(
                    "hang", member.life.why or "it did not answer", self.last_words()
                )
            else:
                self._failure = failure_of(diagnosis, under_load=self._ready)
        self._ready = self._ready or supervisor.phase == "ready"
        self._moved.set()

    def trouble(self) -> ConfigFailure | None:
        """Return why it no longer answers; None while it does."""
        if self._failure is None and self._over.is_set():
            return ConfigFailure("crash-under-load", "it ended by itself", self.last_words())
        return self._failure

    def last_words(self) -> str | None:
        """Of all its logs, the newest line that complains."""
        for launch in self._hive.replicas:
            lines: deque[str] = deque(maxlen=200)
            with (
                suppress(OSError),
                (self._hive.log_dir / f"{launch.name}.log").open(
                    encoding="utf-8", errors="replace"
                ) as log,
            ):
                lines.extend(log)
            for line in reversed(lines):
                if any(word in line.lower() for word in _COMPLAINT) and not line.startswith("---"):
                    return line.strip()
        return None
