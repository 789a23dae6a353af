"""Which setup goes first: what it holds, then speed, and inside the error of speed context and the
first token.
"""

import re
from functools import cache

import pytest
from msgspec.structs import replace

from skep.catalog.engines import planned_engines
from skep.catalog.models import geometry
from skep.config.rigs import parse_rig
from skep.planner.candidates import Pins, PlanGoal
from skep.planner.choose import choose
from skep.planner.memory import kv_bytes_per_token, memory
from skep.planner.order import best_form, first_of, in_order, what_room_costs, why_first
from skep.planner.setup import CardLink, Layout, find_quant

AGENTS = PlanGoal(agents=4, input_tokens=16_384, output_tokens=1024)
EIGHT = PlanGoal(agents=8, input_tokens=16_384, output_tokens=1024)


@cache
def chosen(model, rig, goal=AGENTS):
    return choose(
        geometry(model), parse_rig(rig), goal, Pins(vision=False), engines=planned_engines()
    )


@pytest.fixture
def rated():
    """One that others are made of: 100 tok/s, room for all agents, 20,000 tokens each, 10 s to the
    first token.
    """
    first = chosen("qwen3-8b", "rtx-3090").plans[0].rated
    return replace(
        first,
        outcome=replace(first.outcome, effective_tok_s=100.0, ttft_s=10.0),
        speed=100.0,
        low=70.0,
        alone_tok_s=50.0,
        context_each=20_000,
        holds_all=True,
        on_paper=False,
        published=True,
    )


def at_speed(rated, tok_s, **changes):
    outcome = replace(rated.outcome, effective_tok_s=tok_s)
    return replace(rated, outcome=outcome, speed=tok_s, low=0.7 * tok_s, **changes)


def test_inside_the_error_of_the_fastest_context_decides(rated):
    roomy = at_speed(rated, 85.0, context_each=60_000)
    assert first_of([rated, roomy]) == roomy
    reason = why_first([rated, roomy], [rated, roomy])
    assert reason.startswith("60,000 tokens of context each against 20,000")
    assert "with 100 tok/s leads by less than plans are off" in reason


def test_a_lead_beyond_the_error_is_not_given_up_for_context(rated):
    roomy = at_speed(rated, 65.0, context_each=60_000)
    assert first_of([rated, roomy]) == rated
    assert why_first([rated, roomy], [rated, roomy]) is None


def test_a_narrow_band_is_the_error_and_a_wide_one_hides_no_clear_loss(rated):
    roomy = at_speed(rated, 85.0, context_each=60_000)
    sure = replace(rated, low=90.0)
    assert first_of([sure, roomy]) == sure
    unsure = replace(rated, low=30.0)
    slow = at_speed(rated, 60.0, context_each=60_000)
    assert first_of([unsure, slow]) == unsure


def test_context_beyond_eight_tasks_decides_nothing(rated):
    enough = replace(rated, context_each=8 * AGENTS.need_tokens)
    roomier = at_speed(rated, 85.0, context_each=30 * AGENTS.need_tokens)
    assert first_of([enough, roomier]) == enough


@pytest.mark.parametrize(
    ("tokens", "largest", "is_enough"),
    [
        (22_784, 32_256, False),
        (26_000, 32_256, True),
        (30_208, 60_000, False),
        (50_432, 69_632, True),
        (50_432, 110_000, False),
    ],
)
def test_below_a_session_a_quarter_less_context_decides_and_above_it_half(
    rated, tokens, largest, is_enough
):
    """Two tasks of an agent are 34,816 tokens."""
    fast = replace(rated, context_each=tokens)
    roomy = at_speed(rated, 85.0, context_each=largest)
    assert (first_of([fast, roomy]) == fast) is is_enough


def test_with_as_much_context_the_sooner_first_token_decides(rated):
    soon = at_speed(rated, 85.0)
    soon = replace(soon, outcome=replace(soon.outcome, ttft_s=5.0))
    assert first_of([rated, soon]) == soon
    assert why_first([rated, soon], [rated, soon]).startswith(
        "the first token comes after 5.0 s against 10.0 s"
    )


