"""The compare page: targets on one axis with the ratio of their medians, stored runs side by side."""

import re

import pytest
import watched_store
from watched_store import NOW

from skep.store.records import Request

RUNS = []


def fill(store):
    watched_store.fill(store)
    RUNS[:] = [_run(store, speed) for speed in (1.0, 2.0)]


def _run(store, speed):
    run = store.begin_run(
        kind="sweep", created_at=NOW, model="m", url="http://127.0.0.1:1/v1", fingerprint="f", config={}, host={},
        engine={}, simulated=False, skep_version="0",
    )  # fmt: skip
    rows = [
        Request(1, repeat, i, "fix", float(i), i + 1 / speed, first_token_s=i + 0.1 / speed,
                last_token_s=i + 0.9 / speed, output_tokens=40, prompt_tokens=10)
        for repeat in range(3) for i in range(4)
    ]  # fmt: skip
    store.append_requests(run, rows)
    store.end_run(run, NOW + 60, "done")
    return run


def test_targets_that_are_watched_stand_on_one_axis(ask):
    """Without being picked; one that has no figure yet is left out."""
    response, html = ask("/compare?window=30d")
    assert response.status == 200
    assert html.count('<svg class="wide"') == 1
    assert 'value="box" checked' in html
    assert 'value="new" checked' not in html
    assert "cloud compared with box" in html


def test_the_ratio_has_its_interval_and_both_their_ranges(ask):
    (pair,) = ask.json("/api/compare.json?target=cloud&target=box&window=30d")["pairs"]
    hot = pair["rows"][0]
    assert pair["a"] == "cloud"
    assert 2.0 < hot["ratio"]["low"] < hot["ratio"]["estimate"] < hot["ratio"]["high"] < 3.0
    assert hot["judgement"] == "better"
    assert hot["a"]["cv"] > 3 * hot["b"]["cv"]


def test_cold_is_compared_with_cold(ask):
    (pair,) = ask.json("/api/compare.json?target=box&target=cloud&window=30d")["pairs"]
    assert {(row["heat"], row["metric"]) for row in pair["rows"]} == {
        (heat, metric) for heat in ("hot", "cold") for metric in ("tok_s", "ttft_ms")
    }


@pytest.mark.parametrize(
    ("query", "said"), [("target=box", "Pick a second target"), ("target=box&target=new", "no figure in common")]
)
def test_what_cannot_be_compared_yet_says_so(ask, query, said):
    assert said in ask(f"/compare?{query}")[1]


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
