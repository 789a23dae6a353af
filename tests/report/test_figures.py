"""Numbers read as a person would write them."""

from __future__ import annotations

import pytest

from skep.units import fact_list, moment, number, percent, printable, public_url, shortened, times


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (float("inf"), "–"), (0.0, "0.00"), (0.417, "0.42"), (41.74, "41.7"),
     (231.4, "231"), (12345.6, "12,346"), (-2.44, "−2.4")],
)  # fmt: skip
def test_number_has_three_figures_or_a_dash(value, text):
    """What is unknown or not finite is a dash."""
    assert number(value) == text


def test_rounded_zero_has_no_sign():
    """−0 % would be read as a gain."""
    assert percent(-0.2) == "0 %"


def test_unit_is_not_put_behind_a_dash():
    """ "– %" says nothing that "–" does not."""
    assert percent(None) == times(None) == moment(None) == "–"


def test_facts_of_any_shape_become_text():
    """Nested JSON is written out; sizes are in their units; what is empty is unknown."""
    facts = {
        "gpus": [{"name": "a", "memory_bytes": 2**30, "power_limit_w": None}, {"name": "b"}],
        "features": ["x", "y"],
        "memory_bytes": 2**31,
        "ssl": False,
        "empty": [],
        "temperature": 0.70,
        "none": None,
    }
    assert fact_list(facts) == [
        ("gpus", "name a, memory 1.0 GiB; name b"),
        ("features", "x, y"),
        ("memory", "2.0 GiB"),
        ("ssl", "no"),
        ("empty", "–"),
        ("temperature", "0.7"),
        ("none", "–"),
    ]


def test_text_keeps_letters_and_loses_control_characters():
    """XML forbids them, even escaped."""
    assert printable("naïve 模型\u00a0🐝\n\x1b\ud800") == "naïve 模型\u00a0🐝\n��"


def test_long_text_is_cut_with_an_ellipsis():
    """An engine may answer with a whole page of HTML."""
    assert shortened("x" * 500, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("url", "shown"),
    [("http://u:p@h:1/v1", "http://h:1/v1"), ("http://h/v1", "http://h/v1"), ("http://[broken", "http://[broken")],
)
def test_url_is_shown_without_its_password(url, shown):
    """Even a URL that cannot be parsed is shown rather than lost."""
    assert public_url(url) == shown
