"""The mixed workload as it is read from its data: what the published one said of itself holds
here.
"""

import hashlib
import json

import pytest

from skep.quality.mixed_figures import AXES, LEVEL_NAMES, PRIMARY, SIDE, TEMPERATURE, TITLES
from skep.workload.filling import pieces
from skep.workload.items import EXECUTED_CHECKS, item_from_json, item_json
from skep.workload.prompts import workload_fingerprint

ITEMS = [*PRIMARY, *SIDE]
SIDE_BY_ID = {item.id: item for item in SIDE}


def test_levels_limits_and_temperature_are_the_published_ones():
    assert LEVEL_NAMES == {1: "P1", 2: "P1+S1", 3: "P1+S1-S2", 5: "P1+S1-S4"}
    assert TEMPERATURE == 0.2
    assert (
        [item.id for item in ITEMS]
        == ["P1.1", "P1.2", "P1.3", "S1", "S2", "S3", "S4"]
        == list(TITLES)
    )
    assert {item.max_tokens for item in PRIMARY} == {1024}
    assert {item.max_tokens for item in SIDE} == {512}
    assert len(AXES) == 6


def test_prompts_are_those_of_earlier_runs():
    """Runs of before and after can be held against each other only while the prompts are the same,
    byte for byte.
    """
    requests = [
        [item.id, [dict(message) for message in item.messages], item.max_tokens, item.family]
        for item in ITEMS
    ]
    digest = hashlib.sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()
    assert digest == "70e17dca125fa7bcd7852cb4aabbdb845e3f86104a28393d73c30759895b06f2"


@pytest.mark.parametrize(
    ("name", "tokens"), [("S1", 500), ("S2", 1000), ("S3", 800), ("S4", 1000)]
)
def test_side_prompts_have_the_published_length(name, tokens):
    """A piece is about a token."""
    (message,) = SIDE_BY_ID[name].messages
    assert pieces(message["content"]) == pytest.approx(tokens, rel=0.2)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_items_can_be_stored_and_their_code_compiles(item):
    assert item.checker.kind in EXECUTED_CHECKS
    assert item_from_json(item_json(item)) == item
    for name in ("before", "tests"):
        code = item.checker.values.get(name, "")
        assert "<<" not in code
        compile(code, name, "exec")


OPTIONS = {"size": "short", "max_tokens": 32, "temperature": 0.0}


def test_equal_options_have_one_fingerprint_everywhere_and_any_other_option_another():
    """A mapping has no order, and None is how an option says that it was not given; value, type
    and presence count.
    """
    alike = [OPTIONS, dict(reversed(OPTIONS.items())), OPTIONS | {"words": None}]
    same = "260f5700305f33eb75133182b63b1eb6b60e629cb0fe27c220e6153e80087611"
    assert {workload_fingerprint(options) for options in alike} == {same}
    for changes in (
        {"size": "long"},
        {"max_tokens": 33},
        {"max_tokens": "32"},
        {"words": 40},
        {"extra": False},
    ):
        assert workload_fingerprint(OPTIONS | changes) != same, changes
