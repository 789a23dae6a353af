"""The monitor loop and its process: runs the probes that are due, stores them, and has alerts
evaluated.

Targets that share a machine are probed one after the other, others at the same time. Killed at any
moment, it loses the probe under way and nothing else; told to stop, it breaks that one off, and
its slot is due again. While nothing can be stored, none is begun: slots are missed, and say so
later."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from skep.config.settings import Monitor
from skep.errors import StoreError
from skep.files import hold_lock, lock_holder
from skep.monitor.alerts import AlertWatcher, free_bytes_of
from skep.monitor.history import ANOTHER_MODEL, begins_anew, find_changes
from skep.monitor.probe import BEGAN_AT, machine_of, probe_target
from skep.monitor.records import (
    BUSY,
    EventKind,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeTarget,
)
from skep.monitor.schedule import NO_ROOM, Agenda, Due, Moment, ProbeSchedule
from skep.monitor.store import SeriesStore
from skep.paths import Paths, user_paths
from skep.store.database import open_store
from skep.supervisor.control import replica_key

SAME_BEGIN_S = 2.0
_NO_EVENT = ("server",)  # a front may answer for several servers


@dataclass(slots=True)
class LastSeen:
    """What the probes of one target have shown until now."""

    outcome: ProbeOutcome | None = None
    ended_at: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    began_at: float | None = None

    def take(self, probe: Probe) -> None:
        """Missed ones have shown nothing."""
        if probe.outcome is ProbeOutcome.MISSED:
            return
        # Neither up nor down.
        self.outcome = self.outcome if probe.error_kind == BUSY else probe.outcome
        self.ended_at = probe.ended_at
        same = (
            "model" in self.versions and probe.versions.get("model") == probe.model == self.model
        )
        untold = {"model"} if same else set()  # the file's name
        self.versions |= {
            name: value for name, value in probe.versions.items() if name not in untold
        }
        self.model = probe.model or self.model
        self.began_at = probe.host_number(BEGAN_AT) or self.began_at


def events_since(last_seen: LastSeen, probe: Probe) -> list[MonitorEvent]:
    """Events between what was seen and this probe.

    Nothing is said of what was not known before.
    """
    if probe.started_at is None:
        at = probe.due_at
    else:
        at = probe.started_at
    news: list[MonitorEvent] = []

    def tell(kind: EventKind, text: str, **detail: object) -> None:
        news.append(
            MonitorEvent(at, kind, text, probe.target, {"since": last_seen.ended_at, **detail})
        )

    failed, had_failed = (
        outcome is ProbeOutcome.FAILED for outcome in (probe.outcome, last_seen.outcome)
    )
    if probe.error_kind != BUSY and failed and not had_failed:
        tell(
            EventKind.DOWN, f"down: {probe.error or probe.error_kind}", error_kind=probe.error_kind
        )
    elif probe.error_kind != BUSY and had_failed and not failed:
        tell(EventKind.UP, "up again")
    began = probe.host_number(BEGAN_AT)
    if (
        began is not None
        and last_seen.began_at is not None
        and abs(began - last_seen.began_at) > SAME_BEGIN_S
    ):
        tell(EventKind.RESTART, "restarted")
    for name, value in sorted(probe.versions.items()):
        before = last_seen.versions.get(name)
        untold = (
            name == "model" and probe.model == last_seen.model and probe.model in (before, value)
        )
        if before is not None and before != value and name not in _NO_EVENT and not untold:
            text = f"{name.replace('_', ' ')} changed from {before} to {value}"
            text += "; its series begin anew" if name in ANOTHER_MODEL else ""
            tell(EventKind.VERSION, text, **{"what": name, "from": before, "to": value})
    return news


POLL_S = 5.0  # targets are added and removed while it runs
TICK_S = 60.0
BY_HAND = -1  # the era of probes that somebody asked for
_LOOKED_BACK = 50  # probes, for the versions that were seen last

Made = tuple[Probe, list[ProbeSample]]
Prober = Callable[[Due], Awaitable[Made]]


def this_moment() -> Moment:
    return Moment(time.time(), time.monotonic())


class Loop:
    """`run` goes on until cancelled.

    With `once` it ends when nothing is due; an error if that could not be stored.
    """

    def __init__(
        self,
        series: SeriesStore,
        prober: Prober,
        *,
        say: Callable[[str], None],
        watch: AlertWatcher | None = None,
        moment: Callable[[], Moment] = this_moment,
        look_for_changes: Callable[[SeriesStore, str, float], object] = find_changes,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
        poll_s: float = POLL_S,
    ) -> None:
        self._series = series
        self._prober = prober
        self._say = say
        self._watch = watch
        self._moment = moment
        self._look_for_changes = look_for_changes
        self._in_thread = in_thread
        self._poll_s = poll_s
        self._schedule = ProbeSchedule()
        self._targets: list[ProbeTarget] = []
        self._busy: set[str] = set()  # machines that are being probed
        self._trouble: StoreError | None = None  # the last row could not be written
        self._ticking = False
        self._ticked: float | None = None
        self._stirred = asyncio.Event()

    async def run(self, *, once: bool = False) -> None:
        self._schedule = ProbeSchedule(await self._in_thread(self._series.last_slots))
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    agenda = await self._turn(tasks)
                    if once and not self._busy and not (agenda and agenda.due):
                        break
                    if agenda is None or agenda.wake_at is None:
                        wake_at = math.inf
                    else:
                        wake_at = agenda.wake_at
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(
                            max(0.0, min(self._poll_s, wake_at - self._moment().wall))
                        ):
                            await self._stirred.wait()
                    self._stirred.clear()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        if once and self._trouble is not None:
            raise self._trouble

    async def _turn(self, tasks: asyncio.TaskGroup) -> Agenda | None:
        """Start the probes that are due.

        Return None where nothing can be stored: none is begun until it can.
        """
        now = self._moment()
        if self._series.store.moved:
            raise StoreError(
                "the store was deleted or replaced while the monitor ran", hint="start it again"
            )
        if not self._ticking and (self._ticked is None or now.awake - self._ticked >= TICK_S):
            self._ticking = True
            self._ticked = now.awake
            tasks.create_task(self._tick(now.wall))
        with contextlib.suppress(StoreError):  # where it cannot be read, those read last
            self._targets = await self._in_thread(self._series.targets)
        agenda = self._schedule.look(
            self._targets, now, NO_ROOM if self._trouble is not None else None
        )
        if agenda.set_back:
            self._say("monitor.clock set_back=true")
        for missed in agenda.missed:
            if not await self._in_thread(self._write, missed):
                return None
            self._say(
                f"monitor.missed target={missed.target!r} slots={missed.slots} "
                f"why={missed.error!r}"
            )
        for due in agenda.due:
            machine = machine_of(due.target.url)
            if machine not in self._busy:
                self._busy.add(machine)
                self._schedule.started(due.target.name)
                tasks.create_task(self._probe(due, machine))
        return agenda

    def _write(
        self,
        probe: Probe,
        samples: Sequence[ProbeSample] = (),
        events: Sequence[MonitorEvent] = (),
    ) -> bool:
        """Return whether it is stored."""
        try:
            self._series.append_probe(probe, samples, events)
        except StoreError as error:
            if self._trouble is None:
                self._say(
                    f"monitor.waits why={str(error)!r} hint={getattr(error, 'hint', None)!r}"
                )
            self._trouble = error
            self._schedule.lost(probe, NO_ROOM)
            return False
        self._trouble = None
        self._schedule.covered(probe)
        return True

    async def _probe(self, due: Due, machine: str) -> None:
        try:
            probe, samples = await self._made(due)
            news = await self._news(probe)
            self._say(_log_line(probe, samples))
            if not await self._in_thread(self._write, probe, samples, news):
                return
            for event in filter(begins_anew, news):
                self._say(f"monitor.model target={probe.target!r} why={event.text!r}")
            now = self._moment().wall
            with self._going_on(f"after={probe.target!r}"):
                await self._in_thread(self._look_for_changes, self._series, probe.target, now)
            with self._going_on(f"after={probe.target!r}"):
                if self._watch is not None:
                    await self._watch.after_probe(probe, now)
        finally:
            self._schedule.ended(due.target.name)
            self._busy.discard(machine)
            self._stirred.set()

    async def _made(self, due: Due) -> Made:
        started_at = self._moment().wall
        try:
            return await self._prober(due)
        except Exception as error:  # a bug in one probe must not end the watch over all
            self._say(f"monitor.failed target={due.target.name!r} why={error!r}")
            occasion = (
                due.target.name,
                due.era,
                due.slot,
                due.at,
                self._moment().wall,
                ProbeOutcome.FAILED,
            )
            return Probe(
                *occasion,
                started_at,
                error_kind="error",
                error=f"{type(error).__name__}: {error}"[:300],
            ), []

    async def _news(self, probe: Probe) -> list[MonitorEvent]:
        """Return the events since the last probe, be it one by hand."""
        try:
            return events_since(
                await self._in_thread(last_seen, self._series, probe.target), probe
            )
        except Exception as error:  # what was measured is kept whatever was before it
            self._say(f"monitor.failed before={probe.target!r} why={error!r}")
            return []

    async def _tick(self, now: float) -> None:
        with self._going_on("tick=true"):
            if self._watch is not None:
                await self._watch.tick(now)
        self._ticking = False

    @contextlib.contextmanager
    def _going_on(self, where: str) -> Iterator[None]:
        """What was measured is kept whatever is made of it, and the next time may do better."""
        try:
            yield
        except Exception as error:
            self._say(f"monitor.failed {where} why={error!r}")


def last_seen(series: SeriesStore, target: str) -> LastSeen:
    """From the stored probes: the newest, and the last one that succeeded."""
    last_seen = LastSeen()
    for probe in (
        *series.last_done(target),
        *reversed(series.probes(target, -math.inf, math.inf, _LOOKED_BACK)),
    ):
        last_seen.take(probe)
    return last_seen


def prober_with(env: Mapping[str, str]) -> Prober:
    """Real probes, with keys from these variables or of the hive that runs here."""
    paths = user_paths(env)

    async def probe(due: Due) -> Made:
        target = due.target
        if target.key_env:
            of_replica = None
        else:
            of_replica = await asyncio.to_thread(replica_key, target.url, paths)
        return await probe_target(
            due, key=env.get(target.key_env) if target.key_env else of_replica
        )

    return probe


async def probe_by_hand(
    series: SeriesStore,
    target: ProbeTarget,
    env: Mapping[str, str],
    clock: Callable[[], float] = time.time,
) -> Made:
    """Once, now, beside whatever is scheduled. Stored, with the events that it shows."""
    now = clock()
    seen = last_seen(series, target.name)
    due = Due(target, BY_HAND, int(now), now)  # seconds: two by hand in one second are one
    probe, samples = await prober_with(env)(due)
    series.append_probe(probe, samples, events_since(seen, probe))
    find_changes(series, target.name, clock())
    return probe, samples


def _log_line(probe: Probe, samples: Sequence[ProbeSample]) -> str:
    if probe.error_kind is None:
        failed = ""
    else:
        failed = f" kind={probe.error_kind} why={probe.error!r}"
    hot = [sample.tok_s for sample in samples if sample.heat == "hot" and sample.tok_s is not None]
    speed = f" tok_s={hot[0]:.1f}" if hot else ""
    busy = " busy=true" if probe.busy else ""
    return f"monitor.probed target={probe.target!r} outcome={probe.outcome}{failed}{speed}{busy}"


ANOTHER_RUNS_S = 30.0  # between two looks whether the other loop is gone
READY_LOOK_S = 0.5
END_S = 5.0


def monitor_lock(paths: Paths) -> Path:
    return paths.state / "monitor.lock"


def hold_monitor_lock(paths: Paths) -> contextlib.AbstractContextManager[None]:
    """One loop for a store."""
    hint = "`skep monitor status` shows what it found; targets that are added now are probed by it"
    return hold_lock(monitor_lock(paths), "the monitor", hint)


def monitor_pid(paths: Paths) -> int | None:
    """Return the pid of the running loop, None where none runs."""
    return lock_holder(monitor_lock(paths))


def begin_with(parent_fd: int, paths: Paths, phase: Callable[[], str | None]) -> bool:
    """Wait while another process runs the loop or the hive loads its models.

    Return False where the parent ended.
    """
    alone = wait_while(lambda: monitor_pid(paths) is not None, parent_fd, ANOTHER_RUNS_S)
    if not alone or not wait_while(lambda: phase() == "starting", parent_fd, READY_LOOK_S):
        return False

    def end_with_parent() -> None:
        os.read(parent_fd, 1)  # the pipe closes however the parent ends
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_S)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return True


def wait_while(waits: Callable[[], bool], parent_fd: int, look_s: float) -> bool:
    """Return False where the parent process has ended meanwhile."""
    while waits():
        if select.select([parent_fd], [], [], look_s)[0]:
            return False
    return True


def log_on_stderr(line: str) -> None:
    """Write a dated line. A closed stderr is ignored."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    with contextlib.suppress(OSError):
        print(now, line, file=sys.stderr, flush=True)  # noqa: T201


def run_monitor(
    wanted: Monitor,
    paths: Paths,
    say: Callable[[str], None],
    *,
    env: Mapping[str, str],
    once: bool = False,
) -> None:
    """Probe what is due until SIGTERM or Ctrl-C.

    Raises EngineError where another one does already.
    """
    with hold_monitor_lock(paths), open_store(paths.store) as store:
        series = SeriesStore(store)

        async def watch_over() -> None:
            """What waits to be told when it ends gets a moment."""
            free = partial(free_bytes_of, store.path)
            async with AlertWatcher(series, wanted, env=env, log=say, free_bytes=free) as watch:
                watcher = Loop(series, prober_with(env), say=say, watch=watch)
                watching = asyncio.ensure_future(watcher.run(once=once))
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    asyncio.get_running_loop().add_signal_handler(number, watching.cancel)
                with contextlib.suppress(asyncio.CancelledError):
                    await watching

        say(f"monitor.begins targets={len(series.targets())} pid={os.getpid()}")
        asyncio.run(watch_over())
    say("monitor.ends")
