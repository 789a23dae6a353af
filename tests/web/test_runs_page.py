"""The page of runs: every stored benchmark, filtered by the address, its report,
files of it all.
"""

import re
from functools import partial

import pytest
from stored_runs import HOST, SIMULATED, installation, put_run

from skep.store.database import open_store
from skep.web import run_cache
from skep.web.context import Site
from skep.web.run_cache import (
    RunCache,
    RunFigures,
    engine_of,
    figures_of,
    layout_of,
    machine_of,
    where_of,
)
from skep.web.runs import RunsQuery, listed

MADE = {}


def fill(store):
    MADE["slow"] = put_run(store, 0, tokens=50)
    MADE["fast"] = put_run(store, 1, tokens=200, failed=1)
    MADE["far"] = put_run(
        store, 2, url="http://10.9.8.7:8000/v1", model="/srv/models/secret.gguf", host=HOST
    )
    MADE["broken"] = put_run(store, 3, levels=(1,), end="failed")
    MADE["simulated"] = put_run(
        store, 4, simulated=True, engine={"engine": SIMULATED, "simulated": True}
    )
    MADE["open"] = put_run(store, 5, kind="open", config={"rates": [2.0, 4.0]}, levels=(1, 2))
    MADE["interrupted"] = put_run(
        store, 5, model="other", levels=(1,), end="failed", why="interrupted"
    )
    MADE["running"] = put_run(store, 6, levels=(1,), end=None)


def runs_of(ask, query=""):
    return ask.json(f"/api/runs.json{query}")["runs"]


def test_every_run_is_listed_newest_first(ask):
    assert [run["id"] for run in runs_of(ask)] == list(reversed(MADE.values()))
    assert "8 benchmark runs are stored" in ask("/runs")[1]


def test_a_run_is_listed_with_its_key_figures(ask):
    fast = next(run for run in runs_of(ask) if run["id"] == MADE["fast"])
    assert (fast["best_at"], fast["failed"], fast["machine"]) == (4, 3, "2x RTX 3090")
    assert fast["best_tok_s"] == pytest.approx(600)
    slow = next(run for run in runs_of(ask) if run["id"] == MADE["slow"])
    assert slow["ttft_ms"] == pytest.approx(100)
    assert "600" in ask("/runs")[1]


def test_runs_that_did_not_end_or_were_not_measured_are_flagged(ask):
    page = ask("/runs")[1]
    assert '<span class="flag bad">interrupted</span>' in page
    assert '<span class="flag sky">simulated</span>' in page  # blue, as on every page
    page = ask(f"/runs/{MADE['interrupted']}")[1]
    assert "The run is interrupted; no level was finished: the figures are of the" in page


def test_a_cell_of_the_list_holds_one_element_at_most(ask):
    """A second one would stand under the label of a small screen, where the two are columns of a
    grid.
    """
    cells = re.findall(r'<td[^>]* data-label="[^"]+"[^>]*>(.*?)</td>', ask("/runs")[1], re.DOTALL)
    assert len(cells) > 20
    for cell in cells:
        assert re.fullmatch(r"[^<]*|<(span|div)>.*</\1>", cell, re.DOTALL), cell


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?q=open", ["open"]),
        ("?q=failed", ["broken"]),
        ("?q=interrupted", ["interrupted"]),
        ("?q=running", ["running"]),
        ("?q=simulated", ["simulated"]),
        ("?q=rtx+vllm+measured+done+sweep", ["fast", "slow"]),
        ("?q=10.9.8.7+done", ["far"]),
        ("?q=nobody", []),
    ],
)
def test_the_address_says_which_runs_are_shown(ask, query, names):
    assert [run["id"] for run in runs_of(ask, query)] == [MADE[name] for name in names]
    page = ask(f"/runs{query}")[1]
    assert all((run in page) is (name in names) for name, run in MADE.items())


