"""Where a search begins: a preset with its numbers said, or of a model what is certain to start.

Plainly safe on cards: no graphs, no drafts, KV in 16 bits, 85 % of each card, tensor parallel over as few cards as it
takes, one replica, slots as far as they fit. On a CPU: one slot, all cores, the rest as the engine has it.
"""

from __future__ import annotations

from collections import Counter
from math import ceil

from msgspec.structs import replace

from skep.catalog.gpus import Device, devices, find_device
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.presets import NO_CARDS, EngineOptions, Preset, own_name
from skep.config.presets import contradictions
from skep.deploy.commands import checkpoint_name, options_of_setup
from skep.deploy.plan_request import check_flags
from skep.errors import UserError
from skep.planner.candidates import Pins, PlanGoal, arranged
from skep.planner.choose import Plan, bases, choose, fits_nowhere
from skep.planner.fit import smallest
from skep.planner.memory import defaults
from skep.planner.quants import QUANTS, Quant
from skep.planner.rules import capability
from skep.planner.setup import Rig, Setup
from skep.tuner.knobs import LLAMA, TuneMachine, tokens_of
from skep.tuner.records import TuneGoal

SHARE = 0.85  # of each card
USUAL_CONTEXT = 2048  # at least, unless the model holds less: a preset for the goal's tasks alone is of little use
SLOTS = 4  # where nobody knows what fits
_TEMPLATE = 64  # tokens that a chat template puts around a prompt
_SOURCE = "skep tune"
_CRASHED_ON = 8.6  # custom all-reduce, while graphs were captured