@pytest.mark.parametrize(("tok_s", "is_first"), [(90.0, True), (84.0, False)])
def test_room_for_every_agent_goes_first_within_15_percent_of_the_fastest(rated, tok_s, is_first):
    few = replace(rated, holds_all=False, setup=replace(rated.setup, slots=1))
    holding = at_speed(rated, tok_s, alone_tok_s=tok_s / 2)
    assert (first_of([few, holding]) == holding) is is_first
    assert (why_first([few, holding], [few, holding]) is not None) is is_first


def test_what_room_for_every_agent_costs_is_said_where_the_first_has_none(rated):
    few = replace(rated, holds_all=False, setup=replace(rated.setup, slots=1))
    holding = at_speed(rated, 60.0)
    assert what_room_costs([few, holding]).startswith(
        "room for all 4 costs 40% of the speed: TP=1"
    )
    assert what_room_costs([few]) is None
    assert what_room_costs([rated, few]) is None


def test_the_reason_names_how_many_agents_each_holds(rated):
    few = replace(rated, holds_all=False, setup=replace(rated.setup, slots=1))
    holding = at_speed(rated, 90.0)
    assert why_first([few, holding], [few, holding]).startswith(
        "it holds 4 agents at once, while TP=1"
    )


def test_every_faster_one_has_its_reason(rated):
    """One that nobody made stood for all: why the others came after the first was not said."""
    unmade = at_speed(rated, 110.0, published=False)
    tight = at_speed(rated, 105.0, on_paper=True)
    close = at_speed(rated, 104.0, on_paper=True)
    few = at_speed(rated, 103.0, holds_all=False, setup=replace(rated.setup, slots=2))
    listed = [rated, few, tight, unmade, close]
    clauses = why_first(listed, listed).split("; ")
    assert [clause.partition(", ")[0] for clause in clauses] == [
        "its checkpoint exists",
        "it holds 4 agents at once",
        "it leaves memory free",
    ]
    for tok_s, clause in zip((110, 103, 105), clauses, strict=True):
        assert f"with {tok_s} tok/s" in clause
    assert "105 tok/s and TP=1" in clauses[2]
    assert clauses[2].endswith("with 104 tok/s fit on paper only")


def test_what_a_goal_or_missing_kernels_put_behind_is_said_to_be_so(rated):
    quick = replace(rated, goal=replace(AGENTS, kind="latency"))
    slower = replace(quick, speed=80.0, outcome=replace(rated.outcome, effective_tok_s=120.0))
    reason = why_first([quick, slower], [quick, slower])
    assert reason.startswith("--goal latency ranks by the time of one task, in which TP=1")
    assert reason.endswith("with 120 tok/s is slower")
    choice = chosen("qwen3.6-27b", "strix-halo", EIGHT)
    assert re.match(
        "(vllm and sglang|sglang and vllm) have few kernels for strix-halo, ", choice.first_because
    )


def test_who_is_beaten_in_speed_context_and_first_token_is_never_first(rated):
    """By how little, and whatever is nicer about it, does not matter."""
    better = at_speed(rated, 101.0, context_each=20_256)
    better = replace(
        better,
        outcome=replace(better.outcome, ttft_s=9.9),
        setup=replace(rated.setup, engine="sglang"),
    )
    assert first_of([rated, better]) == better
    later = replace(better, outcome=replace(better.outcome, ttft_s=10.0))
    assert first_of([rated, later]) == rated


def other_setup(rated, **setup):
    return at_speed(rated, 103.0, setup=replace(rated.setup, **setup))


def test_what_decides_between_setups_of_the_same_speed_is_named(rated):
    """Whatever decided last was called a simpler layout, also between two setups of one layout."""
    staged = other_setup(rated, layout=Layout(pp=2))
    assert why_first([rated, staged], [rated, staged]).startswith(
        "it has fewer pipeline stages, while TP=1 + PP=2"
    )
    other_engine = other_setup(rated, engine="sglang")
    reason = why_first([rated, other_engine], [rated, other_engine])
    assert reason.startswith(f"more measurements of {rated.setup.engine} are known than of sglang")
    slow_alone = at_speed(rated, 101.0, alone_tok_s=45.0)
    assert first_of([rated, slow_alone]) == rated
    reason = why_first([rated, slow_alone], [rated, slow_alone])
    assert reason.startswith("more tok/s for an agent alone, while TP=1")


