"""What is said of a series: sentences that name the size, the moment and what happened then."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from monitor_samples import KEY

from skep.monitor import describe
from skep.monitor.records import HOUR_S, EventKind, MonitorEvent, SeriesChange, SeriesMetric
from skep.stats.percentiles import window_stats
from skep.stats.versus import Judgement, SeriesComparison, versus
from skep.units import Interval

TUESDAY = datetime(2026, 11, 3, 3, tzinfo=UTC).timestamp()
DRIVER = MonitorEvent(
    TUESDAY, EventKind.VERSION, "driver changed", "box", {"what": "driver", "from": "570", "to": "580"}
)


def change(because=None, hours=1):
    between = (TUESDAY - hours * HOUR_S, TUESDAY)
    return SeriesChange(KEY, TUESDAY, between, 100.0, 95.9, 0.954, 0.965, 200, 100, because)


def test_a_change_is_told_with_its_cause():
    told = "-4.1 % (95 %: -4.6 .. -3.5) since Tuesday 3 November 03:00"
    because = "the driver changed from 570 to 580"
    assert describe.describe_change(change(because), UTC) == f"{told}, when {because}"
    assert describe.describe_change(change(), UTC) == f"{told}; skep knows of no change then"
    assert "(95 %: between Monday 21:00 and Tuesday 3 November 03:00)" in describe.describe_change(change(hours=6), UTC)


def test_times_are_told_in_the_zone_that_is_asked_for():
    assert describe.moment(TUESDAY, timezone(timedelta(hours=-5))) == "Monday 2 November 22:00"


def event(hours, kind, text):
    return MonitorEvent(TUESDAY + hours * HOUR_S, kind, text, "box")


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        (
            [event(-5, EventKind.NOTE, "moved the box"), event(-0.2, EventKind.NOTE, "NVLink bridges removed")],
            "it was noted: NVLink bridges removed",
        ),
        ([event(0, EventKind.RESTART, "started anew"), DRIVER], "the driver changed from 570 to 580"),
        ([event(0, EventKind.RESTART, "started anew")], "it restarted"),
        ([event(0, EventKind.DOWN, "down: refused")], None),
        ([event(0.5, EventKind.NOTE, "new fans")], "it was noted: new fans"),
        ([event(1.5, EventKind.NOTE, "new fans")], None),
    ],
    ids=[
        *("the nearest", "an upgrade and not the restart it took", "a restart"),
        *("a target that was down is no slower for it", "an interval outside", "farther outside"),
    ],
)
def test_the_cause_of_a_change(events, cause):
    assert describe.cause(events, TUESDAY, (TUESDAY - 6 * HOUR_S, TUESDAY), HOUR_S) == cause


def test_a_great_difference_is_said_to_be_more_than_noise():
    late = SeriesComparison(None, window_stats([100, 102, 98, 100]), Interval(1.93, 1.95, 1.97), Judgement.BETTER)
    assert describe.describe_recent(late, 24 * HOUR_S, 30 * HOUR_S) == (
        "the last 24 h differ by +95.0 % (99 %: +93.0 .. +97.0) from the 30 h before: "
        "more than run-to-run noise (CV 1.6 %) explains"
    )


def test_a_shorter_wait_is_quicker():
    told = describe.describe_comparison(
        "a", "b", versus([100.0] * 9, [90.0] * 9, more_is_better=False), SeriesMetric.TTFT_MS, same_model=None
    )
    assert told.startswith("b is 11.1 % (11.1..11.1) quicker to the first token than a;")


def test_two_alike_are_not_distinguishable():
    told = describe.describe_comparison("a", "b", versus([50.0] * 9, [50.1] * 9), SeriesMetric.TOK_S, same_model=False)
    assert told.startswith("b is not distinguishable from a in speed (+0.2 %")
    assert "(of different models)" in told


def test_full_coverage_needs_no_words():
    assert describe.describe_coverage({"done": 20, "failed": 0, "missed": 0}) is None
    assert describe.describe_coverage({"done": 20, "failed": 1, "missed": 3}) == "of 24 probes, 3 missed and 1 failed"
