"""What `skep tune NAME` stands for: the preset to begin with, the machine it is tuned on, and what is known of both.

As `skep up NAME` would choose; only that it begins where it is safe, not where it is fastest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from skep.catalog.machine import HostFacts
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.needs import NO_CARDS
from skep.catalog.presets import Preset
from skep.catalog.pullable import find_pullable
from skep.cli.resolve import (
    ENGINES,
    ServeOptions,
    check_cards,
    is_for_embedded,
    own_checkpoint,
    parse_gpus,
    unknown_name,
)
from skep.config.presets import find_preset, presets_folder
from skep.deploy.plan_request import ModelFound, PlanFlags, engines_of, own_basis, read_model
from skep.deploy.stored_calibration import calibrated_rig
from skep.errors import UserError
from skep.host.facts import memory_bandwidth_gbs, read_host
from skep.paths import user_paths
from skep.planner.candidates import offered_quants
from skep.planner.quants import Quant
from skep.planner.ranking import Basis, published_basis
from skep.planner.rigs import ResolvedRig, cpu_rig, find_rig, rig_of_host
from skep.planner.setup import Rig
from skep.tuner.baselines import baseline_of, prepared
from skep.tuner.knobs import TuneMachine, quant_of
from skep.tuner.records import TuneGoal
from skep.weights.pull import installed

SIMULATED_ENGINES = ("vllm", "sglang", "llamacpp")
OWN_WORDS = ("resume", "show", "export", "ls", "rm")


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The flags of `skep tune`, as they were typed. `bandwidth`: of a CPU's memory, measured when it began."""

    name: str
    goal: str = "effective_tok_s@4"
    slo: str | None = None
    min_context: int | None = None
    budget: str = "1h"
    input_tokens: int = 512
    output_tokens: int = 128
    engine: str | None = None
    checkpoints: tuple[str, ...] = ()
    knobs: str | None = None
    skip: str | None = None
    start: tuple[str, ...] = ()
    gpus: str | None = None
    binary: str | None = None
    quality: str = "auto"
    quality_items: int | None = None
    in_place: bool = False
    gpu: str | None = None
    link: str | None = None
    simulate: bool = False
    seed: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class TuneTarget:
    """`quants`: formats to choose from, where nothing is really loaded."""

    base: Preset
    box: TuneMachine
    rig_words: str
    basis: Basis
    quant: Quant | None = None
    quants: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bandwidth: float | None = None

    @property
    def rig(self) -> Rig | None:
        return self.box.rig

    @property
    def model(self) -> Geometry | None:
        return self.box.model


def find_tune_target(wishes: TuneOptions, aim: TuneGoal, host: HostFacts) -> TuneTarget:
    _check_engine(wishes)
    preset = find_preset(wishes.name, presets_folder(user_paths(os.environ)))
    if preset is not None and wishes.engine not in (None, preset.engine):
        hint = f"`skep presets new NAME --from {preset.name}` makes one of your own to change"
        raise UserError(f"--engine would make another recipe of the preset `{preset.name}`", hint=hint)
    if wishes.simulate:
        _check_simulated(wishes, preset)
        return _simulated(wishes, aim, preset)
    for flag, value in (("--gpu", wishes.gpu), ("--link", wishes.link if not host.gpus else None)):
        if value is not None:
            raise UserError(f"{flag} is of a rig that is not here", hint="add --simulate, or leave it out")
    return _here(wishes, aim, preset, host)


def _check_engine(wishes: TuneOptions) -> None:
    known = SIMULATED_ENGINES if wishes.simulate else ENGINES
    if wishes.engine is not None and wishes.engine not in known:
        raise UserError(f"there is no engine `{wishes.engine}` to tune", hint=f"known: {', '.join(known)}")


# A rig that is not here


def _check_simulated(wishes: TuneOptions, preset: Preset | None) -> None:
    """What is of this machine, or of weights that are really loaded, would be asked for in vain."""
    guarded = wishes.quality not in ("auto", "off")
    real = {"--gpus": wishes.gpus, "--binary": wishes.binary, "--in-place": wishes.in_place, "--quality": guarded}
    flag = next((flag for flag, value in real.items() if value), None)
    if flag is not None:
        raise UserError(f"{flag} means nothing with --simulate: no engine is started", hint=f"leave {flag} out")
    if wishes.checkpoints and preset is None:
        hint = "leave it out: the formats of its weights are the knob `quant`"
        raise UserError(f"--checkpoint {wishes.checkpoints[0]}: with --simulate no weights are loaded", hint=hint)


