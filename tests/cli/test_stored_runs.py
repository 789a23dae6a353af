"""Stored runs, swarms and tunings, made by hand: `skep runs`, `report`, `store`, `gc`, `bench
compare` and `export`.
"""

import csv
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from in_process import call, refused

from sample_tuning import BASELINE, sample_tuning
from skep.monitor.records import Heat, Probe, ProbeOutcome, ProbeSample, ProbeShape
from skep.monitor.store import SeriesStore
from skep.store.database import open_store
from skep.store.records import ClientSample, LevelFact, Request
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.swarm.records import Task
from skep.swarm.store import SwarmStore
from skep.tuner.records import StageDecision, TuneStage
from skep.tuner.store import TuningStore
from skep.workload.items import Checker, Item

VERSION_1 = Path(__file__).parent.parent / "store" / "versions" / "1.sql"
DAY_S = 86400
OLD = ("gc", "--older-than", "90d")
STEADY = (1.0, 1.01, 0.99, 1.0)
WORK = {
    "shape": "steady",
    "size": "short",
    "prompt_tokens": None,
    "max_tokens": 128,
    "fixed_output": False,
}


def begin(store, kind, config, at, model="m"):
    about = {
        "url": "http://127.0.0.1:1/v1",
        "fingerprint": str(config),
        "host": {},
        "engine": {},
        "skep_version": "0",
    }
    return store.begin_run(
        kind=kind, created_at=at, model=model, config=config, simulated=False, **about
    )


@pytest.fixture
def stored(paths):
    """Stores a run: seconds of one request a run of each level. Later calls are newer runs."""
    moments = count(1_000_000_000)

    def keep(levels=None, *, kind="sweep", limited=(), broken_off=(), end=("done",), **work):
        with open_store(paths.store) as store:
            at = float(next(moments))
            run = begin(store, kind, {"concurrency": [1, 2], "workload": {**WORK, **work}}, at)
            for level, walls in (levels or {1: STEADY, 2: STEADY}).items():
                store.append_requests(
                    run, [timed_row(level, repeat, wall) for repeat, wall in enumerate(walls)]
                )
                for repeat in range(0 if level in broken_off else len(walls)):
                    slow = (level, repeat) in limited
                    lag_ms = 50.8 if slow else 1.0
                    store.append_client_sample(
                        run, ClientSample(level, repeat, lag_ms, lag_ms, 0.1, slow)
                    )
            store.end_run(run, at + 1, *end)
        return run

    return keep


def timed_row(level, repeat, seconds):
    start = 100.0 * repeat
    steps = tuple(start + 0.1 + (seconds - 0.1) * n / 10 for n in range(11))
    times = {"first_token_s": steps[0], "last_token_s": steps[-1], "arrivals_s": steps}
    return Request(
        level,
        repeat,
        0,
        "fix",
        start,
        start + seconds,
        output_tokens=11,
        finish_reason="stop",
        **times,
    )


def compare(*words, check):
    return call("bench", "compare", *words, check=check)


def slower(by, walls=STEADY):
    return tuple(by * seconds for seconds in walls)


def test_a_comparison_ends_with_its_verdict_and_a_report_of_both_judges_each_figure(
    stored, tmp_path
):
    a = stored()
    b = stored()
    much_better = stored({1: slower(0.5), 2: STEADY})
    assert (
        compare(a, b, check=0).out.rstrip().splitlines()[-1] == "no regression beyond 5 % is shown"
    )
    call("report", a, b, "-o", "both.html", check=0)
    assert "not distinguishable" in (tmp_path / "both.html").read_text()
    comparisons = [
        compare(a, run, "--json", check=0).json["comparisons"] for run in (a, much_better)
    ]
    assert {comparison["judgement"] for comparison in comparisons[0]} == {"not distinguishable"}
    assert "better" in {comparison["judgement"] for comparison in comparisons[1]}


@pytest.fixture
def twice_as_slow(stored):
    """A run, and one that is half as fast at its second level."""
    return stored(), stored({1: STEADY, 2: slower(2)})


