"""What a tuning begins with: preset, machine, goal, knobs and what is predicted of them; of a
stored one, as it was.

What a name stands for is as `skep up NAME` would choose, only that a search begins where it is
safe, not where it is fastest. Everything that can be wrong is found here. Starts nothing.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep import __version__
from skep.catalog.engines import EMBEDDED, kind_of, model_engines, planned_engines, planned_name
from skep.catalog.gpus import HostFacts
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.names import did_you_mean
from skep.catalog.presets import NO_CARDS, Preset
from skep.config.presets import find_preset, presets_folder
from skep.config.rigs import ResolvedRig, find_rig, rig_of_host
from skep.deploy.plan_request import (
    AGENTS,
    PlanFlags,
    ResolvedModel,
    engines_of,
    own_basis,
    read_model,
)
from skep.deploy.preset_setup import quant_of
from skep.deploy.resolve import (
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
from skep.planner.ranking import Basis, BasisOf, published_basis
from skep.planner.setup import QUANTS, Quant, Rig
from skep.planner.step import StepTuning as Fitted
from skep.planner.step import published_constants
from skep.stats.slo import SloLimits
from skep.tuner.knobs import (
    DRAFTS,
    SESSION_KNOBS,
    TuneMachine,
    apply_config,
    config_of,
    space_of,
)
from skep.tuner.power_knob import ALLOWED, POWER_LIMIT, check_allowed, power_knob
from skep.tuner.predictions import Predictor
from skep.tuner.presets import baseline_of, prepared
from skep.tuner.records import METRICS, TURNS_MIN, Knob, KnobConfig, TuneGoal, Tuning
from skep.tuner.search import KnobSearch
from skep.tuner.session_load import aim_of_sessions, session_words, with_turns, with_window_of
from skep.tuner.session_predictions import SessionPredictor
from skep.tuner.store import base_of, to_document
from skep.units import GIB, format_seconds, parse_seconds

MOST_AGENTS = 4096
LEAST_OUTPUT = 8  # tokens: with fewer there is no pace to measure
_GOAL = re.compile(r"\s*([\w-]+)\s*@\s*(\d+)\s*", re.ASCII)
GOAL_OF_TASKS = f"effective_tok_s@{AGENTS}"
_HINT = "write it as --goal effective_tok_s@4: the metric and how many agents"
TASK = "task"  # the load of single requests
_TASK_TOKENS = (512, 128)  # of a task, where nobody says how long it is


def _goal_of(options: TuningOptions) -> str:
    """Return the goal that is named, else the one of the load: turns a minute of sessions, or the
    speed of tasks.
    """
    if options.goal is not None:
        return options.goal
    if options.load in (None, TASK):
        return GOAL_OF_TASKS
    return f"{TURNS_MIN}@{AGENTS}"


def parse_goal(options: TuningOptions) -> TuneGoal:
    named_goal = _goal_of(options)
    goal = f"--goal `{named_goal}`"
    task = options.input_tokens + options.output_tokens
    match = _GOAL.fullmatch(named_goal)
    if match is None:
        raise UserError(f"{goal} is not understood", hint=_HINT)
    metric = match[1].casefold().replace("-", "_")
    agents = int(match[2][:9])
    if options.begin not in (PLAN, SAFE):
        raise UserError(f"--from `{options.begin}` is unknown", hint=f"write {PLAN} or {SAFE}")
    if options.quality not in (JUDGED, UNJUDGED):
        raise UserError(
            f"--quality `{options.quality}` is unknown", hint=f"write {JUDGED} or {UNJUDGED}"
        )
    if metric not in METRICS:
        alike = get_close_matches(metric, METRICS, n=1, cutoff=0.5)
        hint = did_you_mean(alike, f"known: {', '.join(METRICS)}")
        raise UserError(f"{goal}: no metric is called `{match[1]}`", hint=hint)
    if not 1 <= agents <= MOST_AGENTS:
        raise UserError(
            f"{goal}: {match[2]} agents cannot be measured", hint=f"1 to {MOST_AGENTS}"
        )
    _check_load(options, metric)
    if options.allow is not None:
        check_allowed(options.allow, metric=metric, simulate=options.simulate)
    if metric == TURNS_MIN:
        task = 0  # sessions have lengths of their own
    if options.output_tokens < LEAST_OUTPUT:
        raise UserError(
            f"--output-tokens {options.output_tokens} is too short an answer",
            hint=f"at least {LEAST_OUTPUT}: a pace is measured between the first and the last "
            "token",
        )
    if options.min_context is not None and options.min_context < task:
        raise UserError(
            f"--min-context {options.min_context} is less than a task's {task} tokens",
            hint="raise it, leave it out, or lower --prompt-tokens and --output-tokens",
        )
    if options.slo is not None:
        slo = str(SloLimits.parse(options.slo))
    else:
        slo = None
    return TuneGoal(
        metric=metric,
        concurrency=agents,
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        slo=slo,
        min_context=options.min_context,
    )


def _check_load(options: TuningOptions, metric: str) -> None:
    """Raise UserError for lengths of tasks with sessions, and for sessions with another metric."""
    if metric == TURNS_MIN and options.load == TASK:
        raise UserError(
            f"--load {TASK} has no turns: {TURNS_MIN} is of sessions",
            hint=f"write --goal {GOAL_OF_TASKS}, or --load coding",
        )
    if metric != TURNS_MIN and options.load not in (None, TASK):
        hint = f"write --goal {TURNS_MIN}@{AGENTS}, or leave --load out"
        raise UserError(f"--load {options.load} is for the goal {TURNS_MIN}", hint=hint)
    lengths = (options.input_tokens, options.output_tokens)
    if metric == TURNS_MIN and lengths != _TASK_TOKENS:
        raise UserError(
            f"--prompt-tokens and --output-tokens are of a task, {TURNS_MIN} is of sessions",
            hint="leave them out; --load chooses the sessions",
        )


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
    goal: str | None = None  # None: it follows from the load
    load: str | None = None
    allow: str | None = None
    slo: str | None = None
    min_context: int | None = None
    budget: str = "1h"
    input_tokens: int = _TASK_TOKENS[0]
    output_tokens: int = _TASK_TOKENS[1]
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
    if aim.metric == TURNS_MIN:
        aim = _with_sessions(aim, options, paths)
    target = find_tune_target(options, aim, host, paths)
    base = target.base
    if aim.sessions is not None:
        aim = with_window_of(aim, min(aim.sessions.window_tokens, base.context_tokens or 0))
    knobs = _chosen_knobs(options, aim, target, host)
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
        baseline=_baseline(base, knobs),
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
                "free_ram_gib": target.machine.free_ram_gib,
            },
        },
        host={} if options.simulate else host_json(host),
        skep_version=__version__,
    )
    ready = replace(prepare_again(tuning), notes=target.notes)
    if aim.sessions is not None:
        ready = _with_turns(ready)
    _check(ready.space, ready.tuning)
    return ready


def _chosen_knobs(
    options: TuningOptions, aim: TuneGoal, target: TuneTarget, host: HostFacts
) -> tuple[Knob, ...]:
    base = target.base
    offered = space_of(base, aim, target.machine)
    if options.allow is not None:
        offered = (*offered, power_knob(base.gpus or tuple(gpu.index for gpu in host.gpus)))
    return choose_knobs(offered, options.knobs or _usual_knobs(offered, aim), options.skip)


def _with_turns(ready: PreparedTuning) -> PreparedTuning:
    """Return the tuning with readings of as many turns as there is time for, and say so."""
    tuning = ready.tuning
    aim = with_turns(tuning.aim, ready.space.predict(tuning.baseline))
    notes = (*ready.notes, session_words(aim))
    return replace(prepare_again(replace(tuning, aim=aim)), notes=notes)


def _with_sessions(aim: TuneGoal, options: TuningOptions, paths: Paths) -> TuneGoal:
    """Return the goal with the sessions that have room in the context of what is tuned."""
    preset = find_preset(options.name, presets_folder(paths))
    context_tokens = options.min_context
    if preset is not None:
        geometry = find_geometry(preset.model)
        context_tokens = context_tokens or preset.context_tokens
    else:
        model = _model(options, options.engine or EMBEDDED, paths)
        geometry = model.geometry if model is not None else None
    limit = geometry.max_context if geometry is not None else None
    return aim_of_sessions(aim, options.load, limit, context_tokens)


def _baseline(base: Preset, knobs: Sequence[Knob]) -> KnobConfig:
    """Return the values that a search begins with: of the preset, and the cards' power limit."""
    of_preset = config_of(base, [knob for knob in knobs if knob.name != POWER_LIMIT])
    of_cards = {knob.name: knob.values[-1] for knob in knobs if knob.name == POWER_LIMIT}
    return of_preset.turned(of_cards)


