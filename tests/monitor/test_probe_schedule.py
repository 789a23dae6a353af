"""When to probe: every slot accounted for once, whatever the machine and its clock do."""

import random
import secrets

import pytest
from msgspec.structs import replace

from skep.monitor.records import EventKind, ProbeTarget
from skep.monitor.schedule import (
    ASLEEP,
    CLOCK_FORWARD,
    LATE,
    NO_ROOM,
    Moment,
    ProbeSchedule,
    due_at,
    what_happened,
)

NOON = 1_800_000_000.0  # a whole number of hours
HOUR = 3600.0
BOX = ProbeTarget("box", "http://127.0.0.1:1", every_s=HOUR, added_at=NOON)


def moment(wall, awake=None, boot=None):
    awake = wall - NOON if awake is None else awake
    return Moment(wall, awake, awake if boot is None else boot)


def probed(schedule, agenda):
    for due in agenda.due:
        schedule.started(due.target.name)
        schedule.finished(due)


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
    assert all(due_at(replace(BOX, jitter_s=0.0), slot) == slot * HOUR for slot in slots)
    whole = replace(BOX, jitter_s=10 * HOUR)
    assert all(due_at(whole, slot) < (slot + 1) * HOUR for slot in slots)


@pytest.mark.parametrize(
    ("later", "known", "cause"),
    [
        (Moment(NOON + 4 * HOUR, 60, 60 + 4 * HOUR), None, ASLEEP),
        (Moment(NOON + 4 * HOUR, 60, 60), None, CLOCK_FORWARD),
        (Moment(NOON + 4 * HOUR, 4 * HOUR, 4 * HOUR), None, LATE),
        (Moment(NOON + 4 * HOUR, 4 * HOUR, 4 * HOUR), NO_ROOM, NO_ROOM),
    ],
    ids=["asleep", "clock set forward", "late", "the caller knows better"],
)
def test_a_gap_says_why(later, known, cause):
    schedule = begun()
    (gap,) = schedule.look([BOX], later, *([known] if known else [])).missed
    assert (gap.error_kind, gap.error) == cause


def test_a_sleep_during_a_probe_is_the_reason_for_what_it_took():
    schedule = ProbeSchedule()
    agenda = schedule.look([BOX], Moment(NOON, 0, 0))
    schedule.started("box")
    schedule.look([BOX], Moment(NOON + 4 * HOUR, 60, 4 * HOUR + 60))
    schedule.finished(agenda.due[0])
    (gap,) = schedule.look([BOX], Moment(NOON + 4 * HOUR + 5, 65, 4 * HOUR + 65)).missed
    assert (gap.error_kind, gap.slots) == ("asleep", 3)


def test_a_system_without_a_clock_for_sleep_leaves_it_open():
    assert what_happened(Moment(NOON, 0), Moment(NOON + HOUR, 60))[1].startswith("the machine was asleep, or")
    assert what_happened(Moment(NOON, 0), Moment(NOON + 60, 59)) is None


def test_a_clock_that_is_set_back_begins_a_new_era_and_a_little_is_waited_for():
    schedule = begun()
    little = schedule.look([BOX], moment(NOON - 0.9 * HOUR))
    assert (little.eras, little.missed, little.due) == ((), (), ())
    assert little.wake_at == due_at(BOX, int(NOON // HOUR) + 1)
    agenda = schedule.look([BOX], moment(NOON - 30 * HOUR))
    (era,) = agenda.eras
    assert (era.number, era.kind, era.slot) == (1, EventKind.CLOCK, NOON // HOUR - 30)
    assert era.text == "the machine's clock was set back, by 30 h 00 min or more"
    assert (agenda.due[0].era, agenda.missed) == (1, ())


def test_another_pace_begins_a_new_era_and_misses_nothing():
    schedule = begun()
    quick = replace(BOX, every_s=600.0)
    agenda = schedule.look([quick], moment(NOON + 900))
    assert [(era.number, era.slot, era.every_s) for era in agenda.eras] == [(1, (NOON + 900) // 600, 600.0)]
    assert agenda.missed == ()
    assert agenda.eras[0].text == "watched every 10 min from now on, not every 1 h"


def test_a_target_that_is_taken_up_again_was_not_missed_meanwhile():
    schedule = begun()
    assert schedule.look([], moment(NOON + 9 * HOUR)).wake_at is None
    back = replace(BOX, added_at=NOON + 9 * HOUR)
    agenda = schedule.look([back], moment(NOON + 9 * HOUR))
    assert (len(agenda.eras), agenda.missed, len(agenda.due)) == (1, (), 1)


def test_rows_of_which_nobody_knows_how_they_count_are_left_alone():
    schedule = ProbeSchedule((), {"box": (3, 17), "by-hand": (-1, 1_800_000_000)})
    agenda = schedule.look([BOX, replace(BOX, name="by-hand")], moment(NOON))
    assert [(era.target, era.number) for era in agenda.eras] == [("box", 4), ("by-hand", 0)]
    assert agenda.missed == ()


def test_every_slot_is_covered_once_whatever_happens():
    """Random months of two targets: late looks, broken-off probes, restarts, sleeps, jumps, another pace."""
    seed = secrets.randbelow(1_000_000)
    for number in range(30):
        rng = random.Random(f"{seed}/{number}")
        rows, eras = _month(rng)
        for name in ("a", "b"):
            _assert_tiled([row for row in rows if row[0] == name], [era for era in eras if era.target == name], seed)


def _month(rng):
    """Rows as (target, era, slot, slots), and the eras."""
    targets = [ProbeTarget(name, "u", every_s=rng.choice([600.0, HOUR]), added_at=NOON) for name in ("a", "b")]
    wall, awake, boot = NOON, 0.0, 0.0
    rows, eras, under_way = [], [], []
    schedule = ProbeSchedule()
    for _ in range(300):
        match rng.choices(["look", "sleep", "jump", "restart", "pace"], [90, 4, 3, 3, 1])[0]:
            case "sleep":
                slept = rng.uniform(0, 8 * HOUR)
                wall, boot = wall + slept, boot + slept
            case "jump":
                wall += rng.choice([-1, 1]) * rng.choice([60.0, HOUR, 50 * HOUR])
            case "restart":
                under_way.clear()
                last = {}
                for name, era, slot, slots in rows:
                    last[name] = max(last.get(name, (-1, 0)), (era, slot + slots - 1))
                schedule = ProbeSchedule(eras, last)
            case "pace":
                targets[0] = replace(targets[0], every_s=rng.choice([600.0, 1200.0, HOUR]))
        passed = rng.uniform(1, 900)
        wall, awake, boot = wall + passed, awake + passed, boot + passed
        while under_way and rng.random() < 0.7:
            due = under_way.pop()
            schedule.finished(due)
            rows.append((due.target.name, due.era, due.slot, 1))
        agenda = schedule.look(targets, Moment(wall, awake, boot))
        eras += agenda.eras
        rows += [(gap.target, gap.era, gap.slot, gap.slots) for gap in agenda.missed]
        for due in agenda.due:
            if rng.random() < 0.8:
                schedule.started(due.target.name)
                under_way.append(due)
    return rows, eras


def _assert_tiled(rows, eras, seed):
    assert rows, seed
    assert eras, seed
    assert [era.number for era in eras] == list(range(len(eras))), seed
    for era in eras:
        expected = era.slot
        for _, _, slot, slots in sorted(row for row in rows if row[1] == era.number):
            assert slot == expected, (seed, era, slot, expected)
            expected = slot + slots
