"""The pages of tunings: the list that ranks nothing,
and one tuning with its ladder and pictures.
"""

import json
from functools import partial

import pytest
from msgspec.structs import replace
from running_site import running
from stored_runs import installation, put_run, put_tuning

from sample_tuning import sample_stages
from skep.tuner.records import ConfigFailure, StageDecision, TuneGoal
from skep.web.context import Site

MADE = {}
SECRET_LINE = "FileNotFoundError: /srv/secret/model.gguf at http://10.9.8.7:8000"


def fill(store):
    stages = sample_stages()
    load = TuneGoal("effective_tok_s", 16, 512, 128)
    measured = partial(put_tuning, store, simulated=False)
    failure = ConfigFailure("no-start", "the file is not there", SECRET_LINE, "give its path")
    dead = replace(
        stages[0],
        decision=StageDecision.FAILED,
        figure=None,
        why="it did not start",
        failure=failure,
    )
    MADE["simulated"] = put_tuning(store, stages)
    MADE["measured"] = measured(stages[:4], created_at=1_785_600_000.0)
    MADE["other shape"] = measured(stages[:3], aim=load)
    MADE["dead"] = measured(
        [dead], end="failed", reason=SECRET_LINE, model="/srv/secret/model.gguf"
    )
    MADE["running"] = measured(stages[:2], end=None, model="<b>bold</b>")


@pytest.fixture(scope="module")
def listed(ask):
    """The rows of the list as JSON, by their ids."""
    return {row["id"]: row for row in ask.json("/api/tuning.json")["tunings"]}


def test_the_list_has_a_table_for_each_load(ask):
    page = ask("/tuning")[1]
    titles = [part.partition("</caption>")[0] for part in page.split("<caption>")[1:]]
    ours = [title for title in titles if "qwen3.6-27b" in title]
    assert len(ours) == 3
    assert sum("1,024 tokens in, 1,024 out, 4 agents at once" in title for title in ours) == 2
    assert sum("512 tokens in, 128 out, 16 agents at once" in title for title in ours) == 1
    assert sum("(simulated)" in title for title in ours) == 1


def test_the_list_tells_from_where_to_where_each_tuning_came(listed):
    row = listed[MADE["simulated"]]
    assert (row["from"], row["to"], row["gain"]) == pytest.approx((25.1, 190.0, 7.57), rel=0.01)
    assert row["gain_low"] < row["gain"] < row["gain_high"]


def test_the_list_tells_the_state_of_every_tuning(listed):
    states = {name: listed[MADE[name]]["state"] for name in ("simulated", "dead", "running")}
    assert states == {"simulated": "ended", "dead": "interrupted", "running": "running"}
    assert listed.keys() == set(MADE.values())


def test_the_list_of_a_model_has_no_others(ask):
    assert ask.json("/api/tuning.json?model=nothing")["tunings"] == []


def test_a_tuning_shows_its_ladder_and_its_failed_attempts(ask):
    page = ask(f"/tuning/{MADE['simulated']}")[1]
    parts = (
        "From 25.1 to 190 tok/s",
        "Attempts not kept",
        "Failed attempts",
        "Simulated",
        "How this was measured",
        "torch.OutOfMemoryError",
    )
    assert [part for part in parts if part not in page] == []
    assert "data-refresh" not in page
    assert " style=" not in page


def test_a_tuning_is_there_as_json(ask):
    document = ask.json(f"/api/tuning/{MADE['simulated']}.json")
    assert {"tuning", "baseline", "best", "stages"} <= document.keys()
    assert document["best"]["title"] == "mtp 3 → 5"


def test_a_tuning_has_its_report_as_a_file_of_its_own(ask):
    response, report = ask(f"/tuning/{MADE['simulated']}/report.html")
    assert report.startswith("<!doctype html>")
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_a_running_tuning_is_asked_for_again(ask):
    page = ask(f"/tuning/{MADE['running']}")[1]
    assert f'data-refresh="/tuning/{MADE["running"]}/body"' in page
    assert "data-running" in page
    assert "<b>bold" not in page
    assert "The tuning is still running" in ask(f"/tuning/{MADE['running']}/body")[1]


def test_a_tuning_that_is_not_there_is_404(ask):
    response, page = ask("/tuning/20200101-000000-nothing")
    assert response.status == 404
    assert "there is no tuning" in page
    response, body = ask("/api/tuning/nothing.json")
    assert response.status == 404
    assert "nothing" in json.loads(body)["error"]["message"]


def test_in_public_no_path_or_address_of_a_dead_end_is_told(public):
    dead = MADE["dead"]
    names = [f"/tuning/{dead}{end}" for end in ("", "/body", "/report.html")]
    names += [f"/api/tuning/{dead}.json", "/api/tuning.json"]
    pages = [public(name)[1] for name in ("/tuning", *names, f"/tuning/{MADE['simulated']}")]
    assert all("/srv" not in page and "10.9.8.7" not in page for page in pages)
    assert "model.gguf" in pages[0]
    assert "From 25.1 to 190 tok/s" in pages[-1]


def test_runs_of_a_tuning_are_listed_only_where_they_are_asked_for(tmp_path):
    """A night's tuning makes hundreds of them: they would hide the sweeps."""

    def fill_runs(store):
        put_run(store, 0)
        for place, kind in enumerate(("tune", "tune-quality"), 1):
            put_run(
                store, place, kind=kind, levels=(4,), config={"tuning": "20260801-101500-tuned1"}
            )

    with running(Site(installation(tmp_path, fill_runs))) as ask:
        page = ask("/runs")[1]
        assert "One benchmark run is stored." in page
        rows = ask.json("/api/runs.json?q=tune")["runs"]
        assert [row["kind"] for row in rows] == ["tune-quality", "tune"]
        assert 'href="/tuning/20260801-101500-tuned1"' in ask("/runs?q=tune")[1]
        assert "Tuning of this run" in ask(f"/runs/{rows[1]['id']}")[1]
        judged = ask.json("/api/runs.json?q=tune-quality")["runs"][0]
        assert (judged["best_tok_s"], judged["conclusion"]) == (
            None,
            "answers judged for a tuning",
        )
