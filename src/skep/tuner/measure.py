"""The bench on real engines: configurations started, warmed, measured in turns with the same fresh tasks, and stopped.

What may be up at once is measured side by side, so that whatever the machine does meanwhile befalls all; what may not
is measured one after the other, in another order each time. Every start is a stored run. A side that dies, answers
with errors or falls silent fails at once, with what its log says. Decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.metrics import repeat_of, task_tok_s, tpot_values, ttft_values
from skep.bench.session import Identity, LoadGenerator, Recording, TokenPace, warm_up
from skep.bench.summary import TOLERATED_FAILURES, worst_share
from skep.bench.sweep import SweepPlan, run_fingerprint
from skep.bench.tasks import TaskMaker, Workload, calibrate_on
from skep.catalog.gpus import HostFacts
from skep.catalog.presets import Preset
from skep.errors import EndpointError, UserError, first_of
from skep.host.power import PowerMeter
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
    rows: Sequence[Request],
    aim: TuneGoal,
    *,
    limited: bool = False,
    slo: SloLimits | None = None,
    joules: float | None = None,
) -> TuneReading:
    whole = repeat_of(0, rows, None, limited=limited)
    effective = whole.effective_tok_s if whole.output_tokens else None
    each = task_tok_s(rows)
    per_joule = whole.output_tokens / joules if joules and whole.output_tokens else None
    return TuneReading(
        figure={"effective_tok_s": effective, "task_tok_s": each, "tok_per_joule": per_joule}[aim.metric],
        effective_tok_s=effective,
        task_tok_s=each,
        ttft_ms=median_known(ttft_values(rows)),
        tpot_ms=median_known(tpot_values(rows)),
        wall_s=whole.wall_s,
        requests=len(rows),
        failed=sum(not row.ok for row in rows),
        limited=limited,
        over_limit=worst_share(slo, rows) if slo is not None else 0.0,
        tok_per_joule=per_joule,
    )


def foreseen_per_s(batch: Sequence[Request], output_tokens: int) -> float | None:
    """Tasks a second with answers of this length, from a batch of the warm-up, whose answers are shorter."""
    answered = [row for row in batch if row.ok and row.output_tokens]
    firsts, gaps = ttft_values(answered), tpot_values(answered)
    wall_s = repeat_of(0, batch, None).wall_s if answered else 0.0
    if not firsts or wall_s <= 0:
        return None
    first, each = min(firsts), median(gaps) if gaps else 0.0  # the first of them waited for nobody
    short = median(row.output_tokens or 0 for row in answered)
    whole = first + output_tokens * each
    return len(answered) / (wall_s * max(1.0, whole / max(first + short * each, 1e-9)))


_T = TypeVar("_T")

LOOK_EVERY_S = 0.25
FIND_OUT_S = 3.0  # for a dead engine's log to be read before its errors are taken for all there is to know
FEW_FAILURES = 1  # of a reading: may happen to anybody


class MeasureTimeouts(msgspec.Struct, frozen=True):
    reading_s: float = 6.0  # at least, by as many tasks as that takes
    warm_up_s: float = 45.0  # at most; then it is taken as warm
    hang_s: float = 120.0  # without a token of anybody, where prompts are not long
    request_s: float = 3600.0  # silence ends it before


WARM_S = 15.0  # of a warm-up, however short the readings are
LENGTHS_S = 120.0  # for each prompt by which lengths are measured, at least
FIRST_TOK_S = 50.0  # prompts are read at least so fast, until somebody has shown how fast
SLOWER = 4.0  # than whoever was slowest so far, before it is a hang


@dataclass(slots=True)
class _ServerRun:
    """One configuration in one round: its server and the load on it, and what came of it."""

    config: KnobConfig
    purpose: str
    round: int
    readings: int
    on_progress: OnProgress
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    start_s: float = 0.0
    run_id: str | None = None
    failure: ConfigFailure | None = None
    taken: list[TuneReading] = field(default_factory=list)
    served: TrialServer = field(init=False)  # this and the next three: once it is up
    maker: TaskMaker = field(init=False)
    recording: Recording = field(init=False)
    driver: LoadGenerator = field(init=False)
    hang_s: float = 0.0
    _pace: TokenPace = field(default_factory=TokenPace)
    _what: str = "starting"
    _place: tuple[int, int] = (0, 0)
    _total: int = 0
    _failed: int = 0
    _error: str | None = None
    _moved: int = 0  # tokens and ends of requests

    async def carry_out(self, work: Awaitable[None]) -> None:
        """A failure is kept, and what is open for it is closed at once."""
        try:
            await work
        except ConfigFailed as error:
            self.failure = error.failure
            await self.stack.__aexit__(type(error), error, error.__traceback__)

    async def warm_up(self, width: int, limit_s: float) -> list[Request]:
        """Return its last batch."""
        self.begin("warming up")
        try:
            await self._watched(warm_up(self.driver, self.maker, width, on_row=self._took, limit_s=limit_s))
        except EndpointError as error:
            raise await self._errors(error.message) from None
        return self.recording.rows[-width:]

    async def take(self, level: int, repeat: int, count: int) -> tuple[list[Request], bool]:
        """Return the rows of so many tasks, and whether the client was the limit."""
        tasks = self.maker.tasks(level, repeat, count)
        self.begin("measuring", len(tasks), (len(self.taken) + 1, self.readings))
        rows, limited = await self._watched(self.driver.run_tasks(level, repeat, tasks, level, self._took))
        if self._too_many:
            raise await self._errors(self._error)
        self.recording.check()
        return rows, limited

    def begin(self, what: str, total: int = 0, place: tuple[int, int] = (0, 0)) -> None:
        self._what, self._total, self._place = what, total, place
        self._failed, self._pace = 0, TokenPace()
        self._tell()

    def _took(self, row: Request) -> None:
        if not row.ok:
            self._failed += 1
            self._error = self._error or row.error or row.error_kind
        self._pace.ended(len(row.arrivals_s))
        self._moved += len(row.arrivals_s) + 1

    @property
    def _too_many(self) -> bool:
        return self._failed > max(FEW_FAILURES, TOLERATED_FAILURES * self._total)

    async def _watched(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                found = await work
                watching.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        return found

    async def _watch(self) -> None:
        sender = self.driver.sender
        seen, since = -1, time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            if (failure := self.served.trouble()) is not None:
                raise ConfigFailed(failure)
            if self._too_many:
                raise await self._errors(self._error)
            moved = self._moved + sender.reads()
            if moved != seen:
                seen, since = moved, now
            elif now - since > self.hang_s:
                words = f"no token came for {self.hang_s:g} s with {len(sender.in_flight)} requests in flight"
                raise ConfigFailed(ConfigFailure("hang", words, self.served.last_words()))
            self._pace.seen(sender.reads(), now)
            self._tell()

    def _tell(self) -> None:
        with suppress(Exception):  # a picture that cannot be drawn is no reason to lose a reading
            self.on_progress(BenchProgress(self.config, self._what, *self._place, self._pace.per_s))

    async def _errors(self, said: str | None) -> ConfigFailed:
        """Errors of a dead engine are told as its death, once its log has been read."""
        until = time.monotonic() + FIND_OUT_S
        while time.monotonic() < until:
            if (failure := self.served.trouble()) is not None:
                return ConfigFailed(failure)
            await asyncio.sleep(LOOK_EVERY_S)
        of = f"{self._failed} of {self._total} requests" if self._total else "the warm-up requests"
        words = f"{of} failed: {said or 'no reason was given'}"
        return ConfigFailed(ConfigFailure("errors-under-load", words, self.served.last_words()))


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
    first_round: int = 0  # rounds that were measured before it was taken up again: their prompts are not fresh
    guard: QualityGuard | None = None
    meter: PowerMeter | None = None
    patience: MeasureTimeouts = field(default_factory=MeasureTimeouts)
    _calibration: TokenCalibration | None = None
    _rates: dict[KnobConfig, float] = field(default_factory=dict)  # tasks a second
    _sides: Sequence[KnobConfig] = ()  # of this round
    _count: int | None = None  # tasks of each reading of this round
    _reading_s: float | None = None  # that the last one took
    _first_s: float = 0.0  # the longest that somebody waited for a first token

    def __post_init__(self) -> None:
        self._slo = SloLimits.parse(self.aim.slo) if self.aim.slo else None
        self._round = self.first_round

    async def measure(self, request: MeasureRequest, on_progress: OnProgress) -> MeasurementRound:
        began, configs, enough = time.monotonic(), request.configs, min(2, len(request.configs))
        self._round, self._count, self._sides = self._round + 1, None, configs
        runs = [_ServerRun(one, request.purpose, self._round, request.readings, on_progress) for one in configs]
        in_turns = runs if self._round % 2 else runs[::-1]  # what drifts favours nobody for long
        for group in [runs] if self._together(configs) else [[run] for run in in_turns]:
            if sum(one.failure is None for one in runs) >= enough:
                await self._side_by_side(group, request.readings, min(enough, len(group)))
        starts = (ServerStart(o.config, o.start_s, tuple(o.taken), o.failure, o.run_id) for o in runs)
        return MeasurementRound(tuple(starts), time.monotonic() - began)

    async def judge(self, request: JudgeRequest, on_progress: OnProgress) -> JudgeResult:
        """The best so far is asked first. One that does not start answers nothing."""
        if self.guard is None:
            return JudgeResult(ok=True, words="no quality guard: answers were not compared", seconds=0.0, skipped=True)
        began, before = time.monotonic(), None
        try:
            before = await self._sheet(self.guard, request.incumbent, on_progress)
            after = await self._sheet(self.guard, request.challenger, on_progress)
        except ConfigFailed as error:
            words = "it did not start, so its answers were not judged"
            if before is None:
                words = "its answers could not be compared with the baseline's, which did not start"
            words, seconds = f"{words}: {error.failure}", time.monotonic() - began
            return JudgeResult(ok=False, words=words, seconds=seconds, skipped=before is None)
        return replace(self.guard.compare(before, after), seconds=time.monotonic() - began)

    async def _side_by_side(self, runs: Sequence[_ServerRun], readings: int, enough: int) -> None:
        async with AsyncExitStack() as stack:
            for run in runs:
                await stack.enter_async_context(run.stack)
                await run.carry_out(self._up(run))
            for run in runs:
                if run.failure is None:
                    await run.carry_out(self._warm(run))
            for repeat in range(readings):
                for run in reversed(runs) if repeat % 2 else runs:
                    if run.failure is None and sum(one.failure is None for one in runs) >= enough:
                        await run.carry_out(self._reading(run, repeat))

    async def _warm(self, run: _ServerRun) -> None:
        """No longer than what is measured then."""
        limit_s = self.patience.warm_up_s
        if self._reading_s is not None:
            limit_s = min(limit_s, max(WARM_S, self._reading_s))
        batch = await run.warm_up(self.aim.concurrency, limit_s)
        if (per_s := foreseen_per_s(batch, self.aim.output_tokens)) is not None:
            self._rates.setdefault(run.config, per_s)

    async def _up(self, run: _ServerRun) -> None:
        """Started and known; its requests are stored from here on."""
        run.begin("starting")
        preset, stack, began = self._preset(run.config), run.stack, time.monotonic()
        try:
            served = await stack.enter_async_context(self.servers.open(preset))
        finally:
            run.start_s = time.monotonic() - began
        run.start_s = served.start_s
        try:
            endpoint = await find_endpoint(served.url, served.model)
            run.maker = await self._maker(endpoint, run)
        except EndpointError as error:
            failure = served.trouble() or ConfigFailure("errors-under-load", error.message, served.last_words())
            raise ConfigFailed(failure) from None
        run.served, run.hang_s = served, self._hang_s()
        run.recording = await stack.enter_async_context(self._recording(endpoint, run))
        run.run_id = run.recording.run_id
        run.driver = LoadGenerator(
            endpoint, run.recording, timeout_s=self.patience.request_s, keep_text=False,
            most_connections=self.aim.concurrency, meter=self.meter,
        )  # fmt: skip
        stack.push_async_callback(run.driver.close)
        stack.callback(run.begin, "stopping")

    async def _maker(self, endpoint: Endpoint, run: _ServerRun) -> TaskMaker:
        """Lengths are measured once: all configurations get the same prompts."""
        aim, seed = self.aim, Random(f"{self.tuning}/{self.seed}/{run.round}").getrandbits(48)
        if self._calibration is None:
            limit_s = max(LENGTHS_S, self._hang_s())
            self._calibration = await calibrate_on(endpoint, aim.input_tokens, seed, timeout_s=limit_s)
        load = Workload(prompt_tokens=aim.input_tokens, max_tokens=aim.output_tokens, fixed_output=True, seed=seed)
        return TaskMaker(load, self._calibration)

    def _recording(self, endpoint: Endpoint, run: _ServerRun) -> Recording:
        plan = SweepPlan(
            concurrency=(self.aim.concurrency,), runs=run.readings, budget_s=None, workload=run.maker.workload,
            slo=self._slo, keep_text=False, kind="tune",
        )  # fmt: skip
        config: dict[str, Any] = {
            **msgspec.to_builtins(plan),
            "slo": self.aim.slo,
            **run.maker.lengths,
            "tuning": self.tuning,
            "configuration": run.config.as_dict,
            "config_key": run.config.key,
            "purpose": run.purpose,
            "round": run.round,
        }
        return Recording(
            self.store, endpoint, self.host, Identity("tune", run_fingerprint(plan, endpoint, self.host), config)
        )

    async def _reading(self, run: _ServerRun, repeat: int) -> None:
        """All of a round are as long, those of all sides."""
        if self._count is None:
            rates = [self._rates[config] for config in self._sides if config in self._rates]
            self._count = tasks_for(self.aim.concurrency, rates, self.patience.reading_s)
        rows, limited = await run.take(self.aim.concurrency, repeat, self._count)
        facts = (one.fact for one in run.recording.facts if one.repeat == repeat)
        joules = next((float(fact["joules"]) for fact in facts if "joules" in fact), None)
        found = reading_of(rows, self.aim, limited=limited, slo=self._slo, joules=joules)
        run.taken.append(found)
        self._rates[run.config] = found.requests / max(found.wall_s, 1e-9)
        self._reading_s = found.wall_s
        self._first_s = max(self._first_s, (found.ttft_ms or 0.0) / 1000)

    def _hang_s(self) -> float:
        """Long prompts on a slow engine are read for minutes before the first token comes."""
        read_s = self.aim.input_tokens * self.aim.concurrency / FIRST_TOK_S
        return max(self.patience.hang_s, SLOWER * self._first_s if self._first_s else read_s)

    def _together(self, configs: Sequence[KnobConfig]) -> bool:
        try:
            return len(configs) == 1 or self.servers.together([self._preset(config) for config in configs])
        except ConfigFailed:
            return False

    def _preset(self, config: KnobConfig) -> Preset:
        """Knobs that contradict each other are a start that fails."""
        try:
            return self.preset_of(config)
        except UserError as error:
            raise ConfigFailed(ConfigFailure("refused", error.message, remedy=error.hint)) from None

    async def _sheet(self, guard: QualityGuard, config: KnobConfig, on_progress: OnProgress) -> Sheet:
        if (known := guard.known(config)) is not None:
            return known
        on_progress(BenchProgress(config, "starting"))
        async with self.servers.open(self._preset(config)) as served:
            return await guard.answers(served, config, on_progress)
