"""What strangers send: every parameter with what it was not made for.

An answer is a page or a line, never a fault.
"""

import json
import shutil
from urllib.parse import quote

import pytest
import watched_store
from watched_store import NOW

from skep.monitor.records import EventKind, MonitorEvent
from skep.monitor.store import SeriesStore

SCRIPT = '"><script>alert(1)</script>'
BAD = (
    quote(SCRIPT),
    "x" * 5000,
    "a%00b",
    "%ff%fe",
    "-1",
    "9" * 40,
    "nan",
    "9999-12-31",
    "0001-01-01",
    "1969-12-31T23:59:59%2B00:00",
    "2026-99-99",
    "..%2f..%2fetc%2fpasswd",
    "%0d%0aX-Evil:1",
    "hot/short/c-1/tok_s",
)
NAMES = ("target", "series", "window")
# Address without its kind, and a part of the message.
REFUSED = [
    ("history?target=bix", "there is no target"),
    ("history?target=box&window=3w", "is not a window"),
    ("history?target=box&series=fast", "is not a series"),
    ("history?" + "&".join(f"target={n}" for n in range(9)), "too many"),
    ("compare?target=bix", "there is no target"),
    ("compare?runs=one", "names 1"),
    ("compare?runs=no-such,neither", "no-such"),
    ("runs?sort=worst", "is unknown"),
    ("runs?page=0", "is not a page"),
    ("runs?page=x", "is not a page"),
    *(
        (f"plan?{query}", "")
        for query in (
            "model=/etc/passwd",
            "model=../x/config.json",
            "model=no-such-model-at-all",
            "model=qwen3-8b&card=no-card",
            "model=qwen3-8b&agents=0",
            "model=qwen3-8b&agents=9999999999999",
            "model=qwen3-8b&agents=%EF%BC%91",
            "model=%7B%7D",
            "model=%00",
            "model=%F0%9F%90%9D",
            "model=qwen3-8b&agents=0",
            "count=x",
        )
    ),
]


def fill(store):
    watched_store.fill(store)
    SeriesStore(store).append_event(MonitorEvent(NOW - 60, EventKind.NOTE, SCRIPT, None))


@pytest.mark.parametrize(("address", "message"), REFUSED)
def test_what_cannot_be_shown_is_one_line_on_the_page_and_in_json(ask, address, message):
    response, html = ask(f"/{address}")
    assert response.status == 400
    assert message in html
    page, _, query = address.partition("?")
    response, body = ask(f"/api/{page}.json?{query}")
    assert response.status == 400
    error = json.loads(body)["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["hint"]


@pytest.mark.parametrize(
    "page", ["/history", "/compare", "/api/history.json", "/api/compare.json"]
)
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


def test_other_methods_are_not_allowed_and_only_files_of_the_package_are_served(ask):
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        response, _ = ask("/history", method)
        assert (response.status, response.headers["allow"]) == (405, "GET, HEAD"), method
    for name in ("..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "", "skep.css%00.js"):
        assert ask(f"/static/{name}")[0].status == 404, name


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
