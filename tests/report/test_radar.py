"""The radar: six spokes, outlines that need no colour to be told apart, and gaps where nothing was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skep.report.radar import RADIUS, WIDTH, radar_chart
from skep.report.subjects import subjects_of
from skep.verdicts import Advice, Axis, MixedSummary

NAMES = ("solo speed", "TTFT stability", "latency under load", "throughput", "side-task accuracy", "primary accuracy")


@pytest.fixture
def subjects(run):
    def made(*models):
        entries = []
        for i, values in enumerate(models):
            axes = tuple(Axis(name, "", value, "") for name, value in zip(NAMES, values, strict=False))
            entries.append(
                (replace(run, id=str(i)), MixedSummary(str(i), f"m{i}", "published", (), axes, Advice(None, None, ())))
            )
        return subjects_of(entries)

    return made


def _layers(spec, kind):
    return [layer for layer in spec["layer"] if layer["mark"]["type"] == kind]


def _outlines(spec):
    """The lines of models: thicker than those of the grid."""
    return [layer for layer in _layers(spec, "line") if layer["mark"]["strokeWidth"] > 1]


def _texts(spec):
    return [row for layer in _layers(spec, "text") for row in layer["data"]["values"]]


def test_the_first_axis_points_up_and_the_rim_is_one(subjects):
    spec = radar_chart(subjects((1.0, 0.5, 0.5, 0.5, 0.5, 0.5)))
    first = _outlines(spec)[0]["data"]["values"][0]
    centre_y = spec["height"] / 2
    assert first["x"] == WIDTH / 2
    assert centre_y - first["y"] == pytest.approx(RADIUS)


def test_values_beyond_the_rim_stay_on_it(subjects):
    """A share above one is a fault elsewhere; the picture does not run over its names for it."""
    spec = radar_chart(subjects((7.0, -3.0, 0.5, 0.5, 0.5, 0.5)))
    places = _outlines(spec)[0]["data"]["values"]
    assert spec["height"] / 2 - places[0]["y"] == pytest.approx(RADIUS)
    assert (places[1]["x"], places[1]["y"]) == (WIDTH / 2, spec["height"] / 2)


def test_an_axis_without_a_value_is_a_gap(subjects):
    """Five values make four sides; nothing is filled, and the name has a dash."""
    spec = radar_chart(subjects((1.0, None, 0.5, 0.5, 0.5, 0.5)))
    assert len(_outlines(spec)) == 4
    assert not any("fill" in layer["mark"] for layer in _outlines(spec))
    assert [row["label"] for row in _texts(spec)].count("–") == 1


def test_models_differ_in_dash_and_shape_and_letter(subjects):
    spec = radar_chart(subjects(6 * (0.4,), 6 * (0.6,), 6 * (0.8,)))
    assert len({tuple(layer["mark"].get("strokeDash", ())) for layer in _outlines(spec)}) == 3
    assert len({layer["mark"]["shape"] for layer in _layers(spec, "point")}) == 3
    assert [row["label"] for row in _texts(spec)].count("B  0.60") == 6


def test_many_models_leave_their_values_to_the_table(subjects):
    """Eight lines under each name would not be read."""
    spec = radar_chart(subjects(*(6 * (0.1 * i,) for i in range(1, 9))))
    assert not any("0.60" in row["label"] for row in _texts(spec))
    assert len(_outlines(spec)) == 8


def test_names_lie_inside_the_picture(subjects):
    """By the widest common letters: eight pixels and a half each at this size."""
    spec = radar_chart(subjects(6 * (0.5,), 6 * (0.5,)))
    assert len(_texts(spec)) > 6
    for layer in _layers(spec, "text"):
        align = layer["mark"]["align"]
        for row in layer["data"]["values"]:
            wide = 8.5 * len(row["label"])
            left = row["x"] - {"left": 0.0, "center": 0.5, "right": 1.0}[align] * wide
            assert left >= 0
            assert left + wide <= WIDTH
            assert 0 < row["y"] < spec["height"]


def test_nothing_measured_is_no_picture(subjects):
    assert radar_chart(subjects(6 * (None,))) is None
    assert radar_chart(subjects((0.5, 0.5))) is None
