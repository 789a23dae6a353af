"""The frame around every page: headers, names it answers to, errors, static files, JSON and CSV,
notes.
"""

import gzip
import os
import signal
import socket
import subprocess
import sys

import pytest
import watched_store
from running_site import running, status
from starlette.routing import Route
from stored_runs import installation
from watched_store import NOW

from skep.errors import GatewayError, StoreError
from skep.monitor.records import Alert, AlertRule, EventKind, Probe, ProbeOutcome, ProbeTarget
from skep.monitor.store import SeriesStore
from skep.report import theme
from skep.store.database import open_store
from skep.web.app import serve
from skep.web.context import Site, make_site
from skep.web.layout import PAGES, asset, assets, environment, vega_address, vega_version
from skep.web.responses import json_answer, way_back

SECRETS = ("10.9.8.7", "secret-host", "hunter2", "/models/", "no answer from")


def fill(store):
    """What is watched, and one of it failing, with an alert."""
    watched_store.fill(store)
    series = SeriesStore(store)
    url = "https://me:hunter2@10.9.8.7:8000"
    series.put_target(ProbeTarget("cloud", url, model="/models/secret-host/m.gguf"))
    failed = Probe(
        "cloud",
        0,
        int(NOW // 3600),
        NOW - 60,
        NOW - 50,
        ProbeOutcome.FAILED,
        NOW - 60,
        error_kind="connect",
        error="no answer from 10.9.8.7",
    )
    series.append_probe(failed)
    series.open_alert(Alert(AlertRule.DOWN, "cloud", NOW - 60, "no answer from `10.9.8.7`"))


def hive(_site):
    """A hive of two replicas as it tells of itself."""
    path = "/models/m.gguf"
    usual = {"name": "m-0", "slots": 4, "model": path}
    many = {**usual, "name": "m-1", "slots": 100, "why": "see /models/x.log"}
    queues = {path: {"interactive": 0, "normal": 2, "batch": 0}}
    return status(usual, many, url="http://10.9.8.7:8400", pid=4321, queues=queues)


@pytest.fixture
def filled(tmp_path):
    """Paths of one test alone, with what `fill` stores."""
    return installation(tmp_path, fill)


def test_every_answer_forbids_what_a_page_does_not_need(bare):
    """Scripts, styles and requests of its own only, whatever a model name may hold; no frame, no
    guessing of types.
    """
    for path in ("/", "/nowhere", "/api/now.json", "/static/skep.css"):
        headers = bare(path)[0].headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_on_loopback_only_its_own_names_are_answered(bare):
    """A page of somebody else's may let its own name point to 127.0.0.1; its requests carry that
    name.
    """
    foreign = ("evil.example", f"evil.example:{bare.port}", "127.0.0.1.evil.example", "[::1", "")
    for name in foreign:
        assert bare("/", headers={"host": name})[0].status == 421, name
    for name in ("localhost", f"127.0.0.1:{bare.port}", "[::1]:80"):
        assert bare("/", headers={"host": name})[0].status == 200, name


def test_a_page_is_complete_without_scripts(ask):
    response, page = ask("/")
    assert response.status == 200
    parts = (
        "<main",
        "<nav",
        "<header",
        "<footer",
        'href="#main"',
        "3 of 4 slots busy, 1 releasing",
        "<caption>",
        "7-day median",
    )
    assert [part for part in parts if part not in page] == []
    assert "style=" not in page
    assert "onclick" not in page


def test_a_page_leads_to_all_others(ask):
    page = ask("/")[1]
    assert page.count('aria-current="page"') == 1
    for _, address, title, _ in PAGES:
        assert f'href="{address}"' in page
        assert f">{title}</a>" in page


def test_the_owner_reads_why_a_target_fails_but_no_password(ask):
    page = ask("/")[1]
    assert "no answer from <code>10.9.8.7</code>" in page
    assert "hunter2" not in page


def test_what_is_on_screen_is_there_as_json(ask):
    document = ask.json("/api/now.json")
    assert document["hive"]["slots"] == {"total": 104, "active": 6, "releasing": 2}
    assert [target["target"] for target in document["targets"]] == ["box", "cloud", "new"]
    assert document["targets"][1]["url"] == "https://10.9.8.7:8000"


def test_without_a_hive_the_page_says_how_to_start_one(bare):
    page = bare("/")[1]
    assert "No deployment is running" in page
    assert "<code>skep up -d</code>" in page
    assert "skep monitor add NAME" in page


def test_what_is_not_there_is_a_page_too(bare):
    for path, status_code in (
        ("/runs/last", 404),
        ("/tuning/last", 404),
        ("/compare?runs=a,b", 400),
    ):
        assert bare(path)[0].status == status_code, path
    response, page = bare("/nowhere")
    assert response.status == 404
    assert "there is no such page" in page
    assert "<nav" in page
    assert bare.json("/api/nowhere.json")["error"]["message"] == "there is no such page"
    assert bare("/", "POST", headers={"origin": bare.origin})[0].status == 405


@pytest.mark.parametrize(
    ("page", "advice", "empty"),
    [
        ("/history", "skep monitor add", {"views": []}),
        ("/compare", "skep monitor add", {"targets": [], "pairs": []}),
        ("/runs", "skep bench sweep", {"total": 0, "page": 1, "pages": 1, "runs": []}),
        ("/tuning", "No tunings yet", {"tunings": []}),
        ("/swarm", "skep swarm run TASKS.jsonl", {"runs": []}),
        ("/sessions", "skep agent claude", {"sessions": []}),
    ],
)
def test_with_nothing_stored_a_page_says_how_to_begin(bare, page, advice, empty):
    response, html = bare(page)
    assert response.status == 200
    assert advice in html
    assert bare.json(f"/api{page}.json") == empty


@pytest.mark.parametrize(("in_flight", "answered"), [(0, 0), (1, 0), (0, 1)])
def test_a_deployment_without_an_answer_says_how_to_send_it_work(tmp_path, in_flight, answered):
    """Its page is nothing but free slots."""
    hive = status({"name": "m-0", "slots": 4})
    hive["gateway"] |= {"in_flight": in_flight, "ended": {"answered": answered}}
    paths = installation(tmp_path)
    with running(Site(paths), read=lambda _site: hive) as ask:
        page = ask("/")[1]
    assert ("skep swarm run TASKS.jsonl" in page) == (not in_flight and not answered)
    assert "needs no deployment" not in page
    with running(Site(paths, public=True), read=lambda _site: hive) as ask:
        assert "skep swarm run" not in ask("/")[1]


def test_in_public_no_address_path_or_word_of_others_is_shown(public):
    answers = [public(path)[1] for path in ("/", "/api/now.json", "/metrics")]
    refused = public("/notes", "POST", form={"text": "x"}, headers={"origin": public.origin})[0]
    for answer in answers:
        assert "cloud" in answer
        assert not [secret for secret in SECRETS if secret in answer]
    assert refused.status == 405


def test_compare_has_its_tab_where_there_are_two_of_something(ask, bare):
    assert ['href="/compare"' in site("/")[1] for site in (ask, bare)] == [True, False]


def test_an_error_nobody_expected_is_one_line_without_a_traceback(filled):
    def breaks(_request):
        raise RuntimeError("secret detail")

    def store_breaks(_request):
        raise StoreError(f"`{filled.store}` is damaged")

    routes = [
        Route("/breaks", breaks),
        Route("/api/breaks.json", breaks),
        Route("/store", store_breaks),
    ]
    with running(make_site(filled, host="127.0.0.1"), routes=routes) as ask:
        response, page = ask("/breaks")
        assert response.status == 500
        assert "this page could not be rendered" in page
        assert "secret detail" not in page
        assert "error" in ask.json("/api/breaks.json")
        assert str(filled.store) in ask("/store")[1]
    with running(make_site(filled, host="0.0.0.0", public=True), routes=routes) as ask:
        response, page = ask("/store")
        assert response.status == 500
        assert str(filled.store) not in page


def test_static_files_are_kept_until_they_change(bare):
    response, _ = bare(asset("skep.css"))
    assert "immutable" in response.headers["cache-control"]
    tag = response.headers["etag"]
    plain, _ = bare("/static/skep.css")
    assert plain.headers["cache-control"] == "no-cache"
    again, body = bare("/static/skep.css", headers={"if-none-match": tag})
    assert (again.status, body) == (304, "")


def test_no_file_beside_the_static_ones_is_served(bare):
    assert bare("/static/..%2fsite.py")[0].status == 404


def test_the_script_of_the_charts_is_served_packed_and_kept(ask, paths):
    # As it was made once for this version of the library.
    bundle = paths.cache / "web" / f"vega-{vega_version()}.js.gz"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(gzip.compress(b"vega"))
    headers = ask(vega_address(), "HEAD")[0].headers
    assert headers["content-encoding"] == "gzip"
    assert "immutable" in headers["cache-control"]
    again, _ = ask("/static/vega.js", headers={"if-none-match": headers["etag"]})
    assert again.status == 304


def test_the_style_sheet_has_every_colour_of_the_theme():
    css = assets()["skep.css"].body.decode()
    assert theme.style_rules() in css
    for day, night in theme.NIGHT.items():
        assert day in theme.style_rules()
        assert night in theme.style_rules()
    assert "http" not in css


def test_a_template_escapes_what_it_is_given_and_json_has_no_nan():
    source = "<p>\n  {{ words }}\n  <b>{{ nothing }}</b>\n  two\n  lines\n</p>"
    html = environment().from_string(source).render(words="<x>\x01", nothing=None)
    assert html == "<p>&lt;x&gt;�<b></b>two lines</p>"
    assert json_answer({"a": float("nan"), "b": (1, None)}).body == b'{"a":null,"b":[1,null]}\n'


def test_a_note_is_written_from_the_page_itself_only(filled):
    site = make_site(filled, host="127.0.0.1", clock=lambda: NOW)
    with running(site) as ask:
        own_origin = {"origin": ask.origin}
        note = {
            "text": " NVLink bridges\nremoved ",
            "target": "box",
            "next": "/history?target=box",
        }
        response, _ = ask("/notes", "POST", form=note, headers=own_origin)
        assert (response.status, response.headers["location"]) == (303, "/history?target=box")
        elsewhere = (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            own_origin | {"sec-fetch-site": "cross-site"},
        )
        for headers in ({}, *elsewhere):
            assert ask("/notes", "POST", form=note, headers=headers)[0].status == 403
        for wrong in ({"text": "  "}, {"text": "x" * 501}, {"text": "x", "target": "boxx"}, {}):
            response, page = ask("/notes", "POST", form=wrong, headers=own_origin)
            assert response.status == 400
            assert 'role="alert"' in page
        assert (
            ask("/notes", "POST", form={"text": "x" * 20_000}, headers=own_origin)[0].status == 400
        )
    with open_store(filled.store) as store:
        (event,) = SeriesStore(store).events(NOW - 1, NOW + 1)
    assert (event.kind, event.text, event.target, event.at) == (
        EventKind.NOTE,
        "NVLink bridges removed",
        "box",
        NOW,
    )


def test_the_way_back_keeps_the_query_and_never_leaves_the_site():
    assert way_back("/runs?model=x&b=1") == "/runs?model=x&b=1"
    for address in (
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "",
        None,
        "/a\nb",
    ):
        assert way_back(address) == "/", address


@pytest.fixture(scope="module")
def macros():
    return environment().get_template("macros.html").module


def test_a_sparkline_breaks_where_nothing_was_measured(macros):
    for drawn in (
        macros.sparkline([1.0, 2.0, None, 3.0, 4.0], "x"),
        macros.sparkline([1.0, 2.0, 3.0], "x", places=[0, 1, 9], gap=2),
    ):
        assert drawn.split('d="')[1].split('"')[0].count("M") == 2
    assert macros.sparkline([None, 1.0], "x") == ""
    assert 'd="M3.0 18.0L157.0 18.0"' in macros.sparkline([5.0, 5.0], "flat")


def test_slots_are_dots_until_there_are_too_many(macros):
    dots = macros.slots(8, 3, 1)
    assert [dots.count(f"dot {kind}") for kind in ("busy", "going", "free")] == [3, 1, 4]
    assert "<rect" in macros.slots(100, 50, 0)
    assert macros.slots(8, None, None).endswith("–</span>")
    assert macros.slots(2, 5, 3).count("<i") == 2


def test_a_port_in_use_is_one_line(filled):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(GatewayError, match="is in use"),
    ):
        serve(make_site(filled, host="127.0.0.1"), host="127.0.0.1", port=taken.getsockname()[1])


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_it_at_once_though_a_browser_watches(env, number):
    """Streams do not hold it up, or it would say so; and the command ends with 0."""
    code = (
        "import os\nfrom skep.paths import user_paths\nfrom skep.web.context import make_site\n"
        "from skep.web.app import serve\nsite = make_site(user_paths(os.environ), "
        "host='127.0.0.1')\n"
        "serve(site, host='127.0.0.1', port=0, on_ready=lambda url: print(url, flush=True))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        port = int(child.stdout.readline().decode().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as browser:
            browser.sendall(f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert b"text/event-stream" in browser.recv(4096)
            os.kill(child.pid, number)
            _, errors = child.communicate(timeout=10)
        assert (child.returncode, errors) == (0, b"")
    finally:
        child.kill()
        child.wait()
