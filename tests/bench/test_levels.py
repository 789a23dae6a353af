"""The order of levels, decided on scripted figures without a clock or a server."""

import pytest
from sample_rows import evenly, request

from skep.bench.level_rounds import LevelRounds, LevelSearch, figure_of
from skep.report.sweep_text import search_sentence
from skep.stats.sequential import PrecisionGoal

GOAL = PrecisionGoal(relative=0.03, fewest=4, max_repeats=8)


def run_of(level, tok_s, *, ttft_s=0.1, failing=False):
    """Return one second of `level` agents, a request each, with `tok_s` tokens together."""
    fields = {
        "level": level,
        "tokens": round(tok_s * 1000) // level,
        "error_kind": "cut" if failing else None,
    }
    return [request(*evenly(ttft_s, 1000.0, 101), index=index, **fields) for index in range(level)]


def walk(schedule, figures, *, max_runs=200, limited=()):
    """Return the levels in the order asked for; `figures(level, run)` is the speed of a run."""
    order = []
    times = {}
    while (level := schedule.next_level()) is not None:
        assert len(order) < max_runs, "it never ends"
        run = times.get(level, 0)
        times[level] = run + 1
        order.append(level)
        rows = figures(level, run)
        rows = rows if isinstance(rows, list) else run_of(level, rows)
        schedule.add_run(level, rows, limited=level in limited)
    assert schedule.next_level() is None
    return order


# Fixed levels


@pytest.mark.parametrize(
    ("levels", "runs", "order"),
    [
        ((1, 4), None, [1, 4] * 4 + [1]),
        ((1,), None, [1] * 4),
        ((2, 4), None, [2, 4] * 4),
        ((1, 2, 4), 2, [1, 2, 4] * 2),
        ((1,), 1, [1]),
    ],
)
def test_levels_take_turns_and_one_agent_comes_once_more_at_the_end(levels, runs, order):
    """Steady figures: the fewest runs of each, in rounds, so that drift befalls all alike; exact
    runs are exact.
    """
    assert walk(LevelRounds(levels, GOAL, runs=runs), lambda level, _: 10.0 * level) == order


def test_a_level_that_varies_is_repeated_until_it_is_known_or_the_runs_are_spent():
    """Levels where all fails end too; what is left shrinks to nothing."""
    schedule = LevelRounds((1, 4), GOAL)
    assert schedule.remaining() == {1: 5.0, 4: 4.0}
    order = walk(schedule, lambda level, run: 10.0 if level == 1 else 40.0 + 20 * (run % 2))
    assert (order.count(1), order.count(4), order[-1], schedule.remaining()) == (4 + 1, 8, 1, {})
    assert (
        walk(LevelRounds((1, 2), GOAL), lambda level, _: run_of(level, 10, failing=True)).count(2)
        == 8
    )


def test_runs_that_will_not_be_counted_do_not_make_a_level_known():
    """The first three were limited by the client; a summary drops them and is left with one run
    and no interval.
    """
    schedule = LevelRounds((4,), GOAL)
    unlimited = 0
    for run in range(8):
        if schedule.next_level() is None:
            break
        schedule.add_run(4, run_of(4, 40.0), limited=run < 3)
        unlimited += run >= 3
    assert unlimited >= GOAL.fewest


def test_a_runs_figure_is_that_of_its_plateau():
    """Two agents, one of them twice as long: full for the first half, at 20 tok/s; 15 over the
    whole batch.
    """
    long, short = run_of(2, 20.0)
    half = tuple(at / 2 for at in short.arrivals_s)
    short = request(*half, level=2, index=1, tokens=5000)
    assert figure_of([long, short], 2) == pytest.approx(20.0, rel=0.03)


# The search for the knee


def levels_off(level):
    """Return a speed that levels off at exactly 30."""
    return 20.0 * min(level, 30)


def falls_off(level):
    """Return a speed that is full at 16 agents, and a third less beyond."""
    return 20.0 * level if level <= 16 else 213.0


