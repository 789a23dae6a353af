"""The knobs of llama.cpp, on cards and on a CPU, in a server of its own or embedded."""

from __future__ import annotations

from collections.abc import Iterator

from skep.tuner.space_box import Asked, steps_up_to
from skep.tuner.space_layouts import layout_knobs
from skep.tuner.variants import plain_kv
from skep.tunings import Knob

NGRAM_DEPTHS = (0, 2, 4, 8, 16, 32)
_BATCH = (256, 4096)
_MICRO_BATCH = (64, 1024)
_ON_CARDS = (256, 2048)  # the same
_CORES_EACH = 1  # a replica has at least one to itself
_MOST_REPLICAS = 4


def llama_knobs(asked: Asked) -> Iterator[Knob]:
    """On cards."""
    yield asked.slots()
    yield from _common(asked, _ON_CARDS)
    yield from layout_knobs(asked)
    draft = asked.base.options.draft
    if draft is not None and draft.method == "mtp":  # a GGUF file that kept its MTP layers: the preset knows
        yield Knob("mtp", "MTP drafts", (0, 1, 2, 3, 4, 5, 6, 8), ordered=True, expected=0.3)


def cpu_knobs(asked: Asked) -> Iterator[Knob]:
    cores = max(1, asked.box.cores)
    replicas = tuple(n for n in (1, 2, 4) if n <= min(cores // _CORES_EACH, asked.aim.concurrency, _MOST_REPLICAS))
    yield asked.slots(expected=0.4)
    yield Knob("threads", "threads of a replica", steps_up_to(cores), ordered=True, expected=0.4)
    yield Knob("threads_batch", "threads for prompts", steps_up_to(cores), ordered=True, expected=0.1)
    yield Knob("replicas", "replicas", replicas or (1,), ordered=True, expected=0.1)
    yield from _common(asked, _MICRO_BATCH)


def _common(asked: Asked, micro_batch: tuple[int, int]) -> Iterator[Knob]:
    yield Knob("kv", "KV type", (plain_kv(asked.base.engine), "q8_0"), alters_answers=True, expected=0.04)
    yield Knob("kv_layout", "KV layout", ("unified", "split"), expected=0.05)
    yield Knob("flash_attention", "flash attention", (True, False), expected=0.06)
    yield Knob("batch", "batch", asked.prompts(*_BATCH), ordered=True, expected=0.03)
    yield Knob("batched_tokens", "micro-batch", asked.prompts(*micro_batch), ordered=True, expected=0.05)
    yield asked.ngram(NGRAM_DEPTHS)
    if "prefix_cache" in asked.named:
        yield Knob("prefix_cache", "prefix cache", (True, False), expected=0.01)
