"""What a forward pass takes, and what makes it take longer."""

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.planner.setup import CardLink, Layout, Setup, Speculation, find_kv, find_quant, pcie_gbs
from skep.planner.step import UNTUNED, StepTuning, all_reduce, published_constants, step_model

K = published_constants()
NVLINK = CardLink("nvlink", 56.2)
PCIE = CardLink("pcie", 31.5, p2p=False)


def step(
    model="qwen3-14b",
    quant="awq",
    card="rtx-3090",
    tp=1,
    link=PCIE,
    kv="bf16",
    tuning=UNTUNED,
    **options,
):
    setup = Setup(
        geometry(model), find_quant(quant), find_kv(kv), "vllm", Layout(tp=tp), **options
    )
    return step_model(setup, device(card), link if tp > 1 else None, K, tuning=tuning)


def test_a_mixture_reads_few_experts_for_one_token():
    moe = step("qwen3-coder-30b-a3b")
    few = moe.seconds(1, 0)
    assert few < 0.4 * step("qwen2.5-coder-32b").seconds(1, 0)
    assert moe.seconds(64, 0) > 2.5 * few


def test_stages_overlap_for_several_sequences_only():
    setup = Setup(geometry("qwen3-14b"), find_quant("awq"), find_kv("bf16"), "vllm", Layout(pp=2))
    staged = step_model(setup, device("rtx-3090"), None, K)
    whole = step()
    assert staged.seconds(1, 1000) > whole.seconds(1, 1000)
    assert staged.seconds(16, 16_000) < whole.seconds(16, 16_000)


def test_whole_experts_on_each_card_cost_several_sequences_a_little():
    cut, whole = (
        step_model(
            Setup(
                geometry("qwen3-30b-a3b"),
                find_quant("fp8"),
                find_kv("bf16"),
                "vllm",
                Layout(tp=2, ep=ep),
            ),
            device("h100-sxm"),
            CardLink("nvlink", 450.0),
            K,
        )
        for ep in (1, 2)
    )
    assert whole.seconds(1, 1000) == cut.seconds(1, 1000)
    assert 1.0 < whole.seconds(64, 64_000) / cut.seconds(64, 64_000) < 1.05


@pytest.mark.parametrize("link", [CardLink("nvlink", 300.0), CardLink("pcie", 31.5)])
def test_all_reduces_grow_with_size_and_with_cards(link):
    pair = all_reduce(2, link, K)
    eight = all_reduce(8, link, K)
    assert 0 < pair.s_per_byte < eight.s_per_byte
    assert 0 < pair.fixed_s < eight.fixed_s
    assert all_reduce(1, link, K).fixed_s == all_reduce(1, link, K).s_per_byte == 0


def test_a_second_card_halves_reading_but_adds_all_reduces():
    alone = step()
    pair = step(tp=2)
    assert pair.dense_s < 0.6 * alone.dense_s
    assert pair.comm_fixed_s > 0 == alone.comm_fixed_s
    assert step(tp=2, link=NVLINK).seconds(1, 100) < pair.seconds(1, 100)


def test_without_graphs_all_reduces_are_launched_one_by_one():
    graphs, eager = (
        step("qwen3.6-27b", tp=2, graphs=graphs).seconds(1, 100) for graphs in (True, False)
    )
    assert eager > 1.6 * graphs  # on a small card


def test_the_speed_of_a_slot_is_read_from_its_name():
    speeds = [*map(pcie_gbs, ("4.0 x16", "PCIe 3.0 x8", "?"))]
    assert speeds == pytest.approx([31.5, 7.88, 31.5], rel=0.01)


def test_without_graphs_launching_counts_only_where_it_takes_longer_than_the_card():
    """Python launches while the card works: eager costs a small model much, and one that is read
    for long nothing.
    """
    small, large = (
        [step(model, quant="awq", graphs=graphs).seconds(1, 100) for graphs in (True, False)]
        for model in ("qwen3-8b", "qwen2.5-coder-32b")
    )
    assert small[1] > 1.5 * small[0]
    assert large[1] < 1.35 * large[0]


def test_speculation_makes_steps_longer():
    plain = step("qwen3.6-27b")
    for method in ("mtp", "draft"):
        drafted = step("qwen3.6-27b", spec=Speculation(method, 3))
        assert plain.seconds(1, 100) < drafted.seconds(1, 100)


def test_speculation_brings_more_tokens_a_step_and_a_second():
    plain = step("qwen3.6-27b")
    drafted = step("qwen3.6-27b", spec=Speculation("mtp", 3))
    assert 2 < drafted.tokens_per_step(1) < 4
    assert drafted.tokens_per_step(1) / drafted.seconds(1, 100) > 1 / plain.seconds(1, 100)
    hopeless = step("qwen3.6-27b", spec=Speculation("mtp", 3, acceptance=0.0))
    assert hopeless.tokens_per_step(1) == 1


def test_more_drafts_are_right_in_code_than_in_prose():
    prose, mixed, code = (
        step("qwen3.6-27b", spec=Speculation("mtp", 3, text=text)).tokens_per_step(1)
        for text in ("prose", "mixed", "code")
    )
    # 75, 47 and 27 % were published.
    assert prose == pytest.approx(1 + 0.76 + 0.76**2 * 0.86 + 0.76**3 * 0.86**3)
    assert prose < mixed < code < 4


@pytest.mark.parametrize(
    ("card", "fastest_first"),
    [
        ("h200", ["fp8", "awq", "bf16"]),  # 3.5, 4.3 and 5.3 ms were measured
        ("rtx-4090", ["awq", "fp8", "bf16"]),
    ],
)
def test_hbm_is_read_faster_than_four_bits_are_unpacked(card, fastest_first):
    seconds = {
        quant: step("qwen3-8b", quant, card).seconds(1, 1000) for quant in ("awq", "fp8", "bf16")
    }
    first, second, third = (seconds[quant] for quant in fastest_first)
    assert first < second < third


def test_one_cache_for_all_slots_is_read_once_for_every_sequence():
    setup = Setup(geometry("qwen3-8b"), find_quant("q4_k_m"), find_kv("bf16"), "llamacpp")
    apart, shared = (
        step_model(replace(setup, shared_kv=is_shared), device("h200"), None, K)
        for is_shared in (False, True)
    )
    assert shared.seconds(1, 1000) == apart.seconds(1, 1000)
    # 0.155 s were measured.
    assert shared.seconds(64, 64 * 1128) > 0.1 > 3 * apart.seconds(64, 64 * 1128)


@pytest.mark.parametrize(
    ("version", "old"),
    [(None, False), ("0.12.0", True), ("0.24.0", False), ("2025-12", True), ("2026-08", False)],
)
def test_launches_of_engines_before_2026_take_longer(version, old):
    assert (step(version=version).fixed_s > step().fixed_s) is old


def test_a_calibration_multiplies_what_it_measured():
    plain = step()
    slow = step(tuning=StepTuning(decode=2.0))
    assert slow.seconds(8, 800) == pytest.approx(2 * plain.seconds(8, 800))
    assert slow.seconds(0, 0, 512) == pytest.approx(plain.seconds(0, 0, 512))
    prompts = replace(plain, tuning=StepTuning(prompt=3.0))
    assert prompts.seconds(0, 0, 512) == pytest.approx(3 * plain.seconds(0, 0, 512))
    batch = replace(plain, tuning=StepTuning(batch=2.0))
    assert batch.seconds(1, 100) == pytest.approx(plain.seconds(1, 100))
    assert batch.seconds(8, 800) > plain.seconds(8, 800)
