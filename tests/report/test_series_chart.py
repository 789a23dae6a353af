"""Pictures over time show what was measured, what was not, and what changed,
by day and by night.
"""

import json
import re
import time
from xml.etree import ElementTree as ET

import pytest
from reading import colours_of, words_of

from skep.monitor.records import (
    DAY_S,
    EventKind,
    MonitorEvent,
    SeriesChange,
    SeriesKey,
    SeriesPoint,
)
from skep.report import theme
from skep.report.page import make_environment
from skep.report.series_chart import (
    Picture,
    Track,
    series_chart,
    series_spec,
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


def _picture(points, **options):
    return Picture(
        "box", "the words", "tok/s", SINCE, UNTIL, [Track("box", points, _band(points))], **options
    )


def _change(after, because="then"):
    key = SeriesKey.parse("box/hot/short/c1/tok_s")
    between = (SINCE, SINCE + 2 * DAY_S)
    return SeriesChange(
        key, SINCE + DAY_S, between, 100.0, after, after / 101, after / 99, 9, 9, because
    )


def _note(at, text):
    return MonitorEvent(at, EventKind.NOTE, text)


def _rows(picture, name, **options):
    return series_spec(picture, **options)["datasets"].get(name, [])


def _svg(picture):
    """The first of the drawings on a page."""
    return (
        str(series_chart(picture)).partition("</svg>")[0].removeprefix('<div class="chart">')
        + "</svg>"
    )


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
    labels_drawn = [
        word for word in words_of(_svg(picture)) if re.match("[0-9]+ [A-Z]|[A-Z]|.*:", word)
    ]
    assert labels_drawn[: len(labels)] == labels


def test_moments_are_told_on_the_clock_of_the_zone():
    assert when(SINCE) == "Sat 17 Oct, 22:00"
    assert when(SINCE, now=SINCE + 365 * DAY_S) == "Sat 17 Oct 2026, 22:00"
    assert zone_name(SINCE) == "CEST (UTC+02:00)"
    assert wall_s(SINCE) == SINCE + 7200


def test_the_axis_begins_at_zero_only_where_values_are_near_it():
    """Else a change of 4 % could not be seen; that it does not is said."""
    assert value_range([3, 54])[0] == 0
    assert value_range([90, 100])[0] > 80
    assert (
        series_spec(_picture(_points()))["title"]["text"] == "tok/s · the axis does not begin at 0"
    )
    low = [SeriesPoint(SINCE, 1.0), SeriesPoint(UNTIL - 1, 50.0)]
    assert series_spec(_picture(low))["title"]["text"] == "tok/s"


@pytest.mark.parametrize("values", [(5.0, 5.0), (0.0, 0.0), (-3.0, 4.0), (float("nan"), 1.0)])
def test_any_values_have_an_axis(values):
    low, high = value_range(values)
    assert high > low


def test_a_picture_is_well_formed_and_says_what_it_shows():
    svg = ET.fromstring(_svg(_picture(_points())))
    assert (svg.get("role"), svg.get("aria-label")) == ("img", "the words")


def test_every_colour_has_its_night_and_nothing_needs_an_inline_style():
    """An attribute with any other value would stay as it is in the dark."""
    picture = _picture(
        _points(busy=(3,)),
        changes=[_change(96.0)],
        events=[(1, _note(SINCE + 9, "note"))],
        failed=[SINCE + 5],
        missed=[(SINCE, UNTIL)],
    )
    assert colours_of(_svg(picture)) <= set(theme.NIGHT)
    assert "style=" not in str(series_chart(picture))


def test_busy_moments_are_hollow_and_have_no_say_in_the_axis():
    points = [*_points(60), SeriesPoint(SINCE + 100, 5.0, busy=True)]
    with_busy = Picture(
        "box", "", "tok/s", SINCE, UNTIL, [Track("box", points, _band(points[:-1]))]
    )
    assert with_busy.axis == _picture(points[:-1]).axis
    legend = make_environment("skep.report").get_template("series.html").module.legend(with_busy)
    assert "other requests were running" in legend
    assert _rows(with_busy, "outliers")[0]["tip"] == "1 below the axis: 5 to 5"


def test_one_value_far_off_does_not_press_the_others_flat():
    """It is drawn at the edge, with its value."""
    picture = Picture(
        "box",
        "",
        "tok/s",
        SINCE,
        UNTIL,
        [Track("box", [*_points(200), SeriesPoint(UNTIL - 9, 5000.0)])],
    )
    assert [row["tip"] for row in _rows(picture, "outliers")] == [
        "1 above the axis: 5,000 to 5,000"
    ]
    assert picture.axis[1] < 60


def test_missed_probes_are_shaded_and_failed_ones_are_ticks():
    picture = _picture(
        _points(), failed=[SINCE + 3 * DAY_S], missed=[(SINCE + DAY_S, SINCE + 2 * DAY_S)]
    )
    assert len(_rows(picture, "missed")) == 1
    assert [row["tip"] for row in _rows(picture, "failed")] == ["1 failed"]


def test_a_line_is_broken_where_nothing_was_measured_and_at_a_step():
    points = [
        point for point in _points(200) if not SINCE + 3 * DAY_S < point.at < SINCE + 6 * DAY_S
    ]
    track = Track("box", points, _band(points), steps=(SINCE + 9 * DAY_S,))
    picture = Picture("box", "", "tok/s", SINCE, UNTIL, [track])
    assert len({row["piece"] for row in _rows(picture, "band")}) == 3


def test_a_change_has_its_size_above_it_and_its_sentence():
    picture = _picture(_points(), changes=[_change(95.9, "<cleaned>")])
    assert "−4.1 %" in words_of(_svg(picture))
    assert ", when &lt;cleaned&gt;" in _svg(picture)


@pytest.mark.parametrize(
    ("ratio", "label"), [(0.959, "−4.1 %"), (1.03, "+3.0 %"), (2.31, "2.3×"), (1.0, "0.0 %")]
)
def test_sizes_are_told_as_people_say_them(ratio, label):
    assert shift_label(ratio) == label


def test_flags_that_would_cover_each_other_become_one():
    near = [(i + 1, _note(SINCE + DAY_S + i * 600, "restart")) for i in range(3)]
    lone = (4, _note(SINCE + 7 * DAY_S, "NVLink bridges removed"))
    first, second = _rows(_picture(_points(), events=[*near, lone]), "events")
    assert (first["label"], second["label"]) == ("⚑ 1–3", "⚑ 4")
    assert second["tip"].endswith(": NVLink bridges removed")


def test_names_cannot_end_the_data_of_the_script():
    name = "</script><b>"
    html = str(
        series_chart(Picture(name, name, "tok/s", SINCE, UNTIL, [Track(name, _points(10))]))
    )
    island = re.search(r'<script type="application/json">(.*?)</script>', html)[1]
    assert json.loads(island)["description"] == name
    assert "<b>" not in html


def test_two_thousand_points_stay_small():
    """Both drawings and the data together, as the page carries them."""
    assert len(series_chart(_picture(_points(2000)))) < 220_000


def test_what_a_point_says_has_its_time_its_value_and_the_median_then():
    row = _rows(_picture(_points(20, busy=(0,))), "points")[0]
    expected = {
        "t": 1000 * wall_s(SINCE),
        "y": 50.0,
        "busy": True,
        "middle": 50.0,
        "low": 49.0,
        "high": 51.0,
    }
    assert {**row, **expected} == row


def test_a_window_too_long_for_points_says_its_medians():
    rows = _rows(
        Picture("box", "", "tok/s", SINCE, UNTIL, [Track("box", (), _band(_points(20)))]), "points"
    )
    assert len(rows) == 20
    assert all(row["unseen"] for row in rows)


def test_a_trend_names_what_it_shows():
    points = _points(40)
    picture = Picture(
        "box", "it rose", "", SINCE, UNTIL, [Track("box", (), _band(points))], [_change(103.0)]
    )
    svg = ET.fromstring(trend_svg(picture))
    assert svg.get("aria-label") == "it rose"
    (title,) = [element.text for element in svg.iter("title")]
    assert title.startswith("+3.0 %")
