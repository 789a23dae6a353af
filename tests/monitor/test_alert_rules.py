"""What counts as wrong, what as right again, what is left in the noise; and when an alert begins
and ends.
"""

import math
import random

import pytest
from msgspec.structs import replace

from skep.monitor import alerts
from skep.monitor.alerts import RuleFinding, judge_findings
from skep.monitor.records import (
    AlertRule,
    Heat,
    Probe,
    ProbeOutcome,
    ProbeShape,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
)
from skep.units import GIB

HOUR = 3600.0
NOW = 20 * 86400.0
KEY = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
TTFT = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TTFT_MS)


def points(values, busy=()):
    return [SeriesPoint(n * HOUR, value, n in busy) for n, value in enumerate(values)]


def probes(*outcomes, error="refused"):
    """Newest first, as the store gives them."""
    failed = ProbeOutcome.FAILED
    done = ProbeOutcome.DONE
    missed = ProbeOutcome.MISSED
    results = {"f": (failed, None), "b": (failed, "busy"), "d": (done, None), "m": (missed, None)}
    probed = [(n, *results[letter]) for n, letter in enumerate(outcomes)]
    return [
        Probe("box", 0, n, n, n, outcome, error=error, error_kind=kind)
        for n, outcome, kind in probed
    ]


@pytest.mark.parametrize(
    ("outcomes", "wrong"),
    [
        ("", None),
        ("f", None),
        ("fd", None),
        ("ffd", True),
        ("df", False),
        ("fmmf", True),
        ("mmdff", False),
        ("mm", None),
        *(
            ("b" * 23, None),
            ("b" * 24, True),
            ("bff", True),
            ("fbf", True),
            ("bbd", False),
            ("bf", None),
        ),
        ("dbbb", False),
    ],
)
def test_a_target_is_down_after_two_failures_or_a_day_without_room(outcomes, wrong):
    """One answer brings it up again. Without room, it neither fails nor answers.

    Refused for a day of probes, it serves nobody.
    """
    finding = alerts.down("box", probes(*outcomes), 2)
    assert (finding.wrong if finding else None) is wrong


def test_what_failed_is_told():
    finding = alerts.down("box", probes("f", error="x" * 999), 1)
    assert finding.message.startswith("box is down: the last probe failed: xxx")
    assert len(finding.message) < 300
    assert alerts.down("box", probes("f", "f", "f", error=None), 2).message.endswith(
        "3 probes in a row failed: no answer"
    )


STEADY = [50 + 0.1 * (n % 5) for n in range(40)]


NOTHING = "nothing is said"


def verdict(finding):
    if finding is None:
        return NOTHING
    return finding.wrong


@pytest.mark.parametrize(
    ("values", "busy", "wrong"),
    [
        ([*STEADY, 44, 44, 44], (), True),
        ([*STEADY, 46.5, 46.5, 46.5], (), None),
        ([*STEADY, 48, 48, 48], (), False),
        ([*STEADY, 50, 50, 20], (), False),
        ([*STEADY, 20, 50, 20], (), None),
        ([*STEADY, 20, 20, 20], range(40, 43), False),
        ([50.0] * 26, (), NOTHING),
        ([50.0] * 27, (), False),
        ([], (), NOTHING),
        ([*STEADY, 0, 0, 0], (), NOTHING),
        ([100.0] * 300 + [50.0] * 171, (), False),
    ],
    ids=[
        *(
            "beyond the limit",
            "between",
            "within half of it",
            "one slow run",
            "two slow runs",
            "busy",
        ),
        *("too little before", "just enough", "nothing", "zero", "the median is of seven days"),
    ],
)
def test_slower_is_wrong_beyond_the_limit_right_at_half_of_it_and_neither_between(
    values, busy, wrong
):
    finding = alerts.slower(KEY, points(values, busy), 10)
    assert verdict(finding) is wrong
    assert (
        not wrong
        or wrong is NOTHING
        or finding.message
        == ("box, hot, short answer: tok/s 44, 12.4 % below its 7-day median, 50.2")
    )


@pytest.mark.parametrize(
    ("values", "busy", "wrong"),
    [
        ([100, 900, 900], (), True),
        ([100, 100, 900], (), False),
        ([750, 750, 750], (), NOTHING),
        ([900, 900], (), NOTHING),
        ([100, 100, 100, 900, 900, 900], range(3, 6), False),
    ],
)
def test_first_token_over_its_limit(values, busy, wrong):
    assert verdict(alerts.first_token(TTFT, points(values, busy), 800)) is wrong


def test_what_lies_inside_the_noise_is_no_alert():
    """With 20 % from run to run, three runs 15 % down are nothing; a half is something."""
    rng = random.Random(4)
    noisy = [50 * 2.718281828 ** rng.gauss(0, 0.2) for _ in range(168)]
    middle = alerts.median(noisy)
    assert not alerts.slower(KEY, points([*noisy, *[0.85 * middle] * 3]), 10).wrong
    assert alerts.slower(KEY, points([*noisy, *[0.45 * middle] * 3]), 10).wrong is True


def change(ratio, at, key=KEY, because=None):
    return SeriesChange(
        key, at, (at - HOUR, at), 50.0, 50.0 * ratio, ratio - 0.01, ratio + 0.01, 40, 20, because
    )


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ([change(0.9, NOW - 86400), change(1.11, NOW - 3600)], False),
        ([change(0.9, NOW - 8 * 86400)], False),
        ([change(1.1, NOW - 86400)], False),
        ([change(0.99, NOW - 86400)], False),
        ([], False),
        ([change(1.2, NOW - 3600, TTFT)], True),
    ],
    ids=[
        "made good",
        "a week old",
        "for the better",
        "too small",
        "none",
        "a longer wait is worse",
    ],
)
def test_a_change_is_wrong_while_it_is_new_and_not_made_good(changes, wrong):
    assert alerts.shift("box", changes, NOW).wrong is wrong


