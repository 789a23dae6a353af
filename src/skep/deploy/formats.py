"""`skep plan --formats`: a model on one rig in every weight format, and with every KV type of the best one.

Each row is a plan of its own with that choice pinned, so that verdict and reason are those of the planner's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.catalog.models import Geometry, checkpoint_of, checkpoints_of
from skep.deploy.plan_request import (
    ModelFound,
    PlanFlags,
    check_flags,
    engines_of,
    goal_of,
    own_basis,
    pins_of,
    read_model,
    read_rigs,
)
from skep.errors import UserError
from skep.planner.candidates import Pins, PlanGoal, as_published
from skep.planner.choose import Plan, PlanChoice, choose
from skep.planner.memory import has_pool, weights_bytes
from skep.planner.order import first_of
from skep.planner.ranking import BasisOf
from skep.planner.rules import Finding
from skep.planner.setup import KV_TYPES, QUANTS, KvType, Quant, Rig
from skep.planner.step import unpacked
from skep.planner.would_fit import fits_nowhere
from skep.units import GIB

_POOL_FORMATS = ("awq", "gptq", "autoround", "int8", "fp8", "nvfp4", "bf16")
_GGUF_FORMATS = ("q4_k_m", "q5_k_m", "q6_k", "q8_0", "f16")
_LEAST_BITS = 4
_WEIGHT_RULES = ("engine-format", "fp8-weights", "nvfp4", "mxfp4", "int8-weights", "bf16", "int4-kernels", "engine")
_KV_RULES = ("kv-engine", "kv-fp8", "kv-int8", "turboquant", "kv-nvfp4", "engine")
_WORST_FIRST = ("costs", "depends")
_TOKENS = 1000  # whose KV is counted
_MARLIN_CC = 7.5
Tick = Callable[[int, int], None]


class FormatRow(Struct, frozen=True):
    """`size_gib`: of the weights on disk, or of the KV of 1,000 tokens. `verdict`: first, fine, costs, depends,
    unpublished, too large, refused."""

    format: str
    title: str
    engine: str
    size_gib: float
    kernel: str
    verdict: str
    why: str
    layout: str | None = None
    tok_s: float | None = None
    context_each: int | None = None
    checkpoint: str | None = None


class FormatAnswer(Struct, frozen=True):
    """`kv`: with the weights of the first plan, in its layout."""

    model: str
    rig: str
    agents: int
    first: str  # the weights' format that the KV types are tried with
    weights: tuple[FormatRow, ...]
    kv: tuple[FormatRow, ...]


class FormatTrial(Struct, frozen=True):
    """What stays the same in all rows."""

    model: Geometry
    rig: Rig
    goal: PlanGoal
    basis_of: BasisOf

    def choice(self, pins: Pins, engine: str) -> PlanChoice:
        return choose(self.model, self.rig, self.goal, pins, engines=(engine,), basis_of=self.basis_of)


def answer_formats(flags: PlanFlags, store: Path, tick: Tick = lambda _done, _all: None) -> FormatAnswer:
    """Raise DoesNotFit where no format fits."""
    model = read_model(flags.model)
    rigs = read_rigs(flags)
    if len(rigs) > 1:
        raise UserError("--formats compares the formats of one rig", hint="leave all --gpu but one out")
    found = rigs[0]
    goal, pins = goal_of(flags, model), pins_of(flags, model)
    check_flags(found.rig, goal, pins, model.geometry)
    basis_of = own_basis(store, model.geometry.id, None, found.rig if flags.gpu else None)
    trial = FormatTrial(model.geometry, found.rig, goal, basis_of)
    engines = engines_of(flags, model, found)
    tries = list(_weight_tries(model, pins, engines))
    choices = []
    for number, (quant, engine) in enumerate(tries):
        tick(number, len(tries))
        choices.append(trial.choice(replace(pins, quant=quant), engine))
    plans = [choice.plans[0] for choice in choices if choice.plans]
    if not plans:
        raise fits_nowhere(model.geometry, choices[0], goal, pins, engines[0])
    first_rated = first_of([plan.rated for plan in plans if _is_had(plan, pins)] or [plan.rated for plan in plans])
    first = next(plan for plan in plans if plan.rated is first_rated)
    rows = tuple(
        _weight_row(trial.model, quant, engine, choice, first)
        for (quant, engine), choice in zip(tries, choices, strict=True)
    )
    kv = tuple(_kv_rows(trial, pins, first))
    return FormatAnswer(model.geometry.id, found.rig.title, goal.agents, first.setup.quant.title, rows, kv)


def _is_had(plan: Plan, pins: Pins) -> bool:
    return plan.checkpoint is not None or pins.quant is not None


def _weight_tries(model: ModelFound, pins: Pins, engines: tuple[str, ...]) -> Iterator[tuple[Quant, str]]:
    """Yield every format with the first engine that reads it: those of known checkpoints, and the usual ones."""
    if pins.quant is not None:
        yield pins.quant, next((one for one in engines if has_pool(one) == (pins.quant.family != "gguf")), engines[0])
        return
    known = [name for one in checkpoints_of(model.geometry.id) for name in one.formats]
    for pooled, usual in ((True, _POOL_FORMATS), (False, _GGUF_FORMATS)):
        engine = next((one for one in engines if has_pool(one) is pooled), None)
        if engine is None:
            continue
        names = [name for name in QUANTS if name in usual or name in known]
        fitting = (QUANTS[name] for name in names if (QUANTS[name].family == "gguf") is not pooled)
        yield from ((quant, engine) for quant in fitting if quant.nominal >= _LEAST_BITS)


def _weight_row(model: Geometry, quant: Quant, engine: str, choice: PlanChoice, first: Plan) -> FormatRow:
    plan = choice.plans[0] if choice.plans else None
    verdict, why = _judged(choice, first, _WEIGHT_RULES)
    checkpoint = plan.checkpoint if plan is not None else None
    if plan is not None and checkpoint is None and checkpoints_of(model.id):
        verdict, why = "unpublished", f"no checkpoint in this format is known; {why}"
    known = checkpoint_of(checkpoint) if checkpoint is not None else None
    size = as_published(quant, model, engine)
    on_disk = known.disk_gb * 1e9 if known is not None and known.disk_gb else weights_bytes(model, size)
    return FormatRow(
        format=quant.id, title=quant.title, engine=engine, size_gib=on_disk / GIB, verdict=verdict, why=why,
        kernel=weight_kernel(quant, choice.rig.cards[0], engine), checkpoint=checkpoint, **_figures(plan),
    )  # fmt: skip


def _kv_rows(trial: FormatTrial, pins: Pins, first: Plan) -> Iterator[FormatRow]:
    setup = first.setup
    layout = setup.layout
    gguf = setup.engine == "llamacpp"
    pinned = replace(pins, quant=setup.quant, tp=layout.tp, pp=layout.pp, ep=layout.ep, replicas=layout.replicas)
    kinds = [kv for kv in KV_TYPES.values() if kv.family == "half" or (kv.family == "gguf") is gguf]
    for kv in kinds if pins.kv is None else [pins.kv]:
        choice = trial.choice(replace(pinned, kv=kv), setup.engine)
        verdict, why = _judged(choice, first, _KV_RULES)
        yield FormatRow(
            format=kv.id, title=kv.title, engine=setup.engine, verdict=verdict, why=why,
            size_gib=trial.model.kv_bytes_per_token(kv.bytes) * _TOKENS / GIB, kernel=kv_kernel(kv, gguf=gguf),
            **_figures(choice.plans[0] if choice.plans else None),
        )  # fmt: skip


def _figures(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    rated = plan.rated
    return {
        "layout": str(plan.setup.layout),
        "tok_s": rated.outcome.effective_tok_s,
        "context_each": rated.context_each,
    }


def _judged(choice: PlanChoice, first: Plan, rules: tuple[str, ...]) -> tuple[str, str]:
    """Return the verdict on a row and why: what its rules say, else its speed and context against the first."""
    if not choice.plans:
        return _rejected(choice)
    rated = choice.plans[0].rated
    said = [finding for finding in rated.findings if finding.rule in rules]
    worst = next((one for name in _WORST_FIRST for one in said if one.verdict == name), None)
    against = _against(choice.plans[0], first)
    same = (rated.setup.quant.id, rated.setup.kv.id) == (first.setup.quant.id, first.setup.kv.id)
    if same:
        return "first", worst.sentence if worst is not None else "the planner's choice"
    if worst is None:
        return "fine", against
    return worst.verdict, f"{against}; {_with_remedy(worst)}"


def _against(plan: Plan, first: Plan) -> str:
    speed = plan.rated.outcome.effective_tok_s / first.rated.outcome.effective_tok_s - 1
    context = plan.rated.context_each / first.rated.context_each - 1
    return f"{speed:+.0%} tok/s and {context:+.0%} context against the first"


def _with_remedy(finding: Finding) -> str:
    return f"{finding.sentence} -> {finding.remedy}" if finding.remedy is not None else finding.sentence


def _rejected(choice: PlanChoice) -> tuple[str, str]:
    if not choice.rejected:
        return "refused", "nothing was left to try"
    short = [one for one in choice.rejected if one.rule == "memory"]
    if short:
        return "too large", max(short, key=lambda one: (one.layout.cards_each, -one.layout.pp)).reason
    first = choice.rejected[0]
    return "refused", f"{first.reason} -> {first.remedy}" if first.remedy is not None else first.reason


def weight_kernel(quant: Quant, card: Device, engine: str) -> str:
    """Return what multiplies weights of this format on such a card."""
    if engine == "llamacpp":
        return "llama.cpp, 16 bits" if quant.bits >= 16 else "llama.cpp, quantized"
    if quant.family == "half":
        return "16-bit units"
    marlin = card.vendor == "nvidia" and (card.compute_capability or 0) >= _MARLIN_CC
    if quant.family == "int4":
        return "Marlin" if marlin else "the engine's own for 4 bits"
    if unpacked(quant, card):
        return "Marlin, unpacked to 16 bits" if marlin else "unpacked to 16 bits"
    return f"{quant.title} units"


def kv_kernel(kv: KvType, *, gguf: bool) -> str:
    if kv.family == "half":
        return "attention in 16 bits"
    return "flash attention of llama.cpp" if gguf else "unpacked in attention"
