"""The rigs that tuners compete on: what can be turned on each, where a search begins, and how
rugged its truth is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skep.tuner.records import Knob, KnobConfig, TuneGoal, Value

GRAPHS = Knob("graphs", "CUDA graphs", (False, True), expected=0.3)
SHARE = Knob(
    "memory_share",
    "share of the card",
    (0.85, 0.88, 0.90, 0.92, 0.95),
    ordered=True,
    expected=0.01,
)
PREFIX = Knob("prefix_cache", "prefix cache", (False, True), expected=0.01)
BATCHED = Knob(
    "batched_tokens", "batched tokens", (512, 1024, 2048, 4096, 8192), ordered=True, expected=0.03
)
MTP = Knob("mtp", "MTP depth", (0, 1, 2, 3, 4, 5, 6), ordered=True, expected=0.3)
NGRAM = Knob("ngram", "n-gram depth", (0, 1, 2, 3, 4, 5), ordered=True, expected=0.05)

# Which really do something together. What the tuner is told are the product's own pairs, right or
# not.
_PAIRS = (
    ("slots", "memory_share"), ("slots", "batched_tokens"), ("slots", "kv"), ("mtp", "slots"),
    ("mtp", "layout"), ("ngram", "slots"), ("kv", "flash_attention"), ("kv", "memory_share"),
    ("layout", "quant"), ("layout", "slots"), ("threads", "threads_batch"),
    ("batch", "batched_tokens"), ("kv_layout", "slots"), ("threads", "slots"),
)  # fmt: skip
# How far a value's real effect is from the planner's: standard deviations of its logarithm.
_ROUGH = {
    "graphs": 0.06, "memory_share": 0.0, "prefix_cache": 0.0, "slots": 0.07, "kv": 0.08,
    "batched_tokens": 0.06, "mtp": 0.12, "ngram": 0.08, "layout": 0.10, "quant": 0.10,
    "threads": 0.06, "threads_batch": 0.04, "batch": 0.02, "kv_layout": 0.05,
    "flash_attention": 0.06,
}  # fmt: skip


@dataclass(frozen=True)
class ContestRig:
    """`by_hand`: effects that the planner has no formula for, as shares of the best value's
    figure.
    """

    name: str
    title: str
    model: str
    engine: str
    aim: TuneGoal
    knobs: tuple[Knob, ...]
    start: Mapping[str, Value]
    gpu: str | None = None  # None: a CPU of `cores`
    cores: int = 0
    bandwidth_gbs: float = 0.0
    context: int = 8192
    by_hand: Mapping[str, Mapping[Value, float]] = field(default_factory=dict)

    @property
    def baseline(self) -> KnobConfig:
        return KnobConfig.of(self.start)

    @property
    def interacting(self) -> tuple[tuple[str, str], ...]:
        names = {knob.name for knob in self.knobs}
        return tuple(pair for pair in _PAIRS if names.issuperset(pair))

    @property
    def on_cards(self) -> bool:
        return self.gpu is not None

    def rough(self, knob: str) -> float:
        return _ROUGH[knob]


def _slots(*values: int) -> Knob:
    return Knob("slots", "slots of a replica", values, ordered=True, expected=0.2)


def _kv(*values: str) -> Knob:
    return Knob("kv", "KV cache type", values, alters_answers=True, expected=0.04)


def _quant(*values: str) -> Knob:
    return Knob("quant", "checkpoint", values, alters_answers=True, expected=0.1)


def _layout(*values: str) -> Knob:
    return Knob("layout", "layout", values, expected=0.15)


_SAFE: Mapping[str, Value] = {
    "graphs": False, "memory_share": 0.85, "slots": 1, "kv": "bf16", "batched_tokens": 2048,
    "prefix_cache": False,
}  # fmt: skip

RIGS = (
    ContestRig(
        "2x3090-dense",
        "2x RTX 3090, 27B dense with MTP",
        "qwen3.6-27b",
        "vllm",
        TuneGoal("effective_tok_s", 4),
        (
            GRAPHS,
            SHARE,
            _slots(1, 2, 3, 4, 6, 8),
            _kv("bf16", "fp8_e5m2"),
            BATCHED,
            PREFIX,
            MTP,
            _layout("TP=2", "2 x TP=1"),
            _quant("awq", "autoround"),
        ),
        {**_SAFE, "mtp": 0, "layout": "TP=2", "quant": "awq"},
        gpu="2x rtx-3090",
    ),
    ContestRig(
        "2x3090-moe",
        "2x RTX 3090, 35B-A3B",
        "qwen3.6-35b-a3b",
        "vllm",
        TuneGoal("effective_tok_s", 4),
        (
            GRAPHS,
            SHARE,
            _slots(1, 2, 3, 4, 6, 8),
            _kv("bf16", "fp8_e5m2"),
            BATCHED,
            PREFIX,
            MTP,
            _layout("TP=2", "TP=2 + EP=2", "PP=2"),
            _quant("awq", "gptq"),
        ),
        {**_SAFE, "mtp": 0, "layout": "TP=2", "quant": "awq"},
        gpu="2x rtx-3090",
    ),
    ContestRig(
        "4090",
        "RTX 4090, 14B",
        "qwen3-14b",
        "vllm",
        TuneGoal("effective_tok_s", 8),
        (
            GRAPHS,
            SHARE,
            _slots(1, 2, 4, 6, 8, 12, 16),
            _kv("bf16", "fp8"),
            BATCHED,
            PREFIX,
            NGRAM,
            _quant("awq", "gptq", "fp8"),
        ),
        {**_SAFE, "ngram": 0, "quant": "awq"},
        gpu="rtx-4090",
    ),
    ContestRig(
        "5090",
        "RTX 5090, 27B dense with MTP",
        "qwen3.6-27b",
        "sglang",
        TuneGoal("effective_tok_s", 4),
        (
            GRAPHS,
            SHARE,
            _slots(1, 2, 3, 4, 6, 8),
            _kv("bf16", "fp8"),
            BATCHED,
            PREFIX,
            MTP,
            _quant("awq", "gptq", "nvfp4"),
        ),
        {**_SAFE, "mtp": 0, "quant": "awq"},
        gpu="rtx-5090",
    ),
    ContestRig(
        "4x3090",
        "4x RTX 3090, 27B dense with MTP, 8 agents",
        "qwen3.6-27b",
        "vllm",
        TuneGoal("effective_tok_s", 8),
        (
            GRAPHS,
            SHARE,
            _slots(1, 2, 3, 4, 6, 8, 12),
            _kv("bf16", "fp8_e5m2"),
            BATCHED,
            PREFIX,
            MTP,
            _layout("TP=4", "2 x TP=2", "4 x TP=1"),
            _quant("awq", "int8"),
        ),
        {**_SAFE, "mtp": 0, "layout": "TP=4", "quant": "awq"},
        gpu="4x rtx-3090",
    ),
    ContestRig(
        "cpu",
        "a CPU of 8 cores, 0.6B by llama.cpp",
        "qwen3-0.6b",
        "llamacpp",
        TuneGoal("effective_tok_s", 4),
        (
            Knob("threads", "threads", (1, 2, 3, 4, 6, 8), ordered=True, expected=0.4),
            Knob(
                "threads_batch", "threads of prompts", (1, 2, 4, 6, 8), ordered=True, expected=0.1
            ),
            _slots(1, 2, 3, 4, 6, 8),
            Knob("batch", "batch", (256, 512, 1024, 2048), ordered=True, expected=0.03),
            Knob(
                "batched_tokens",
                "micro-batch",
                (64, 128, 256, 512, 1024),
                ordered=True,
                expected=0.05,
            ),
            _kv("bf16", "q8_0"),
            Knob("kv_layout", "KV layout", ("split", "unified"), expected=0.03),
            Knob("flash_attention", "flash attention", (False, True), expected=0.05),
            Knob("ngram", "n-gram depth", (0, 2, 4, 8), ordered=True, expected=0.05),
        ),
        {
            "threads": 1,
            "threads_batch": 1,
            "slots": 1,
            "batch": 512,
            "batched_tokens": 128,
            "kv": "bf16",
            "kv_layout": "split",
            "flash_attention": False,
            "ngram": 0,
        },
        cores=8,
        bandwidth_gbs=40.0,
        context=2048,
        by_hand={
            "threads": {1: 0.30, 2: 0.52, 3: 0.70, 4: 0.84, 6: 1.0, 8: 0.96},
            "threads_batch": {1: 0.75, 2: 0.85, 4: 0.94, 6: 0.98, 8: 1.0},
        },
    ),
)


def rig_called(name: str) -> ContestRig:
    return next(rig for rig in RIGS if rig.name == name)
