"""From the flags of `skep tune` to a tuning that can begin: aim, knobs, baseline, space. Starts nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any

import msgspec

from skep import __version__
from skep.catalog.models import Geometry
from skep.catalog.names import did_you_mean
from skep.catalog.presets import Preset
from skep.cli.bench_common import positive_seconds
from skep.cli.output import note
from skep.cli.swarm_tables import one_line
from skep.cli.tune import TuneOptions
from skep.cli.tune_stored import base_of
from skep.cli.tune_tables import aim_words, config_words, figure_number
from skep.cli.tune_target import TuneTarget, absolute_paths, find_tune_target, options_from_document
from skep.errors import DoesNotFit, UserError
from skep.host.facts import host_json, read_host
from skep.planner.constants import published_constants
from skep.planner.quants import QUANTS
from skep.planner.ranking import Basis
from skep.planner.setup import Rig
from skep.planner.step import StepTuning as Fitted
from skep.tuner.goal import parse_goal
from skep.tuner.knobs import NO_LONGER_TURNED, TuneMachine, apply_config, config_of, space_of
from skep.tuner.predictions import PREDICTED_KNOBS, Predictor, predictor_for
from skep.tuner.records import Knob, KnobChange, KnobConfig, Tuning, Value, value_words
from skep.tuner.search import KnobSearch
from skep.tuner.store import to_document
from skep.tuner.summary import unit_of
from skep.units import format_seconds

_WORDS: dict[str, Value] = {"on": True, "true": True, "off": False, "false": False, "auto": None, "none": None}


def choose_knobs(knobs: Sequence[Knob], only: str | None, skip: str | None) -> tuple[Knob, ...]:
    """Return those of `--knobs`, all where it is not given, without those of `--skip`."""
    wanted = _names("--knobs", only, knobs)
    left_out = _names("--skip", skip, knobs)
    kept = tuple(knob for knob in knobs if (not wanted or knob.name in wanted) and knob.name not in left_out)
    if not kept:
        names = ", ".join(knob.name for knob in knobs)
        raise UserError("no knob is left to turn", hint=f"there are {names}" if names else "this engine has none")
    return kept


def apply_settings(
    config: KnobConfig, knobs: Sequence[Knob], pairs: Sequence[str]
) -> tuple[KnobConfig, tuple[Knob, ...]]:
    """With what `--set` says. A number that is not on a knob's ladder becomes a rung of it."""
    by_name = {knob.name: knob for knob in knobs}
    for pair in (part.strip() for text in pairs for part in text.split(",")):
        name, equals, text = pair.partition("=")
        if not equals or not text:
            raise UserError(f"--set `{pair}` has no value", hint="write it as --set slots=1")
        knob = by_name[_known("--set", name.strip(), knobs)]
        value = value_of(knob, text.strip())
        if value not in knob.values:
            by_name[knob.name] = replace(knob, values=_with_rung(knob.values, value))
        config = config.turned({knob.name: value})
    return config, tuple(by_name[knob.name] for knob in knobs)


def value_of(knob: Knob, text: str) -> Value:
    """As the knob has it: by its own words first, then as a number on a ladder."""
    for value in knob.values:
        if text.lower() in (value_words(value).lower(), str(value).lower()):
            return value
    if text.lower() in _WORDS and any(value is _WORDS[text.lower()] for value in knob.values):
        return _WORDS[text.lower()]
    numbers = [value for value in knob.values if isinstance(value, int | float) and not isinstance(value, bool)]
    if knob.ordered and numbers:
        whole = all(isinstance(value, int) for value in numbers)
        try:
            number = int(text) if whole else float(text)
        except ValueError:
            number = -1
        if number > 0:
            return number
    known = ", ".join(map(value_words, knob.values))
    raise UserError(f"--set {knob.name}={text}: `{text}` is no value of it", hint=f"known: {known}")


def _with_rung(values: tuple[Value, ...], value: Value) -> tuple[Value, ...]:
    """In its place among the numbers; None stays where it stands, in front."""
    numbers = sorted(v for v in (*values, value) if isinstance(v, int | float) and not isinstance(v, bool))
    return (*(v for v in values if v is None), *numbers)


