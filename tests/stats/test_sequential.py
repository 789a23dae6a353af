"""When enough has been measured: B against A, a level, a warm-up. Right when it speaks, silent
when it cannot know.
"""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.percentiles import mean_t_interval
from skep.stats.sequential import (
    MeasurementNoise,
    Precision,
    PrecisionGoal,
    SequentialTest,
    SequentialVerdict,
    WarmUpDetector,
    mean_of_starts,
)


def fought(gain, seed, *, rounds=6, readings=6, noise=0.03, start=0.01, noise_model=None):
    rng = Random(seed)
    noise_model = noise_model or MeasurementNoise()
    contest = SequentialTest(noise_model, rounds=rounds)
    while contest.verdict is SequentialVerdict.OPEN:
        a = rng.gauss(0, start)
        b = gain + rng.gauss(0, start)
        pairs = [(a + rng.gauss(0, noise), b + rng.gauss(0, noise)) for _ in range(readings)]
        for side in zip(*pairs, strict=True):
            noise_model.add_start(side)
        contest.feed(pairs)
    return contest


@pytest.mark.parametrize(
    ("gain", "low", "high"),
    [(0.0, 0.0, 0.05), (-0.03, 0.0, 0.0), (0.05, 0.8, 1.0)],
    ids=["no difference", "a loss", "a gain"],
)
def test_better_is_said_of_a_gain_mostly_of_no_gain_seldom_of_a_loss_never(gain, low, high):
    better = sum(fought(gain, seed).verdict is SequentialVerdict.BETTER for seed in range(150))
    assert low <= better / 150 <= high


@pytest.mark.parametrize(("noise", "start"), [(0.03, 0.03), (0.03, 0.05), (0.1, 0.1)])
def test_nor_on_a_machine_whose_starts_differ_more_than_one_would_think(noise, start):
    """The two starts of the baseline are all that is known of it."""
    accepted = 0
    for seed in range(200):
        rng = Random(seed)
        measurement_noise = MeasurementNoise()
        measurement_noise.add_means([rng.gauss(0, start), rng.gauss(0, start)], [6, 6], sides=1)
        accepted += (
            fought(
                0.0, seed + 1000, noise=noise, start=start, noise_model=measurement_noise
            ).verdict
            is SequentialVerdict.BETTER
        )
    assert accepted <= 14  # five in a hundred, and what chance does to two hundred


@pytest.mark.parametrize("start", [0.01, 0.02])
def test_an_interval_of_two_starts_holds_the_truth(start):
    held = 0
    for seed in range(200):
        rng = Random(seed)
        starts = [
            [level + rng.gauss(0, 0.03) for _ in range(6)]
            for level in (rng.gauss(0, start), rng.gauss(0, start))
        ]
        held += mean_of_starts(starts, MeasurementNoise()).contains(1.0)
    assert held >= 176


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([(0.0, 1.0)] * 8, SequentialVerdict.OPEN),
        ([(0.0, -0.5)] * 4, SequentialVerdict.WORSE),
        ([], SequentialVerdict.OPEN),
    ],
)
def test_after_one_round_nothing_is_better_however_large_and_a_clear_loss_is_worse(pairs, verdict):
    contest = SequentialTest(MeasurementNoise())
    contest.feed(pairs)
    assert contest.verdict is verdict
    assert (contest.ratio is None) is (not pairs)


def test_starts_that_differ_widen_the_interval_and_one_outlier_does_not_decide():
    """Five prompts that gave 113 where the others give 100."""
    steady, wild, stray = (SequentialTest(MeasurementNoise()) for _ in range(3))
    for high in (False, True):
        steady.feed([(0.0, 0.05)] * 6)
        wild.feed([(0.0, 0.15 if high else -0.05)] * 6)
        stray.feed([(0.0, 0.0), (0.01, 0.0), (0.0, 0.9), (0.0, 0.01)])
    assert steady.ratio.high / steady.ratio.low < wild.ratio.high / wild.ratio.low
    assert SequentialVerdict.BETTER not in (wild.verdict, stray.verdict)


def test_a_large_gain_is_seen_in_two_rounds_and_a_small_one_ends_after_so_many():
    contests = [fought(0.3, seed) for seed in range(40)]
    assert all(contest.verdict is SequentialVerdict.BETTER for contest in contests)
    assert sum(contest.rounds == 2 for contest in contests) > 35
    small = fought(0.015, 7, rounds=3)
    assert (small.rounds <= 3, small.verdict is SequentialVerdict.OPEN) == (True, False)


def test_noise_is_learned_from_readings_and_starts():
    noise = MeasurementNoise()
    rng = Random(1)
    for _ in range(60):
        noise.add_start([rng.gauss(0, 0.1) for _ in range(6)])
        noise.add_means([rng.gauss(0, 0.2), rng.gauss(0, 0.2)], [6, 6], sides=2)
    assert noise.reading == pytest.approx(0.1, rel=0.2)
    assert noise.start > 0.08


