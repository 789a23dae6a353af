"""What may be tried when an engine died: one thing of its launch changed. And what is certain to
fail, said before.

A step is "NAME HOW": a value that NAME gets (`unset`: the engine's own), or how a figure falls.
Figures only fall, and never below a floor; what was switched off stays off. So however often
changes are taken, they end. A share of memory is never raised: it may have been chosen to leave
room for somebody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.catalog.models import find_geometry
from skep.catalog.presets import EngineOptions
from skep.engines.base import DEFAULT_SHARES, Diagnosis, Launch
from skep.errors import UserError
from skep.planner.rules import capability, find_first
from skep.planner.setup import KV_TYPES, QUANTS, Layout, Rig, Setup, known_kv, known_quant
from skep.units import MIB, parse_bytes

SHARE_STEP = 0.05
FLOORS = {"memory_share": 0.5, "context_tokens": 2048, "batched_tokens": 512}
OWN_BATCHED = 2048  # tokens a step of vLLM and SGLang on cards below 70 GiB
VALUES: Mapping[str, Any] = {
    "unset": None,
    "false": False,
}  # of a step; another word is the value itself
_SPARE = 256 * MIB  # beside what the log says was missing: allocations come in more than one piece
_HALF_SINCE = 8.0  # bfloat16
_REFUSING = ("heads", "kv-fp8", "fp8-weights", "nvfp4", "mxfp4")  # rules of the planner
_OPTION_NAMES = frozenset(EngineOptions.__struct_fields__)


class LaunchChange(msgspec.Struct, frozen=True):
    """Another launch, different in one thing.

    `what`: "slots 8 -> 4"; `advice`: "lower slots from 8 to 4".
    """

    launch: Launch
    what: str
    advice: str


class FailureCase(msgspec.Struct, frozen=True):
    """A launch that ended, and the line that tells why."""

    launch: Launch
    line: str | None = None  # the telling one; None: the exit code tells
    facts: Mapping[str, Any] = {}  # the groups of what matched


def take_step(step: str, case: FailureCase) -> LaunchChange | None:
    """Return the launch with the step taken; None: it is so already, or the figure is at its
    floor.
    """
    name, how = step.split()
    launch = case.launch
    inside = name in _OPTION_NAMES
    was = present(launch, name)
    if how in FALLS:
        to: Any = None if was is None else FALLS[how](case, was)
        if to is None or not FLOORS.get(name, launch.reserve + 1) <= to < was:
            return None
    elif (to := VALUES.get(how, how)) == was:
        return None
    label = "context" if name == "context_tokens" else name
    before = _word(was)
    after = _word(to)
    fallen = f"lower {label} from {before} to {after}"
    left_out = f"leave {label} {before} out"
    if how in FALLS:
        advice = fallen
    else:
        advice = left_out if to is None else f"set {label} to {after}"
    new: dict[str, Any] = {name: to}
    if inside:
        other = replace(launch, options=replace(launch.options, **new))
    else:
        other = replace(launch, **new)
    return LaunchChange(other, f"{label} {before} -> {after}", advice)


def present(launch: Launch, name: str) -> Any:
    """Return a figure as told, else the engine's own where it is known."""
    told = getattr(launch.options if name in _OPTION_NAMES else launch, name)
    if told is not None or launch.engine not in DEFAULT_SHARES:
        return told
    own = {"memory_share": DEFAULT_SHARES[launch.engine], "batched_tokens": OWN_BATCHED}
    return own.get(name)


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "unset", True: "on", False: "off"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _half(_case: FailureCase, was: int) -> int:
    return was // 2


def _lower_share(case: FailureCase, was: float) -> float:
    """By a step, or by what was tried to allocate and was not free, if that is more."""
    tried, free, total = (_bytes(case, name) for name in ("tried", "free", "total"))
    missing = 0.0
    if tried is not None and free is not None and total:
        missing = (max(0, tried - free) + _SPARE) / total
    return round(was - max(SHARE_STEP, missing), 2)


def _bytes(case: FailureCase, name: str) -> int | None:
    """Return bytes of a fact like "211.25 MiB"."""
    try:
        return parse_bytes(str(case.facts[name]))
    except (KeyError, UserError):
        return None  # a number that is none


def _free_share(case: FailureCase, _was: float) -> float | None:
    """`free` and `total` are GiB without unit."""
    try:
        return int(100 * float(case.facts["free"]) / float(case.facts["total"]) - 0.5) / 100
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _fitting(case: FailureCase, was: int) -> int:
    """Return what the log says fits, else half."""
    told = str(case.facts.get("fits") or case.facts.get("most"))
    if told.isdecimal():
        return int(told)
    return _half(case, was)


FALLS: Mapping[str, Callable[[FailureCase, Any], float | None]] = {
    "half": _half, "lower": _lower_share, "free": _free_share, "fitting": _fitting,
}  # fmt: skip


def predict_failure(launch: Launch, cards: Sequence[Device]) -> Diagnosis | None:
    """`cards` are those the launch gets, in its order. None: nothing is known against it. Pure."""
    if launch.url is not None or launch.engine not in DEFAULT_SHARES or not cards:
        return None
    options = launch.options
    if options.cards > len(cards):
        layout = f"tp {options.tp} x pp {options.pp} x dp {options.dp}"
        cause = f"{layout} needs {options.cards} cards, {len(cards)} are given"
        return Diagnosis(cause, remedy="lower tp, pp or dp, or name more gpus", final=True)
    plain = next(
        (card for card in cards if (cc := capability(card)) is not None and cc < _HALF_SINCE), None
    )
    if plain is not None and options.dtype == "bfloat16":
        cause = (
            f"{plain.title} (SM {plain.compute_capability:g}) has no bfloat16, which begins at "
            "SM 8.0"
        )
        return Diagnosis(cause, remedy="set dtype to float16", final=True)
    model = find_geometry(launch.checkpoint or "") or find_geometry(launch.model)
    if model is None or model.estimated:
        return None
    quant = (known_quant(options.quant) if options.quant else None) or QUANTS["bf16"]
    kv = (known_kv(options.kv) if options.kv else None) or KV_TYPES["bf16"]
    setup = Setup(model, quant, kv, launch.engine, Layout(options.tp, options.pp, 1, options.dp))
    first = find_first("refused", setup, Rig(tuple(cards)), _REFUSING)
    if first is None:
        return None
    return Diagnosis(first.sentence, remedy=first.remedy or None, final=True)
