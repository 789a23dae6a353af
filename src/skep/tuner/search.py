"""The search: which change to try next, how often to measure it, when to accept it, and when to
stop.

Carry out `request`, give its answer to `tell()`, until there is none. Without clock, chance and
I/O: the same answers lead to the same requests, which is how a stored search is taken up again.

    baseline twice -> screen what promises most gain a minute -> confirm with fresh readings
    -> accept or not ...

Readings that made a change look promising do not count when it is decided about: of many that
bring nothing, the luckiest always looks good.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from skep.stats.sequential import MeasurementNoise, SequentialTest, SequentialVerdict
from skep.tuner.candidates import SCREENED, STARTS, Chooser, Grain, Move, TimeBudget
from skep.tuner.measurements import (
    Measurements,
    over_limit,
    paired,
    typical,
    typical_sessions,
)
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

_FAR = 1.1  # times a limit, or times the other side's share of it: clearly farther


class ConfigTrial:
    """A configuration against the best so far: the starts of both sides, how long all took, and
    what they say.

    `verdict` is final once it is not OPEN. `decided_by_limits`: not by speed.
    """

    def __init__(
        self, config: KnobConfig, incumbent: KnobConfig, noise: MeasurementNoise, grain: Grain
    ) -> None:
        self.config = config
        self.predicted: float | None = None  # as a ratio
        self.changes = config.changes_from(incumbent)
        self.starts: list[ServerStart] = []  # of this configuration
        self.incumbent_starts: list[ServerStart] = []
        self.seconds = 0.0
        self.speeds = SequentialTest(noise, rounds=grain.rounds, worth=grain.worth)
        self.verdict = SequentialVerdict.OPEN
        self.decided_by_limits = False
        # It is compared with earlier starts of the incumbent: the gain is larger than any drift.
        self.is_unpaired = False

    @property
    def over_limits(self) -> tuple[float, float]:
        """Its own share of the limits, and the incumbent's."""
        return over_limit(self.starts), over_limit(self.incumbent_starts)

    def add_round(
        self, incumbent_start: ServerStart, own_start: ServerStart, seconds: float
    ) -> None:
        """Take one round of both sides in, and decide what it shows."""
        self.starts.append(own_start)
        self.incumbent_starts.append(incumbent_start)
        self.seconds += seconds
        if own_start.failure is not None:
            return
        self.speeds.feed(paired(incumbent_start.readings, own_start.readings))
        has_enough_starts = len(self.starts) >= STARTS
        self.decided_by_limits = max(self.over_limits) > 1
        if self.decided_by_limits:
            self.verdict = self._verdict_of_limits(has_enough_starts=has_enough_starts)
        else:
            self.verdict = self.speeds.verdict
        nothing_to_read = self.verdict is SequentialVerdict.OPEN and not self.speeds.pairs
        if nothing_to_read and has_enough_starts:
            self.verdict = SequentialVerdict.SAME

    def _verdict_of_limits(self, *, has_enough_starts: bool) -> SequentialVerdict:
        """Return what the limits decide where at least one side is beyond them.

        Within beats beyond. Of two that are beyond, the nearer one wins where that is clear.
        """
        own_share, rival_share = self.over_limits
        is_nearer = own_share <= 1 or own_share * _FAR < rival_share
        is_farther = rival_share <= 1 or rival_share * _FAR < own_share
        is_clearly_beyond = is_farther and own_share > _FAR
        if not has_enough_starts and not is_clearly_beyond:
            return SequentialVerdict.OPEN
        if is_farther:
            return SequentialVerdict.WORSE
        if is_nearer:
            return SequentialVerdict.BETTER
        return SequentialVerdict.SAME


MOST_ALARMS = 2  # failures of an accepted configuration, before the search goes back
MOST_JUDGING_S = 600.0
JUDGING_SHARE = 0.1
_SPENT = "the budget is spent"
_TURNED_DOWN = {
    SequentialVerdict.WORSE: StageDecision.WORSE,
    SequentialVerdict.SAME: StageDecision.SAME,
}


