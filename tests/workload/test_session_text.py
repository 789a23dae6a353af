"""Texts of agents' sessions: their lengths, what they share, and how quickly they are made."""

import time

import pytest

from skep.workload.filling import CHARS_PER_PIECE, pieces
from skep.workload.prompts import TokenCalibration
from skep.workload.session_text import SessionTexts

SEED = 7
ONE_PIECE_A_TOKEN = TokenCalibration(chars_per_token=CHARS_PER_PIECE)


def texts(seed=SEED):
    return SessionTexts(seed, ONE_PIECE_A_TOKEN)


def test_the_shared_beginning_is_the_same_bytes_each_time():
    assert texts().shared("coding", 2_000) == texts().shared("coding", 2_000)


def test_another_name_or_seed_begins_otherwise():
    beginnings = {
        texts().shared("coding", 500)[:9],
        texts().shared("small", 500)[:9],
        texts(seed=8).shared("coding", 500)[:9],
    }
    assert len(beginnings) == 3


def test_no_two_turns_begin_alike():
    own = [texts().turn(f"1/0/{session}", turn, 80)[:9] for session in range(30) for turn in "ab"]
    assert len(set(own)) == len(own)


@pytest.mark.parametrize("tokens", [9, 12, 59, 60, 100, 1_777, 20_000])
def test_a_text_has_the_length_that_was_asked_for(tokens):
    assert pieces(texts().turn("1/0/3", 2, tokens)) == tokens


def test_a_longer_text_looks_like_what_a_tool_brings():
    text = texts().turn("1/0/3", 2, 900)
    assert "result of the tool" in text
    assert text.count("def ") > 3


def test_fewer_tokens_to_a_text_make_it_longer():
    coarse = SessionTexts(SEED, TokenCalibration(chars_per_token=7.0)).turn("1/0/3", 2, 1_000)
    assert len(coarse) > 1.5 * len(texts().turn("1/0/3", 2, 1_000))


def test_two_million_tokens_take_less_than_a_second():
    """Forty times as much were made in that time on a laptop's core."""
    maker = texts()
    maker.shared("coding", 20_000)
    began = time.process_time()
    for turn in range(400):
        maker.turn("1/0/1", turn, 5_000)
    assert time.process_time() - began < 1
