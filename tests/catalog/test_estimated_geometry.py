"""Geometries made from parameter counts alone."""

from dataclasses import replace

import pytest

from skep.catalog.estimate import geometry_from_parameters
from skep.catalog.models import geometry
from skep.errors import UserError
from skep.planner.parts import parts_of

NAN = float("nan")


@pytest.mark.parametrize(
    ("total_b", "active_b"),
    [(0.135, 0.135), (1, 1), (7, 7), (9, None), (14, 14), (27, 27), (70, 70), (405, 405), (30, 3), (35, 3), (16, 2.4),
     (47, 13), (119, 6.5), (235, 22), (1000, 32)],
)  # fmt: skip
def test_the_guessed_widths_add_up(total_b, active_b):
    model = geometry_from_parameters("mine", total_b, active_b)
    parts = parts_of(replace(model, params_total=0.0))
    counted = parts.embedding + parts.head + parts.attention + parts.mlp + parts.experts
    assert counted == pytest.approx(total_b * 1e9, rel=0.12)
    assert model.estimated
    assert model.params_total == total_b * 1e9
    assert model.params_active == (active_b or total_b) * 1e9
    assert model.is_moe == (active_b is not None and active_b < total_b)
    assert model.heads % model.kv_heads == 0
    if model.is_moe:
        read = counted - parts.experts * (1 - model.experts_per_token / model.experts) - parts.embedding
        assert read == pytest.approx(active_b * 1e9, rel=0.2)


@pytest.mark.parametrize("slug", ["qwen3-8b", "qwen3-14b", "qwen3-32b", "llama-3.1-70b", "qwen3-30b-a3b"])
def test_a_guess_is_near_the_families_it_was_made_from(slug):
    known = geometry(slug)
    guess = geometry_from_parameters("x", known.params_total / 1e9, known.params_active / 1e9)
    assert guess.hidden == pytest.approx(known.hidden, rel=0.1)
    assert guess.layers == pytest.approx(known.layers, rel=0.15)
    assert guess.kv_bytes_per_token(2) == pytest.approx(known.kv_bytes_per_token(2), rel=0.5)


@pytest.mark.parametrize(
    ("total_b", "active_b"),
    [(0, 0), (-7, None), (NAN, None), (float("inf"), None), (7, 8), (7, 0), (7, -1), (1e9, None), (7, NAN)],
)
def test_impossible_counts_are_refused_in_a_line(total_b, active_b):
    with pytest.raises(UserError, match=r"`mine` cannot .+"):
        geometry_from_parameters("mine", total_b, active_b)