def test_a_comparison_has_a_column_for_each_ratio(twice_as_slow):
    head = compare(*twice_as_slow, check=4).out.splitlines()[0]
    assert head.split()[:3] == ["C", "A", "tok/s"]
    for words in ("tok/s B/A", "TTFT p50 B/A", "TTFT p95 B/A", "TPOT p50 B/A"):
        assert words in head


def test_a_comparison_has_a_row_for_each_level_with_a_mark_for_each_figure(twice_as_slow):
    _, level_1, level_2, _ = compare(*twice_as_slow, check=4).out.rstrip().splitlines()
    assert (level_1.split()[0], level_1.count(" = ") + level_1.endswith(" =")) == ("1", 4)
    assert level_2.split()[0] == "2"
    assert "0.50 (0.49..0.51) worse" in level_2


def test_the_table_of_a_comparison_fits_120_columns(twice_as_slow):
    *table, _ = compare(*twice_as_slow, check=4).out.rstrip().splitlines()
    assert max(map(len, table)) <= 120


def test_a_regression_is_the_last_word_and_ends_with_exit_code_4(twice_as_slow):
    *_, last = compare(*twice_as_slow, check=4).out.rstrip().splitlines()
    assert last.startswith(
        "REGRESSION: B is worse than A by more than 5 %: effective tok/s at C=2 (50.0 % worse), "
    )


def test_a_regression_as_json_has_the_verdict_in_words_and_every_comparison(twice_as_slow):
    last = compare(*twice_as_slow, check=4).out.rstrip().splitlines()[-1]
    document = compare(*twice_as_slow, "--json", check=4).json
    assert (document["verdict"], document["verdict_in_words"]) == ("regression", last)
    assert document["regressions"] >= 2
    assert len(document["comparisons"]) == 2 * 6


def test_what_is_worse_by_chance_alone_is_no_regression(stored):
    """Worse by itself at 95 %: among twelve figures that is expected by chance."""
    a = stored({4: (1.0, 1.02, 0.98, 1.0)})
    b = stored({4: (1.055, 1.075, 1.02, 1.06)})
    done = compare(a, b, "--threshold", "1%", check=0)
    assert "worse" in done.out
    assert "effective tok/s at C=4 is 5." in done.err
    assert "no regression, which is more than 1 %, at 95 % over all 6 figures" in done.err
    assert done.out.rstrip().endswith("no regression beyond 1 % is shown")


def test_what_is_worse_by_less_than_the_threshold_is_no_regression(stored):
    done = compare(stored({4: STEADY}), stored({4: slower(1.2)}), "--threshold", "50%", check=0)
    assert (
        "effective tok/s at C=4 is 16.7 % worse: no regression, which is more than 50 %"
        in done.err
    )


@pytest.fixture
def single_runs(stored):
    """Two runs that have one run of each level."""
    return stored({1: (1.0,), 2: (1.0,)}), stored({1: (2.0,), 2: (2.0,)})


def test_where_no_figure_can_be_compared_there_is_no_verdict(single_runs):
    done = compare(*single_runs, check=0)
    assert done.out.rstrip().endswith("no verdict: no figure of the two runs can be compared")
    assert compare(*single_runs, "--json", check=0).json["verdict"] == "not comparable"


def test_levels_without_a_spread_are_named_once_together(single_runs):
    done = compare(*single_runs, check=0)
    assert done.err.count("shows no spread") == 1
    assert "C=1 and C=2 not compared: one run of a level shows no spread" in done.err


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ({"max_tokens": 64}, "max_tokens 128 and 64"),
        ({"prompt_tokens": 400}, "prompt_tokens not set and 400"),
        ({"size": "long"}, "size short and long"),
        ({"fixed_output": True}, "fixed_output off and on"),
        ({"shape": "prefill"}, "shape steady and prefill"),
        (
            {"max_tokens": 64, "prompt_tokens": 400},
            "prompt_tokens not set and 400, max_tokens 128 and 64",
        ),
    ],
)
def test_runs_of_other_lengths_are_refused_with_both_values(stored, work, words):
    a = stored()
    b = stored(**work)
    message = refused("bench", "compare", a, b)
    assert f"the lengths differ: {words}" in message
    assert "--anyway" in message
    assert "these settings differ: " in compare(a, b, "--anyway", check=0).err


