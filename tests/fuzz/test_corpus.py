"""What fuzzing found interesting or wrong once, and a short search around it.

`make fuzz` searches for long.
"""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.pieces import HEAD_BYTES
from fuzz.targets import CORPUS, TARGETS, check_input, corpus_inputs, seed_inputs

SHORT = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))

MOST_INPUTS = 300  # of one target, and their bytes: every run of the tests replays them
MOST_BYTES = 200_000


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_has_inputs_that_a_search_found_and_not_too_many(target):
    inputs = corpus_inputs(target)
    assert 0 < len(inputs) <= MOST_INPUTS
    assert sum(map(len, inputs)) <= MOST_BYTES


def test_there_is_no_corpus_of_a_target_that_is_gone():
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_that_were_found_once_keep_every_promise(target):
    with asyncio.Runner() as runner:
        for data in [*seed_inputs(target), *corpus_inputs(target)]:
            check_input(target, data, runner.run)


@st.composite
def changed_inputs(draw, target):
    """Two known inputs joined, with words that matter put in and bytes taken out."""
    inputs = [*seed_inputs(target), *corpus_inputs(target)]
    long_inputs = [data for data in inputs if len(data) >= HEAD_BYTES]
    data = bytearray(draw(st.sampled_from(long_inputs)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(HEAD_BYTES, len(data)))
        match draw(st.sampled_from(["insert", "delete", "flip", "join"])):
            case "insert":
                data[at:at] = draw(st.sampled_from(TARGETS[target].WORDS))
            case "delete":
                del data[at : at + draw(st.integers(1, 8))]
            case "flip" if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case "join":
                data[at:] = draw(st.sampled_from(long_inputs))[HEAD_BYTES:]
    return bytes(data)


@pytest.mark.parametrize("target", TARGETS)
@SHORT
@given(st.data())
def test_inputs_near_those_keep_every_promise(target, data):
    check_input(target, data.draw(changed_inputs(target)), asyncio.run)
