"""Pictures draw what is known, stand alone, and turn with the reader's colour scheme."""

from itertools import pairwise

import pytest
from msgspec.structs import replace
from reading import values_of

from skep.report import charts
from skep.stats.percentiles import Percentiles
from skep.stats.turning import Turning
from skep.units import Interval


def rows_at(spec, place):
    return spec["layer"][place]["data"]["values"]


def test_level_without_a_value_is_left_out(levels):
    """Unknown is a gap in the line, never a zero on it."""
    gap = (
        levels[0],
        replace(levels[1], effective_tok_s=None, contention_pct=None, ttft_ms=None),
        *levels[2:],
    )
    for chart in (charts.effective_chart, charts.contention_chart, charts.ttft_chart):
        assert set(values_of(chart(levels), "c")) - set(values_of(chart(gap), "c")) == {4}


def test_ideal_line_is_one_agent_times_c(levels):
    """It starts at C=1 and ends at the last level or at the edge of the picture; without C=1 there
    is none.
    """
    ideal = rows_at(charts.effective_chart(levels), 0)
    assert ideal[0]["c"] == 1
    assert all(
        point["value"] == pytest.approx(point["c"] * levels[0].effective_tok_s) for point in ideal
    )
    assert "ideal: C × one agent" not in values_of(charts.effective_chart(levels[1:]), "label")


@pytest.mark.parametrize(
    ("crowd", "labelled", "scale"),
    [
        ((1, 2, 4, 8, 16, 17, 18, 20), [2, 4, 8, 16, 18, 20], None),
        ((1, 2, 4, 8, 16, 32, 64, 128), None, "log"),
    ],
)
def test_crowded_levels_keep_the_labels_apart(levels, crowd, labelled, scale):
    """Of levels too close to label, the later one is named; 1, 2 and 4 are told apart on an axis
    that ends at 128.
    """
    spec = charts.effective_chart([replace(levels[0], concurrency=c) for c in crowd])
    named = sorted({row["c"] for row in rows_at(spec, -1) if row["weight"] == 600})
    assert named == (labelled or list(crowd))
    assert spec["encoding"]["x"]["scale"].get("type") == scale


def test_interval_is_drawn_where_there_is_one_else_the_spread_over_repeats(complete, levels):
    """The caption says which levels have the spread of their repeats instead."""
    spec = charts.effective_chart(levels)
    assert set(values_of(spec, "low")) == {level.effective_low for level in levels}
    assert set(values_of(spec, "high")) == {level.effective_high for level in levels}
    mixed = (levels[0], *complete.levels[1:])
    low = values_of(charts.effective_chart(mixed), "low")
    assert {complete.levels[1].effective_interval.low, levels[0].effective_low} <= set(low)
    assert charts.band_caption(mixed).endswith("hollow: client-limited")
    assert "hollow" not in charts.band_caption(levels[:3])


def test_interval_of_any_width_leaves_the_curve_readable(levels):
    """Repeats that differ much give an interval far wider than the picture."""
    wide = replace(levels[0], effective_interval=Interval(-900.0, 41.7, 980.0))
    spec = charts.effective_chart((wide, *levels[1:]))
    assert spec["encoding"]["y"]["scale"]["domain"][1] < 600
    assert min(values_of(spec, "low")) == 0


def test_plateau_is_left_out_where_it_was_never_reached(complete, levels):
    """A level may end before it is full."""
    assert complete.levels[3].plateau_tok_s in values_of(
        charts.effective_chart(complete.levels), "value"
    )
    assert (
        len(charts.effective_chart(levels)["layer"])
        == len(charts.effective_chart(complete.levels)["layer"]) - 1
    )


def test_knee_and_cliff_are_marked_where_they_are_known(complete):
    both = values_of(charts.effective_chart(complete.levels, complete.turning), "label")
    assert {"knee: C = 8", "cliff: C = 8"} <= set(both)
    unsure = Turning(8, (4, 16), None, None, None, sure=False, unclear=(8, 16))
    values = values_of(charts.effective_chart(complete.levels, unsure), "label")
    assert "knee: C = 8" in values
    assert not any("cliff" in word for word in values)


def test_percentiles_are_named_at_the_end_of_their_curves(levels):
    """Three of TTFT, two of TPOT, their names apart from each other."""
    assert len(rows_at(charts.ttft_chart(levels), -1)) == 3
    assert len(rows_at(charts.tpot_chart(levels), -1)) == 2
    flat = charts.ttft_chart([replace(levels[3], ttft_ms=Percentiles(100.0, 101.0, 102.0, 100.0))])
    assert min(b - a for a, b in pairwise(sorted(row["value"] for row in rows_at(flat, -1)))) > 7


def test_long_waits_are_drawn_in_seconds(levels):
    """An axis of 150,000 ms helps nobody."""
    spec = charts.ttft_chart(
        [replace(levels[3], ttft_ms=replace(levels[3].ttft_ms, p95=150_000.0))]
    )
    assert spec["encoding"]["y"]["title"] == "s"
    assert 150.0 in values_of(spec, "value")
