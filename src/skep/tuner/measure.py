"""The bench on real engines: configurations started, warmed, measured in turns with the same fresh
tasks, and stopped.

One is up at a time, in another order each round, so that whatever drifts on the machine favours
nobody for long. Every start is a stored run. One that dies, answers with errors or falls silent
fails at once, with what its log says. Decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.metrics import repeat_of, task_tok_s, tpot_values, ttft_values
from skep.bench.session import Identity, Recording, RunSession, SessionProgress
from skep.bench.summary import TOLERATED_FAILURES, worst_share
from skep.bench.sweep import Sweep, SweepPlan, run_fingerprint
from skep.bench.tasks import TaskMaker, Workload, calibrate_on
from skep.catalog.gpus import HostFacts
from skep.catalog.presets import Preset
from skep.errors import EndpointError, UserError, first_of
from skep.stats.slo import SloLimits
from skep.store.database import Store
from skep.store.records import Request
from skep.tuner.measurements import median_known
from skep.tuner.predictions import tasks_for
from skep.tuner.quality_check import QualityGuard, Sheet
from skep.tuner.records import (
    BenchProgress,
    ConfigFailed,
    ConfigFailure,
    JudgeRequest,
    JudgeResult,
    KnobConfig,
    MeasurementRound,
    MeasureRequest,
    OnProgress,
    ServerStart,
    TuneGoal,
    TuneReading,
)
from skep.tuner.trial_server import TrialServer, TrialServers
from skep.workload.prompts import TokenCalibration


def reading_of(
    rows: Sequence[Request], aim: TuneGoal, *, limited: bool = False, slo: SloLimits | None = None
) -> TuneReading:
    """Return what requests of the goal's load add up to. `limited`: the client was the limit."""
    whole = repeat_of(0, rows, None, limited=limited)
    effective = whole.effective_tok_s if whole.output_tokens else None
    task_speed = task_tok_s(rows)
    return TuneReading(
        figure=task_speed if aim.metric == "task_tok_s" else effective,
        effective_tok_s=effective,
        task_tok_s=task_speed,
        ttft_ms=median_known(ttft_values(rows)),
        tpot_ms=median_known(tpot_values(rows)),
        wall_s=whole.wall_s,
        requests=len(rows),
        failed=sum(not row.ok for row in rows),
        limited=limited,
        over_limit=worst_share(slo, rows) if slo is not None else 0.0,
    )


_T = TypeVar("_T")

LOOK_EVERY_S = 0.25
# for a dead engine's log to be read before its errors are taken for all there is to know
FIND_OUT_S = 3.0
FEW_FAILURES = 1  # of a reading: may happen to anybody


class MeasureTimeouts(msgspec.Struct, frozen=True):
    reading_s: float = 6.0  # at least, by as many tasks as that takes
    warm_up_s: float = 45.0  # after which no further batch is begun
    hang_s: float = 120.0  # without a token of anybody, where prompts are not long
    request_s: float = 3600.0  # silence ends it before


LENGTHS_S = 120.0  # for each prompt by which lengths are measured, at least
FIRST_TOK_S = 50.0  # prompts are read at least so fast, until somebody has shown how fast
SLOWER = 4.0  # than whoever was slowest so far, before it is a hang


@dataclass(eq=False)
class WatchedLoad:
    """The load on one server, which is given up where it dies, errs or falls silent."""

    served: TrialServer
    session: RunSession
    hang_s: float
    _total: int = 0  # requests of what is sent now; 0: not known before
    _first: int = 0  # the place of its first row

    async def send(self, work: Coroutine[Any, Any, _T], total: int = 0) -> _T:
        """Do the work and return its result. Raise ConfigFailed where the server fails under it.

        `total`: the requests that it sends.
        """
        self._total = total
        self._first = len(self.session.recording.rows)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                result = await work
                watching.cancel()
        except BaseExceptionGroup as group:
            error = first_of(group)
            if isinstance(error, EndpointError):
                raise await self._errors(error.message) from None
            raise error from None
        if self._too_many:
            raise await self._errors()
        self.session.recording.check()
        return result

    @property
    def _failed(self) -> list[Request]:
        return [row for row in self.session.recording.rows[self._first :] if not row.ok]

    @property
    def _too_many(self) -> bool:
        return len(self._failed) > max(FEW_FAILURES, TOLERATED_FAILURES * self._total)

    async def _watch(self) -> None:
        sender = self.session.driver.sender
        rows = self.session.recording.rows
        last_progress = (-1, -1)
        since = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            failure = self.served.trouble()
            if failure is not None:
                raise ConfigFailed(failure)
            if self._too_many:
                raise await self._errors()
            progress = (len(rows), sender.reads())
            if progress != last_progress:
                last_progress = progress
                since = time.monotonic()
            elif time.monotonic() - since > self.hang_s:
                in_flight = f"{len(sender.in_flight)} requests in flight"
                words = f"no token came for {self.hang_s:g} s with {in_flight}"
                raise ConfigFailed(ConfigFailure("hang", words, self.served.last_words()))

    async def _errors(self, message: str | None = None) -> ConfigFailed:
        """Return the failure behind errors: that of a dead engine is its death, once its log has
        been read.
        """
        until = time.monotonic() + FIND_OUT_S
        while time.monotonic() < until:
            failure = self.served.trouble()
            if failure is not None:
                return ConfigFailed(failure)
            await asyncio.sleep(LOOK_EVERY_S)
        message = message or next((row.error or row.error_kind for row in self._failed), None)
        if self._total:
            of = f"{len(self._failed)} of {self._total} requests"
        else:
            of = "the warm-up requests"
        words = f"{of} failed: {message or 'no reason was given'}"
        return ConfigFailed(ConfigFailure("errors-under-load", words, self.served.last_words()))


