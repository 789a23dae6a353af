"""The sequential test: right when it speaks, silent when it cannot know."""

from random import Random

import pytest

from skep.stats.sequential import MeasurementNoise, SequentialTest, SequentialVerdict, mean_of_starts


def fought(gain, seed, *, rounds=6, readings=6, noise=0.03, start=0.01, known=None):
    rng, known = Random(seed), known or MeasurementNoise()
    contest = SequentialTest(known, rounds=rounds)
    while contest.verdict is SequentialVerdict.OPEN:
        a, b = (rng.gauss(0, start), gain + rng.gauss(0, start))
        pairs = [(a + rng.gauss(0, noise), b + rng.gauss(0, noise)) for _ in range(readings)]
        for side in zip(*pairs, strict=True):
            known.add_start(side)
        contest.feed(pairs)
    return contest


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0.0, 0.05), (-0.03, 0.0, 0.0), (0.05, 0.8, 1.0)])
def test_where_nothing_differs_better_is_said_in_at_most_one_of_twenty_of_a_loss_never_of_a_gain_mostly(
    gain, least, most
):
    assert least <= sum(fought(gain, seed).verdict is SequentialVerdict.BETTER for seed in range(150)) / 150 <= most


def test_a_large_gain_is_seen_in_two_rounds():
    contests = [fought(0.3, seed) for seed in range(40)]
    assert all(one.verdict is SequentialVerdict.BETTER for one in contests)
    assert sum(one.rounds == 2 for one in contests) > 35


@pytest.mark.parametrize(("noise", "start"), [(0.03, 0.03), (0.03, 0.05), (0.1, 0.1)])
def test_nor_on_a_machine_whose_starts_differ_more_than_one_would_think(noise, start):
    """The two starts of the baseline are all that is known of it."""
    accepted = 0
    for seed in range(200):
        rng, known = Random(seed), MeasurementNoise()
        known.add_means([rng.gauss(0, start), rng.gauss(0, start)], [6, 6], sides=1)
        accepted += fought(0.0, seed + 1000, noise=noise, start=start, known=known).verdict is SequentialVerdict.BETTER
    assert accepted <= 14  # five in a hundred, and what chance does to two hundred


@pytest.mark.parametrize("start", [0.01, 0.02])
def test_an_interval_of_two_starts_holds_the_truth(start):
    held = 0
    for seed in range(200):
        rng = Random(seed)
        starts = [
            [level + rng.gauss(0, 0.03) for _ in range(6)] for level in (rng.gauss(0, start), rng.gauss(0, start))
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


def test_one_outlier_does_not_decide():
    """Five prompts that gave 113 where the others give 100."""
    contest = SequentialTest(MeasurementNoise())
    for _ in range(2):
        contest.feed([(0.0, 0.0), (0.01, 0.0), (0.0, 0.9), (0.0, 0.01)])
    assert contest.verdict is not SequentialVerdict.BETTER


def test_starts_that_differ_widen_the_interval():
    steady, wild = SequentialTest(MeasurementNoise()), SequentialTest(MeasurementNoise())
    for high in (False, True):
        steady.feed([(0.0, 0.05)] * 6)
        wild.feed([(0.0, 0.15 if high else -0.05)] * 6)
    assert steady.ratio.high / steady.ratio.low < wild.ratio.high / wild.ratio.low
    assert wild.verdict is not SequentialVerdict.BETTER


def test_it_ends_after_so_many_rounds_and_says_that_it_does_not_know():
    contest = fought(0.015, 7, rounds=3)
    assert contest.rounds <= 3
    assert contest.verdict is not SequentialVerdict.OPEN


def test_noise_is_learned_from_readings_and_starts():
    noise, rng = MeasurementNoise(), Random(1)
    for _ in range(60):
        noise.add_start([rng.gauss(0, 0.1) for _ in range(6)])
        noise.add_means([rng.gauss(0, 0.2), rng.gauss(0, 0.2)], [6, 6], sides=2)
    assert noise.reading == pytest.approx(0.1, rel=0.2)
    assert noise.start > 0.08
