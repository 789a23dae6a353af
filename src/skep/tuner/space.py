"""What can be turned in a preset on a machine: its knobs, each with the values that are worth a try under the goal.

`space_of(base, aim, box)` gives them with one line for each that is left alone; `knobs_for` only them. By engine family
in `space_cards` and `space_llama`. Measures nothing, and knows what the planner knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from skep.catalog.models import find_geometry
from skep.catalog.options import Draft
from skep.catalog.presets import Preset
from skep.planner.quants import QUANTS, known_quant
from skep.tuner.space_box import Asked, Box
from skep.tuner.space_cards import card_knobs
from skep.tuner.space_formats import quant_of
from skep.tuner.space_llama import cpu_knobs, llama_knobs
from skep.tuner.variants import DRAFTS, plain_kv, where
from skep.tunings import Aim, Knob, Value

PAIRS = (
    ("slots", "memory_share"), ("slots", "batched_tokens"), ("slots", "kv"), ("slots", "layout"), ("slots", "replicas"),
    ("slots", "graphs"), ("mtp", "slots"), ("mtp", "layout"), ("mtp", "ngram"), ("mtp", "memory_share"), ("mtp", "kv"),
    ("ngram", "slots"), ("kv", "flash_attention"), ("kv", "memory_share"), ("kv", "checkpoint"), ("kv", "quant"),
    ("layout", "checkpoint"), ("layout", "quant"), ("layout", "memory_share"), ("layout", "kv"),
    ("layout", "flash_attention"), ("threads", "replicas"), ("threads", "threads_batch"), ("threads", "slots"),
    ("batch", "batched_tokens"), ("kv_layout", "slots"), ("chunked_prefill", "batched_tokens"),
    ("batched_tokens", "memory_share"), ("eagle", "slots"), ("draft", "slots"),
    ("dflash", "slots"), ("graphs", "memory_share"),
)  # fmt: skip
_SPECULATIVE = {"vllm": ("--speculative-config", "-sc"), "sglang": ("--speculative-algorithm",),
                "llamacpp": ("--spec-type", "--model-draft", "-md", "--draft-max")}  # fmt: skip
_SAID_BY: dict[str, dict[str, str]] = {
    "vllm": {
        "--enforce-eager": "graphs", "--no-enforce-eager": "graphs", "--compilation-config": "graphs", "-O": "graphs",
        "--max-num-batched-tokens": "batched_tokens", "--enable-chunked-prefill": "chunked_prefill",
        "--no-enable-chunked-prefill": "chunked_prefill", "--enable-prefix-caching": "prefix_cache",
        "--no-enable-prefix-caching": "prefix_cache", "--enable-expert-parallel": "layout",
        "--kv-cache-memory-bytes": "memory_share", "--quantization": "checkpoint", "-q": "checkpoint",
    },
    "sglang": {
        "--disable-cuda-graph": "graphs", "--chunked-prefill-size": "batched_tokens",
        "--disable-radix-cache": "prefix_cache", "--ep-size": "layout", "--ep": "layout",
    },
    "llamacpp": {
        "--batch-size": "batch", "-b": "batch", "--ubatch-size": "batched_tokens", "-ub": "batched_tokens",
        "--threads": "threads", "-t": "threads", "--threads-batch": "threads_batch", "-tb": "threads_batch",
        "--flash-attn": "flash_attention", "-fa": "flash_attention", "--kv-unified": "kv_layout", "-kvu": "kv_layout",
        "--no-kv-unified": "kv_layout", "--split-mode": "layout", "-sm": "layout", "--tensor-split": "layout",
        "-ts": "layout", "--cache-prompt": "prefix_cache", "--no-cache-prompt": "prefix_cache",
    },
}  # fmt: skip
_OLLAMA = "ollama decides most by itself: only slots and the KV type can be turned"


@dataclass(frozen=True, slots=True)
class Space:
    """`left_alone`: one line for each knob that could be there and is not, with the reason."""

    knobs: tuple[Knob, ...]
    left_alone: tuple[str, ...] = ()


def knobs_for(
    base: Preset, aim: Aim, box: Box, *, checkpoints: Sequence[str] = (), quants: Sequence[str] = (),
    named: Collection[str] = (),
) -> tuple[Knob, ...]:  # fmt: skip
    return space_of(base, aim, box, checkpoints=checkpoints, quants=quants, named=named).knobs


def space_of(
    base: Preset, aim: Aim, box: Box, *, checkpoints: Sequence[str] = (), quants: Sequence[str] = (),
    named: Collection[str] = (),
) -> Space:  # fmt: skip
    """`checkpoints`: files to choose from, the base's among them. `quants`: formats, where nothing is really loaded.

    `named`: knobs that were asked for by name; a few are offered only then, as this load sees but one side of them.
    """
    asked = Asked(base, aim, box, box.model or find_geometry(base.model), _quants(base, checkpoints, quants),
                  frozenset(named))  # fmt: skip
    offered = [*_choices(base, checkpoints, quants), *_by_engine(asked), *_drafts(asked)]
    said = said_in_extra(base)
    knobs = tuple(with_own(knob, base) for knob in offered if knob.name not in said)
    lines = [f"{name} is left alone: the preset's own `{flag}` says it" for name, flag in said.items()]
    lines += [_OLLAMA] if base.engine == "ollama" else []
    return Space(tuple(knob for knob in knobs if len(knob.values) > 1), tuple(lines))


def pairs_of(knobs: Iterable[Knob]) -> tuple[tuple[str, str], ...]:
    there = {knob.name for knob in knobs}
    return tuple(pair for pair in PAIRS if there.issuperset(pair))


def said_in_extra(base: Preset) -> dict[str, str]:
    """Knobs that flags of the preset's own say already, and which flag does."""
    found: dict[str, str] = {}
    for word in base.extra:
        flag = word.partition("=")[0]
        if flag in _SPECULATIVE.get(base.engine, ()):
            found |= dict.fromkeys(DRAFTS, flag)
        name = _SAID_BY.get(base.engine, {}).get(flag)
        if name is not None:
            found[name] = flag
    return found


