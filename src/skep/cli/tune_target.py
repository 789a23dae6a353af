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

from skep.catalog.gpus import HostFacts
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.needs import NO_CARDS
from skep.catalog.presets import Preset
from skep.catalog.pullable import find_pullable
from skep.cli.tune import TuneOptions
from skep.config.presets import find_preset, presets_folder
from skep.deploy.plan_request import ModelFound, PlanFlags, engines_of, own_basis, read_model
from skep.deploy.resolve import (
    ENGINES,
    ServeRequest,
    check_cards,
    is_for_embedded,
    own_checkpoint,
    parse_gpus,
    unknown_name,
)
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


def find_tune_target(options: TuneOptions, aim: TuneGoal, host: HostFacts) -> TuneTarget:
    _check_engine(options)
    preset = find_preset(options.name, presets_folder(user_paths(os.environ)))
    if preset is not None and options.engine not in (None, preset.engine):
        hint = f"`skep presets new NAME --from {preset.name}` makes one of your own to change"
        raise UserError(f"--engine would make another recipe of the preset `{preset.name}`", hint=hint)
    if options.simulate:
        _check_simulated(options, preset)
        return _simulated(options, aim, preset)
    for flag, value in (("--gpu", options.gpu), ("--link", options.link if not host.gpus else None)):
        if value is not None:
            raise UserError(f"{flag} is of a rig that is not here", hint="add --simulate, or leave it out")
    return _here(options, aim, preset, host)


def _check_engine(options: TuneOptions) -> None:
    known = SIMULATED_ENGINES if options.simulate else ENGINES
    if options.engine is not None and options.engine not in known:
        raise UserError(f"there is no engine `{options.engine}` to tune", hint=f"known: {', '.join(known)}")


# A rig that is not here


def _check_simulated(options: TuneOptions, preset: Preset | None) -> None:
    """What is of this machine, or of weights that are really loaded, would be asked for in vain."""
    guarded = options.quality not in ("auto", "off")
    real = {"--gpus": options.gpus, "--binary": options.binary, "--in-place": options.in_place, "--quality": guarded}
    flag = next((flag for flag, value in real.items() if value), None)
    if flag is not None:
        raise UserError(f"{flag} means nothing with --simulate: no engine is started", hint=f"leave {flag} out")
    if options.checkpoints and preset is None:
        hint = "leave it out: the formats of its weights are the knob `quant`"
        raise UserError(f"--checkpoint {options.checkpoints[0]}: with --simulate no weights are loaded", hint=hint)


def _simulated(options: TuneOptions, aim: TuneGoal, preset: Preset | None) -> TuneTarget:
    words = options.gpu or (preset.hardware if preset is not None and preset.hardware != NO_CARDS else None)
    found = _simulated_rig(words, options.link or (preset.link if preset is not None and not options.gpu else None))
    box = TuneMachine(rig=found.rig)
    if preset is not None:
        if preset.engine not in SIMULATED_ENGINES:
            hint = f"tune it where it runs, or a model with --engine {SIMULATED_ENGINES[0]}"
            raise UserError(f"the preset `{preset.name}` runs on {preset.engine}, which is not simulated", hint=hint)
        base = prepared(preset, aim, box)
        return TuneTarget(base, box, found.rig.title, published_basis(preset.engine), notes=found.notes)
    model = _model(options.name)
    box = replace(box, model=model.geometry)
    engine = options.engine or engines_of(PlanFlags(options.name), model, found)[0]
    base = baseline_of(options.name, aim, box, engine=engine, quant=model.quant, simulated=True)
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


def _here(options: TuneOptions, aim: TuneGoal, preset: Preset | None, host: HostFacts) -> TuneTarget:
    if preset is not None:
        check_cards(preset)
        return _on(options, aim, host, preset.engine, preset)
    wanted = ServeRequest(options.name, engine=options.engine, checkpoint=_first(options), binary=options.binary)
    if is_for_embedded(wanted):
        return _on(options, aim, host, "embedded", None)
    if options.engine is None and not host.gpus:
        raise _unknown(options.name)
    return _on(options, aim, host, options.engine, None)