def _simulated(wishes: TuneOptions, aim: TuneGoal, preset: Preset | None) -> TuneTarget:
    words = wishes.gpu or (preset.hardware if preset is not None and preset.hardware != NO_CARDS else None)
    found = _simulated_rig(words, wishes.link or (preset.link if preset is not None and not wishes.gpu else None))
    box = TuneMachine(rig=found.rig)
    if preset is not None:
        if preset.engine not in SIMULATED_ENGINES:
            hint = f"tune it where it runs, or a model with --engine {SIMULATED_ENGINES[0]}"
            raise UserError(f"the preset `{preset.name}` runs on {preset.engine}, which is not simulated", hint=hint)
        base = prepared(preset, aim, box)
        return TuneTarget(base, box, found.rig.title, published_basis(preset.engine), notes=found.notes)
    model = _model(wishes.name)
    box = replace(box, model=model.geometry)
    engine = wishes.engine or engines_of(PlanFlags(wishes.name), model, found)[0]
    base = baseline_of(wishes.name, aim, box, engine=engine, quant=model.quant, simulated=True)
    offered = tuple(quant.id for quant in offered_quants(model.geometry, engine, found.rig.cards))
    own = base.options.quant
    quants = (own, *(one for one in offered if one != own)) if own is not None and model.quant is None else ()
    notes = (*model.notes, *found.notes)
    return TuneTarget(base, box, found.rig.title, published_basis(engine), quant_of(base), quants, notes)


def _simulated_rig(words: str | None, link: str | None) -> ResolvedRig:
    if words is not None:
        return find_rig(words, link)
    host = read_host()
    if not host.gpus:
        hint = 'name it: --gpu "2x rtx-3090" --simulate'
        raise UserError("which rig is to be simulated? This machine has no GPU", hint=hint)
    return rig_of_host(host, link)


# This machine


def _here(wishes: TuneOptions, aim: TuneGoal, preset: Preset | None, host: HostFacts) -> TuneTarget:
    if preset is not None:
        check_cards(preset)
        return _on(wishes, aim, host, preset.engine, preset)
    wanted = ServeOptions(wishes.name, engine=wishes.engine, checkpoint=_first(wishes), binary=wishes.binary)
    if is_for_embedded(wanted):
        return _on(wishes, aim, host, "embedded", None)
    if wishes.engine is None and not host.gpus:
        raise _unknown(wishes.name)
    return _on(wishes, aim, host, wishes.engine, None)


def _on(wishes: TuneOptions, aim: TuneGoal, host: HostFacts, engine: str | None, preset: Preset | None) -> TuneTarget:
    """`engine` None: as a plan for these cards would choose."""
    cards = parse_gpus(wishes.gpus)
    on_cards = bool(host.gpus) and engine != "embedded" and (preset is None or preset.hardware != NO_CARDS)
    if cards and not on_cards:
        raise UserError(f"--gpus {wishes.gpus}: it runs on no card", hint="leave --gpus out")
    if aim.metric == "tok_per_joule" and not on_cards:
        hint = "aim at effective_tok_s or task_tok_s"
        raise UserError("--goal tok_per_joule: nothing here tells what a CPU draws", hint=hint)
    model = None if preset is not None else _own_model(wishes, engine)
    found = _cards(host, cards, wishes.link) if on_cards else _cpu(host, wishes.bandwidth)
    box = TuneMachine(host.cpu_cores, found.rig, model.geometry if model is not None else None)
    if preset is not None:
        base = prepared(preset if not cards else replace(preset, gpus=cards), aim, box)
    else:
        assert model is not None or engine is not None
        engine = engine or engines_of(PlanFlags(wishes.name), model or _model(wishes.name), found)[0]
        base = _safe(wishes, aim, box, engine, model, cards)
    bandwidth = found.rig.cards[0].bandwidth_gbs if not on_cards else None
    basis = own_basis(user_paths(os.environ).store, base.model, None)(_planned_engine(base.engine))
    words = found.rig.title if on_cards else f"this machine's CPU ({host.cpu_cores} cores)"
    notes = (*(model.notes if model is not None else ()), *found.notes, *((basis.note,) if basis.note else ()))
    return TuneTarget(base, box, words, basis, model.quant if model is not None else None, (), notes, bandwidth)