def test_of_many_faster_ones_that_one_rule_left_out_three_are_named(rated):
    many = [at_speed(rated, 101.0 + number, on_paper=True) for number in range(5)]
    reason = why_first([rated, *many], [rated, *many])
    assert reason.count(" tok/s") == 3
    assert " and 2 more fit on paper only" in reason


def test_experts_stay_on_the_cards_unless_that_is_half_as_fast(rated):
    in_ram = other_setup(rated, cpu_moe=4)
    assert first_of([rated, in_ram]) == rated
    assert why_first([rated, in_ram], [rated, in_ram]).startswith(
        "it fits on the cards, while TP=1"
    )
    much_faster = replace(in_ram, speed=210.0, low=150.0)
    assert first_of([rated, much_faster]) == much_faster


def test_at_the_same_speed_and_context_more_bits_go_before_a_sooner_first_token(rated):
    fine = other_setup(rated, quant=find_quant("fp8"))
    fine = replace(
        fine, speed=98.0, outcome=replace(fine.outcome, effective_tok_s=98.0, ttft_s=10.5)
    )
    assert first_of([rated, fine]) == fine
    assert why_first([rated, fine], [rated, fine]).startswith("FP8 keeps more bits of each weight")


def test_for_one_agents_time_only_a_near_tie_gives_way_to_context(rated):
    goal = replace(AGENTS, kind="latency")
    quick = replace(rated, goal=goal)
    roomy = at_speed(quick, 90.0, context_each=60_000)
    assert first_of([quick, roomy]) == quick
    assert first_of([quick, at_speed(quick, 96.0, context_each=60_000)]) != quick


def test_where_none_keeps_the_limits_those_that_miss_them_by_least_stay(rated):
    fast = replace(rated, over_limit=1.55)
    nearest = at_speed(rated, 60.0, over_limit=1.5)
    assert first_of([fast, nearest]) == fast
    assert first_of([replace(fast, over_limit=1.6), nearest]) == nearest


def test_a_first_token_that_comes_a_quarter_later_is_as_good(rated):
    later = replace(rated, outcome=replace(rated.outcome, ttft_s=12.4))
    soon = at_speed(rated, 85.0)
    assert first_of([later, soon]) == later
    too_late = replace(rated, outcome=replace(rated.outcome, ttft_s=12.6))
    assert first_of([too_late, soon]) == soon


def test_a_form_of_a_layout_gives_way_to_context_in_a_narrower_band_than_a_layout(rated):
    roomy = at_speed(rated, 75.0, context_each=60_000)
    assert first_of([rated, roomy]) == roomy
    assert best_form([rated, roomy]) == rated
    assert best_form([rated, at_speed(roomy, 85.0)]) != rated


def test_the_order_has_every_candidate_once(rated):
    several = [
        at_speed(rated, tok_s, context_each=int(5e6 / tok_s))
        for tok_s in (100.0, 60.0, 90.0, 30.0)
    ]
    ordered = in_order(several)
    assert sorted(map(id, ordered)) == sorted(map(id, several))
    assert ordered[0].speed == 100.0


def test_over_nvlink_tp_and_its_context_go_before_two_replicas():
    choice = chosen("qwen3.6-27b", "2x rtx-3090: nvlink")
    assert choice.plans[0].setup.layout == Layout(tp=2)
    assert choice.plans[0].rated.context_each > 65_536
    assert "tokens of context each against" in choice.first_because


def shown_figures(plan):
    rated = plan.rated
    return rated.outcome.effective_tok_s, rated.context_each, -rated.outcome.ttft_s


FIRST = [
    ("qwen3.6-27b", "2x rtx-3090", AGENTS, Layout(tp=2), 65_536),
    ("qwen3.6-27b", "2x rtx-4090", AGENTS, Layout(tp=2), 61_440),
    ("gpt-oss-120b", "4x rtx-4090", EIGHT, Layout(tp=2, pp=2), 98_304),
    ("llama-3.3-70b", "4x rtx-3090", EIGHT, Layout(tp=2, pp=2), 32_768),
    ("qwen3-coder-next-80b", "2x rtx-3090", AGENTS, Layout(tp=2), 17_408),
    ("glm-4.6", "2x rtx-pro-6000", AGENTS, Layout(tp=2, ep=2), 17_408),
]