def _usual_knobs(offered: Sequence[Knob], aim: TuneGoal) -> str | None:
    """Return the knobs that matter to sessions, where these are the load; None: all do."""
    if aim.sessions is None:
        return None
    usual = (*SESSION_KNOBS, POWER_LIMIT)
    return ",".join(knob.name for knob in offered if knob.name in usual)


def _draft_failure(base: Preset, rig: Rig | None) -> DraftFailure | None:
    """Return what is known to stop the model with draft tokens on these cards; None where the
    preset drafts.
    """
    if rig is None or base.options.draft is not None:
        return None
    return known_draft_failure(base.model, rig.cards, base.engine)


def prepare_again(tuning: Tuning) -> PreparedTuning:
    """Return the tuning as it was begun: preset, knobs, baseline and what is predicted with are
    the stored ones.
    """
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
    if tuning.aim.sessions is not None:
        kind: type[Predictor] = SessionPredictor
    else:
        kind = Predictor
    space = kind(base_of(tuning), rig, tuning.aim, tuning.knobs, basis, model, quant)
    if isinstance(space, SessionPredictor):
        space.free_ram_gib = stored["free_ram_gib"]
    return PreparedTuning(tuning, options, space)


def _check(space: Predictor, tuning: Tuning) -> None:
    """Raise UserError for a baseline that cannot start, or a budget too short for one trial."""
    refused = space.refusal(tuning.baseline)
    if refused is not None:
        hint = "begin with `--from safe`, or with another preset"
        fit = space.fit(tuning.baseline)
        if fit is not None and fit.over_bytes > 0:
            kind: type[UserError] = DoesNotFit
        else:
            kind = UserError
        raise kind(f"the first configuration cannot start: {refused}", hint=hint)
    reading_s = space.reading_s(tuning.baseline)
    need_s = TRIAL_STARTS * (space.start_s(tuning.baseline) + TRIAL_READINGS * reading_s)
    if tuning.budget_s < SURELY * need_s:
        starts = "two starts of the baseline, and two of both sides"
        raise UserError(
            f"--budget {format_seconds(tuning.budget_s)} is too short for one trial",
            hint=f"{starts}, take about {format_seconds(need_s)}",
        )


