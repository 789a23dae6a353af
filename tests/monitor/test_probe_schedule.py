"""When to probe: every slot accounted for once, whatever the machine and its clock do."""

import random
import secrets
from itertools import pairwise

import pytest
from msgspec.structs import replace

from skep.monitor.records import Probe, ProbeOutcome, ProbeTarget
from skep.monitor.schedule import ASLEEP, LATE, NO_ROOM, LastSlot, Moment, ProbeSchedule, due_at

NOON = 1_800_000_000.0  # a whole number of hours
HOUR = 3600.0
BOX = ProbeTarget("box", "http://127.0.0.1:1", every_s=HOUR, added_at=NOON)


def moment(wall):
    return Moment(wall, wall - NOON)


def probed(schedule, agenda):
    for due in agenda.due:
        schedule.started(due.target.name)
        schedule.covered(row_of(due))
        schedule.ended(due.target.name)


def row_of(due):
    return Probe(due.target.name, due.era, due.slot, due.at, due.at, ProbeOutcome.DONE)


def begun():
    """A schedule whose target was probed at noon."""
    schedule = ProbeSchedule()
    probed(schedule, schedule.look([BOX], moment(NOON)))
    return schedule


def test_a_probe_comes_late_by_at_most_the_jitter_and_always_at_the_same_moment():
    slots = range(480_000, 480_400)
    late = [due_at(BOX, slot) - slot * HOUR for slot in slots]
    assert late == [due_at(BOX, slot) - slot * HOUR for slot in slots]
    assert 0 <= min(late) < 20
    assert 340 < max(late) <= 360


@pytest.mark.parametrize(
    ("later", "excuse", "cause"),
    [
        (Moment(NOON + 4 * HOUR, 60), None, ASLEEP),
        (Moment(NOON + 4 * HOUR, 4 * HOUR), None, LATE),
        (Moment(NOON + 4 * HOUR, 4 * HOUR), NO_ROOM, NO_ROOM),
    ],
    ids=["asleep", "late", "the caller knows better"],
)
def test_a_gap_says_why(later, excuse, cause):
    schedule = begun()
    (gap,) = schedule.look([BOX], later, *([excuse] if excuse else [])).missed
    assert (gap.error_kind, gap.error) == cause


def test_a_sleep_during_a_probe_is_the_reason_for_what_it_took():
    schedule = ProbeSchedule()
    agenda = schedule.look([BOX], Moment(NOON, 0))
    schedule.started("box")
    schedule.look([BOX], Moment(NOON + 4 * HOUR, 60))
    schedule.covered(row_of(agenda.due[0]))
    schedule.ended("box")
    (gap,) = schedule.look([BOX], Moment(NOON + 4 * HOUR + 5, 65)).missed
    assert (gap.error_kind, gap.slots) == ("asleep", 3)