def test_without_names_the_last_two_runs_of_one_kind_are_compared(
    stored,
):
    first = stored()
    assert "there is no other sweep" in refused("bench", "compare")
    assert "there is no run `last~7`" in refused("bench", "compare", "last~7", "last")
    second = stored()
    assert "could be" in refused("bench", "compare", "2001", "last")
    stored(kind="ab")
    third = stored()
    for words, pair in (
        ((), (second, third)),
        ((first,), (first, third)),
        (("last~2", "last"), (second, third)),
    ):
        document = compare(*words, "--json", check=0).json
        assert (document["a"], document["b"]) == pair
    # Not in lengths.
    assert (
        "these settings differ: workload.shape steady and burst"
        in compare(first, stored(shape="burst"), check=0).err
    )


def test_an_export_says_the_same_in_every_format_also_to_a_reader_that_leaves(stored, tmp_path):
    run = stored()
    levels = call("bench", "export", run, "--format", "json", check=0).json["levels"]
    rows = [
        *csv.DictReader(call("bench", "export", run, "--format", "csv", check=0).out.splitlines())
    ]
    table = call("bench", "export", run, check=0).out
    for level, row in zip(levels, rows, strict=True):
        assert float(row["effective_tok_s"]) == pytest.approx(level["effective_tok_s"], rel=1e-3)
        assert f"| {level['concurrency']} | {level['effective_tok_s']:.1f} " in table
    call("bench", "export", run, "--requests", "--format", "csv", "-o", "rows.csv", check=0)
    csv_rows = [*csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())]
    assert len(csv_rows) == sum(level["requests"] for level in levels) == 8
    words = f"{sys.executable} -m skep runs export {stored()} --requests --format json | head -1"
    done = subprocess.run(["bash", "-c", words], env=os.environ, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_results_of_another_tool_in_an_old_store_are_listed_without_figures(paths):
    """An older version stored them. They are not taken for something that skep measured."""
    with open_store(paths.store) as store:
        run = begin(store, "imported", {}, 1.0)
        store.append_requests(
            run, [Request(4, 0, 0, "imported", 0.0, 1.0, first_token_s=0.5, output_tokens=9)]
        )
        store.end_run(run, 2.0, "done")
    assert run in call("runs", check=0).out
    assert f"run `{run}` has no measured requests" in refused("report", run)


def test_without_runs_the_lists_say_how_to_make_one_and_nothing_is_counted(paths):
    assert call("runs", "--json", check=0).json == []
    assert "skep bench sweep" in call("runs", check=0).err
    assert "skep bench sweep" in refused("report")
    assert (
        told("store", "info")["gateway_requests"]
        == told("gc", "--older-than", "0s")["gateway_requests"]
        == 0
    )
    assert not paths.store.exists()


def test_a_report_is_not_written_into_nowhere(stored, tmp_path):
    stored()
    for target in ("no/such/folder.html", "."):
        assert f"`{target}`" in refused("report", "-o", target)
    assert "`zzz`" in refused("report", "zzz")
    assert not list(tmp_path.glob(".*"))


def test_the_store_can_be_copied_sized_and_cleared(stored, tmp_path):
    stored()
    info = call("store", "info", "--json", check=0).json
    assert info["runs"] == 1
    call("store", "backup", "copy.sqlite3", check=0)
    assert "copy.sqlite3" in call("store", "backup", "copy.sqlite3").error.message
    assert call("gc", "--older-than", "0s", "--dry-run", "--json", check=0).json["runs"]
    assert len(call("runs", "--json").json) == 1
    call("gc", "--older-than", "0s", check=0)
    assert call("runs", "--json").json == []
    with closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as database:
        assert database.execute("SELECT count(*) FROM requests").fetchone() == (info["requests"],)


def test_a_level_that_was_broken_off_is_not_compared(stored):
    """3 tasks in turn against 1 of 3 at once made a speedup of 18 that was none."""
    run = stored({1: STEADY, 2: STEADY[:1]}, broken_off=[2], end=("failed", "interrupted"))
    exported = call("bench", "export", run, "--format", "json", check=0).json
    assert [level["concurrency"] for level in exported["levels"]] == [1]
    assert exported["speedups"] is None


@pytest.fixture
def limited_run(stored):
    """A run with two runs of each level, one of which the client has slowed down.

    Two runs of C=2 were narrated, the table had one of them: the slower one was gone without a
    word.
    """
    return stored({1: STEADY[:2], 2: STEADY[:2]}, limited={(2, 1)})


def test_a_run_that_is_left_out_is_exported_with_the_reason(limited_run):
    levels = call("bench", "export", limited_run, "--format", "json", check=0).json["levels"]
    counted, left_out = levels[1]["repeats"]
    assert (counted["client_limited"], counted["counted"]) == (False, True)
    assert (left_out["client_limited"], left_out["counted"]) == (True, False)
    assert left_out["why"] == "event loop lag 51 ms"


def test_a_run_that_is_left_out_is_told_below_the_table(limited_run):
    table = call("bench", "export", limited_run, check=0).out
    assert "| 1 of 2 |" in table
    assert "left out: C=2 run 2, " in table


def test_a_level_of_two_runs_has_no_interval(limited_run):
    """Least of all one that begins below zero."""
    assert " (2 runs) |" in call("bench", "export", limited_run, check=0).out


def test_a_run_that_is_left_out_is_told_in_the_report(limited_run, tmp_path):
    call("report", limited_run, "-o", "left-out.html", check=0)
    assert "left out: C=2 run 2, " in (tmp_path / "left-out.html").read_text()


ITEMS = [
    Item(f"d/{i}", ({"role": "user", "content": "?"},), Checker("exact", {"answer": "1"}))
    for i in range(40)
]
PASSES = ((1, 0, "base"), (1, 1, "again"), (4, 0, "load"))


def judged_row(level, repeat, index, kind, traffic, at, **fields):
    times = {"first_token_s": at + 0.1, "last_token_s": at + 0.9, "output_tokens": 20}
    return Request(
        level, repeat, index, kind, at, at + 1.0, traffic=traffic, answer="1", **times, **fields
    )


def quality_run(store, at):
    config = {"bank": "drills:1", "delta": 0.03, "concurrency": [1, 4]}
    run_id = begin(store, "quality", config, at)
    store.append_items(run_id, ITEMS)
    rows = [
        judged_row(level, repeat, i, item.id, traffic, 100.0 * n + i)
        for n, (level, repeat, traffic) in enumerate(PASSES)
        for i, item in enumerate(ITEMS)
    ]
    store.append_requests(run_id, rows)
    outcomes = (VerdictOutcome.WRONG, VerdictOutcome.PASSED)
    verdicts = [
        Verdict(row.level, row.repeat, row.index, row.kind, outcomes[row.index % 2])
        for row in rows
    ]
    store.append_verdicts(run_id, verdicts)
    facts = [
        LevelFact(level, repeat, "whole_block", {"begin": 0, "end": len(ITEMS)})
        for level, repeat, _ in PASSES
    ]
    facts += [
        LevelFact(level, repeat, "paired_with", {"level": 1, "repeat": 0})
        for level, repeat, _ in PASSES[1:]
    ]
    store.append_level_facts(run_id, facts)
    store.end_run(run_id, at + 1, "done")
    return run_id


def mixed_run(store, at, model="m"):
    run_id = begin(
        store, "mixed", {"form": "published", "repeats": 1, "concurrency": [1, 2]}, at, model
    )
    rows = [
        judged_row(
            level, 0, turn, f"P1.{turn + 1}", "primary", 10.0 * level + turn, session=0, turn=turn
        )
        for level in (1, 2)
        for turn in range(3)
    ]
    rows.append(judged_row(2, 0, 1000, "S1", "side", 20.0))
    store.append_requests(run_id, rows)
    store.append_verdicts(
        run_id,
        [Verdict(row.level, 0, row.index, row.kind, VerdictOutcome.PASSED) for row in rows],
    )
    store.end_run(run_id, at + 1, "done")
    return run_id


@pytest.fixture
def judged(paths):
    with open_store(paths.store) as store:
        runs = {
            "quality": quality_run(store, 1e9),
            "mixed": mixed_run(store, 1.1e9, "one"),
            "other": mixed_run(store, 1.2e9, "two"),
            "empty": begin(store, "mixed", {"form": "published"}, 1.3e9),
            "sweep": begin(store, "sweep", {"concurrency": [1]}, 1.4e9),
        }
        store.append_requests(runs["sweep"], [judged_row(1, 0, 0, "fix", "", 0.0)])
        for name in ("empty", "sweep"):
            store.end_run(runs[name], 1.5e9, "done")
    return runs


def test_the_page_of_forty_items_claims_nothing(judged, tmp_path):
    """Forty items cannot exclude a loss of three points."""
    call("report", judged["quality"], "-o", "q.html", check=0)
    assert "othing can be claimed: C=4 is not shown" in (tmp_path / "q.html").read_text()


def test_the_page_of_a_mixed_run_counts_passed_tasks(judged, tmp_path):
    call("report", judged["mixed"], "-o", "one.html", check=0)
    assert "passed tasks a minute" in (tmp_path / "one.html").read_text()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("mixed", "sweep"), "is a mixed run"),
        (("sweep", "quality"), "is a quality run"),
        (("empty",), "no measured requests"),
    ],
)
def test_runs_that_have_no_page_are_refused(judged, names, words):
    assert words in refused("report", *(judged[name] for name in names))


