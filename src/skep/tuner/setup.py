"""What a tuning begins with: preset, machine, goal, knobs and what is predicted of them; of a
stored one, as it was.

What a name stands for is as `skep up NAME` would choose, only that a search begins where it is
safe, not where it is fastest. Everything that can be wrong is found here. Starts nothing."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep import __version__
from skep.catalog.gpus import HostFacts
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.names import did_you_mean
from skep.catalog.presets import NO_CARDS, Preset
from skep.config.presets import find_preset, presets_folder
from skep.config.rigs import ResolvedRig, find_rig, rig_of_host
from skep.deploy.plan_request import ModelFound, PlanFlags, engines_of, own_basis, read_model
from skep.deploy.preset_setup import quant_of
from skep.deploy.resolve import (
    ENGINES,
    ServeRequest,
    check_cards,
    is_for_embedded,
    own_checkpoint,
    parse_gpus,
    unknown_name,
)
from skep.engines.discovery import is_installed
from skep.errors import DoesNotFit, UserError
from skep.host.facts import host_json, read_host
from skep.paths import Paths
from skep.planner.published import DraftFailure, known_draft_failure
from skep.planner.ranking import Basis, published_basis
from skep.planner.setup import QUANTS, Quant, Rig
from skep.planner.step import StepTuning as Fitted
from skep.planner.step import published_constants
from skep.stats.slo import SloLimits
from skep.tuner.knobs import DRAFTS, TuneMachine, apply_config, config_of, space_of
from skep.tuner.predictions import Predictor
from skep.tuner.presets import baseline_of, prepared
from skep.tuner.records import METRICS, Knob, KnobConfig, TuneGoal, Tuning
from skep.tuner.search import KnobSearch
from skep.tuner.store import base_of, to_document
from skep.units import format_seconds, parse_seconds

MOST_AGENTS = 4096
LEAST_OUTPUT = 8  # tokens: with fewer there is no pace to measure
_GOAL = re.compile(r"\s*([\w-]+)\s*@\s*(\d+)\s*", re.ASCII)
_HINT = "write it as --goal effective_tok_s@4: the metric and how many agents"


def parse_goal(options: TuningOptions) -> TuneGoal:
    goal = f"--goal `{options.goal}`"
    task = options.input_tokens + options.output_tokens
    if (found := _GOAL.fullmatch(options.goal)) is None:
        raise UserError(f"{goal} is not understood", hint=_HINT)
    metric = found[1].casefold().replace("-", "_")
    agents = int(found[2][:9])
    near = did_you_mean(
        get_close_matches(metric, METRICS, n=1, cutoff=0.5), f"known: {', '.join(METRICS)}"
    )
    _refuse(
        (
            options.begin not in (PLAN, SAFE),
            f"--from `{options.begin}` is unknown",
            f"write {PLAN} or {SAFE}",
        ),
        (
            options.quality not in (JUDGED, UNJUDGED),
            f"--quality `{options.quality}` is unknown",
            f"write {JUDGED} or {UNJUDGED}",
        ),
        (metric not in METRICS, f"{goal}: no metric is called `{found[1]}`", near),
        (
            not 1 <= agents <= MOST_AGENTS,
            f"{goal}: {found[2]} agents cannot be measured",
            f"1 to {MOST_AGENTS}",
        ),
        (
            options.output_tokens < LEAST_OUTPUT,
            f"--output-tokens {options.output_tokens} is too short an answer",
            f"at least {LEAST_OUTPUT}: a pace is measured between the first and the last token",
        ),
        (
            options.min_context is not None and options.min_context < task,
            f"--min-context {options.min_context} is less than a task's {task} tokens",
            "raise it, leave it out, or lower --prompt-tokens and --output-tokens",
        ),
    )
    if options.slo is not None:
        slo = str(SloLimits.parse(options.slo))
    else:
        slo = None
    return TuneGoal(
        metric, agents, options.input_tokens, options.output_tokens, slo, options.min_context
    )


def _refuse(*checks: tuple[object, str, str]) -> None:
    """Raise UserError for the first that is wrong.

    Each: whether it is wrong, the message, the hint.
    """
    for is_wrong, message, hint in checks:
        if is_wrong:
            raise UserError(message, hint=hint)


SIMULATED_ENGINES = ("vllm", "sglang", "llamacpp")
# the baseline's two, then two of both sides, each warmed up and read thrice
TRIAL_STARTS = 6
TRIAL_READINGS = 4
SURELY = 0.5  # of what a trial is expected to take: expectations err


# where a search begins
PLAN = "plan"
SAFE = "safe"
# whether answers are
JUDGED = "auto"
UNJUDGED = "off"


class TuningOptions(msgspec.Struct, frozen=True):
    """What a tuning is asked for, as `skep tune run` has its options; the store keeps them with
    the tuning.
    """

    name: str
    goal: str = "effective_tok_s@4"
    slo: str | None = None
    min_context: int | None = None
    budget: str = "1h"
    input_tokens: int = 512
    output_tokens: int = 128
    engine: str | None = None
    checkpoint: str | None = None
    knobs: str | None = None
    skip: str | None = None
    begin: str = PLAN
    gpus: str | None = None
    binary: str | None = None
    quality: str = JUDGED
    in_place: bool = False
    gpu: str | None = None
    link: str | None = None
    simulate: bool = False
    seed: int | None = None


class TuneTarget(msgspec.Struct, frozen=True):
    """What is tuned, and on what."""

    base: Preset
    machine: TuneMachine
    rig_words: str
    basis: Basis
    quant: Quant | None = None
    notes: tuple[str, ...] = ()


class PreparedTuning(msgspec.Struct, frozen=True):
    """A tuning that has not begun, and what it takes to run it.

    The id of its value is still empty.
    """

    tuning: Tuning
    options: TuningOptions
    space: Predictor
    notes: tuple[str, ...] = ()

    def search(self) -> KnobSearch:
        return KnobSearch(
            self.space, self.tuning.baseline, self.tuning.aim, budget_s=self.tuning.budget_s
        )


def prepare(options: TuningOptions, paths: Paths) -> PreparedTuning:
    aim = parse_goal(options)
    budget_s = parse_seconds(options.budget)
    options = absolute_paths(options)
    host = read_host()
    target = find_tune_target(options, aim, host, paths)
    base = target.base
    offered = space_of(base, aim, target.machine)
    knobs = choose_knobs(offered, options.knobs, options.skip)
    if options.knobs is None:
        failure = _draft_failure(base, target.machine.rig)
    else:
        failure = None
    if failure is not None and any(knob.name == MTP for knob in knobs):
        knobs = tuple(knob for knob in knobs if knob.name != MTP)
        why = (
            f"{MTP} is left out: {failure.why} ({failure.source}); `--knobs {MTP}` tries it all "
            "the same"
        )
        target = replace(target, notes=(*target.notes, why))
    tuning = Tuning(
        id="",
        created_at=time.time(),
        model=base.served_as,
        engine=base.engine,
        rig=target.rig_words,
        aim=aim,
        budget_s=budget_s,
        seed=random.SystemRandom().randrange(2**31) if options.seed is None else options.seed,
        simulated=options.simulate,
        baseline=config_of(base, knobs),
        knobs=knobs,
        base={
            **to_document(base),
            "wishes": msgspec.to_builtins(options),
            # Constants are the program's own: another version of it searches differently anyway.
            "terrain": {
                "rig": msgspec.to_builtins(target.machine.rig, enc_hook=dict),
                "model": msgspec.to_builtins(target.machine.model, enc_hook=dict),
                "quant": target.quant.id if target.quant is not None else None,
                "tuning": msgspec.to_builtins(target.basis.tuning),
                "calibrated": target.basis.calibrated,
            },
        },
        host={} if options.simulate else host_json(host),
        skep_version=__version__,
    )
    ready = prepare_again(tuning)
    _check(ready.space, tuning)
    return replace(ready, notes=target.notes)


def _draft_failure(base: Preset, rig: Rig | None) -> DraftFailure | None:
    """Return what is known to stop the model with draft tokens on these cards; nothing where the
    preset drafts.
    """
    if rig is None or base.options.draft is not None:
        return None
    return known_draft_failure(base.model, rig.cards, base.engine)


def prepare_again(tuning: Tuning) -> PreparedTuning:
    """As it was begun: preset, knobs, baseline and what is predicted with are the stored ones."""
    if tuning.skep_version != __version__:
        hint = "start a new one; `skep tune show` and `skep tune export` still know this one"
        why = f"was started by skep {tuning.skep_version}, which searches differently"
        raise UserError(f"tuning `{tuning.id}` {why}", hint=hint)
    options = msgspec.convert(tuning.base["wishes"], TuningOptions)
    stored = tuning.base["terrain"]
    rig = msgspec.convert(stored["rig"], Rig | None)
    model = msgspec.convert(stored["model"], Geometry | None)
    basis = Basis(
        published_constants(),
        msgspec.convert(stored["tuning"], Fitted),
        calibrated=stored["calibrated"],
    )
    if stored["quant"] is not None:
        quant = QUANTS[stored["quant"]]
    else:
        quant = None
    space = Predictor(base_of(tuning), rig, tuning.aim, tuning.knobs, basis, model, quant)
    return PreparedTuning(tuning, options, space)


def _check(space: Predictor, tuning: Tuning) -> None:
    if (refused := space.refusal(tuning.baseline)) is not None:
        hint = "begin with `--from safe`, or with another preset"
        fit = space.fit(tuning.baseline)
        if fit is not None and fit.over_bytes > 0:
            kind: type[UserError] = DoesNotFit
        else:
            kind = UserError
        raise kind(f"the first configuration cannot start: {refused}", hint=hint)
    need_s = TRIAL_STARTS * (
        space.start_s(tuning.baseline) + TRIAL_READINGS * space.reading_s(tuning.baseline)
    )
    if tuning.budget_s < SURELY * need_s:
        hint = (
            "two starts of the baseline, and two of both sides, take about "
            f"{format_seconds(need_s)}"
        )
        raise UserError(
            f"--budget {format_seconds(tuning.budget_s)} is too short for one trial", hint=hint
        )


MTP = "mtp"
SHARE = "memory_share"
_NEED_MEMORY = {*DRAFTS, "slots", "kv", "graphs", "batched_tokens", "layout"}


def choose_knobs(knobs: Sequence[Knob], only: str | None, skip: str | None) -> tuple[Knob, ...]:
    """Return those of `--knobs`, all where it is not given, without those of `--skip`.

    What needs memory takes the share of the cards along."""
    names = {knob.name for knob in knobs}
    wanted, left_out = (
        {word.strip() for word in (text or "").split(",")} - {""} for text in (only, skip)
    )
    if unknown := sorted((wanted | left_out) - names):
        hint = f"this engine has {', '.join(knob.name for knob in knobs)}"
        raise UserError(f"`{unknown[0]}` is not a knob here", hint=hint)
    kept = tuple(
        knob for knob in knobs if (not wanted or knob.name in wanted) and knob.name not in left_out
    )
    if not kept:
        raise UserError(
            "no knob is left to tune",
            hint=f"there are {', '.join(names)}" if names else "it has none",
        )
    if wanted & _NEED_MEMORY and SHARE not in wanted | left_out:
        kept += tuple(replace(knob, along=True) for knob in knobs if knob.name == SHARE)
    return kept


def find_tune_target(
    options: TuningOptions, aim: TuneGoal, host: HostFacts, paths: Paths
) -> TuneTarget:
    """What a name stands for, on this machine or on a rig that is not here; with the first
    configuration of it.
    """
    preset = find_preset(options.name, presets_folder(paths))
    simulate = options.simulate
    cards = parse_gpus(options.gpus)
    serve_request = ServeRequest(
        options.name, engine=options.engine, checkpoint=options.checkpoint, binary=options.binary
    )
    engine = options.engine if preset is None else preset.engine
    if preset is None and not simulate and is_for_embedded(serve_request):
        engine = "embedded"
    without_cards = engine == "embedded" or (preset is not None and preset.hardware == NO_CARDS)
    on_cards = simulate or (bool(host.gpus) and not without_cards)
    _check_options(options, preset, on_cards=on_cards, here=bool(host.gpus))
    if engine is None and not on_cards:
        raise unknown_name(options.name, paths)
    if preset is not None and not simulate:
        check_cards(preset)
    if preset is not None:
        model = None
    else:
        model = _model(options, None if simulate else engine, paths)
    found = None
    if on_cards:
        if simulate:
            found = _simulated_rig(options, preset, host)
        else:
            found = _cards(host, cards, options.link)
    rig = found.rig if found is not None else None
    machine = TuneMachine(host.cpu_cores, rig, model.geometry if model is not None else None)
    if preset is not None:
        other = KnobConfig.of({"checkpoint": options.checkpoint} if options.checkpoint else {})
        base = prepared(apply_config(preset, other), aim, machine)
    else:
        if engine is None:
            assert model is not None
            assert found is not None
            engines = _engines(options, engines_of(PlanFlags(options.name), model, found))
            engine = engines[0]
        else:
            engines = (engine,)
        format_of_files = model.quant if model is not None else None
        if model is not None:
            model_id = model.geometry.id
        else:
            model_id = options.name
        if simulate:
            plans_with: Callable[[str], Basis] = published_basis
        else:
            plans_with = own_basis(paths.store, model_id, _id(format_of_files))
        base = baseline_of(
            options.name,
            aim,
            machine,
            engine=engine,
            others=engines[1:],
            quant=format_of_files,
            checkpoint=None if simulate else options.checkpoint or own_checkpoint(options.name),
            simulated=simulate,
            planned=options.begin == PLAN,
            basis_of=plans_with,
        )
        if options.name.endswith(".gguf") or (
            model is not None and model.checkpoint == options.name
        ):
            # Without the folders.
            served = options.name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
            base = replace(base, served_as=served)
    base = replace(base, gpus=cards or base.gpus)
    if base.engine == "embedded":
        planned_as = "llamacpp"
    else:
        planned_as = base.engine
    if simulate:
        basis = published_basis(planned_as)
    else:
        basis = own_basis(paths.store, base.model, None)(planned_as)
    if rig is not None:
        words = rig.title
    else:
        words = f"this machine's CPU ({host.cpu_cores} cores)"
    if model is None:
        quant = None
    else:
        quant = quant_of(base) if simulate else model.quant
    notes = tuple(note for one in (model, found) if one is not None for note in one.notes)
    notes += (basis.note,) if basis.note and found is not None else ()
    return TuneTarget(base, machine, words, basis, quant, notes)


def _engines(options: TuningOptions, planned: tuple[str, ...]) -> tuple[str, ...]:
    """Return those whose layouts may be the first: what is installed, as for `skep up`; safe: the
    usual one.
    """
    if options.begin == SAFE:
        return planned[:1]
    if options.simulate:
        return planned
    return tuple(name for name in planned if is_installed(name)) or planned[:1]


def _id(quant: Quant | None) -> str | None:
    return quant.id if quant is not None else None


def _check_options(
    options: TuningOptions, preset: Preset | None, *, on_cards: bool, here: bool
) -> None:
    """What cannot be combined.

    With --simulate nothing of this machine is used, and no weights are loaded.
    """
    simulate = options.simulate
    engines = SIMULATED_ENGINES if options.simulate else ENGINES
    name, runs_on = ("", None) if preset is None else (preset.name, preset.engine)
    real = {"--gpus": options.gpus, "--binary": options.binary, "--in-place": options.in_place,
            "--checkpoint": options.checkpoint}  # fmt: skip
    vain = next((flag for flag, value in real.items() if simulate and value), None)
    _refuse(
        (
            options.engine not in (None, *engines),
            f"there is no engine `{options.engine}` to tune",
            f"known: {', '.join(engines)}",
        ),
        (
            preset is not None and options.engine not in (None, runs_on),
            f"--engine cannot be combined with the preset `{name}`",
            f"`skep presets new NAME --from {name}` makes a copy that you can change",
        ),
        (vain, f"{vain} has no effect with --simulate: no engine is started", f"leave {vain} out"),
        (
            simulate and runs_on not in (None, *SIMULATED_ENGINES),
            f"the preset `{name}` runs on {runs_on}, which is not simulated",
            f"tune it where it runs, or a model with --engine {SIMULATED_ENGINES[0]}",
        ),
        (
            (options.gpu or (options.link and not here)) and not simulate,
            "--gpu and --link describe a rig that is not here",
            "add --simulate, or leave it out",
        ),
        (
            options.gpus and not on_cards,
            f"--gpus {options.gpus}: this engine uses no card",
            "leave --gpus out",
        ),
    )


def _simulated_rig(options: TuningOptions, preset: Preset | None, host: HostFacts) -> ResolvedRig:
    words = options.gpu
    link = options.link
    if preset is not None and words is None:
        if preset.hardware != NO_CARDS:
            words = preset.hardware
        else:
            words = None
        link = link or preset.link
    if words is None and not host.gpus:
        hint = 'name it: --gpu "2x rtx-3090" --simulate'
        raise UserError("which rig should be simulated? This machine has no GPU", hint=hint)
    if words is not None:
        return find_rig(words, link)
    return rig_of_host(host, link)


def _model(options: TuningOptions, engine: str | None, paths: Paths) -> ModelFound | None:
    """Return what is known of it.

    None: its engine is named, and may know it where skep does not.
    """
    name = (options.checkpoint if find_geometry(options.name) is None else None) or options.name
    try:
        return read_model(name)
    except UserError as error:
        if _is_path(name):
            raise
        if engine is not None and ("/" in name or engine == "ollama"):
            return None
        raise UserError(unknown_name(name, paths).message, hint=error.hint) from None


def absolute_paths(options: TuningOptions) -> TuningOptions:
    """The preset is started, and the tuning taken up again, from any folder."""
    whole = options.checkpoint and _absolute(options.checkpoint)
    return replace(options, name=_absolute(options.name), checkpoint=whole)


def _absolute(name: str) -> str:
    path = Path(name).expanduser()
    if _is_path(name) and path.exists():
        return str(path.absolute())
    return name


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~/")) or name.endswith(".gguf")


def _cards(host: HostFacts, wanted: tuple[int, ...], link: str | None) -> ResolvedRig:
    if not wanted:
        return rig_of_host(host, link)
    there = {gpu.index: gpu for gpu in host.gpus}
    if (missing := next((index for index in wanted if index not in there), None)) is not None:
        raise UserError(
            f"there is no card {missing} here", hint=f"there are {', '.join(map(str, there))}"
        )
    place = {index: number for number, index in enumerate(wanted)}
    links = tuple(
        (place[a], place[b], kind) for a, b, kind in host.links if a in place and b in place
    )
    gpus = tuple(there[index] for index in wanted)
    return rig_of_host(replace(host, gpus=gpus, links=links), link)
