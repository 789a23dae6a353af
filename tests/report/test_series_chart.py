"""Pictures over time show what was measured, what was not, and what changed, by day and by night."""

from __future__ import annotations

import json
import re
import time
from xml.etree import ElementTree as ET

import pytest
from reading import colours_of, words_of

from skep.monitor.records import DAY_S, EventKind, MonitorEvent, SeriesChange, SeriesKey, SeriesPoint
from skep.report import theme
from skep.report.page import make_environment
from skep.report.series_chart import (
    Picture,
    Track,
    series_picture,
    series_svg,
    shift_label,
    trend_svg,
    value_range,
    wall_s,
    when,
    zone_name,
)

SINCE = 1_792_267_200.0  # Sat 17 Oct 2026, 20:00 UTC; clocks go back on the 25th
UNTIL = SINCE + 14 * DAY_S


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _points(count=100, value=50.0, busy=()):
    step = (UNTIL - SINCE) / count
    return [SeriesPoint(SINCE + i * step, value + i % 3, i in busy) for i in range(count)]


def _band(points):
    return [(point.at, point.value, point.value - 1, point.value + 1) for point in points]


def _picture(points, **more):
    return Picture("box", "the words", "tok/s", SINCE, UNTIL, [Track("box", points, _band(points))], **more)


def _change(after, because="then"):
    key, between = SeriesKey.parse("box/hot/short/c1/tok_s"), (SINCE, SINCE + 2 * DAY_S)
    return SeriesChange(key, SINCE + DAY_S, between, 100.0, after, after / 101, after / 99, 9, 9, because)


def _note(at, text):
    return MonitorEvent(at, EventKind.NOTE, text)


def _svg(picture, **more):
    return series_svg(picture, "c", **more)


