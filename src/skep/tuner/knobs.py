"""What can be turned in a preset on a machine: its knobs, each with the values that are worth a
try under the goal.

`space_of` returns them. `apply_config` makes the preset of a configuration, `config_of` the
configuration of a preset. A knob that already has the base's value changes nothing. Measures
nothing, and knows what the planner knows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.presets import Draft, EngineOptions, Preset
from skep.deploy.preset_setup import layout_of, quant_of
from skep.errors import UserError
from skep.planner.candidates import (
    USUAL_RAM_GIB,
    Pins,
    base_setups,
    layouts,
    offered_kv,
    place,
    sizing_card,
)
from skep.planner.ranking import coarse, published_basis, speed_model_of
from skep.planner.rules import refusal
from skep.planner.setup import Layout, Quant, Rig, known_kv
from skep.tuner.records import Knob, KnobConfig, TuneGoal, Value
from skep.tuner.session_load import plan_goal_of

MOST_SLOTS = 1024
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_FEWEST = 8  # slots below an eighth of the agents are not tried


class TuneMachine(msgspec.Struct, frozen=True):
    """What of a machine bounds the knobs."""

    cores: int = 1
    rig: Rig | None = None  # its cards; None: it has none, or they are not used
    model: Geometry | None = None  # read from files; None: by the preset's name of it
    free_ram_gib: float | None = None  # None: not known

    @property
    def cards(self) -> tuple[Device, ...]:
        if self.rig is not None:
            return self.rig.cards
        return ()


class KnobContext(msgspec.Struct, frozen=True):
    """What a knob's values depend on."""

    base: Preset
    aim: TuneGoal
    box: TuneMachine
    model: Geometry | None
    quant: Quant | None

    def slots(self, expected: float = 0.15) -> Knob:
        """Return the knob for the slots of one replica.

        Twice the agents is more than can be busy; far fewer than they are is a queue.
        """
        agents = min(self.aim.concurrency, MOST_SLOTS // 2)
        rungs = {step for step in _STEPS if agents // _FEWEST <= step <= 2 * agents}
        return Knob(
            "slots",
            "slots of a replica",
            tuple(sorted(rungs | {agents})),
            ordered=True,
            expected=expected,
        )

    def ngram(self, depths: Sequence[int]) -> Knob:
        """Return the knob for n-gram drafts; more than half an answer at once is never right."""
        fitting = tuple(depth for depth in depths if 2 * depth <= self.aim.output_tokens)
        return Knob("ngram", "n-gram drafts", fitting, ordered=True, expected=0.04)

    def prompts(self, first: int, last: int) -> tuple[int, ...]:
        """Return powers of two up to all prompts at once: beyond that a larger one changes
        nothing.
        """
        sizes = [first]
        largest = min(last, max(2 * first, self.aim.concurrency * self.aim.input_tokens))
        while sizes[-1] < largest:
            sizes.append(sizes[-1] * 2)
        return tuple(sizes)


MOST = 6  # layouts are tried one by one, each with a start of its own
_LAYOUT_WORDS = re.compile(r"(?:(\d+) ?x )?TP=(\d+)(?: \+ PP=(\d+))?(?: \+ EP=(\d+))?")


def layout_words(layout: Layout) -> str:
    return str(layout).replace(" x ", "x ")


def parse_layout(words: str) -> Layout:
    match = _LAYOUT_WORDS.fullmatch(words.strip())
    if match is None:
        raise UserError(
            f"`{words}` is not a layout",
            hint="write it as `2x TP=1`, `TP=2 + EP=2` or `TP=1 + PP=2`",
        )
    replicas, tp, pp, ep = (int(part or 1) for part in match.groups())
    return Layout(tp, pp, ep, replicas)


def with_layout(preset: Preset, layout: Layout) -> Preset:
    """Return the preset in another layout.

    Cards that it names are kept as far as they are needed; where they are too few, they are left
    to be chosen.
    """
    # One engine that shares experts.
    ranks = layout.replicas if layout.replicas > 1 and layout.ep > layout.tp else 1
    if preset.options.pp == layout.pp:
        shares = preset.options.card_shares
    else:
        shares = ()
    options = replace(
        preset.options,
        tp=layout.tp,
        pp=layout.pp,
        dp=ranks,
        ep=layout.ep > 1,
        split=None,
        card_shares=shares,
    )
    if len(preset.gpus) >= layout.cards:
        gpus = preset.gpus[: layout.cards]
    else:
        gpus = ()
    return replace(preset, replicas=layout.replicas // ranks, options=options, gpus=gpus)


def layout_knobs(context: KnobContext) -> Iterator[Knob]:
    """Yield a knob for the layouts that break no rule, fit and keep as many cards busy as any
    does, best first.
    """
    rig = context.box.rig
    engine = context.base.engine
    model = context.model
    aim = context.aim
    if rig is None or len(rig.cards) < 2 or layout_of(context.base) is None:
        return
    if model is None or context.quant is None:
        return
    kind = "latency" if aim.metric == "task_tok_s" else "throughput"
    goal = plan_goal_of(aim, kind)
    basis = published_basis(engine)
    rated: dict[Layout, float] = {}
    for layout in layouts(rig, model, engine, goal, Pins(no_spec=True)):
        pins = Pins(quant=context.quant, no_spec=True)
        for setup in base_setups(model, rig, engine, layout, pins):
            if refusal(setup, rig) is not None:
                continue
            placed = place(setup, sizing_card(rig, layout), goal, Pins())
            if placed is not None:
                figure = coarse(speed_model_of(placed, rig, goal, basis), goal)
                rated[layout] = max(figure, rated.get(layout, 0.0))
    widest = max((layout.cards for layout in rated), default=0)
    layouts_in_use = (layout for layout in rated if layout.cards == widest)
    best = sorted(layouts_in_use, key=lambda layout: -rated[layout])
    yield Knob(
        "layout", "layout on the cards", tuple(map(layout_words, best[:MOST])), expected=0.15
    )


DRAFTS = ("mtp", "ngram", "eagle", "draft", "dflash")  # a knob each, its value the depth; 0: off
_SHARE = 0.9
_BATCH = 2048
MICRO_BATCH = 512
_CHUNK = 2048


class Handle(msgspec.Struct, frozen=True):
    """How the value of a knob is read from a preset, and written into one."""

    read: Callable[[Preset], Value]
    write: Callable[[Preset, Any], Preset]


def config_of(base: Preset, knobs: Iterable[Knob]) -> KnobConfig:
    """Return the values of the knobs in this preset."""
    return KnobConfig.of({knob.name: knob_value(base, knob.name) for knob in knobs})


def knob_value(preset: Preset, knob: str) -> Value:
    """Return the value of one knob. What is left to the engine is read as what the engine does."""
    if knob in DRAFTS:
        return draft_depth(preset.options, knob)
    return _HANDLES[knob].read(preset)


def apply_config(base: Preset, config: KnobConfig) -> Preset:
    """Return the base with every knob where the configuration says. A layout on fewer cards takes
    the first of them.

    Knobs that only an earlier version turned are left where they are.
    """
    values = config.as_dict
    preset = base
    # In this order: which cards comes before what each engine on them gets.
    for name, handle in _HANDLES.items():
        if name in values and handle.read(preset) != values[name]:
            preset = handle.write(preset, values[name])
    cards = preset.replicas * preset.options.cards
    if kind_of(preset.engine).has_pool and len(preset.gpus) > cards:
        preset = replace(preset, gpus=preset.gpus[:cards])
    depths = ((name, values.get(name)) for name in DRAFTS)
    return _drafted(preset, {name: depth for name, depth in depths if isinstance(depth, int)})


# Speculation: at most one method drafts


def draft_depth(options: EngineOptions, method: str) -> int:
    draft = options.draft
    if draft is not None and draft.method == method:
        return draft.depth
    return 0


def _drafted(preset: Preset, depths: dict[str, int]) -> Preset:
    used = {method: depth for method, depth in depths.items() if depth > 0}
    if len(used) > 1:
        both = " and ".join(f"{method} n={depth}" for method, depth in used.items())
        raise UserError(f"{both} cannot be combined", hint="one method drafts: set the other to 0")
    now = preset.options.draft
    if now is not None and not used and now.method not in depths:
        return preset  # none of these knobs is about it
    draft = None
    for method, depth in used.items():
        model = now.model if now is not None and now.method == method else None
        draft = Draft(method, depth, model)
    if now == draft:
        return preset
    return with_options(preset, draft=draft)


def with_options(preset: Preset, **changes: Any) -> Preset:
    return replace(preset, options=replace(preset.options, **changes))


def _option(name: str, usual: Callable[[Preset], Value]) -> Handle:
    """Return the handle of an option. `usual`: what the engine does where the preset leaves it
    alone.
    """

    def read(preset: Preset) -> Value:
        value = cast("Value", getattr(preset.options, name))
        if value is None:
            return usual(preset)
        return value

    return Handle(read, lambda preset, value: with_options(preset, **{name: value}))


_HANDLES: dict[str, Handle] = {
    "layout": Handle(
        lambda preset: None if (layout := layout_of(preset)) is None else layout_words(layout),
        lambda preset, words: with_layout(preset, parse_layout(words)),
    ),
    "replicas": Handle(
        lambda preset: preset.replicas, lambda preset, count: replace(preset, replicas=count)
    ),
    "checkpoint": Handle(  # no knob any more: `--checkpoint`. Its format is found in the file
        lambda preset: preset.checkpoint,
        lambda preset, name: replace(
            with_options(preset, quant=None), checkpoint=name, stand_in=False
        ),
    ),
    "quant": _option("quant", lambda _: None),
    "slots": Handle(
        lambda preset: preset.slots,
        lambda preset, slots: replace(preset, slots=slots, reserve=min(preset.reserve, slots - 1)),
    ),
    "graphs": _option("graphs", lambda _: True),
    "memory_share": _option(
        "memory_share", lambda preset: kind_of(preset.engine).memory_share or _SHARE
    ),
    "kv": Handle(
        lambda preset: (
            kind_of(preset.engine).plain_kv
            if preset.options.kv in (None, "auto", "f16")
            else preset.options.kv
        ),
        lambda preset, kv: with_options(
            preset, kv=None if kv == kind_of(preset.engine).plain_kv else kv
        ),
    ),
    "kv_layout": _option(
        "kv_layout", lambda preset: "unified" if kind_of(preset.engine).one_cache else "split"
    ),
    "flash_attention": _option("flash_attention", lambda _: True),
    "batched_tokens": _option(
        "batched_tokens",
        lambda preset: MICRO_BATCH if kind_of(preset.engine).weights == "gguf" else _CHUNK,
    ),
    "batch": _option("batch", lambda preset: max(_BATCH, preset.options.batched_tokens or 0)),
    "chunked_prefill": _option("chunked_prefill", lambda _: True),
    "prefix_cache": _option("prefix_cache", lambda _: None),
    "threads": Handle(
        lambda preset: preset.threads, lambda preset, count: replace(preset, threads=count)
    ),
    "threads_batch": _option("threads_batch", lambda preset: preset.threads),
    "kv_ram": _option("kv_ram", lambda preset: kind_of(preset.engine).usual_kv_ram),
}


SHARES = (0.8, 0.85, 0.9, 0.92, 0.95)
MTP_DEPTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8)
NGRAM_DEPTHS = (0, 1, 2, 3, 4, 6, 8)
_CHUNKS = (256, 16384)


def card_knobs(context: KnobContext) -> Iterator[Knob]:
    base = context.base
    cards = context.box.cards
    yield Knob("graphs", "CUDA graphs" if cards else "graphs", (False, True), expected=0.5)
    yield context.slots()
    if cards:
        yield Knob("memory_share", "share of each card", SHARES, ordered=True, expected=0.03)
        # Of a family that the base has already, the base's own word is enough.
        engine = base.engine
        base_kv = known_kv(base.options.kv or "auto")
        if context.quant is not None:
            kinds = offered_kv(engine, context.quant, cards)[1:]
        else:
            kinds = ()
        others = [kind.id for kind in kinds if base_kv is None or kind.family != base_kv.family]
        words = dict.fromkeys(
            [kind_of(engine).plain_kv, *(kind_of(engine).kv_words.get(kv, kv) for kv in others)]
        )
        yield Knob("kv", "KV type", tuple(words), alters_answers=True, expected=0.04)
        yield from layout_knobs(context)
    yield Knob(
        "batched_tokens",
        "prefill tokens a step",
        context.prompts(*_CHUNKS),
        ordered=True,
        expected=0.04,
    )
    if base.options.draft is not None:
        drafted = base.options.draft.method
    else:
        drafted = None
    if drafted == "mtp" or (context.model is not None and context.model.mtp_layers):
        yield Knob("mtp", "MTP drafts", MTP_DEPTHS, ordered=True, expected=0.5)
    yield context.ngram(NGRAM_DEPTHS)


LLAMA_NGRAM_DEPTHS = (0, 2, 4, 8, 16, 32)
_MICRO_BATCH_RANGE = (64, 1024)
_ON_CARDS = (256, 2048)  # the same


def llama_knobs(context: KnobContext) -> Iterator[Knob]:
    base = context.base
    on_cpu = kind_of(context.base.engine).part_of_skep or not context.box.cards
    yield context.slots(expected=0.4 if on_cpu else 0.15)
    if on_cpu:
        cores = max(1, context.box.cores)
        # Each has a core to itself.
        replicas = tuple(n for n in (1, 2, 4) if n <= min(cores, context.aim.concurrency))
        steps = tuple(sorted({step for step in _STEPS if step <= cores} | {cores}))
        yield Knob("threads", "threads of a replica", steps, ordered=True, expected=0.4)
        yield Knob("replicas", "replicas", replicas, ordered=True, expected=0.1)
    yield Knob(
        "kv",
        "KV type",
        (kind_of(base.engine).plain_kv, "q8_0"),
        alters_answers=True,
        expected=0.04,
    )
    yield Knob("kv_layout", "KV layout", ("unified", "split"), expected=0.05)
    yield Knob("flash_attention", "flash attention", (True, False), expected=0.06)
    micro_batch = context.prompts(*(_MICRO_BATCH_RANGE if on_cpu else _ON_CARDS))
    yield Knob("batched_tokens", "micro-batch", micro_batch, ordered=True, expected=0.05)
    yield context.ngram(LLAMA_NGRAM_DEPTHS)
    if on_cpu:
        return
    yield from layout_knobs(context)
    # Whether the file has the layers for it, the preset knows.
    if base.options.draft is not None and base.options.draft.method == "mtp":
        yield Knob("mtp", "MTP drafts", (0, 1, 2, 3, 4, 5, 6, 8), ordered=True, expected=0.3)


# What matters to sessions; the others are turned where they are named.
SESSION_KNOBS = ("kv_ram", "kv", "batched_tokens", "slots", "memory_share")
_RAM_SHARE = 0.75  # of the free memory, for KV
_RAM_SIZES = 3
_LEAST_KV_BYTES = 1.0  # of a value: fewer bits cost agents their tool calls


def most_kv_ram(free_ram_gib: float | None, replicas: int) -> int:
    """Return how many GiB of memory each replica may take for KV."""
    return int(_RAM_SHARE * (free_ram_gib or USUAL_RAM_GIB) / replicas)


def _session_knobs(context: KnobContext, knobs: Iterable[Knob]) -> Iterator[Knob]:
    """Yield the knobs for sessions: KV in RAM first, and KV types of 8 bits at least."""
    base = context.base
    shares_memory = any(card.unified_memory for card in context.box.cards)
    if kind_of(base.engine).takes("kv_ram") and not shares_memory:
        most_gib = most_kv_ram(context.box.free_ram_gib, base.replicas)
        sizes = [1 << place for place in range(16) if 1 << place <= most_gib]
        values = (0, *sizes[-_RAM_SIZES:])
        yield Knob("kv_ram", "GiB of RAM for KV", values, ordered=True, expected=0.3)
    for knob in knobs:
        if knob.name == "kv":
            yield replace(knob, values=tuple(filter(_has_eight_bits, knob.values)))
        else:
            yield knob


def _has_eight_bits(word: Value) -> bool:
    kind = known_kv(str(word))
    return kind is None or kind.bytes >= _LEAST_KV_BYTES


def space_of(base: Preset, aim: TuneGoal, box: TuneMachine) -> tuple[Knob, ...]:
    """Return the knobs of a preset on a machine.

    What the preset's own flags say is left alone: turning it as well would put both on one command
    line.
    """
    model = box.model or find_geometry(base.model)
    knob_context = KnobContext(base, aim, box, model, quant_of(base))
    fixed = said_in_extra(base)
    offered: Iterable[Knob] = _offered(knob_context)
    if aim.sessions is not None:
        offered = _session_knobs(knob_context, offered)
    knobs = (with_own(knob, base) for knob in offered if knob.name not in fixed)
    return tuple(knob for knob in knobs if len(knob.values) > 1)


@cache
def _facts() -> dict[str, Any]:
    return tomllib.loads(files("skep.tuner").joinpath("knobs.toml").read_text(encoding="utf-8"))


def pairs_of(knobs: Iterable[Knob]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of these knobs that interact."""
    names = {knob.name for knob in knobs}
    return tuple(
        (first, second) for first, second in _facts()["pairs"] if {first, second} <= names
    )


def said_in_extra(base: Preset) -> set[str]:
    """Return the knobs that flags of the preset's own say already."""
    rules = _facts()
    names = set[str]()
    for word in base.extra:
        flag = word.partition("=")[0]
        if flag in rules["speculative"].get(base.engine, ()):
            names |= {*DRAFTS}
        names.add(rules["flags"].get(base.engine, {}).get(flag, ""))
    return names


def with_own(knob: Knob, base: Preset) -> Knob:
    """Return the knob with the base's value among its own: the search begins there."""
    base_value = knob_value(base, knob.name)
    if base_value is None or base_value in knob.values:
        return knob
    values: tuple[Value, ...] = (base_value, *knob.values)
    if knob.ordered:
        values = tuple(sorted(values, key=_rung))
    return replace(knob, values=values)


def _rung(value: Value) -> float:
    """Return the place of a value on its ladder."""
    if isinstance(value, int | float):
        return float(value)
    return 0.0


def _offered(context: KnobContext) -> Iterator[Knob]:
    base = context.base
    kind = kind_of(context.base.engine)
    if kind.weights == "checkpoint":
        yield from card_knobs(context)
    elif kind.weights == "gguf":
        yield from llama_knobs(context)
    elif kind.weights == "store":
        yield context.slots()
        yield Knob("kv", "KV type", (kind.plain_kv, "q8_0"), alters_answers=True, expected=0.03)
    # One that needs a model of its own is turned only where the preset names it.
    draft = base.options.draft
    if draft is not None and draft.method not in ("mtp", "ngram"):
        yield Knob(
            draft.method,
            f"drafts by {draft.method}",
            (0, 1, 2, 3, 4, 5, 6, 8),
            ordered=True,
            expected=0.2,
        )
