"""What may be tried when an engine died: one thing of its launch changed, by what its log says or by a stated step.
And what is certain to fail, said before the start.

Every step goes one way: shares, slots, context and prefill chunks only fall, and never below a floor; what was switched
off stays off, what went back to the engine's own stays there. So however often changes are taken, they end. A share of
memory is never raised: it may have been chosen to leave room for somebody else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.presets import EngineOptions
from skep.engines.base import DEFAULT_SHARES, Diagnosis, Launch
from skep.errors import UserError
from skep.planner.rules import capability, find_first, valid_rungs
from skep.planner.setup import KV_TYPES, QUANTS, Layout, Rig, Setup, known_kv, known_quant
from skep.units import MIB, parse_bytes

SHARE_STEP = 0.05
SHARE_FLOOR = 0.5
CONTEXT_FLOOR = 2048
BATCHED_FLOOR = 512
CONTEXT_GRAIN = 256

OWN_BATCHED = 2048  # tokens a step of vLLM and SGLang on cards below 70 GiB
_SPARE = 256 * MIB  # beside what the log says was missing: allocations come in more than one piece
_HALF_SINCE = 8.0  # bfloat16
_CRASHED_ON = 8.6
_OPTION_NAMES = frozenset(EngineOptions.__struct_fields__)


class LaunchChange(msgspec.Struct, frozen=True):
    """Another launch, different in one thing. `what`: "slots 8 -> 4"; `advice`: "lower slots from 8 to 4"."""

    launch: Launch
    what: str
    advice: str


class FailureCase(msgspec.Struct, frozen=True):
    """A launch that ended, and the line that tells why."""

    launch: Launch
    line: str | None = None  # the telling one; None: the exit code tells
    facts: Mapping[str, Any] = {}  # the groups of what matched

    def size(self, name: str) -> int | None:
        """Return bytes of a fact like "211.25 MiB"."""
        try:
            return parse_bytes(str(self.facts[name]))
        except (KeyError, UserError):
            return None  # a number that is none

    def number(self, name: str) -> int | None:
        text = str(self.facts.get(name))
        return int(text) if text.isdecimal() else None

    def ratio(self, part: str, whole: str) -> float | None:
        """Of two facts in the same unit."""
        try:
            a, b = float(self.facts[part]), float(self.facts[whole])
        except (KeyError, TypeError, ValueError):
            return None
        return a / b if b > 0 else None


Remedy = Callable[[FailureCase], LaunchChange | None]  # something that may be tried


def changed(launch: Launch, name: str, value: Any, advice: str, *, was: Any = None) -> LaunchChange | None:
    """`name` is a field of the launch or of its options. None: it is so already."""
    inside = name in _OPTION_NAMES
    now = getattr(launch.options if inside else launch, name)
    if now == value:
        return None
    shown = now if was is None else was
    new = {name: value}
    other = replace(launch, options=replace(launch.options, **new)) if inside else replace(launch, **new)
    label = "context" if name == "context_tokens" else name
    return LaunchChange(other, f"{label} {_word(shown)} -> {_word(value)}", advice)


def _word(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _lower(
    case: FailureCase, name: str, to: float | None, floor: float, why: str = "", was: float | None = None
) -> LaunchChange | None:
    """Return the launch with a lower figure; None: there is none, or it is below the floor. `was`: if not as told."""
    launch = case.launch
    now = getattr(launch.options if name in _OPTION_NAMES else launch, name) if was is None else was
    if to is None or now is None or not floor <= to < now:
        return None
    label = "context" if name == "context_tokens" else name
    return changed(launch, name, to, f"lower {label} from {_word(now)} to {_word(to)}{why}", was=was)


def share_of(launch: Launch) -> float | None:
    """Return what the engine was told to fill, or fills by itself; None: it has no such thing."""
    return (launch.options.memory_share or DEFAULT_SHARES[launch.engine]) if launch.engine in DEFAULT_SHARES else None


def _share_to(case: FailureCase, share: float, why: str = "") -> LaunchChange | None:
    return _lower(case, "memory_share", math.floor(share * 100 + 1e-9) / 100, SHARE_FLOOR, why, share_of(case.launch))


def _missing_share(case: FailureCase) -> float | None:
    """Of the card: what was tried to allocate and was not free."""
    tried, free, total = case.size("tried"), case.size("free"), case.size("total")
    return None if tried is None or free is None or not total else (max(0, tried - free) + _SPARE) / total


def lower_share(case: FailureCase) -> LaunchChange | None:
    was, missing = share_of(case.launch), _missing_share(case)
    if was is None:
        return None
    if missing is None:
        return _share_to(case, was - SHARE_STEP)
    return _share_to(case, was - max(0.01, missing), f": {case.facts['tried']} were wanted, {case.facts['free']} free")


def lower_share_a_step(case: FailureCase) -> LaunchChange | None:
    """One failed allocation of many to come: at least the step."""
    was = share_of(case.launch)
    return None if was is None else _share_to(case, was - max(SHARE_STEP, _missing_share(case) or 0))


def share_of_free(case: FailureCase) -> LaunchChange | None:
    """`free` and `total` are GiB without unit."""
    part = case.ratio("free", "total")
    if part is None:
        return None
    return _share_to(case, part - 0.005, f": {case.facts['free']} of {case.facts['total']} GiB are free")


def fewer_slots(case: FailureCase) -> LaunchChange | None:
    return _slots_to(case, case.launch.slots // 2)


def _slots_to(case: FailureCase, slots: int | None, why: str = "") -> LaunchChange | None:
    return _lower(case, "slots", slots, case.launch.reserve + 1, why)


def many_slots_halved(case: FailureCase) -> LaunchChange | None:
    return fewer_slots(case) if case.launch.slots > 8 else None


def slots_by_workspace(case: FailureCase) -> LaunchChange | None:
    part = case.ratio("there", "wanted")
    if part is None or not 0 < part < 1:
        return fewer_slots(case)
    why = f": {case.facts['wanted']} MB were wanted, {case.facts['there']} MB are there"
    return _slots_to(case, int(case.launch.slots * part), why)


def slots_to_batched(case: FailureCase) -> LaunchChange | None:
    batched = case.number("batched")
    return _slots_to(case, batched, f": {batched} tokens are batched a step")


def shorter_context(case: FailureCase) -> LaunchChange | None:
    return _context_by(case, 0.5)


def _context_by(case: FailureCase, part: float, why: str = "") -> LaunchChange | None:
    tokens = int(case.launch.context_tokens * part) // CONTEXT_GRAIN * CONTEXT_GRAIN
    return _lower(case, "context_tokens", tokens, CONTEXT_FLOOR, why)


def context_that_fits(case: FailureCase) -> LaunchChange | None:
    """Return the engine's own estimate, else by the memory it names, else half."""
    fits = case.number("fits")
    if fits is not None:
        return _lower(case, "context_tokens", fits, CONTEXT_FLOOR, f": the log says at most {fits} fit")
    part = case.ratio("have", "need")
    if part is None or not 0 < part < 1:
        return _context_by(case, 0.5)
    return _context_by(case, part, f": {case.facts['need']} GiB of KV were wanted, {case.facts['have']} GiB are there")