MTP = "mtp"
SHARE = "memory_share"
_NEED_MEMORY = {*DRAFTS, "slots", "kv", "graphs", "batched_tokens", "layout"}


def choose_knobs(knobs: Sequence[Knob], only: str | None, skip: str | None) -> tuple[Knob, ...]:
    """Return those of `--knobs`, all where it is not given, without those of `--skip`.

    What needs memory takes the share of the cards along.
    """
    names = {knob.name for knob in knobs}
    only_names = _knob_names(only)
    left_out = _knob_names(skip)
    unknown = sorted((only_names | left_out) - names)
    if unknown:
        hint = f"this engine has {', '.join(knob.name for knob in knobs)}"
        if unknown[0] == POWER_LIMIT:
            hint = f"--goal {TURNS_MIN}@{AGENTS} --allow {ALLOWED} makes it one"
        raise UserError(f"`{unknown[0]}` is not a knob here", hint=hint)
    searched = only_names or names
    chosen = tuple(knob for knob in knobs if knob.name in searched and knob.name not in left_out)
    if not chosen:
        raise UserError(
            "no knob is left to tune",
            hint=f"there are {', '.join(names)}" if names else "it has none",
        )
    if only_names & _NEED_MEMORY and SHARE not in only_names | left_out:
        chosen += tuple(replace(knob, along=True) for knob in knobs if knob.name == SHARE)
    return chosen


