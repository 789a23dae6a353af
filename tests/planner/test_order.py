"""Which setup goes first: what it holds, then speed, and inside the error of speed context and the first token."""

from functools import cache

import pytest
from msgspec.structs import replace

from skep.catalog.models import geometry
from skep.config.rigs import parse_rig
from skep.planner.candidates import ENGINES, Pins, PlanGoal
from skep.planner.choose import choose
from skep.planner.memory import kv_bytes_per_token, memory
from skep.planner.order import first_of, in_order, why_first
from skep.planner.setup import Layout

AGENTS = PlanGoal(agents=4, input_tokens=16_384, output_tokens=1024)


@cache
def chosen(model, rig, goal=AGENTS):
    return choose(geometry(model), parse_rig(rig), goal, Pins(vision=False), engines=ENGINES)


@pytest.fixture
def rated():
    """One that others are made of: 100 tok/s, room for all agents, 20,000 tokens each, 10 s to the first token."""
    found = chosen("qwen3-8b", "rtx-3090").plans[0].rated
    outcome = replace(found.outcome, effective_tok_s=100.0, ttft_s=10.0)
    return replace(
        found, outcome=outcome, speed=100.0, low=70.0, alone_tok_s=50.0, context_each=20_000, holds_all=True,
        on_paper=False, published=True,
    )  # fmt: skip


def at_speed(rated, tok_s, **other):
    outcome = replace(rated.outcome, effective_tok_s=tok_s)
    return replace(rated, outcome=outcome, speed=tok_s, low=0.7 * tok_s, **other)


def test_inside_the_error_of_the_fastest_context_decides(rated):
    roomy = at_speed(rated, 85.0, context_each=60_000)
    assert first_of([rated, roomy]) == roomy
    reason = why_first([rated, roomy], [rated, roomy])
    assert reason.startswith("60,000 tokens of context each against 20,000")
    assert "with 100 tok/s leads by less than plans are off" in reason


def test_a_lead_beyond_the_error_is_not_given_up_for_context(rated):
    roomy = at_speed(rated, 75.0, context_each=60_000)
    assert first_of([rated, roomy]) == rated
    assert why_first([rated, roomy], [rated, roomy]) is None


def test_context_beyond_four_tasks_decides_nothing(rated):
    enough = replace(rated, context_each=4 * AGENTS.need_tokens)
    more = at_speed(rated, 85.0, context_each=8 * AGENTS.need_tokens)
    assert first_of([enough, more]) == enough


def test_with_as_much_context_the_sooner_first_token_decides(rated):
    soon = at_speed(rated, 85.0)
    soon = replace(soon, outcome=replace(soon.outcome, ttft_s=5.0))
    assert first_of([rated, soon]) == soon
    assert why_first([rated, soon], [rated, soon]).startswith("the first token comes after 5.0 s against 10.0 s")


@pytest.mark.parametrize(("tok_s", "is_first"), [(60.0, True), (50.0, False)])
def test_who_holds_every_agent_goes_first_unless_half_as_fast(rated, tok_s, is_first):
    few = replace(rated, holds_all=False, setup=replace(rated.setup, slots=1))
    holding = at_speed(rated, tok_s, alone_tok_s=tok_s / 2)
    assert (first_of([few, holding]) == holding) is is_first
    assert (why_first([few, holding], [few, holding]) is not None) is is_first


def test_the_reason_names_how_many_agents_each_holds(rated):
    few = replace(rated, holds_all=False, setup=replace(rated.setup, slots=1))
    holding = at_speed(rated, 60.0)
    assert why_first([few, holding], [few, holding]).startswith("it holds 4 agents at once; ")


def test_the_order_has_every_candidate_once(rated):
    several = [at_speed(rated, tok_s, context_each=int(5e6 / tok_s)) for tok_s in (100.0, 60.0, 90.0, 30.0)]
    ordered = in_order(several)
    assert sorted(map(id, ordered)) == sorted(map(id, several))
    assert ordered[0].speed == 100.0


def test_over_nvlink_tp_and_its_context_go_before_two_replicas():
    found = chosen("qwen3.6-27b", "2x rtx-3090: nvlink")
    assert found.plans[0].setup.layout == Layout(tp=2)
    assert found.plans[0].rated.context_each > 65_536
    assert "tokens of context each against" in found.first_because


@pytest.mark.parametrize(("model", "rig"), [("qwen3-coder-next-80b", "2x rtx-3090"), ("glm-4.6", "2x rtx-pro-6000")])
def test_four_agents_are_given_four_slots_where_memory_holds_them(model, rig):
    plan = chosen(model, rig).plans[0]
    assert plan.rated.slots == 4
    assert plan.rated.holds_all


def test_a_pool_is_launched_with_the_context_that_one_sequence_can_have():
    """While every other slot holds a task; llama.cpp divides its memory by slots."""
    plans = chosen("qwen3.6-27b", "2x rtx-3090: nvlink").plans
    for plan in plans:
        rated, setup = plan.rated, plan.setup
        if setup.engine == "llamacpp":
            assert setup.context == rated.context_each
            continue
        assert setup.context > rated.context_each
        tasks = memory(setup, rated.card, context=AGENTS.need_tokens, slots=setup.slots, at_once=setup.slots)
        added = kv_bytes_per_token(setup) * (setup.context - AGENTS.need_tokens)
        assert tasks.over_inside_bytes + added <= 0
