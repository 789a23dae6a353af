"""When to probe: which slots are due, which were missed, and when to look again. Pure; knows no
clock and no store.

Slot k of a target is the time from k to k+1 times `every_s`, counted from 1970; its probe comes a
little after it begins, by a hash, so that the same slot is always due at the same moment. An *era*
is a stretch in which slots can be counted: it ends when the clock is set back and when a target is
added anew. From its first row on, every slot of an era is accounted for exactly once: by a probe,
or by one row for a gap of missed ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from skep.monitor.records import Probe, ProbeOutcome, ProbeTarget

NOTICED_S = 5.0  # sleep and jumps shorter than this explain nothing

Cause = tuple[str, str]  # error_kind and error of a missed probe
NOT_RUNNING: Cause = ("not_running", "the monitor was not running")
ASLEEP: Cause = ("asleep", "the machine was asleep, or its clock was set forward")
LATE: Cause = ("late", "earlier probes took too long")
NO_ROOM: Cause = ("disk", "nothing could be stored: the disk was full, or failed")


class Moment(msgspec.Struct, frozen=True):
    """Now, on two clocks. Where they differ, the machine slept or somebody set its clock."""

    wall: float  # unix seconds
    awake: float  # seconds that do not pass in sleep


class LastSlot(msgspec.Struct, frozen=True):
    """The last slot of a target that is covered by a row.

    Eras below zero are of probes by hand: they cover nothing.
    """

    era: int
    slot: int
    ended_at: float


class Due(msgspec.Struct, frozen=True):
    target: ProbeTarget
    era: int
    slot: int
    at: float


class Agenda(msgspec.Struct, frozen=True):
    """What is to be written, what is to be begun, and when to look again."""

    missed: tuple[Probe, ...]  # to be written, in this order
    due: tuple[Due, ...]  # to be begun, the longest due first
    wake_at: float | None  # unix time; None: nothing is to come
    set_back: bool = False  # the clock was set back


@dataclass(slots=True)
class _TargetProgress:
    era: int
    covered: int  # the last slot that is accounted for
    # Unix time: a target with a later `added_at` has been added anew since.
    until: float
    first: int | None = None  # the slot that the era begins with: it is probed at once
    last_look: Moment | None = None  # the last look at it
    tried: int = -1  # the last slot whose probe was lost
    cause: Cause | None = None  # why it was lost


class ProbeSchedule:
    """Accounts for the slots of all targets.

    Its caller asks `look`, and reports `started` and `ended` for each probe, `covered` or `lost`
    for each row that was written or could not be.
    """

    def __init__(self, last: Mapping[str, LastSlot] | None = None) -> None:
        self._progress = {
            name: _TargetProgress(slot.era, slot.slot, slot.ended_at)
            for name, slot in (last or {}).items()
            if slot.era >= 0
        }
        self._under_way: set[str] = set()

    def look(
        self, targets: Sequence[ProbeTarget], now: Moment, excuse: Cause | None = None
    ) -> Agenda:
        """Return what is missed and what is due now.

        `excuse`: why slots were missed, where the caller knows it.
        """
        missed = list[Probe]()
        following = list[Due]()
        set_back = False
        for target in targets:
            if target.name in self._under_way:
                continue
            progress = self._progress.get(target.name)
            current = int(now.wall // target.every_s)
            is_back = progress is not None and now.wall < (progress.covered - 1) * target.every_s
            if progress is None or is_back or target.added_at > progress.until:
                era = 0 if progress is None else progress.era + 1
                progress = _TargetProgress(
                    era, current - 1, max(now.wall, target.added_at), current
                )
                self._progress[target.name] = progress
                set_back |= is_back
            error_kind, error = excuse or progress.cause or _cause(progress.last_look, now)
            progress.last_look = now
            first = progress.covered + 1
            if first < current:  # slots that are wholly past and that nothing accounts for
                missed.append(
                    Probe(
                        target=target.name,
                        era=progress.era,
                        slot=first,
                        due_at=due_at(target, first),
                        ended_at=now.wall,
                        outcome=ProbeOutcome.MISSED,
                        slots=current - first,
                        error_kind=error_kind,
                        error=error,
                    )
                )
            slot = max(current, first, progress.tried + 1)
            if slot == progress.first and slot * target.every_s <= now.wall:
                at = now.wall
            else:
                at = due_at(target, slot)
            following.append(Due(target, progress.era, slot, at))
        following.sort(key=lambda due: (due.at, due.target.name))
        due_now = tuple(due for due in following if due.at <= now.wall)
        if len(due_now) < len(following):
            wake_at = following[len(due_now)].at
        else:
            wake_at = None
        return Agenda(tuple(missed), due_now, wake_at, set_back)

    def started(self, name: str) -> None:
        self._under_way.add(name)

    def ended(self, name: str) -> None:
        """End a probe. Its slot is due again, unless `covered` or `lost` was called before."""
        self._under_way.discard(name)

    def covered(self, probe: Probe) -> None:
        """Account for the slots of a probe: its row was written."""
        progress = self._progress[probe.target]
        if progress.era == probe.era:
            progress.covered = max(progress.covered, probe.slot + probe.slots - 1)
            progress.cause = None

    def lost(self, probe: Probe, cause: Cause) -> None:
        """Take note that a row could not be written: its slot becomes a missed one, and is not
        probed again.
        """
        progress = self._progress[probe.target]
        progress.tried = probe.slot
        progress.cause = cause


def due_at(target: ProbeTarget, slot: int) -> float:
    digest = hashlib.sha256(f"{target.name}/{slot}".encode()).digest()
    share = int.from_bytes(digest[:6], "big") / (1 << 48)
    return slot * target.every_s + share * target.jitter_s


def format_interval(every_s: float) -> str:
    """Return an interval as a person would write it: "1 h", "90 min", "45 s"."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if every_s >= size and every_s % size == 0:
            return f"{every_s / size:g} {unit}"
    return f"{every_s:g} s"


def _cause(before: Moment | None, now: Moment) -> Cause:
    """Return why slots were not probed since the look `before`; None: this is the first look."""
    if before is None:
        return NOT_RUNNING
    if (now.wall - before.wall) - (now.awake - before.awake) > NOTICED_S:
        return ASLEEP
    return LATE
