"""What the planner says of a rig's configurations: all that a tuner may know beforehand.

Kept on disk between runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path

from tuning_contest.rigs import ContestRig

import skep.planner
from skep.catalog.gpus import HostFacts
from skep.catalog.models import geometry
from skep.config.rigs import cpu_rig, parse_rig
from skep.planner.memory import memory, weights_bytes
from skep.planner.predict import SpeedModel, prospect
from skep.planner.rules import refusal
from skep.planner.setup import KV_TYPES, QUANTS, Layout, PlannedLoad, Rig, Setup, Speculation
from skep.planner.step import published_constants
from skep.tuner.knobs import pairs_of
from skep.tuner.records import KnobConfig, TuneGoal

_LAYOUTS = {
    "TP=1": Layout(),
    "TP=2": Layout(tp=2),
    "TP=4": Layout(tp=4),
    "PP=2": Layout(pp=2),
    "TP=2 + EP=2": Layout(tp=2, ep=2),
    "2 x TP=1": Layout(replicas=2),
    "2 x TP=2": Layout(tp=2, replicas=2),
    "4 x TP=1": Layout(replicas=4),
}
_RELEVANT = (
    "graphs",
    "memory_share",
    "slots",
    "kv",
    "batched_tokens",
    "mtp",
    "ngram",
    "layout",
    "quant",
)
_GBS_LOADING = 1.5e9
_READING_S = (6.0, 30.0)


@dataclass(frozen=True, slots=True)
class Planned:
    """`spare_bytes`: of memory, on the tighter side; less than 0: it does not fit.

    `refusal`: by a rule.
    """

    effective_tok_s: float
    task_tok_s: float
    ttft_ms: float
    tpot_ms: float
    spare_bytes: int
    refusal: str | None = None
    inside: bool = False  # the tighter side is the engine's own share


class PlannedRig:
    """The planner's view of one rig, by what of a configuration it looks at."""

    def __init__(self, rig: ContestRig, memo: Path | None = None) -> None:
        self.rig = rig
        self.model = geometry(rig.model)
        self.hardware = _hardware(rig)
        self._memo = memo or _memo(rig)
        self._found: dict[str, Planned] = {}
        if self._memo.exists():
            self._found = {
                key: Planned(*values) for key, values in json.loads(self._memo.read_text()).items()
            }
        self._kept = len(self._found)

    def of(self, config: KnobConfig, concurrency: int | None = None) -> Planned:
        key = self.key(config, concurrency)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._planned(
                config, concurrency or self.rig.aim.concurrency
            )
        return found

    def key(self, config: KnobConfig, concurrency: int | None = None) -> str:
        values = config.as_dict
        return json.dumps([*(values.get(name) for name in _RELEVANT), concurrency])

    def keep(self) -> None:
        if len(self._found) == self._kept:
            return
        self._kept = len(self._found)
        self._memo.parent.mkdir(exist_ok=True)
        text = json.dumps({key: astuple(one) for key, one in self._found.items()})
        written = self._memo.with_suffix(f".{os.getpid()}")
        written.write_text(text)
        written.replace(self._memo)

    def start_s(self, config: KnobConfig) -> float:
        if not self.rig.on_cards:
            return 2.0
        setup = setup_of(config, self.rig)
        loading = weights_bytes(self.model, setup.quant) / setup.layout.cards_each / _GBS_LOADING
        return 35.0 + loading + (25.0 if setup.graphs else 0.0) + (8.0 if setup.spec else 0.0)

    def reading_s(self, effective_tok_s: float) -> float:
        tasks = max(6, 3 * self.rig.aim.concurrency)
        wanted = tasks * self.rig.aim.output_tokens / max(1.0, effective_tok_s)
        return min(max(wanted, _READING_S[0]), _READING_S[1])

    def _planned(self, config: KnobConfig, concurrency: int) -> Planned:
        setup = setup_of(config, self.rig)
        context = self.rig.context
        if self.rig.on_cards:
            forbidden = refusal(setup, self.hardware)
        else:
            forbidden = None
        if forbidden is not None:
            return Planned(0.0, 0.0, 0.0, 0.0, 0, forbidden.sentence)
        card = self.hardware.cards[0]
        plan = memory(setup, card, context=context, slots=setup.slots)
        spare = min(-plan.over_inside_bytes, -plan.over_outside_bytes)
        inside = plan.over_inside_bytes >= plan.over_outside_bytes
        if spare < 0:
            return Planned(0.0, 0.0, 0.0, 0.0, spare, inside=inside)
        load = load_of(self.rig.aim, concurrency)
        speed_model: SpeedModel = prospect(
            setup, self.hardware, published_constants(), context=_need(self.rig.aim)
        )
        outcome = speed_model.outcome(load)
        return Planned(
            outcome.effective_tok_s,
            outcome.task_tok_s,
            outcome.ttft_s * 1000,
            outcome.tpot_s * 1000,
            spare,
            inside=inside,
        )


