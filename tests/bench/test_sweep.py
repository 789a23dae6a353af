"""Sweeps against the fake engine: known truth, odd streams, faults."""

import asyncio
import random

import pytest
from sample_rows import HOST

from skep.bench.endpoint import find_endpoint
from skep.bench.sweep import SweepPlan, run_fingerprint, run_sweep
from skep.bench.tasks import Workload
from skep.errors import EndpointError
from skep.store.database import open_store
from skep.store.records import RunState
from skep.testing.process import FakeEngine

WORK = {"max_tokens": 8, "seed": 3}


def plan_of(**fields):
    """Return a plan, with fields of the plan or of its workload."""
    names = set(Workload.__struct_fields__)
    work = Workload(**WORK | {name: value for name, value in fields.items() if name in names})
    rest = {name: value for name, value in fields.items() if name not in names}
    return SweepPlan(
        **{
            "concurrency": (1, 2),
            "tasks": 5,
            "runs": 2,
            "quick_warm_up": True,
            "workload": work,
            **rest,
        }
    )


def sweep(engine, store, progress=lambda _: None, **fields):
    async def run():
        return await run_sweep(
            plan_of(**fields), await find_endpoint(engine.url, None), store, HOST, progress
        )

    return asyncio.run(run())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A sweep of C=1 and C=2: its summary, its stored run and its rows.

    Truth: 40 ms to the first token, 10 ms a token, never less.
    """
    path = tmp_path_factory.mktemp("sweep") / "s.sqlite3"
    with FakeEngine(slots=2, ttft_ms=40, token_ms=10) as paced, open_store(path) as store:
        summary = sweep(paced, store)
        return summary, store.run(summary.run_id), store.requests(summary.run_id)


def test_a_sweep_stores_every_request_and_its_warm_up_as_level_0(measured):
    _, run, rows = measured
    assert run.state is RunState.DONE
    # The warm-up is one request alone, then as many as the highest level has.
    assert len(rows) == 1 + 2 + 2 * 2 * 5
    assert len({row.prompt for row in rows}) == len(rows)


def test_every_row_of_a_sweep_has_tokens_kind_and_times_in_their_order(measured):
    _, _, rows = measured
    level_rows = [row for row in rows if row.level]
    assert {row.output_tokens for row in level_rows} == {8}
    assert {row.kind for row in level_rows} == {"implement", "test", "fix", "refactor", "document"}
    assert all(row.engine.decode_tok_s and row.arrivals_s for row in level_rows)
    times = [
        (row.started_s, row.first_byte_s, row.first_token_s, row.last_token_s, row.ended_s)
        for row in level_rows
    ]
    assert all(list(moments) == sorted(moments) for moments in times)


def test_a_sweep_measures_what_the_engine_does(measured):
    """The engine's own clock sees the same busy machine."""
    summary, _, _ = measured
    serial, pair = summary.levels
    assert serial.failed == pair.failed == 0
    assert serial.ttft_ms.p50 >= 40
    assert serial.tpot_ms.p50 >= 8  # a first token that is late on a busy machine shortens it
    assert 1000 / serial.tpot_ms.p50 == pytest.approx(serial.engine_tok_s, rel=0.2)
    assert serial.task_tok_s == pytest.approx(1000 / serial.tpot_ms.p50 * 8 / 7, rel=0.1)


def test_the_speedup_of_a_sweep_is_the_ratio_of_its_wall_times(measured):
    summary, _, _ = measured
    # Only runs whose client was not the limit count, so there may be none.
    if (speedups := summary.speedups) is not None:
        assert speedups.by_wall == pytest.approx(speedups.serial_wall_s / speedups.swarm_wall_s)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("500", "http_500"),
        ("503", "http_503"),
        ("429", "http_429"),
        ("garbage", "protocol"),
        ("html", "garbage"),
        ("invalid-json", "garbage"),
        ("close-first", "closed"),
        ("close-mid", "cut"),
        ("hang-first", "timeout"),
        ("hang-mid", "timeout"),
    ],
)
def test_faults_are_counted_by_kind_and_never_as_tokens(engine, store, fault, kind):
    calls = []

    def after_warm_up(progress):
        if progress.level and not calls:
            calls.append(engine.fault(kind=fault, times=None, after_tokens=3))

    summary = sweep(engine, store, after_warm_up, concurrency=(1,), tasks=2, runs=1, timeout_s=0.3)
    engine.fault(kind="none")
    (level,) = summary.levels
    rows = [row for row in store.requests(summary.run_id) if row.level]
    assert {row.error_kind for row in rows} == {kind}
    assert (level.failed, level.output_tokens, level.effective_tok_s) == (2, 0, None)
    assert all(row.error for row in rows)


def test_an_answer_without_usage_is_a_failure_and_not_a_guess(store):
    with (
        FakeEngine(slots=2, token_ms=2, no_usage=True) as engine,
        pytest.raises(EndpointError, match="usage"),
    ):
        sweep(engine, store)
    assert store.run("last").state is RunState.FAILED


def test_the_same_seed_asks_the_same_questions(engine, store):
    """Repeats have one fingerprint and other workloads another; prompts and answers can be left
    unstored.
    """
    seed = random.SystemRandom().randrange(1000)
    print("seed", seed)
    runs = [sweep(engine, store, seed=seed, concurrency=(2,), runs=1).run_id for _ in range(2)]
    first, second = ({row.prompt for row in store.requests(run)} for run in runs)
    assert first == second
    bare = sweep(engine, store, seed=seed, concurrency=(2,), runs=1, keep_text=False).run_id
    assert {(row.prompt, row.answer) for row in store.requests(bare)} == {(None, None)}
    endpoint = asyncio.run(find_endpoint(engine.url, None))
    plans = (plan_of(seed=1), plan_of(seed=2), plan_of(tasks=3))
    fingerprint, other_seed, other_tasks = (
        run_fingerprint(plan, endpoint, HOST) for plan in plans
    )
    assert fingerprint == other_seed != other_tasks


def test_the_url_may_have_v1_or_not_and_the_only_model_need_not_be_named(engine):
    for url in (
        engine.url,
        f"{engine.url}/",
        f"{engine.url}/v1",
        engine.url.removeprefix("http://"),
    ):
        endpoint = asyncio.run(find_endpoint(url, None))
        assert (endpoint.base, endpoint.model) == ("/v1", "fake-model")
