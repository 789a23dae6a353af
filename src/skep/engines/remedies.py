"""What may be tried when an engine died: one thing of its launch changed. And which launches are
certain to fail.

A step is "NAME HOW": a value that NAME gets (`unset`: the engine's own), or how a figure falls.
Figures only fall, and never below a floor; what was switched off stays off. So however often
changes are taken, they end. A share of memory is never raised: it may have been chosen to leave
room for somebody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device
from skep.catalog.models import find_geometry
from skep.catalog.presets import EngineOptions
from skep.engines.base import Diagnosis, Launch
from skep.errors import UserError
from skep.planner.rules import capability, find_first
from skep.planner.setup import KV_TYPES, QUANTS, Layout, Rig, Setup, known_kv, known_quant
from skep.units import MIB, parse_bytes

SHARE_STEP = 0.05
FLOORS = {"memory_share": 0.5, "context_tokens": 2048, "batched_tokens": 512}
OWN_BATCHED = 2048  # tokens a step of vLLM and SGLang on cards below 70 GiB
# of a step; another word is the value itself
VALUES: Mapping[str, Any] = {"unset": None, "false": False}
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
    """Return the launch with the step taken; None: nothing changes by it, or the figure is at its
    floor.
    """
    name, how = step.split()
    launch = case.launch
    was = present(launch, name)
    label = "context" if name == "context_tokens" else name
    before = _word(was)
    if how in FALLS:
        to = _fallen(name, how, case, was)
        if to is None:
            return None
        advice = f"lower {label} from {before} to {_word(to)}"
    else:
        to = VALUES.get(how, how)
        if to == was:
            return None
        advice = f"set {label} to {_word(to)}"
        if to is None:
            advice = f"leave {label} {before} out"
    new: dict[str, Any] = {name: to}
    if name in _OPTION_NAMES:
        changed = replace(launch, options=replace(launch.options, **new))
    else:
        changed = replace(launch, **new)
    return LaunchChange(changed, f"{label} {before} -> {_word(to)}", advice)


def _fallen(name: str, how: str, case: FailureCase, was: Any) -> Any:
    """Return the lower figure; None: it is not known, or it would be below its floor."""
    if was is None:
        return None
    to = FALLS[how](case, was)
    if to is None or not FLOORS.get(name, case.launch.reserve + 1) <= to < was:
        return None
    return to


def present(launch: Launch, name: str) -> Any:
    """Return a figure as the launch has it, else the engine's own where it is known."""
    value = getattr(launch.options if name in _OPTION_NAMES else launch, name)
    share = kind_of(launch.engine).memory_share
    if value is not None or share is None:
        return value
    return {"memory_share": share, "batched_tokens": OWN_BATCHED}.get(name)


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "unset", True: "on", False: "off"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _half(_case: FailureCase, was: int) -> int:
    return was // 2


def _lower_share(case: FailureCase, was: float) -> float:
    """Return the share of memory, lower by a step, or by what the engine tried to allocate and was
    not free, if that is more.
    """
    tried = _bytes(case, "tried")
    free = _bytes(case, "free")
    total = _bytes(case, "total")
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
    """Return the share of the card that is free. `free` and `total` are GiB without unit."""
    try:
        free = float(case.facts["free"])
        total = float(case.facts["total"])
        return int(100 * free / total - 0.5) / 100
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _fitting(case: FailureCase, was: int) -> int:
    """Return what the log says fits, else half."""
    figure = str(case.facts.get("fits") or case.facts.get("most"))
    if figure.isdecimal():
        return int(figure)
    return _half(case, was)


FALLS: Mapping[str, Callable[[FailureCase, Any], float | None]] = {
    "half": _half, "lower": _lower_share, "free": _free_share, "fitting": _fitting,
}  # fmt: skip


def predict_failure(launch: Launch, cards: Sequence[Device]) -> Diagnosis | None:
    """Return why a launch is certain to fail; None: nothing is known against it. Pure.

    `cards` are those the launch gets, in its order.
    """
    if launch.url is not None or kind_of(launch.engine).memory_share is None or not cards:
        return None
    options = launch.options
    if options.cards > len(cards):
        layout = f"tp {options.tp} x pp {options.pp} x dp {options.dp}"
        cause = f"{layout} needs {options.cards} cards, {len(cards)} are given"
        return Diagnosis(cause, remedy="lower tp, pp or dp, or name more gpus", final=True)
    if options.dtype == "bfloat16":
        old = next(filter(_lacks_bfloat16, cards), None)
        if old is not None:
            card = f"{old.title} (SM {old.compute_capability:g})"
            cause = f"{card} has no bfloat16, which begins at SM 8.0"
            return Diagnosis(cause, remedy="set dtype to float16", final=True)
    return _refused_by_rule(launch, cards)


def _lacks_bfloat16(card: Device) -> bool:
    cc = capability(card)
    return cc is not None and cc < _HALF_SINCE


def _refused_by_rule(launch: Launch, cards: Sequence[Device]) -> Diagnosis | None:
    """Return what a rule of the planner says against it; None where the model is not known."""
    options = launch.options
    model = find_geometry(launch.checkpoint or "") or find_geometry(launch.model)
    if model is None or model.estimated:
        return None
    quant = known_quant(options.quant) if options.quant else None
    kv = known_kv(options.kv) if options.kv else None
    setup = Setup(
        model=model,
        quant=quant or QUANTS["bf16"],
        kv=kv or KV_TYPES["bf16"],
        engine=launch.engine,
        layout=Layout(options.tp, options.pp, 1, options.dp),
    )
    first = find_first("refused", setup, Rig(tuple(cards)), _REFUSING)
    if first is None:
        return None
    return Diagnosis(first.sentence, remedy=first.remedy or None, final=True)