def _on(options: TuneOptions, aim: TuneGoal, host: HostFacts, engine: str | None, preset: Preset | None) -> TuneTarget:
    """`engine` None: as a plan for these cards would choose."""
    cards = parse_gpus(options.gpus)
    on_cards = bool(host.gpus) and engine != "embedded" and (preset is None or preset.hardware != NO_CARDS)
    if cards and not on_cards:
        raise UserError(f"--gpus {options.gpus}: it runs on no card", hint="leave --gpus out")
    if aim.metric == "tok_per_joule" and not on_cards:
        hint = "aim at effective_tok_s or task_tok_s"
        raise UserError("--goal tok_per_joule: nothing here tells what a CPU draws", hint=hint)
    model = None if preset is not None else _own_model(options, engine)
    found = _cards(host, cards, options.link) if on_cards else _cpu(host, options.bandwidth)
    box = TuneMachine(host.cpu_cores, found.rig, model.geometry if model is not None else None)
    if preset is not None:
        base = prepared(preset if not cards else replace(preset, gpus=cards), aim, box)
    else:
        assert model is not None or engine is not None
        engine = engine or engines_of(PlanFlags(options.name), model or _model(options.name), found)[0]
        base = _safe(options, aim, box, engine, model, cards)
    bandwidth = found.rig.cards[0].bandwidth_gbs if not on_cards else None
    basis = own_basis(user_paths(os.environ).store, base.model, None)(_planned_engine(base.engine))
    words = found.rig.title if on_cards else f"this machine's CPU ({host.cpu_cores} cores)"
    notes = (*(model.notes if model is not None else ()), *found.notes, *((basis.note,) if basis.note else ()))
    return TuneTarget(base, box, words, basis, model.quant if model is not None else None, (), notes, bandwidth)


def _safe(
    options: TuneOptions, aim: TuneGoal, box: TuneMachine, engine: str, model: ModelFound | None, cards: tuple[int, ...]
) -> Preset:
    """By the name it is served as: of a file its own name, without the folders."""
    path = options.name.endswith(".gguf") or (model is not None and model.checkpoint == options.name)
    checkpoint = _first(options) or own_checkpoint(options.name)
    quant = model.quant if model is not None else None
    base = baseline_of(options.name, aim, box, engine=engine, checkpoint=checkpoint, quant=quant)
    if path:
        served = options.name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
        base = replace(base, served_as=served)
    return replace(base, gpus=cards) if cards else base


def _own_model(options: TuneOptions, engine: str | None) -> ModelFound | None:
    """Return what is known of it. None: its engine is named, and may know it where skep does not."""
    if (pulled := find_pullable(options.name)) is not None:
        path = installed(pulled.id, user_paths(os.environ).cache)
        geometry = find_geometry(pulled.id)
        if path is None:
            return None if geometry is None else ModelFound(geometry)
        read = read_model(str(path))
        return replace(read, geometry=geometry or read.geometry, notes=())
    try:
        return _model(_first(options) if find_geometry(options.name) is None and _first(options) else options.name)
    except UserError:
        if engine is None or _is_path(options.name) or not ("/" in options.name or engine == "ollama"):
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
    error = unknown_name(name, user_paths(os.environ))
    if otherwise and find_geometry(name) is None:
        error.hint = otherwise
    return error


def absolute_paths(options: TuneOptions) -> TuneOptions:
    """The preset is started, and the tuning taken up again, from any folder."""
    return replace(options, name=_whole(options.name), checkpoints=tuple(map(_whole, options.checkpoints)))


def _whole(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.absolute()) if _is_path(name) and path.exists() else name


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~/")) or name.endswith(".gguf")


def _first(options: TuneOptions) -> str | None:
    return options.checkpoints[0] if options.checkpoints else None


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
    """Return the inverse of `asdict(options)`, through JSON."""
    return TuneOptions(**{**document, **{key: tuple(document.get(key, ())) for key in ("checkpoints", "start")}})
