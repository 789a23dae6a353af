"""Every rule, with every verdict it can give, each on a setup somebody might ask for."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from memory_samples import (
    B70,
    DEEPSEEK_V3,
    GEMMA3_12B,
    GEMMA4_31B,
    GPT_OSS_20B,
    H100,
    M4_MAX,
    NVLINK,
    PCIE,
    PCIE_HOST,
    QWEN3_8B,
    QWEN3_CODER_30B,
    QWEN25_32B,
    QWEN36_27B,
    QWEN36_35B,
    RTX_2080_TI,
    RTX_3090,
    RTX_4090,
    RTX_5090,
    V100,
    rig,
    setup,
)  # fmt: skip

import skep.planner
from skep.planner.rules import RULES, check, refusal
from skep.planner.setup import Rig, Speculation

ONE, TWO, FOUR = rig(RTX_3090), rig(RTX_3090, 2, PCIE), rig(RTX_3090, 4, PCIE)
BRIDGED = rig(RTX_3090, 2, NVLINK)
PAIRS = rig(RTX_3090, 4, PCIE, ((0, 1, NVLINK), (2, 3, NVLINK)))
BLACKWELL, VOLTA, INTEL, APPLE = rig(RTX_5090), rig(V100), rig(B70), rig(M4_MAX)

CASES = [
    # rule, verdict, setup, rig, a piece of the sentence
    ("cards", "refused", setup(QWEN3_8B, tp=4), TWO, "needs 4 cards, the rig has 2"),
    ("engine", "refused", setup(QWEN3_8B, engine="trtllm"), INTEL, "intel"),
    ("engine", "refused", setup(QWEN3_8B), APPLE, "vllm-metal"),
    ("engine", "refused", setup(QWEN36_35B, "q4_k_m", engine="llamacpp", ep=2), TWO, "EP=2"),
    ("engine", "refused", setup(QWEN3_8B, "q4_k_m", engine="ollama", tp=2), TWO, "TP=2"),
    ("engine", "refused", setup(QWEN3_8B, "q4_k_m", "q8_0", "llamacpp", tp=2), TWO, "Q8_0"),
    ("engine", "depends", setup(QWEN3_8B, "q4_k_m", engine="llamacpp", tp=2), TWO, "split-mode tensor"),
    ("heads", "fine", setup(GEMMA4_31B, tp=4), FOUR, "8 of 32"),
    ("heads", "refused", setup(GEMMA4_31B, tp=5), rig(RTX_3090, 5), "valid are TP=1, 2, 4, 8, 16, 32"),
    ("heads", "refused", setup(QWEN36_27B, tp=3), rig(RTX_3090, 3), "4 KV heads"),
    ("kv-heads", "fine", setup(QWEN3_8B, tp=2), TWO, "8 KV heads"),
    ("kv-heads", "costs", setup(QWEN36_35B, tp=4), FOUR, "kept 2 times"),
    ("kv-heads", "costs", setup(DEEPSEEK_V3, "fp8", tp=8), rig(H100, 8), "rank 512"),
    ("expert-parallel", "refused", setup(QWEN3_8B, tp=2, ep=2), TWO, "dense"),
    ("expert-parallel", "refused", setup(QWEN36_35B, tp=2, ep=4), FOUR, "EP=4"),
    ("expert-parallel", "depends", setup(QWEN36_35B, tp=1, ep=3, replicas=3), FOUR, "256 experts"),
    ("expert-parallel", "fine", setup(QWEN36_35B, tp=2, ep=2), TWO, "128 of 256"),
    ("widths", "refused", setup(GPT_OSS_20B, "mxfp4", tp=128), rig(H100, 128), "2880"),
    ("widths", "depends", setup(QWEN3_CODER_30B, "fp8", tp=8), rig(H100, 8), "into 96"),
    ("widths", "depends", setup(QWEN3_CODER_30B, "awq", tp=4), FOUR, "into 192"),
    ("widths", "refused", setup(QWEN3_CODER_30B, "awq", tp=16), rig(H100, 16), "into 48"),
    ("pipeline", "refused", setup(QWEN3_8B, pp=40), rig(RTX_3090, 40), "36 layers"),
    ("pipeline", "refused", setup(QWEN36_27B, pp=2, spec=3), TWO, "mtp n=3"),
    ("pipeline", "depends", replace(setup(QWEN36_27B, pp=2), spec=Speculation("ngram", 3)), TWO, "ngram n=3"),
    ("pipeline", "costs", setup(QWEN25_32B, pp=3), FOUR, "21 and 22 layers"),
    ("mixed-cards", "costs", setup(QWEN3_8B, tp=2), Rig((RTX_5090, RTX_3090)), "rtx-3090 sizes the pool"),
    ("links", "depends", setup(QWEN3_8B, tp=2), rig(RTX_3090, 2), "nobody described"),
    ("links", "fine", setup(QWEN3_8B, tp=2), BRIDGED, "56.2 GB/s"),
    ("links", "fine", setup(QWEN3_8B, tp=2), PAIRS, "NVLink"),
    ("links", "costs", setup(QWEN3_8B, tp=4), PAIRS, "within a pair only"),
    ("links", "costs", setup(QWEN3_8B, tp=2), TWO, "with peer access"),
    ("links", "costs", setup(QWEN3_8B, tp=2), rig(RTX_4090, 2, PCIE_HOST), "host memory"),
    ("custom-all-reduce", "depends", setup(QWEN3_8B, tp=2), TWO, "SM 8.6"),
    ("sigbus", "depends", setup(QWEN25_32B, tp=2, version="0.17.0"), TWO, "SIGBUS"),
    ("engine-format", "refused", setup(QWEN3_8B, "awq", engine="llamacpp"), ONE, "AWQ"),
    ("engine-format", "costs", setup(QWEN3_8B, "q4_k_m"), ONE, "a fifth"),
    ("engine-format", "depends", setup(QWEN3_8B, "q4_k_m", engine="sglang"), ONE, "Q4_K_M"),
    ("engine-format", "refused", setup(QWEN3_8B, "q4_k_m", engine="trtllm"), ONE, "Q4_K_M"),
    ("fp8-weights", "fine", setup(QWEN3_8B, "fp8"), rig(RTX_4090), "rtx-4090"),
    ("fp8-weights", "depends", setup(QWEN3_8B, "fp8"), ONE, "13 %"),
    ("fp8-weights", "depends", setup(QWEN3_8B, "fp8", engine="sglang"), ONE, "fp8e4nv"),
    ("fp8-weights", "depends", setup(QWEN3_8B, "fp8"), INTEL, "arc-pro-b70"),
    ("fp8-weights", "refused", setup(QWEN3_8B, "fp8"), VOLTA, "SM 7"),
    ("nvfp4", "fine", setup(QWEN3_8B, "nvfp4"), BLACKWELL, "rtx-5090"),
    ("nvfp4", "depends", setup(QWEN3_8B, "nvfp4"), ONE, "Blackwell-only"),
    ("nvfp4", "refused", setup(QWEN3_8B, "nvfp4"), INTEL, "NVIDIA's format"),
    ("mxfp4", "fine", setup(GPT_OSS_20B, "mxfp4"), BLACKWELL, "rtx-5090"),
    ("mxfp4", "depends", setup(GPT_OSS_20B, "mxfp4"), ONE, "Marlin"),
    ("mxfp4", "refused", setup(GPT_OSS_20B, "mxfp4"), VOLTA, "SM 7"),
    ("int8-weights", "fine", setup(QWEN3_8B, "int8"), ONE, "rtx-3090"),
    ("int8-weights", "depends", setup(QWEN3_8B, "int8"), BLACKWELL, "W8A16"),
    ("int8-weights", "depends", setup(QWEN3_8B, "int8"), rig(M4_MAX), "m4-max"),
    ("int8-weights", "refused", setup(QWEN3_8B, "int8"), VOLTA, "SM 7"),
    ("bf16", "refused", setup(GEMMA3_12B, "gptq"), rig(RTX_2080_TI), "overflows"),
    ("bf16", "costs", setup(QWEN3_8B, "gptq"), rig(RTX_2080_TI), "--dtype half"),
    ("int4-kernels", "fine", setup(QWEN3_8B, "awq"), ONE, "Marlin"),
    ("int4-kernels", "depends", setup(QWEN36_27B, "autoround"), ONE, "slower kernels"),
    ("int4-kernels", "depends", setup(QWEN3_8B, "awq"), INTEL, "arc-pro-b70"),
    ("int4-kernels", "depends", setup(QWEN3_8B, "awq"), rig(RTX_2080_TI), "SM 7.5"),
    ("int4-kernels", "refused", setup(QWEN3_8B, "awq"), VOLTA, "AWQ needs 7.5"),
    ("int4-kernels", "costs", setup(QWEN3_8B, "gptq"), VOLTA, "slower kernel"),
    ("kv-engine", "refused", setup(QWEN3_8B, "q4_k_m", "fp8", "llamacpp"), ONE, "FP8"),
    ("kv-engine", "refused", setup(QWEN3_8B, "awq", "q8_0"), ONE, "Q8_0"),
    ("kv-engine", "refused", setup(QWEN3_8B, "awq", "turboquant_3bit", "sglang"), ONE, "TurboQuant"),
    ("kv-engine", "depends", setup(QWEN3_8B, "awq", "int8", "trtllm"), ONE, "INT8"),
    ("kv-fp8", "fine", setup(QWEN3_8B, "awq", "fp8"), rig(RTX_4090), "rtx-4090"),
    ("kv-fp8", "depends", setup(QWEN3_8B, "awq", "fp8_e4m3"), ONE, "fails on Ampere"),
    ("kv-fp8", "depends", setup(QWEN3_8B, "awq", "fp8"), INTEL, "intel"),
    ("kv-fp8", "refused", setup(QWEN3_8B, "gptq", "fp8"), rig(RTX_2080_TI), "SM 7.5"),
    ("kv-fp8", "depends", setup(GEMMA4_31B, "awq", "fp8_e5m2"), ONE, "gated"),
    ("kv-fp8", "fine", setup(GEMMA4_31B, "awq", "fp8_e5m2", version="0.24.0"), ONE, "0.24.0"),
    ("kv-fp8", "fine", setup(QWEN3_8B, "bf16", "fp8_e5m2"), ONE, "BF16"),
    ("kv-fp8", "refused", setup(QWEN3_8B, "fp8", "fp8_e5m2"), rig(RTX_4090), "FP8 checkpoints"),
    ("kv-int8", "refused", setup(QWEN3_8B, "awq", "int8", version="0.19.1"), ONE, "0.19.1"),
    ("kv-int8", "depends", setup(QWEN3_8B, "awq", "int8"), ONE, "int8_per_token_head"),
    ("turboquant", "refused", setup(QWEN36_27B, "awq", "turboquant_k8v4"), ONE, "48 linear layers"),
    ("turboquant", "depends", setup(QWEN36_27B, "awq", "turboquant_k8v4", version="0.24"), ONE, "hybrid"),
    ("turboquant", "refused", setup(QWEN3_8B, "awq", "turboquant_3bit", version="0.19"), ONE, "0.19"),
    ("turboquant", "costs", setup(QWEN3_8B, "awq", "turboquant_3bit"), ONE, "50 to 65 %"),
    ("kv-nvfp4", "refused", setup(QWEN3_8B, "awq", "nvfp4"), ONE, "rtx-3090"),
    ("kv-nvfp4", "depends", setup(QWEN3_8B, "nvfp4", "nvfp4"), BLACKWELL, "rtx-5090"),
    ("utilization", "refused", setup(QWEN3_8B, utilization=1.2), ONE, "1.2"),
    ("utilization", "costs", setup(QWEN3_8B, utilization=0.97), ONE, "3 %"),
    ("context", "depends", setup(QWEN25_32B, context=131072), TWO, "32768"),
    ("eager", "costs", setup(QWEN36_27B, graphs=False), ONE, "11.7 against 72.2"),
    ("eager", "depends", setup(QWEN25_32B, graphs=False, version="0.17"), ONE, "required"),
    ("captured-sizes", "costs", setup(QWEN36_27B), ONE, "51 batch sizes"),
    ("captured-sizes", "costs", setup(QWEN3_8B, slots=200, spec=3, method="ngram"), ONE, "recorded batch of 512"),
    ("captured-sizes", "fine", setup(QWEN3_8B, slots=8), ONE, "8 sequences"),
    ("expert-workspace", "depends", setup(QWEN36_35B, tp=2, ep=2, slots=8), TWO, "Workspace is locked"),
    ("linear-scratch", "depends", setup(QWEN36_27B, slots=2, utilization=0.97), ONE, "0.97 with 2 sequences"),
    ("linear-scratch", "costs", setup(QWEN36_27B, slots=2, batched_tokens=8192), ONE, "6K prompt"),
    ("linear-scratch", "fine", setup(QWEN36_27B, slots=2), ONE, "2048 batched tokens"),
    ("speculation", "refused", setup(QWEN36_27B, spec=-1), ONE, "-1"),
    ("speculation", "refused", setup(QWEN36_27B, "q4_k_m", engine="ollama", spec=2), ONE, "ollama"),
    ("speculation", "refused", setup(QWEN3_8B, spec=3), ONE, "no MTP layers"),
    ("speculation", "depends", setup(QWEN36_27B, "q4_k_m", engine="llamacpp", spec=2), ONE, "May 2026"),
    ("speculation", "depends", setup(QWEN3_8B, spec=3, method="eagle"), ONE, "a draft trained for"),
    ("speculation-gain", "fine", setup(QWEN36_27B, spec=5), ONE, "100 at n=5"),
    ("speculation-gain", "costs", setup(QWEN36_27B, spec=6), ONE, "n=6 fell"),
    ("speculation-gain", "costs", setup(QWEN36_27B, spec=3, slots=16), ONE, "16 sequences"),
    ("speculation-gain", "costs", setup(QWEN36_35B, spec=3), ONE, "19 configurations"),
    ("speculation-gain", "depends", setup(QWEN3_8B, spec=3, method="ngram"), ONE, "repeats"),
    ("speculation-gain", "depends", setup(QWEN36_35B, spec=3), BLACKWELL, "experts of its own"),
    ("chunked-prefill", "refused", setup(QWEN3_8B, slots=64, batched_tokens=32), ONE, "fewer than 64"),
    ("chunked-prefill", "costs", setup(QWEN3_8B, slots=4, batched_tokens=512), ONE, "512"),
    ("chunked-prefill", "fine", setup(QWEN3_8B, slots=4, batched_tokens=4096), ONE, "4096"),
    ("prefix-cache", "depends", setup(QWEN36_27B), ONE, "1600 tokens"),
    ("driver", "depends", setup(QWEN3_8B), ONE, "driver 575"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "verdict", "made", "rig", "piece"), CASES)
def test_a_rule_answers(rule, verdict, made, rig, piece):
    found = [f for f in check(made, rig) if f.rule == rule]
    assert [f.verdict for f in found] == [verdict]
    assert piece in found[0].sentence
    assert found[0].source


def test_every_verdict_of_every_rule_is_tried_here():
    """The pairs are read from the source, so a new verdict without a case fails."""
    folder = Path(skep.planner.__file__).parent
    text = "".join(path.read_text() for path in sorted(folder.glob("rules*.py")))
    written = set(re.findall(r'Finding\(\s*"([\w-]+)",\s*"(\w+)"', text))
    written |= {
        ("int4-kernels", "refused"),
        ("int4-kernels", "costs"),
        ("kv-engine", "refused"),
        ("kv-engine", "depends"),
    }
    assert written == {(rule, verdict) for rule, verdict, *_ in CASES}


def test_the_table_holds_every_rule_once():
    assert len(set(RULES)) == len(RULES) >= 30


def test_the_first_refusal_is_the_reason():
    assert refusal(check(setup(GEMMA4_31B, tp=5), rig(RTX_3090, 5, PCIE))).rule == "heads"
    assert refusal(check(setup(GEMMA4_31B, tp=4), FOUR)) is None
