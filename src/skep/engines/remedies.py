"""What may be tried when an engine died: one thing of its launch changed, by what its log says or by a stated step.

Every step goes one way: shares, slots, context and prefill chunks only fall, and never below a floor; what was switched
off stays off, what went back to the engine's own stays there. So however often changes are taken, they end. A share of
memory is never raised: it may have been chosen to leave room for somebody else.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from skep.catalog.models import find_geometry
from skep.catalog.options import EngineOptions
from skep.engines.base import Launch
from skep.engines.diagnosis_rule import OWN_SHARE, FailureCase, LaunchChange, Remedy
from skep.planner.rules import valid_rungs
from skep.units import MIB

SHARE_STEP = 0.05
SHARE_FLOOR = 0.5
SLOTS_FLOOR = 1
CONTEXT_FLOOR = 2048
BATCHED_FLOOR = 512
CONTEXT_GRAIN = 256

OWN_BATCHED = 2048  # tokens a step of vLLM and SGLang on cards below 70 GiB
_SPARE = 256 * MIB  # beside what the log says was missing: allocations come in more than one piece
_OPTION_NAMES = frozenset(field.name for field in fields(EngineOptions))


def changed(launch: Launch, name: str, value: Any, advice: str, *, was: Any = None) -> LaunchChange | None:
    """`name` is a field of the launch or of its options. None: it is so already."""
    inside = name in _OPTION_NAMES
    now = getattr(launch.options if inside else launch, name)
    if now == value:
        return None
    shown = now if was is None else was
    other = replace(launch, options=replace(launch.options, **{name: value})) if inside else replace(
        launch, **{name: value}
    )  # fmt: skip
    label = "context" if name == "context_tokens" else name
    return LaunchChange(other, f"{label} {_word(shown)} -> {_word(value)}", advice)


def _word(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _share(case: FailureCase) -> float | None:
    """Return what the engine was told to fill, or fills by itself; None: it has no such thing."""
    if case.launch.engine not in OWN_SHARE:
        return None
    return case.launch.options.memory_share or OWN_SHARE[case.launch.engine]


def _share_to(case: FailureCase, share: float, why: str = "") -> LaunchChange | None:
    was = _share(case)
    share = math.floor(share * 100 + 1e-9) / 100
    if was is None or share < SHARE_FLOOR or share >= was:
        return None
    return changed(
        case.launch, "memory_share", share, f"lower memory_share from {was:g} to {share:g}{why}", was=was
    )  # fmt: skip


def _missing_share(case: FailureCase) -> float | None:
    """Of the card: what was tried to allocate and was not free."""
    tried, free, total = case.size("tried"), case.size("free"), case.size("total")
    if tried is None or free is None or not total:
        return None
    return (max(0, tried - free) + _SPARE) / total


def _lower_share(case: FailureCase) -> LaunchChange | None:
    was, missing = _share(case), _missing_share(case)
    if was is None:
        return None
    if missing is None:
        return _share_to(case, was - SHARE_STEP)
    return _share_to(case, was - max(0.01, missing), f": {case.facts['tried']} were wanted, {case.facts['free']} free")


def _lower_share_a_step(case: FailureCase) -> LaunchChange | None:
    """One failed allocation of many to come: at least the step."""
    was = _share(case)
    return None if was is None else _share_to(case, was - max(SHARE_STEP, _missing_share(case) or 0))


def _share_of_free(case: FailureCase) -> LaunchChange | None:
    """`free` and `total` are GiB without unit."""
    part = case.ratio("free", "total")
    if part is None:
        return None
    return _share_to(case, part - 0.005, f": {case.facts['free']} of {case.facts['total']} GiB are free")


def _fewer_slots(case: FailureCase) -> LaunchChange | None:
    return _slots_to(case, case.launch.slots // 2)


def _slots_to(case: FailureCase, slots: int, why: str = "") -> LaunchChange | None:
    was = case.launch.slots
    if not SLOTS_FLOOR <= slots < was or case.launch.reserve >= slots:
        return None
    return changed(case.launch, "slots", slots, f"lower slots from {was} to {slots}{why}")


def _many_slots_halved(case: FailureCase) -> LaunchChange | None:
    return _fewer_slots(case) if case.launch.slots > 8 else None


def _slots_by_workspace(case: FailureCase) -> LaunchChange | None:
    part = case.ratio("there", "wanted")
    if part is None or not 0 < part < 1:
        return _fewer_slots(case)
    why = f": {case.facts['wanted']} MB were wanted, {case.facts['there']} MB are there"
    return _slots_to(case, int(case.launch.slots * part), why)


def _slots_to_batched(case: FailureCase) -> LaunchChange | None:
    batched = case.number("batched")
    return None if batched is None else _slots_to(case, batched, f": {batched} tokens are batched a step")


def _shorter_context(case: FailureCase) -> LaunchChange | None:
    return _context_to(case, case.launch.context_tokens // 2 // CONTEXT_GRAIN * CONTEXT_GRAIN)


def _context_to(case: FailureCase, tokens: int, why: str = "") -> LaunchChange | None:
    was = case.launch.context_tokens
    if not CONTEXT_FLOOR <= tokens < was:
        return None
    return changed(case.launch, "context_tokens", tokens, f"lower context from {was} to {tokens}{why}")


def _context_that_fits(case: FailureCase) -> LaunchChange | None:
    """Return the engine's own estimate, else by the memory it names, else half."""
    fits = case.number("fits")
    if fits is not None:
        return _context_to(case, fits, f": the log says at most {fits} fit")
    part = case.ratio("have", "need")
    if part is None or not 0 < part < 1:
        return _shorter_context(case)
    tokens = int(case.launch.context_tokens * part) // CONTEXT_GRAIN * CONTEXT_GRAIN
    return _context_to(
        case, tokens, f": {case.facts['need']} GiB of KV were wanted, {case.facts['have']} GiB are there"
    )


