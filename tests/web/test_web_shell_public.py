"""A public dashboard cannot show what its connection to the store does not have."""

import json

import pytest
from stored_runs import gateway_request, put_run

from skep.monitor.records import Alert, AlertRule, EventKind, MonitorEvent, Probe, ProbeOutcome, ProbeTarget
from skep.monitor.store import SeriesStore
from skep.paths import user_paths
from skep.store.database import open_store
from skep.store.records import Request
from skep.web.context import ELSEWHERE, HIDDEN_COLUMNS, Site, public_document

SECRET = "http://10.9.8.7:8000/v1"


@pytest.fixture
def paths(env):
    paths = user_paths(env)
    with open_store(paths.store) as store:
        series = SeriesStore(store)
        series.put_target(ProbeTarget("box", SECRET, key_env="BOX_KEY"))
        failed = Probe("box", 0, 1, 10.0, 12.0, ProbeOutcome.FAILED, 10.0, error_kind="connect", error=SECRET)
        series.append_probe(failed)
        series.append_event(MonitorEvent(11.0, EventKind.DOWN, f"down: {SECRET}", "box"))
        series.append_event(MonitorEvent(12.0, EventKind.NOTE, "moved to /srv/models"))
        series.append_event(MonitorEvent(13.0, EventKind.NOTE, "new fan, 50/50 split"))
        for place, note in enumerate(("/srv/models is new", "now '/srv/models'", "model=~/models", 'in "/srv"')):
            series.append_event(MonitorEvent(14.0 + place, EventKind.NOTE, note))
        series.open_alert(Alert(AlertRule.DOWN, "box", 11.0, f"box is down: {SECRET}"))
        series.open_alert(Alert(AlertRule.DISK, None, 12.0, "the disk of the store has 1 GiB left"))
        run = put_run(store, 0, url=SECRET, levels=(), end=None)
        asked = {"level": 1, "repeat": 0, "index": 0, "kind": "measured", "started_s": 0.0, "ended_s": 1.0}
        told = {"prompt": "a secret", "answer": "another", "error_kind": "connect", "error": SECRET}
        store.append_requests(run, [Request(**asked, **told)])
        store.append_gateway_requests([gateway_request(1.0, flow="alice")])
    return paths


def test_the_public_connection_has_no_prompts_addresses_or_flows(paths):
    with Site(paths, public=True).store() as store:
        (run,) = store.runs()
        (request,) = store.requests(run.id)
        assert (run.url, request.prompt, request.answer, request.error) == (ELSEWHERE, None, None, "connect")
        assert store.gateway_requests()[0].flow is None
        series = SeriesStore(store)
        assert (series.target("box").url, series.target("box").key_env) == ("", None)
        assert series.latest("box")[0].error == "connect"
        assert [event.text for event in series.events(0, 99)] == ["down", "note", "new fan, 50/50 split", *["note"] * 4]
        assert [alert.message for alert in series.alerts()] == ["the disk of the store has 1 GiB left", "down"]
        whole = str([tuple(row) for table in HIDDEN_COLUMNS for row in store.read(f"SELECT * FROM {table}")])
    assert "10.9.8.7" not in whole
    assert "secret" not in whole


def test_free_documents_keep_the_names_of_files_and_lose_addresses_and_what_stands_under_a_telling_key():
    told = {"against": SECRET, "file": "/srv/x/levels.json", "seed": 1, "shape": "50/50 mix",
            "results": [{"headers": {"x": "secret"}, "tool": "guidellm"}], "argv": ["secret"]}  # fmt: skip
    assert json.loads(public_document(json.dumps(told))) == {
        "against": "", "file": "levels.json", "seed": 1, "shape": "50/50 mix",
        "results": [{"headers": {"x": ""}, "tool": "guidellm"}], "argv": [""],
    }  # fmt: skip


def test_the_owner_sees_all_of_it(paths):
    with Site(paths).store() as store:
        (run,) = store.runs()
        assert run.url == SECRET
        assert store.requests(run.id)[0].prompt == "a secret"
        assert SeriesStore(store).target("box").url == SECRET