def _knob_names(text: str | None) -> set[str]:
    """Return the names of a list with commas."""
    return {word.strip() for word in (text or "").split(",")} - {""}


def find_tune_target(
    options: TuningOptions, aim: TuneGoal, host: HostFacts, paths: Paths
) -> TuneTarget:
    """Return what a name stands for, on this machine or on a rig that is not here, with its first
    configuration.
    """
    preset = find_preset(options.name, presets_folder(paths))
    cards = parse_gpus(options.gpus)
    engine = _named_engine(options, preset)
    runs_without_cards = engine == EMBEDDED or (preset is not None and preset.hardware == NO_CARDS)
    on_cards = options.simulate or (bool(host.gpus) and not runs_without_cards)
    _check_options(options, preset, on_cards=on_cards, has_gpus=bool(host.gpus))
    if options.simulate:
        return simulated_target(options, aim, preset, host, paths)
    if engine is None and not on_cards:
        raise unknown_name(options.name, paths)
    local = LocalCards(host, cards, options.link, used=on_cards)
    if preset is not None:
        return target_of_preset(options, aim, preset, local, paths)
    return target_of_model(options, aim, engine, local, paths)


class LocalCards(msgspec.Struct, frozen=True):
    """What of this machine a tuning may use. `used` False: its CPU alone."""

    host: HostFacts
    indices: tuple[int, ...]  # of `--gpus`; none: all
    link: str | None
    used: bool

    def rig(self) -> ResolvedRig | None:
        """Return the cards as a rig. UserError where one of them is not here."""
        if not self.used:
            return None
        return _cards(self.host, self.indices, self.link)


def target_of_preset(
    options: TuningOptions, aim: TuneGoal, preset: Preset, local: LocalCards, paths: Paths
) -> TuneTarget:
    check_cards(preset)
    rig = local.rig()
    machine = _machine(local.host, rig)
    base = prepared(_with_checkpoint(preset, options.checkpoint), aim, machine)
    base = replace(base, gpus=local.indices or base.gpus)
    return _target(base, machine, rig, None, _basis_of_machine(paths, base))


def target_of_model(
    options: TuningOptions, aim: TuneGoal, engine: str | None, local: LocalCards, paths: Paths
) -> TuneTarget:
    """`engine` None: it is chosen by what the planner expects of each."""
    model = _model(options, engine, paths)
    rig = local.rig()
    machine = _machine(local.host, rig, model)
    if model is not None:
        model_id = model.geometry.id
        quant = model.quant
    else:
        model_id = options.name
        quant = None
    base = _first_preset(
        options,
        aim,
        machine,
        _candidate_engines(options, engine, model, rig),
        quant=quant,
        checkpoint=options.checkpoint or own_checkpoint(options.name),
        basis_of=own_basis(paths.store, model_id, quant.id if quant is not None else None),
    )
    base = _served_without_folders(base, options, model)
    base = replace(base, gpus=local.indices or base.gpus)
    target = _target(base, machine, rig, model, _basis_of_machine(paths, base))
    return replace(target, quant=quant)


def simulated_target(
    options: TuningOptions, aim: TuneGoal, preset: Preset | None, host: HostFacts, paths: Paths
) -> TuneTarget:
    """Return a target on a rig that need not be here: nothing that was measured on this machine
    counts.
    """
    if preset is not None:
        rig = _simulated_rig(options, preset, host)
        machine = _machine(host, rig)
        base = prepared(_with_checkpoint(preset, options.checkpoint), aim, machine)
        return _target(base, machine, rig, None, published_basis(planned_name(base.engine)))
    model = _model(options, None, paths)
    rig = _simulated_rig(options, None, host)
    machine = _machine(host, rig, model)
    base = _first_preset(
        options,
        aim,
        machine,
        _candidate_engines(options, options.engine, model, rig),
        quant=model.quant if model is not None else None,
        checkpoint=None,
        basis_of=published_basis,
    )
    base = _served_without_folders(base, options, model)
    target = _target(base, machine, rig, model, published_basis(planned_name(base.engine)))
    return replace(target, quant=quant_of(base))