def _context_of_model(case: FailureCase) -> LaunchChange | None:
    most = case.number("most")
    return None if most is None else _context_to(case, most, f": the model was made for {most}")


def _smaller_chunks(case: FailureCase) -> LaunchChange | None:
    launch = case.launch
    if launch.engine not in OWN_SHARE or launch.options.chunked_prefill is False:
        return None
    was = launch.options.batched_tokens or OWN_BATCHED
    tokens = was // 2
    if tokens < max(BATCHED_FLOOR, launch.slots):
        return None
    advice = f"lower batched_tokens from {was} to {tokens}"
    return changed(launch, "batched_tokens", tokens, advice, was=was)


def _graphs_off(case: FailureCase) -> LaunchChange | None:
    if case.launch.options.graphs is False:
        return None
    return changed(case.launch, "graphs", False, "graphs off, at a half to a sixth of the speed", was=True)


def _all_reduce_off(case: FailureCase) -> LaunchChange | None:
    options = case.launch.options
    if options.tp <= 1 or options.custom_all_reduce is False:
        return None
    return changed(case.launch, "custom_all_reduce", False, "custom_all_reduce off", was=True)


def _p2p_off(case: FailureCase) -> LaunchChange | None:
    options = case.launch.options
    if options.cards <= 1 or options.p2p == "off":
        return None
    return changed(case.launch, "p2p", "off", "p2p off: the cards then talk through the machine's memory")


def _kv_e5m2(case: FailureCase) -> LaunchChange | None:
    """Truncated 16 bit, which every card can do; FP8 checkpoints refuse it."""
    kv, quant = case.launch.options.kv, (case.launch.options.quant or "").lower()
    if kv is None or kv in ("auto", "fp8_e5m2", "bfloat16", "float16"):
        return None
    to = None if "fp8" in quant else "fp8_e5m2"
    return changed(case.launch, "kv", to, f"kv from {kv} to {to or 'the engine’s own'}")


def _dtype_half(case: FailureCase) -> LaunchChange | None:
    dtype = case.launch.options.dtype
    if dtype in ("float16", "half"):
        return None
    return changed(case.launch, "dtype", "float16", f"dtype from {dtype or 'auto'} to float16", was=dtype or "auto")