def test_the_best_come_first_where_that_is_asked_for(ask):
    """Simulated runs are never ranked among measured ones;
    what failed or still runs comes last.
    """
    runs = runs_of(ask, "?sort=best&q=measured+sweep+qwen3-8b")
    assert [run["id"] for run in runs][:2] == [MADE["fast"], MADE["slow"]]
    assert {run["id"] for run in runs[-2:]} == {MADE["broken"], MADE["running"]}
    ranked = [run for run in runs_of(ask, "?sort=best") if run["state"] == "done"]
    assert ranked == sorted(ranked, key=lambda run: (run["simulated"], -run["best_tok_s"]))
    page = ask("/runs?sort=best")[1]
    assert page.index(f"/runs/{MADE['fast']}") < page.index(f"/runs/{MADE['slow']}")
    assert "Stored runs, best tok/s first" in page


def test_a_run_that_is_still_written_is_drawn(ask):
    body = ask(f"/runs/{MADE['running']}")[1]
    assert "Still running" in body
    assert "All levels" in body
    assert "<svg" in body
    assert " style=" not in body  # the headers forbid it


def test_a_run_without_requests_says_so_and_is_404_once_it_is_deleted(ask, paths):
    with open_store(paths.store) as store:
        run = put_run(store, -9, levels=())
        assert "No report" in ask(f"/runs/{run}")[1]
        store.delete_runs([run])
    assert ask(f"/runs/{run}")[0].status == 404


def test_an_unknown_run_is_404_with_the_newest_one_as_a_hint(ask):
    for path in ("/runs/nobody", "/api/run.json?id=nobody"):
        response, body = ask(path)
        assert response.status == 404
        assert MADE["running"] in body


def test_the_report_is_a_file_of_its_own(ask):
    response, body = ask(f"/runs/{MADE['slow']}/report.html")
    assert body.startswith("<!doctype html>")
    assert "script" not in response.headers["content-security-policy"]


def test_two_ticked_runs_go_to_the_page_that_compares(ask):
    slow = MADE["slow"]
    fast = MADE["fast"]
    response, _ = ask(f"/runs/compare?run={slow}&run={fast}")
    assert response.status == 303
    assert response.headers["location"] == f"/compare?runs={slow},{fast}"
    assert ask(f"/runs/compare?run={slow}")[0].status == 400
    assert ask("/compare?runs=x")[0].status == 400


def test_figures_of_an_ended_run_are_worked_out_once(monkeypatch, tmp_path):
    worked_out = []

    def counted(store, run):
        worked_out.append(run.id)
        return figures_of(store, run)

    monkeypatch.setattr(run_cache, "figures_of", counted)
    site = Site(
        installation(tmp_path, lambda store: [put_run(store, 0), put_run(store, 1, end=None)])
    )
    with site.store() as store:
        book = RunCache()
        runs = store.runs()
        first, again = ([book.figures(store, run) for run in runs] for _ in range(2))
    assert first == again
    # The one that is still written is asked each time.
    assert sorted(worked_out.count(run.id) for run in runs) == [
        1,
        2,
    ]


def test_a_list_has_pages_of_fifty(tmp_path):
    paths = installation(
        tmp_path, *(partial(put_run, place=place, levels=()) for place in range(52))
    )
    with open_store(paths.store) as store:
        runs = store.runs()
    listing = listed(runs, RunsQuery(page=9), lambda _run: RunFigures())
    assert (listing.pages, listing.query.page, len(listing.runs), listing.total) == (2, 2, 2, 52)


def test_where_a_run_ran_is_told_in_a_few_words(paths):
    with open_store(paths.store, read_only=True) as store:
        runs = {name: store.run(run) for name, run in MADE.items()}
    assert machine_of(runs["far"]) == "10.9.8.7"
    assert where_of(runs["simulated"]) == f"no machine · {SIMULATED}"
    assert (engine_of(runs["slow"]), layout_of(runs["slow"])) == ("vllm 0.19", "4 slots")


def test_words_find_nothing_that_a_public_page_hides(public):
    assert runs_of(public, "?q=10.9.8.7") == []
    assert runs_of(public, "?q=srv") == []
    far = next(run for run in runs_of(public) if run["id"] == MADE["far"])
    assert (far["machine"], far["model"], far["url"]) == ("another machine", "secret.gguf", None)
