"""The sessions of a goal: what they hold before, and readings that compare."""

import pytest

from skep.catalog.session_shapes import find_shape
from skep.tuner.records import TuneGoal
from skep.tuner.session_load import aim_of_sessions, scripts_of, with_turns

SMALL = find_shape("small")
WINDOW = 32_768
TURNS = 3
READINGS = 4


def drawn(readings=READINGS):
    return scripts_of(SMALL, 5, WINDOW, TURNS, readings)


def turns_of_reading(scripts, reading):
    begin = 1 + reading * TURNS
    end = begin + TURNS
    turns = []
    for script in scripts:
        turns += script.turns[begin:end]
    return turns


def test_each_session_first_sends_what_it_holds_from_before():
    for script in drawn():
        before = script.turns[0]
        assert len(script.turns) == 1 + TURNS * READINGS
        assert before.new_tokens > 500
        assert before.output_tokens == 8
        assert script.longest_tokens <= WINDOW


def test_all_readings_have_turns_of_the_same_answers_and_pauses():
    scripts = drawn()
    lengths = []
    for reading in range(READINGS):
        turns = turns_of_reading(scripts, reading)
        answers = sorted(turn.output_tokens for turn in turns)
        pauses = sorted(turn.pause_s for turn in turns)
        lengths.append((answers, pauses))
    assert lengths == [lengths[0]] * READINGS


def test_more_readings_only_add_turns():
    for script, longer in zip(drawn(2), drawn(READINGS), strict=True):
        assert script.turns == longer.turns[: len(script.turns)]


def test_a_session_that_fills_its_window_begins_anew():
    scripts = scripts_of(SMALL, 2, 16_384, TURNS, 8)
    anew = [turn.begins_anew for script in scripts for turn in script.turns]
    assert any(anew)
    assert all(script.longest_tokens <= 16_384 for script in scripts)


@pytest.mark.parametrize(("turns_per_min", "turns"), [(None, 2), (1.0, 1), (20.0, 4), (9.0, 2)])
def test_a_reading_has_as_many_turns_as_there_is_time_for(turns_per_min, turns):
    aim = aim_of_sessions(TuneGoal("turns_min", 4), "small", None, None)
    assert with_turns(aim, turns_per_min).sessions.turns == turns