def _named_engine(options: TuningOptions, preset: Preset | None) -> str | None:
    """Return the engine that the preset, the user or the file names; None: it is to be chosen."""
    if preset is not None:
        return preset.engine
    request = ServeRequest(
        options.name, engine=options.engine, checkpoint=options.checkpoint, binary=options.binary
    )
    if not options.simulate and is_for_embedded(request):
        return EMBEDDED
    return options.engine


def _machine(
    host: HostFacts, rig: ResolvedRig | None, model: ResolvedModel | None = None
) -> TuneMachine:
    return TuneMachine(
        cores=host.cpu_cores,
        rig=rig.rig if rig is not None else None,
        model=model.geometry if model is not None else None,
        free_ram_gib=_free_ram_gib(host, rig),
    )


def _free_ram_gib(host: HostFacts, rig: ResolvedRig | None) -> float | None:
    """Return the free memory of this machine; of a rig that is not here, all of it. None: not
    known.
    """
    if rig is not None and rig.rig.ram_gib is None:
        return None
    if host.memory_available_bytes is None:
        return None
    return host.memory_available_bytes / GIB


def _with_checkpoint(preset: Preset, checkpoint: str | None) -> Preset:
    changes = KnobConfig.of({"checkpoint": checkpoint} if checkpoint else {})
    return apply_config(preset, changes)


def _candidate_engines(
    options: TuningOptions,
    engine: str | None,
    model: ResolvedModel | None,
    rig: ResolvedRig | None,
) -> tuple[str, ...]:
    """Return the engine that is named, or those whose layouts may be the first."""
    if engine is not None:
        return (engine,)
    assert model is not None
    assert rig is not None
    return _engines(options, engines_of(PlanFlags(options.name), model, rig))


def _first_preset(
    options: TuningOptions,
    aim: TuneGoal,
    machine: TuneMachine,
    engines: tuple[str, ...],
    *,
    quant: Quant | None,
    checkpoint: str | None,
    basis_of: BasisOf,
) -> Preset:
    return baseline_of(
        options.name,
        aim,
        machine,
        engine=engines[0],
        others=engines[1:],
        quant=quant,
        checkpoint=checkpoint,
        simulated=options.simulate,
        planned=options.begin == PLAN,
        basis_of=basis_of,
    )


def _served_without_folders(
    base: Preset, options: TuningOptions, model: ResolvedModel | None
) -> Preset:
    """Return the preset served under the name of its file, where the file was named."""
    is_file = options.name.endswith(".gguf")
    if not is_file and (model is None or model.checkpoint != options.name):
        return base
    served = options.name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return replace(base, served_as=served)


def _basis_of_machine(paths: Paths, base: Preset) -> Basis:
    return own_basis(paths.store, base.model, None)(planned_name(base.engine))


def _target(
    base: Preset,
    machine: TuneMachine,
    rig: ResolvedRig | None,
    model: ResolvedModel | None,
    basis: Basis,
) -> TuneTarget:
    notes: list[str] = []
    if model is not None:
        notes += model.notes
    if rig is not None:
        rig_words = rig.rig.title
        notes += rig.notes
        if basis.note:
            notes.append(basis.note)
    else:
        rig_words = f"this machine's CPU ({machine.cores} cores)"
    return TuneTarget(base, machine, rig_words, basis, notes=tuple(notes))


def _engines(options: TuningOptions, planned: tuple[str, ...]) -> tuple[str, ...]:
    """Return those whose layouts may be the first: what is installed, as for `skep up`; safe: the
    usual one.
    """
    if options.begin == SAFE:
        return planned[:1]
    if options.simulate:
        return planned
    return tuple(name for name in planned if is_installed(name)) or planned[:1]


