"""The fingerprint of a workload: equal for equal work, different for any other."""

from __future__ import annotations

import pytest

from skep.workload.items import VERSION, workload_fingerprint

OPTIONS = {"size": "short", "max_tokens": 32, "temperature": 0.0}


def test_fingerprint_is_a_digest():
    """Hex, and the same on every machine and Python."""
    assert workload_fingerprint(OPTIONS) == "260f5700305f33eb75133182b63b1eb6b60e629cb0fe27c220e6153e80087611"


def test_order_of_options_does_not_matter():
    """Options are a mapping."""
    assert workload_fingerprint(dict(reversed(OPTIONS.items()))) == workload_fingerprint(OPTIONS)


def test_option_left_out_and_option_none_are_the_same():
    """None is how an option says that it was not given."""
    assert workload_fingerprint(OPTIONS | {"words": None}) == workload_fingerprint(OPTIONS)


@pytest.mark.parametrize(
    "changes", [{"size": "long"}, {"max_tokens": 33}, {"max_tokens": "32"}, {"words": 40}, {"extra": False}]
)
def test_any_other_option_gives_another_fingerprint(changes):
    """Value, type or presence."""
    assert workload_fingerprint(OPTIONS | changes) != workload_fingerprint(OPTIONS)


def test_version_is_part_of_it():
    """The same options meant other prompts in another version."""
    assert workload_fingerprint(OPTIONS, version="coding-0") != workload_fingerprint(OPTIONS, version=VERSION)
