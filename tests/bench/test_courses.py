"""Which level comes next: deciders on scripted figures, no clock and no server."""

import pytest

from skep.bench.levels import LevelRounds, ToSaturation, WithinLimits, figure_of, make_level_schedule
from skep.stats.precision import PrecisionGoal
from skep.stats.slo import SloLimits
from skep.store.records import Request

GOAL = PrecisionGoal(relative=0.03, fewest=4, most=8)


def run_of(level, tok_s, *, ttft_s=0.1, failing=False):
    """One second at `level` agents, a request each, with `tok_s` tokens a second together."""
    tokens = round(tok_s * 1000)
    steps = tuple(ttft_s + (1000.0 - ttft_s) * n / 100 for n in range(101))
    return [
        Request(
            level=level,
            repeat=0,
            index=index,
            kind="fix",
            started_s=0.0,
            ended_s=1000.0,
            first_token_s=steps[0],
            last_token_s=steps[-1],
            output_tokens=tokens // level,
            arrivals_s=steps,
            error_kind="cut" if failing else None,
        )
        for index in range(level)
    ]


def walk(course, figures, *, most=200, limited=()):
    """Levels in the order asked for; `figures(level, run)` is the speed of a run."""
    order, times = [], {}
    while (level := course.following()) is not None:
        assert len(order) < most, "it never ends"
        run = times.get(level, 0)
        times[level] = run + 1
        order.append(level)
        rows = figures(level, run)
        rows = rows if isinstance(rows, list) else run_of(level, rows)
        course.took(level, rows, limited=level in limited)
    assert course.following() is None
    return order


# Fixed levels


def test_levels_take_turns_and_one_agent_comes_once_more_at_the_end():
    """Steady figures: the fewest runs of each, in rounds, so that drift befalls all alike."""
    assert walk(LevelRounds((1, 4), GOAL), lambda level, _: 10.0 * level) == [1, 4] * 4 + [1]


def test_a_level_that_varies_is_repeated_until_it_is_known_or_the_runs_are_spent():
    order = walk(LevelRounds((1, 4), GOAL), lambda level, run: 10.0 if level == 1 else 40.0 + 20 * (run % 2))
    assert (order.count(1), order.count(4)) == (4 + 1, 8)
    assert order[-1] == 1


def test_exact_runs_are_exact():
    assert walk(LevelRounds((1, 2, 4), GOAL, runs=2), lambda level, _: level) == [1, 2, 4, 1, 2, 4]
    assert walk(LevelRounds((1,), GOAL, runs=1), lambda level, _: level) == [1]


@pytest.mark.parametrize("levels", [(1,), (2, 4)])
def test_nothing_comes_again_where_there_is_nothing_to_hold_it_against(levels):
    assert walk(LevelRounds(levels, GOAL), lambda level, _: level) == list(levels) * 4


def test_levels_where_all_fails_end_too():
    order = walk(LevelRounds((1, 2), GOAL), lambda level, _: run_of(level, 10, failing=True))
    assert order.count(2) == 8


def test_what_is_left_shrinks_to_nothing():
    course = LevelRounds((1, 4), GOAL)
    assert course.remaining() == {1: 5.0, 4: 4.0}
    walk(course, lambda level, _: 10.0 * level)
    assert course.remaining() == {}


def test_runs_that_will_not_be_counted_do_not_make_a_level_known():
    """The first three were limited by the client; a summary drops them and is left with one run and no interval."""
    course, unlimited = LevelRounds((4,), GOAL), 0
    for run in range(8):
        if course.following() is None:
            break
        course.took(4, run_of(4, 40.0), limited=run < 3)
        unlimited += run >= 3
    assert unlimited >= GOAL.fewest


def test_a_runs_figure_is_that_of_its_plateau():
    """Two agents, one of them twice as long: full for the first half, at 20 tok/s; 15 over the whole batch."""
    long, short = run_of(2, 20.0)
    half = tuple(at / 2 for at in short.arrivals_s)
    short = Request(2, 0, 1, "fix", 0.0, 500.0, None, half[0], half[-1], None, 5000, arrivals_s=half)
    assert figure_of([long, short], 2) == pytest.approx(20.0, rel=0.03)


# To saturation


def test_a_curve_that_levels_off_has_its_knee_bracketed():
    """10 tok/s an agent up to eight of them."""
    order = walk(ToSaturation(256), lambda level, run: 10.0 * min(level, 8) * (1 + 0.002 * (run % 2)))
    assert order[:5] == [1, 2, 4, 8, 16]
    assert max(order) <= 64
    assert any(4 < level < 8 for level in order)


def test_a_curve_that_still_grows_ends_at_the_largest_level_allowed():
    order = walk(ToSaturation(16), lambda level, run: 10.0 * level * (1 + 0.002 * (run % 2)))
    assert max(order) == 16


def test_nothing_is_asked_above_a_level_where_the_client_was_the_limit():
    order = walk(ToSaturation(256), lambda level, run: 10.0 * level * (1 + 0.002 * (run % 2)), limited={8})
    assert max(order) == 8


def test_a_search_ends_on_a_dead_server():
    order = walk(ToSaturation(256), lambda level, _: run_of(level, 10, failing=True))
    assert len(order) <= 60


# Within limits


def test_the_highest_level_within_the_limits_is_found():
    """TTFT grows by 0.1 s with every agent: nine keep it under a second."""
    course = WithinLimits(SloLimits.parse("ttft=1s"), 64)
    order = walk(course, lambda level, _: run_of(level, 10.0 * level, ttft_s=0.105 * level))
    assert 9 in order
    assert 10 in order


def test_limits_that_one_agent_breaks_end_the_search_soon():
    course = WithinLimits(SloLimits.parse("ttft=1s"), 64)
    assert set(walk(course, lambda level, _: run_of(level, 10.0, ttft_s=50.0))) == {1}


def test_limits_that_always_hold_end_at_the_largest_level():
    course = WithinLimits(SloLimits.parse("ttft=1s"), 10)
    assert max(walk(course, lambda level, _: run_of(level, 10.0 * level))) == 10


def test_failing_requests_keep_no_limit():
    course = WithinLimits(SloLimits.parse("ttft=1s"), 64)
    order = walk(course, lambda level, _: run_of(level, 10.0, failing=level >= 4))
    assert max(order) <= 8
    assert 3 in order


def test_the_course_is_chosen_by_what_was_asked_for():
    def made(**how):
        return make_level_schedule(
            (1, 2), GOAL, **{"runs": None, "to_saturation": False, "slo": None, "most": 8, **how}
        )

    assert isinstance(made(), LevelRounds)
    assert isinstance(made(to_saturation=True), ToSaturation)
    assert isinstance(made(slo=SloLimits.parse("ttft=1s")), WithinLimits)
