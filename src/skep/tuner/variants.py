"""From a configuration to the preset that is started, and back. Knows no engine's flags and no speed.

A knob that stands where the base has it already changes nothing, so that the base keeps its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from skep.catalog.models import find_geometry
from skep.catalog.options import Draft
from skep.catalog.presets import Preset
from skep.errors import UserError
from skep.tuner.space_layouts import layout_of, layout_words, parse_layout, with_layout
from skep.tunings import Config, Knob, Value

DRAFTS = ("mtp", "ngram", "eagle", "draft", "dflash")  # a knob each, its value the depth; 0: off
LLAMA = ("llamacpp", "embedded")
NO_LONGER_TURNED = "power_cap"  # in tunings of earlier versions; it was never part of a preset
_NO_HANDLE = (*DRAFTS, NO_LONGER_TURNED)
_SHARES = {"sglang": 0.88}  # of a card, where the preset leaves it to the engine
_SHARE = 0.9
_BATCH, _MICRO_BATCH, _CHUNK = 2048, 512, 2048


@dataclass(frozen=True, slots=True)
class Handle:
    read: Callable[[Preset], Value]
    write: Callable[[Preset, Any], Preset]


def config_of(base: Preset, knobs: Iterable[Knob]) -> Config:
    """Where the knobs stand in this preset."""
    return Config.of({knob.name: where(base, knob.name) for knob in knobs})


def where(preset: Preset, knob: str) -> Value:
    """Of one knob. What is left to the engine is read as what the engine does."""
    return _depth(preset, knob) if knob in DRAFTS else _handle(knob).read(preset)


def tokens_of(preset: Preset, knob: str) -> int:
    """Of a knob that counts tokens."""
    value = where(preset, knob)
    assert isinstance(value, int), knob
    return value


def turned(base: Preset, config: Config) -> Preset:
    """The base with every knob of the configuration where that says.

    Cards that the base names are those to choose from: a layout on fewer takes the first of them.
    """
    wanted = config.as_dict
    preset = base
    for name, handle in _HANDLES.items():  # in this order: which cards comes before what each engine on them gets
        if name in wanted and handle.read(preset) != wanted[name]:
            preset = handle.write(preset, wanted[name])
    if preset.engine in ("vllm", "sglang") and len(preset.gpus) > preset.replicas * preset.options.cards:
        preset = replace(preset, gpus=preset.gpus[: preset.replicas * preset.options.cards])
    unknown = next((name for name in wanted if name not in _HANDLES and name not in _NO_HANDLE), None)
    if unknown is not None:
        _handle(unknown)
    return _drafted(preset, {name: _whole(wanted[name]) for name in DRAFTS if name in wanted})


def _handle(knob: str) -> Handle:
    found = _HANDLES.get(knob)
    if found is None:
        raise UserError(f"no knob is called `{knob}`", hint=f"known: {', '.join((*_HANDLES, *DRAFTS))}")
    return found


# Speculation: at most one method drafts


def _depth(preset: Preset, method: str) -> int:
    draft = preset.options.draft
    return draft.depth if draft is not None and draft.method == method else 0


def _drafted(preset: Preset, depths: dict[str, int]) -> Preset:
    used = {method: depth for method, depth in depths.items() if depth > 0}
    if len(used) > 1:
        both = " and ".join(f"{method} n={depth}" for method, depth in used.items())
        raise UserError(f"{both} cannot be both", hint="one method drafts: turn the other to 0")
    now = preset.options.draft
    if now is not None and not used and now.method not in depths:
        return preset  # none of these knobs is about it
    wanted = None
    for method, depth in used.items():
        wanted = Draft(method, depth, now.model if now is not None and now.method == method else None)
    return preset if now == wanted else replace(preset, options=replace(preset.options, draft=wanted))


# The others


def _option(name: str, usual: Callable[[Preset], Value]) -> Handle:
    """`usual`: what the engine does where the preset leaves it alone."""

    def read(preset: Preset) -> Value:
        told = cast("Value", getattr(preset.options, name))
        return usual(preset) if told is None else told

    def write(preset: Preset, value: Value) -> Preset:
        return replace(preset, options=replace(preset.options, **{name: value}))  # type: ignore[arg-type]

    return Handle(read, write)


def plain_kv(engine: str) -> str:
    """The word for a cache in 16 bits."""
    return "auto" if engine in ("vllm", "sglang") else "f16"


def _read_kv(preset: Preset) -> str:
    plain = plain_kv(preset.engine)
    return plain if preset.options.kv in (None, "auto", "f16") else preset.options.kv or plain


def _write_kv(preset: Preset, kv: str) -> Preset:
    told = None if kv == plain_kv(preset.engine) else kv
    return replace(preset, options=replace(preset.options, kv=told))


def _read_layout(preset: Preset) -> str | None:
    found = layout_of(preset)
    return None if found is None else layout_words(found)


def _write_slots(preset: Preset, slots: int) -> Preset:
    return replace(preset, slots=slots, reserve=min(preset.reserve, slots - 1))


def _write_checkpoint(preset: Preset, checkpoint: str) -> Preset:
    """Another file: its format is found in it, not in what the preset said of the first."""
    return replace(preset, checkpoint=checkpoint, stand_in=False, options=replace(preset.options, quant=None))


def _prefix_cache(preset: Preset) -> bool:
    """On by itself, but in vLLM not for models with linear attention."""
    model = find_geometry(preset.model) if preset.engine == "vllm" else None
    return model is None or not model.is_hybrid


def _micro_batch(preset: Preset) -> int:
    return _MICRO_BATCH if preset.engine in LLAMA else _CHUNK


_HANDLES: dict[str, Handle] = {
    "layout": Handle(_read_layout, lambda preset, words: with_layout(preset, parse_layout(words))),
    "replicas": Handle(lambda preset: preset.replicas, lambda preset, count: replace(preset, replicas=count)),
    "checkpoint": Handle(lambda preset: preset.checkpoint, _write_checkpoint),
    "quant": _option("quant", lambda _: None),
    "slots": Handle(lambda preset: preset.slots, _write_slots),
    "graphs": _option("graphs", lambda _: True),
    "memory_share": _option("memory_share", lambda preset: _SHARES.get(preset.engine, _SHARE)),
    "kv": Handle(_read_kv, _write_kv),
    "kv_layout": _option("kv_layout", lambda _: "unified"),
    "flash_attention": _option("flash_attention", lambda _: True),
    "batched_tokens": _option("batched_tokens", _micro_batch),
    "batch": _option("batch", lambda preset: max(_BATCH, preset.options.batched_tokens or 0)),
    "chunked_prefill": _option("chunked_prefill", lambda _: True),
    "prefix_cache": _option("prefix_cache", _prefix_cache),
    "threads": Handle(lambda preset: preset.threads, lambda preset, count: replace(preset, threads=count)),
    "threads_batch": _option("threads_batch", lambda preset: preset.threads),
}


def _whole(value: Value) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"a depth of {value} drafts nothing", hint="a whole number; 0 is off")
    return value