def test_a_clock_set_back_begins_a_new_era():
    schedule = begun()
    little = schedule.look([BOX], moment(NOON - 0.9 * HOUR))
    assert (little.set_back, little.missed, little.due) == (False, (), ())
    assert little.wake_at == due_at(BOX, int(NOON // HOUR) + 1)
    agenda = schedule.look([BOX], moment(NOON - 30 * HOUR))
    assert (agenda.set_back, agenda.due[0].era, agenda.due[0].slot) == (True, 1, NOON // HOUR - 30)
    assert agenda.missed == ()


def test_a_target_added_anew_was_not_missed_meanwhile():
    schedule = begun()
    assert schedule.look([], moment(NOON + 9 * HOUR)).wake_at is None
    back = replace(BOX, added_at=NOON + 9 * HOUR, every_s=600.0)
    agenda = schedule.look([back], moment(NOON + 9 * HOUR))
    assert (agenda.missed, [due.era for due in agenda.due]) == ((), [1])


def test_a_target_added_in_the_future_is_probed_once():
    schedule = ProbeSchedule()
    ahead = replace(BOX, added_at=NOON + 9 * HOUR)
    probed(schedule, schedule.look([ahead], moment(NOON)))
    assert schedule.look([ahead], moment(NOON + 60)).due == ()


def test_a_restart_goes_on_after_the_last_row():
    rows = {
        "box": LastSlot(3, int(NOON // HOUR) - 2, NOON - HOUR),
        "by-hand": LastSlot(-1, 1_800_000_000, NOON),
    }
    target = replace(BOX, added_at=NOON - 9 * HOUR)
    agenda = ProbeSchedule(rows).look([target, replace(target, name="by-hand")], moment(NOON))
    assert [(gap.target, gap.era, gap.slots) for gap in agenda.missed] == [("box", 3, 1)]
    assert [(due.target.name, due.era) for due in agenda.due] == [("by-hand", 0)]


def test_a_probe_that_is_lost_is_missed_later():
    schedule = ProbeSchedule()
    (due,) = schedule.look([BOX], moment(NOON)).due
    schedule.started("box")
    schedule.lost(row_of(due), NO_ROOM)
    schedule.ended("box")
    assert schedule.look([BOX], moment(NOON + 60)).due == ()
    (gap,) = schedule.look([BOX], moment(NOON + HOUR)).missed
    assert (gap.slot, gap.slots, gap.error_kind) == (due.slot, 1, "disk")


def test_every_slot_is_covered_once_whatever_happens():
    """Random months of two targets: late looks, broken-off and lost probes, restarts, sleeps,
    jumps, another pace.
    """
    seed = secrets.randbelow(1_000_000)
    for number in range(30):
        rows = _month(random.Random(f"{seed}/{number}"))
        for name in ("a", "b"):
            _assert_tiled([row for row in rows if row.target == name], seed)


def _month(rng):
    """Return the rows."""
    targets = [
        ProbeTarget(name, "u", every_s=rng.choice([600.0, HOUR]), added_at=NOON)
        for name in ("a", "b")
    ]
    wall = NOON
    awake = 0.0
    rows = []
    under_way = []
    schedule = ProbeSchedule()
    for _ in range(300):
        match rng.choices(["look", "sleep", "jump", "restart", "pace"], [90, 4, 3, 3, 1])[0]:
            case "sleep":
                slept = rng.uniform(0, 8 * HOUR)
                wall += slept
            case "jump":
                wall += rng.choice([-1, 1]) * rng.choice([60.0, HOUR, 50 * HOUR])
            case "restart":
                under_way.clear()
                last = {}
                for row in sorted(rows, key=lambda row: (row.era, row.slot)):
                    last[row.target] = LastSlot(row.era, row.slot + row.slots - 1, row.ended_at)
                schedule = ProbeSchedule(last)
            case "pace":
                # Else it is not told from the one before.
                later = max([wall, *(row.ended_at + 1 for row in rows)])
                targets[0] = replace(
                    targets[0], every_s=rng.choice([600.0, 1200.0, HOUR]), added_at=later
                )
        passed = rng.uniform(1, 900)
        wall = wall + passed
        awake = awake + passed
        while under_way and rng.random() < 0.7:
            due = under_way.pop()
            row = replace(row_of(due), ended_at=wall)
            if rng.random() < 0.9:
                rows.append(row)
                schedule.covered(row)
            else:
                schedule.lost(row, NO_ROOM)
            schedule.ended(due.target.name)
        agenda = schedule.look(targets, Moment(wall, awake))
        for gap in agenda.missed:
            rows.append(gap)
            schedule.covered(gap)
        for due in agenda.due:
            if rng.random() < 0.8:
                schedule.started(due.target.name)
                under_way.append(due)
    return rows


def _assert_tiled(rows, seed):
    """The rows of an era follow each other without a hole."""
    assert rows, seed
    for era in {row.era for row in rows}:
        gaps = sorted((row.slot, row.slots) for row in rows if row.era == era)
        for (slot, slots), (following, _) in pairwise(gaps):
            assert slot + slots == following, (seed, era, slot)
