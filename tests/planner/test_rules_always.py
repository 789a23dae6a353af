"""What holds for the rules on any setup, and the findings of the write-ups that are about rules."""

from random import Random

import pytest
from memory_samples import (
    CARDS,
    DEEPSEEK_V3,
    GEMMA4_31B,
    MODELS,
    NVLINK,
    PCIE,
    QWEN3_8B,
    QWEN36_27B,
    QWEN36_35B,
    RTX_3090,
    rig,
    setup,
)  # fmt: skip

from skep.planner.quants import KV_TYPES, QUANTS
from skep.planner.rules import check, refusal
from skep.planner.rules_layout import valid_rungs
from skep.planner.setup import Layout, Rig, Setup, Speculation


def any_setup(rng):
    """Also what nobody should ask for: zero depth, 200 % of a card, seven cards of three."""
    spec = rng.choice((None, Speculation(rng.choice(("mtp", "draft", "ngram", "dflash", "")), rng.randint(-1, 9))))
    layout = Layout(rng.randint(1, 9), rng.choice((1, 1, 2, 99)), rng.choice((1, 1, 2, 3)), rng.randint(1, 3))
    engine = rng.choice(("vllm", "sglang", "llamacpp", "trtllm", "ollama", "ik_llamacpp", "unheard-of"))
    version = rng.choice((None, "0.17", "0.19.2", "0.24.0", "2026-07", "nightly", ""))
    return Setup(
        rng.choice(MODELS), rng.choice(list(QUANTS.values())), rng.choice(list(KV_TYPES.values())), engine, layout,
        rng.choice((None, 1, 4, 8, 4000)), rng.choice((None, 1024, 10**7)), rng.choice((None, 0.5, 0.97, 2.0, -1.0)),
        rng.random() < 0.7, spec, rng.choice((None, 16, 2048, 65536)), version,
    )  # fmt: skip


def any_rig(rng):
    cards = tuple(rng.choice(CARDS) for _ in range(rng.randint(0, 5)))
    return Rig(cards, rng.choice((None, PCIE, NVLINK)), ((0, 1, NVLINK),) if len(cards) > 1 else ())


def test_no_setup_makes_a_rule_raise_and_every_sentence_is_a_line_that_names_something():
    rng = Random(11)
    for _ in range(3000):
        made, on = any_setup(rng), any_rig(rng)
        findings = check(made, on)
        assert len({f.rule for f in findings}) == len(findings)
        named = {made.model.id, made.engine, made.quant.title, made.kv.title, *(card.id for card in on.cards)}
        for found in findings:
            assert found.verdict in ("refused", "costs", "depends", "fine")
            assert "\n" not in found.sentence
            assert 20 < len(found.sentence) < 260
            assert not found.sentence.endswith(".")
            assert any(c.isdigit() for c in found.sentence) or any(name in found.sentence for name in named)
            assert found.source
            assert found.remedy is None or found.remedy


@pytest.mark.parametrize(
    ("model", "rungs"),
    [
        (GEMMA4_31B, (1, 2, 4, 8, 16, 32)),
        (QWEN36_27B, (1, 2, 4, 8)),  # 24 heads in its configuration; a write-up that says 16 lists 16 as well
        (QWEN36_35B, (1, 2, 4, 8, 16)),
        (QWEN3_8B, (1, 2, 4, 8, 16, 32)),
        (DEEPSEEK_V3, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_the_valid_rungs_of_a_model(model, rungs):
    assert valid_rungs(model) == rungs


def test_five_3090s_are_refused_and_four_are_named():
    found = refusal(check(setup(GEMMA4_31B, tp=5), rig(RTX_3090, 5, PCIE)))
    assert "5 does not divide the 32 attention heads" in found.sentence
    assert found.remedy == "--tp 4"


@pytest.mark.parametrize("tp", [3, 5, 6, 7])
def test_what_does_not_divide_names_a_rung_that_the_rig_has(tp):
    found = refusal(check(setup(GEMMA4_31B, tp=tp), rig(RTX_3090, tp, PCIE)))
    assert int(found.remedy.removeprefix("--tp ")) in valid_rungs(GEMMA4_31B)


@pytest.mark.parametrize(
    "made",
    [
        setup(QWEN36_27B, "awq", "fp8", tp=2, slots=8, utilization=0.83),
        setup(QWEN36_27B, "autoround", "fp8_e5m2", spec=5, slots=1, utilization=0.97),
        setup(QWEN36_35B, "awq", "fp8_e5m2", tp=2, ep=2, slots=4, utilization=0.92),
        setup(GEMMA4_31B, "awq", tp=2),
    ],
)
def test_what_the_write_ups_ran_is_not_refused(made):
    assert refusal(check(made, rig(RTX_3090, 2, PCIE))) is None


@pytest.mark.parametrize(
    "made",
    [
        setup(QWEN36_27B, "awq", "turboquant_k8v4", tp=2),
        setup(GEMMA4_31B, "awq", "int8", tp=2, version="0.19.1"),
        setup(QWEN3_8B, "awq", tp=3),
    ],
)
def test_what_the_write_ups_were_refused_is_refused(made):
    assert refusal(check(made, rig(RTX_3090, 4, PCIE))) is not None