def context_of_model(case: FailureCase) -> LaunchChange | None:
    most = case.number("most")
    return _lower(case, "context_tokens", most, CONTEXT_FLOOR, f": the model was made for {most}")


def smaller_chunks(case: FailureCase) -> LaunchChange | None:
    launch = case.launch
    if launch.engine not in DEFAULT_SHARES or launch.options.chunked_prefill is False:
        return None
    was = launch.options.batched_tokens or OWN_BATCHED
    return _lower(case, "batched_tokens", was // 2, max(BATCHED_FLOOR, launch.slots), was=was)


def graphs_off(case: FailureCase) -> LaunchChange | None:
    return changed(case.launch, "graphs", False, "turn graphs off, at a half to a sixth of the speed", was=True)


def all_reduce_off(case: FailureCase) -> LaunchChange | None:
    several = case.launch.options.tp > 1
    return changed(case.launch, "custom_all_reduce", False, "turn custom_all_reduce off", was=True) if several else None


def p2p_off(case: FailureCase) -> LaunchChange | None:
    advice = "turn p2p off: the cards then talk through the machine's memory"
    return changed(case.launch, "p2p", "off", advice) if case.launch.options.cards > 1 else None


def kv_e5m2(case: FailureCase) -> LaunchChange | None:
    """Truncated 16 bit, which every card can do; FP8 checkpoints refuse it."""
    kv, quant = case.launch.options.kv, (case.launch.options.quant or "").lower()
    if kv is None or kv in ("auto", "fp8_e5m2", "bfloat16", "float16"):
        return None
    to = None if "fp8" in quant else "fp8_e5m2"
    return changed(case.launch, "kv", to, f"change kv from {kv} to {to or 'the engine’s default'}")


def dtype_half(case: FailureCase) -> LaunchChange | None:
    dtype = case.launch.options.dtype
    if dtype in ("float16", "half"):
        return None
    return changed(case.launch, "dtype", "float16", f"change dtype {dtype or 'auto'} to float16", was=dtype or "auto")


def tp_of_heads(case: FailureCase) -> LaunchChange | None:
    tp = case.launch.options.tp
    known = find_geometry(case.launch.checkpoint or "") or find_geometry(case.launch.model)
    heads = case.number("heads") or (None if known is None else known.heads)
    if known is not None and (heads is None or heads == known.heads):
        fitting = [n for n in valid_rungs(known) if n < tp]
    else:
        fitting = [] if heads is None else [n for n in range(1, tp) if heads % n == 0]
    return _lower(case, "tp", max(fitting, default=None), 1, f": it divides the {heads} heads")


def half_tp(case: FailureCase) -> LaunchChange | None:
    tp = case.launch.options.tp
    return _lower(case, "tp", tp // 2, 1, ": wider parts on each card") if tp % 2 == 0 else None


def tp_of_cards(case: FailureCase) -> LaunchChange | None:
    """Only where the whole group shrinks evenly: a divisor of what divided the heads before divides them as well."""
    options, there = case.launch.options, case.number("cards_there")
    if there is None or options.pp * options.dp != 1 or there < 1 or options.tp % there:
        return None
    return _lower(case, "tp", there, 1, f": {there} cards are there, not {options.tp}")


def _leave_out(name: str, advice: str, *, only_off: bool = False) -> Remedy:
    """Return the remedy that leaves an option to the engine, where it is given; `only_off`: where it is false."""

    def take(case: FailureCase) -> LaunchChange | None:
        was = getattr(case.launch.options, name)
        given = was is False if only_off else was is not None
        return changed(case.launch, name, None, advice.format(was)) if given else None

    return take


no_draft = _leave_out("draft", "leave out the draft {}")
kv_own = _leave_out("kv", "leave out kv {}: KV then stays in 16 bit")
batch_own = _leave_out("batch", "leave out batch {}: it is then 2048 or more")
quant_own = _leave_out("quant", "leave out quant {}: the checkpoint says what it is")
_TURNED_ON = "leave flash_attention out: llama.cpp then turns it on"
flash_own = _leave_out("flash_attention", _TURNED_ON, only_off=True)
chunks_on = _leave_out("chunked_prefill", "leave chunked_prefill out", only_off=True)


_STEPS: Mapping[str, Remedy | None] = {
    "heads": tp_of_heads, "kv-fp8": kv_own, "fp8-weights": None, "nvfp4": None, "mxfp4": None,
}  # fmt: skip  # rules of the planner that refuse


def predict_failure(launch: Launch, cards: Sequence[Device]) -> Diagnosis | None:
    """`cards` are those the launch gets, in its order. None: nothing is known against it. Pure."""
    if launch.url is not None or launch.engine not in ("vllm", "sglang") or not cards:
        return None
    options, case = launch.options, FailureCase(launch)
    if options.cards > len(cards):
        layout = f"tp {options.tp} x pp {options.pp} x dp {options.dp}"
        cause = f"{layout} needs {options.cards} cards, {len(cards)} are given"
        change = tp_of_cards(FailureCase(launch, facts={"cards_there": len(cards)}))
        return _told(cause, "lower tp, pp or dp, or name more gpus", change)
    plain = next((card for card in cards if (cc := capability(card)) is not None and cc < _HALF_SINCE), None)
    if plain is not None and options.dtype == "bfloat16":
        cause = f"{plain.title} (SM {plain.compute_capability:g}) has no bfloat16, which begins at SM 8.0"
        return _told(cause, "", dtype_half(case))
    known = find_geometry(launch.checkpoint or "") or find_geometry(launch.model)
    if known is not None and not known.estimated and (found := _refused(launch, known, cards)) is not None:
        return found
    crashed = any(capability(card) == _CRASHED_ON for card in cards[: options.cards])
    reduces = launch.engine == "vllm" and options.tp > 1 and options.custom_all_reduce
    if reduces and crashed and options.graphs is not False:
        cause = "custom_all_reduce crashed vLLM 0.17 on SM 8.6 (RTX 3090) while graphs were captured"
        return _told(cause, "", all_reduce_off(case), final=False)
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
