"""Runs of `skep bench agents` on the dashboard: in the list, on their page, and side by side."""

import pytest

from sample_sessions import level_rows

CONFIG = {"load": "coding", "seed": 4, "concurrency": [1, 2]}
RUNS = {}


def put_agents(store, place, *, hit=1.0, end="done", **config):
    """Store a run of two levels, each run twice; its id.

    `hit`: the share of the possible hits that two sessions have.
    """
    run = store.begin_run(
        kind="agents",
        created_at=1_790_000_000.0 + place,
        model="qwen3-8b",
        url="http://127.0.0.1:8400/v1",
        fingerprint=f"f{place}",
        config={**CONFIG, **config},
        host={},
        engine={},
        simulated=False,
        skep_version="0.1.0",
    )
    for repeat in range(2):
        put_level(store, run, level_rows(1, repeat=repeat))
        put_level(store, run, level_rows(2, repeat=repeat, hit=hit))
    store.end_run(run, 1_790_000_100.0, end)
    return run


def put_level(store, run, level):
    rows, fact = level
    store.append_requests(run, rows)
    store.append_level_facts(run, [fact])


def fill(store):
    RUNS["warm"] = put_agents(store, 1)
    RUNS["cold"] = put_agents(store, 2, hit=0.5)
    RUNS["other"] = put_agents(store, 3, load="small")
    RUNS["broken"] = put_agents(store, 4, end="failed")


@pytest.fixture(scope="module")
def pair(ask):
    """Return the document of two runs side by side, the second with fewer hits."""
    return ask.json(f"/api/compare.json?runs={RUNS['warm']},{RUNS['cold']}")


def test_the_list_tells_turns_and_hits_and_no_token_speed(ask):
    rows = {run["id"]: run for run in ask.json("/api/runs.json")["runs"]}
    warm = rows[RUNS["warm"]]
    assert warm["best_tok_s"] is None
    assert warm["sessions"]["ttft_p95_ms"] == pytest.approx(500)
    assert warm["sessions"]["hit_rate"] == pytest.approx(
        warm["sessions"]["possible_hit_rate"], 0.1
    )
    assert rows[RUNS["cold"]]["sessions"]["cliff"] == 1


def test_the_page_of_runs_shows_them_in_words(ask):
    html = ask("/runs")[1]
    assert "turns/min with 1" in html
    assert "500 ms (p95 500 ms) <small>of later turns</small>" in html
    assert "cliff beyond 1" in html


def test_a_run_has_its_levels_of_sessions_as_json(ask):
    document = ask.json(f"/api/run.json?id={RUNS['warm']}")
    assert [level["sessions"] for level in document["levels"]] == [1, 2]
    assert document["levels"][0]["turns_per_min"] > 0


def test_a_run_that_was_broken_off_says_what_is_kept(ask):
    response, html = ask(f"/runs/{RUNS['broken']}")
    assert response.status == 200
    assert "no level was finished" in html


def test_two_runs_are_judged_by_figures_of_sessions(pair):
    judged = {}
    for row in pair["comparisons"]:
        judged[row["metric"], row["concurrency"]] = row["judgement"]
    figures = {metric for metric, _ in judged}
    assert figures == {"turns/min", "answered", "session p50", "TTFT p50", "TTFT p95", "hits"}
    assert judged["hits", 2] == "worse"
    assert judged["turns/min", 1] == "not distinguishable"


def test_two_runs_have_their_cliffs_and_possible_hits(pair):
    assert pair["sessions"]["cliff_a"] is None
    assert pair["sessions"]["cliff_b"]["why"] == "hits"
    assert [hits["sessions"] for hits in pair["sessions"]["possible_hits"]] == [1, 2]


def test_runs_of_other_sessions_are_not_judged(ask):
    document = ask.json(f"/api/compare.json?runs={RUNS['warm']},{RUNS['other']}")
    verdicts = {comparison["judgement"] for comparison in document["comparisons"]}
    assert verdicts == {"not comparable"}
    assert document["sessions"]["unlike"] == "the loads differ: coding and small"


def test_three_runs_are_drawn_without_a_judgement(ask):
    names = ",".join((RUNS["warm"], RUNS["cold"], RUNS["other"]))
    response, html = ask(f"/compare?runs={names}")
    assert response.status == 200
    assert "Cache hits" in html
    assert "B against A" not in html
    assert ask.json(f"/api/compare.json?runs={names}")["comparisons"] == []
