"""Pictures draw what is known, stand alone, and turn with the reader's colour scheme."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from skep.records import RunState, SweepSummary
from skep.report import charts, theme
from skep.report.sweep import sweep_picture

SVG = "{http://www.w3.org/2000/svg}"


def _words(svg):
    return ["".join(text.itertext()) for text in ET.fromstring(svg).iter(f"{SVG}text")]


def _values(spec, field):
    return [row[field] for layer in spec["layer"] for row in layer["data"]["values"] if field in row]


def test_picture_is_an_svg_document_with_real_text(run, summary):
    """Text stays text: it can be selected, searched and read aloud."""
    words = _words(sweep_picture(run, summary))
    for word in ("Qwen/Qwen3-30B-A3B-Instruct-AWQ", "Effective tok/s", "231", "61 %", "Time to first token"):
        assert word in words


def test_every_colour_has_its_night_colour(run, summary, page):
    """A colour that the night rules do not know would stay dark on dark."""
    for drawing in (sweep_picture(run, summary), page):
        colours = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+)"', drawing))
        assert colours <= set(theme.NIGHT)
        assert theme.HONEY in colours


def test_picture_says_what_it_is_not(run, summary):
    """A picture in a README carries its marks with it."""
    words = " ".join(_words(sweep_picture(replace(run, simulated=True, state=RunState.RUNNING), summary)))
    assert "SIMULATED · INCOMPLETE" in words


def test_hostile_model_name_stays_text_in_the_picture(run, summary):
    """The name is drawn, not parsed, and control characters do not break the document."""
    name = "<script>\x00</script>\"'&"
    svg = sweep_picture(replace(run, model=name), summary)
    assert "<script" not in svg
    assert "<script>�</script>\"'&" in _words(svg)


def test_picture_of_nothing_says_so(run):
    """Three empty panels, no axis with a made-up zero."""
    empty = SweepSummary(run.id, (), None, None, None, client_limited=False)
    assert _words(sweep_picture(run, empty)).count("not measured") == 3


def test_level_without_a_value_is_left_out(levels):
    """Unknown is a gap in the line, never a zero on it."""
    gap = (levels[0], replace(levels[1], effective_tok_s=None, contention_pct=None, ttft_ms=None), *levels[2:])
    assert 4 not in _values(charts.effective_chart(gap), "c")
    assert 4 not in _values(charts.contention_chart(gap), "c")
    assert 4 not in _values(charts.ttft_chart(gap), "c")


def test_ideal_line_is_one_agent_times_c(levels):
    """It starts at C=1 and ends at the last level or at the edge of the picture."""
    ideal = charts.effective_chart(levels)["layer"][0]["data"]["values"]
    assert ideal[0]["c"] == 1
    assert all(point["ideal"] == pytest.approx(point["c"] * levels[0].effective_tok_s) for point in ideal)


def test_no_ideal_line_without_one_agent_alone(levels):
    """Without C=1 there is nothing to be ideal against."""
    assert _values(charts.effective_chart(levels[1:]), "ideal") == []


def test_spread_over_repeats_is_drawn(levels):
    """The band runs from the slowest to the fastest repeat."""
    spec = charts.effective_chart(levels)
    assert set(_values(spec, "low")) == {level.effective_low for level in levels}
    assert set(_values(spec, "high")) == {level.effective_high for level in levels}


def test_crowded_levels_keep_the_labels_apart(levels):
    """Of levels too close to label, the later one is named."""
    crowd = [replace(levels[0], concurrency=c) for c in (1, 2, 4, 8, 16, 32, 64, 128)]
    labelled = charts.effective_chart(crowd)["layer"][6:]
    assert sorted(row["c"] for layer in labelled for row in layer["data"]["values"]) == [4, 16, 32, 64, 128]


def test_long_waits_are_drawn_in_seconds(levels):
    """An axis of 150,000 ms helps nobody."""
    slow = replace(levels[3], ttft_ms=replace(levels[3].ttft_ms, p95=150_000.0))
    spec = charts.ttft_chart([slow])
    assert spec["layer"][0]["encoding"]["y"]["title"] == "s"
    assert 150.0 in _values(spec, "ms")


def test_wall_bars_need_both_walls(summary):
    """One bar compares with nothing."""
    assert charts.wall_chart(replace(summary, serial_wall_s=None)) is None
    assert set(_values(charts.wall_chart(summary), "how")) == {"serial", "swarm"}