@pytest.mark.parametrize(("free", "wrong"), [(1.0, True), (100.0, False), (2.1, NOTHING)])
def test_a_disk_below_its_limit_is_wrong(free, wrong):
    assert verdict(alerts.disk(round(free * GIB), 2 * GIB)) is wrong


def test_of_several_series_the_worst_speaks_and_of_several_changes_the_latest():
    wrong, worse, well, between = (
        alerts.RuleFinding(
            AlertRule.SLOWER, "box", wrong=state, message="", value=value, limit=50.0
        )
        for state, value in ((True, 44.0), (True, 40.0), (False, 60.0), (None, 51.0))
    )
    assert alerts.worst([wrong, worse, well]) is worse
    assert alerts.worst([well, between]) is between
    assert alerts.worst([well]) is well
    assert alerts.worst([]) is None
    series_key = SeriesKey("box", Heat.HOT, ProbeShape.LONG, 1, SeriesMetric.TOK_S)
    finding = alerts.shift(
        "box", [change(0.8, NOW - 9000), change(0.95, NOW - 3600, series_key)], NOW
    )
    assert finding.since == NOW - 3600


def told_slower(rng, cv, tails, drop):
    """After how many probes of 14 days (from day 8 on, where there is a drop) it is called slower;
    None: never.
    """
    draws = [rng.gauss(0, 1) for _ in range(336)]
    if tails:  # Student's t with 3 degrees of freedom, of the same deviation
        draws = [draw / math.sqrt(rng.gammavariate(1.5, 2)) for draw in draws]
    values = [
        50 * math.exp(cv * draw) * (1 - drop if hour >= 168 else 1)
        for hour, draw in enumerate(draws)
    ]
    run = points(values)
    first = 168 if drop else 15
    for last in range(first, 336):
        # 7 % down at least: else it need not be asked.
        if sorted(values[last - 2 : last + 1])[1] < 46.5:
            finding = alerts.slower(KEY, run[max(0, last - 171) : last + 1], 10)
            if finding is not None and finding.wrong:
                return last - first + 1
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cv", "tails", "drop", "fewest", "limit"),
    [
        (0.02, False, 0.0, 0, 0),
        (0.04, False, 0.0, 0, 1),
        (0.06, False, 0.0, 0, 4),
        (0.10, False, 0.0, 0, 7),
        (0.20, False, 0.0, 0, 9),
        (0.04, True, 0.0, 0, 3),
        (0.10, True, 0.0, 0, 45),
        (0.04, False, 0.12, 285, 300),
        (0.04, False, 0.15, 297, 300),
        (0.10, False, 0.30, 297, 300),
        (0.20, False, 0.50, 290, 300),
    ],
)
def test_how_often_300_targets_are_called_slower_that_are_not_and_that_are(
    cv, tails, drop, fewest, limit
):
    """14 days of hourly probes, looked at after each. docs/watch.md has some of these figures."""
    rng = random.Random(7)
    waits = [wait for _ in range(300) if (wait := told_slower(rng, cv, tails, drop)) is not None]
    assert fewest <= len(waits) <= limit, len(waits)
    if drop:
        assert alerts.median(waits) <= 3


def finding(wrong, rule=AlertRule.SLOWER, target="box", since=None):
    return RuleFinding(rule, target, wrong=wrong, message="m", value=1.0, limit=2.0, since=since)


class StoredAlerts:
    """The alerts of a store, newest first."""

    def __init__(self):
        self.alerts = []

    def feed(self, findings, now):
        """Return how many alerts the findings open and close."""
        opened, closed = judge_findings(self.alerts, findings, now)
        for alert, because in closed:
            self.alerts[self.alerts.index(alert)] = replace(
                alert, closed_at=now, closed_because=because
            )
        self.alerts = [*reversed(opened), *self.alerts]
        return len(opened), len(closed)


def test_rules_and_targets_have_alerts_of_their_own():
    stored = StoredAlerts()
    others = [
        finding(True, AlertRule.TTFT),
        finding(True, target="cloud"),
        finding(True, AlertRule.DISK, None),
    ]
    assert stored.feed([finding(True), *others], 1.0) == (4, 0)
    assert stored.feed([finding(False, target="cloud"), finding(True)], 2.0) == (0, 1)
    assert [alert.target for alert in stored.alerts if alert.closed_at] == ["cloud"]


def test_a_change_that_is_lost_and_found_again_opens_no_second_alert():
    """Change points are derived anew after each probe: one may be lost and found again."""
    stored = StoredAlerts()
    stored.feed([finding(True, AlertRule.SHIFT, since=50.0)], 60.0)
    assert stored.feed([finding(False, AlertRule.SHIFT)], 70.0) == (0, 1)
    assert stored.feed([finding(True, AlertRule.SHIFT, since=55.0)], 80.0) == (0, 0)


def test_a_later_change_opens_an_alert_in_the_place_of_the_one_before():
    stored = StoredAlerts()
    stored.feed([finding(True, AlertRule.SHIFT, since=50.0)], 60.0)
    assert stored.feed([finding(False, AlertRule.SHIFT)], 70.0) == (0, 1)
    assert stored.feed([finding(True, AlertRule.SHIFT, since=75.0)], 90.0) == (1, 0)
    assert stored.feed([finding(True, AlertRule.SHIFT, since=95.0)], 99.0) == (1, 1)
    assert stored.alerts[1].closed_because == "another one followed"
