"""Every rule answers to the examples beside it, and what holds for the rules on any setup."""

from importlib.resources import files
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
)
from msgspec.structs import replace

from skep.catalog.models import geometry
from skep.config.rigs import parse_rig
from skep.planner.rules import Facts, check, find_first, refusal, rules, valid_rungs
from skep.planner.setup import KV_TYPES, QUANTS, Layout, Rig, Setup, Speculation

CASES = [case for rule in rules().values() for case in rule.cases]
SETTINGS = {
    "slots": int,
    "context": int,
    "batched_tokens": int,
    "utilization": float,
    "version": str,
    "graphs": bool,
}


def read_example(text):
    """Return the setup and the rig of "qwen3-8b awq tp=2 spec=mtp:3 on 2x rtx-3090"; `graphs=` is
    without them.
    """
    words, _, cards = text.partition(" on ")
    model, quant, *settings = words.split()
    values = dict(setting.split("=") for setting in settings)
    layout = {key: int(values.pop(key)) for key in ("tp", "pp", "ep", "replicas") if key in values}
    link = values.pop("link", None)
    method, _, depth = values.pop("spec", "").partition(":")
    if cards == "nothing":
        rig = Rig(())
    else:
        rig = parse_rig(cards, None if link == "none" else link)
    options = {key: SETTINGS[key](value) for key, value in values.items() if key in SETTINGS}
    kv = values.get("kv", "bf16")
    engine = values.get("engine", "vllm")
    engine_setup = setup(
        geometry(model),
        quant,
        kv,
        engine,
        **layout,
        spec=int(depth or 0),
        method=method,
        **options,
    )
    if link == "none":
        rig = replace(rig, default_link=None)
    return engine_setup, rig


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.verdict}")
def test_a_case_answers_to_its_example(case):
    engine_setup, on = read_example(case.example)
    assert rules()[case.rule].find(Facts(engine_setup, on)) is case
    assert [f.verdict for f in check(engine_setup, on) if f.rule == case.rule] == [case.verdict]


# What is worked out rather than quoted: a rule's example, and a piece of the sentence.
WORKED_OUT = [
    ("heads", "gemma-4-31b awq tp=4 on 4x rtx-3090", "8 of 32"),
    ("heads", "gemma-4-31b awq tp=5 on 5x rtx-3090", "valid are TP=1, 2, 4, 8, 16, 32"),
    ("heads", "qwen3.6-27b awq tp=3 on 3x rtx-3090", "4 KV heads"),
    ("kv-heads", "qwen3.6-35b-a3b awq tp=4 on 4x rtx-3090", "kept 2 times"),
    ("expert-parallel", "qwen3.6-35b-a3b awq tp=2 ep=2 on 2x rtx-3090", "128 of 256"),
    ("widths", "qwen3-coder-30b-a3b awq tp=16 on 16x h100-sxm", "into 48"),
    ("pipeline", "qwen2.5-coder-32b awq pp=3 on 4x rtx-3090", "21 and 22 layers"),
    ("mixed-cards", "qwen3-8b awq tp=2 on rtx-5090 + rtx-3090", "rtx-3090 sizes the pool"),
    ("links", "qwen3-8b awq tp=2 link=nvlink on 2x rtx-3090", "56.2 GB/s"),
    ("links", "qwen3-8b awq tp=2 on 4x rtx-3090: nvlink(0-1,2-3)", "NVLink"),
    ("links", "qwen3-8b awq tp=4 on 4x rtx-3090: nvlink(0-1,2-3)", "within a pair only"),
    ("links", "qwen3-8b awq tp=2 on 2x rtx-4090", "host memory"),
    ("turboquant", "qwen3.6-27b awq kv=turboquant_k8v4 on rtx-3090", "48 linear layers"),
    ("utilization", "qwen3-8b awq utilization=0.97 on rtx-3090", "3 %"),
    ("captured-sizes", "qwen3.6-27b awq on rtx-3090", "51 batch sizes"),
    ("linear-scratch", "qwen3.6-27b awq slots=2 on rtx-3090", "2048 batched tokens"),
]


@pytest.mark.parametrize(("rule", "example", "piece"), WORKED_OUT)
def test_a_sentence_names_what_was_worked_out(rule, example, piece):
    (sentence,) = (f.sentence for f in check(*read_example(example)) if f.rule == rule)
    assert piece in sentence


