"""What is said of a series: sentences that name the size, the moment and what happened then."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from monitor_samples import KEY

from skep.monitor import describe
from skep.monitor.records import (
    HOUR_S,
    EventKind,
    MonitorEvent,
    SeriesChange,
    SeriesMetric,
)
from skep.stats.rolling import window_stats
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
    assert describe.describe_change(change(), UTC) == f"{told}; nothing is known to have happened then"
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
        ([event(0, EventKind.RESTART, "started anew")], "it started anew"),
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


@pytest.mark.parametrize(
    ("ratio", "judgement", "before_s", "told"),
    [
        (
            Interval(0.985, 0.992, 1.001),
            Judgement.SAME,
            7 * 24 * HOUR_S,
            "-0.8 % from the 7 days before: inside run-to-run noise (CV 1.6 %)",
        ),
        (
            Interval(1.93, 1.95, 1.97),
            Judgement.BETTER,
            30 * HOUR_S,
            "+95.0 % (99 %: +93.0 .. +97.0) from the 30 h before: more than run-to-run noise (CV 1.6 %) explains",
        ),
    ],
)
def test_a_difference_is_said_to_be_noise_or_more(ratio, judgement, before_s, told):
    late = SeriesComparison(None, window_stats([100, 102, 98, 100]), ratio, judgement)
    assert describe.describe_recent(late, 24 * HOUR_S, before_s) == f"the last 24 h differ by {told}"


@pytest.mark.parametrize(
    ("a", "b", "metric", "same_model", "told"),
    [
        (
            [2.9, 34.0, 54.7] * 10,
            [71.0, 75.0, 78.0] * 10,
            SeriesMetric.TOK_S,
            True,
            [
                "b is 2.2x (",
                "fast as a on the same model; ranges 2.9..54.7 against 71.0..78.0 tok/s; CV 71 % against 4 %",
            ],
        ),
        (
            [100.0] * 9,
            [90.0] * 9,
            SeriesMetric.TTFT_MS,
            None,
            ["b is 11.1 % (11.1..11.1) quicker to the first token than a;"],
        ),
        (
            [50.0] * 9,
            [50.1] * 9,
            SeriesMetric.TOK_S,
            False,
            ["b is not distinguishable from a in speed (+0.2 %", "(of different models)"],
        ),
    ],
    ids=["the faster of two is named first", "a shorter wait is quicker", "two alike"],
)
def test_two_targets_are_compared_in_words(a, b, metric, same_model, told):
    compared = versus(a, b, more_is_better=metric is SeriesMetric.TOK_S)
    said = describe.describe_comparison("a", "b", compared, metric, same_model=same_model)
    assert said.startswith(told[0])
    assert told[-1] in said


def test_full_coverage_needs_no_words():
    assert describe.describe_coverage({"done": 20, "failed": 0, "missed": 0}) is None
    assert describe.describe_coverage({"done": 20, "failed": 1, "missed": 3}) == "of 24 probes, 3 missed and 1 failed"
