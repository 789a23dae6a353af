"""The bench on engines that are real processes: in turns, with the same fresh tasks, failures told
at once.
"""

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from trial_presets import PLAIN, pids_of, preset_of, with_words

from commands import environment
from skep.host.facts import NvidiaReport, read_host
from skep.paths import user_paths
from skep.store.database import Store, open_store
from skep.store.records import Request, RunState
from skep.tuner.measure import EngineBench, MeasureTimeouts, reading_of
from skep.tuner.predictions import RUN_S, tasks_for
from skep.tuner.records import (
    BenchProgress,
    JudgeRequest,
    JudgeResult,
    MeasureRequest,
    ServerStart,
    TuneGoal,
)
from skep.tuner.trial_server import TrialServers

AIM = TuneGoal("effective_tok_s", 2, input_tokens=64, output_tokens=8, slo="ttft=10s")
QUICK = MeasureTimeouts(reading_s=0.0, hang_s=1.0)
FASTER = PLAIN.turned({"ms": 1.0})


@contextmanager
def bench_maker(env, folder):
    """Yield a function that makes benches; nothing of them runs afterwards."""
    paths = user_paths(env)
    with open_store(paths.store) as store:

        def make(aim=AIM, **options):
            trial_servers = TrialServers(paths, folder / "work")
            host = read_host(NvidiaReport())
            return EngineBench(
                trial_servers, store, host, "t-1", aim, 7, preset_of, timeouts=QUICK, **options
            )

        yield make
    assert not pids_of(str(folder / "work")), "something was left running"


@pytest.fixture
def bench(env, tmp_path):
    with bench_maker(env, tmp_path) as make:
        yield make


def measured(bench, configs, readings=2, events=None):
    request = MeasureRequest(tuple(configs), readings, "screen", "a trial")
    return asyncio.run(
        bench.measure(request, (lambda _: None) if events is None else events.append)
    )


def judged(bench, challenger=FASTER):
    return asyncio.run(bench.judge(JudgeRequest(PLAIN, challenger), lambda _: None))


def tasks_of(rows):
    return sorted(
        (row.repeat, row.index, row.prompt_tokens, row.output_tokens) for row in rows if row.level
    )


@dataclass(frozen=True)
class TwoRounds:
    store: Store
    first: tuple[ServerStart, ...]
    second: tuple[ServerStart, ...]
    events: list[BenchProgress]


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory):
    """Two rounds of both sides on one bench."""
    folder = tmp_path_factory.mktemp("two-rounds")
    events = []
    with bench_maker(environment(folder), folder) as make:
        engine_bench = make()
        first = measured(engine_bench, (PLAIN, FASTER), 2, events).starts
        second = measured(engine_bench, (PLAIN, FASTER), 1, events).starts
        yield TwoRounds(engine_bench.store, first, second, events)


def test_each_side_has_its_readings_within_the_limits(two_rounds):
    slow, fast = two_rounds.first
    assert [len(start.readings) for start in (slow, fast)] == [2, 2]
    assert all(
        reading.requests == 6 and not reading.failed and 0 < reading.over_limit < 1
        for reading in slow.readings
    )


def test_sides_are_measured_with_the_same_tasks(two_rounds):
    store = two_rounds.store
    slow, fast = (tasks_of(store.requests(start.run_id)) for start in two_rounds.first)
    assert slow == fast
    assert {tokens for *_, tokens in slow} == {AIM.output_tokens}


def test_every_start_is_a_stored_run(two_rounds):
    run = two_rounds.store.run(two_rounds.first[0].run_id)
    assert (run.kind, run.state, run.config["purpose"]) == ("tune", RunState.DONE, "screen")
    assert run.config["configuration"] == PLAIN.as_dict


def test_each_round_has_another_order_and_fresh_tasks(two_rounds):
    started = [event.config for event in two_rounds.events if event.activity == "starting"]
    assert started == [PLAIN, FASTER, FASTER, PLAIN]
    seeds = [
        two_rounds.store.run(start.run_id).config["workload"]["seed"]
        for start in (*two_rounds.first, *two_rounds.second)
    ]
    assert seeds[0] == seeds[1] != seeds[2], "another round has other prompts"


