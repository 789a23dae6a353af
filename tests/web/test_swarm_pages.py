"""The pages of swarm runs: the list, one run with its picture and failures, and the owner's cancel
and resume.
"""

import json
import os
import subprocess
import sys
import time

import pytest
from running_site import running

from sample_swarm import put_swarm_run
from skep.paths import user_paths
from skep.store.database import open_store
from skep.swarm.store import SwarmStore
from skep.testing.process import FakeEngine
from skep.web.context import Site

MADE = {}


def fill(store):
    MADE["whole"] = put_swarm_run(store, "reviews.jsonl")
    MADE["stopped"] = put_swarm_run(store, "<i>odd</i>.jsonl", left=3, outcome="stopped")


def test_the_list_has_every_run_with_its_state(ask):
    page = ask("/swarm")[1]
    assert "reviews.jsonl" in page
    assert "&lt;i&gt;odd&lt;/i&gt;" in page
    assert '<p class="lead">Runs of many tasks.' in page
    runs = ask.json("/api/swarm.json")["runs"]
    states = {run["id"]: (run["state"], run["done"], run["failed"], run["left"]) for run in runs}
    assert states == {MADE["whole"]: ("done", 2, 1, 0), MADE["stopped"]: ("stopped", 2, 1, 3)}


def test_a_run_that_is_not_there_is_told_as_such(ask, bare):
    answer, page = ask("/swarm/20200101-000000-abcdef")
    assert answer.status == 404
    assert "no swarm run" in page
    assert "No swarm runs yet" in bare("/swarm")[1]
    assert bare("/swarm/last")[0].status == 404


def test_the_public_sees_no_swarm(public):
    run = MADE["whole"]
    for path in ("/swarm", f"/swarm/{run}", "/api/swarm.json", f"/api/swarm/{run}.json"):
        assert public(path)[0].status == 404, path
    assert "/swarm" not in public("/")[1]


def test_a_run_shows_its_picture_and_its_failures(ask):
    page = ask(f"/swarm/{MADE['whole']}")[1]
    assert "2 of 3 tasks in 3.0 s" in page
    assert "Attempts by agent" in page
    assert "<svg" in page
    assert "&lt;b&gt;the engine&lt;/b&gt; is out of memory" in page
    assert "<b>the engine</b>" not in page
    assert "data-refresh" not in page


def test_a_run_is_there_as_a_report_and_as_json(ask):
    answer, _ = ask(f"/swarm/{MADE['whole']}/report.html")
    assert answer.getheader("content-type").startswith("text/html")
    assert ask.json(f"/api/swarm/{MADE['whole']}.json")["done"] == 2


def test_only_an_unfinished_run_can_be_resumed(ask):
    assert "Resume: 3 left" in ask(f"/swarm/{MADE['stopped']}")[1]
    whole = ask(f"/swarm/{MADE['whole']}")[1]
    assert "Resume" not in whole
    assert "Cancel" not in whole
    assert ask(f"/swarm/{MADE['whole']}/resume", "POST", {"origin": ask.origin})[0].status == 303


@pytest.mark.parametrize("act", ["cancel", "resume"])
def test_a_page_of_another_site_cannot_end_or_resume_a_run(ask, act):
    headers = {"origin": "http://evil.example"}
    assert ask(f"/swarm/{MADE['stopped']}/{act}", "POST", headers)[0].status == 403


def wait_for(ask, *states):
    """The id of the run, once it is in one of them;
    a store that is being made has no tables yet.
    """
    for _ in range(200):
        for run in ask.json("/api/swarm.json").get("runs", ()):
            if run["state"] in states:
                return run["id"]
        time.sleep(0.05)
    return pytest.fail(f"no run ever was {states}")


def test_a_real_run_is_cancelled_and_resumed_from_the_page(tmp_path, monkeypatch):
    home = {
        name: str(tmp_path / name)
        for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
    }
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    paths = user_paths(os.environ)
    lines = [
        json.dumps({"id": f"t{n}", "prompt": "say something", "max_tokens": 20}) for n in range(12)
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    with FakeEngine(slots=1, token_ms=20) as engine, running(Site(paths)) as ask:
        words = [
            sys.executable,
            "-m",
            "skep",
            "swarm",
            "run",
            "tasks.jsonl",
            "--url",
            engine.url,
            "-c",
            "1",
        ]
        process = subprocess.Popen(
            words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        run = wait_for(ask, "running")
        assert "Cancel this run" in ask(f"/swarm/{run}")[1]
        assert "data-running" in ask(f"/swarm/{run}/body")[1]
        assert ask(f"/swarm/{run}/cancel", "POST", {"origin": ask.origin})[0].status == 303
        process.wait(10)
        assert "Resume: " in ask(f"/swarm/{run}")[1]
        assert ask(f"/swarm/{run}/resume", "POST", {"origin": ask.origin})[0].status == 303
        wait_for(ask, "done")
    with open_store(paths.store, read_only=True) as store:
        counts = SwarmStore(store).run(run).counts
    assert (counts.done, counts.left) == (12, 0)
