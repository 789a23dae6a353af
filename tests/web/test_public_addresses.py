"""To the public, and to a client's key, no answer names an address of an upstream, a target or an
engine.
"""

import http.client
import re
from html import unescape
from urllib.parse import urljoin, urlsplit

import pytest
import vl_convert
import watched_store
from msgspec.structs import replace
from running_site import status
from stored_runs import ENGINE, RTX, WORKLOAD, gateway_request, put_run, put_tuning, requests
from watched_store import NOW

from sample_tuning import sample_stages
from skep.monitor.records import (
    Alert,
    AlertRule,
    EventKind,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeTarget,
)
from skep.monitor.store import SeriesStore
from skep.tuner.records import ConfigFailure, StageDecision

HOSTS = ("10.1.2.3", "10.9.8.7", "gpu-box", "fd00::7")
AT = "10.1.2.3:8000", "gpu-box.internal:8000", "[fd00::7]:8000"
UPSTREAMS = ("10.1.2.3-8000", "gpu-box.internal-8000")
BEGINNINGS = (
    "/", "/history", "/history?target=box", "/compare", "/runs", "/plan", "/runs?sort=best",
    "/tuning", "/metrics", "/api/now.json", "/api/history.json", "/api/compare.json",
    "/api/runs.json", "/api/tuning.json", "/healthz", "/nowhere", "/api/nowhere.json",
)  # fmt: skip

NOTHING_STORED = (
    "/static/",
    "/plan?",
    "/plan/",
    "/api/plan",
)  # on these: a plan is made of the catalogue


def fill(store):
    _fill_series(store)
    named = {
        "target": f"http://{AT[0]}",
        "file": f"from {AT[1]}",
        "workload": WORKLOAD,
        "concurrency": [1, 2, 4],
        "shape": f"as on {AT[1]}",
        "bank": AT[0],
    }
    engine = {**ENGINE, "server": AT[1], "build": f"made on {AT[0]}"}
    host = {**RTX, "os": f"Linux on {AT[1]}", "hostname": "gpu-box"}
    for place in range(2):
        put_run(
            store,
            place,
            url=f"http://{AT[place]}/v1",
            config=named,
            engine=engine,
            host=host,
            tokens=100 + place,
        )
    run = put_run(
        store,
        3,
        levels=(),
        end=None,
        url=f"http://{AT[1]}/v1",
        config=named,
        engine=engine,
        host=host,
    )
    store.append_requests(
        run,
        (replace(row, replica=UPSTREAMS[1], error=AT[2]) for row in requests((1, 2), failed=1)),
    )
    store.end_run(run, NOW - 99, "failed", f"{AT[1]} went away")
    store.append_gateway_requests(
        [gateway_request(NOW - 9, flow=f"of {AT[0]}", replica=UPSTREAMS[0])]
    )
    _fill_tuning(store, host)


