"""Who finds the best configuration of a rig whose best is known: the tuner, and others with the
time that it took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tuning_contest.contest_bench import ContestBench
from tuning_contest.planned import PlannedRig, RigSpace
from tuning_contest.truth import RuggedTruth, Survey

from skep.tuner.records import (
    ConfigFailure,
    JudgeRequest,
    JudgeResult,
    KnobConfig,
    MeasureRequest,
    StageDecision,
    TuneStage,
)
from skep.tuner.search import KnobSearch

WITHIN = 0.02
_KEPT = 0.2  # of the time, for measuring the best again
_AGAIN = 5
_READINGS_AGAIN = 3
_MOST_TRIALS = 4000
_APART = 10_000  # seeds of samplers and noise are never those of hills


@dataclass(frozen=True, slots=True)
class Find:
    """Where one contestant ended.

    `figure` is the true one; None: what it recommends does not run.
    """

    contestant: str
    config: KnobConfig
    figure: float | None
    seconds: float
    starts: int


@dataclass(frozen=True, slots=True)
class Acceptances:
    """Counts over the decisions of one search.

    `not_better`: challengers whose true figure was no higher.
    """

    accepted: int
    falsely: int
    not_better: int
    worst_loss: float  # of the true figure by one false acceptance, as a share


@dataclass(frozen=True, slots=True)
class TunerRun:
    find: Find
    acceptances: Acceptances
    ended: str
    stages: tuple[TuneStage, ...]


class Arena:
    """One rig with one set of hills.

    Every contestant gets a bench of its own, with the same noise seed.
    """

    def __init__(self, planned: PlannedRig, seed: int) -> None:
        self.planned = planned
        self.rig = planned.rig
        self.seed = seed
        self.space = RigSpace(planned)
        self.truth = RuggedTruth(planned, seed)
        self.survey: Survey = self.truth.survey()

    def bench(self) -> ContestBench:
        return ContestBench(self.truth, seed=_APART + self.seed)

    def regret(self, find: Find) -> float:
        return 1.0 - (find.figure or 0.0) / self.survey.best_figure

    def tune(self, budget_s: float) -> TunerRun:
        search = KnobSearch(self.space, self.rig.baseline, self.rig.aim, budget_s=budget_s)
        bench = self.bench()
        starts = 0
        while (request := search.request) is not None:
            if isinstance(request, JudgeRequest):
                search.tell(
                    JudgeResult(
                        ok=True, words="SIMULATED: nothing was judged", seconds=0.0, skipped=True
                    )
                )
            else:
                starts += len(request.configs)
                search.tell(bench.measured(request))
        find = Find(
            "tuner", search.incumbent, self.truth.value(search.incumbent), bench.now_s, starts
        )
        return TunerRun(
            find, self.acceptances(search.stages), search.ended or "", tuple(search.stages)
        )

    def acceptances(self, stages: list[TuneStage]) -> Acceptances:
        accepted = falsely = 0
        # Each change from each place once, however often it was looked at.
        not_better: set[tuple[KnobConfig, KnobConfig]] = set()
        worst = 0.0
        for stage in stages[1:]:
            place = stage.config.turned({change.knob: change.before for change in stage.changes})
            before = self.truth.value(place)
            after = self.truth.value(stage.config)
            if before is None or (after is None and stage.decision is not StageDecision.ACCEPTED):
                continue
            is_better = after is not None and after > before * (1 + 1e-9)
            if not is_better:
                not_better.add((place, stage.config))
            if stage.decision is StageDecision.ACCEPTED:
                accepted += 1
                falsely += not is_better
                worst = max(worst, 1 - (after or 0.0) / before)
        return Acceptances(accepted, falsely, len(not_better), worst)

    def random_search(self, budget_s: float, *, again: bool) -> Find:
        """`again`: a fifth of the time is kept, and the best five are measured anew with three
        readings each.
        """
        rng = Random(f"{self.seed} random")
        bench = self.bench()
        starts = 0
        seen: dict[KnobConfig, float] = {}
        search_s = budget_s * (1 - _KEPT) if again else budget_s
        while bench.now_s < search_s:
            config = self._drawn(rng)
            figure = _one_reading(bench, config, 1)
            starts += 1
            if figure is not None:
                seen[config] = max(figure, seen.get(config, 0.0))
        best = sorted(seen, key=seen.__getitem__, reverse=True)
        if again and best:
            anew = {
                config: _one_reading(bench, config, _READINGS_AGAIN) or 0.0
                for config in best[:_AGAIN]
            }
            starts += len(anew)
            best = sorted(anew, key=anew.__getitem__, reverse=True)
        chosen = best[0] if best else self.rig.baseline
        name = "random, best again" if again else "random"
        return Find(name, chosen, self.truth.value(chosen), bench.now_s, starts)

    def tpe(self, budget_s: float) -> Find:
        """Optuna as it comes: ladders as numbers, failures as 0; what is refused beforehand costs
        it nothing.
        """
        optuna = _optuna()
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=_APART + self.seed)
        )
        bench = self.bench()
        starts = 0
        best = self.rig.baseline
        best_figure = 0.0
        for _ in range(_MOST_TRIALS):
            if bench.now_s >= budget_s:
                break
            trial = study.ask()
            config = self._suggested(trial)
            figure = 0.0
            if self.space.refusal(config) is None:
                starts += 1
                figure = _one_reading(bench, config, 1) or 0.0
            study.tell(trial, figure)
            if figure > best_figure:
                best = config
                best_figure = figure
        return Find("Optuna TPE", best, self.truth.value(best), bench.now_s, starts)

    def planner_alone(self) -> Find:
        """What is foreseen to be best, unmeasured."""
        best = self.survey.foreseen
        return Find("planner alone", best, self.truth.value(best), 0.0, 0)

    def _drawn(self, rng: Random) -> KnobConfig:
        while True:
            config = KnobConfig.of({knob.name: rng.choice(knob.values) for knob in self.rig.knobs})
            if self.space.refusal(config) is None:
                return config

    def _suggested(self, trial: Any) -> KnobConfig:
        values = {}
        for knob in self.rig.knobs:
            if knob.ordered:
                values[knob.name] = knob.values[
                    trial.suggest_int(knob.name, 0, len(knob.values) - 1)
                ]
            else:
                values[knob.name] = trial.suggest_categorical(knob.name, knob.values)
        return KnobConfig.of(values)


def others(arena: Arena, budget_s: float, *, with_tpe: bool) -> list[Find]:
    found: list[Callable[[], Find]] = [
        lambda: arena.random_search(budget_s, again=False),
        lambda: arena.random_search(budget_s, again=True),
        arena.planner_alone,
    ]
    if with_tpe:
        found.insert(2, lambda: arena.tpe(budget_s))
    return [one() for one in found]


def has_optuna() -> bool:
    try:
        _optuna()
    except ImportError:
        return False
    return True


def _optuna() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _one_reading(bench: ContestBench, config: KnobConfig, readings: int) -> float | None:
    """The mean of that many; None where it failed."""
    start = bench.measured(MeasureRequest((config,), readings, "screen", "")).starts[0]
    if isinstance(start.failure, ConfigFailure) or not start.figures:
        return None
    return sum(start.figures) / len(start.figures)
