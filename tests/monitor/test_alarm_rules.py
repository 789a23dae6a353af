"""What counts as wrong, what as right again, and what is left in the noise."""

import math
import random
from dataclasses import replace
from datetime import UTC

import pytest

from skep.monitor import evaluate
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
KEY = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
TTFT = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TTFT_MS)
QUALITY = SeriesKey("box", Heat.HOT, ProbeShape.QUALITY, 1, SeriesMetric.QUALITY)


def points(values, busy=()):
    return [SeriesPoint(n * HOUR, value, n in busy) for n, value in enumerate(values)]


def probes(*outcomes, error="refused"):
    """Newest first, as the store gives them."""
    words = {"f": ProbeOutcome.FAILED, "d": ProbeOutcome.DONE, "m": ProbeOutcome.MISSED}
    return [Probe("box", 0, n, n, n, words[letter], error=error) for n, letter in enumerate(outcomes)]


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
    ],
)
def test_a_target_is_down_after_two_failures_in_a_row_and_up_with_one_answer(outcomes, wrong):
    finding = evaluate.down("box", probes(*outcomes), 2)
    assert (finding.wrong if finding else None) is wrong


@pytest.mark.parametrize(
    ("outcomes", "wrong"),
    [("b" * 23, None), ("b" * 24, True), ("bff", True), ("fbf", True), ("bbd", False), ("bf", None), ("dbbb", False)],
)
def test_a_target_without_room_is_busy_and_down_only_if_that_lasts(outcomes, wrong):
    """It is there: neither a failure nor an answer. Refused for a day of hourly probes, it serves nobody."""
    found = [
        replace(probe, error_kind="busy") if letter == "b" else probe
        for letter, probe in zip(outcomes, probes(*outcomes.replace("b", "f")), strict=True)
    ]
    finding = evaluate.down("box", found, 2)
    assert (finding.wrong if finding else None) is wrong


def test_what_failed_is_told():
    finding = evaluate.down("box", probes("f", error="x" * 999), 1)
    assert finding.message.startswith("box is down: the last probe failed: xxx")
    assert len(finding.message) < 300
    assert evaluate.down("box", probes("f", "f", "f", error=None), 2).message.endswith(
        "3 probes in a row failed: no answer"
    )


STEADY = [50 + 0.1 * (n % 5) for n in range(40)]


def test_slower_is_wrong_beyond_the_limit_right_at_half_of_it_and_neither_between():
    assert evaluate.slower(KEY, points([*STEADY, 44, 44, 44]), 10).wrong is True
    assert evaluate.slower(KEY, points([*STEADY, 46.5, 46.5, 46.5]), 10).wrong is None
    assert evaluate.slower(KEY, points([*STEADY, 48, 48, 48]), 10).wrong is False
    finding = evaluate.slower(KEY, points([*STEADY, 44, 44, 44]), 10)
    assert finding.message == "box, short answers 44 tok/s, 12.4 % below the median of 7 days, 50.2"


def test_one_slow_run_is_no_slowdown():
    assert evaluate.slower(KEY, points([*STEADY, 50, 50, 20]), 10).wrong is False
    assert evaluate.slower(KEY, points([*STEADY, 20, 50, 20]), 10).wrong is None


def test_a_busy_target_is_no_slower_one():
    busy = range(40, 43)
    assert evaluate.slower(KEY, points([*STEADY, 20, 20, 20], busy), 10).wrong is False


def test_with_too_little_before_nothing_is_said():
    assert evaluate.slower(KEY, points([50.0] * 26), 10) is None
    assert evaluate.slower(KEY, points([50.0] * 27), 10).wrong is False
    assert evaluate.slower(KEY, [], 10) is None
    assert evaluate.slower(KEY, points([*STEADY, 0, 0, 0]), 10) is None


def test_the_median_is_that_of_the_last_seven_days():
    fast_before = [100.0] * 300 + [50.0] * 171
    assert evaluate.slower(KEY, points(fast_before), 10).wrong is False


def test_what_lies_inside_the_noise_is_no_alert():
    """With 20 % from run to run, three runs 15 % down are nothing; a half is something."""
    rng = random.Random(4)
    noisy = [50 * 2.718281828 ** rng.gauss(0, 0.2) for _ in range(168)]
    middle = evaluate.median(noisy)
    assert not evaluate.slower(KEY, points([*noisy, *[0.85 * middle] * 3]), 10).wrong
    assert evaluate.slower(KEY, points([*noisy, *[0.45 * middle] * 3]), 10).wrong is True


def test_first_token_over_its_limit():
    assert evaluate.first_token(TTFT, points([100, 900, 900]), 800).wrong is True
    assert evaluate.first_token(TTFT, points([100, 100, 900]), 800).wrong is False
    assert evaluate.first_token(TTFT, points([750, 750, 750]), 800) is None
    assert evaluate.first_token(TTFT, points([900, 900]), 800) is None
    assert evaluate.first_token(TTFT, points([100, 100, 100, 900, 900, 900], range(3, 6)), 800).wrong is False


def quality(values, minimum=None, items=5, every_s=HOUR):
    return evaluate.quality(QUALITY, points(values), items, every_s, minimum)


def test_quality_that_collapses_is_seen_with_the_first_probe():
    assert quality([0.8, 1.0] * 20 + [0.0]).wrong is True
    assert "0% of 5 small tasks right, usually 90%" in quality([0.8, 1.0] * 20 + [0.0]).message


def test_quality_that_falls_is_seen_with_three_probes_and_bad_luck_is_not():
    usual = [0.8, 1.0] * 20
    assert quality([*usual, 0.6]).wrong is False
    assert quality([*usual, 0.4, 0.4, 0.4]).wrong is True


