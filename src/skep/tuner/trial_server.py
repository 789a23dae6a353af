"""One configuration served for as long as it is measured: supervisor, engines and gateway, in
folders of its own.

The user's hive, socket, lock and store are not touched. Nothing is healed: an engine that dies is
a result. However the tuner ends, the keepers end the engines.
"""

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
from skep.supervisor.replica import Replica, ReplicaMember
from skep.supervisor.supervisor import Hive, Supervisor
from skep.tuner.records import OUT_OF_MEMORY, ConfigFailed, ConfigFailure
from skep.wire.listen import bind

CLEAR_S = 60.0  # for a card to be given back by the engine that was there before
_COMPLAINT = ("error", "failed", "exception", "fatal", "out of memory", "cannot")
# Words about memory of any kind, in a cause, a remedy or a line of a log.
_MEMORY = re.compile(
    r"out of (?:\w+ )?memory|\bOutOfMemory|\bOOM\b|bad_alloc"
    r"|no (?:GPU )?memory|not enough (?:GPU )?memory"
    r"|(?:lower|raise) memory_share|room in the KV cache|memory for the (?:KV cache|cache blocks)"
    r"|the KV cache ran out|max seq len"
    r"|increas\w{1,10} \S{0,80}(?:gpu_memory_utilization|mem-fraction-static)",
    re.IGNORECASE,
)


def tuner_lock(paths: Paths) -> AbstractContextManager[None]:
    """Hold the lock of the tuner: two at a time would measure each other."""
    return hold_lock(
        paths.state / "tune.lock", "a tuner", "wait for it, or stop it with Ctrl-C where it runs"
    )


def failure_of(diagnosis: Diagnosis, *, under_load: bool) -> ConfigFailure:
    """Return the failure that a diagnosis tells. `under_load`: it had answered before."""
    if under_load:
        cause = f"died under load: {diagnosis.cause}"
    else:
        cause = diagnosis.cause
    text = " ".join(filter(None, (diagnosis.cause, diagnosis.evidence, diagnosis.remedy)))
    if _MEMORY.search(text):
        kind = OUT_OF_MEMORY
    elif under_load:
        kind = "crash-under-load"
    else:
        kind = "no-start"
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
        """Serve a preset until the block ends. Raise ConfigFailed where it does not start.

        `serve`: what is started in the preset's place, such as its simulated rig.
        """
        candidates = (self.work / f"start-{number}" for number in itertools.count(1))
        folder = next(candidate for candidate in candidates if not candidate.exists())
        # Its own but for weights.
        paths = Paths(folder / "config", folder / "data", self.paths.cache, folder, folder / "run")
        await asyncio.to_thread(self._sweep_up)
        try:
            make_private(paths.logs)
            with bind(_GATEWAY.host, _GATEWAY.port, guarded=False) as listener:
                hive = await self._hive(serve or serve_of(preset), paths, listener)
                async with TrialServer(hive, listener).up() as served:
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
        """Clean up what a killed tuner left, and wait for cards that are not given back yet."""
        kill_marked(f"{self.work}/")
        for data_folder in self.work.glob("start-*/data"):
            shutil.rmtree(data_folder, ignore_errors=True)
        if self._clear:
            wait_until_clear(gpu_memory_used, self._clear, CLEAR_S)


_GATEWAY = GatewaySettings(port=0, store_requests=False)


class TrialServer:
    """One configuration that answers: a supervisor in this event loop, from its start to its
    end.
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
        """Run it until the block ends. Raise ConfigFailed where it does not become ready."""
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run())
                try:
                    while not self._ready and not self._over.is_set():
                        self._moved.clear()
                        await self._moved.wait()
                    if not self._ready:
                        early = ConfigFailure("no-start", "it ended before it was ready")
                        raise ConfigFailed(self._failure or early)
                    self.start_s = time.monotonic() - began
                    yield self
                finally:
                    self._supervisor.stop(0.0)
                    await self._over.wait()
        except BaseExceptionGroup as group:  # what ends a task group is told as itself
            raise first_of(group) from None

    async def _run(self) -> None:
        """Run the supervisor; how it ends is told by `trouble`."""
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
        """Take in what changed. The first failure is the one to tell: the others are ended for
        it.
        """
        if self._failure is None:
            for member in supervisor.replica_set.members:
                if member.life.state is ReplicaState.FAILED:
                    self._failure = self._failure_of(member)
                    break
        self._ready = self._ready or supervisor.phase == "ready"
        self._moved.set()

    def _failure_of(self, member: ReplicaMember) -> ConfigFailure:
        if isinstance(member, Replica) and member.diagnosis is not None:
            return failure_of(member.diagnosis, under_load=self._ready)
        why = member.life.why or "it did not answer"
        return ConfigFailure("hang", why, self.last_words())

    def trouble(self) -> ConfigFailure | None:
        """Return why it no longer answers; None while it does."""
        if self._failure is None and self._over.is_set():
            return ConfigFailure("crash-under-load", "it ended by itself", self.last_words())
        return self._failure

    def last_words(self) -> str | None:
        """Return the newest line of its logs that complains."""
        for launch in self._hive.replicas:
            for line in reversed(_last_lines(self._hive.log_dir / f"{launch.name}.log")):
                complains = any(word in line.lower() for word in _COMPLAINT)
                if complains and not line.startswith("---"):
                    return line.strip()
        return None


def _last_lines(log_path: Path) -> list[str]:
    """Return the last lines of a log; none where it cannot be read."""
    lines: deque[str] = deque(maxlen=200)
    with suppress(OSError), log_path.open(encoding="utf-8", errors="replace") as log:
        lines.extend(log)
    return list(lines)