def _check_options(
    options: TuningOptions, preset: Preset | None, *, on_cards: bool, has_gpus: bool
) -> None:
    """Raise UserError for options that cannot be combined.

    With --simulate nothing of this machine is used, and no weights are loaded.
    """
    engines = planned_engines() if options.simulate else sorted(model_engines())
    if options.engine not in (None, *engines):
        raise UserError(
            f"there is no engine `{options.engine}` to tune", hint=f"known: {', '.join(engines)}"
        )
    if preset is not None and options.engine not in (None, preset.engine):
        raise UserError(
            f"--engine cannot be combined with the preset `{preset.name}`",
            hint=f"`skep presets new NAME --from {preset.name}` makes a copy that you can change",
        )
    if options.simulate:
        _check_simulated(options, preset)
    elif options.gpu or (options.link and not has_gpus):
        raise UserError(
            "--gpu and --link describe a rig that is not here",
            hint="add --simulate, or leave it out",
        )
    if options.gpus and not on_cards:
        raise UserError(
            f"--gpus {options.gpus}: this engine uses no card", hint="leave --gpus out"
        )


def _check_simulated(options: TuningOptions, preset: Preset | None) -> None:
    real = {
        "--gpus": options.gpus,
        "--binary": options.binary,
        "--in-place": options.in_place,
        "--checkpoint": options.checkpoint,
    }
    for flag, value in real.items():
        if value:
            raise UserError(
                f"{flag} has no effect with --simulate: no engine is started",
                hint=f"leave {flag} out",
            )
    if preset is not None and preset.engine not in planned_engines():
        raise UserError(
            f"the preset `{preset.name}` runs on {preset.engine}, which is not simulated",
            hint=f"tune it where it runs, or a model with --engine {planned_engines()[0]}",
        )


def _simulated_rig(options: TuningOptions, preset: Preset | None, host: HostFacts) -> ResolvedRig:
    words = options.gpu
    link = options.link
    if preset is not None and words is None:
        if preset.hardware != NO_CARDS:
            words = preset.hardware
        link = link or preset.link
    if words is None and not host.gpus:
        hint = 'name it: --gpu "2x rtx-3090" --simulate'
        raise UserError("which rig should be simulated? This machine has no GPU", hint=hint)
    if words is not None:
        return find_rig(words, link)
    return rig_of_host(host, link)


def _model(options: TuningOptions, engine: str | None, paths: Paths) -> ResolvedModel | None:
    """Return what is known of the model that is named.

    None: its engine is named, and may know it where skep does not.
    """
    name = options.name
    if options.checkpoint and find_geometry(name) is None:
        name = options.checkpoint
    try:
        return read_model(name)
    except UserError as error:
        if _is_path(name):
            raise
        if engine is not None and ("/" in name or kind_of(engine).weights == "store"):
            return None
        raise UserError(unknown_name(name, paths).message, hint=error.hint) from None


def absolute_paths(options: TuningOptions) -> TuningOptions:
    """Return the options with whole paths: the preset is started, and the tuning taken up again,
    from any folder.
    """
    checkpoint = options.checkpoint and _absolute(options.checkpoint)
    return replace(options, name=_absolute(options.name), checkpoint=checkpoint)


def _absolute(name: str) -> str:
    path = Path(name).expanduser()
    if _is_path(name) and path.exists():
        return str(path.absolute())
    return name


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~/")) or name.endswith(".gguf")


def _cards(host: HostFacts, indices: tuple[int, ...], link: str | None) -> ResolvedRig:
    if not indices:
        return rig_of_host(host, link)
    by_index = {gpu.index: gpu for gpu in host.gpus}
    for index in indices:
        if index not in by_index:
            raise UserError(
                f"there is no card {index} here", hint=f"there are {', '.join(map(str, by_index))}"
            )
    place = {index: number for number, index in enumerate(indices)}
    links = tuple(
        (place[a], place[b], kind) for a, b, kind in host.links if a in place and b in place
    )
    gpus = tuple(by_index[index] for index in indices)
    return rig_of_host(replace(host, gpus=gpus, links=links), link)
