"""The history page: everything in its address, nothing hidden,
everything on it as JSON and CSV.
"""

import asyncio
import re

import pytest
import watched_store
from starlette.datastructures import QueryParams
from starlette.responses import HTMLResponse
from watched_store import NOW

from skep.errors import StoreError
from skep.monitor.history import history_of, stepped
from skep.monitor.records import DAY_S, Heat, ProbeShape, SeriesKey, SeriesMetric
from skep.web.context import Site
from skep.web.history import axis_begin, read_query
from skep.web.layout import PARTS_MARK, streamed

fill = watched_store.fill


def _words(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_every_target_is_shown_small(ask):
    """Each links to its own page, with the same window."""
    _, html = ask("/history?window=30d")
    assert html.count('class="trend"') == 2
    assert 'href="/history?target=box&amp;window=30d"' in html


def test_a_target_that_was_never_probed_says_so(ask):
    assert "no values yet" in ask("/history?window=30d")[1]
    assert "new has not been probed yet." in ask("/history?target=new")[1]


def test_two_targets_stand_beneath_each_other(ask):
    _, html = ask("/history?target=box&target=cloud")
    assert 'id="t0"' in html
    assert 'id="t1"' in html
    assert "Compare these targets on one axis" in html
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_a_target_has_its_picture_its_words_and_its_figures(ask):
    response, html = ask("/history?target=box&window=30d")
    assert response.status == 200
    words = _words(html)
    assert "when the driver changed from 570 to 580" in words
    assert html.count('<svg class="wide"') == 1
    assert "of 123 probes, 6 missed and 2 failed" in words
    assert "GPU throttled by: power cap" in words


def test_a_note_is_compared_with_what_was_before_it(ask):
    _, html = ask("/history?target=box&window=7d")
    assert "it was noted: fans &lt;cleaned&gt;" in html
    assert "<cleaned>" not in html


def test_json_has_what_is_on_screen(ask):
    (view,) = ask.json("/api/history.json?target=box&window=30d")["views"]
    assert view["series"] == "box/hot/short/c1/tok_s"
    assert len(view["history"]["points"]) == 115
    assert sum(point[2] for point in view["history"]["points"]) == 1
    assert view["history"]["changes"][0]["because"] == "the driver changed from 570 to 580"
    assert len(view["failed"]) == 2
    assert len(view["missed"]) == 1
    assert view["throttled"] == ["power cap"]


def test_json_of_a_year_has_the_days_and_no_sample(ask):
    (view,) = ask.json("/api/history.json?target=box&window=1y")["views"]
    assert view["history"]["points"] == []
    assert 10 <= len(view["history"]["spans"]) <= 11


def test_a_public_page_has_no_form_and_no_address(public):
    """Nor where an alert's words hold one."""
    for path in ("/history?target=box&window=30d", "/api/history.json?target=box&window=30d"):
        _, body = public(path)
        assert "10.9.8.7" not in body
        assert "/models/" not in body
    assert 'action="/notes"' not in public("/history")[1]


def test_an_address_asks_for_what_it_was_made_from():
    """From query to value and back."""
    query = "target=a&target=b&series=hot%2Fshort%2Fc1%2Ftok_s&window=30d"
    assert read_query(QueryParams(query), NOW).query() == query


def test_a_series_that_a_target_does_not_have_falls_back_to_its_first(ask):
    response, html = ask("/history?target=box&series=hot/long/c8/tok_s")
    assert response.status == 200
    assert '<option value="hot/short/c1/tok_s" selected="">' in html


def test_what_goes_wrong_half_way_is_told_on_the_page(paths):
    """A page that has begun cannot change its status; in public nothing is told that may name a
    path.
    """

    def parts(_store):
        yield "<p>first</p>"
        raise StoreError("`/home/somebody` refused")

    async def whole(site):
        frame = HTMLResponse(f"<html>{PARTS_MARK}</html>")
        return b"".join(
            [part async for part in streamed(site, frame, parts).body_iterator]
        ).decode()

    page = asyncio.run(whole(Site(paths)))
    assert "first" in page
    assert "/home/somebody" in page
    assert page.rstrip().endswith("</html>")
    assert "/home/somebody" not in asyncio.run(whole(Site(paths, public=True)))


# The band of a picture begins anew at a change, so that a step looks like one.

BOX = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
COLD = SeriesKey("box", Heat.COLD, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)


@pytest.fixture
def series(paths):
    with Site(paths).series() as stored:
        yield stored


def test_the_median_begins_anew_at_a_step(series):
    history = history_of(series, BOX, NOW - 9 * DAY_S, NOW)
    (step,) = history.steps
    before = [row[1] for row in history.band if row[0] < step]
    after = [row[1] for row in history.band if row[0] >= step]
    assert min(before) > 98
    assert max(after) < 94


def test_a_step_before_the_window_has_no_say(series):
    history = history_of(series, BOX, NOW - 3 * DAY_S, NOW)
    assert history.steps == ()
    assert max(row[1] for row in history.band) < 94


def test_cold_runs_have_the_step_as_well(series):
    assert len(history_of(series, COLD, NOW - 9 * DAY_S, NOW).steps) == 1


def test_without_a_step_the_median_is_not_changed():
    values = [(float(hour), 1.0) for hour in range(20)]
    assert len(stepped(values, (), 5.0)) == 20
    assert [row[0] for row in stepped(values, (10.0,), 5.0)] == [*range(10), *range(14, 20)]


def test_a_time_axis_begins_where_the_data_begins():
    week = 7 * 86400.0
    hour = 3600.0
    assert axis_begin(0.0, week, week - hour) == pytest.approx(week - 1.02 * hour)
    assert axis_begin(0.0, week, 10.0) == 0.0
    assert axis_begin(0.0, week) == 0.0
    assert axis_begin(0.0, week, week) == week - 30