@pytest.mark.parametrize(("model", "rig", "goal", "layout", "context"), FIRST)
def test_the_first_layout_has_room_for_a_session_and_no_other_has_more_of_everything(
    model, rig, goal, layout, context
):
    """Over PCIe two replicas with 22,784 tokens each went first, and on four cards rows that
    others beat.
    """
    first, *others = chosen(model, rig, goal).plans
    assert first.setup.layout == layout
    assert first.rated.context_each >= context
    for rival in others:
        pairs = zip(shown_figures(rival), shown_figures(first), strict=True)
        assert not all(theirs > ours for theirs, ours in pairs)


@pytest.mark.parametrize(
    ("model", "rig"), [("qwen3-coder-next-80b", "2x rtx-3090"), ("glm-4.6", "2x rtx-pro-6000")]
)
def test_four_agents_are_given_four_slots_where_memory_holds_them(model, rig):
    plan = chosen(model, rig).plans[0]
    assert plan.rated.slots == 4
    assert plan.rated.holds_all


def test_a_pool_is_launched_with_the_context_that_one_sequence_can_have():
    """While every other slot holds a task; llama.cpp divides its memory by slots."""
    plans = chosen("qwen3.6-27b", "2x rtx-3090: nvlink").plans
    for plan in plans:
        rated = plan.rated
        setup = plan.setup
        if setup.engine == "llamacpp":
            assert setup.context == rated.context_each
            continue
        assert setup.context > rated.context_each
        tasks = memory(
            setup, rated.card, context=AGENTS.need_tokens, slots=setup.slots, at_once=setup.slots
        )
        added = kv_bytes_per_token(setup) * (setup.context - AGENTS.need_tokens)
        margin = 0 if tasks.fits_on_paper_only else tasks.margin_bytes
        assert tasks.over_inside_bytes + added + margin <= 0


ONE_STREAM = PlanGoal(agents=1, input_tokens=1024, output_tokens=512)


@pytest.mark.parametrize("rig", ["4x rtx-3090", "5x rtx-3090", "6x rtx-3090"])
def test_llama_cpp_split_over_many_pcie_cards_comes_after_a_measured_layout_of_vllm(rig):
    """TP=5 in llama.cpp, which nobody has measured, stood before the TP=4 that a rig's author had
    built for.
    """
    choice = chosen("gemma-4-31b", rig, ONE_STREAM)
    first = choice.plans[0].rated
    assert (first.setup.engine, str(first.setup.layout), first.measured) == ("vllm", "TP=4", True)
    assert choice.first_because.startswith("vLLM was measured on such cards, while TP=")
    split = [p for p in choice.plans if p.setup.engine == "llamacpp" and p.setup.layout.tp > 2]
    assert any(p.rated.speed > first.speed for p in split)


@pytest.mark.parametrize(("kind", "is_behind"), [("pcie", True), ("nvlink", False)])
def test_over_nvlink_the_split_of_llama_cpp_is_not_put_behind(rated, kind, is_behind):
    measured = replace(rated, measured=True)
    link = CardLink(kind, 50.0)
    setup = replace(rated.setup, engine="llamacpp", layout=Layout(tp=4))
    split = at_speed(
        replace(rated, setup=setup, prospect=replace(rated.prospect, link=link)), 130.0
    )
    assert (first_of([measured, split]) == measured) is is_behind


@pytest.mark.parametrize(
    ("rig", "sentence"),
    [
        (
            "5x rtx-3090",
            "card 5 adds nothing for vllm: TP=5 does not divide the 32 heads of gemma-4-31b",
        ),
        (
            "6x rtx-3090",
            (
                "cards 5 and 6 add nothing for vllm: TP=5 and 6 do not divide the 32 heads of "
                "gemma-4-31b"
            ),
        ),
    ],
)
def test_cards_that_add_nothing_are_said_to_with_the_reason(rig, sentence):
    assert chosen("gemma-4-31b", rig, ONE_STREAM).idle == sentence


def test_where_every_card_is_used_none_is_said_to_add_nothing():
    assert chosen("gemma-4-31b", "4x rtx-3090", ONE_STREAM).idle is None
    assert "is expected at" in chosen("gemma-4-31b", "8x rtx-3090", ONE_STREAM).idle
