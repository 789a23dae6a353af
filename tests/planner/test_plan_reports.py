"""What a plan explains of its memory and its choice, pools of memory, and the report of a
validation.
"""

import csv
import dataclasses
import json
import re
from pathlib import Path
from statistics import median

import pytest
from memory_samples import GEMMA3_12B, H100, QWEN3_8B, RTX_5090, setup

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.config.rigs import parse_rig
from skep.planner.candidates import PlanGoal
from skep.planner.choose import step_shares
from skep.planner.memory import kv_bytes_per_token, kv_capacity_tokens, memory
from skep.planner.predict import prospect
from skep.planner.setup import Layout, Setup, Speculation, find_kv, find_quant
from skep.planner.step import Constants, StepTuning, published_constants
from skep.planner.validation import read_rows, spread, validate

DATA = Path(__file__).parent.parent / "data"


def read(name):
    return read_rows((DATA / name).read_text(encoding="utf-8"), name)


FOLDS = {
    name: Constants(**constants)
    for name, constants in json.loads((DATA / "fitted_without.json").read_text()).items()
}


def unseen(source):
    """Constants that were not fitted on that source."""
    return FOLDS.get(source, published_constants())


@pytest.fixture(scope="module")
def page():
    """What all rows come to, which another test holds against them."""
    return (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")


def cells_of(page, *beginnings):
    return [
        line.strip("|").split("|") for line in page.splitlines() if line.startswith(beginnings)
    ]


def test_the_page_keeps_the_promised_errors(page):
    ((_, _, middle, p90),) = cells_of(page, "|**all**")
    assert float(middle.rstrip("%")) <= 16
    assert float(p90.rstrip("%")) <= 58
    assert float(re.search(r"published ones: mean ([\d.]+)%", page)[1]) <= 23
    assert 75 <= int(re.search(r"the 80 % band holds (\d+)%", page)[1]) <= 85


def test_the_planner_beats_simple_formulas(page):
    rows = cells_of(page, "|**all**", "|*bandwidth", "|*roofline")
    planner, *formulas = (float(cells[2].rstrip("%")) for cells in rows)
    assert len(formulas) == 2
    assert planner <= min(formulas) / 2


def test_few_constants_are_fitted_to_many_sources(page):
    assert len(Constants.names()) <= 20
    sources = {name for name, *_ in cells_of(page[page.index("|source|") :], "|") if "." in name}
    assert len(sources) >= 25
    assert sources <= set(FOLDS)
    assert unseen("github.com/gpustack/gpustack") != published_constants()


def test_no_row_is_dropped_silently():
    rows = read("published_points.csv")
    assert len(rows) == 914
    report = validate(rows[::6], constants_of=unseen)
    assert report.rows == len(report.points) + len(report.unpredicted) == 153
    predicted = {point.case.row for point in report.points}
    assert len(predicted | {row for row, _ in report.unpredicted}) == 153
    assert report.unpredicted
    assert all(": " in why for _, why in report.unpredicted)


def test_own_levels_are_predicted_from_the_others():
    report = validate(read("own_points.csv"), constants_of=unseen)
    vllm = [point.error for point in report.points if point.case.setup.engine == "vllm"]
    assert report.unpredicted == ()
    assert len(vllm) >= 60
    assert median(vllm) <= 0.10


def test_writeups_are_predicted_from_the_others():
    report = validate(read("writeup_points.csv"), constants_of=unseen)
    assert report.unpredicted == ()
    assert report.spreads()["all"].median_ape <= 0.25


def test_the_spread_of_no_errors_is_not_known():
    assert spread([]).median_ape is None
    assert spread([0.1, 0.3]).median_ape == pytest.approx(0.2)


RIG = parse_rig("2x rtx-3090")


def of(model, layout, engine="vllm", quant="awq", spec=None, **options):
    setup = Setup(
        geometry(model), find_quant(quant), find_kv("bf16"), engine, layout, slots=8, spec=spec
    )
    return prospect(setup, RIG, published_constants(), context=1536, **options)


CASES = [
    of("qwen3.6-27b", Layout(tp=2)),
    of("qwen3.6-27b", Layout(replicas=2), spec=Speculation("mtp", 3)),
    of("qwen3.6-35b-a3b", Layout(tp=2, ep=2)),
    of("gemma-4-31b", Layout(tp=2)),
    of("qwen3-8b", Layout(pp=2), "llamacpp", "q4_k_m"),
    of("qwen3-8b", Layout(), tuning=StepTuning(decode=1.3, batch=0.9)),
]


@pytest.mark.parametrize(
    "model", CASES, ids=lambda model: f"{model.setup.model.id} {model.setup.layout}"
)
def test_the_shares_of_a_step_add_up(model):
    for agents in (1, 4, 16):
        shares = step_shares(model, PlanGoal(agents=agents))
        assert sum(shares.values()) == pytest.approx(1.0, abs=0.01)
        assert [*shares.values()] == sorted(shares.values(), reverse=True)


def test_a_step_spends_nothing_on_what_is_not_there():
    dense, drafting, mixture = (step_shares(model, PlanGoal()) for model in CASES[:3])
    assert dense["all-reduce"] > 0 == drafting["all-reduce"]
    assert drafting["drafts"] > 0
    assert min(mixture["experts"], mixture["linear-attention state"]) > 0 == dense["experts"]


def pool_tokens_as_reported(setup, plan):
    """Return what vLLM prints up to 0.12: layers are grouped by kind in equal groups, whose last
    one may be padded.
    """
    model = setup.model
    tp = setup.layout.tp
    if not model.sliding_layers:
        return int(plan.pool_bytes / kv_bytes_per_token(setup))
    group = min(model.full_layers, model.sliding_layers) or max(
        model.full_layers, model.sliding_layers
    )
    padded = -(-model.sliding_layers // group) * group + -(-model.full_layers // group) * group
    layer_bytes = 2 * max(1, -(-model.kv_heads // tp)) * model.head_dim * setup.kv.bytes
    return int(plan.pool_bytes / (padded * layer_bytes / setup.layout.pp))


def printed_pools():
    """The rows whose pool is twice what 16-bit KV could give are taken as FP8 although their
    settings say `auto`.
    """
    with (Path(__file__).parent.parent / "data" / "printed_pools.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        return list(csv.DictReader(file))


def error_of(row):
    flags = {"tp": int(row["tp"]), "utilization": float(row["utilization"]), "version": "0.12.0"}
    engine = setup(geometry(row["model"]), row["quant"], row["kv"], **flags)
    return (
        pool_tokens_as_reported(engine, memory(engine, device(row["card"]), context=4096))
        / int(row["tokens"])
        - 1
    )


def test_published_pools_come_out_within_a_tenth_and_half_within_four_percent():
    """And the errors lean to neither side: a pool promised too large sends people into preemption,
    one promised too small sells them a card."""
    errors = [error_of(row) for row in printed_pools()]
    assert len(errors) == 30
    assert median(abs(e) for e in errors) < 0.04
    assert max(abs(e) for e in errors) < 0.10
    assert abs(median(errors)) < 0.03


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("llama-3.1-8b", 542_960),
        ("qwen3-8b", 478_560),
        ("qwen3-14b", 350_304),
        ("qwen3-32b", 81_648),
    ],
)
def test_pools_of_an_h100_nvl_come_out_within_four_percent(model, tokens):
    """A public table of vLLM's KV tokens with 1024 sequences and 4096 batched tokens; only the
    bytes a sampled logit takes were read from it."""
    card = dataclasses.replace(H100, id="h100-nvl", memory_gib=94.5)
    engine = setup(geometry(model), "bf16", batched_tokens=4096)
    assert pool_tokens_as_reported(
        engine, memory(engine, card, context=4096, slots=1024)
    ) == pytest.approx(tokens, rel=0.04)


@pytest.mark.parametrize("context", [1024, 8192, 32768])
def test_the_capacity_is_the_pool_whatever_the_context(context):
    tokens = kv_capacity_tokens(setup(QWEN3_8B, "nvfp4"), RTX_5090, context=context)
    assert tokens == pytest.approx(155_500, rel=0.01)


def test_with_windows_long_sequences_cost_less_a_token():
    engine = setup(GEMMA3_12B, "nvfp4")
    in_long, in_short = (
        kv_capacity_tokens(engine, RTX_5090, context=context) for context in (65536, 2048)
    )
    assert in_long > 2 * in_short
