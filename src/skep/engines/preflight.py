"""What is certain to fail, said before the start: the rules of the planner that refuse, applied to a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skep.catalog.gpus import Device
from skep.catalog.models import Geometry, find_geometry
from skep.engines import remedies as step
from skep.engines.base import Diagnosis, Launch
from skep.engines.remedies import FailureCase, LaunchChange, Remedy
from skep.planner.quants import KV_TYPES, QUANTS, known_kv, known_quant
from skep.planner.rules import capability, find_first
from skep.planner.setup import Layout, Rig, Setup

_HALF_SINCE = 8.0  # bfloat16
_CRASHED_ON = 8.6
_STEPS: Mapping[str, Remedy | None] = {
    "heads": step.tp_of_heads, "kv-fp8": step.kv_own, "fp8-weights": None, "nvfp4": None, "mxfp4": None,
}  # fmt: skip


def predict_failure(launch: Launch, cards: Sequence[Device]) -> Diagnosis | None:
    """`cards` are those the launch gets, in its order. None: nothing is known against it. Pure."""
    if launch.url is not None or launch.engine not in ("vllm", "sglang") or not cards:
        return None
    options, case = launch.options, FailureCase(launch)
    if options.cards > len(cards):
        layout = f"tp {options.tp} x pp {options.pp} x dp {options.dp}"
        cause = f"{layout} needs {options.cards} cards, {len(cards)} are given"
        change = step.tp_of_cards(FailureCase(launch, facts={"cards_there": len(cards)}))
        return _told(cause, "lower tp, pp or dp, or name more gpus", change)
    plain = next((card for card in cards if (cc := capability(card)) is not None and cc < _HALF_SINCE), None)
    if plain is not None and options.dtype == "bfloat16":
        cause = f"{plain.title} (SM {plain.compute_capability:g}) has no bfloat16, which begins at SM 8.0"
        return _told(cause, "", step.dtype_half(case))
    known = find_geometry(launch.checkpoint or "") or find_geometry(launch.model)
    if known is not None and not known.estimated and (found := _refused(launch, known, cards)) is not None:
        return found
    crashed = any(capability(card) == _CRASHED_ON for card in cards[: options.cards])
    reduces = launch.engine == "vllm" and options.tp > 1 and options.custom_all_reduce
    if reduces and crashed and options.graphs is not False:
        cause = "custom_all_reduce crashed vLLM 0.17 on SM 8.6 (RTX 3090) while graphs were captured"
        return _told(cause, "", step.all_reduce_off(case), final=False)
    return None


def _refused(launch: Launch, model: Geometry, cards: Sequence[Device]) -> Diagnosis | None:
    options = launch.options
    quant = (known_quant(options.quant) if options.quant else None) or QUANTS["bf16"]
    kv = (known_kv(options.kv) if options.kv else None) or KV_TYPES["bf16"]
    setup = Setup(model, quant, kv, launch.engine, Layout(options.tp, options.pp, 1, options.dp))
    finding = find_first("refused", setup, Rig(tuple(cards)), _STEPS)
    if finding is None:
        return None
    case = FailureCase(launch, facts={"heads": model.heads})
    remedy = _STEPS[finding.rule]
    return _told(finding.sentence, finding.remedy or "", None if remedy is None else remedy(case))


def _told(cause: str, remedy: str, change: LaunchChange | None, *, final: bool = True) -> Diagnosis:
    if change is None:
        return Diagnosis(cause, None, remedy or None, final)
    said = change.advice if not remedy or remedy.startswith("--") else f"{change.advice}, or {remedy}"
    return Diagnosis(cause, None, said, final, change.launch, change.what)
