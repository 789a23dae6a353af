"""The history page: everything in its address, nothing hidden, everything on it as JSON and CSV."""

import asyncio
import csv
import io
import json
import re

import pytest
from running_site import folders, running
from starlette.datastructures import QueryParams
from starlette.responses import HTMLResponse
from watched_store import NOW, fill

from skep.errors import StoreError, UserError
from skep.paths import user_paths
from skep.web.context import Site
from skep.web.history_data import HistoryQuery, read_query
from skep.web.layout import PLACE, streamed


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    found = user_paths(folders(tmp_path_factory.mktemp("watched")))
    fill(found)
    return found


@pytest.fixture(scope="module")
def ask(paths):
    with running(Site(paths, clock=lambda: NOW)) as asking:
        yield asking


@pytest.fixture(scope="module")
def public(paths):
    with running(Site(paths, public=True, clock=lambda: NOW)) as asking:
        yield asking


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    with running(Site(user_paths(folders(tmp_path_factory.mktemp("bare"))), clock=lambda: NOW)) as asking:
        yield asking


def _words(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_without_a_target_all_are_shown_small(ask):
    """Each links to its own page, with the same window."""
    _, html = ask("/history?window=30d")
    assert html.count('class="trend"') == 2
    assert 'href="/history?target=box&amp;window=30d"' in html
    assert "no figure yet" in html


def test_a_target_has_its_picture_its_words_and_its_figures(ask):
    response, html = ask("/history?target=box&window=30d")
    assert response.status == 200
    words = _words(html)
    assert "when the driver changed from 570 to 580" in words
    assert html.count('<svg class="series wide"') == 2
    assert "Median" in words
    assert "115 done, 2 failed, 6 missed" in words
    assert "Idle before it" in words
    assert "Throttled by: power cap" in words


def test_a_note_is_compared_before_and_after_by_itself(ask):
    _, html = ask("/history?target=box&window=7d")
    assert "it was noted: fans &lt;cleaned&gt;" in html
    assert "<cleaned>" not in html


def test_a_window_of_a_year_is_drawn_from_summaries(ask):
    """No sample is in it: the days are."""
    _, body = ask("/api/history.json?target=box&window=1y")
    (view,) = json.loads(body)["views"]
    assert view["history"]["points"] == []
    assert 10 <= len(view["history"]["spans"]) <= 11


def test_all_begins_with_the_first_day(ask):
    _, body = ask("/api/history.json?target=box&window=all")
    assert json.loads(body)["views"][0]["since"] == pytest.approx(NOW - 10 * 86400, abs=86400)


def test_a_series_of_another_target_falls_back_to_what_stands_for_this_one(ask):
    response, html = ask("/history?target=box&series=hot/long/c8/tok_s")
    assert response.status == 200
    assert '<option value="hot/short/c1/tok_s" selected="">' in html


def test_a_target_that_was_never_probed_says_so(ask):
    assert "new was not probed yet." in ask("/history?target=new")[1]


def test_two_targets_stand_beneath_each_other(ask):
    _, html = ask("/history?target=box&target=cloud")
    assert 'id="t0"' in html
    assert 'id="t1"' in html
    assert "These targets on one axis" in html
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_json_has_what_is_on_screen(ask):
    _, body = ask("/api/history.json?target=box&window=30d")
    (view,) = json.loads(body)["views"]
    assert view["series"] == "box/hot/short/c1/tok_s"
    assert len(view["history"]["points"]) == 115
    assert sum(point[2] for point in view["history"]["points"]) == 1
    assert view["history"]["changes"][0]["because"] == "the driver changed from 570 to 580"
    assert len(view["failed"]) == 2
    assert len(view["missed"]) == 1
    assert view["cold"]["series"] == "box/cold/short/c1/tok_s"
    assert view["host"][0]["name"] == "mean power"


def test_csv_has_a_row_for_every_mark(ask):
    response, body = ask("/api/history.csv?target=box&window=30d")
    assert response.headers["content-type"].startswith("text/csv")
    kinds = [row["kind"] for row in csv.DictReader(io.StringIO(body))]
    assert kinds.count("point") == 230
    assert kinds.count("change") == 1
    assert {"failed", "missed", "host", "event: version", "event: note", "alert: down"} <= set(kinds)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("target=bix", "there is no target"),
        ("target=box&window=3w", "is not a window"),
        ("target=box&series=fast", "names no series"),
        ("from=yesterday", "is not a time"),
        ("from=2026-02-01&to=2026-01-01", "is not before"),
        ("&".join(f"target={n}" for n in range(9)), "too many"),
    ],
)
def test_what_cannot_be_shown_is_one_line(ask, query, said):
    """On the page and in JSON alike, with what to do next."""
    response, html = ask(f"/history?{query}")
    assert response.status == 400
    assert said in html
    response, body = ask(f"/api/history.json?{query}")
    assert response.status == 400
    assert said in json.loads(body)["error"]["message"]
    assert json.loads(body)["error"]["hint"]


def test_nothing_stored_yet_says_how_to_begin(bare):
    response, html = bare("/history")
    assert response.status == 200
    assert "skep monitor add" in html
    assert json.loads(bare("/api/history.json")[1]) == {"views": []}


def test_a_public_page_has_no_form_and_no_address(public):
    """Nor where an alert's words hold one."""
    for path in ("/history?target=box&window=30d", "/api/history.json?target=box&window=30d"):
        _, body = public(path)
        assert "10.9.8.7" not in body
        assert "/models/" not in body
    assert 'action="/notes"' not in public("/history")[1]


def test_an_address_asks_for_what_it_was_made_from():
    """From query to value and back."""
    for query in ("target=a&target=b&series=hot%2Fshort%2Fc1%2Ftok_s&window=30d", "from=2026-01-01&to=2026-02-01"):
        assert read_query(QueryParams(query), NOW).query() == query


def test_the_last_day_of_a_window_is_in_it():
    asked = read_query(QueryParams("from=2026-11-03&to=2026-11-03"), NOW)
    assert asked.until - asked.since == 86400


def test_a_removed_link_keeps_the_target():
    asked = HistoryQuery(("box",), None, "", 1.0, 2.0, "2026-01-01", "2026-01-02")
    assert asked.over("7d").query() == "target=box&window=7d"


def test_what_goes_wrong_half_way_is_told_on_the_page(paths):
    """A page that has begun cannot change its status; in public nothing is told that may name a path."""

    def parts():
        yield "<p>first</p>"
        raise StoreError("`/home/somebody` refused")

    async def whole(site):
        frame = HTMLResponse(f"<html>{PLACE}</html>")
        return b"".join([part async for part in streamed(site, frame, parts()).body_iterator]).decode()

    told = asyncio.run(whole(Site(paths)))
    assert "first" in told
    assert "/home/somebody" in told
    assert told.rstrip().endswith("</html>")
    assert "/home/somebody" not in asyncio.run(whole(Site(paths, public=True)))


def test_too_far_a_time_is_a_users_error():
    with pytest.raises(UserError):
        read_query(QueryParams("from=0001-01-01"), NOW)
