"""The search: which change to try next, how often to measure it, when to accept it, and when to
stop.

Carry out `request`, give its answer to `took()`, until there is none. Without clock, chance and
I/O: the same answers lead to the same requests, which is how a stored search is taken up again.

    baseline twice -> screen what promises most a minute -> confirm with fresh readings -> accept
    or not ...

Readings that made a change look promising do not count when it is decided about: of many that
bring nothing, the luckiest always looks good."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from skep.stats.sequential import MeasurementNoise, SequentialTest, SequentialVerdict
from skep.tuner.candidates import SCREENED, STARTS, Chooser, Grain, Move, TimeBudget
from skep.tuner.measurements import Measurements, over_limit, paired, typical
from skep.tuner.predictions import Predictor
from skep.tuner.records import (
    BenchRequest,
    BenchResult,
    ConfigFailure,
    JudgeRequest,
    JudgeResult,
    KnobConfig,
    MeasurementRound,
    MeasureRequest,
    ServerStart,
    StageDecision,
    TuneGoal,
    TuneStage,
    Value,
    changes_words,
    value_words,
)
from skep.tuner.summary import limit_words, speed_words

_FAR = 1.1  # times a limit or another's share of it: clear


class ConfigTrial:
    """A configuration against the best so far: the starts of both sides, how long all took, and
    what they say.

    `verdict` is final once it is not OPEN. `late`: limits decided, not speed.
    """

    def __init__(
        self, config: KnobConfig, incumbent: KnobConfig, noise: MeasurementNoise, grain: Grain
    ) -> None:
        self.config = config
        self.predicted: float | None = None  # as a ratio
        self.changes = config.changes_from(incumbent)
        self.starts: list[ServerStart] = []
        self.beside: list[ServerStart] = []  # the incumbent's
        self.seconds = 0.0
        self.speeds = SequentialTest(noise, rounds=grain.rounds, worth=grain.worth)
        self.verdict = SequentialVerdict.OPEN
        self.late = False
        # held against earlier starts of the incumbent: the gain is larger than any drift
        self.alone = False

    @property
    def over_limits(self) -> tuple[float, float]:
        """Its own share of the limits, and the incumbent's."""
        return over_limit(self.starts), over_limit(self.beside)

    def took(self, first: ServerStart, second: ServerStart, seconds: float) -> None:
        """One round; `first` is the incumbent's start."""
        self.starts.append(second)
        self.beside.append(first)
        self.seconds += seconds
        if second.failure is not None:
            return
        self.speeds.feed(paired(first.readings, second.readings))
        here, there = self.over_limits
        self.late, enough = max(here, there) > 1, len(self.starts) >= STARTS
        self.verdict = self.speeds.verdict
        if (
            self.late
        ):  # within beats beyond; of two that are beyond the nearer one wins where it is clear
            nearer = here <= 1 or here * _FAR < there
            farther = there <= 1 or there * _FAR < here
            if nearer:
                self.verdict = SequentialVerdict.BETTER
            else:
                self.verdict = SequentialVerdict.SAME
            if farther:
                self.verdict = SequentialVerdict.WORSE
            if not enough and not (farther and here > _FAR):
                self.verdict = SequentialVerdict.OPEN
        if self.verdict is SequentialVerdict.OPEN and not self.speeds.pairs and enough:
            self.verdict = SequentialVerdict.SAME


MOST_ALARMS = 2  # failures of what was accepted, before one goes back
MOST_JUDGING_S = 600.0
JUDGING_SHARE = 0.1
_SPENT = "the budget is spent"
_TURNED_DOWN = {
    SequentialVerdict.WORSE: StageDecision.WORSE,
    SequentialVerdict.SAME: StageDecision.SAME,
}