@pytest.mark.parametrize(
    ("days", "labels"),
    [
        (1, ["Sun 18 Oct", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00"]),
        (14, [f"{day} Oct" for day in range(18, 29)]),
        (400, ["Nov 2026", "Dec", "Jan 2027", "Feb", "Mar"]),
    ],
)
def test_days_begin_at_midnight_on_both_sides_of_a_clock_change(days, labels):
    """The 25th of October 2026 has 25 hours in Berlin. The year is told where it begins."""
    picture = Picture("box", "", "tok/s", SINCE, SINCE + days * DAY_S, [Track("box", _points())])
    found = [one for one in words_of(_svg(picture)) if re.match("[0-9]+ [A-Z]|[A-Z]|.*:", one)]
    assert found[: len(labels)] == labels


def test_moments_are_told_on_the_clock_of_the_zone():
    assert when(SINCE) == "Sat 17 Oct, 22:00"
    assert when(SINCE, now=SINCE + 365 * DAY_S) == "Sat 17 Oct 2026, 22:00"
    assert zone_name(SINCE) == "CEST (UTC+02:00)"
    assert wall_s(SINCE) == SINCE + 7200


def test_the_axis_begins_at_zero_only_where_values_are_near_it():
    """Else a change of 4 % could not be seen; that it does not is said."""
    assert value_range([3, 54])[0] == 0
    assert value_range([90, 100])[0] > 80
    assert "the axis does not begin at 0" in " ".join(words_of(_svg(_picture(_points()))))
    low = [SeriesPoint(at, value, busy) for at, value, busy in [(SINCE, 1.0, False), (UNTIL - 1, 50.0, False)]]
    assert "does not begin" not in " ".join(words_of(_svg(_picture(low))))


@pytest.mark.parametrize("values", [(5.0, 5.0), (0.0, 0.0), (-3.0, 4.0), (float("nan"), 1.0)])
def test_any_values_have_an_axis(values):
    low, high = value_range(values)
    assert high > low


def test_a_picture_is_well_formed_and_says_what_it_shows():
    """For readers who see no picture: title and description, named as its label."""
    svg = ET.fromstring(_svg(_picture(_points())))
    assert svg.get("role") == "img"
    assert svg.find("title").text == "box"
    assert svg.find("desc").text == "the words"
    assert svg.get("aria-labelledby") == "c-t c-d"


def test_every_colour_has_its_night():
    """An attribute with any other value would stay as it is in the dark."""
    picture = _picture(
        _points(busy=(3,)),
        changes=[_change(96.0)],
        events=[(1, _note(SINCE + 9, "note"))],
        failed=[SINCE + 5],
        missed=[(SINCE, UNTIL)],
    )
    assert colours_of(_svg(picture)) <= set(theme.NIGHT)


def test_nothing_in_a_picture_needs_an_inline_style():
    assert "style=" not in str(series_picture(_picture(_points()), "c"))


def test_busy_moments_are_hollow_and_have_no_say_in_the_axis():
    points = [*_points(60), SeriesPoint(SINCE + 100, 5.0, busy=True)]
    picture = _picture(points[:-1])
    with_busy = Picture("box", "", "tok/s", SINCE, UNTIL, [Track("box", points, _band(points[:-1]))])
    assert words_of(_svg(with_busy)) == words_of(_svg(picture))
    assert "other requests were running" in make_environment("skep.report").get_template("series.html").module.legend(
        with_busy
    )
    assert "1 below the axis" in _svg(with_busy)


def test_one_value_far_off_does_not_press_the_others_flat():
    """It is drawn at the edge, with its value."""
    points = [*_points(200), SeriesPoint(UNTIL - 9, 5000.0)]
    svg = _svg(Picture("box", "", "tok/s", SINCE, UNTIL, [Track("box", points)]))
    assert "1 above the axis: 5,000 to 5,000" in svg
    assert "60" not in words_of(svg)


def test_missed_probes_are_shaded_and_failed_ones_are_ticks():
    svg = _svg(_picture(_points(), failed=[SINCE + 3 * DAY_S], missed=[(SINCE + DAY_S, SINCE + 2 * DAY_S)]))
    assert f'fill="{theme.STONE}"' in svg
    assert "1 failed" in svg


def test_a_line_is_broken_where_nothing_was_measured():
    points = [point for point in _points(200) if not SINCE + 3 * DAY_S < point.at < SINCE + 6 * DAY_S]
    lines = re.findall(r'<path d="(M[^"]*)" stroke="[^"]*" stroke-width="2.4"', _svg(_picture(points)))
    assert [line.count("M") for line in lines] == [2]


def test_a_change_has_its_size_above_it_and_its_sentence():
    svg = _svg(_picture(_points(), changes=[_change(95.9, "<cleaned>")]))
    assert "−4.1 %" in words_of(svg)
    assert ", when &lt;cleaned&gt;" in svg


@pytest.mark.parametrize(("ratio", "label"), [(0.959, "−4.1 %"), (1.03, "+3.0 %"), (2.31, "2.3×"), (1.0, "0.0 %")])
def test_sizes_are_told_as_people_say_them(ratio, label):
    assert shift_label(ratio) == label


def test_flags_that_would_cover_each_other_become_one():
    """A lone one has its words beside it."""
    near = [(i + 1, _note(SINCE + DAY_S + i * 600, "restart")) for i in range(3)]
    lone = (4, _note(SINCE + 7 * DAY_S, "NVLink bridges removed"))
    labels = words_of(_svg(_picture(_points(), events=[*near, lone])))
    assert "1–3" in labels
    assert "NVLink bridges removed" in labels


def test_names_cannot_end_the_data_of_the_script():
    name = "</script><b>"
    points = _points(10)
    html = str(series_picture(Picture(name, name, "tok/s", SINCE, UNTIL, [Track(name, points)]), "c"))
    island = re.search(r'<script type="application/json" class="chart-data">(.*?)</script>', html)[1]
    assert json.loads(island)["tracks"][0]["name"] == name
    assert "<b>" not in html


def test_two_thousand_points_stay_small():
    """Both drawings and the data together, as the page carries them."""
    assert len(series_picture(_picture(_points(2000)), "c")) < 150_000


def test_a_small_picture_is_drawn_once():
    assert str(series_picture(_picture(_points(20)), "c", size="small")).count("<svg") == 1


def test_a_trend_names_what_it_shows():
    points = _points(40)
    picture = Picture("box", "it rose", "", SINCE, UNTIL, [Track("box", (), _band(points))], [_change(103.0)])
    svg = ET.fromstring(trend_svg(picture))
    assert svg.get("aria-label") == "it rose"
    (title,) = [one.text for one in svg.iter("title")]
    assert title.startswith("+3.0 %")
