"""A search and a bench small enough to be read, and a tuning for them to be stored under.

The search tries the values of one knob in turn, one of them refused, one judged, and ends with a curve: seven requests.
The bench gives the nth request always the same answer, so that one that was broken off can be compared with another.
"""

import asyncio
from random import Random

from skep.tuner.records import (
    BenchProgress,
    ConfigFailure,
    CurvePoint,
    CurveRequest,
    CurveResult,
    JudgeRequest,
    JudgeResult,
    Knob,
    KnobConfig,
    MeasurementRound,
    MeasureRequest,
    ServerStart,
    StageDecision,
    TuneGoal,
    TuneReading,
    TuneStage,
    Tuning,
)
from skep.units import Interval

AT = 1_794_752_553.25  # 2026-11-15 14:22:33 UTC
SLOTS = (1, 2, 4, 8, 16, 32)
REFUSED, JUDGED, FAILING = 8, 4, 16
WORTH = {1: 1.0, 2: 1.3, 4: 1.6, 32: 0.8}
KNOB = Knob("slots", "slots", SLOTS, ordered=True)
BASELINE = KnobConfig.of({"graphs": False, "share": 0.9, "slots": 1})
OUT_OF_MEMORY = ConfigFailure("out-of-memory", "no room", "CUDA out of memory", "fewer slots", mended=(("slots", 8),))


def a_tuning(**changes) -> Tuning:
    values = {
        "id": "", "created_at": AT, "model": "smol", "engine": "vllm", "rig": "rtx-3090",
        "aim": TuneGoal("effective_tok_s", 4), "budget_s": 7200.0, "seed": 3, "simulated": True, "baseline": BASELINE,
        "knobs": (KNOB,), "base": {"model": "smol"}, "host": {"cpu_cores": 2}, "skep_version": "0.0.0",
    }  # fmt: skip
    return Tuning(**values | changes)


class SmallSearch:
    def __init__(self, slots=SLOTS) -> None:
        self.stages: list[TuneStage] = []
        self.incumbent = BASELINE
        self.ended: str | None = None
        self._left = list(slots)
        self._asked = None
        self._round: MeasurementRound | None = None

    def following(self):
        if self._asked is None:
            self._asked = self._next()
        return self._asked

    def took(self, answer) -> None:
        request, self._asked = self._asked, None
        if isinstance(answer, MeasurementRound):
            self._round = answer
            config = request.configs[-1]
            better = not self.stages or self._figure(-1) > self._figure(0)
            if not (better and config["slots"] == JUDGED):
                self._decide(config, better=better)
        elif isinstance(answer, JudgeResult):
            self._decide(request.challenger, better=answer.ok)
        else:
            self.ended = "all was tried"

    def _next(self):
        if self.ended:
            return None
        if self._round is not None and self._left[0] == JUDGED:
            return JudgeRequest(self.incumbent, self.incumbent.turned({"slots": JUDGED}))
        if self._left and self._left[0] == REFUSED:
            config = self.incumbent.turned({"slots": self._left.pop(0)})
            self._stage(config, StageDecision.FAILED, "refused", failure=ConfigFailure("refused", "too many"))
        if not self._left:
            return CurveRequest((BASELINE, self.incumbent), (1, 4))
        challenger = self.incumbent.turned({"slots": self._left[0]})
        configs = (self.incumbent, challenger) if self.stages else (BASELINE,)
        return MeasureRequest(configs, 2, "screen" if self.stages else "baseline", f"slots {self._left[0]}")

    def _decide(self, config: KnobConfig, *, better: bool) -> None:
        failure = self._round.starts[-1].failure
        kept = StageDecision.ACCEPTED if self.stages else StageDecision.BASELINE
        figure = None if failure else Interval(self._figure(-1) / 2, self._figure(-1), float("inf"))
        if failure is not None:
            self._stage(config, StageDecision.FAILED, failure.cause, failure=failure)
        else:
            self._stage(config, kept if better else StageDecision.WORSE, "measured", figure=figure)
        self.incumbent = config if better and failure is None else self.incumbent
        self._left.pop(0)
        self._round = None

    def _stage(self, config: KnobConfig, decision: StageDecision, why: str, **more) -> None:
        changes = config.changes_from(self.incumbent)
        self.stages.append(TuneStage(len(self.stages), changes, config, decision, why, starts=1, **more))

    def _figure(self, side: int) -> float:
        return sum(self._round.starts[side].figures)


class NumberedBench:
    """`before(number, request)` is awaited before an request is answered; numbers go on from what was answered."""

    def __init__(self, answered: int = 0, before=None) -> None:
        self.number = answered
        self._before = before

    async def measure(self, request, on_progress):
        rng = await self._begin(request)
        on_progress(BenchProgress(request.configs[0], "measuring", 1, request.readings))
        return MeasurementRound(
            tuple(start(config, request.readings, rng) for config in request.configs), rng.uniform(10, 20)
        )

    async def judge(self, request, on_progress):
        rng = await self._begin(request)
        on_progress(BenchProgress(request.challenger, "judging"))
        return JudgeResult(ok=True, words="as many right", seconds=rng.uniform(1, 2))

    async def curve(self, request, on_progress):
        rng = await self._begin(request)
        on_progress(BenchProgress(request.configs[0], "measuring"))
        pairs = [(config, level) for config in request.configs for level in request.levels]
        points = (CurvePoint(level, config, Interval(1.0, rng.uniform(1, 9), 9.0)) for config, level in pairs)
        return CurveResult(tuple(points), 5.0)

    async def _begin(self, request) -> Random:
        self.number += 1
        await asyncio.sleep(0)
        if self._before is not None:
            await self._before(self.number, request)
        return Random(f"answer {self.number}")


def start(config: KnobConfig, readings: int, rng: Random) -> ServerStart:
    if config["slots"] == FAILING:
        return ServerStart(config, rng.uniform(1, 9), failure=OUT_OF_MEMORY)
    figures = [rng.gauss(20.0, 1.0) * WORTH[config["slots"]] for _ in range(readings)]
    return ServerStart(config, rng.uniform(1, 9), tuple(TuneReading(f, f, f / 4, 90.0, 20.0, 8.0, 12) for f in figures))
