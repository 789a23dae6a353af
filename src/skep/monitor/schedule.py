"""When to probe: which slots are due, which were missed, and when to look again. Pure; knows no clock and no store.

Slot k of a target is the time from k to k+1 times `every_s`, counted from 1970; its probe comes up to `jitter` after it
begins, by a hash, so that the same slot is always due at the same moment. An *era* is a stretch in which slots can
be counted: it ends when the clock is set back, when `every_s` changes and when a target is taken up again. From its
first slot on, every slot of an era is accounted for exactly once: by a probe, or by one row for a gap of missed ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from skep.monitor.records import EventKind, MonitorEvent, Probe, ProbeOutcome, ProbeTarget
from skep.units import format_seconds

LATEST_SHARE = 0.9  # of a slot: no probe is due after it
NOTICED_S = 5.0  # sleep and jumps shorter than this explain nothing

Cause = tuple[str, str]  # error_kind and error of a missed probe
NOT_RUNNING: Cause = ("not_running", "the monitor was not running")
ASLEEP: Cause = ("asleep", "the machine was asleep")
CLOCK_FORWARD: Cause = ("clock", "the machine's clock was set forward")
ASLEEP_OR_CLOCK: Cause = ("asleep", "the machine was asleep, or its clock was set forward")
LATE: Cause = ("late", "earlier probes took too long")
NO_ROOM: Cause = ("disk", "nothing could be stored: the disk was full, or failed")


class Moment(msgspec.Struct, frozen=True):
    """Now, on three clocks. Where they differ, the machine slept or somebody set its clock."""

    wall: float  # unix seconds
    awake: float  # seconds that do not pass in sleep
    boot: float | None = None  # seconds that do; None: the system does not tell


class Era(msgspec.Struct, frozen=True):
    """From `slot` on every slot is accounted for. Kept as an event, so that it outlives the process."""

    target: str
    number: int
    slot: int
    every_s: float
    added_at: float  # of the target: another value means that it was taken up again
    at: float
    kind: EventKind = EventKind.MONITOR
    text: str = ""

    def event(self) -> MonitorEvent:
        detail = {"era": self.number, "slot": self.slot, "every_s": self.every_s, "added_at": self.added_at}
        return MonitorEvent(self.at, self.kind, self.text, self.target, detail)

    @classmethod
    def of(cls, event: MonitorEvent) -> Era | None:
        """None: the event is not the beginning of one."""
        told = event.detail
        if event.target is None or not {"era", "slot", "every_s", "added_at"} <= told.keys():
            return None
        slots = int(told["era"]), int(told["slot"]), float(told["every_s"]), float(told["added_at"])
        return cls(event.target, *slots, event.at, event.kind, event.text)


class Due(msgspec.Struct, frozen=True):
    target: ProbeTarget
    era: int
    slot: int
    at: float


class Agenda(msgspec.Struct, frozen=True):
    """What is to be written, in this order, what is to be begun, and when (unix time) to look again."""

    eras: tuple[Era, ...]
    missed: tuple[Probe, ...]
    due: tuple[Due, ...]  # the longest due first
    wake_at: float | None  # None: nothing is to come


@dataclass(slots=True)
class _TargetProgress:
    era: Era
    covered: int  # the last slot that is accounted for


class ProbeSchedule:
    """`look`, then `started` and `finished` or `broken_off` for each probe. What `look` returns counts as written."""

    def __init__(self, eras: Iterable[Era] = (), last: Mapping[str, tuple[int, int]] | None = None) -> None:
        """`last`: of each target, the era and slot that its rows have come to."""
        self._standing: dict[str, _TargetProgress] = {}
        self._under_way: dict[str, Cause | None] = {}  # and what happened to the machine meanwhile
        self._excuses: dict[str, Cause] = {}  # for what was missed while a probe was under way
        self._looked: Moment | None = None
        for era in sorted(eras, key=lambda era: era.number):
            self._standing[era.target] = _TargetProgress(era, era.slot - 1)
        for name, (number, slot) in (last or {}).items():
            standing = self._standing.get(name)
            if number >= 0 and (standing is None or standing.era.number < number):
                era = Era(name, number, slot, 0.0, 0.0, 0.0)  # nobody wrote down how its slots count: the next one does
                self._standing[name] = _TargetProgress(era, slot)
            elif standing is not None and standing.era.number == number:
                standing.covered = max(standing.covered, slot)

    def look(self, targets: Sequence[ProbeTarget], now: Moment, excuse: Cause | None = None) -> Agenda:
        """`excuse`: why slots were missed, where the caller knows it."""
        seen = None if self._looked is None else what_happened(self._looked, now)
        cause = excuse or seen or (NOT_RUNNING if self._looked is None else LATE)
        self._looked = now
        for name in self._under_way:
            self._under_way[name] = self._under_way[name] or seen
        eras, missed, following = list[Era](), list[Probe](), list[Due]()
        for target in targets:
            if target.name in self._under_way:
                continue
            era = self._new_era(target, now.wall)
            if era is not None:
                eras.append(era)
                self._standing[target.name] = _TargetProgress(era, era.slot - 1)
            standing = self._standing[target.name]
            why, text = self._excuses.pop(target.name, cause)
            current, first = int(now.wall // target.every_s), standing.covered + 1
            if first < current:  # slots that are wholly past and that nothing accounts for
                occasion = (target.name, standing.era.number, first, due_at(target, first), now.wall)
                missed.append(Probe(*occasion, ProbeOutcome.MISSED, slots=current - first, error_kind=why, error=text))
                standing.covered = current - 1
            slot = max(current, standing.covered + 1)
            at_once = slot == standing.era.slot and slot * target.every_s <= now.wall  # the first one of an era
            due_s = now.wall if at_once else due_at(target, slot)
            following.append(Due(target, standing.era.number, slot, due_s))
        following.sort(key=lambda one: (one.at, one.target.name))
        due = tuple(one for one in following if one.at <= now.wall)
        wake_at = following[len(due)].at if len(due) < len(following) else None
        return Agenda(tuple(eras), tuple(missed), due, wake_at)

    def started(self, name: str) -> None:
        self._under_way[name] = None

    def finished(self, due: Due) -> None:
        """Its slot is accounted for."""
        name = due.target.name
        happened = self._under_way.pop(name, None)
        standing = self._standing.get(name)
        if standing is not None and standing.era.number == due.era:
            standing.covered = max(standing.covered, due.slot)
            if happened is not None:
                self._excuses[name] = happened

    def broken_off(self, name: str) -> None:
        """Its slot stays open: it is due again, or missed."""
        self._under_way.pop(name, None)

    def _new_era(self, target: ProbeTarget, now: float) -> Era | None:
        slot = int(now // target.every_s)
        standing = self._standing.get(target.name)
        before = None if standing is None else standing.era
        kind, every = EventKind.MONITOR, format_interval(target.every_s)
        if standing is None or before is None:
            text = f"watched from now on, every {every}"
        elif before.added_at != target.added_at:
            text = f"watched again, every {every}"
        elif before.every_s != target.every_s:
            text = f"watched every {every} from now on, not every {format_interval(before.every_s)}"
        elif now < (standing.covered - 1) * target.every_s:
            back_s = standing.covered * target.every_s - now
            kind, text = EventKind.CLOCK, f"the machine's clock was set back, by {format_seconds(back_s)} or more"
        else:
            return None
        number = 0 if before is None else before.number + 1
        return Era(target.name, number, slot, target.every_s, target.added_at, now, kind, text)


def due_at(target: ProbeTarget, slot: int) -> float:
    digest = hashlib.sha256(f"{target.name}/{slot}".encode()).digest()
    share = int.from_bytes(digest[:6], "big") / (1 << 48)
    return slot * target.every_s + share * min(max(0.0, target.jitter), LATEST_SHARE * target.every_s)


def format_interval(every_s: float) -> str:
    """As somebody would have written it: "1 h", "90 min", "45 s"."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if every_s >= size and every_s % size == 0:
            return f"{every_s / size:g} {unit}"
    return f"{every_s:g} s"


def what_happened(before: Moment, now: Moment) -> Cause | None:
    """To the machine, between two moments of one process. None: nothing that explains a gap."""
    wall, awake = now.wall - before.wall, now.awake - before.awake
    if before.boot is None or now.boot is None:
        return ASLEEP_OR_CLOCK if wall - awake > NOTICED_S else None
    boot = now.boot - before.boot
    slept, jumped = boot - awake, wall - boot
    return None if max(slept, jumped) <= NOTICED_S else ASLEEP if slept >= jumped else CLOCK_FORWARD
