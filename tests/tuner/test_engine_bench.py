"""The bench on engines that are real processes: in turns, with the same fresh tasks, failures told
at once.
"""

import asyncio
import json

import pytest
from msgspec.structs import replace
from trial_presets import PLAIN, pids_of, preset_of, with_words

from skep.host.facts import NvidiaReport, read_host
from skep.paths import user_paths
from skep.store.database import open_store
from skep.store.records import Request, RunState
from skep.tuner.measure import EngineBench, MeasureTimeouts, reading_of
from skep.tuner.predictions import RUN_S, tasks_for
from skep.tuner.records import JudgeRequest, JudgeResult, MeasureRequest, TuneGoal
from skep.tuner.trial_server import TrialServers

AIM = TuneGoal("effective_tok_s", 2, input_tokens=64, output_tokens=8, slo="ttft=10s")
QUICK = MeasureTimeouts(reading_s=0.0, hang_s=1.0)
FASTER = PLAIN.turned({"ms": 1.0})


@pytest.fixture
def bench(env, tmp_path):
    """Makes benches; nothing of them runs afterwards."""
    paths = user_paths(env)
    with open_store(paths.store) as store:

        def make(aim=AIM, **more):
            trial_servers = TrialServers(paths, tmp_path / "work")
            host = read_host(NvidiaReport())
            return EngineBench(
                trial_servers, store, host, "t-1", aim, 7, preset_of, timeouts=QUICK, **more
            )

        yield make
    assert not pids_of(str(tmp_path / "work")), "something was left running"


def measured(bench, configs, readings=2, seen=None):
    request = MeasureRequest(tuple(configs), readings, "screen", "a trial")
    return asyncio.run(bench.measure(request, (lambda _: None) if seen is None else seen.append))


def judged(bench, challenger=FASTER):
    return asyncio.run(bench.judge(JudgeRequest(PLAIN, challenger), lambda _: None))


def tasks_of(rows):
    return sorted(
        (row.repeat, row.index, row.prompt_tokens, row.output_tokens) for row in rows if row.level
    )


def test_sides_are_measured_with_the_same_fresh_tasks_in_another_order_each_round(bench):
    made = bench()
    seen = []
    found = measured(made, (PLAIN, FASTER), 2, seen)
    slow, fast = found.starts
    assert [len(one.readings) for one in (slow, fast)] == [2, 2]
    assert all(
        reading.requests == 6 and not reading.failed and 0 < reading.over_limit < 1
        for reading in slow.readings
    )
    tasks = [tasks_of(made.store.requests(one.run_id)) for one in (slow, fast)]
    assert tasks[0] == tasks[1]
    assert {tokens for *_, tokens in tasks[0]} == {AIM.output_tokens}
    run = made.store.run(slow.run_id)
    assert (run.kind, run.state, run.config["purpose"]) == ("tune", RunState.DONE, "screen")
    assert run.config["configuration"] == PLAIN.as_dict
    again = measured(made, (PLAIN, FASTER), 1, seen)
    assert [one.config for one in seen if one.activity == "starting"] == [
        PLAIN,
        FASTER,
        FASTER,
        PLAIN,
    ]
    seeds = [
        made.store.run(start.run_id).config["workload"]["seed"]
        for start in (slow, fast, *again.starts)
    ]
    assert seeds[0] == seeds[1] != seeds[2], "another round has other prompts"


def test_one_that_is_measured_alone_gets_as_many_tasks_as_the_last_one(bench):
    """Readings of another length would be compared otherwise:
    at their ends fewer agents are busy.
    """
    made = bench()
    made.timeouts = replace(QUICK, reading_s=0.2)
    measured(made, (PLAIN,), 1)
    beside = measured(made, (PLAIN,), 1).starts[0]
    alone = measured(made, (FASTER,), 1).starts[0]
    assert beside.readings[0].requests > 6
    assert alone.readings[0].requests == beside.readings[0].requests


def test_a_side_that_dies_at_the_start_ends_the_round(bench):
    dead, other = measured(
        bench(), (with_words("--crash-at-start", "error: no such flag"), PLAIN)
    ).starts
    assert dead.failure.kind == "no-start"
    assert dead.start_s > 0
    assert (other.failure, other.readings) == (None, ())


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
    made = bench(aim=replace(AIM, output_tokens=24))
    sound, broken = measured(
        made, (PLAIN, with_words("--fault", json.dumps({**fault, "after_tokens": 12})))
    ).starts
    assert (sound.failure, broken.failure.kind) == (None, kind)
    assert words in str(broken.failure)
    assert made.store.run(broken.run_id).state is RunState.FAILED


class Sheets:
    """A guard that notes where it was asked."""

    def __init__(self):
        self.kept = {}

    def known(self, config):
        return self.kept.get(config)

    async def answers(self, served, config, _on_progress):
        self.kept[config] = served.url
        return served.url

    def compare(self, incumbent, challenger):
        return JudgeResult(ok=incumbent != challenger, words="asked", seconds=0.0)


@pytest.mark.slow
def test_the_guard_asks_each_configuration_where_it_is_served_and_once(bench):
    """Without a guard nothing is judged."""
    unguarded = judged(bench())
    assert (unguarded.ok, unguarded.skipped) == (True, True)
    guard = Sheets()
    made = bench(guard=guard)
    first = judged(made)
    urls = dict(guard.kept)
    assert first.ok
    assert first.seconds > 0
    judged(made)
    assert guard.kept == urls
    bad = judged(made, PLAIN.turned({"slots": 0}))
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
