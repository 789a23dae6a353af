"""Runs of `skep bench agents` side by side: turns, session time, first token, hits, the cliff."""

from functools import partial

import pytest
from in_process import call, refused
from msgspec.structs import replace

from sample_sessions import level_rows
from skep.store.database import open_store

COMPARE = ("runs", "compare")
RUNS_EACH = 3
CONFIG = {"load": "coding", "seed": 4, "pause_scale": 1.0, "sessions": None, "concurrency": [1, 2]}


def stretched(row, factor):
    """Return a turn with all of its times longer."""
    times = ("started_s", "ended_s", "first_token_s", "last_token_s")
    return replace(row, **{name: factor * getattr(row, name) for name in times})


@pytest.fixture
def keep(paths):
    """Stores a run of two levels; `slower` stretches the second one, `hit` is the share of hits,
    `held` the sessions of a level.
    """

    def store_run(*, slower=1.0, hit=1.0, runs=RUNS_EACH, held=4, **config):
        with open_store(paths.store) as store:
            run = store.begin_run(
                kind="agents",
                created_at=1_000_000_000.0 + len(store.runs()),
                model="m",
                url="http://127.0.0.1:1/v1",
                fingerprint=str(config),
                config={**CONFIG, **config},
                host={},
                engine={},
                simulated=False,
                skep_version="0",
            )
            add = partial(add_run, store, run, hit=hit, sessions=held)
            for repeat in range(runs):
                add(1, repeat, slower=1 + 0.001 * repeat)
                add(2, repeat, slower=slower + 0.001 * repeat)
            store.end_run(run, 1_000_000_100.0, "done")
        return run

    return store_run


def add_run(store, run, level, repeat, *, slower, hit, sessions):
    """Store one run of one level."""
    rows, fact = level_rows(level, hit=hit, repeat=repeat, sessions=sessions, pause_s=1.0)
    store.append_requests(run, [stretched(row, slower) for row in rows])
    store.append_level_facts(run, [fact])


def test_a_comparison_has_a_row_for_each_figure_of_sessions(keep):
    head, *rows = call(*COMPARE, keep(), keep(), check=0).out.splitlines()
    assert head.split() == ["sessions", "figure", "A", "B", "B", "/", "A"]
    names = ("turns/min", "answered", "session p50", "TTFT p50 of later turns")
    for name in (*names, "TTFT p95 of later turns", "hits"):
        named = [row for row in rows if f" {name} " in row]
        assert len(named) == 2
    assert "tok/s" not in head


def test_hits_stand_beside_the_possible_ones(keep):
    rows = call(*COMPARE, keep(), keep(hit=0.5), check=4).out.splitlines()
    hits, _ = [row for row in rows if row.split()[1] == "hits"]
    assert hits.count(" of ") == 2


def test_a_slower_level_is_a_regression_with_its_interval(keep):
    done = call(*COMPARE, keep(), keep(slower=2.0), check=4)
    (turns,) = [row for row in done.out.splitlines() if row.strip().startswith("2  turns/min")]
    assert "0.50 (0.50..0.50) worse" in turns
    assert "turns/min at 2 sessions (50.0 % worse)" in done.out.splitlines()[-1]


def test_one_run_a_side_is_not_judged(keep):
    done = call(*COMPARE, keep(runs=1), keep(runs=1, slower=2.0), check=0)
    assert "1 session and 2 sessions not compared: one run of a level shows no" in done.err
    assert done.out.splitlines()[-1].startswith("no verdict")


def test_the_cliff_of_each_run_stands_below_the_table(keep):
    lines = call(*COMPARE, keep(), keep(slower=3.0), check=4).out.splitlines()
    assert lines[-3].startswith("A: no session cliff is shown up to 2 sessions")
    assert lines[-2].startswith("B: the session cliff lies beyond 1 session: with 2 turns/min")


def test_the_document_has_the_cliffs_and_the_possible_hits(keep):
    document = call(*COMPARE, keep(), keep(slower=3.0), "--json", check=4).json
    assert document["verdict"] == "regression"
    assert document["sessions"]["cliff_a"] is None
    assert document["sessions"]["cliff_b"]["sessions"] == 1
    possible = document["sessions"]["possible_hits"]
    assert [level["sessions"] for level in possible] == [1, 2]
    assert possible[0]["a"] == possible[0]["b"] > 0.5


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"load": "small"}, "the loads differ: coding and small"),
        ({"pause_scale": 0.5}, "the scales of pauses differ: 1.0 and 0.5"),
        ({"seed": 5, "held": 3}, "the seeds differ: 4 and 5 draw other sessions"),
        ({"held": 3}, "the sessions differ, though they have one name: at 1, 2 held at once"),
    ],
)
def test_other_sessions_are_refused_with_what_differs(keep, changed, words):
    line = refused(*COMPARE, keep(), keep(**changed))
    assert f"played other sessions: {words}" in line
    assert "--anyway" in line


def test_a_seed_that_draws_the_same_sessions_is_no_other_load(keep):
    """The seed of a trace is that of its texts."""
    trace = {"load": "trace.jsonl"}
    done = call(*COMPARE, keep(**trace), keep(**trace, seed=5), check=0)
    assert "no regression" in done.out


def test_they_are_compared_anyway_where_that_is_asked_for(keep):
    done = call(*COMPARE, keep(), keep(load="small"), "--anyway", check=0)
    assert "no regression" in done.out


def test_a_list_of_runs_says_what_sessions_got(keep):
    keep(slower=3.0)
    (run,) = call("runs", "--json", check=0).json
    assert run["sessions"]["sessions"] == 1
    assert run["sessions"]["cliff"] == 1
    listing = call("runs", check=0).out
    assert "turns/min with 1 session, session 7.0 s, TTFT 500 ms (p95 501 ms), hits" in listing
    assert "cliff beyond 1" in listing


def test_the_page_of_two_runs_judges_each_figure(keep, tmp_path):
    call("runs", "report", keep(), keep(slower=2.0), "-o", "both.html", check=0)
    page = (tmp_path / "both.html").read_text()
    for words in ("Session time", "TTFT p95 of later turns", "Cache hits", "B against A"):
        assert words in page
    assert "5 not distinguishable" in page or "4 worse" in page
    assert "tok/s" not in page.partition("The runs")[0]


def test_the_page_of_other_sessions_judges_nothing(keep, tmp_path):
    call("runs", "report", keep(), keep(load="small"), "-o", "both.html", check=0)
    page = (tmp_path / "both.html").read_text()
    assert "The runs played other sessions: the loads differ: coding and small" in page
    assert "12 not comparable" in page