def test_one_that_is_measured_alone_gets_as_many_tasks_as_the_last_one(bench):
    """Readings of another length would be compared otherwise:
    at their ends fewer agents are busy.
    """
    engine_bench = bench()
    engine_bench.timeouts = replace(QUICK, reading_s=0.2)
    measured(engine_bench, (PLAIN,), 1)
    beside = measured(engine_bench, (PLAIN,), 1).starts[0]
    alone = measured(engine_bench, (FASTER,), 1).starts[0]
    assert beside.readings[0].requests > 6
    assert alone.readings[0].requests == beside.readings[0].requests


def test_a_side_that_dies_at_the_start_ends_the_round(bench):
    dead, sound = measured(
        bench(), (with_words("--crash-at-start", "error: no such flag"), PLAIN)
    ).starts
    assert dead.failure.kind == "no-start"
    assert dead.start_s > 0
    assert (sound.failure, sound.readings) == (None, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ({"kind": "crash", "times": None, "exit_code": 3}, "crash-under-load", "code 3"),
        ({"kind": "hang-mid", "times": None}, "hang", "no token came"),
        ({"kind": "close-mid", "times": None}, "errors-under-load", "failed"),
    ],
)
def test_one_that_fails_under_load_is_told_with_its_kind(bench, fault, kind, words):
    """The hive's own first generation has eight tokens and ends before these faults strike."""
    engine_bench = bench(aim=replace(AIM, output_tokens=24))
    sound, broken = measured(
        engine_bench, (PLAIN, with_words("--fault", json.dumps({**fault, "after_tokens": 12})))
    ).starts
    assert (sound.failure, broken.failure.kind) == (None, kind)
    assert words in str(broken.failure)
    assert engine_bench.store.run(broken.run_id).state is RunState.FAILED


class Sheets:
    """A guard that notes where it was asked."""

    def __init__(self):
        self.sheets = {}

    def known(self, config):
        return self.sheets.get(config)

    async def answers(self, served, config, _on_progress):
        self.sheets[config] = served.url
        return served.url

    def compare(self, incumbent, challenger):
        return JudgeResult(ok=incumbent != challenger, words="asked", seconds=0.0)


@pytest.mark.slow
def test_the_guard_asks_each_configuration_where_it_is_served_and_once(bench):
    """Without a guard nothing is judged."""
    unguarded = judged(bench())
    assert (unguarded.ok, unguarded.skipped) == (True, True)
    guard = Sheets()
    engine_bench = bench(guard=guard)
    first = judged(engine_bench)
    urls = dict(guard.sheets)
    assert first.ok
    assert first.seconds > 0
    judged(engine_bench)
    assert guard.sheets == urls
    bad = judged(engine_bench, PLAIN.turned({"slots": 0}))
    assert (bad.ok, bad.skipped) == (False, False)


def answered(index, first_s, last_s, tokens):
    steps = tuple(first_s + (last_s - first_s) * n / (tokens - 1) for n in range(tokens))
    times = {"started_s": 0.0, "first_token_s": first_s, "last_token_s": last_s, "ended_s": last_s}
    return Request(2, 0, index, "fix", **times, output_tokens=tokens, arrivals_s=steps)


def test_the_metric_of_the_aim_is_the_figure():
    rows = [answered(0, 0.5, 2.5, 24), answered(1, 0.5, 4.5, 24)]
    assert reading_of(rows, AIM).figure == 48 / 4.5
    assert reading_of(rows, replace(AIM, metric="task_tok_s")).figure == (24 / 2 + 24 / 4) / 2
    assert not reading_of(rows, AIM, limited=True).counts


@pytest.mark.parametrize(
    ("concurrency", "rates", "count"),
    [
        (1, [], 6),
        (4, [], 12),
        (4, [5.0], 48),
        (4, [1e9], 768),
        (4, [0.2], 8),  # three of each would take a minute
        (8, [0.2], 8),  # even two of each would take 80 s
        (4, [0.5, 50.0], 12),  # more would keep the slower one for a minute
        (4, [2.0, 5.0], 48),
        (2, [0.0], 6),
    ],
)
def test_readings_are_long_enough_for_the_fastest_and_not_too_long_for_the_slowest(
    concurrency, rates, count
):
    assert tasks_for(concurrency, rates, RUN_S) == count
