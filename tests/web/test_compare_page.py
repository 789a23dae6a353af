"""The compare page: targets on one axis with the ratio of their medians,
stored runs side by side.
"""

import re

import pytest
import watched_store
from stored_runs import put_run

from sample_mixed import GPT_OSS, QWEN, store_mixed

NOW = watched_store.NOW
RUNS = []
MIXED = []


def fill(store):
    watched_store.fill(store)
    models = ((GPT_OSS, "gpt-oss-20b"), (QWEN, "qwen3-coder-30b"))
    MIXED[:] = [
        store_mixed(store, model, name, at=1e9 + place)
        for place, (model, name) in enumerate(models)
    ]
    RUNS[:] = [put_run(store, place, tokens=100 * place) for place in (1, 2)]


def test_targets_that_are_watched_stand_on_one_axis(ask):
    """Without being picked; one that has no figure yet is left out."""
    response, html = ask("/compare?window=30d")
    assert response.status == 200
    assert html.count('<svg class="wide"') == 1
    assert 'value="box" checked' in html
    assert 'value="new" checked' not in html
    assert "cloud compared with box" in html
    assert "Pick a second target" in ask("/compare?target=box")[1]
    assert "no figure in common" in ask("/compare?target=box&target=new")[1]


def test_a_pair_begins_with_which_is_faster_and_says_what_a_pause_costs(ask):
    html = ask("/compare?target=box&target=cloud&window=7d")[1]
    assert "% faster than cloud (7-day medians" in html
    assert "cloud after a pause (probed every 1 h): first token after 900 ms" in html


def test_a_ratio_has_its_interval_and_both_ranges_and_cold_is_compared_with_cold(ask):
    (pair,) = ask.json("/api/compare.json?target=cloud&target=box&window=30d")["pairs"]
    hot = pair["rows"][0]
    assert pair["a"] == "cloud"
    assert 2.0 < hot["ratio"]["low"] < hot["ratio"]["estimate"] < hot["ratio"]["high"] < 3.0
    assert hot["judgement"] == "better"
    assert hot["a"]["cv"] > 3 * hot["b"]["cv"]
    (pair,) = ask.json("/api/compare.json?target=box&target=cloud&window=30d")["pairs"]
    assert {(row["heat"], row["metric"]) for row in pair["rows"]} == {
        (heat, metric) for heat in ("hot", "cold") for metric in ("tok_s", "ttft_ms")
    }


@pytest.mark.slow
def test_stored_runs_stand_side_by_side(ask):
    """The pictures of `skep runs report A B`, and whether B is better."""
    a, b = RUNS
    response, html = ask(f"/compare?runs={a},{b}")
    assert response.status == 200
    assert "B compared with A" in html
    assert f'href="/runs/{a}"' in html
    assert not re.search(r"<svg[^>]*style=", html)


def test_runs_have_their_figures_as_json(ask):
    names = ",".join(RUNS)
    document = ask.json(f"/api/compare.json?runs={names}")
    assert [run["id"] for run in document["runs"]] == RUNS
    assert document["comparisons"]


@pytest.mark.slow
def test_two_models_under_mixed_work_stand_side_by_side(ask):
    names = ",".join(MIXED)
    response, html = ask(f"/compare?runs={names}")
    assert response.status == 200
    assert "Better for this work: B" in html
    assert "Side tasks at full load" in html
    assert not re.search(r"<svg[^>]*style=| style=", html)
    judged = {
        (comparison["metric"], comparison["concurrency"]): comparison["judgement"]
        for comparison in ask.json(f"/api/compare.json?runs={names}")["comparisons"]
    }
    assert judged["conversation time", 5] == "better"
    response, html = ask(f"/compare?runs={MIXED[0]},{RUNS[0]}")
    assert response.status == 400
    assert "can only draw beside its like" in html