class KnobSearch:
    """Which configuration to measure next and what to make of it, until nothing promises more.

    Every decision is a stage; a stage that is noted is never changed.
    """

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
        self._measurements = Measurements(space, baseline)
        self.chooser = Chooser(self._measurements, self.time_budget)
        self._trial: ConfigTrial | None = None
        self._judging = False
        self._altering_knobs = {knob.name for knob in space.knobs if knob.alters_answers}
        # Seconds that judging answers is expected to take.
        self._judging_s = min(MOST_JUDGING_S, JUDGING_SHARE * budget_s)
        self._earlier_incumbents: list[KnobConfig] = []  # incumbents before this one
        self._alarms: dict[KnobConfig, int] = {}
        # Trials of first looks about which nothing was decided yet.
        self._looks: dict[KnobConfig, ConfigTrial] = {}
        self.request = self._next()  # None: the search is over

    # Requests and their answers

    def tell(self, answer: BenchResult) -> None:
        """Take the answer to `request` in.

        What it decides, and what is requested next, is known when this returns.
        """
        request = self.request
        self.time_budget.spent_s += answer.seconds
        if isinstance(answer, JudgeResult):
            self._take_judged(answer)
        else:
            assert isinstance(request, MeasureRequest)
            self._take_round(request, answer)
        self.request = self._next() if self.failure is None else None
        if self.request is None and self.time_budget.is_tight:
            self._note_looks()

    def _note_looks(self) -> None:
        """Note the first looks that nothing was decided about: a search that ends early has more
        of them than it could decide about.
        """
        for trial in list(self._looks.values()):
            self._note(
                trial, StageDecision.UNDECIDED, "looked at once; something else promised more"
            )

    def _next(self) -> BenchRequest | None:
        """Return what to ask the bench for; None: the search is over."""
        starts = self._measurements.counted_starts(self.baseline)
        if not self.stages and starts < self.time_budget.baseline_starts:
            return MeasureRequest(
                configs=(self.baseline,),
                readings=self.time_budget.readings(self.baseline),
                purpose="baseline",
                words=f"the baseline, start {starts + 1}",
            )
        if self._trial is not None and self._judging:
            return self._judge(self._trial)
        if self._trial is not None:
            return self._confirm(self._trial)
        chosen = self.chooser.choose(self.incumbent)
        if chosen is None:
            self.ended = "; ".join(["no promising change is left", *self._never_started()])
            return None
        if isinstance(chosen, Move):
            self._trial = self._trial_of(chosen.config, self.chooser.grain)
            self._trial.is_unpaired = (
                len(self.chooser.measured_for(chosen.config, self.incumbent)) == 1
            )
            return self._confirm(self._trial)
        return self._screen(chosen)

    def _judge(self, trial: ConfigTrial) -> JudgeRequest | None:
        if not self.time_budget.can_afford(self._judging_s):
            self._out_of_time(trial, "no time was left to judge its answers")
            return None
        # Against the baseline, not the incumbent: small losses would add up.
        return JudgeRequest(self.baseline, trial.config)

    def _screen(self, configs: tuple[KnobConfig, ...]) -> MeasureRequest | None:
        """Return a first look at as many of these as there is time for."""
        if self.time_budget.is_tight:
            beside: tuple[KnobConfig, ...] = ()
            configs = configs[:1]
        else:
            beside = (self.incumbent,)
        while configs and not self._affords((*beside, *configs), SCREENED):
            configs = configs[:-1]
        if not configs:
            self.ended = _SPENT
            return None
        changes = "; ".join(changes_words(config, self.incumbent) for config in configs)
        return MeasureRequest(
            configs=(*beside, *configs),
            readings=SCREENED,
            purpose="screen",
            words=f"a first look at {changes}",
        )

    def _never_started(self) -> list[str]:
        """Return for each knob which values never ran, and why the first of them did not."""
        reasons = []
        for knob in self._space.knobs:
            values = [value for value in knob.values if not self._was_up(knob.name, value)]
            if not values or knob.along:
                continue
            reason = self._reason_against(self.incumbent.turned({knob.name: values[0]}))
            if reason is not None:
                words = ", ".join(map(value_words, values))
                reasons.append(f"{knob.name} {words} did not start: {reason}")
        return reasons

    def _was_up(self, knob: str, value: Value) -> bool:
        return any(
            config.get(knob) == value and self._measurements.counted_starts(config)
            for config in self._measurements.configs
        )

    def _reason_against(self, config: KnobConfig) -> str | None:
        """Return why a configuration did not run; None: it only promised too little."""
        failure = self._failure_of(config)
        if failure is not None:
            reason = failure.cause
            is_short = failure.is_of_memory
        else:
            refusal = self._space.refusal(config)
            if refusal is None and self._measurements.is_narrow(config):
                return "another one left more memory free and ran out of it"
            if refusal is None:
                return None
            reason = refusal
            spare = self._space.spare_bytes(config)
            is_short = spare is not None and spare < 0
        knobs = {knob.name for knob in self._space.knobs}
        if is_short and "memory_share" not in knobs:
            return f"{reason}; memory_share is not among the knobs"
        return reason

    def _failure_of(self, config: KnobConfig) -> ConfigFailure | None:
        for failed_config, failure in self._measurements.failures:
            if failed_config == config:
                return failure
        return None

    def _confirm(self, trial: ConfigTrial) -> BenchRequest | None:
        if trial.is_unpaired:
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

    # What answers change

    def _take_round(self, request: MeasureRequest, answer: MeasurementRound) -> None:
        self.time_budget.learn(request.configs, request.readings, answer.seconds)
        self._measurements.add_round(answer, spared=self.incumbent)
        if request.purpose == "baseline":
            self._take_baseline(answer)
            return
        answer = self._beside_incumbent(request, answer)
        incumbent_start, *others = answer.starts
        if incumbent_start.failure is None and request.purpose == "confirm":
            self._take_confirmation(answer)
            return
        for start in others:
            if start.failure is not None:
                self._fail(self._trial_of_look(start, answer), start.failure)
        if incumbent_start.failure is not None:
            self._alarm(incumbent_start)
        else:
            self._take_screening(answer)

    def _beside_incumbent(
        self, request: MeasureRequest, answer: MeasurementRound
    ) -> MeasurementRound:
        """Return the round with a start of the best so far in front, an earlier one where it was
        not measured again.
        """
        starts = self._measurements.starts(self.incumbent)
        earlier = [start for start in starts if start.figures][-STARTS:]
        if self._trial is not None and self._trial.is_unpaired:
            beside = earlier[len(self._trial.starts)]
        elif self.incumbent not in request.configs:  # a first look alone: beside the newest start
            beside = earlier[-1]
        else:
            return answer
        return replace(answer, starts=(beside, *answer.starts))

    def _take_baseline(self, answer: MeasurementRound) -> None:
        starts = self._measurements.starts(self.baseline)
        trial = self._new_trial(self.baseline, self.baseline, self.chooser.grain)
        trial.starts = list(starts)
        trial.seconds = self.time_budget.spent_s
        self.failure = answer.starts[0].failure
        if len(starts) == 1:
            self.time_budget.settle()
        if self.failure is None and len(starts) < self.time_budget.baseline_starts:
            return
        if self.failure is None and self._measurements.figure(starts) is None:
            why = "no reading counts: the client was the limit, or nothing was answered"
            self.failure = ConfigFailure("errors-under-load", why)
        if self.failure is not None:
            self.ended = "the baseline does not run"
            self._fail(trial, self.failure)
            return
        self._measurements.settle(self.baseline)
        plural = "s" if len(starts) > 1 else ""
        self._note(trial, StageDecision.BASELINE, f"{len(starts)} start{plural}")

    def _take_screening(self, answer: MeasurementRound) -> None:
        for start in answer.starts[1:]:
            if start.failure is not None:
                continue
            trial = self._trial_of_look(start, answer)
            if start.figures:
                self._sort_out(start, trial)
            elif len(self._measurements.starts(start.config)) >= STARTS:
                # Up, but without a reading that counts: twice is enough.
                words = speed_words(trial.starts, SequentialVerdict.SAME, None)
                self._note(trial, StageDecision.SAME, words)
                self.chooser.close(trial.changes, self.incumbent)

    def _sort_out(self, start: ServerStart, trial: ConfigTrial) -> None:
        """Keep a first look in mind, or turn its configuration down."""
        grain = self.chooser.grain
        self._looks[start.config] = trial
        belief = self._measurements.surrogate.gain(start.config, self.incumbent)
        is_seen_often = self._measurements.counted_starts(start.config) >= grain.screens
        is_hopeless = is_seen_often and not self.chooser.is_promising(belief)
        if belief.hope >= grain.floor and not is_hopeless:
            return
        own_share, rival_share = trial.over_limits
        trial.decided_by_limits = own_share > max(1.0, rival_share)
        if trial.speeds.verdict is SequentialVerdict.WORSE:
            trial.verdict = SequentialVerdict.WORSE
        else:
            trial.verdict = SequentialVerdict.SAME
        self._turn_down(trial)

    def _trial_of_look(self, start: ServerStart, answer: MeasurementRound) -> ConfigTrial:
        """Return the trial of a first look: that is enough to say no, and never to say yes."""
        assert isinstance(self.request, MeasureRequest)
        trial = self._trial_of(start.config, replace(self.chooser.grain, rounds=2))
        trial.add_round(answer.starts[0], start, answer.seconds / len(self.request.configs))
        return trial

    def _take_confirmation(self, answer: MeasurementRound) -> None:
        trial = self._trial
        assert trial is not None
        incumbent_start, own_start = answer.starts
        trial.add_round(incumbent_start, own_start, answer.seconds)
        if own_start.failure is not None:
            self._trial = None
            self._fail(trial, own_start.failure)
            return
        undecided = trial.verdict is SequentialVerdict.OPEN
        if trial.is_unpaired and self._needs_side_by_side(trial):
            self._trial = self._trial_of(trial.config, self.chooser.grain)  # again, side by side
            self._trial.seconds = trial.seconds
            return
        if undecided:
            return
        self._measurements.noise.add_means(*trial.speeds.round_means, sides=2)
        if trial.verdict is not SequentialVerdict.BETTER:
            self._turn_down(trial)
        elif {change.knob for change in trial.changes} & self._altering_knobs:
            self._judging = True
        else:
            self._accept(trial)

    def _needs_side_by_side(self, trial: ConfigTrial) -> bool:
        """Return whether a trial that was measured alone has to be repeated beside the incumbent:
        its gain is not that large any more, or it stayed open.
        """
        if not self.chooser.is_large(trial.config, self.incumbent):
            return True
        return trial.verdict is SequentialVerdict.OPEN and len(trial.starts) == STARTS

    def _take_judged(self, judged: JudgeResult) -> None:
        trial = self._trial
        self._judging = False
        assert trial is not None
        trial.seconds += judged.seconds
        self._judging_s = judged.seconds
        if judged.ok:
            self._accept(trial, judged.words)
        elif judged.skipped:
            self._reject(trial, StageDecision.UNDECIDED, judged.words)
        else:
            self._reject(trial, StageDecision.ANSWERS_WORSE, judged.words)

    def _accept(self, trial: ConfigTrial, words: str = "") -> None:
        self._trial = None
        reasons = filter(None, (self._reason(trial), words))
        self._note(trial, StageDecision.ACCEPTED, "; ".join(reasons))
        self._earlier_incumbents.append(self.incumbent)
        self.incumbent = trial.config
        self.chooser.moved(self.incumbent, trial.changes)

    def _turn_down(self, trial: ConfigTrial) -> None:
        if trial.decided_by_limits:
            self._reject(trial, StageDecision.OVER_LIMIT)
        else:
            self._reject(trial, _TURNED_DOWN[trial.verdict])

    def _reject(self, trial: ConfigTrial, decision: StageDecision, words: str = "") -> None:
        self._trial = None
        self._note(trial, decision, "; ".join(filter(None, (words, self._reason(trial)))))
        self.chooser.close(trial.changes, self.incumbent, same=decision is StageDecision.SAME)

    def _reason(self, trial: ConfigTrial) -> str:
        if trial.decided_by_limits:
            return limit_words(*trial.over_limits, self.aim.slo)
        return speed_words(trial.starts, trial.verdict, trial.speeds.ratio)

    def _fail(self, trial: ConfigTrial, failure: ConfigFailure) -> None:
        """Note a dead end, which is not tried again."""
        self._note(trial, StageDecision.FAILED, f"{failure.title}: {failure}", failure)
        self.chooser.close(trial.changes, self.incumbent, failed=True)

    def _alarm(self, start: ServerStart) -> None:
        """Take in that the incumbent failed.

        Once may be chance; the second time that configuration has failed, and the search goes back
        to the incumbent before.
        """
        assert start.failure is not None
        count = self._alarms.get(start.config, 0) + 1
        self._alarms[start.config] = count
        if count < MOST_ALARMS:
            return
        self._trial = None
        self._measurements.add_failure(start.config, start.failure)
        if not self._earlier_incumbents:
            self.failure = start.failure
            self.ended = "the baseline does not run reliably"
            return
        self.incumbent = self._earlier_incumbents.pop()
        trial = self._new_trial(start.config, self.incumbent, self.chooser.grain)
        trial.starts.append(start)
        self._fail(trial, start.failure)

    def _note(
        self,
        trial: ConfigTrial,
        decision: StageDecision,
        why: str,
        failure: ConfigFailure | None = None,
    ) -> None:
        """Add the stage that ends a trial."""
        starts_with_figures = [start for start in trial.starts if start.figures]
        stage = TuneStage(
            number=len(self.stages),
            changes=trial.changes,
            config=trial.config,
            decision=decision,
            why=why,
            figure=self._measurements.figure(trial.starts),
            ratio=trial.speeds.ratio if failure is None else None,
            predicted=trial.predicted,
            ttft_ms=typical(starts_with_figures, "ttft_ms"),
            tpot_ms=typical(starts_with_figures, "tpot_ms"),
            over_limit=over_limit(starts_with_figures),
            starts=len(starts_with_figures),
            readings=sum(len(start.figures) for start in starts_with_figures),
            seconds=trial.seconds,
            failure=failure,
            runs=tuple(start.run_id for start in trial.starts if start.run_id is not None),
            sessions=typical_sessions(starts_with_figures),
        )
        self.stages.append(stage)
        self._looks.pop(trial.config, None)

    def _trial_of(self, config: KnobConfig, grain: Grain) -> ConfigTrial:
        trial = self._new_trial(config, self.incumbent, grain)
        speed = self._space.predict(config)
        best_speed = self._space.predict(self.incumbent)
        # Equal: the planner knows nothing of the knobs that differ.
        if speed and best_speed and speed != best_speed:
            trial.predicted = speed / best_speed
        return trial

    def _new_trial(self, config: KnobConfig, incumbent: KnobConfig, grain: Grain) -> ConfigTrial:
        return ConfigTrial(config, incumbent, self._measurements.noise, grain)
