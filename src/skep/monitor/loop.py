"""The monitor loop and its process: runs the probes that are due, stores them, and has alerts
evaluated.

Targets that share a machine are probed one after the other, others at the same time. Killed at any
moment, it loses the probe under way and nothing else; asked to stop, it cancels that one, and its
slot is due again. While nothing can be stored, no probe is begun: its slots are missed, and later
rows give the reason."""

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
_NO_EVENT = ("server",)  # a proxy may answer for several servers


@dataclass(slots=True)
class LastSeen:
    """What the probes of one target have shown until now."""

    outcome: ProbeOutcome | None = None
    ended_at: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    began_at: float | None = None

    def take(self, probe: Probe) -> None:
        """Take over what a probe has shown; a missed one has shown nothing."""
        if probe.outcome is ProbeOutcome.MISSED:
            return
        if probe.error_kind != BUSY:  # a busy target is neither up nor down
            self.outcome = probe.outcome
        self.ended_at = probe.ended_at
        # The file's name, once known, is not replaced by the name that the model is served under.
        keep_file_name = (
            "model" in self.versions and probe.versions.get("model") == probe.model == self.model
        )
        self.versions |= {
            name: value
            for name, value in probe.versions.items()
            if not (keep_file_name and name == "model")
        }
        self.model = probe.model or self.model
        self.began_at = probe.host_number(BEGAN_AT) or self.began_at


def events_since(last_seen: LastSeen, probe: Probe) -> list[MonitorEvent]:
    """Return the events between what was last seen of a target and this probe.

    What was not known before is no event.
    """
    changes = [
        *_changes_of_outcome(last_seen, probe),
        *_restarts(last_seen, probe),
        *_changes_of_versions(last_seen, probe),
    ]
    at = probe.due_at if probe.started_at is None else probe.started_at
    return [
        MonitorEvent(
            at=at,
            kind=change.kind,
            text=change.text,
            target=probe.target,
            detail={"since": last_seen.ended_at, **change.detail},
        )
        for change in changes
    ]


@dataclass(slots=True)
class _TargetChange:
    """What becomes an event: its kind, its text and what is stored beside it."""

    kind: EventKind
    text: str
    detail: dict[str, object] = field(default_factory=dict)


def _changes_of_outcome(last_seen: LastSeen, probe: Probe) -> Iterator[_TargetChange]:
    """Yield the change where the target went down or came up; a busy one did neither."""
    if probe.error_kind == BUSY:
        return
    failed = probe.outcome is ProbeOutcome.FAILED
    had_failed = last_seen.outcome is ProbeOutcome.FAILED
    if failed and not had_failed:
        text = f"down: {probe.error or probe.error_kind}"
        yield _TargetChange(EventKind.DOWN, text, {"error_kind": probe.error_kind})
    elif had_failed and not failed:
        yield _TargetChange(EventKind.UP, "up again")


def _restarts(last_seen: LastSeen, probe: Probe) -> Iterator[_TargetChange]:
    began_at = probe.host_number(BEGAN_AT)
    if began_at is None or last_seen.began_at is None:
        return
    if abs(began_at - last_seen.began_at) > SAME_BEGIN_S:
        yield _TargetChange(EventKind.RESTART, "restarted")


def _changes_of_versions(last_seen: LastSeen, probe: Probe) -> Iterator[_TargetChange]:
    for name, value in sorted(probe.versions.items()):
        before = last_seen.versions.get(name)
        if before is None or before == value or name in _NO_EVENT:
            continue
        # The same model under another of its names: its file's, or that which it is served under.
        is_same_model = probe.model == last_seen.model and probe.model in (before, value)
        if name == "model" and is_same_model:
            continue
        text = f"{name.replace('_', ' ')} changed from {before} to {value}"
        if name in ANOTHER_MODEL:
            text += "; its series begin anew"
        yield _TargetChange(EventKind.VERSION, text, {"what": name, "from": before, "to": value})