def with_own(knob: Knob, base: Preset) -> Knob:
    """Where the base stands is one of the values: the climb begins there."""
    own = where(base, knob.name)
    if own is None or own in knob.values:
        return knob
    values = (*knob.values, own)
    return replace(knob, values=tuple(sorted(values, key=_rung)) if knob.ordered else (own, *knob.values))


def _rung(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _quants(base: Preset, checkpoints: Sequence[str], quants: Sequence[str]) -> tuple[str, ...]:
    own = quant_of(base)
    bare = replace(base, options=replace(base.options, quant=None))
    others = [quant_of(replace(bare, checkpoint=name)) for name in checkpoints]
    told = [known_quant(name) for name in quants]
    return tuple(dict.fromkeys(quant.id for quant in (own, *others, *told) if quant is not None and quant.id in QUANTS))


def _choices(base: Preset, checkpoints: Sequence[str], quants: Sequence[str]) -> Iterator[Knob]:
    files = tuple(dict.fromkeys((base.checkpoint, *checkpoints)))
    if len(files) > 1:
        yield Knob("checkpoint", "checkpoint", files, alters_answers=True, expected=0.15)
    if len(quants) > 1 and base.options.quant is not None:
        yield Knob("quant", "format of the weights", tuple(quants), alters_answers=True, expected=0.15)


def _by_engine(asked: Asked) -> Iterator[Knob]:
    engine = asked.base.engine
    if engine in ("vllm", "sglang"):
        yield from card_knobs(asked)
    elif engine == "embedded" or (engine == "llamacpp" and not asked.box.cards):
        yield from cpu_knobs(asked)
    elif engine == "llamacpp":
        yield from llama_knobs(asked)
    elif engine == "ollama":
        yield asked.slots()
        yield Knob("kv", "KV type", (plain_kv(engine), "q8_0"), alters_answers=True, expected=0.03)


def _drafts(asked: Asked) -> Iterator[Knob]:
    """Drafts that need a model of their own are turned only where the preset names it."""
    own: Draft | None = asked.base.options.draft
    if own is not None and own.method not in ("mtp", "ngram"):
        yield Knob(own.method, f"drafts by {own.method}", (0, 1, 2, 3, 4, 5, 6, 8), ordered=True, expected=0.2)
