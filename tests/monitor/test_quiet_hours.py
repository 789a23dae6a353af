"""Quiet hours: over midnight, over the change of the clocks, and what is told at their end."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from skep.config.settings import QuietHours, parse_quiet_hours
from skep.errors import UserError

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = parse_quiet_hours("22:00-07:00")


def at(text, fold=0):
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def test_they_go_over_midnight_or_lie_within_a_day():
    held = [hour for hour in range(24) if NIGHT.hold(at(f"2026-05-04T{hour:02}:30"), BERLIN)]
    assert held == [0, 1, 2, 3, 4, 5, 6, 22, 23]
    assert NIGHT.hold(at("2026-05-04T22:00"), BERLIN)
    assert not NIGHT.hold(at("2026-05-04T07:00"), BERLIN)
    noon = parse_quiet_hours(" 12:30 - 13:00 ")
    held = [
        noon.hold(at(f"2026-05-04T{time}"), BERLIN)
        for time in ("12:29", "12:30", "12:59", "13:00")
    ]
    assert held == [False, True, True, False]
    assert parse_quiet_hours("22:00-24:00") == QuietHours(1320, 0)


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 8), ("2026-03-30", 9), ("2026-10-25", 10)]
)
def test_the_clock_on_the_wall_counts_when_it_is_set_forth_or_back(day, hours):
    """The night before the clocks go forward is an hour shorter, that before they go back an hour
    longer.
    """
    morning = at(f"{day}T07:00")
    held = [hour for hour in range(1, 20) if NIGHT.hold(morning - hour * 3600 + 1800, BERLIN)]
    assert held == list(range(1, hours + 1))


@pytest.mark.parametrize(
    "text",
    ["", "22-7", "22:00", "25:00-07:00", "22:60-07:00", "07:00-07:00", "00:00-24:00", "a-b"],
)
def test_what_is_no_time_of_day_is_refused(text):
    with pytest.raises(UserError) as caught:
        parse_quiet_hours(text)
    assert caught.value.hint