@dataclass(eq=False)
class TrialRun:
    """One start of one configuration under way. What fails has the readings until then."""

    config: KnobConfig
    request: MeasureRequest
    on_progress: OnProgress
    run_id: str | None = None
    readings: list[TuneReading] = field(default_factory=list)


@dataclass(repr=False, eq=False)
class EngineBench:
    """Carries the requests of one tuning out, one at a time."""

    servers: TrialServers
    store: Store
    host: HostFacts
    tuning: str  # id
    aim: TuneGoal
    seed: int
    preset_of: Callable[[KnobConfig], Preset]
    # rounds that were measured before it was taken up again: their prompts are not fresh
    first_round: int = 0
    guard: QualityGuard | None = None
    timeouts: MeasureTimeouts = field(default_factory=MeasureTimeouts)
    _calibration: TokenCalibration | None = None
    _rates: dict[KnobConfig, float] = field(default_factory=dict)  # tasks a second
    _count: int = 0  # tasks of each reading of this round
    _first_s: float = 0.0  # the longest that somebody waited for a first token

    def __post_init__(self) -> None:
        if self.aim.slo:
            self._slo: SloLimits | None = SloLimits.parse(self.aim.slo)
        else:
            self._slo = None
        self._round = self.first_round

    async def measure(self, request: MeasureRequest, on_progress: OnProgress) -> MeasurementRound:
        began = time.monotonic()
        configs = request.configs
        self._round += 1  # all readings of a round are as long
        rates = [self._rates[config] for config in configs if config in self._rates]
        # One that is measured alone, and is not known yet, gets as many tasks as the last one.
        if rates or not self._count:
            self._count = tasks_for(self.aim.concurrency, rates, self.timeouts.reading_s)
        made_starts: dict[KnobConfig, ServerStart] = {}
        in_turn = configs if self._round % 2 else configs[::-1]
        for config in in_turn:
            failed = sum(start.failure is not None for start in made_starts.values())
            if len(configs) - failed >= min(2, len(configs)):  # else nothing is left to compare
                made_starts[config] = await self._start(config, request, on_progress)
        starts = (made_starts.get(config) or ServerStart(config, 0.0) for config in configs)
        return MeasurementRound(tuple(starts), time.monotonic() - began)

    async def judge(self, request: JudgeRequest, on_progress: OnProgress) -> JudgeResult:
        """Compare the answers of both; the best so far is asked first.

        One that does not start answers nothing.
        """
        if self.guard is None:
            return JudgeResult(
                ok=True,
                words="no quality guard: answers were not compared",
                seconds=0.0,
                skipped=True,
            )
        began = time.monotonic()
        before = None
        try:
            before = await self._sheet(self.guard, request.incumbent, on_progress)
            after = await self._sheet(self.guard, request.challenger, on_progress)
            judged = self.guard.compare(before, after)
        except ConfigFailed as error:
            whose = "the baseline" if before is None else "it"
            words = f"its answers were not judged: {whose} did not start: {error.failure}"
            judged = JudgeResult(ok=False, words=words, seconds=0.0, skipped=before is None)
        return replace(judged, seconds=time.monotonic() - began)

    async def _start(
        self, config: KnobConfig, request: MeasureRequest, on_progress: OnProgress
    ) -> ServerStart:
        """Start, warm, measure and stop one configuration. What fails has the readings until
        then.
        """
        began = time.monotonic()
        trial = TrialRun(config, request, on_progress)
        start = ServerStart(config, 0.0)
        on_progress(BenchProgress(config, "starting"))
        try:
            async with AsyncExitStack() as stack:
                served = await stack.enter_async_context(self.servers.open(self._preset(config)))
                start = replace(start, start_s=served.start_s)
                await self._take(served, trial, stack)
        except ConfigFailed as error:
            start_s = start.start_s or time.monotonic() - began
            start = replace(start, start_s=start_s, failure=error.failure)
        return replace(start, run_id=trial.run_id, readings=tuple(trial.readings))

    async def _take(self, served: TrialServer, trial: TrialRun, stack: AsyncExitStack) -> None:
        """Warm what is served, and take the readings of a trial."""
        config = trial.config
        level = self.aim.concurrency
        readings = trial.request.readings

        def tell(now: SessionProgress) -> None:
            if now.level:
                place = (now.repeat + 1, readings)
            else:
                place = (0, 0)
            activity = "measuring" if now.level else "warming up"
            trial.on_progress(BenchProgress(config, activity, *place, now.tok_s))

        endpoint, maker = await self._known(served)
        plan = SweepPlan(
            concurrency=(level,),
            tasks=self._count,
            runs=readings,
            budget_s=None,
            workload=maker.workload,
            timeout_s=self.timeouts.request_s,
            keep_text=False,
            kind="tune",
        )
        identity = self._identity(plan, endpoint, maker, config, trial.request)
        recording = await stack.enter_async_context(
            Recording(self.store, endpoint, self.host, identity)
        )
        trial.run_id = recording.run_id
        sweep = Sweep(plan, endpoint, recording, maker, tell)
        await stack.enter_async_context(sweep.session.open())
        load = WatchedLoad(served, sweep.session, self._hang_s())
        limit_s = self.timeouts.warm_up_s
        await load.send(sweep.session.warm_up(maker, level, limit_s=limit_s, quick=False))
        for _ in range(readings):
            rows = await load.send(sweep.run_level(level), self._count)
            limited = recording.samples[-1].client_limited
            trial.readings.append(self._read(config, rows, limited=limited))

    def _read(self, config: KnobConfig, rows: Sequence[Request], *, limited: bool) -> TuneReading:
        reading = reading_of(rows, self.aim, limited=limited, slo=self._slo)
        self._rates[config] = reading.requests / max(reading.wall_s, 1e-9)
        self._first_s = max(self._first_s, (reading.ttft_ms or 0.0) / 1000)
        return reading

    async def _known(self, served: TrialServer) -> tuple[Endpoint, TaskMaker]:
        """Return what answers there, and tasks for it.

        Lengths are measured once: all configurations get the same prompts.
        """
        aim = self.aim
        seed = Random(f"{self.tuning}/{self.seed}/{self._round}").getrandbits(48)
        try:
            endpoint = await find_endpoint(served.url, served.model)
            if self._calibration is None:
                limit_s = max(LENGTHS_S, self._hang_s())
                self._calibration = await calibrate_on(
                    endpoint, aim.input_tokens, seed, timeout_s=limit_s
                )
        except EndpointError as error:
            failure = served.trouble() or ConfigFailure(
                "errors-under-load", error.message, served.last_words()
            )
            raise ConfigFailed(failure) from None
        load = Workload(
            prompt_tokens=aim.input_tokens,
            max_tokens=aim.output_tokens,
            fixed_output=True,
            seed=seed,
        )
        return endpoint, TaskMaker(load, self._calibration)

    def _identity(
        self,
        plan: SweepPlan,
        endpoint: Endpoint,
        maker: TaskMaker,
        config: KnobConfig,
        request: MeasureRequest,
    ) -> Identity:
        document: dict[str, Any] = {
            **msgspec.to_builtins(plan),
            **maker.lengths,
            **self._trial_words(config, request),
        }
        return Identity("tune", run_fingerprint(plan, endpoint, self.host), document)

    def _trial_words(self, config: KnobConfig, request: MeasureRequest) -> dict[str, Any]:
        """Return what a stored run tells of the trial that it is of."""
        return {
            "slo": self.aim.slo,
            "tuning": self.tuning,
            "configuration": config.as_dict,
            "config_key": config.key,
            "purpose": request.purpose,
            "round": self._round,
        }

    def _hang_s(self) -> float:
        """Return how long no token may come: a slow engine reads long prompts for minutes."""
        if self._first_s:
            first_s = SLOWER * self._first_s
        else:
            first_s = self.aim.input_tokens * self.aim.concurrency / FIRST_TOK_S
        return max(self.timeouts.hang_s, first_s)

    def _preset(self, config: KnobConfig) -> Preset:
        """Return the preset of a configuration. Knobs that contradict each other are a start that
        fails.
        """
        try:
            return self.preset_of(config)
        except UserError as error:
            raise ConfigFailed(
                ConfigFailure("refused", error.message, remedy=error.hint)
            ) from None

    async def _sheet(
        self, guard: QualityGuard, config: KnobConfig, on_progress: OnProgress
    ) -> Sheet:
        sheet = guard.known(config)
        if sheet is not None:
            return sheet
        on_progress(BenchProgress(config, "starting"))
        async with self.servers.open(self._preset(config)) as served:
            return await guard.answers(served, config, on_progress)