def _fill_series(store):
    watched_store.fill(store)
    series = SeriesStore(store)
    for name, at in zip(("box", "cloud"), AT, strict=False):
        series.put_target(ProbeTarget(name, f"http://{at}", model="m", added_at=NOW - 9e5))
        facts = {
            "model": "m",
            "host": {"os": f"on {AT[1]}"},
            "versions": {"server": f"nginx at {AT[0]}"},
        }
        hour = int(NOW // 3600)
        series.append_probe(
            Probe(
                name, 0, hour - 1, NOW - 3600, NOW - 3500, ProbeOutcome.DONE, NOW - 3600, **facts
            )
        )
        for place, words in enumerate(
            (f"moved to {at}", f"{at} is new", f"as {at.rpartition(':')[0]} was")
        ):
            series.append_event(MonitorEvent(NOW - 7200 - place, EventKind.NOTE, words, name))
        changed = {"what": "server", "from": f"on {AT[0]}", "to": f"on {AT[1]}"}
        series.append_event(
            MonitorEvent(NOW - 9000, EventKind.VERSION, f"server changed from {at}", name, changed)
        )
        series.append_event(MonitorEvent(NOW - 9100, EventKind.RESTART, f"{at} began anew", name))
        series.append_event(
            MonitorEvent(NOW - 9200, EventKind.NOTE, "a new fan at 10:30, driver 570.86.10", name)
        )
        series.append_probe(
            Probe(
                name,
                0,
                hour,
                NOW - 60,
                NOW - 50,
                ProbeOutcome.FAILED,
                NOW - 60,
                error_kind="connect",
                error=f"no answer from {at}",
            )
        )
        series.open_alert(Alert(AlertRule.DOWN, name, NOW - 60, f"no answer from {at}"))
        alert = series.open_alert(
            Alert(AlertRule.DISK, None, NOW - 60, f"the disk of {at} is full")
        )
        series.close_alert(alert, NOW - 30, f"{at} has room")


def _fill_tuning(store, host):
    stages = sample_stages()
    dead = ConfigFailure(
        "no-start", f"{AT[1]} refused", f"ConnectionError: {AT[0]}", f"look at {AT[2]}"
    )
    stages[3] = replace(
        stages[3], decision=StageDecision.FAILED, why=f"{AT[0]} did not start", failure=dead
    )
    base = {"model": "m", "engine": "vllm", "listen": AT[0]}
    reason = f"{AT[1]} went away"
    began = NOW - 9000
    put_tuning(store, stages, end="failed", reason=reason, host=host, base=base, created_at=began)


def hive(_site):
    """A gateway in front of servers elsewhere, whose names are made of their addresses unless
    others are given.
    """
    replicas = [
        {
            "name": name,
            "kind": "upstream",
            "pid": None,
            "url": f"http://{at}",
            "slots": 4,
            "model": f"http://{at}/m",
            "engine": "remote",
            "why": f"{at} is slow",
            "node": "gpu-box",
        }
        for name, at in zip(UPSTREAMS, AT, strict=False)
    ]
    queues = {f"http://{AT[0]}/m": {"interactive": 0, "normal": 2, "batch": 0}}
    return status(*replicas, url=f"http://{AT[0]}", pid=4321, queues=queues)


@pytest.fixture(scope="module", params=["public", "client_key"])
def answers(request):
    """Every answer that a link leads to, by its address.

    A picture is all that it is drawn of, undrawn.
    """
    ask = request.getfixturevalue(request.param)
    pages = {}
    unread = list(BEGINNINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            vl_convert, "vegalite_to_svg", lambda spec, **_: f'<svg viewBox="0 0 9 9">{spec}</svg>'
        )
        while unread:
            path = unread.pop()
            # What they show, the window of all shows too.
            other_window = "window=" in path and "window=all" not in path
            if (
                path in pages
                or path.startswith(NOTHING_STORED)
                or other_window
                or len(pages) > 400
            ):
                continue
            pages[path] = ask(path)[1]
            if "<html" in pages[path]:
                links = re.findall(r'(?:href|src|data-\w+)="(/[^"]*)"', pages[path])
                unread += (
                    urlsplit(urljoin(path, unescape(link)))._replace(fragment="").geturl()
                    for link in links
                )
        pages["/live"] = _first_event(ask.port)
        return pages


def _first_event(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/live", headers={"authorization": "Bearer sk-client"})
        answer = connection.getresponse()
        return next(
            line for line in iter(answer.readline, b"") if line.startswith(b"data:")
        ).decode()
    finally:
        connection.close()


def test_no_answer_of_any_kind_names_an_address_and_all_else_is_still_told(answers):
    wrong = {path: [host for host in HOSTS if host in body] for path, body in answers.items()}
    assert {path: hosts for path, hosts in wrong.items() if hosts} == {}
    looked = " ".join(answers)
    for kind in (
        "/runs/2",
        "/report.html",
        "/tuning/2",
        "/api/tuning/",
        "/api/run.json?id=",
        "/live",
    ):
        assert kind in looked, kind
    assert len(answers) > 40
    assert "replica-1" in answers["/"]
    assert "replica-2" in answers["/live"]
    assert "a new fan at 10:30, driver 570.86.10" in answers["/history?target=box"]
    assert "cloud" in answers["/metrics"]
