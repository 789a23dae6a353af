"""The search for knee and cliff on curves whose truth is known."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.turning import SaturationSearch, SpeedCurve, find_turning


def levels_off(c):
    """Exactly at 30."""
    return 20 * min(c, 30)


def bends(c):
    """Slowly: within 5 % of all that is to come from 61 on."""
    return 600 * (1 - math.exp(-c / 20))


def dual_3090(c):
    """225 tok/s at 4, 167 at 8, straight lines between and a slow fall beyond."""
    known = {1: 75, 2: 135, 4: 225, 8: 167, 16: 160, 32: 150, 64: 145}
    low = max(k for k in known if k <= c)
    high = min((k for k in known if k > c), default=low)
    share = 0 if high == low else (c - low) / (high - low)
    return known[low] + share * (known[high] - known[low])


def falls_off(c):
    """Full at 30, and a third less past 50."""
    return levels_off(c) * (1 if c <= 50 else 0.67)


def grows(c):
    return 20 * c


def run(curve, top, *, noise=0.0, seed=0, **options):
    rng = Random(seed)
    search = SaturationSearch(max_concurrency=top, **options)
    asked = []
    while (level := search.next_level()) is not None:
        assert 1 <= level <= top
        expected = search.remaining()
        assert expected >= 1
        asked.append(level)
        search.measured(level, curve(level) * rng.gauss(1, noise))
    assert search.remaining() == 0
    return search, asked


CURVES = pytest.mark.parametrize(
    ("curve", "top", "knee", "cliff"),
    [(levels_off, 512, 29, None), (bends, 512, 61, None), (dual_3090, 64, 4, 4), (falls_off, 256, 29, 50)],
)


def brackets(search):
    """Of knee and cliff by what was measured; None for one that is not there."""
    curve = SpeedCurve(search.points)
    return [place and curve.bracket(place) for place in (curve.knee(), curve.cliff())]


def holds(search, knee, cliff):
    """True where the brackets hold the points, and no cliff is told where there is none."""
    around_knee, around_cliff = brackets(search)
    if around_knee is None or not around_knee[0] < knee <= around_knee[1]:
        return False
    if cliff is None or around_cliff is None:
        return around_cliff is cliff
    return around_cliff[0] <= cliff < around_cliff[1]


@CURVES
def test_without_noise_the_points_are_bracketed_in_few_runs(curve, top, knee, cliff):
    """Narrow, sure and quick."""
    search, asked = run(curve, top)
    assert holds(search, knee, cliff)
    for low, high in filter(None, brackets(search)):
        assert high - low <= 1 or high <= 1.25 * low
    assert find_turning(search.points).sure
    assert len(asked) <= (18 if curve is falls_off else 15)


@CURVES
def test_under_noise_the_brackets_hold_the_points(curve, top, knee, cliff):
    """3 % of noise, one run at a time, 30 seeds: at least 90 % of them, and the budget is kept."""
    held = 0
    for seed in range(30):
        search, asked = run(curve, top, noise=0.03, seed=seed)
        assert len(asked) <= 60
        held += holds(search, knee, cliff)
    assert held >= 0.9 * 30


@pytest.mark.parametrize("top", [1, 2, 48, 64])
def test_growth_to_the_end_is_said_and_not_searched_further(top):
    """No knee is made up at the largest C allowed."""
    for seed in range(10):
        search, asked = run(grows, top, noise=0.03, seed=seed)
        assert brackets(search)[0] is None
        assert max(asked) == top
        assert len(asked) <= 14


def test_c_doubles_from_one_until_two_successive_levels_bring_nothing():
    """Where the budget ends it, what is known by then is given."""
    _, asked = run(levels_off, 512)
    assert asked[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert max(asked) == 128
    search, asked = run(bends, 512, noise=0.03, budget=10)
    assert len(asked) == 10
    assert brackets(search)[0] is not None


@pytest.mark.parametrize(("limited", "figures"), [(True, [320.0]), (False, [])])
def test_a_limited_client_and_a_level_without_a_figure_end_the_search(limited, figures):
    """Nothing is asked above, and nothing of that level is used: no answer at all is not zero. A level that was
    repeated until it was tight counts as so many runs."""
    search = SaturationSearch(max_concurrency=256)
    search.measured(1, 20.0, 20.1, 19.9)
    assert (search.runs, search.next_level()) == (3, 2)
    while (level := search.next_level()) is not None:
        assert level <= 16
        search.measured(level, *([grows(level)] if level < 16 else figures), limited=limited and level >= 16)
    assert brackets(search) == [None, None]
    assert [point.concurrency for point in search.points] == [1, 2, 4, 8]


def test_a_collapse_to_zero_is_a_cliff():
    """A server that fails every request from 12 on."""
    search, _ = run(lambda c: 20 * c if c < 12 else 0.0, 256)
    low, high = brackets(search)[1]
    assert low <= 11 < high
    assert high <= 1.25 * low


def test_an_unclear_level_is_run_again_but_not_for_ever():
    """A step right at the limit of 5 % stays open; the bracket spans it."""
    search, asked = run(lambda c: 100 * (1 if c < 8 else 1.05), 64, noise=0.03, seed=3, most_repeats=4)
    assert max(map(asked.count, set(asked))) <= 4
    assert search.next_level() is None


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300), st.integers(1, 40), st.floats(0, 0.1), st.lists(st.floats(0.3, 2.5), min_size=9, max_size=9)
)
def test_it_ends_on_any_curve(top, budget, noise, steps):
    """However the server behaves: within the budget and never above the largest C."""

    def curve(c):
        return 100 * math.prod(steps[: c.bit_length() - 1])

    _, asked = run(curve, top, noise=noise, budget=budget)
    assert len(asked) <= budget
