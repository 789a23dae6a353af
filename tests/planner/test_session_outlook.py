"""What a plan says of sessions: how many stay warm, and where they push each other out."""

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.catalog.session_shapes import find_shape, typical_tokens
from skep.planner.caching import KvTier
from skep.planner.candidates import PlanGoal
from skep.planner.predict import prospect
from skep.planner.session_outlook import (
    SessionLevel,
    cliff_of,
    estimated_level,
    outlook,
    session_level,
    warm_sessions,
    with_sessions,
)
from skep.planner.setup import Layout, Rig, Setup, find_kv, find_quant
from skep.planner.step import published_constants

SMALL = find_shape("small")
WINDOW = 32_768
LEVELS = (1, 2, 4, 8, 16)


@pytest.fixture(scope="module")
def speed_model():
    """An 8B on a 3090: its pool holds some 74,000 tokens."""
    setup = Setup(
        geometry("qwen3-8b"), find_quant("awq"), find_kv("bf16"), "vllm", Layout(), slots=16
    )
    return prospect(setup, Rig((device("rtx-3090"),)), published_constants(), context=WINDOW)


@pytest.fixture(scope="module")
def on_card(speed_model):
    return outlook(speed_model, SMALL, WINDOW, LEVELS)


def level(sessions, turns_per_min, hit_share):
    return SessionLevel(
        sessions=sessions,
        turns_per_min=turns_per_min,
        session_s=60.0,
        first_token_s=1.0,
        first_token_p95_s=2.0,
        first_token_mean_s=1.2,
        hit_share=hit_share,
        possible_share=0.9,
        preemptions=0,
    )


def test_the_cliff_is_the_last_level_before_turns_fall():
    levels = [level(4, 20.0, 0.9), level(8, 30.0, 0.9), level(16, 20.0, 0.85)]
    assert cliff_of(levels) == 8


def test_the_cliff_is_the_last_level_before_hits_leave_the_possible_ones():
    levels = [level(4, 20.0, 0.9), level(8, 30.0, 0.79)]
    assert cliff_of(levels) == 4


def test_where_turns_only_stop_growing_there_is_no_cliff():
    levels = [level(4, 20.0, 0.9), level(8, 20.0, 0.9)]
    assert cliff_of(levels) is None


def test_the_cliff_is_about_where_the_sessions_no_longer_fit(on_card):
    assert on_card.cliff is not None
    assert on_card.cliff <= on_card.warm_sessions <= 4 * on_card.cliff


def test_sessions_that_fit_find_nearly_all_they_could(on_card):
    first = on_card.levels[0]
    assert first.hit_share >= first.possible_share - 0.03


def test_beyond_the_cliff_the_first_token_takes_many_times_as_long(on_card):
    waits = {entry.sessions: entry.first_token_s for entry in on_card.levels}
    assert waits[16] > 10 * waits[1]


def test_kv_in_ram_moves_the_cliff(speed_model):
    ram = KvTier(400_000, 100_000)
    with_ram = outlook(speed_model, SMALL, WINDOW, LEVELS, ram)
    assert with_ram.levels_with_ram[-1].turns_per_min > 1.5 * with_ram.levels[-1].turns_per_min
    assert with_ram.warm_in_ram > 3 * with_ram.warm_sessions


def test_what_sessions_share_is_held_once(speed_model):
    own = typical_tokens(SMALL, WINDOW) - SMALL.shared_tokens
    roomy = replace(speed_model, pool_tokens=float(SMALL.shared_tokens + 5 * own))
    assert warm_sessions(roomy, SMALL, WINDOW) == 5


def test_a_slot_with_memory_of_its_own_holds_one_session(speed_model):
    setup = replace(speed_model.setup, engine="llamacpp")
    own_slots = replace(speed_model, setup=setup, slots=3, pool_tokens=1e6)
    assert warm_sessions(own_slots, SMALL, WINDOW) == 3


def test_two_replicas_hold_twice_the_sessions(speed_model):
    setup = replace(speed_model.setup, layout=Layout(replicas=2))
    both = replace(speed_model, setup=setup, steps=())
    assert warm_sessions(both, SMALL, WINDOW) == 2 * warm_sessions(speed_model, SMALL, WINDOW)


def test_a_session_of_the_usual_number_of_turns_takes_its_turns_and_pauses(speed_model):
    alone = session_level(speed_model, SMALL, 1, WINDOW)
    assert alone.session_s * alone.turns_per_min / 60 == pytest.approx(SMALL.turns.median)


def test_the_usual_request_of_a_coding_session_is_mostly_cached():
    goal = with_sessions(PlanGoal(), find_shape("coding"), 65_536)
    assert 30_000 < goal.input_tokens < 50_000
    assert goal.output_tokens == pytest.approx(444, rel=0.1)
    assert goal.cached_share > 0.8


def test_a_plan_of_sessions_is_the_same_each_time(speed_model, on_card):
    assert outlook(speed_model, SMALL, WINDOW, LEVELS) == on_card


@pytest.mark.parametrize("sessions", [1, 2, 4, 8])
def test_an_estimate_is_near_to_what_is_played(speed_model, sessions):
    played = session_level(speed_model, SMALL, sessions, WINDOW)
    estimated = estimated_level(speed_model, SMALL, sessions, WINDOW)
    assert estimated.turns_per_min == pytest.approx(played.turns_per_min, rel=0.35)


def test_an_estimate_knows_of_a_pool_that_is_too_small(speed_model):
    tight = replace(speed_model, pool_tokens=20_000.0)
    roomy = estimated_level(speed_model, SMALL, 8, WINDOW)
    assert estimated_level(tight, SMALL, 8, WINDOW).turns_per_min < roomy.turns_per_min