def prepared(preset: Preset, aim: TuneGoal, box: TuneMachine) -> Preset:
    """With room for the goal's tasks, and with numbers said that another version of the engine may choose otherwise."""
    model = box.model or find_geometry(preset.model)
    preset = replace(preset, context_tokens=needed_context(aim, model, preset.context_tokens))
    options, cards = preset.options, box.cards
    if preset.engine in LLAMA:
        options = replace(options, batched_tokens=tokens_of(preset, "batched_tokens"), batch=tokens_of(preset, "batch"))
        if preset.engine == "embedded" or not cards:
            threads = preset.threads or max(1, box.cores // preset.replicas)
            preset = replace(preset, threads=threads)
            options = replace(options, threads_batch=options.threads_batch or threads)
        elif len(cards) > 1 and preset.replicas * options.cards == 1 and options.split is None and not preset.gpus:
            options = replace(options, pp=len(cards))  # by itself it takes all cards that it sees
    elif preset.engine in ("vllm", "sglang") and cards:
        usual = defaults(preset.engine, smallest(cards))
        options = replace(
            options, memory_share=options.memory_share or usual.utilization,
            batched_tokens=options.batched_tokens or usual.batched_tokens,
        )  # fmt: skip
    return replace(preset, options=options)


def baseline_of(
    model: str,
    aim: TuneGoal,
    box: TuneMachine,
    *,
    engine: str,
    checkpoint: str | None = None,
    quant: Quant | None = None,
    simulated: bool = False,
    planned: bool = False,
) -> Preset:
    """`quant` None: it is chosen. `simulated`: no checkpoint is needed, and the format is a setting like others.

    `planned`: it begins where the planner says, instead of where it is safe.
    """
    known = box.model or find_geometry(model)
    if not box.cards or engine == "embedded":
        alone, weights = engine in LLAMA, checkpoint or model
        plain = Preset(
            name=_plain(model), title=f"{model} on this machine's CPU, with plain settings", engine=engine,
            model=_called(known, weights), checkpoint=weights, served_as=model, hardware=NO_CARDS, source=_SOURCE,
            slots=1 if alone else min(aim.concurrency, SLOTS),
            options=EngineOptions() if alone else EngineOptions(graphs=False),
        )  # fmt: skip
        return prepared(plain, aim, box)
    if known is None:
        hint = "describe how it starts with `skep presets new NAME`, and tune that preset"
        raise UserError(f"`{model}` is not in the catalogue, so skep knows no safe start for it", hint=hint)
    assert box.rig is not None
    rig, _ = arranged(box.rig)
    best = _best_plan(known, rig, aim, engine, quant) if planned else None
    if best is not None and checkpoint is None and not simulated:
        checkpoint, quant = best.checkpoint, QUANTS[best.setup.quant.id]
    if checkpoint is None and not simulated:
        hint = f"name it: skep tune {model} --checkpoint ORG/NAME, or a folder, or a .gguf file"
        raise UserError(f"which checkpoint of `{model}` should be tuned?", hint=hint)
    first = [best.setup] if best is not None else []
    safe = [_of_setup(setup, rig, model, checkpoint) for setup in (*first, *_safe(known, rig, aim, engine, quant))]
    chosen = next((preset for preset in safe if not contradictions(preset)), safe[0])
    if not simulated:  # the engine finds it in the checkpoint
        chosen = replace(chosen, options=replace(chosen.options, quant=None))
    return prepared(chosen, aim, box)


def needed_context(aim: TuneGoal, model: Geometry | None, own: int | None = None) -> int:
    """Of one slot: a task with what a chat template adds, what was asked for, and the preset's own or the usual."""
    task = aim.input_tokens + aim.output_tokens
    most, name = (model.max_context, model.id) if model is not None else (None, "")
    if most is not None and task > most:
        hint = "lower --prompt-tokens or --output-tokens"
        raise UserError(f"a task of {task} tokens is beyond the {most} that {name} was made for", hint=hint)
    if most is not None and (aim.min_context or 0) > most:
        hint = f"use --min-context {most} at most"
        raise UserError(f"--min-context {aim.min_context} is beyond the {most} tokens of {name}", hint=hint)
    need = ceil((task + _TEMPLATE) / 256) * 256
    return max(min(need, most or need), aim.min_context or 0, own or min(USUAL_CONTEXT, most or USUAL_CONTEXT))


def _best_plan(model: Geometry, rig: Rig, aim: TuneGoal, engine: str, quant: Quant | None) -> Plan | None:
    """Return what the planner recommends for the goal."""
    goal = PlanGoal("throughput", aim.concurrency, aim.input_tokens, aim.output_tokens)
    pins = Pins(quant=quant, context=needed_context(aim, model))
    plans = choose(model, rig, goal, pins, engines=(engine,), scale=False).plans
    return plans[0] if plans else None


def _safe(model: Geometry, rig: Rig, aim: TuneGoal, engine: str, quant: Quant | None) -> list[Setup]:
    """Return the safest first: on as few cards as it takes, and of what fits there the format with the most bits."""

    def safety(setup: Setup) -> tuple[int, int, bool, float]:
        odd = setup.layout.tp if setup.engine == "llamacpp" else setup.layout.pp  # it splits by layers, others cut each
        return setup.layout.cards_each, odd, setup.kv.family != "half", -setup.quant.bits

    goal = PlanGoal("throughput", aim.concurrency, aim.input_tokens, aim.output_tokens)
    pooled = engine in ("vllm", "sglang")
    share = SHARE if pooled else None
    wanted = Pins(
        quant=quant, context=needed_context(aim, model), replicas=1, no_spec=True, graphs=not pooled, utilization=share
    )
    check_flags(rig, goal, wanted, model)
    for pins in (wanted, replace(wanted, utilization=None)):
        found, _ = bases(model, rig, goal, pins, engine, say_why=False)
        if cut := [setup for setup in found if setup.layout.ep == 1]:
            return sorted(cut, key=safety)
    raise fits_nowhere(model, choose(model, rig, goal, pins, engines=(engine,), scale=False), goal, pins, engine)


def _of_setup(setup: Setup, rig: Rig, model: str, checkpoint: str | None) -> Preset:
    options = replace(options_of_setup(setup, rig), quant=setup.quant.id)
    if setup.engine != "llamacpp" and len(rig.cards) > 1 and any(capability(c) == _CRASHED_ON for c in rig.cards):
        options = replace(options, custom_all_reduce=False)  # means nothing on one card, and layouts come and go
    counted = Counter(map(_in_catalogue, rig.cards))
    cards = " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counted.items())
    others = dict.fromkeys((_in_catalogue(card), card.title) for card in rig.cards if _in_catalogue(card) != card.id)
    notes = [f"`hardware` says {name} for {title}, which is not in the catalogue" for name, title in others]
    return Preset(
        name=_plain(model), title=f"{model} on {rig.title}, where a search begins", engine=setup.engine,
        model=_called(setup.model, checkpoint or model), checkpoint=checkpoint or checkpoint_name(setup),
        served_as=model, hardware=cards, source=_SOURCE, slots=setup.slots or 1,
        context_tokens=setup.context, replicas=setup.layout.replicas, options=options, stand_in=checkpoint is None,
        notes=tuple(notes),
    )  # fmt: skip


def _in_catalogue(card: Device) -> str:
    """Return its own name there, or that of the relative whose speeds it was given."""
    if find_device(card.id) is not None:
        return card.id
    same = (card.vendor, card.compute_capability, card.bandwidth_gbs)
    alike = [d for d in devices().values() if (d.vendor, d.compute_capability, d.bandwidth_gbs) == same]
    return min(alike, key=lambda d: abs(d.memory_gib - card.memory_gib)).id if alike else card.id


def _called(known: Geometry | None, checkpoint: str) -> str:
    """A preset's model is of the catalogue, or called as its checkpoint is."""
    return known.id if known is not None and find_geometry(known.id) is not None else own_name(checkpoint)


def _plain(model: str) -> str:
    return f"{model.rpartition('/')[2].removesuffix('.gguf').lower()}-plain"
