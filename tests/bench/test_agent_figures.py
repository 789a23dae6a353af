"""Figures of sessions from rows made by hand: turns, hits, warm sessions, the session cliff."""

import pytest
from msgspec.structs import replace

from sample_sessions import (
    ANSWER,
    GROWTH,
    SHARED,
    level_rows,
    planned_sessions,
    session_turns,
    summary_of,
    turn,
)
from skep.bench.agent_figures import ConversationFact, agents_summary, turn_tokens
from skep.store.records import ClientSample, EngineTimings, LevelFact


def planned(turns=4, **fields):
    """Return what was planned of a session alone."""
    return ConversationFact(
        number=0,
        session=0,
        turns=turns,
        shared_tokens=SHARED,
        first_tokens=SHARED + GROWTH,
        **fields,
    )


def only_level(rows, *facts):
    (level,) = agents_summary("run", rows, (), facts).levels
    return level


def test_turns_a_minute_are_answered_turns_over_the_wall_time():
    """One session of four turns of a second each, three pauses of two."""
    level = only_level(session_turns(0, pause_s=2.0), planned_sessions(1))
    assert level.wall_s == 10
    assert level.turns_per_min == pytest.approx(24)


def test_a_session_takes_from_its_first_turn_to_its_last_with_the_pauses():
    level = only_level(session_turns(0, pause_s=2.0), planned_sessions(1))
    assert level.session_s.p50 == 10


def test_first_tokens_are_those_of_later_turns():
    rows = [row if row.turn else replace(row, first_token_s=0.9) for row in session_turns(0)]
    level = only_level(rows, planned_sessions(1))
    assert level.ttft_ms.p95 == pytest.approx(500)
    assert level.first_ttft_ms.p50 == pytest.approx(900)


def test_a_turn_could_hit_the_prompt_and_the_answer_before_it():
    turns = session_turns(0, turns=2)
    first, second = turn_tokens(turns, planned(turns=2), shared_before=True)
    assert first.possible == SHARED
    assert second.possible == SHARED + GROWTH + ANSWER


def test_who_computes_a_shared_beginning_first_could_hit_nothing():
    turns = session_turns(0, turns=1)
    (tokens,) = turn_tokens(turns, planned(turns=1), shared_before=False)
    assert tokens.possible == 0


def test_a_compacted_conversation_could_hit_its_shared_beginning_only():
    plan = planned(anew=(2,))
    tokens = turn_tokens(session_turns(0), plan, shared_before=True)
    assert tokens[2].possible == SHARED
    assert tokens[3].possible > SHARED


def test_an_answer_that_did_not_come_back_could_not_be_hit():
    """A reasoning model's thoughts are left out of the next prompt."""
    first = turn(0, 0, prompt=140, cached=0, start=0)
    later = turn(0, 1, prompt=145, cached=0, start=1)
    _, tokens = turn_tokens([first, later], planned(turns=2), shared_before=True)
    assert tokens.possible == 140


def test_hits_stand_beside_what_was_possible():
    level = only_level(*level_rows(1, hit=0.5))
    assert level.hit_rate == pytest.approx(level.possible_hit_rate / 2, rel=0.01)


def test_a_session_is_warm_that_hits_nearly_all_it_could():
    rows = session_turns(0) + session_turns(1, hit=0.5)
    level = only_level(rows, planned_sessions(2))
    assert level.warm_sessions == 1
    assert level.told_sessions == 2


def test_an_engine_that_tells_of_some_requests_has_none_cached_of_the_others():
    """vLLM leaves the figure out of an answer where it is zero."""
    silent = [replace(row, engine=EngineTimings()) for row in session_turns(1)]
    level = only_level(session_turns(0) + silent, planned_sessions(2))
    alone = only_level(session_turns(0), planned_sessions(1))
    assert level.hit_rate == pytest.approx(alone.hit_rate / 2)


def test_hits_that_nobody_tells_are_unknown():
    rows = [replace(row, engine=EngineTimings()) for row in session_turns(0)]
    level = only_level(rows, planned_sessions(1))
    assert level.hit_rate is None
    assert level.warm_sessions is None
    assert level.lost_hits is None


def test_hits_are_read_from_the_engines_counters_where_answers_do_not_tell():
    rows = [replace(row, engine=EngineTimings()) for row in session_turns(0)]
    counters = {"cached_tokens": 30.0, "cache_queries": 40.0, "preemptions": 3.0}
    facts = [planned_sessions(1), LevelFact(1, 0, "counters", counters)]
    level = only_level(rows, *facts)
    assert level.hit_rate == 0.75
    assert level.preemptions == 3


def test_a_turn_that_failed_makes_a_failed_session_and_is_no_turn():
    rows = session_turns(0, turns=2) + session_turns(1)
    rows[1] = replace(rows[1], error_kind="http_500")
    level = only_level(rows, planned_sessions(2))
    assert level.sessions_failed == 1
    assert level.sessions_ended == 1
    assert level.turns == 5
    assert level.failed == 1
    assert level.errors == (("http_500", 1),)


def test_the_cliff_is_where_hits_leave_the_possible_by_ten_points():
    cliff = summary_of(level_rows(1), level_rows(2), level_rows(4, hit=0.6)).cliff
    assert cliff.why == "hits"
    assert cliff.sessions == 2
    assert cliff.beyond == 4
    assert 20 < cliff.loss_pct < 40


def test_hits_that_are_low_at_every_level_make_no_cliff():
    assert summary_of(level_rows(1, hit=0.5), level_rows(2, hit=0.4)).cliff is None


def test_a_single_level_has_no_cliff():
    assert summary_of(level_rows(4, hit=0.3)).cliff is None


def test_sessions_that_differ_as_much_as_the_levels_make_no_cliff():
    """Two of four lost what the others kept: the interval of their mean holds ten points."""
    rows = session_turns(0, level=2) + session_turns(1, level=2, hit=0.3)
    mixed = (rows, planned_sessions(2, level=2))
    assert summary_of(level_rows(1), mixed).cliff is None


def falling_turns(repeat=0):
    """Return levels of 1, 2 and 4: pauses are longest in the last, and a little longer later."""
    pauses_s = {
        1: 1.0,
        2: 0.2,
        4: 1.5,
    }
    return [
        level_rows(level, pause_s=pause_s + 0.01 * repeat, repeat=repeat)
        for level, pause_s in pauses_s.items()
    ]


def test_the_cliff_is_where_turns_a_minute_surely_fall():
    cliff = summary_of(*falling_turns(), *falling_turns(repeat=1)).cliff
    assert cliff.why == "turns"
    assert cliff.sessions == 2
    assert cliff.beyond == 4


def test_one_run_a_level_does_not_show_that_turns_fall():
    summary = summary_of(*falling_turns())
    assert summary.cliff is None
    assert summary.unclear is None


def test_a_run_that_the_client_limited_is_left_out_where_there_are_others():
    rows, fact = level_rows(1, pause_s=1.0)
    slow_rows, slow_fact = level_rows(1, pause_s=9.0, repeat=1)
    limited = ClientSample(1, 1, 90.0, 90.0, 0.2, client_limited=True)
    facts = [fact, slow_fact]
    (level,) = agents_summary("run", rows + slow_rows, [limited], facts).levels
    alone = only_level(rows, fact)
    assert level.turns_per_min == alone.turns_per_min
    assert "event loop lag" in level.runs[1].limited