class RigSpace:
    """What a tuner sees of a rig: the knobs and the planner's word, nothing of the truth."""

    def __init__(self, planned: PlannedRig) -> None:
        self.planned = planned
        self.knobs = planned.rig.knobs
        self.pairs = pairs_of(planned.rig.knobs)

    def refusal(self, config: KnobConfig) -> str | None:
        by_rule = rule_against(config)
        if by_rule is not None:
            return by_rule
        found = self.planned.of(config)
        if found.refusal is not None:
            return found.refusal
        if found.spare_bytes < 0:
            return f"{-found.spare_bytes / 2**30:.2f} GiB too much for the card"
        return None

    def predict(self, config: KnobConfig) -> float | None:
        if self.refusal(config):
            return None
        return self.planned.of(config).effective_tok_s

    def spare_bytes(self, config: KnobConfig) -> float | None:
        if self.planned.rig.on_cards:
            return self.planned.of(config).spare_bytes
        return None

    def start_s(self, config: KnobConfig) -> float:
        return self.planned.start_s(config)

    def reading_s(self, config: KnobConfig) -> float:
        return self.planned.reading_s(self.predict(config) or 0.0)


def rule_against(config: KnobConfig) -> str | None:
    """llama.cpp's own refusals."""
    batch = config.get("batch")
    micro = config.get("batched_tokens")
    if isinstance(batch, int) and isinstance(micro, int) and micro > batch:
        return f"a micro-batch of {micro} is larger than the batch of {batch}"
    if config.get("kv") == "q8_0" and config.get("flash_attention") is False:
        return "a quantized KV cache needs flash attention"
    return None


def setup_of(config: KnobConfig, rig: ContestRig) -> Setup:
    values = config.as_dict
    spec = None
    for method in ("mtp", "ngram"):
        depth = values.get(method)
        if isinstance(depth, int) and depth > 0:
            spec = Speculation(method, depth)
    share = values.get("memory_share")
    return Setup(
        geometry(rig.model),
        QUANTS[str(values.get("quant", "q4_k_m"))],
        KV_TYPES[str(values["kv"])],
        rig.engine,
        _LAYOUTS[str(values.get("layout", "TP=1"))],
        slots=_number(values["slots"]),
        context=rig.context,
        utilization=share if isinstance(share, float) else None,
        graphs=bool(values.get("graphs", True)),
        spec=spec,
        batched_tokens=_number(values["batched_tokens"]),
    )


def load_of(aim: TuneGoal, concurrency: int) -> PlannedLoad:
    return PlannedLoad(concurrency, aim.input_tokens, aim.output_tokens)


def _need(aim: TuneGoal) -> int:
    return math.ceil(aim.input_tokens + aim.output_tokens)


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _hardware(rig: ContestRig) -> Rig:
    if rig.gpu is not None:
        return parse_rig(rig.gpu)
    facts = HostFacts(
        "Linux",
        "x86_64",
        "3.11",
        "simulated",
        rig.cores,
        ("avx2",),
        16 << 30,
        16 << 30,
        1024,
        1024,
    )
    return cpu_rig(facts, rig.bandwidth_gbs)


def _memo(rig: ContestRig) -> Path:
    """Of another planner or another rig, another file."""
    digest = hashlib.sha256(repr(rig).encode())
    for folder in skep.planner.__path__:
        for source in sorted(Path(folder).glob("*.py")):
            digest.update(source.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return (
        Path(tempfile.gettempdir())
        / "skep-tuning-contest"
        / f"{rig.name}-{digest.hexdigest()[:16]}.json"
    )
