"""The preset that a search begins with, and the preset of the user's own that its best becomes.

It begins with a preset whose numbers are said, or of a model with what the planner recommends, or
what is certain to start: the best plan without graphs and drafts, with KV in 16 bits, 85 % of each
card and one replica. On a CPU: one slot, all cores, the rest as the engine has it. Measures
nothing.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device, devices, find_device
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.presets import NO_CARDS, EngineOptions, Preset, Published, own_name
from skep.catalog.session_shapes import find_shape
from skep.config.presets import (
    check_name,
    contradictions,
    parse_preset,
    preset_toml,
    presets_folder,
)
from skep.deploy.commands import checkpoint_name, options_of_setup
from skep.deploy.plan_request import check_flags, with_window
from skep.errors import SkepError, UserError
from skep.files import write_whole
from skep.paths import Paths
from skep.planner.candidates import Pins, arranged
from skep.planner.choose import Plan, choose
from skep.planner.memory import defaults, smallest
from skep.planner.ranking import BasisOf, published_basis
from skep.planner.rules import capability
from skep.planner.setup import KV_TYPES, Quant, Rig, Setup
from skep.planner.would_fit import fits_nowhere
from skep.tuner.knobs import MICRO_BATCH, TuneMachine, apply_config
from skep.tuner.records import TuneGoal, TuneStage, Tuning, changes_words
from skep.tuner.session_load import plan_goal_of
from skep.tuner.store import TuningRecord, TuningStore, base_of
from skep.tuner.summary import accepted, best_of, figure_words, unit_of

SHARE = 0.85  # of each card
# at least, unless the model holds less: a preset for the goal's tasks alone is of little use
USUAL_CONTEXT = 2048
SLOTS = 4  # where nobody knows what fits
_TEMPLATE = 64  # tokens that a chat template puts around a prompt
_SOURCE = "skep tune"
_CRASHED_ON = 8.6  # custom all-reduce, while graphs were captured


def prepared(preset: Preset, aim: TuneGoal, box: TuneMachine) -> Preset:
    """Return the preset with room for the goal's tasks, and with the numbers stated that another
    version of the engine may choose otherwise.
    """
    model = box.model or find_geometry(preset.model)
    preset = replace(preset, context_tokens=needed_context(aim, model, preset.context_tokens))
    options = preset.options
    cards = box.cards
    if kind_of(preset.engine).weights == "gguf":
        options = replace(options, batched_tokens=options.batched_tokens or MICRO_BATCH)
        if kind_of(preset.engine).part_of_skep or not cards:
            threads = preset.threads or max(1, box.cores // preset.replicas)
            preset = replace(preset, threads=threads)
        else:
            is_free = options.split is None and not preset.gpus
            if is_free and len(cards) > 1 and preset.replicas * options.cards == 1:
                # By itself it takes all cards that it sees.
                options = replace(options, pp=len(cards))
    elif kind_of(preset.engine).has_pool and cards:
        usual = defaults(preset.engine, smallest(cards))
        options = replace(
            options,
            memory_share=options.memory_share or usual.utilization,
            batched_tokens=options.batched_tokens or usual.batched_tokens,
        )
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
    others: Sequence[str] = (),
    basis_of: BasisOf = published_basis,
) -> Preset:
    """Return the preset that a search of a model begins with.

    `quant` None: it is chosen. `simulated`: no checkpoint is needed, and the format is a setting
    like others. `planned`: it begins with the first layout of `skep plan`, of this engine or one
    of the others, instead of where it is safe.
    """
    geometry = box.model or find_geometry(model)
    if not box.cards or kind_of(engine).part_of_skep:
        return prepared(_of_cpu(model, geometry, aim, engine, checkpoint or model), aim, box)
    if geometry is None:
        hint = "describe how it starts with `skep presets new NAME`, and tune that preset"
        raise UserError(
            f"`{model}` is not in the catalogue, so skep knows no safe start for it", hint=hint
        )
    assert box.rig is not None
    rig, _ = arranged(box.rig)
    if planned:
        plans = _planned(geometry, rig, aim, (engine, *others), quant, basis_of)
    else:
        plans = _plain_plans(geometry, rig, aim, engine, quant)
    if checkpoint is None and not simulated:
        checkpoint = plans[0].checkpoint
        if checkpoint is None:
            hint = (
                f"name it: skep tune {model} --checkpoint ORG/NAME, or a folder, or a .gguf file"
            )
            raise UserError(f"which checkpoint of `{model}` should be tuned?", hint=hint)
    presets = [_of_setup(plan.setup, rig, model, checkpoint) for plan in plans]
    chosen = next((preset for preset in presets if not contradictions(preset)), presets[0])
    if not simulated:  # the engine finds it in the checkpoint
        chosen = replace(chosen, options=replace(chosen.options, quant=None))
    return prepared(chosen, aim, box)


def _of_cpu(
    model: str, geometry: Geometry | None, aim: TuneGoal, engine: str, weights: str
) -> Preset:
    alone = kind_of(engine).weights == "gguf"
    return Preset(
        name=_plain(model),
        title=f"{model} on this machine's CPU, with plain settings",
        engine=engine,
        model=_called(geometry, weights),
        checkpoint=weights,
        served_as=model,
        hardware=NO_CARDS,
        source=_SOURCE,
        slots=1 if alone else min(aim.concurrency, SLOTS),
        options=EngineOptions() if alone else EngineOptions(graphs=False),
    )


def needed_context(
    aim: TuneGoal, model: Geometry | None, preset_context: int | None = None
) -> int:
    """Return the tokens of one slot: a task with what a chat template adds, what was asked for,
    and the preset's context or the usual one.
    """
    if aim.sessions is not None:
        least_window = find_shape(aim.sessions.load).least_window_tokens
        window = preset_context or aim.sessions.window_tokens
        return max(window, least_window, aim.min_context or 0)
    task = aim.input_tokens + aim.output_tokens
    max_context = None
    name = ""
    if model is not None:
        max_context = model.max_context
        name = model.id
    if max_context is not None and task > max_context:
        hint = "lower --prompt-tokens or --output-tokens"
        raise UserError(
            f"a task of {task} tokens is beyond the {max_context} that {name} was made for",
            hint=hint,
        )
    if max_context is not None and (aim.min_context or 0) > max_context:
        hint = f"use --min-context {max_context} at most"
        raise UserError(
            f"--min-context {aim.min_context} is beyond the {max_context} tokens of {name}",
            hint=hint,
        )
    need = ceil((task + _TEMPLATE) / 256) * 256
    return max(
        min(need, max_context or need),
        aim.min_context or 0,
        preset_context or min(USUAL_CONTEXT, max_context or USUAL_CONTEXT),
    )


def _plain_plans(
    model: Geometry, rig: Rig, aim: TuneGoal, engine: str, quant: Quant | None
) -> Sequence[Plan]:
    """Return what the planner recommends of what is plain, best first.

    Format and layout are those that are best with CUDA graphs, which a search turns on: without
    them most of a small model's are launched equally slowly.
    """
    pooled = kind_of(engine).has_pool
    share = SHARE if pooled else None
    pins = Pins(
        quant=quant,
        context=needed_context(aim, model),
        replicas=1,
        no_spec=True,
        kv=KV_TYPES["bf16"],
        utilization=share,
    )
    plans = _fitting(model, rig, aim, (engine,), pins, published_basis)
    if not pooled:
        return plans
    best = plans[0].setup
    eager = replace(
        pins,
        quant=best.quant,
        tp=best.layout.tp,
        pp=best.layout.pp,
        ep=best.layout.ep,
        graphs=False,
    )
    return _fitting(model, rig, aim, (engine,), eager, published_basis)


def _planned(
    model: Geometry,
    rig: Rig,
    aim: TuneGoal,
    engines: Sequence[str],
    quant: Quant | None,
    basis_of: BasisOf,
) -> Sequence[Plan]:
    """Return the layouts of `skep plan` for the goal, best first, with a context that other
    layouts can have, too.
    """
    pins = Pins(quant=quant, context=aim.min_context, vision=False)
    plans = _fitting(model, rig, aim, engines, pins, basis_of)
    enough = needed_context(aim, model)
    return [_with_context(plan, enough) for plan in plans]


def _with_context(plan: Plan, tokens: int) -> Plan:
    setup = replace(plan.setup, context=min(plan.setup.context or tokens, tokens))
    return replace(plan, rated=replace(plan.rated, setup=setup))


def _fitting(
    model: Geometry, rig: Rig, aim: TuneGoal, engines: Sequence[str], pins: Pins, basis_of: BasisOf
) -> Sequence[Plan]:
    goal = plan_goal_of(aim)
    check_flags(rig, goal, pins, model)
    if aim.sessions is None:
        choice = choose(model, rig, goal, pins, engines=engines, basis_of=basis_of)
    else:
        chosen = partial(
            choose, model, rig, pins=pins, engines=engines, basis_of=basis_of, all_levels=False
        )
        choice = with_window(chosen, goal)
    if not choice.plans:
        raise fits_nowhere(model, choice, goal, pins, engines[0])
    return choice.plans


def _of_setup(setup: Setup, rig: Rig, model: str, checkpoint: str | None) -> Preset:
    options = replace(options_of_setup(setup, rig), quant=setup.quant.id)
    crashes = any(capability(card) == _CRASHED_ON for card in rig.cards)
    if crashes and kind_of(setup.engine).takes("custom_all_reduce") and len(rig.cards) > 1:
        # Means nothing on one card, and layouts come and go.
        options = replace(options, custom_all_reduce=False)
    counted = Counter(map(_in_catalogue, rig.cards))
    cards = " + ".join(
        f"{count}x {name}" if count > 1 else name for name, count in counted.items()
    )
    others = dict.fromkeys(
        (_in_catalogue(card), card.title) for card in rig.cards if _in_catalogue(card) != card.id
    )
    notes = [
        f"`hardware` says {name} for {title}, which is not in the catalogue"
        for name, title in others
    ]
    return Preset(
        name=_plain(model),
        title=f"{model} on {rig.title}, where a search begins",
        engine=setup.engine,
        model=_called(setup.model, checkpoint or model),
        checkpoint=checkpoint or checkpoint_name(setup),
        served_as=model,
        hardware=cards,
        source=_SOURCE,
        slots=setup.slots or 1,
        context_tokens=setup.context,
        replicas=setup.layout.replicas,
        options=options,
        stand_in=checkpoint is None,
        notes=tuple(notes),
    )


def _in_catalogue(card: Device) -> str:
    """Return its own name there, or that of the relative whose speeds it was given."""
    if find_device(card.id) is not None:
        return card.id
    same = (card.vendor, card.compute_capability, card.bandwidth_gbs)
    alike = [
        d for d in devices().values() if (d.vendor, d.compute_capability, d.bandwidth_gbs) == same
    ]
    if alike:
        return min(alike, key=lambda d: abs(d.memory_gib - card.memory_gib)).id
    return card.id


def _called(geometry: Geometry | None, checkpoint: str) -> str:
    """Return the name of a preset's model: the catalogue's, or that of its checkpoint."""
    if geometry is not None and find_geometry(geometry.id) is not None:
        return geometry.id
    return own_name(checkpoint)


def _plain(model: str) -> str:
    return f"{model.rpartition('/')[2].removesuffix('.gguf').lower()}-plain"


LONGEST_NAME = 80


def tuned_preset(tuning: Tuning, stage: TuneStage, name: str) -> Preset:
    """Return the stage's configuration as a preset, with what it was measured as.

    The figures of the base's author are not its own.
    """
    base = base_of(tuning)
    day = datetime.fromtimestamp(tuning.created_at, UTC).date().isoformat()
    mark = "SIMULATED, " if tuning.simulated else ""
    notes = [
        f"{mark}tuned for {tuning.aim} ({tuning.aim.shape}) on {tuning.rig}",
        f"against the baseline: {changes_words(stage.config, tuning.baseline)}",
    ]
    published: tuple[Published, ...] = ()
    if stage.figure is not None:
        if tuning.simulated:
            how = "SIMULATED, not measured"
        else:
            how = "measured"
        notes.append(f"{how}: {figure_words(stage.figure)} {unit_of(tuning)}, 95 % interval")
        # What a sweep can be held against.
        if not tuning.simulated and tuning.aim.metric == "effective_tok_s":
            load = (tuning.aim.concurrency, tuning.aim.input_tokens, tuning.aim.output_tokens)
            measured = Published(stage.figure.estimate, "output", *load, "client")
            published = (replace(measured, ttft_ms=stage.ttft_ms, tpot_ms=stage.tpot_ms),)
    return replace(
        apply_config(base, stage.config),
        name=name,
        title=f"{tuning.model}, {mark}tuned for {tuning.aim}",
        source=f"skep tune {tuning.id}, skep {tuning.skep_version}",
        date=day,
        published=published,
        notes=(*notes, *base.notes),
        origin="",
    )


def write_preset(
    record: TuningRecord, name: str, paths: Paths, *, overwrite: bool = False
) -> tuple[Path, TuneStage]:
    """Write the best into the user's folder, where `skep up NAME` finds it; return the file and
    the stage.

    What could not be read back is not written.
    """
    folder = presets_folder(paths)
    tuning = record.tuning
    path = folder / f"{check_name(name)}.toml"
    best = best_of(record.stages)
    if best is None:
        hint = f"`skep tune show {tuning.id}` says why"
        raise UserError(
            f"tuning `{tuning.id}` has measured nothing that could be exported", hint=hint
        )
    text = preset_toml(tuned_preset(tuning, best, name))
    try:
        parse_preset(text, name, str(path))
    except UserError as error:
        why = error.message.rpartition(f"{path}:")[2]
        raise SkepError(f"this configuration cannot be a preset: {why}", hint=error.hint) from None
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists() and not overwrite:
        raise UserError(f"`{path}` already exists", hint="choose another name, or add --overwrite")
    write_whole(path, text)
    return path, best


def save_best(tunings: TuningStore, record: TuningRecord, paths: Paths) -> str | None:
    """Write the best as a preset and return its name; None: nothing was better, or it is
    simulated.
    """
    if record.tuning.simulated or not accepted(record.stages):
        return None
    name = preset_name(record.tuning)
    # The id is in its name: it is of this tuning.
    _, best = write_preset(record, name, paths, overwrite=True)
    if name not in record.presets:
        tunings.append_preset(record.id, name, time.time(), stage=best.number)
    return name


def preset_name(tuning: Tuning) -> str:
    """Return `MODEL-tuned-ID`."""
    ending = f"-tuned-{tuning.id}"
    if "/" in tuning.model:
        model = Path(tuning.model).stem
    else:
        model = tuning.model
    plain = re.sub(r"[^a-z0-9._-]+", "-", model.lower()).strip(".-_")
    return f"{plain[: LONGEST_NAME - len(ending)] or 'model'}{ending}".lower()