def test_the_first_refusal_is_the_reason_of_all_rules_or_of_those_named():
    bad = setup(GEMMA4_31B, "fp8", "fp8_e5m2", tp=5), rig(RTX_3090, 5, PCIE)
    assert refusal(*bad).rule == "heads"
    assert find_first("refused", *bad, ("driver", "kv-fp8", "heads")).rule == "kv-fp8"
    assert refusal(setup(GEMMA4_31B, tp=4), rig(RTX_3090, 4, PCIE)) is None


def test_every_rule_has_an_id_of_its_own():
    text = files("skep.planner").joinpath("rules.toml").read_text(encoding="utf-8")
    assert text.count("[[rule]]") == len(rules()) >= 30


def any_setup(rng):
    """Also what nobody should ask for: zero depth, 200 % of a card, seven cards of three."""
    spec = rng.choice(
        (
            None,
            Speculation(rng.choice(("mtp", "draft", "ngram", "dflash", "")), rng.randint(-1, 9)),
        )
    )
    layout = Layout(
        rng.randint(1, 9), rng.choice((1, 1, 2, 99)), rng.choice((1, 1, 2, 3)), rng.randint(1, 3)
    )
    engine = rng.choice(("vllm", "sglang", "llamacpp", "ollama", "ik_llamacpp", "unheard-of"))
    version = rng.choice((None, "0.17", "0.19.2", "0.24.0", "2026-07", "nightly", ""))
    return Setup(
        rng.choice(MODELS),
        rng.choice(list(QUANTS.values())),
        rng.choice(list(KV_TYPES.values())),
        engine,
        layout,
        rng.choice((None, 1, 4, 8, 4000)),
        rng.choice((None, 1024, 10**7)),
        rng.choice((None, 0.5, 0.97, 2.0, -1.0)),
        rng.random() < 0.7,
        spec,
        rng.choice((None, 16, 2048, 65536)),
        version,
    )


def any_rig(rng):
    cards = tuple(rng.choice(CARDS) for _ in range(rng.randint(0, 5)))
    return Rig(
        cards, rng.choice((None, PCIE, NVLINK)), ((0, 1, NVLINK),) if len(cards) > 1 else ()
    )


@pytest.fixture(scope="module")
def findings_of_any_setups():
    """What the rules say of a thousand setups and rigs drawn at random; none makes one raise."""
    rng = Random(11)
    drawn = [(any_setup(rng), any_rig(rng)) for _ in range(1000)]
    return [(engine_setup, on, check(engine_setup, on)) for engine_setup, on in drawn]


def test_a_rule_says_one_thing_of_any_setup(findings_of_any_setups):
    for _, _, findings in findings_of_any_setups:
        assert len({finding.rule for finding in findings}) == len(findings)


def test_every_sentence_is_one_line_without_a_full_stop(findings_of_any_setups):
    sentences = {
        finding.sentence for _, _, findings in findings_of_any_setups for finding in findings
    }
    for sentence in sentences:
        assert "\n" not in sentence
        assert 20 < len(sentence) < 260
        assert not sentence.endswith(".")


def test_every_sentence_names_a_number_or_what_it_is_about(findings_of_any_setups):
    for engine_setup, on, findings in findings_of_any_setups:
        named = {
            engine_setup.model.id,
            engine_setup.engine,
            engine_setup.quant.title,
            engine_setup.kv.title,
            *(card.id for card in on.cards),
        }
        for finding in findings:
            has_number = any(letter.isdigit() for letter in finding.sentence)
            assert has_number or any(name in finding.sentence for name in named)


def test_every_finding_has_a_verdict_a_source_and_no_empty_remedy(findings_of_any_setups):
    for _, _, findings in findings_of_any_setups:
        for finding in findings:
            assert finding.verdict in ("refused", "costs", "depends", "fine")
            assert finding.source
            assert finding.remedy is None or finding.remedy


@pytest.mark.parametrize(
    ("model", "rungs"),
    [
        (GEMMA4_31B, (1, 2, 4, 8, 16, 32)),
        (
            QWEN36_27B,
            (1, 2, 4, 8),
        ),  # 24 heads in its configuration; a write-up that says 16 lists 16 as well
        (QWEN36_35B, (1, 2, 4, 8, 16)),
        (QWEN3_8B, (1, 2, 4, 8, 16, 32)),
        (DEEPSEEK_V3, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_the_valid_rungs_of_a_model(model, rungs):
    assert valid_rungs(model) == rungs


@pytest.mark.parametrize(("tp", "rung"), [(3, 2), (5, 4), (6, 4), (7, 4)])
def test_what_does_not_divide_names_a_rung_that_the_rig_has(tp, rung):
    assert refusal(setup(GEMMA4_31B, tp=tp), rig(RTX_3090, tp, PCIE)).remedy == f"--tp {rung}"
