"""The knobs of vLLM and SGLang: engines that fill a share of a card with a pool of KV."""

from __future__ import annotations

from collections.abc import Iterator

from skep.planner.candidates import offered_kv
from skep.planner.quants import QUANTS, known_kv
from skep.tuner.space_box import Asked, powers
from skep.tuner.space_layouts import layout_knobs
from skep.tuner.variants import plain_kv, where
from skep.tunings import Knob

SHARES = (0.8, 0.85, 0.9, 0.92, 0.95)
MTP_DEPTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8)
NGRAM_DEPTHS = (0, 1, 2, 3, 4, 6, 8)
_CHUNKS = (256, 16384)
_WHOLE_PROMPTS = 8192  # a context beyond it is never read in one step
_KV_WORDS = {("sglang", "fp8"): "fp8_e4m3"}


def card_knobs(asked: Asked) -> Iterator[Knob]:
    base, cards = asked.base, asked.box.cards
    yield Knob("graphs", "CUDA graphs" if cards else "graphs", (False, True), expected=0.5)
    yield asked.slots()
    if cards:
        yield Knob("memory_share", "share of each card", SHARES, ordered=True, expected=0.03)
        yield from _kv(asked)
        yield from layout_knobs(asked)
    yield from _prefill(asked)
    drafted = base.options.draft.method if base.options.draft is not None else None
    if drafted == "mtp" or (asked.model is not None and asked.model.mtp_layers):
        yield Knob("mtp", "MTP drafts", MTP_DEPTHS, ordered=True, expected=0.5)
    yield asked.ngram(NGRAM_DEPTHS)


def _kv(asked: Asked) -> Iterator[Knob]:
    """Of a family that the base has already, the base's own word is enough."""
    engine, own = asked.base.engine, known_kv(asked.base.options.kv or "auto")
    words = [plain_kv(engine)]
    for name in asked.quants:
        kinds = offered_kv(engine, QUANTS[name], asked.box.cards)[1:]
        words += [
            _KV_WORDS.get((engine, kind.id), kind.id) for kind in kinds if own is None or kind.family != own.family
        ]
    yield Knob("kv", "KV type", tuple(dict.fromkeys(words)), alters_answers=True, expected=0.04)


def _prefill(asked: Asked) -> Iterator[Knob]:
    base = asked.base
    chunks, context = asked.prompts(*_CHUNKS), base.context_tokens or 0
    if base.engine == "vllm" and 0 < context <= _WHOLE_PROMPTS:
        chunks = powers(chunks[0], max(chunks[-1], context))
        yield Knob("chunked_prefill", "chunked prefill", (True, False), expected=0.02)
    yield Knob("batched_tokens", "prefill tokens a step", chunks, ordered=True, expected=0.04)
    if "prefix_cache" in asked.named or where(base, "prefix_cache") is False:
        yield Knob("prefix_cache", "prefix cache", (True, False), expected=0.01)