POLL_S = 5.0  # targets are added and removed while it runs
TICK_S = 60.0
BY_HAND = -1  # the era of probes that somebody asked for
_LOOKED_BACK = 50  # probes that are read to know what was seen last

ProbeResult = tuple[Probe, list[ProbeSample]]
Prober = Callable[[Due], Awaitable[ProbeResult]]


def this_moment() -> Moment:
    return Moment(time.time(), time.monotonic())


class Loop:
    """Probes all targets on schedule. `run` goes on until it is cancelled.

    With `once` it ends when nothing is due, and raises if the results could not be stored.
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
        self._busy: set[str] = set()  # machines on which a target is being probed
        self._trouble: StoreError | None = None  # why no row could be written lately
        self._ticking = False
        self._ticked_at: float | None = None  # on the clock that stops in sleep
        self._probe_ended = asyncio.Event()

    async def run(self, *, once: bool = False) -> None:
        self._schedule = ProbeSchedule(await self._in_thread(self._series.last_slots))
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    agenda = await self._turn(tasks)
                    if once and not self._busy and not (agenda and agenda.due):
                        break
                    await self._wait(agenda)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        if once and self._trouble is not None:
            raise self._trouble

    async def _wait(self, agenda: Agenda | None) -> None:
        """Wait until a probe is due or has ended, for as long as `poll_s` at most."""
        if agenda is None or agenda.wake_at is None:
            wake_at = math.inf
        else:
            wake_at = agenda.wake_at
        wait_s = max(0.0, min(self._poll_s, wake_at - self._moment().wall))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._probe_ended.wait()
        self._probe_ended.clear()

    async def _turn(self, tasks: asyncio.TaskGroup) -> Agenda | None:
        """Start the probes that are due. While nothing can be stored, start none; return None."""
        now = self._moment()
        if self._series.store.moved:
            raise StoreError(
                "the store was deleted or replaced while the monitor ran", hint="start it again"
            )
        is_tick_due = self._ticked_at is None or now.awake - self._ticked_at >= TICK_S
        if is_tick_due and not self._ticking:
            self._ticking = True
            self._ticked_at = now.awake
            tasks.create_task(self._tick(now.wall))
        with contextlib.suppress(StoreError):  # if it cannot be read, the targets read last stay
            self._targets = await self._in_thread(self._series.targets)
        excuse = None if self._trouble is None else NO_ROOM
        agenda = self._schedule.look(self._targets, now, excuse)
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
        """Store a probe. Return whether that succeeded."""
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
            probe, samples = await self._run_prober(due)
            events = await self._new_events(probe)
            self._say(_log_line(probe, samples))
            if not await self._in_thread(self._write, probe, samples, events):
                return
            for event in filter(begins_anew, events):
                self._say(f"monitor.model target={probe.target!r} why={event.text!r}")
            now = self._moment().wall
            with self._errors_logged(f"after={probe.target!r}"):
                await self._in_thread(self._look_for_changes, self._series, probe.target, now)
            with self._errors_logged(f"after={probe.target!r}"):
                if self._watch is not None:
                    await self._watch.after_probe(probe, now)
        finally:
            self._schedule.ended(due.target.name)
            self._busy.discard(machine)
            self._probe_ended.set()

    async def _run_prober(self, due: Due) -> ProbeResult:
        started_at = self._moment().wall
        try:
            return await self._prober(due)
        except Exception as error:  # a bug in one probe must not end the watch over all
            self._say(f"monitor.failed target={due.target.name!r} why={error!r}")
            failed_probe = Probe(
                target=due.target.name,
                era=due.era,
                slot=due.slot,
                due_at=due.at,
                ended_at=self._moment().wall,
                outcome=ProbeOutcome.FAILED,
                started_at=started_at,
                error_kind="error",
                error=f"{type(error).__name__}: {error}"[:300],
            )
            return failed_probe, []

    async def _new_events(self, probe: Probe) -> list[MonitorEvent]:
        """Return the events since the last probe, be it one by hand."""
        try:
            before = await self._in_thread(last_seen, self._series, probe.target)
            return events_since(before, probe)
        except Exception as error:  # what was measured is kept whatever was before it
            self._say(f"monitor.failed before={probe.target!r} why={error!r}")
            return []

    async def _tick(self, now: float) -> None:
        with self._errors_logged("tick=true"):
            if self._watch is not None:
                await self._watch.tick(now)
        self._ticking = False

    @contextlib.contextmanager
    def _errors_logged(self, where: str) -> Iterator[None]:
        """Log an error instead of raising it: what was measured is stored already."""
        try:
            yield
        except Exception as error:
            self._say(f"monitor.failed {where} why={error!r}")


def last_seen(series: SeriesStore, target: str) -> LastSeen:
    """Return what the stored probes have shown: the last one that succeeded, then the newest."""
    state = LastSeen()
    newest = series.probes(target, -math.inf, math.inf, _LOOKED_BACK)
    for probe in (*series.last_done(target), *reversed(newest)):
        state.take(probe)
    return state


def prober_with(env: Mapping[str, str]) -> Prober:
    """Return a prober that takes its keys from these variables or from the hive that runs here."""
    paths = user_paths(env)

    async def probe(due: Due) -> ProbeResult:
        target = due.target
        if target.key_env:
            key = env.get(target.key_env)
        else:
            key = await asyncio.to_thread(replica_key, target.url, paths)
        return await probe_target(due, key=key)

    return probe


async def probe_by_hand(
    series: SeriesStore,
    target: ProbeTarget,
    env: Mapping[str, str],
    clock: Callable[[], float] = time.time,
) -> ProbeResult:
    """Probe a target now, beside whatever is scheduled, and store it with the events it shows."""
    now = clock()
    before = last_seen(series, target.name)
    # The slot is the second: of two probes by hand in one second, one is stored.
    due = Due(target, BY_HAND, slot=int(now), at=now)
    probe, samples = await prober_with(env)(due)
    series.append_probe(probe, samples, events_since(before, probe))
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


ANOTHER_RUNS_S = 30.0  # between two looks whether the other loop has ended
READY_LOOK_S = 0.5
END_S = 5.0


def monitor_lock(paths: Paths) -> Path:
    return paths.state / "monitor.lock"


def hold_monitor_lock(paths: Paths) -> contextlib.AbstractContextManager[None]:
    """Return the lock that lets only one loop run for a store."""
    hint = "`skep monitor status` shows what it found; targets that are added now are probed by it"
    return hold_lock(monitor_lock(paths), "the monitor", hint)


def monitor_pid(paths: Paths) -> int | None:
    """Return the pid of the running loop, None where none runs."""
    return lock_holder(monitor_lock(paths))


def begin_with(parent_fd: int, paths: Paths, phase: Callable[[], str | None]) -> bool:
    """Wait while another process runs the loop or the hive loads its models.

    Return whether to begin: False where the parent process has ended.
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
    """Wait as long as `waits` says so. Return False where the parent process ended meanwhile."""
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
    settings: Monitor,
    paths: Paths,
    say: Callable[[str], None],
    *,
    env: Mapping[str, str],
    once: bool = False,
) -> None:
    """Probe what is due until SIGTERM or Ctrl-C.

    Raise EngineError where another process does so already.
    """
    with hold_monitor_lock(paths), open_store(paths.store) as store:
        series = SeriesStore(store)

        async def watch_over() -> None:
            """Run the loop. Notices under way at its end get a moment."""
            free = partial(free_bytes_of, store.path)
            async with AlertWatcher(series, settings, env=env, log=say, free_bytes=free) as watch:
                watcher = Loop(series, prober_with(env), say=say, watch=watch)
                watching = asyncio.ensure_future(watcher.run(once=once))
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    asyncio.get_running_loop().add_signal_handler(number, watching.cancel)
                with contextlib.suppress(asyncio.CancelledError):
                    await watching

        say(f"monitor.begins targets={len(series.targets())} pid={os.getpid()}")
        asyncio.run(watch_over())
    say("monitor.ends")
