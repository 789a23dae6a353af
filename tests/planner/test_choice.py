"""What is offered, what is dropped and why, and who wins."""

from functools import cache

import pytest

from skep.catalog.models import geometries, geometry
from skep.config.rigs import parse_rig
from skep.errors import UserError
from skep.planner.candidates import Pins, PlanGoal, arranged, offered_quants
from skep.planner.choose import choose
from skep.planner.memory import fits
from skep.planner.order import first_of
from skep.planner.ranking import levels
from skep.planner.setup import Layout, Speculation, find_kv, find_quant
from skep.planner.would_fit import fits_nowhere

TWO = parse_rig("2x rtx-3090")


@cache
def chosen(model="qwen3.6-27b", rig=TWO, goal=None, pins=None):
    return choose(geometry(model), rig, goal or PlanGoal(), pins or Pins(vision=False))


def test_plans_are_best_first_and_every_one_fits_and_breaks_no_rule():
    choice = chosen(goal=PlanGoal(agents=8))
    assert len(choice.plans) > 2
    rated = [plan.rated for plan in choice.plans]
    assert [first_of(rated[place:]) for place in range(len(rated))] == rated
    for plan in choice.plans:
        assert all(finding.verdict != "refused" for finding in plan.rated.findings)
        assert fits(plan.setup, plan.rated.card, context=plan.setup.context).fits


@pytest.mark.parametrize(
    "model",
    [
        name if place % 6 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for place, name in enumerate(geometries())
    ],
)
def test_every_model_of_the_catalogue_has_a_plan_or_a_reason(model):
    choice = choose(geometry(model), TWO, PlanGoal())
    assert choice.plans or choice.rejected
    for plan in choice.plans:
        assert plan.predicted[0].effective_tok_s > 0
        assert plan.predicted[0].low <= plan.predicted[0].effective_tok_s <= plan.predicted[0].high
        assert plan.why
    if not choice.plans:
        assert isinstance(
            fits_nowhere(geometry(model), choice, PlanGoal(), Pins(), "vllm"), UserError
        )


def test_what_is_pinned_stays():
    pins = Pins(
        quant=find_quant("awq"),
        kv=find_kv("fp8_e5m2"),
        tp=2,
        slots=3,
        context=16384,
        utilization=0.85,
        spec=Speculation("mtp", 2),
        graphs=False,
    )
    choice = chosen(pins=pins)
    for plan in choice.plans:
        setup = plan.setup
        assert (setup.quant, setup.kv, setup.layout.tp, setup.slots) == (pins.quant, pins.kv, 2, 3)
        assert (setup.context, setup.utilization, setup.spec, setup.graphs) == (
            16384,
            0.85,
            pins.spec,
            False,
        )


def test_slots_are_enough_for_the_agents_and_nothing_below_four_bits_is_offered():
    choice = chosen("qwen3-8b", goal=PlanGoal(agents=9))
    for plan in choice.plans:
        assert plan.setup.slots == -(-9 // plan.setup.layout.replicas)
    choice = chosen("qwen3-8b", parse_rig("4x rtx-3090"), PlanGoal(agents=2))
    assert max(plan.setup.layout.replicas for plan in choice.plans) == 2
    assert [levels(agents) for agents in (1, 4, 6)] == [(1, 2), (1, 2, 4, 8), (1, 2, 4, 6, 12)]

    def offered(model, engine="vllm", cards=TWO.cards):
        return {
            quant.id: quant.nominal for quant in offered_quants(geometry(model), engine, cards)
        }

    assert all(
        min(offered("qwen3-8b", engine).values()) >= 4 for engine in ("vllm", "sglang", "llamacpp")
    )
    assert set(offered("gpt-oss-20b")) == {"mxfp4"}
    assert "nvfp4" in offered("qwen3-8b", cards=parse_rig("rtx-5090").cards)
    assert "nvfp4" not in offered("qwen3-8b")


def test_what_would_fit_does_fit():
    model = geometry("llama-3.3-70b")
    pins = Pins(quant=find_quant("awq"))
    error = fits_nowhere(
        model, choose(model, parse_rig("rtx-3090"), PlanGoal(), pins), PlanGoal(), pins, "vllm"
    )
    count = int(error.hint.partition("what would fit: ")[2].partition("x rtx-3090")[0])
    assert choose(model, parse_rig(f"{count}x rtx-3090"), PlanGoal(), pins).plans
    assert not choose(model, parse_rig(f"{count - 1}x rtx-3090"), PlanGoal(), pins).plans


def test_where_nothing_smaller_was_left_to_try_the_hint_says_what_to_choose():
    """It ended in "(tried: )"."""
    model = geometry("deepseek-v3")
    rig = parse_rig("strix-halo")
    goal = PlanGoal(input_tokens=500)
    pins = Pins(quant=find_quant("q3_k_m"))
    choice = choose(model, rig, goal, pins, engines=("llamacpp",))
    error = fits_nowhere(model, choice, goal, pins, "llamacpp")
    assert error.hint.startswith("nothing smaller of it is known: choose a smaller model")


def test_a_promise_that_only_a_slower_layout_keeps_puts_it_first():
    free = chosen(goal=PlanGoal(agents=4))
    quickest = min(free.plans, key=lambda plan: plan.rated.outcome.ttft_s)
    assert quickest is not free.plans[0]
    limit = (quickest.rated.outcome.ttft_s + free.plans[0].rated.outcome.ttft_s) / 2 * 1000
    bound = chosen(goal=PlanGoal(agents=4, limits=(("ttft", limit),)))
    assert bound.plans[0].rated.over_limit <= 1
    assert bound.plans[0].setup.layout == quickest.setup.layout
    assert bound.plans[-1].rated.over_limit > 1


def test_bridged_cards_are_put_side_by_side():
    rig, order = arranged(parse_rig("4x rtx-3090: nvlink(0-2,1-3)"))
    assert order == (0, 2, 1, 3)
    kinds = [rig.link(*pair).kind for pair in ((0, 1), (2, 3), (1, 2))]
    assert kinds == ["nvlink", "nvlink", "pcie"]


def test_a_slow_card_beside_a_fast_one_is_left_out():
    choice = chosen("qwen3-8b", parse_rig("rtx-3060 + rtx-5090"), PlanGoal(agents=2))
    assert choice.order == (1, 0)
    assert choice.plans[0].setup.layout == Layout()
    assert choice.plans[0].order == (1, 0)