def test_judged_runs_are_listed_with_their_kind(judged):
    lines = call("runs", check=0).out
    assert all(run_id in lines for run_id in judged.values())
    assert "quality" in lines


@pytest.mark.parametrize("kind", ["mixed", "quality"])
def test_requests_of_a_judged_run_are_exported_with_their_verdicts(judged, kind):
    rows = call("bench", "export", judged[kind], "--format", "csv", "--requests", check=0).out
    assert rows.splitlines()[0].endswith("item,outcome,detail,checker")
    assert "passed" in rows


def test_a_judged_run_is_not_compared_with_a_sweep(judged):
    message = refused("bench", "compare", judged["mixed"], judged["sweep"])
    assert "compare runs of one kind" in message


@pytest.mark.parametrize(
    ("command", "names"), [("export", ["quality"]), ("compare", ["quality", "mixed"])]
)
def test_no_speed_is_made_of_the_walls_of_judged_runs(judged, command, names):
    """Their walls span what other arms and tasks did meanwhile: a tok/s made of them was off by a
    factor of seven.
    """
    message = refused("bench", command, *(judged[name] for name in names))
    assert "measures answers, not speed" in message


def told(*words):
    return call(*words, "--json", check=0).json


def request(name, age_s):
    of_no_session = [None] * 8
    return (
        name,
        time.time() - age_s,
        "/v1/models",
        None,
        "normal",
        None,
        None,
        0,
        "refused",
        503,
        "loading",
        False,
        None,
        None,
        0.01,
        None,
        None,
        None,
        0,
        200,
        *of_no_session,
    )