def _safe(
    wishes: TuneOptions, aim: TuneGoal, box: TuneMachine, engine: str, model: ModelFound | None, cards: tuple[int, ...]
) -> Preset:
    """By the name it is served as: of a file its own name, without the folders."""
    path = wishes.name.endswith(".gguf") or (model is not None and model.checkpoint == wishes.name)
    checkpoint = _first(wishes) or own_checkpoint(wishes.name)
    quant = model.quant if model is not None else None
    base = baseline_of(wishes.name, aim, box, engine=engine, checkpoint=checkpoint, quant=quant)
    if path:
        served = wishes.name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
        base = replace(base, served_as=served)
    return replace(base, gpus=cards) if cards else base


def _own_model(wishes: TuneOptions, engine: str | None) -> ModelFound | None:
    """What is known of it. None: its engine is named, and may know it where skep does not."""
    if (pulled := find_pullable(wishes.name)) is not None:
        path = installed(pulled.id, user_paths(os.environ).cache)
        geometry = find_geometry(pulled.id)
        if path is None:
            return None if geometry is None else ModelFound(geometry)
        read = read_model(str(path))
        return replace(read, geometry=geometry or read.geometry, notes=())
    try:
        return _model(_first(wishes) if find_geometry(wishes.name) is None and _first(wishes) else wishes.name)
    except UserError:
        if engine is None or _is_path(wishes.name) or not ("/" in wishes.name or engine == "ollama"):
            raise
        return None


def _model(name: str | None) -> ModelFound:
    assert name is not None
    try:
        return read_model(name)
    except UserError as error:
        if _is_path(name):
            raise
        raise _unknown(name, error.hint) from None


def _unknown(name: str, otherwise: str | None = None) -> UserError:
    """Also where somebody mistyped one of `skep tune`'s own words."""
    if close := get_close_matches(name, OWN_WORDS, n=1, cutoff=0.7):
        return UserError(f"`{name}` is no preset and no model", hint=f"did you mean `skep tune {close[0]}`?")
    error = unknown_name(name)
    if otherwise and find_geometry(name) is None:
        error.hint = otherwise
    return error


def absolute_paths(wishes: TuneOptions) -> TuneOptions:
    """The preset is started, and the tuning taken up again, from any folder."""
    return replace(wishes, name=_whole(wishes.name), checkpoints=tuple(map(_whole, wishes.checkpoints)))


def _whole(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.absolute()) if _is_path(name) and path.exists() else name


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~/")) or name.endswith(".gguf")


def _first(wishes: TuneOptions) -> str | None:
    return wishes.checkpoints[0] if wishes.checkpoints else None


def _cards(host: HostFacts, wanted: tuple[int, ...], link: str | None) -> ResolvedRig:
    if not wanted:
        return rig_of_host(host, link)
    there = [gpu.index for gpu in host.gpus]
    missing = next((index for index in wanted if index not in there), None)
    if missing is not None:
        raise UserError(f"there is no card {missing} here", hint=f"there are {', '.join(map(str, there))}")
    place = {index: wanted.index(index) for index in wanted}
    links = tuple((place[a], place[b], kind) for a, b, kind in host.links if a in place and b in place)
    gpus = tuple(gpu for index in wanted for gpu in host.gpus if gpu.index == index)
    return rig_of_host(replace(host, gpus=gpus, links=links), link)


def _cpu(host: HostFacts, bandwidth: float | None) -> ResolvedRig:
    """As it was calibrated; else by its memory's speed, which is measured in a moment."""
    known = calibrated_rig(user_paths(os.environ).store, host) if bandwidth is None else None
    if known is not None and known.cards[0].vendor == "cpu":
        return ResolvedRig(replace(known, cards=known.cards[:1]))
    speed = bandwidth or memory_bandwidth_gbs(host.cpu_cores)
    return ResolvedRig(cpu_rig(host, speed, measured=bandwidth is None))


def _planned_engine(engine: str) -> str:
    return "llamacpp" if engine == "embedded" else engine


def options_from_document(document: Mapping[str, Any]) -> TuneOptions:
    """The inverse of `asdict(wishes)`, through JSON."""
    lists = {name: tuple(document.get(name, ())) for name in ("checkpoints", "start")}
    return TuneOptions(**{**document, **lists})
