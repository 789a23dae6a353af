"""Shapes of agents' sessions, and the sessions drawn from them."""

import statistics

import pytest
from msgspec.structs import replace

from skep.catalog.session_shapes import (
    ScriptedTurn,
    SessionScript,
    Varying,
    draw_sessions,
    find_shape,
    prompt_totals,
    session_shapes,
    sources_of,
    steady_sessions,
    typical_tokens,
)
from skep.errors import UserError

SHAPES = list(session_shapes().values())
FIELDS = SHAPES[0].__struct_fields__


def turns(*lengths):
    return tuple(ScriptedTurn(new_tokens=new, output_tokens=output) for new, output in lengths)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_value_of_a_shape_that_varies_names_its_source(shape):
    values = (
        "shared_tokens",
        "first_tokens",
        "turns",
        "growth_tokens",
        "output_tokens",
        "pause_s",
        "subagent_share",
        "compact_share",
        "summary_tokens",
    )
    assert set(values) <= set(sources_of(shape.name))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_sources_name_values_that_are_there(shape):
    assert set(sources_of(shape.name)) <= set(FIELDS)


def test_half_of_the_draws_are_below_the_median_and_one_of_ten_above_the_tenth():
    quantity = Varying(median=100.0, tenth=400.0)
    assert quantity.at(0.5) == pytest.approx(100.0)
    assert quantity.at(0.9) == pytest.approx(400.0)


def test_a_quantity_without_spread_is_its_median():
    assert Varying(median=7.0, tenth=7.0).at(0.99) == 7.0


def test_the_same_seed_draws_the_same_sessions():
    assert draw_sessions(find_shape("coding"), 5, 3) == draw_sessions(find_shape("coding"), 5, 3)


def test_the_first_of_many_sessions_are_those_of_few():
    shape = find_shape("coding")
    assert draw_sessions(shape, 8, 1)[:3] == draw_sessions(shape, 3, 1)


def test_coding_sessions_are_as_published():
    """43 turns by the median, 142,000 tokens a request, over 96 % of them cached, 444 out."""
    sessions = draw_sessions(find_shape("coding"), 400, 1)
    outputs = [turn.output_tokens for session in sessions for turn in session.turns]
    assert statistics.median(len(session.turns) for session in sessions) == pytest.approx(
        43, rel=0.2
    )
    assert statistics.fmean(outputs) == pytest.approx(444, rel=0.1)
    assert prompt_totals(sessions).possible_share > 0.96


def test_a_prompt_has_all_that_was_sent_and_answered_before():
    session = SessionScript("shared", 1000, turns((50, 10), (200, 20), (5, 1)))
    assert session.prompts() == [1050, 1260, 1285]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("field", ["least_window_tokens", "wanted_window_tokens"])
def test_sessions_stay_inside_their_window(shape, field):
    window = getattr(shape, field)
    sessions = draw_sessions(shape, 60, 1, window_tokens=window)
    assert max(session.longest_tokens for session in sessions) <= window


def test_a_context_that_is_too_short_for_every_shape_names_none():
    with pytest.raises(UserError) as error:
        draw_sessions(find_shape("small"), 1, 1, window_tokens=4096)
    assert error.value.hint == "serve with a longer context"


def test_a_session_that_is_compacted_keeps_its_shared_beginning_only():
    shape = replace(
        find_shape("small"),
        growth_tokens=Varying(4000, 4000),
        turns=Varying(12, 12),
    )
    session = draw_sessions(shape, 1, 1, window_tokens=shape.wanted_window_tokens)[0]
    compacted = next(index for index, turn in enumerate(session.turns) if turn.begins_anew)
    assert session.prompts()[compacted] < session.prompts()[compacted - 1]
    assert session.prompts()[compacted] >= shape.shared_tokens + shape.summary_tokens


def test_a_window_in_which_no_agent_can_work_is_refused_with_what_to_do():
    with pytest.raises(UserError, match="need a context of 32,768 tokens") as error:
        draw_sessions(find_shape("coding"), 1, 1, window_tokens=22_784)
    assert "--shape small" in error.value.hint


def test_an_unknown_shape_is_refused_with_those_there_are():
    with pytest.raises(UserError, match="`big`") as error:
        find_shape("big")
    assert "coding, small" in error.value.hint


def test_shared_beginnings_and_what_was_sent_before_are_what_a_cache_can_save():
    first = SessionScript("shared", 1000, turns((50, 10), (200, 20)))
    second = SessionScript("shared", 1000, turns((70, 10)))
    totals = prompt_totals([first, second])
    assert totals.prompt_tokens == 1050 + 1260 + 1070
    assert totals.possible_tokens == totals.prompt_tokens - 1000 - 50 - 200 - 70


def test_sub_agents_count_with_their_session():
    child = SessionScript("child", 500, turns((10, 5), (20, 5)))
    parent = SessionScript("shared", 1000, (replace(turns((50, 10))[0], subagents=(child,)),))
    assert parent.requests == 3
    assert prompt_totals([parent]).prompt_tokens == 1050 + 510 + 535


def test_a_part_of_a_session_begins_with_what_was_sent_before_it():
    session = SessionScript("shared", 1000, turns((5, 1), (7, 1)), earlier_tokens=300)
    assert session.prompts() == [1305, 1313]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_sessions_under_way_stay_inside_their_window(shape):
    window = shape.wanted_window_tokens
    sessions = steady_sessions(shape, 40, window_tokens=window)
    assert max(session.longest_tokens for session in sessions) <= window


def test_sessions_under_way_have_the_same_pauses_in_another_order():
    sessions = steady_sessions(find_shape("coding"), 3, window_tokens=65_536)
    pauses = [[turn.pause_s for turn in session.turns] for session in sessions]
    assert sorted(pauses[0]) == sorted(pauses[1]) == sorted(pauses[2])
    assert pauses[0] != pauses[1]


def test_a_wider_window_lets_sessions_grow():
    shape = find_shape("coding")
    assert typical_tokens(shape, 131_072) > 1.5 * typical_tokens(shape, 65_536)


def test_some_of_many_sessions_under_way_start_sub_agents():
    sessions = steady_sessions(find_shape("coding"), 60, window_tokens=65_536)
    with_children = sum(any(turn.subagents for turn in session.turns) for session in sessions)
    assert 1 <= with_children <= 10