class KnobSearch:
    def __init__(
        self, space: Predictor, baseline: KnobConfig, aim: TuneGoal, *, budget_s: float
    ) -> None:
        self.aim = aim
        self.baseline = baseline
        self.incumbent = baseline
        self.stages: list[TuneStage] = []
        self.failure: ConfigFailure | None = None  # of the baseline: nothing can be tuned
        self.ended: str | None = None  # why
        self._space = space
        self.time_budget = TimeBudget(space, baseline, budget_s)
        self._book = Measurements(space, baseline)
        self.chooser = Chooser(self._book, self.time_budget)
        self._trial: ConfigTrial | None = None
        self._judging = False
        self._altering = {knob.name for knob in space.knobs if knob.alters_answers}
        # What it is expected to take.
        self._judging_s = min(MOST_JUDGING_S, JUDGING_SHARE * budget_s)
        self._before: list[KnobConfig] = []  # what was best before
        self._alarms: dict[KnobConfig, int] = {}
        self._looks: dict[
            KnobConfig, ConfigTrial
        ] = {}  # first looks that nothing was decided about yet
        self.request = self._next()  # None: the search is over

    # What is asked and answered

    def took(self, answer: BenchResult) -> None:
        """The answer to `request`.

        What it decides, and what is asked next, is known when this returns.
        """
        request = self.request
        self.time_budget.spent_s += answer.seconds
        if isinstance(answer, JudgeResult):
            self._took_judged(answer)
        else:
            assert isinstance(request, MeasureRequest)
            self._took_round(request, answer)
        self.request = self._next() if self.failure is None else None
        if self.request is None and self.time_budget.is_tight:
            self._tell_looks()

    def _tell_looks(self) -> None:
        """A search that ends early has looked at more than it could decide about."""
        for trial in list(self._looks.values()):
            self._note(
                trial, StageDecision.UNDECIDED, "looked at once; something else promised more"
            )

    def _next(self) -> BenchRequest | None:
        if (
            self._book.counted_starts(self.baseline) < self.time_budget.baseline_starts
            and not self.stages
        ):
            words = f"the baseline, start {self._book.counted_starts(self.baseline) + 1}"
            return MeasureRequest(
                (self.baseline,), self.time_budget.readings(self.baseline), "baseline", words
            )
        if self._trial is not None:
            if not self._judging:
                return self._confirm(self._trial)
            if not self.time_budget.can_afford(self._judging_s):
                self._out_of_time(self._trial, "no time was left to judge its answers")
                return None
            # Not the step before: small losses would add up.
            return JudgeRequest(self.baseline, self._trial.config)
        if (chosen := self.chooser.choose(self.incumbent)) is None:
            self.ended = "; ".join(["no promising change is left", *self._never_started()])
            return None
        if isinstance(chosen, Move):
            self._trial = self._trial_of(chosen.config, self.chooser.grain)
            self._trial.alone = len(self.chooser.measured_for(chosen.config, self.incumbent)) == 1
            return self._confirm(self._trial)
        tight = self.time_budget.is_tight
        beside = () if tight else (self.incumbent,)
        chosen = chosen[:1] if tight else chosen
        while chosen and not self._affords((*beside, *chosen), SCREENED):
            chosen = chosen[:-1]
        if not chosen:
            self.ended = _SPENT
            return None
        words = (
            f"a first look at {'; '.join(changes_words(one, self.incumbent) for one in chosen)}"
        )
        return MeasureRequest((*beside, *chosen), SCREENED, "screen", words)

    def _never_started(self) -> list[str]:
        """Return for each knob which of its values were never up, and why the first of them was
        not.
        """
        told = []
        for knob in self._space.knobs:
            values = [value for value in knob.values if not self._was_up(knob.name, value)]
            if values and not knob.along:
                reason = self._reason_against(self.incumbent.turned({knob.name: values[0]}))
                words = ", ".join(map(value_words, values))
                told += (
                    [f"{knob.name} {words} did not start: {reason}"] if reason is not None else []
                )
        return told

    def _was_up(self, knob: str, value: Value) -> bool:
        return any(
            config.get(knob) == value and self._book.counted_starts(config)
            for config in self._book.configs
        )

    def _reason_against(self, config: KnobConfig) -> str | None:
        """None: nothing is, it only promised too little."""
        failed = next((failure for known, failure in self._book.failures if known == config), None)
        if failed is not None:
            reason: str | None = failed.cause
        else:
            reason = self._space.refusal(config)
        if reason is None:
            if self._book.is_narrow(config):
                return "another one left more memory free and ran out of it"
            return None
        spare = self._space.spare_bytes(config)
        if failed is not None:
            is_short = failed.is_of_memory
        else:
            is_short = spare is not None and spare < 0
        knobs = {knob.name for knob in self._space.knobs}
        if is_short and "memory_share" not in knobs:
            return f"{reason}; memory_share is not among the knobs"
        return reason

    def _confirm(self, trial: ConfigTrial) -> BenchRequest | None:
        if trial.alone:
            configs: tuple[KnobConfig, ...] = (trial.config,)
        else:
            configs = (self.incumbent, trial.config)
        readings = self.time_budget.readings(trial.config)
        if not self._affords(configs, readings):
            self._out_of_time(trial, "time ran out before it was decided")
            return None
        words = f"{changes_words(trial.config, self.incumbent)}: start {len(trial.starts) + 1}"
        return MeasureRequest(configs, readings, "confirm", words)

    def _out_of_time(self, trial: ConfigTrial, why: str) -> None:
        self._trial = None
        if trial.starts:
            self._note(trial, StageDecision.UNDECIDED, why)
        self.ended = _SPENT

    def _affords(self, configs: Sequence[KnobConfig], readings: int) -> bool:
        return self.time_budget.can_afford(self.time_budget.seconds(configs, readings))

    # What answers make of it

    def _took_round(self, request: MeasureRequest, answer: MeasurementRound) -> None:
        self.time_budget.learn(request.configs, request.readings, answer.seconds)
        self._book.took(answer, spared=self.incumbent)
        if request.purpose == "baseline":
            self._took_baseline(answer)
            return
        earlier = [start for start in self._book.starts(self.incumbent) if start.figures][-STARTS:]
        if self._trial is not None and self._trial.alone:
            answer = replace(answer, starts=(earlier[len(self._trial.starts)], *answer.starts))
        elif (
            self.incumbent not in request.configs
        ):  # a first look alone: beside the newest start of the best so far
            answer = replace(answer, starts=(earlier[-1], *answer.starts))
        first, *others = answer.starts
        if first.failure is None and request.purpose == "confirm":
            self._took_confirmation(answer)
            return
        for start in others:
            if start.failure is not None:
                self._fail(self._looked_at(start, answer), start.failure)
        if first.failure is not None:
            self._alarm(first)
        else:
            self._took_screening(answer)

    def _took_baseline(self, answer: MeasurementRound) -> None:
        starts = self._book.starts(self.baseline)
        trial = ConfigTrial(self.baseline, self.baseline, self._book.noise, self.chooser.grain)
        trial.starts = list(starts)
        trial.seconds = self.time_budget.spent_s
        self.failure = answer.starts[0].failure
        if len(starts) == 1:
            self.time_budget.settle()
        if self.failure is None and len(starts) < self.time_budget.baseline_starts:
            return
        if self.failure is None and self._book.figure(starts) is None:
            why = "no reading counts: the client was the limit, or nothing was answered"
            self.failure = ConfigFailure("errors-under-load", why)
        if self.failure is not None:
            self.ended = "the baseline does not run"
            self._fail(trial, self.failure)
            return
        self._book.settle(self.baseline)
        self._note(
            trial, StageDecision.BASELINE, f"{len(starts)} start{'s' if len(starts) > 1 else ''}"
        )

    def _took_screening(self, answer: MeasurementRound) -> None:
        grain = self.chooser.grain
        for start in answer.starts[1:]:
            if start.failure is not None:
                continue
            trial = self._looked_at(start, answer)
            if not start.figures:  # up, but without a reading that counts: twice is enough
                if len(self._book.starts(start.config)) >= STARTS:
                    self._note(
                        trial,
                        StageDecision.SAME,
                        speed_words(trial.starts, SequentialVerdict.SAME, None),
                    )
                    self.chooser.close(trial.changes, self.incumbent)
                continue
            self._looks[start.config] = trial
            belief = self._book.surrogate.gain(start.config, self.incumbent)
            seen_often = self._book.counted_starts(start.config) >= grain.screens
            if belief.hope < grain.floor or (seen_often and not self.chooser.is_promising(belief)):
                here, there = trial.over_limits
                trial.late = here > max(1.0, there)
                worse = trial.speeds.verdict is SequentialVerdict.WORSE
                if worse:
                    trial.verdict = SequentialVerdict.WORSE
                else:
                    trial.verdict = SequentialVerdict.SAME
                self._turn_down(trial)

    def _looked_at(self, start: ServerStart, answer: MeasurementRound) -> ConfigTrial:
        """Return the trial of a first look: that is enough to say no, and never to say yes."""
        assert isinstance(self.request, MeasureRequest)
        trial = self._trial_of(start.config, replace(self.chooser.grain, rounds=2))
        trial.took(answer.starts[0], start, answer.seconds / len(self.request.configs))
        return trial

    def _took_confirmation(self, answer: MeasurementRound) -> None:
        trial = self._trial
        assert trial is not None
        first, second = answer.starts
        trial.took(first, second, answer.seconds)
        if second.failure is not None:
            self._trial = None
            self._fail(trial, second.failure)
            return
        undecided = trial.verdict is SequentialVerdict.OPEN
        if trial.alone and (
            not self.chooser.is_large(trial.config, self.incumbent)
            or (undecided and len(trial.starts) == STARTS)
        ):
            self._trial = self._trial_of(trial.config, self.chooser.grain)  # again, side by side
            self._trial.seconds = trial.seconds
            return
        if undecided:
            return
        self._book.noise.add_means(*trial.speeds.round_means, sides=2)
        if trial.verdict is not SequentialVerdict.BETTER:
            self._turn_down(trial)
        elif {change.knob for change in trial.changes} & self._altering:
            self._judging = True
        else:
            self._accept(trial)

    def _took_judged(self, judged: JudgeResult) -> None:
        trial = self._trial
        self._judging = False
        assert trial is not None
        trial.seconds += judged.seconds
        self._judging_s = judged.seconds
        if judged.ok:
            self._accept(trial, judged.words)
        else:
            self._reject(
                trial,
                StageDecision.UNDECIDED if judged.skipped else StageDecision.ANSWERS_WORSE,
                judged.words,
            )

    def _accept(self, trial: ConfigTrial, words: str = "") -> None:
        self._trial = None
        self._note(
            trial, StageDecision.ACCEPTED, "; ".join(filter(None, (self._said(trial), words)))
        )
        self._before.append(self.incumbent)
        self.incumbent = trial.config
        self.chooser.moved(self.incumbent, trial.changes)

    def _turn_down(self, trial: ConfigTrial) -> None:
        self._reject(
            trial, StageDecision.OVER_LIMIT if trial.late else _TURNED_DOWN[trial.verdict]
        )

    def _reject(self, trial: ConfigTrial, decision: StageDecision, words: str = "") -> None:
        self._trial = None
        self._note(trial, decision, "; ".join(filter(None, (words, self._said(trial)))))
        self.chooser.close(trial.changes, self.incumbent, same=decision is StageDecision.SAME)

    def _said(self, trial: ConfigTrial) -> str:
        if trial.late:
            return limit_words(*trial.over_limits, self.aim.slo)
        return speed_words(trial.starts, trial.verdict, trial.speeds.ratio)

    def _fail(self, trial: ConfigTrial, failure: ConfigFailure) -> None:
        """Recorded, and not tried again."""
        self._note(trial, StageDecision.FAILED, f"{failure.title}: {failure}", failure)
        self.chooser.close(trial.changes, self.incumbent, failed=True)

    def _alarm(self, start: ServerStart) -> None:
        """The best so far died.

        Once may be chance; after that it is a failure of that configuration.
        """
        assert start.failure is not None
        count = self._alarms[start.config] = self._alarms.get(start.config, 0) + 1
        if count < MOST_ALARMS:
            return
        self._trial = None
        self._book.failed(start.config, start.failure)
        if not self._before:
            self.failure = start.failure
            self.ended = "the baseline does not run reliably"
            return
        self.incumbent = self._before.pop()
        trial = ConfigTrial(start.config, self.incumbent, self._book.noise, self.chooser.grain)
        trial.starts.append(start)
        self._fail(trial, start.failure)

    def _note(
        self,
        trial: ConfigTrial,
        decision: StageDecision,
        why: str,
        failure: ConfigFailure | None = None,
    ) -> None:
        """One more stage of the ladder."""
        read = [start for start in trial.starts if start.figures]
        stage = TuneStage(
            number=len(self.stages),
            changes=trial.changes,
            config=trial.config,
            decision=decision,
            why=why,
            figure=self._book.figure(trial.starts),
            ratio=trial.speeds.ratio if failure is None else None,
            predicted=trial.predicted,
            ttft_ms=typical(read, "ttft_ms"),
            tpot_ms=typical(read, "tpot_ms"),
            over_limit=over_limit(read),
            starts=len(read),
            readings=sum(len(one.figures) for one in read),
            seconds=trial.seconds,
            failure=failure,
            runs=tuple(start.run_id for start in trial.starts if start.run_id is not None),
        )
        self.stages.append(stage)
        self._looks.pop(trial.config, None)

    def _trial_of(self, config: KnobConfig, grain: Grain) -> ConfigTrial:
        trial = ConfigTrial(config, self.incumbent, self._book.noise, grain)
        there = self._space.predict(config)
        here = self._space.predict(self.incumbent)
        if (
            there and here and there != here
        ):  # else the planner has nothing to say on what was turned
            trial.predicted = there / here
        return trial