@pytest.mark.parametrize(
    ("curve", "levels", "beyond"),
    [(levels_off, [1, 2, 4, 8, 16, 32, 64, 128], 32), (falls_off, [1, 2, 4, 8, 16, 32, 64], 16)],
)
def test_a_search_doubles_until_two_levels_past_the_knee(curve, levels, beyond):
    """It runs each level once on the way up, then all of them in turns, as with fixed levels."""
    search = LevelSearch(GOAL, max_agents=4096)
    order = walk(search, lambda level, _: curve(level))
    assert order == levels + levels * 3 + [1]
    assert (search.end.at, search.end.reason, search.end.beyond) == (
        levels[-1],
        "past the knee",
        beyond,
    )


def test_a_search_goes_on_where_later_runs_move_the_knee():
    """A first run of four agents that was too fast by a third hid that eight and sixteen are
    faster.
    """
    search = LevelSearch(GOAL, max_agents=4096)
    order = walk(
        search, lambda level, run: 110.0 if (level, run) == (4, 0) else levels_off(min(level, 5))
    )
    assert max(order) == 32
    flat = LevelSearch(GOAL, max_agents=4096)
    walk(flat, lambda level, run: 45.0 if (level, run) == (1, 0) else 20.0 * min(level, 4))
    assert flat.end.beyond in (2, 4)


def test_a_search_stops_where_the_client_is_the_limit_or_goes_no_further():
    """A limited run may be chance, so the level is run three times, and then never again."""
    search = LevelSearch(GOAL, max_agents=4096)
    order = walk(search, lambda level, _: 20.0 * level, limited=(8,))
    assert (order.count(8), search.end.at, search.end.reason) == (3, 8, "client")
    search = LevelSearch(GOAL, max_agents=20, runs=1)
    assert walk(search, lambda level, _: 20.0 * level) == [1, 2, 4, 8, 16]
    assert (search.end.at, search.end.reason) == (16, "most")


def test_a_search_that_the_budget_ended_says_so():
    search = LevelSearch(GOAL, max_agents=4096)
    assert search.next_level() == 1
    search.add_run(1, run_of(1, 20.0), limited=False)
    assert search.next_level() == 2
    assert (search.ended().at, search.ended().reason) == (1, "budget")


def test_a_search_that_the_client_ended_says_whether_tok_s_still_grew():
    """It said so of every search: here nothing was gained past eight."""
    search = LevelSearch(GOAL, max_agents=20, runs=1)
    walk(search, lambda level, _: 20.0 * min(level, 8))
    assert (search.end.at, search.end.reason, search.end.beyond) == (16, "most", 8)
    assert search_sentence(search.end) == (
        "The search stopped at C = 16: one client sends no more streams; no level above C = "
        "8 was 5 % faster."
    )
    grows = LevelSearch(GOAL, max_agents=20, runs=1)
    walk(grows, lambda level, _: 20.0 * level)
    assert search_sentence(grows.end).endswith(
        "one client sends no more streams, and tok/s still grew."
    )
    single = LevelSearch(GOAL, max_agents=1, runs=1)
    walk(single, lambda level, _: 20.0 * level)
    assert (
        search_sentence(single.end)
        == "The search stopped at C = 1: one client sends no more streams."
    )


def test_a_budget_that_ends_after_the_knee_moved_is_what_ended_the_search():
    """The first run of four agents was too fast by a third; the second one shows that eight and
    sixteen are faster.
    """
    search = LevelSearch(GOAL, max_agents=4096)
    for level in (1, 2, 4, 8, 16):
        assert search.next_level() == level
        search.add_run(
            level, run_of(level, 110.0 if level == 4 else levels_off(min(level, 5))), limited=False
        )
    assert search.next_level() == 1
    assert (search.end.reason, search.end.beyond) == ("past the knee", 4)
    for level in (1, 2, 4):
        search.add_run(level, run_of(level, levels_off(min(level, 5))), limited=False)
        search.next_level()
    search.add_run(4, run_of(4, 60.0), limited=False)
    assert (search.ended().at, search.ended().reason) == (16, "budget")


def test_a_level_where_everything_fails_lies_past_the_knee():
    search = LevelSearch(GOAL, max_agents=4096, runs=1)
    order = walk(search, lambda level, _: run_of(level, 20.0 * level, failing=level > 2))
    assert order == [1, 2, 4, 8]
