"""Quiet hours: over midnight, over the change of the clocks, and what is told at their end."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from skep.config.settings import QuietHours, parse_quiet_hours
from skep.errors import UserError
from skep.monitor.notify import Notice, QuietHoursPolicy
from skep.monitor.records import Alert, AlertRule

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = parse_quiet_hours("22:00-07:00")


def at(text, fold=0):
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def test_they_go_over_midnight():
    held = [hour for hour in range(24) if NIGHT.hold(at(f"2026-05-04T{hour:02}:30"), BERLIN)]
    assert held == [0, 1, 2, 3, 4, 5, 6, 22, 23]
    assert NIGHT.hold(at("2026-05-04T22:00"), BERLIN)
    assert not NIGHT.hold(at("2026-05-04T07:00"), BERLIN)


def test_they_may_lie_within_a_day():
    noon = parse_quiet_hours(" 12:30 - 13:00 ")
    held = [noon.hold(at(f"2026-05-04T{time}"), BERLIN) for time in ("12:29", "12:30", "12:59", "13:00")]
    assert held == [False, True, True, False]
    assert parse_quiet_hours("22:00-24:00") == QuietHours(1320, 0)


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 8), ("2026-03-30", 9), ("2026-10-25", 10)])
def test_the_clock_on_the_wall_counts_when_it_is_set_forth_or_back(day, hours):
    """The night before the clocks go forward is an hour shorter, that before they go back an hour longer."""
    morning = at(f"{day}T07:00")
    held = [hour for hour in range(1, 20) if NIGHT.hold(morning - hour * 3600 + 1800, BERLIN)]
    assert held == list(range(1, hours + 1))


@pytest.mark.parametrize(
    "text", ["", "22-7", "22:00", "25:00-07:00", "22:60-07:00", "07:00-07:00", "00:00-24:00", "a-b"]
)
def test_what_is_no_time_of_day_is_refused(text):
    with pytest.raises(UserError) as caught:
        parse_quiet_hours(text)
    assert caught.value.hint


def alert(rule=AlertRule.SLOWER, opened_at=None, target="box", **more):
    return Alert(rule, target, at("2026-05-04T23:00") if opened_at is None else opened_at, "m", **more)


LATE, MORNING = at("2026-05-04T23:00"), at("2026-05-05T07:00")


def test_what_is_still_wrong_in_the_morning_is_told_then_and_once():
    policy = QuietHoursPolicy(NIGHT, zone=BERLIN)
    assert policy.tell(alert(), LATE) == []
    assert policy.release(LATE + 3600) == []
    assert policy.release(MORNING) == [Notice("opened", (alert(),))]
    assert policy.release(MORNING + 60) == []


def test_what_came_and_went_at_night_is_told_together():
    policy = QuietHoursPolicy(NIGHT, zone=BERLIN)
    gone = [alert(closed_at=LATE + 60), alert(AlertRule.TTFT, closed_at=LATE + 90)]
    for one in gone:
        policy.tell(replace(one, closed_at=None), LATE)
        assert policy.tell(one, LATE + 99) == []
    assert policy.release(MORNING) == [Notice("passed", tuple(gone))]


def test_what_began_by_day_and_ended_at_night_is_ended_in_the_morning():
    policy = QuietHoursPolicy(NIGHT, zone=BERLIN)
    noon = at("2026-05-04T12:00")
    by_day = alert(opened_at=noon)
    assert policy.tell(by_day, noon) == [Notice("opened", (by_day,))]
    over = replace(by_day, closed_at=LATE)
    assert policy.tell(over, LATE) == []
    assert policy.release(MORNING) == [Notice("closed", (over,))]


def test_exceptions_are_told_at_any_hour():
    policy = QuietHoursPolicy(NIGHT, ["down"], BERLIN)
    down = alert(AlertRule.DOWN)
    over = replace(down, closed_at=LATE)
    assert policy.tell(down, LATE) == [Notice("opened", (down,))]
    assert policy.tell(over, LATE) == [Notice("closed", (over,))]


def test_without_quiet_hours_nothing_waits():
    policy = QuietHoursPolicy()
    for what, one in (("opened", alert()), ("closed", alert(closed_at=LATE))):
        assert policy.tell(one, LATE) == [Notice(what, (one,))]
    assert policy.release(LATE) == []


def test_an_alert_held_back_takes_its_number_when_it_has_one():
    policy = QuietHoursPolicy(NIGHT, zone=BERLIN)
    assert not policy.stored(alert(id=4))
    policy.tell(alert(), LATE)
    assert policy.stored(alert(id=4))
    assert policy.release(MORNING)[0].alerts[0].id == 4
