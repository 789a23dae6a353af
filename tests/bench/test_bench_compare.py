"""Comparison of two runs: of rows made by hand, and of two live engines in turns."""

import asyncio

import pytest
from msgspec.structs import replace
from sample_rows import HOST, evenly, request

from skep.bench.compare import ComparedRun, compare, regressions, run_ab
from skep.bench.endpoint import find_endpoint
from skep.bench.summary import summarise
from skep.bench.sweep import SweepPlan
from skep.bench.tasks import TaskMaker, Workload
from skep.stats.versus import Judgement
from skep.store.database import open_store
from skep.store.records import ClientSample, RunState
from skep.testing.process import FakeEngine

STEADY = (1.0, 1.01, 0.99, 1.0)


def row(level, repeat, index, seconds, ttft_s=0.1, **fields):
    start = 100.0 * repeat
    arrivals = evenly(start + ttft_s, start + seconds, 11)
    return request(
        *arrivals, level=level, repeat=repeat, index=index, start=start, **{"tokens": 11, **fields}
    )


def side(runs=STEADY, level=4, *, failing=(), limited=(), **fields):
    """Return a run of a level with one request in each repeat, of so many seconds."""
    rows = [row(level, repeat, 0, seconds, **fields) for repeat, seconds in enumerate(runs)]
    rows = [replace(row, error_kind="http_500") if row.repeat in failing else row for row in rows]
    samples = [
        ClientSample(level, repeat, 1.0, 1.0, 0.1, repeat in limited)
        for repeat in range(len(rows))
    ]
    return ComparedRun(summarise("r", rows, samples), rows)


def judged(a, b, metric="effective tok/s", **how):
    (comparison,) = [candidate for candidate in compare(a, b, **how) if candidate.metric == metric]
    return comparison


# Verdicts


def test_the_same_twice_is_not_distinguishable():
    assert {comparison.judgement for comparison in compare(side(), side())} == {Judgement.SAME}


def test_half_the_time_is_better_and_twice_the_time_is_worse():
    quick = side()
    slow = side([2 * seconds for seconds in STEADY])
    assert judged(slow, quick).judgement is Judgement.BETTER
    worse = judged(quick, slow)
    assert (worse.judgement, worse.ratio.estimate) == (Judgement.WORSE, pytest.approx(0.5))
    assert worse.ratio.low < 0.5 < worse.ratio.high


def test_of_latencies_less_is_better():
    late = side(ttft_s=0.2)
    assert judged(side(), late, "TTFT p50").judgement is Judgement.WORSE
    assert judged(late, side(), "TTFT p95").judgement is Judgement.BETTER
    higher_is_better = {
        comparison.metric: comparison.higher_is_better for comparison in compare(side(), late)
    }
    assert [higher_is_better[name] for name in ("effective tok/s", "task tok/s", "TPOT p50")] == [
        True,
        True,
        False,
    ]


def test_noise_as_large_as_the_difference_is_no_verdict_unless_pairs_take_it_out():
    noisy = (1.0, 1.4, 0.8, 1.2)
    sides = side(noisy), side([1.1 * seconds for seconds in noisy])
    assert judged(*sides).judgement is Judgement.SAME
    comparison = judged(*sides, paired=True)
    assert (comparison.judgement, comparison.ratio.estimate) == (
        Judgement.WORSE,
        pytest.approx(1 / 1.1),
    )


def test_one_run_shows_no_spread_and_is_not_compared():
    comparison = judged(side([1.0]), side([2.0]))
    assert (comparison.judgement, comparison.ratio) == (Judgement.UNKNOWN, None)
    assert "two or more" in comparison.why
    assert (comparison.a, comparison.b) == (pytest.approx(11.0), pytest.approx(5.5))


def test_a_level_where_the_client_was_the_limit_is_not_ranked():
    comparison = judged(side(), side(limited=range(4)))
    assert (comparison.judgement, comparison.why) == (
        Judgement.UNKNOWN,
        "the client was the limit in B",
    )
    both = judged(side(limited=range(4)), side(limited=range(4)))
    assert both.why == "the client was the limit in A and B"
    # Left out where there are others.
    partly = judged(side(), side([9.0, *STEADY[1:]], limited=[0]))
    assert partly.judgement is Judgement.SAME


def test_only_common_levels_are_compared():
    assert compare(side(level=2), side(level=4)) == []
    rows = [*side(level=2).rows, *side(level=4).rows]
    assert {
        comparison.concurrency
        for comparison in compare(ComparedRun(summarise("r", rows), rows), side(level=4))
    } == {4}