def test_old_gateway_requests_and_probe_samples_are_counted_told_and_deleted(paths):
    with open_store(paths.store) as store:
        store.append_gateway_values(
            [request(name, age * DAY_S) for name, age in (("a", 100), ("b", 200), ("new", 1))]
        )
        for age in (100, 1):
            at = time.time() - age * DAY_S
            sample = ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 1, tok_s=50.0)
            SeriesStore(store).append_probe(
                Probe("box", 0, int(at), at, at, ProbeOutcome.DONE), [sample]
            )
    assert told("store", "info")["gateway_requests"] == 3
    assert "3 gateway requests" in call("store", "info", check=0).out
    assert told("gc")["gateway_requests"] == 0  # no age: they are left alone
    dry = call(*OLD, "--dry-run", check=0)
    assert "would delete 0 runs, 2 gateway requests and 1 probe samples" in dry.err
    assert told(*OLD, "--dry-run")["gateway_requests"] == 2
    done = told(*OLD)
    assert (done["gateway_requests"], done["samples"], done["runs"], done["dry_run"]) == (
        2,
        1,
        [],
        False,
    )
    with open_store(paths.store, read_only=True) as store:
        assert [gateway_request.id for gateway_request in store.gateway_requests()] == ["new"]


def test_commands_that_only_read_open_a_store_of_the_version_before(paths):
    """They come first after an upgrade, and told their users to run themselves."""
    paths.store.parent.mkdir(parents=True)
    with closing(sqlite3.connect(paths.store)) as database:
        database.executescript(VERSION_1.read_text())
    assert [run["id"] for run in told("runs")] == ["20261115-142233-a1b2c3"]
    assert told("store", "info")["runs"] == 1


