"""Where a step's time goes."""

import pytest

from skep.catalog.models import geometry
from skep.planner.candidates import PlanGoal
from skep.planner.choose import account
from skep.planner.constants import published_constants
from skep.planner.predict import prospect
from skep.planner.quants import find_kv, find_quant
from skep.planner.rigs import parse_rig
from skep.planner.setup import Layout, Setup, Speculation
from skep.planner.step import StepTuning

RIG = parse_rig("2x rtx-3090")


def of(model, layout, engine="vllm", quant="awq", spec=None, **more):
    setup = Setup(geometry(model), find_quant(quant), find_kv("bf16"), engine, layout, slots=8, spec=spec)
    return prospect(setup, RIG, published_constants(), context=1536, **more)


CASES = [
    of("qwen3.6-27b", Layout(tp=2)),
    of("qwen3.6-27b", Layout(replicas=2), spec=Speculation("mtp", 3)),
    of("qwen3.6-35b-a3b", Layout(tp=2, ep=2)),
    of("gemma-4-31b", Layout(tp=2)),
    of("qwen3-8b", Layout(pp=2), "llamacpp", "q4_k_m"),
    of("qwen3-8b", Layout(), tuning=StepTuning(decode=1.3, batch=0.9)),
]


@pytest.mark.parametrize("found", CASES, ids=lambda found: f"{found.setup.model.id} {found.setup.layout}")
@pytest.mark.parametrize("agents", [1, 4, 16])
def test_the_terms_add_up_to_the_step(found, agents):
    spent = account(found, PlanGoal(), agents)
    assert sum(term.seconds for term in spent.terms) == pytest.approx(spent.seconds, rel=0.01)
    assert sum(term.share for term in spent.terms) == pytest.approx(1.0, abs=0.01)
    assert all(term.how for term in spent.terms)
    assert [t.seconds for t in spent.terms] == sorted((t.seconds for t in spent.terms), reverse=True)


def names(found, agents=4):
    return {term.name for term in account(found, PlanGoal(), agents).terms}


def test_only_what_is_there_is_named():
    dense, drafting, mixture, *_ = CASES
    assert "all-reduce" in names(dense)
    assert "all-reduce" not in names(drafting)
    assert "drafts" in names(drafting)
    assert {"experts", "linear-attention state"} <= names(mixture)
    assert "experts" not in names(dense)


def test_a_replica_has_its_share_of_the_agents():
    spent = account(CASES[1], PlanGoal(), 4)
    assert spent.sequences == 2
    assert spent.tokens == pytest.approx(2 * CASES[1].step.accepted)