@pytest.mark.parametrize("failing", [(2, 3), (0, 1, 2, 3)], ids=["half", "all"])
def test_runs_of_b_that_failed_altogether_are_not_forgotten(failing):
    """A build whose B has no answer in half of its runs must not pass: its speed is half of A's.

    Nor is a side the same that refuses every second request at once, with half of the tokens in
    half of the time.
    """
    comparisons = compare(side(), side(failing=failing))
    assert {comparison.judgement for comparison in comparisons} != {Judgement.SAME}
    if len(failing) == 4:
        assert regressions(side(), side(failing=failing), 0.05)
        assert "measure two or more" not in {comparison.why for comparison in comparisons}
    rows = side(level=1).rows
    rows = [
        *rows,
        *(replace(row, index=1, ended_s=row.started_s, error_kind="http_429") for row in rows),
    ]
    comparisons = compare(side(level=1), ComparedRun(summarise("r", rows), rows))
    assert {comparison.judgement for comparison in comparisons} != {Judgement.SAME}


# In turns


def in_turns(engines, path, **fields):
    work = Workload(max_tokens=fields.pop("max_tokens", 4), seed=5)
    plan = SweepPlan(
        **{"concurrency": (1, 2), "tasks": 3, "quick_warm_up": True, "workload": work, **fields}
    )
    order = []

    async def run(store):
        endpoints = [await find_endpoint(engine.url, None) for engine in engines]
        makers = (TaskMaker(work, salt="a"), TaskMaker(work, salt="b"))

        def show(name, progress):
            if progress.ended:
                order.append((name, progress.level, progress.repeat))

        return await run_ab(plan, tuple(endpoints), store, HOST, makers, show)

    with open_store(path) as store:
        result = asyncio.run(run(store))
        runs = [store.run(summary.run_id) for summary in (result.a.summary, result.b.summary)]
        rows = [store.requests(run.id) for run in runs]
    return result, order, runs, rows


@pytest.fixture(scope="module")
def three_turns(tmp_path_factory):
    """Two engines measured in turns, three runs of each level: what `in_turns` returns."""
    path = tmp_path_factory.mktemp("turns") / "s.sqlite3"
    with FakeEngine(slots=2) as engine_a, FakeEngine(slots=2, token_ms=4) as engine_b:
        measured = in_turns((engine_a, engine_b), path, runs=3)
        assert engine_a.state()["requests"] == engine_b.state()["requests"]
    return measured


@pytest.mark.slow
def test_levels_are_run_in_pairs_and_either_side_begins_some_of_them(three_turns):
    _, order, _, _ = three_turns
    assert order[:4] == [("A", 1, 0), ("B", 1, 0), ("B", 2, 0), ("A", 2, 0)]
    assert [name for name, _, _ in order].count("A") == 6
    assert all({order[n][0], order[n + 1][0]} == {"A", "B"} for n in range(0, 12, 2))
    assert {name for name, _, _ in order[::2]} == {"A", "B"}


@pytest.mark.slow
def test_both_sides_are_stored_runs_that_name_each_other(three_turns):
    _, _, runs, _ = three_turns
    assert [run.kind for run in runs] == ["ab", "ab"]
    assert [run.state for run in runs] == [RunState.DONE] * 2
    assert runs[0].config["side"] == "A"
    assert runs[0].config["against"] == runs[1].url


@pytest.mark.slow
def test_both_sides_are_asked_the_same_behind_first_lines_of_their_own(three_turns):
    _, _, _, sides = three_turns
    prompts_a, prompts_b = ([row.prompt for row in rows if row.level] for rows in sides)
    assert all(prompt.startswith("a ") for prompt in prompts_a)
    assert prompts_b == [f"b {prompt[2:]}" for prompt in prompts_a]
    assert len(set(prompts_a)) == len(prompts_a)


@pytest.mark.slow
def test_every_level_is_compared_and_the_slower_engine_is_not_better(three_turns):
    result, _, _, _ = three_turns
    assert {comparison.concurrency for comparison in result.comparisons} == {1, 2}
    speeds = [comparison for comparison in result.comparisons if comparison.metric == "TPOT p50"]
    assert Judgement.BETTER not in {speed.judgement for speed in speeds}


@pytest.mark.slow
def test_every_pair_has_one_run_of_each_and_three_pairs_are_the_fewest(tmp_path):
    with FakeEngine(slots=2) as fake_engine:
        _, order, _, _ = in_turns(
            (fake_engine, fake_engine),
            tmp_path / "s.sqlite3",
            concurrency=(1,),
            budget_s=0.001,
            most_runs=8,
        )
    assert len(order) == 6
    assert [repeat for _, _, repeat in order] == [0, 0, 1, 1, 2, 2]


def test_one_that_does_not_answer_ends_both_and_both_say_so(tmp_path):
    with FakeEngine(slots=2) as fake_engine, FakeEngine(slots=2) as failing:
        failing.fault(kind="500", times=None)
        with pytest.raises(Exception, match="answered no warm-up request"):
            in_turns((fake_engine, failing), tmp_path / "s.sqlite3", runs=2)
    with open_store(tmp_path / "s.sqlite3") as store:
        assert [run.state for run in store.runs()] == [RunState.FAILED] * 2
