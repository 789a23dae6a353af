"""What is said of a series: sentences that name the size, the moment and what happened then."""

from datetime import UTC, datetime

import pytest
from monitor_samples import KEY

from skep.monitor import describe
from skep.monitor.records import HOUR_S, EventKind, MonitorEvent, SeriesChange

TUESDAY = datetime(2026, 11, 3, 3, tzinfo=UTC).timestamp()
DRIVER = MonitorEvent(
    TUESDAY,
    EventKind.VERSION,
    "driver changed",
    "box",
    {"what": "driver", "from": "570", "to": "580"},
)


def change(because=None, hours=1):
    between = (TUESDAY - hours * HOUR_S, TUESDAY)
    return SeriesChange(KEY, TUESDAY, between, 100.0, 95.9, 0.954, 0.965, 200, 100, because)


def test_a_change_is_told_with_its_cause_and_full_coverage_needs_no_words():
    expected = "-4.1 % (95 %: -4.6 .. -3.5) since Tuesday 3 November 03:00"
    because = "the driver changed from 570 to 580"
    assert describe.describe_change(change(because)) == f"{expected}, when {because}"
    assert describe.describe_change(change()) == f"{expected}; skep knows of no change then"
    assert describe.describe_coverage({"done": 20, "failed": 0, "missed": 0}) is None
    assert (
        describe.describe_coverage({"done": 20, "failed": 1, "missed": 3})
        == "of 24 probes, 3 missed and 1 failed"
    )


def event(hours, kind, text):
    return MonitorEvent(TUESDAY + hours * HOUR_S, kind, text, "box")


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        (
            [
                event(-5, EventKind.NOTE, "moved the box"),
                event(-0.2, EventKind.NOTE, "NVLink bridges removed"),
            ],
            "it was noted: NVLink bridges removed",
        ),
        (
            [event(0, EventKind.RESTART, "started anew"), DRIVER],
            "the driver changed from 570 to 580",
        ),
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
