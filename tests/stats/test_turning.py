"""Knee and cliff of measured levels."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.turning import LevelPoint, SpeedCurve, Turning, find_turning

DUAL_3090 = {1: 75.0, 2: 135.0, 4: 225.0, 8: 167.0, 16: 160.0}
SATURATING = {1: 50.0, 2: 100.0, 4: 200.0, 8: 390.0, 16: 400.0, 32: 402.0}


def points(curve, repeats=3, spread=0.005):
    """Repeats spread evenly around each level's figure."""
    steps = [spread * (place - (repeats - 1) / 2) for place in range(repeats)]
    return [
        LevelPoint(c, tuple(figure * (1 + step) for step in steps)) for c, figure in curve.items()
    ]


def test_the_published_cliff_is_found():
    """Two 3090: 225 tok/s at four agents, 167 at eight."""
    drop = pytest.approx(100 * (1 - 160 / 225))
    assert find_turning(points(DUAL_3090)) == Turning(4, (2, 4), 4, (4, 8), drop, sure=True)


def test_one_repeat_gives_no_turning_point():
    """Nothing is known of chance: the places are estimates, good enough for a search, not to be
    told.
    """
    levels = points(DUAL_3090, repeats=1)
    assert find_turning(levels) == Turning(None, None, None, None, None, sure=False)
    curve = SpeedCurve(levels)
    assert (curve.bracket(curve.knee()), curve.bracket(curve.cliff())) == ((2, 4), (4, 8))


def test_levels_that_cannot_be_told_apart_have_no_knee():
    """Repeats 20 % apart tell neither 390 from 400 nor 200 from 390: the bracket of the knee is an
    estimate.
    """
    noisy = points(SATURATING, spread=0.2)
    assert find_turning(noisy) == Turning(
        None, None, None, None, None, sure=False, unclear=(4, 8, 16, 32)
    )
    curve = SpeedCurve(noisy)
    assert curve.bracket(curve.knee()) == (2, 32)


def test_a_sure_knee_is_told_beside_an_unclear_cliff():
    curve = [LevelPoint(c, (v, v * 1.002, v * 0.998)) for c, v in {1: 50, 2: 100, 4: 101}.items()]
    turning = find_turning([*curve, LevelPoint(8, (97.0, 93.0, 95.5))])
    assert (turning.knee, turning.knee_bracket) == (2, (1, 2))
    assert (turning.cliff, turning.drop_pct, turning.sure) == (None, None, False)
    assert turning.unclear == (4, 8)


def test_levels_whose_intervals_overlap_have_neither_knee_nor_cliff():
    """All levels together are quiet enough to tell them apart; what people see of these two is
    not.
    """
    curve = points({1: 50.0, 2: 100.0, 4: 100.5, 8: 80.0}, repeats=6)
    assert (find_turning(curve).knee, find_turning(curve).cliff) == (2, 4)
    wide = {2: (78.0, 122.0), 8: (76.0, 84.0), 4: (79.0, 122.0)}
    turning = find_turning(
        [LevelPoint(p.concurrency, p.values, spread=wide.get(p.concurrency)) for p in curve]
    )
    assert (turning.cliff, turning.unclear) == (None, (4, 8))
    wide = {1: (20.0, 80.0), 2: (70.0, 130.0), 4: (70.0, 130.0)}
    turning = find_turning(
        [LevelPoint(p.concurrency, p.values, spread=wide.get(p.concurrency)) for p in curve]
    )
    assert turning.knee is None
    assert {1, 2} <= {*turning.unclear}


def test_levels_with_too_few_tasks_are_named_and_never_used():
    curve = [*points({1: 50.0, 2: 100.0, 4: 101.0}), LevelPoint(8, (40.0, 40.1, 40.2), few=True)]
    turning = find_turning(curve)
    assert (turning.knee, turning.cliff, turning.few, turning.sure) == (2, None, (8,), False)


@pytest.mark.parametrize(
    ("curve", "knee", "bracket"),
    [
        (SATURATING, 8, (4, 8)),
        ({1: 10.0, 2: 20.0, 4: 40.0}, None, None),
        ({1: 100.0, 2: 100.0, 4: 101.0}, 1, (0, 1)),
        ({1: 50.0, 2: 100.0, 4: 70.0, 8: 104.0, 16: 103.0}, 2, (1, 2)),
    ],
    ids=["levels off", "grows to its end", "never grows", "a dip that recovers"],
)
def test_a_curve_without_a_cliff_has_a_knee_or_none(curve, knee, bracket):
    """None is made up at the last level; a curve falls for good or it does not fall."""
    turning = find_turning(points(curve))
    assert (turning.knee, turning.knee_bracket) == (knee, bracket)
    assert (turning.cliff, turning.cliff_bracket, turning.drop_pct) == (None, None, None)


def test_a_failed_level_lies_beyond_the_cliff_and_a_client_limited_one_is_left_out():
    """Zero is a figure.

    Repeats of one level may come apart: C=1 is measured again at the end of a run.
    """
    turning = find_turning([*points({1: 50.0, 2: 100.0}), LevelPoint(4, (0.0, 0.0))])
    assert (turning.cliff, turning.cliff_bracket, turning.drop_pct) == (2, (2, 4), 100)
    split = [*points({1: 50.0}, repeats=1), *points(SATURATING), LevelPoint(1, (50.1,))]
    assert find_turning(split).knee == 8
    limited = [
        LevelPoint(p.concurrency, p.values, limited=p.concurrency >= 8) for p in points(DUAL_3090)
    ]
    assert (find_turning(limited).knee, find_turning(limited).cliff) == (None, None)


@pytest.mark.parametrize(
    "levels", [[], [LevelPoint(1, (5.0, 5.0))], [LevelPoint(1, ()), LevelPoint(2, ())]]
)
def test_too_few_levels_say_nothing(levels):
    """One point has no slope."""
    assert find_turning(levels) == Turning(None, None, None, None, None, sure=False)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.integers(1, 64), st.lists(st.floats(0, 1e4), min_size=1, max_size=4), max_size=8
    )
)
def test_brackets_are_always_in_order_and_measured(levels):
    """Whatever came in."""
    turning = find_turning([LevelPoint(c, tuple(values)) for c, values in levels.items()])
    if turning.knee is not None:
        low, high = turning.knee_bracket
        assert low < high
        assert high in levels
        assert low in {0, *levels}
        assert low < turning.knee <= high
    if turning.cliff is not None:
        low, high = turning.cliff_bracket
        assert low < high
        assert low <= turning.cliff < high
        assert 0 < turning.drop_pct <= 100


def test_a_flat_end_is_seldom_called_a_cliff():
    """A plateau under 3 % noise, three repeats a level:
    surely falling in at most 3 % of 300 runs.
    """
    rng = Random(2)
    curve = {1: 50, 2: 100, 4: 200, 8: 390, 16: 400, 32: 400, 64: 400}
    falls = 0
    for _ in range(300):
        levels = [
            LevelPoint(c, tuple(rng.gauss(1, 0.03) * v for _ in range(3)))
            for c, v in curve.items()
        ]
        turning = find_turning(levels)
        falls += turning.cliff is not None and turning.sure
    assert falls <= 0.03 * 300
