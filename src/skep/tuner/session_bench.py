"""The bench on real engines with sessions of agents as the load.

After each start all sessions send what they hold from before; then they are let go on together,
and their turns are cut into readings, the nth turns of both sides side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.agent_load import (
    WARM_UP_QUESTION,
    WARM_UP_TOKENS,
    AgentPlan,
    PlannedConversation,
    SessionPlayer,
    planned,
    run_fingerprint,
)
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.load_shapes import OnRow
from skep.bench.metrics import cached_share, repeat_of, tpot_values, ttft_values
from skep.bench.session import Identity, Recording, RunSession, SessionProgress
from skep.bench.summary import worst_share
from skep.bench.tasks import BenchTask, Sender, calibrate_on
from skep.catalog.session_shapes import SessionShape, find_shape
from skep.errors import EndpointError
from skep.host.power import PowerMeter
from skep.stats.percentiles import percentile
from skep.stats.slo import SloLimits
from skep.store.records import Request
from skep.tuner.measure import LENGTHS_S, EngineBench, TrialRun, WatchedLoad
from skep.tuner.measurements import median_known
from skep.tuner.power_knob import POWER_LIMIT
from skep.tuner.power_limits import PowerLimits
from skep.tuner.records import (
    BenchProgress,
    ConfigFailed,
    ConfigFailure,
    KnobConfig,
    MeasureRequest,
    OnProgress,
    ServerStart,
    SessionReading,
    TuneReading,
)
from skep.tuner.session_load import alone, fill_tokens, scripts_of
from skep.tuner.trial_server import TrialServer
from skep.workload.session_text import SessionTexts

_WARM_UP_INDEX = 1 << 30  # behind all turns
FIRST_TOK_S = 200.0  # prompts of sessions are read at least so fast, or nobody waits for them


class SessionCourse:
    """Holds sessions back until all have sent what they hold from before, and says when as many
    turns were answered as all readings take.
    """

    def __init__(self, sessions: int, turns: int, on_open: Callable[[], None]) -> None:
        self._filling = set(range(sessions))
        self._playing = set(range(sessions))
        self._turns_left = turns
        self._on_open = on_open
        self._open = asyncio.Event()
        self.over = asyncio.Event()

    async def hold(self, conversation: PlannedConversation, turn_number: int) -> None:
        if turn_number == 0:
            self._fill(conversation.number)
            await self._open.wait()

    def count_row(self, row: Request) -> None:
        if row.ok and row.turn:
            self._turns_left -= 1
            if self._turns_left <= 0:
                self.over.set()

    def leave(self, number: int) -> None:
        """Take in that a session has ended, or has failed."""
        self._fill(number)
        self._playing.discard(number)
        if not self._playing:
            self.over.set()

    def _fill(self, number: int) -> None:
        self._filling.discard(number)
        if not self._filling and not self._open.is_set():
            self._on_open()
            self._open.set()


@dataclass(eq=False)
class SessionRun:
    """The rows of one start: from when on sessions were let go on, and how they are cut."""

    shape: SessionShape
    sessions: int
    turns: int  # of each in a reading
    slo: SloLimits | None = None
    opened_s: float | None = None  # None: they were not let go on
    mean_w: float | None = None

    @property
    def reading_turns(self) -> int:
        """The turns of all sessions in a reading."""
        return self.sessions * self.turns

    def reading(self, rows: Sequence[Request], number: int, *, limited: bool) -> TuneReading:
        """Return the nth reading, from 0: so many turns in the order in which they ended, over the
        time since those before. It does not count where they are too few, or one failed.
        """
        later = sorted((row for row in rows if row.turn), key=lambda row: row.ended_s)
        first = number * self.reading_turns
        within = later[first : first + self.reading_turns]
        begin_s = later[first - 1].ended_s if first and within else self.opened_s
        if len(within) < self.reading_turns or begin_s is None:
            return TuneReading(None, None, None, None, None, wall_s=0.0, requests=len(within))
        wall_s = within[-1].ended_s - begin_s
        figure = None
        if all(row.ok for row in later[: first + self.reading_turns]) and wall_s > 0:
            figure = 60.0 * len(within) / wall_s
        first_ms = ttft_values(within)
        return TuneReading(
            figure=figure,
            effective_tok_s=repeat_of(0, within, None, limited=limited).effective_tok_s,
            task_tok_s=None,
            ttft_ms=median_known(first_ms),
            tpot_ms=median_known(tpot_values(within)),
            wall_s=wall_s,
            requests=len(within),
            failed=sum(not row.ok for row in within),
            limited=limited,
            over_limit=worst_share(self.slo, within) if self.slo is not None else 0.0,
            sessions=SessionReading(
                session_s=self._session_s(rows, within),
                first_p50_ms=median_known(first_ms),
                first_p95_ms=percentile(first_ms, 95) if first_ms else None,
                hit_rate=cached_share(within),
                mean_w=self.mean_w,
            ),
        )

    def _session_s(self, rows: Sequence[Request], within: Sequence[Request]) -> float | None:
        """Return the time of a session of the usual number of turns, pauses included."""
        ended = {(row.session, row.turn): row.ended_s for row in rows if row.turn}
        seconds = []
        for row in within:
            before_s = ended.get((row.session, (row.turn or 0) - 1), self.opened_s)
            if before_s is not None:
                seconds.append(row.ended_s - before_s)
        if not seconds:
            return None
        return fmean(seconds) * self.shape.turns.median


@dataclass(repr=False, eq=False)
class SessionBench(EngineBench):
    """Carries the requests of a tuning on sessions out. `shape`: of the sessions, where it is not
    the goal's.
    """

    shape: SessionShape | None = None
    meter: PowerMeter | None = None
    power_limits: PowerLimits | None = None

    async def _start(
        self, config: KnobConfig, request: MeasureRequest, on_progress: OnProgress
    ) -> ServerStart:
        watts = config.get(POWER_LIMIT)
        if self.power_limits is not None and isinstance(watts, int):
            await asyncio.to_thread(self.power_limits.set, watts)
        return await super()._start(config, request, on_progress)

    async def _take(self, served: TrialServer, trial: TrialRun, stack: AsyncExitStack) -> None:
        sessions = self.aim.sessions
        assert sessions is not None
        count = self.aim.concurrency
        readings = trial.request.readings
        shape = alone(self.shape or find_shape(sessions.load))
        # One reading more than is taken, so that no session ends before the last one is full.
        scripts = scripts_of(shape, count, sessions.window_tokens, sessions.turns, readings + 1)
        conversations = planned(scripts)
        endpoint, texts = await self._texts_for(served)
        identity = self._identity_of(trial, endpoint)
        recording = await stack.enter_async_context(
            Recording(self.store, endpoint, self.host, identity)
        )
        trial.run_id = recording.run_id
        session = RunSession(
            endpoint,
            recording,
            partial(self._tell, trial),
            widest=count,
            keep_text=False,
            timeout_s=self.timeouts.request_s,
        )
        await stack.enter_async_context(session.open())
        run = SessionRun(shape, count, sessions.turns, slo=self._slo)
        load = WatchedLoad(served, session, self._hang_of(shape))
        turns = readings * run.reading_turns
        total = count + turns
        limited = False
        try:
            await load.send(self._warm_up(session, texts, shape))
            session.begin(level=count, repeat=0, done=0, total=total)
            played = self._play(session, run, conversations, texts, turns)
            limited = await load.send(played, total)
            session.report(ended=True)
        finally:
            taken = [
                run.reading(recording.rows, number, limited=limited) for number in range(readings)
            ]
            trial.readings += [reading for reading in taken if reading.figure is not None]
            longest_ms = max((reading.ttft_ms or 0.0 for reading in taken), default=0.0)
            self._first_s = max(self._first_s, longest_ms / 1000)

    async def _play(
        self,
        session: RunSession,
        run: SessionRun,
        conversations: Sequence[PlannedConversation],
        texts: SessionTexts,
        turns: int,
    ) -> bool:
        """Play all sessions until so many turns were answered. Return whether the client was the
        limit.
        """
        recording = session.recording
        sender_of_run = session.driver.sender

        def let_go_on() -> None:
            run.opened_s = sender_of_run.now()
            if self.meter is not None:
                self.meter.begin()

        course = SessionCourse(run.sessions, turns, let_go_on)

        async def load(sender: Sender, on_row: OnRow) -> None:
            def take(row: Request) -> None:
                on_row(_as_warm_up(row))
                course.count_row(row)

            player = SessionPlayer(
                sender,
                take,
                texts,
                level=run.sessions,
                repeat=0,
                name=recording.run_id,
                hold=course.hold,
            )

            async def play(conversation: PlannedConversation) -> None:
                await player.play(conversation)
                course.leave(conversation.number)

            async with asyncio.TaskGroup() as places:
                plays = map(play, conversations)
                playing = [places.create_task(coroutine) for coroutine in plays]
                await course.over.wait()
                for task in playing:
                    task.cancel()

        _, limited = await session.driver.run_load(
            level=run.sessions,
            repeat=0,
            load=load,
            width=run.sessions,
            on_row=session.count_row,
            is_closed=False,
        )
        energy = self.meter.end() if self.meter is not None else None
        if energy is not None:
            run.mean_w = energy["mean_w"]
        return limited

    async def _warm_up(
        self, session: RunSession, texts: SessionTexts, shape: SessionShape
    ) -> None:
        """Send the beginning that all sessions share: a server in use has had it."""
        session.begin(level=0, repeat=0, done=0, total=1)
        messages = [
            {"role": "system", "content": texts.shared(shape.name, shape.shared_tokens)},
            {"role": "user", "content": WARM_UP_QUESTION},
        ]
        task = BenchTask(
            level=0,
            repeat=0,
            index=_WARM_UP_INDEX,
            kind="warm-up",
            messages=messages,
            max_tokens=WARM_UP_TOKENS,
            traffic=shape.name,
        )
        row, _ = await session.driver.sender.ask(task)
        session.recording.add_row(row)
        if not row.ok:
            raise EndpointError(f"the warm-up request failed: {row.error}")

    async def _texts_for(self, served: TrialServer) -> tuple[Endpoint, SessionTexts]:
        """Return what answers there, and the texts of this round, which both sides get."""
        seed = Random(f"{self.tuning}/{self.seed}/{self._round}").getrandbits(48)
        try:
            endpoint = await find_endpoint(served.url, served.model)
            if self._calibration is None:
                self._calibration = await calibrate_on(endpoint, None, seed, timeout_s=LENGTHS_S)
        except EndpointError as error:
            failure = served.trouble() or ConfigFailure(
                "errors-under-load", error.message, served.last_words()
            )
            raise ConfigFailed(failure) from None
        return endpoint, SessionTexts(seed, self._calibration)

    def _identity_of(self, trial: TrialRun, endpoint: Endpoint) -> Identity:
        sessions = self.aim.sessions
        assert sessions is not None
        plan = AgentPlan(
            load=sessions.load,
            concurrency=(self.aim.concurrency,),
            sessions=self.aim.concurrency,
            turns_at_most=1 + sessions.turns * trial.request.readings,
            window_tokens=sessions.window_tokens,
            seed=self.seed,
            timeout_s=self.timeouts.request_s,
        )
        document: Mapping[str, Any] = {
            **msgspec.to_builtins(plan),
            **self._trial_words(trial.config, trial.request),
        }
        return Identity("tune", run_fingerprint(plan, endpoint, self.host), document)

    def _tell(self, trial: TrialRun, now: SessionProgress) -> None:
        count = self.aim.concurrency
        sessions = self.aim.sessions
        later = now.done - count
        if not now.level or later < 0 or sessions is None:
            progress = BenchProgress(trial.config, "warming up", tok_s=now.tok_s)
        else:
            readings = trial.request.readings
            number = min(readings, 1 + later // (count * sessions.turns))
            progress = BenchProgress(trial.config, "measuring", number, readings, now.tok_s)
        trial.on_progress(progress)

    def _hang_of(self, shape: SessionShape) -> float:
        """Return how long no token may come: at first all sessions send long prompts at once."""
        sessions = self.aim.sessions
        assert sessions is not None
        tokens = fill_tokens(shape, self.aim.concurrency, sessions.window_tokens)
        return max(self.timeouts.hang_s, tokens / FIRST_TOK_S)


def _as_warm_up(row: Request) -> Request:
    """Return the row as one of the warm-up, where it is what a session holds from before."""
    if row.turn == 0:
        return replace(row, level=0)
    return row
