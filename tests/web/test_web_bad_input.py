"""What strangers send: every parameter with what it was not made for. An answer is a page or a line, never a fault."""

import shutil
from urllib.parse import quote

import pytest
import watched_store
from running_site import folders, running

from skep.monitor.records import EventKind, MonitorEvent
from skep.monitor.store import SeriesStore
from skep.paths import user_paths
from skep.store.database import open_store
from skep.web.context import Site

SCRIPT = '"><script>alert(1)</script>'
BAD = (
    quote(SCRIPT), "x" * 5000, "a%00b", "%ff%fe", "-1", "9" * 40, "nan", "9999-12-31", "0001-01-01",
    "1969-12-31T23:59:59%2B00:00", "2026-99-99", "..%2f..%2fetc%2fpasswd", "%0d%0aX-Evil:1", "hot/short/c-1/tok_s",
)  # fmt: skip
NAMES = ("target", "a", "b", "series", "window", "from", "to")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    paths = user_paths(folders(tmp_path_factory.mktemp("strangers")))
    watched_store.fill(paths)
    with open_store(paths.store) as store:
        SeriesStore(store).append_event(MonitorEvent(watched_store.NOW - 60, EventKind.NOTE, SCRIPT, None))
    return paths


@pytest.fixture(scope="module")
def ask(paths):
    with running(Site(paths, clock=lambda: watched_store.NOW, hosts=frozenset({"127.0.0.1"}))) as asked:
        yield asked


@pytest.mark.parametrize("page", ["/history", "/compare", "/api/history.json", "/api/compare.csv"])
def test_no_value_of_a_parameter_makes_a_fault(ask, page):
    for name in NAMES:
        for value in BAD:
            response, body = ask(f"{page}?{name}={value}")
            assert response.status in (200, 400), (name, value)
            assert response.headers["x-evil"] is None
            if "html" in response.headers["content-type"]:
                assert body.rstrip().endswith("</html>")
                assert "<script>alert" not in body


def test_a_note_is_shown_as_it_was_written_and_never_carried_out(ask):
    for page in ("/", "/history?target=box", "/history?target=cloud&window=1d"):
        _, body = ask(page)
        assert "<script>alert" not in body
    assert "&lt;script&gt;alert(1)" in body


def test_a_far_day_is_refused_in_one_line(ask):
    response, body = ask("/history?target=box&to=9999-12-31")
    assert response.status == 400
    assert "is too far away" in body


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_not_allowed(ask, method):
    response, _ = ask("/history", method)
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("name", ["..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "", "skep.css%00.js"])
def test_only_files_of_the_package_are_served(ask, name):
    assert ask(f"/static/{name}")[0].status == 404


def test_a_store_that_goes_away_and_comes_back_needs_no_restart(ask, paths):
    away = paths.store.with_suffix(".away")
    shutil.copy(paths.store, away)
    try:
        paths.store.write_bytes(b"no database at all" * 100)
        response, body = ask("/history")
        assert response.status == 500
        assert "not a database" in body
    finally:
        away.replace(paths.store)
    assert ask("/history")[0].status == 200
