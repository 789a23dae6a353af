"""`skep plan --formats`: a model on one rig in every weight format, then with every KV type.

Each row is a plan of its own with that choice pinned, so that verdict and reason are those of the
planner's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device
from skep.catalog.models import Geometry, checkpoint_of, checkpoints_of
from skep.deploy.plan_request import (
    PlanFlags,
    ResolvedModel,
    check_flags,
    checkpoint_asked,
    engines_of,
    goal_of,
    own_basis,
    pins_of,
    read_model,
    read_rigs,
    with_window,
)
from skep.errors import UserError
from skep.planner.candidates import Pins, PlanGoal, as_published
from skep.planner.choose import Plan, PlanChoice, choose
from skep.planner.memory import weights_bytes
from skep.planner.ranking import BasisOf
from skep.planner.rules import Finding, has_marlin
from skep.planner.setup import KV_TYPES, QUANTS, KvType, Quant, Rig, Setup
from skep.planner.step import unpacked
from skep.planner.would_fit import fits_nowhere
from skep.units import GIB

_POOL_FORMATS = ("awq", "gptq", "autoround", "int8", "fp8", "nvfp4", "bf16")
_GGUF_FORMATS = ("q4_k_m", "q5_k_m", "q6_k", "q8_0", "f16")
_LEAST_BITS = 4
_WEIGHT_RULES = (
    "engine-format", "fp8-weights", "nvfp4", "mxfp4", "int8-weights", "bf16", "int4-kernels",
    "engine",
)  # fmt: skip
_KV_RULES = ("kv-engine", "kv-fp8", "kv-int8", "turboquant", "kv-nvfp4", "engine")
_WORST_FIRST = ("costs", "depends")
_TOKENS = 1000  # whose KV is counted
Tick = Callable[[int, int], None]


class FormatRow(Struct, frozen=True):
    """`size_gib`: of the weights on disk, or of the KV of 1,000 tokens. `verdict`: first, fine,
    costs, depends, unpublished, too large, refused."""

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

    def choice(
        self, pins: Pins, engines: Sequence[str], checkpoint: str | None = None
    ) -> PlanChoice:
        return choose(
            self.model,
            self.rig,
            self.goal,
            pins,
            engines=engines,
            basis_of=self.basis_of,
            checkpoint=checkpoint,
            all_levels=False,
        )


def answer_formats(
    flags: PlanFlags, store: Path, tick: Tick = lambda _done, _all: None
) -> FormatAnswer:
    """Return a row for every format, first what `skep plan` would choose.

    Raise DoesNotFit where it has no plan. `tick` hears how many plans are made, of how many.
    """
    model = read_model(flags.model)
    rigs = read_rigs(flags)
    if len(rigs) > 1:
        raise UserError(
            "--formats compares the formats of one rig", hint="leave all --gpu but one out"
        )
    resolved = rigs[0]
    goal = goal_of(flags, model)
    pins = pins_of(flags, model)
    check_flags(resolved.rig, goal, pins, model.geometry)
    quant = pins.quant.id if pins.quant else None
    trial = FormatTrial(
        model.geometry,
        resolved.rig,
        goal,
        own_basis(store, model.geometry.id, quant, resolved.rig if flags.gpu else None),
    )
    engines = engines_of(flags, model, resolved)
    checkpoint = checkpoint_asked(flags, model)

    def choice(of_goal: PlanGoal) -> PlanChoice:
        return replace(trial, goal=of_goal).choice(pins, engines, checkpoint)

    best = with_window(choice, goal)
    if best.plans:
        trial = replace(trial, goal=best.plans[0].rated.goal)
    else:
        engine = best.rejected[0].engine if best.rejected else engines[0]
        raise fits_nowhere(model.geometry, best, goal, pins, engine)
    weights, kv = _rows(trial, model, pins, engines, best, tick)
    return FormatAnswer(
        model.geometry.id,
        resolved.rig.title,
        goal.agents,
        best.plans[0].setup.quant.title,
        weights,
        kv,
    )


def _rows(
    trial: FormatTrial,
    model: ResolvedModel,
    pins: Pins,
    engines: tuple[str, ...],
    best: PlanChoice,
    tick: Tick,
) -> tuple[tuple[FormatRow, ...], tuple[FormatRow, ...]]:
    """Return the rows of weights and of KV types; the row of the best plan's own choice shows that
    plan.
    """
    first = best.plans[0]
    tries = list(_weight_tries(model, pins, engines, first))
    kv_types = list(_kv_tries(pins, first))
    count = len(tries) + len(kv_types)
    weights: list[FormatRow] = []
    kv: list[FormatRow] = []
    for tried, engine in tries:
        tick(len(weights), count)
        if tried.id == first.setup.quant.id:
            choice = best
        else:
            choice = trial.choice(replace(pins, quant=tried), (engine,))
        weights.append(_weight_row(trial.model, tried, engine, choice, first))
    for kv_type in kv_types:
        tick(len(weights) + len(kv), count)
        kv.append(_kv_row(trial, kv_type, pins, best))
    return tuple(weights), tuple(kv)


def _weight_tries(
    model: ResolvedModel, pins: Pins, engines: tuple[str, ...], first: Plan
) -> Iterator[tuple[Quant, str]]:
    """Yield every format with the first engine that reads it: those of known checkpoints, and the
    usual ones.

    That of the first plan is among them, with its own engine.
    """
    chosen = first.setup
    if pins.quant is not None:
        yield chosen.quant, chosen.engine
        return
    published = [
        name for checkpoint in checkpoints_of(model.geometry.id) for name in checkpoint.formats
    ]
    for pooled, usual in ((True, _POOL_FORMATS), (False, _GGUF_FORMATS)):
        engine = next((engine for engine in engines if kind_of(engine).has_pool is pooled), None)
        if engine is None:
            continue
        names = {
            name
            for name in (*usual, *published)
            if name in QUANTS and QUANTS[name].nominal >= _LEAST_BITS
        }
        fitting = {name for name in names if (QUANTS[name].family == "gguf") is not pooled}
        if kind_of(chosen.engine).has_pool is pooled:
            fitting.add(chosen.quant.id)
        yield from (
            (QUANTS[name], _engine_for(name, engine, chosen)) for name in QUANTS if name in fitting
        )


def _engine_for(quant: str, usual: str, chosen: Setup) -> str:
    if quant == chosen.quant.id:
        return chosen.engine
    return usual


def _weight_row(
    model: Geometry, quant: Quant, engine: str, choice: PlanChoice, first: Plan
) -> FormatRow:
    plan = choice.plans[0] if choice.plans else None
    verdict, why = _judged(choice, first, _WEIGHT_RULES)
    checkpoint = plan.checkpoint if plan is not None else None
    if plan is not None and checkpoint is None and checkpoints_of(model.id):
        if plan is not first:
            verdict = "unpublished"
        why = f"no checkpoint in this format is known; {why}"
    record = checkpoint_of(checkpoint) if checkpoint is not None else None
    size = as_published(quant, model, engine)
    if record is not None and record.disk_gb:
        on_disk = record.disk_gb * 1e9
    else:
        on_disk = weights_bytes(model, size)
    return FormatRow(
        format=quant.id,
        title=quant.title,
        engine=engine,
        size_gib=on_disk / GIB,
        verdict=verdict,
        why=why,
        kernel=weight_kernel(quant, choice.rig.cards[0], engine),
        checkpoint=checkpoint,
        **_figures(plan),
    )


def _kv_tries(pins: Pins, first: Plan) -> Iterator[KvType]:
    if pins.kv is not None:
        yield first.setup.kv
        return
    gguf = kind_of(first.setup.engine).reads_gguf
    for kv in KV_TYPES.values():
        if kv.family == "half" or (kv.family == "gguf") is gguf:
            yield kv


def _kv_row(trial: FormatTrial, kv: KvType, pins: Pins, best: PlanChoice) -> FormatRow:
    """Return the row of a KV type with the weights of the best plan, in its layout."""
    first = best.plans[0]
    setup = first.setup
    layout = first.setup.layout
    choice = best
    if kv.id != setup.kv.id:
        pinned = replace(
            pins,
            quant=setup.quant,
            kv=kv,
            tp=layout.tp,
            pp=layout.pp,
            ep=layout.ep,
            replicas=layout.replicas,
        )
        choice = trial.choice(pinned, (setup.engine,))
    verdict, why = _judged(choice, first, _KV_RULES)
    return FormatRow(
        format=kv.id,
        title=kv.title,
        engine=setup.engine,
        verdict=verdict,
        why=why,
        size_gib=trial.model.kv_bytes_per_token(kv.bytes) * _TOKENS / GIB,
        kernel=kv_kernel(kv, gguf=kind_of(setup.engine).reads_gguf),
        **_figures(choice.plans[0] if choice.plans else None),
    )


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
    """Return the verdict on a row and why: its rules' words, else speed and context against the
    first.
    """
    if not choice.plans:
        return _rejected(choice)
    plan = choice.plans[0]
    findings = [finding for finding in plan.rated.findings if finding.rule in rules]
    worst = next(
        (finding for name in _WORST_FIRST for finding in findings if finding.verdict == name), None
    )
    if plan is first:
        return "first", worst.sentence if worst is not None else "the planner's choice"
    against = _against(plan, first)
    if worst is None:
        return "fine", against
    return worst.verdict, f"{against}; {_with_remedy(worst)}"


def _against(plan: Plan, first: Plan) -> str:
    speed = plan.rated.outcome.effective_tok_s / first.rated.outcome.effective_tok_s - 1
    context = plan.rated.context_each / first.rated.context_each - 1
    return f"{speed:+z.0%} tok/s and {context:+z.0%} context against the first"


def _with_remedy(finding: Finding) -> str:
    if finding.remedy is not None:
        return f"{finding.sentence} -> {finding.remedy}"
    return finding.sentence


def _rejected(choice: PlanChoice) -> tuple[str, str]:
    if not choice.rejected:
        return "refused", "nothing was left to try"
    short = [rejected for rejected in choice.rejected if rejected.rule == "memory"]
    if short:
        widest = max(short, key=lambda rejected: (rejected.layout.cards_each, -rejected.layout.pp))
        return "too large", widest.reason
    first = choice.rejected[0]
    if first.remedy is not None:
        return "refused", f"{first.reason} -> {first.remedy}"
    return "refused", first.reason


def weight_kernel(quant: Quant, card: Device, engine: str) -> str:
    """Return what multiplies weights of this format on such a card."""
    if kind_of(engine).reads_gguf:
        if quant.bits >= 16:
            return "llama.cpp, 16 bits"
        return "llama.cpp, quantized"
    if quant.family == "half":
        return "16-bit units"
    if quant.family == "int4":
        if has_marlin(card):
            return "Marlin"
        return "the engine's own for 4 bits"
    if unpacked(quant, card):
        if has_marlin(card):
            return "Marlin, unpacked to 16 bits"
        return "unpacked to 16 bits"
    return f"{quant.title} units"


def kv_kernel(kv: KvType, *, gguf: bool) -> str:
    if kv.family == "half":
        return "attention in 16 bits"
    if gguf:
        return "flash attention of llama.cpp"
    return "unpacked in attention"