def test_a_year_of_right_answers_does_not_make_one_wrong_one_an_alert():
    assert quality([1.0] * 168 + [0.8]).wrong is False
    assert quality([1.0] * 168 + [0.4, 0.4]).wrong is True


def test_quality_below_its_limit_needs_no_history():
    assert quality([0.4], minimum=0.6).wrong is True
    assert quality([0.8], minimum=0.6).wrong is False
    assert quality([0.8]) is None
    assert quality([], minimum=0.6) is None


def change(ratio, at, key=KEY, because=None):
    return SeriesChange(key, at, (at - HOUR, at), 50.0, 50.0 * ratio, ratio - 0.01, ratio + 0.01, 40, 20, because)


def test_a_change_for_the_worse_names_its_size_moment_and_cause():
    finding = evaluate.shift(
        "box", [change(0.959, 6.1 * 86400, because="the driver changed from 570 to 580")], 7 * 86400, UTC
    )
    assert finding.wrong
    assert finding.since == 6.1 * 86400
    assert finding.message == (
        "box, short answers: tok/s -4.1 % (-5.1 to -3.1 %) since Wednesday 02:24, "
        "when the driver changed from 570 to 580"
    )


def test_a_change_that_was_made_good_or_is_a_week_old_is_no_longer_wrong():
    now = 20 * 86400.0
    assert evaluate.shift("box", [change(0.9, now - 86400), change(1.11, now - 3600)], now).wrong is False
    assert evaluate.shift("box", [change(0.9, now - 8 * 86400)], now).wrong is False
    assert evaluate.shift("box", [change(1.1, now - 86400)], now).wrong is False
    assert evaluate.shift("box", [change(0.99, now - 86400)], now).wrong is False
    assert evaluate.shift("box", [], now).wrong is False


def test_a_longer_wait_for_the_first_token_is_worse():
    now = 20 * 86400.0
    assert evaluate.shift("box", [change(1.2, now - 3600, TTFT)], now).wrong is True


def test_a_fall_to_nothing_is_told_like_any_other():
    """None of the small tasks right any more: a ratio of zero has no logarithm."""
    now = 20 * 86400.0
    gone = replace(change(0.5, now - 3600, QUALITY), before=0.9, after=0.0, ratio_low=0.0, ratio_high=0.0)
    finding = evaluate.shift("box", [gone, change(0.8, now - 3600)], now, UTC)
    assert finding.wrong
    assert "share of right answers -100.0 %" in finding.message


def test_of_several_changes_the_latest_is_told():
    now = 20 * 86400.0
    other = SeriesKey("box", Heat.HOT, ProbeShape.LONG, 1, SeriesMetric.TOK_S)
    finding = evaluate.shift("box", [change(0.8, now - 9000), change(0.95, now - 3600, other)], now)
    assert finding.since == now - 3600


def disk(free_by_hour, limit=2 * GIB):
    history = [(n * HOUR, free) for n, free in enumerate(free_by_hour)]
    return evaluate.disk(free_by_hour[-1], history, limit)


def test_a_disk_below_its_limit_or_about_to_be_full_is_wrong():
    assert disk([GIB]).wrong is True
    assert disk([100 * GIB] * 24).wrong is False
    filling = [(100 - 2 * n) * GIB for n in range(24)]
    assert disk(filling).wrong is True
    assert "is full in 27 h 00 min at the pace of the last day" in disk(filling).message
    assert disk([round(2.1 * GIB)]) is None


def test_one_large_file_is_no_trend_and_neither_are_a_few_hours():
    assert disk([100 * GIB] * 12 + [60 * GIB] * 12).wrong is False
    assert disk([100 * GIB, 90 * GIB, 80 * GIB]).wrong is False


def test_of_several_series_the_worst_speaks_and_all_must_be_well():
    wrong, worse, well, between = (
        evaluate.RuleFinding(AlertRule.SLOWER, "box", wrong=state, message="", value=value, limit=50.0)
        for state, value in ((True, 44.0), (True, 40.0), (False, 60.0), (None, 51.0))
    )
    assert evaluate.worst([wrong, worse, well]) is worse
    assert evaluate.worst([well, between]) is between
    assert evaluate.worst([well]) is well
    assert evaluate.worst([]) is None


def test_chances_add_up():
    assert evaluate.chance_of_at_most(5, 5, 0.9) == pytest.approx(1.0)
    assert evaluate.chance_of_at_most(0, 3, 0.5) == pytest.approx(0.125)


def told_slower(rng, cv, tails, drop):
    """After how many probes of 14 days (from day 8 on, where there is a drop) it is called slower; None: never."""
    draws = [rng.gauss(0, 1) for _ in range(336)]
    if tails:  # Student's t with 3 degrees of freedom, of the same deviation
        draws = [draw / math.sqrt(rng.gammavariate(1.5, 2)) for draw in draws]
    values = [50 * math.exp(cv * draw) * (1 - drop if hour >= 168 else 1) for hour, draw in enumerate(draws)]
    run = points(values)
    first = 168 if drop else 15
    for last in range(first, 336):
        if sorted(values[last - 2 : last + 1])[1] < 46.5:  # 7 % down at least: else it need not be asked
            said = evaluate.slower(KEY, run[max(0, last - 171) : last + 1], 10)
            if said is not None and said.wrong:
                return last - first + 1
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cv", "tails", "drop", "least", "most"),
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
def test_how_often_300_targets_are_called_slower_that_are_not_and_that_are(cv, tails, drop, least, most):
    """14 days of hourly probes, looked at after each. docs/monitor.md has these figures."""
    rng = random.Random(7)
    waits = [wait for _ in range(300) if (wait := told_slower(rng, cv, tails, drop)) is not None]
    assert least <= len(waits) <= most, len(waits)
    if drop:
        assert evaluate.median(waits) <= 3
