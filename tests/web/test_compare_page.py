"""The compare page: targets on one axis with the ratio of their medians, stored runs side by side."""

import csv
import io
import json
import re

import pytest
from running_site import folders, running
from watched_store import NOW, fill

from skep.paths import user_paths
from skep.store.database import open_store
from skep.store.records import Request
from skep.web.context import Site


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    paths = user_paths(folders(tmp_path_factory.mktemp("compared")))
    fill(paths)
    with running(Site(paths, clock=lambda: NOW)) as asking:
        asking.runs = [_run(paths, speed) for speed in (1.0, 2.0)]
        yield asking


def _run(paths, speed):
    with open_store(paths.store) as store:
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
    assert html.count('<svg class="series wide"') == 2  # hot, and cold against cold
    assert 'value="box" checked' in html
    assert 'value="new" checked' not in html
    assert "cloud against box" in html


def test_the_ratio_has_its_interval_and_both_their_ranges(ask):
    _, body = ask("/api/compare.json?target=cloud&target=box&window=30d")
    document = json.loads(body)
    (pair,) = document["pairs"]
    hot = pair["rows"][0]
    assert pair["a"] == "cloud"
    assert 2.0 < hot["ratio"]["low"] < hot["ratio"]["estimate"] < hot["ratio"]["high"] < 3.0
    assert hot["judgement"] == "better"
    assert hot["a"]["cv"] > 3 * hot["b"]["cv"]


def test_cold_is_compared_with_cold(ask):
    rows = list(csv.DictReader(io.StringIO(ask("/api/compare.csv?target=box&target=cloud&window=30d")[1])))
    assert {(row["heat"], row["metric"]) for row in rows} == {
        (heat, metric) for heat in ("hot", "cold") for metric in ("tok_s", "ttft_ms")
    }
    assert all(float(row["ratio_low"]) <= float(row["ratio"]) for row in rows)


def test_a_lone_target_asks_for_a_second(ask):
    assert "Pick a second target" in ask("/compare?target=box")[1]


def test_a_target_without_figures_has_nothing_in_common(ask):
    assert "no figure in common" in ask("/compare?target=box&target=new")[1]


def test_an_unknown_target_is_one_line(ask):
    response, html = ask("/compare?target=bix")
    assert response.status == 400
    assert "there is no target" in html


@pytest.mark.slow
def test_stored_runs_stand_side_by_side(ask):
    """The pictures of `skep report A B`, and whether B is better."""
    a, b = ask.runs
    response, html = ask(f"/compare?runs={a},{b}")
    assert response.status == 200
    assert "B against A" in html
    assert f'href="/runs/{a}"' in html
    assert not re.search(r"<svg[^>]*style=", html)


def test_runs_have_their_figures_as_json_and_csv(ask):
    names = ",".join(ask.runs)
    document = json.loads(ask(f"/api/compare.json?runs={names}")[1])
    assert [run["id"] for run in document["runs"]] == list(ask.runs)
    assert document["comparisons"]
    rows = list(csv.DictReader(io.StringIO(ask(f"/api/compare.csv?runs={names}")[1])))
    assert len(rows) == len(document["comparisons"])


@pytest.mark.parametrize(("runs", "said"), [("one", "names 1"), ("no-such,neither", "no-such")])
def test_runs_that_are_not_there_are_one_line(ask, runs, said):
    response, html = ask(f"/compare?runs={runs}")
    assert response.status == 400
    assert said in html


def test_nothing_stored_yet_says_how_to_begin(tmp_path):
    with running(Site(user_paths(folders(tmp_path)), clock=lambda: NOW)) as bare:
        assert "skep monitor add" in bare("/compare")[1]
        assert json.loads(bare("/api/compare.json")[1]) == {"targets": [], "pairs": []}
        assert bare("/compare?runs=a,b")[0].status == 400