def fed(figures, **goal):
    precision = Precision(PrecisionGoal(**goal))
    for figure in figures:
        precision.feed(figure)
    return precision


@pytest.mark.parametrize(
    ("figures", "done", "enough", "expected"),
    [
        ([], False, False, None),
        ([100.0], False, False, None),
        ([100.0, 101.0, 100.5, 100.2], True, True, 0),
        ([100.0] * 3, False, False, 1),
        ([100.0, 150.0] * 6, True, False, 0),
        ([-1.0, 1.0] * 2, False, False, 8),
    ],
    ids=["none", "one", "within 1 %", "equal by luck", "too noisy", "around zero"],
)
def test_a_level_ends_when_its_interval_is_tight_or_its_repeats_are_spent(
    figures, done, enough, expected
):
    precision = fed(figures)
    assert (precision.done, precision.enough) == (done, enough)
    assert precision.expected_more() == expected
    assert (precision.half_width is None) is (len(figures) < 2)


def test_expectation_grows_with_the_spread_and_stops_at_the_most():
    """2 % apart needs a few more, 40 % apart all there are."""
    assert fed([100.0, 101.0]).expected_more() == 2
    quiet = fed([99.0, 101.0, 102.0]).expected_more()
    wild = fed([80.0, 120.0, 100.0]).expected_more()
    assert 1 <= quiet < wild == 9


@pytest.mark.parametrize("noise", [0.01, 0.06])
def test_the_interval_that_ends_a_level_still_holds_the_truth(noise):
    """Looking after each repeat costs some of the 95 %; of 400 levels at least 90 % with allowance
    for chance.
    """
    rng = Random(21)
    held = 0
    for _ in range(400):
        precision = Precision()
        figures = []
        while not precision.done:
            figures.append(rng.gauss(100, 100 * noise))
            precision.feed(figures[-1])
        held += mean_t_interval(figures).contains(100)
    assert held >= 0.905 * 400


def warmed(figures, **options):
    settling = WarmUpDetector(**options)
    for figure in figures:
        settling.feed(figure)
    return settling


@settings(deadline=None)
@given(
    st.floats(min_value=0.006, max_value=0.5), st.integers(min_value=3, max_value=8), st.booleans()
)
def test_a_ramp_never_settles(rise, window, falling):
    """Up or down, quick or slow: while each batch brings more, the engine is still warming."""
    figures = [100 * (1 + rise) ** batch for batch in range(20)]
    settling = warmed(figures[::-1] if falling else figures, window=window)
    assert not settling.settled
    assert settling.batches == 20


def test_noise_around_a_constant_settles_at_once_and_a_noisy_ramp_seldom_does():
    """Under 2 % noise: five batches of one speed in 95 % of 400 seeds; twenty that rise by 5 %
    each in 15 % of 200.
    """
    rng = Random(1)
    ramp = [100 * (1 + 0.05 * batch) for batch in range(20)]
    assert (
        sum(warmed(rng.gauss(100, 2) for _ in range(5)).settled for _ in range(400)) >= 0.95 * 400
    )
    assert (
        sum(warmed(speed * rng.gauss(1, 0.02) for speed in ramp).settled for _ in range(200))
        <= 0.15 * 200
    )


def test_a_warming_engine_settles_once_it_is_warm():
    """Speed that approaches its end as caches do: settled, and only where it is within 5 % of that
    end.
    """
    settling = WarmUpDetector()
    for batch in range(20):
        speed = 100 * (1 - 0.6 * math.exp(-batch / 2))
        settling.feed(speed + (0.3 if batch % 2 else 0))
        if settling.settled:
            assert speed > 95
    assert settling.settled
    assert 6 <= settling.batches <= 15


@pytest.mark.parametrize(
    "figures",
    [
        [20.0, 100.0, 101.0, 99.5, 100.5],
        [100.0, 101.0, 100.0, 101.0, None, 100.0, 101.0, 100.0, 101.0],
    ],
)
def test_a_cold_batch_and_one_without_a_figure_start_the_look_anew(figures):
    """The first one compiled, the other had only failed requests: with the fifth steady one after
    it all is warm.
    """
    settling = warmed(figures)
    assert not settling.done
    settling.feed(100.0)
    assert (settling.settled, settling.batches) == (True, len(figures) + 1)


@pytest.mark.parametrize(
    ("figures", "max_batches", "settled", "batches"),
    [
        ([100.0, 101.0, 100.0, 101.0, 100.0, 500.0, 900.0], 20, True, 5),
        ([100.0, 101.0, 93.0, 99.5, 100.5], 20, True, 5),
        ([100.0, 50.0] * 20, 12, False, 12),
        ([0.0] * 5, 20, True, 5),
    ],
    ids=[
        "what was said is final",
        "a stray batch is no trend",
        "never steady is given up",
        "zero is steady too",
    ],
)
def test_the_warm_up_ends(figures, max_batches, settled, batches):
    settling = warmed(figures, max_batches=max_batches)
    assert settling.done
    assert (settling.settled, settling.batches) == (settled, batches)