def begin_swarm(swarm, age_days):
    tasks = [Task(name, ({"role": "user", "content": name},)) for name in ("a", "b")]
    about = {
        "kind": "map",
        "name": "x",
        "url": "u",
        "model": None,
        "config": {},
        "skep_version": "0",
    }
    return swarm.begin(created_at=time.time() - age_days * DAY_S, tasks=tasks, **about)


@pytest.fixture
def aged(paths):
    """Swarm runs and tunings: an old one, an old one that was resumed of late, and a new one."""
    with open_store(paths.store) as store:
        swarm = SwarmStore(store)
        tunings = TuningStore(store)
        now = time.time()
        swarm_runs = [begin_swarm(swarm, days) for days in (100, 99, 1)]
        session = swarm.open_session(
            swarm_runs[1], at=now, agents=None, endpoint={}, simulated=False
        )
        swarm.close_session(swarm_runs[1], session, at=now, outcome="stopped")
        tuning_ids = [
            tunings.begin(sample_tuning(created_at=now - days * DAY_S)) for days in (100, 99, 1)
        ]
        session = tunings.begin_session(tuning_ids[1], now)
        tunings.append(
            tuning_ids[1], [TuneStage(0, (), BASELINE, StageDecision.BASELINE, "2 starts")], now
        )
        tunings.end_session(tuning_ids[1], session, at=now, outcome="stopped")
    return {"swarm": swarm_runs, "tuning": tuning_ids}


@pytest.mark.usefixtures("aged")
def test_swarm_runs_and_tunings_are_counted():
    info = told("store", "info")
    counts = ("swarm_runs", "swarm_tasks", "tunings", "tuning_stages")
    assert {name: info[name] for name in counts} == {
        "swarm_runs": 3,
        "swarm_tasks": 6,
        "tunings": 3,
        "tuning_stages": 1,
    }
    assert "3 tunings, 1 stages" in call("store", "info").out


@pytest.mark.usefixtures("aged")
def test_without_an_age_no_swarm_run_is_deleted():
    assert told("gc")["swarm_runs"] == []


def test_a_dry_run_says_which_tunings_would_be_deleted(aged):
    assert told(*OLD, "--dry-run")["tunings"] == aged["tuning"][:1]


def test_old_swarm_runs_and_tunings_are_deleted_and_named(aged):
    done = call(*OLD, check=0)
    assert (
        "deleted 0 runs, 1 swarm runs, 1 tunings, 0 gateway requests and 0 probe samples"
        in done.err
    )
    assert sorted(done.out.split()) == sorted([aged["swarm"][0], aged["tuning"][0]])


def test_a_swarm_run_or_tuning_stays_that_is_new_or_was_resumed_of_late(aged, paths):
    """One that stopped halfway goes by its age, and not before."""
    call(*OLD, check=0)
    _, resumed, new = aged["swarm"]
    _, resumed_tuning, new_tuning = aged["tuning"]
    with open_store(paths.store, read_only=True) as store:
        assert [run.id for run in SwarmStore(store).runs()] == [new, resumed]
        assert [tuning.id for tuning in TuningStore(store).tunings()] == [
            new_tuning,
            resumed_tuning,
        ]