def _names(option: str, text: str | None, knobs: Sequence[Knob]) -> frozenset[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    return frozenset(_known(option, word, knobs) for word in words)


def _known(option: str, word: str, knobs: Sequence[Knob]) -> str:
    names = [knob.name for knob in knobs]
    if word in names:
        return word
    hint = did_you_mean(get_close_matches(word.lower(), names, n=1), "")
    listed = f"this engine has {', '.join(names)}"
    raise UserError(f"{option} `{word}` is no knob here", hint=f"{hint} {listed}".strip())


LONGEST = 200


@dataclass(frozen=True, slots=True)
class CandidateChange:
    """A change that could be tried first. `seconds`: that deciding about it is expected to take."""

    change: KnobChange
    predicted: float | None  # ratio over the baseline; None: the planner has nothing to say
    seconds: float


def print_prospects(prospects: Sequence[CandidateChange]) -> None:
    note(*(f"  {line}" for line in prospect_lines(prospects)))


def prospect_lines(prospects: Iterable[CandidateChange]) -> list[str]:
    """In the order of each knob's best change."""
    by_knob: dict[str, list[CandidateChange]] = {}
    for one in prospects:
        by_knob.setdefault(one.change.knob, []).append(one)
    times = {knob: f"about {format_seconds(min(one.seconds for one in same))}" for knob, same in by_knob.items()}
    width = max((len(said) for said in times.values()), default=0)
    return [f"{times[knob]:>{width}}  {one_line(_values(knob, same), LONGEST)}" for knob, same in by_knob.items()]


def _values(knob: str, prospects: Sequence[CandidateChange]) -> str:
    """`slots 4 → 6, 8 (+0 %), 2 (-12 %)`: values of which the same is foreseen stand together."""
    by_gain: dict[str, list[str]] = {}
    for one in prospects:
        by_gain.setdefault(_gain(one.predicted), []).append(value_words(one.change.after))
    told = ", ".join(f"{', '.join(values)} ({gain})" for gain, values in by_gain.items())
    return f"{knob} {value_words(prospects[0].change.before)} → {told}"


def _gain(ratio: float | None) -> str:
    return "not foreseen" if ratio is None else f"{round(100 * (ratio - 1)):+d} %"


def predictions_for(ground: TuneTarget, tuning: Tuning, checkpoints: tuple[str, ...]) -> Predictor:
    return predictor_for(
        ground.base, ground.rig, tuning.aim, tuning.knobs, ground.basis, model=ground.model, quant=ground.quant,
        checkpoints=checkpoints,
    )  # fmt: skip


def target_document(ground: TuneTarget) -> dict[str, Any]:
    """Constants are the program's own: another version of it searches differently anyway."""
    return {
        "rig": msgspec.to_builtins(ground.rig, enc_hook=dict),
        "model": msgspec.to_builtins(ground.model, enc_hook=dict),
        "quant": ground.quant.id if ground.quant is not None else None,
        "tuning": msgspec.to_builtins(ground.basis.tuning),
        "calibrated": ground.basis.calibrated,
    }


def restore_target(base: Preset, document: Mapping[str, Any]) -> TuneTarget:
    """As it was kept. What only the choice of knobs wanted to know is not."""
    rig = msgspec.convert(document["rig"], Rig | None)
    model = msgspec.convert(document["model"], Geometry | None)
    fitted = msgspec.convert(document["tuning"], Fitted)
    basis = Basis(published_constants(), fitted, calibrated=document["calibrated"])
    quant = QUANTS[document["quant"]] if document["quant"] is not None else None
    return TuneTarget(base, TuneMachine(rig=rig, model=model), rig.title if rig is not None else "", basis, quant)


TRIAL_STARTS, TRIAL_READINGS = 6, 4  # the baseline's two, then two of both sides, each warmed up and read thrice
SURELY = 0.5  # of what a trial is expected to take: expectations err


@dataclass(frozen=True, slots=True)
class PreparedTuning:
    """A tuning that has not begun, and what it takes to run it. The id of its value is still empty."""

    tuning: Tuning
    options: TuneOptions
    base: Preset
    space: Predictor
    notes: tuple[str, ...] = ()

    def search(self) -> KnobSearch:
        tuning = self.tuning
        return KnobSearch(self.space, tuning.baseline, tuning.aim, budget_s=tuning.budget_s)


def prepare(options: TuneOptions) -> PreparedTuning:
    """Everything that can be wrong is found before anything is started."""
    aim = parse_goal(
        options.goal, input_tokens=options.input_tokens, output_tokens=options.output_tokens, slo=options.slo,
        min_context=options.min_context,
    )  # fmt: skip
    budget_s = positive_seconds(options.budget, "--budget", "2h")
    options, host = absolute_paths(options), read_host()
    ground = find_tune_target(options, aim, host)
    named = (options.knobs or "").replace(" ", "").split(",")
    space = space_of(ground.base, aim, ground.box, checkpoints=options.checkpoints, quants=ground.quants, named=named)
    start, offered = apply_settings(config_of(ground.base, space.knobs), space.knobs, options.start)
    knobs = choose_knobs(offered, options.knobs, options.skip)
    ground = replace(ground, base=apply_config(ground.base, start))  # also what is set and not turned
    tuning = Tuning(
        id="",
        created_at=time.time(),
        model=ground.base.served_as,
        engine=ground.base.engine,
        rig=ground.rig_words,
        aim=aim,
        budget_s=budget_s,
        seed=random.SystemRandom().randrange(2**31) if options.seed is None else options.seed,
        simulated=options.simulate,
        baseline=KnobConfig.of({knob.name: start[knob.name] for knob in knobs}),
        knobs=knobs,
        base=_document(ground, options),
        host={} if options.simulate else host_json(host),
        skep_version=__version__,
    )
    predictor = predictions_for(ground, tuning, options.checkpoints)
    _check(predictor, tuning)
    return PreparedTuning(tuning, options, ground.base, predictor, (*ground.notes, *space.left_alone))


def prepare_again(tuning: Tuning) -> PreparedTuning:
    """As it was begun: preset, knobs, baseline and what is foreseen with are the stored ones."""
    if NO_LONGER_TURNED in tuning.baseline.as_dict:
        hint = f"set it with `nvidia-smi -pl WATTS`, then begin anew with `skep tune {tuning.model}`"
        raise UserError(f"tuning `{tuning.id}` turns the power limit, which skep no longer does", hint=hint)
    options, base = options_from_document(tuning.base["wishes"]), base_of(tuning)
    predictor = predictions_for(restore_target(base, tuning.base["terrain"]), tuning, options.checkpoints)
    return PreparedTuning(tuning, options, base, predictor)


def _document(ground: TuneTarget, options: TuneOptions) -> dict[str, Any]:
    options = replace(options, bandwidth=ground.bandwidth)
    return {**to_document(ground.base), "wishes": asdict(options), "terrain": target_document(ground)}


def _check(space: Predictor, tuning: Tuning) -> None:
    refused = space.refusal(tuning.baseline)
    if refused is not None:
        hint = "begin elsewhere with --set, or with another preset"
        kind = DoesNotFit if (space.spare_bytes(tuning.baseline) or 0) < 0 else UserError
        raise kind(f"the beginning itself cannot start: {refused}", hint=hint)
    need_s = trial_s(space, tuning.baseline)
    if tuning.budget_s < SURELY * need_s:
        what = f"--budget {format_seconds(tuning.budget_s)} is too short for one trial"
        hint = f"two starts of the baseline, and two of both sides, take about {format_seconds(need_s)}"
        raise UserError(what, hint=hint)


def trial_s(space: Predictor, config: KnobConfig) -> float:
    """Return what the baseline and deciding about one change take at least."""
    return TRIAL_STARTS * (space.start_s(config) + TRIAL_READINGS * space.reading_s(config))


def tell(ready: PreparedTuning) -> None:
    """Before it begins: from where, what could be tried, how long."""
    tuning = ready.tuning
    mark = "SIMULATED: " if tuning.simulated else ""
    note(*ready.notes)
    note(f"{mark}{tuning.model} ({tuning.engine}) on {tuning.rig}; goal {aim_words(tuning.aim)}")
    note(f"baseline: {config_words(tuning.baseline, tuning.knobs)}")
    foreseen = ready.space.predict(tuning.baseline)
    if foreseen is not None:
        note(f"the planner expects {figure_number(foreseen)} {unit_of(tuning)} of it there")
    found = prospects(ready)
    note(f"{len(found)} changes could come first: time for each, and the gain that the planner foresees")
    print_prospects(found)
    kind = "of virtual time" if tuning.simulated else "at most"
    note(f"budget: {format_seconds(tuning.budget_s)} {kind}; Ctrl-C stops it and keeps the best so far")


def prospects(ready: PreparedTuning) -> list[CandidateChange]:
    search, space = ready.search(), ready.space
    now = space.predict(ready.tuning.baseline)
    found = []
    for move in search.prospects():
        then = space.predict(move.config)
        (change,) = move.changes
        ratio = then / now if then is not None and now and change.knob in PREDICTED_KNOBS else None
        found.append(CandidateChange(change, ratio, 60 * search.minutes(move)))
    return found