def _tp_to(case: FailureCase, tp: int, why: str) -> LaunchChange | None:
    was = case.launch.options.tp
    return None if not 1 <= tp < was else changed(case.launch, "tp", tp, f"lower tp from {was} to {tp}: {why}")


def _tp_of_heads(case: FailureCase) -> LaunchChange | None:
    tp = case.launch.options.tp
    known = find_geometry(case.launch.checkpoint or "") or find_geometry(case.launch.model)
    heads = case.number("heads") or (None if known is None else known.heads)
    if known is not None and (heads is None or heads == known.heads):
        fitting = [n for n in valid_rungs(known) if n < tp]
    else:
        fitting = [] if heads is None else [n for n in range(1, tp) if heads % n == 0]
    return _tp_to(case, max(fitting), f"it divides the {heads} heads") if fitting else None


def _half_tp(case: FailureCase) -> LaunchChange | None:
    tp = case.launch.options.tp
    return _tp_to(case, tp // 2, "wider parts on each card") if tp % 2 == 0 else None


def _tp_of_cards(case: FailureCase) -> LaunchChange | None:
    """Only where the whole group shrinks evenly: a divisor of what divided the heads before divides them as well."""
    options, there = case.launch.options, case.number("cards_there")
    if there is None or options.pp * options.dp != 1 or there < 1 or options.tp % there:
        return None
    return _tp_to(case, there, f"so many cards are there ({options.tp} were wanted)")


def _leave_out(words: str, name: str, advice: str, *, only_off: bool = False) -> Remedy:
    """Return the remedy that leaves an option to the engine, where it is given; `only_off`: where it is false."""

    def take(case: FailureCase) -> LaunchChange | None:
        was = getattr(case.launch.options, name)
        given = was is False if only_off else was is not None
        return changed(case.launch, name, None, advice.format(was)) if given else None

    return Remedy(words, take)


lower_share = Remedy("memory_share lower by what the log says was missing, else by 0.05", _lower_share)
lower_share_a_step = Remedy("memory_share lower by 0.05 or more", _lower_share_a_step)
share_of_free = Remedy("memory_share down to what is free", _share_of_free)
fewer_slots = Remedy("slots halved", _fewer_slots)
many_slots_halved = Remedy("slots halved while above 8", _many_slots_halved)
slots_by_workspace = Remedy("slots lower by the ratio of what is there to what was wanted", _slots_by_workspace)
slots_to_batched = Remedy("slots down to the batched tokens", _slots_to_batched)
shorter_context = Remedy("context halved", _shorter_context)
context_that_fits = Remedy("context down to what the log says fits", _context_that_fits)
context_of_model = Remedy("context down to the model's", _context_of_model)
smaller_chunks = Remedy("batched_tokens halved", _smaller_chunks)
graphs_off = Remedy("graphs off", _graphs_off)
all_reduce_off = Remedy("custom_all_reduce off", _all_reduce_off)
p2p_off = Remedy("p2p off", _p2p_off)
kv_e5m2 = Remedy("kv fp8_e5m2, or 16 bit beside an FP8 checkpoint", _kv_e5m2)
dtype_half = Remedy("dtype float16", _dtype_half)
tp_of_heads = Remedy("tp down to one that divides the heads", _tp_of_heads)
half_tp = Remedy("tp halved", _half_tp)
tp_of_cards = Remedy("tp down to the cards that are there", _tp_of_cards)
no_draft = _leave_out("no draft", "draft", "leave out the draft {}")
kv_own = _leave_out("kv in 16 bit", "kv", "leave out kv {}: KV then stays in 16 bit")
batch_own = _leave_out("batch as llama.cpp has it", "batch", "leave out batch {}: it is then 2048 or more")
quant_own = _leave_out("no quant: the checkpoint says", "quant", "leave out quant {}: the checkpoint says what it is")
flash_own = _leave_out(
    "flash_attention as llama.cpp has it",
    "flash_attention",
    "leave flash_attention out: llama.cpp then turns it on",
    only_off=True,
)
chunks_on = _leave_out("chunked_prefill on", "chunked_prefill", "chunked_prefill as the engine has it", only_off=True)
