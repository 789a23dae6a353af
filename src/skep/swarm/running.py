"""Carries out a run, from its first task or from where an earlier session left it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.engines.logfile import held
from skep.errors import EndpointError, KeyRefused, SkepError
from skep.host.power import PowerMeter, open_meter
from skep.places import LOOPBACK, Paths
from skep.store.database import open_store
from skep.store.swarm import SessionOutcome, SwarmStore
from skep.swarm.checking.answers import Checking
from skep.swarm.journal import pending_tasks
from skep.swarm.line import Line
from skep.swarm.locks import lock_path
from skep.swarm.orders import Order, order_from_json
from skep.swarm.outage import FIRST_LOOK_S, next_pause_s
from skep.swarm.output import ResultsFile
from skep.swarm.pace import Pace
from skep.swarm.progress import Progress
from skep.swarm.schedule import Pending, Schedule
from skep.swarm.shift import Cancelled, Shift, told_by
from skep.swarm.tally import Tally
from skep.swarm.work import ChatWork, WorkMaker
from skep.swarm.writer import Writer
from skep.tasks import Result, RunState, SwarmRun, Task

__all__ = ["carry_out", "lock_path"]


async def carry_out(
    paths: Paths,
    run_id: str,
    *,
    url: str | None = None,
    model: str | None = None,
    output: Path | None = None,
    after_cancel: int | None = None,
    key: str | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
    work: WorkMaker | None = None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> RunState:
    """Until every task has its result. What has one already is not sent again.

    Cancelled: what is under way is broken off, what is done is kept, and it may be carried out again. An endpoint that
    is down is waited for, as long as the order's deadline says; then EndpointError. `url`, `model`: of an endpoint
    that has moved, for this session. `output`: a results file for this session, instead of the run's own.
    `after_cancel`: the run's newest cancel when this session was asked for; a later one is meant for this session, even
    one that came before it began. Without it: none, or, of a run that had sessions already, the newest until now.
    """
    lock = lock_path(paths, run_id)
    hint = f"`skep swarm show {run_id}` shows how it stands, `skep swarm cancel {run_id}` stops it"
    with held(lock, f"swarm run `{run_id}`", hint), open_store(paths.store) as store:
        swarm = SwarmStore(store)
        run = swarm.run(run_id)
        moved = replace(run, url=url or run.url, model=model or run.model)
        if after_cancel is None:
            after_cancel = swarm.newest_cancel(run_id) if run.sessions else 0
        session = _Session(swarm, moved, output, after_cancel, key, watch, work, on_result)
        state = await session.carry_out()
        if state is RunState.DONE:
            with suppress(OSError):
                lock.unlink()
        return state


class _Session:
    def __init__(
        self,
        swarm: SwarmStore,
        run: SwarmRun,
        output: Path | None,
        after_cancel: int,
        key: str | None,
        watch: Callable[[Progress], None],
        work: WorkMaker | None,
        on_result: Callable[[Result], None],
    ) -> None:
        self._swarm = swarm
        self._run = run
        self._order: Order = order_from_json(self._run.config)
        self._key = key
        self._work = work
        self._on_result = on_result
        self._after_cancel = after_cancel
        self._tasks: dict[str, Task] = {}
        self._all_ended = False  # every task has its result
        self._tally = Tally(self._run.id, self._run.counts, watch, time.monotonic())
        path = output if output is not None or self._order.output is None else Path(self._order.output)
        self._output = None if path is None else ResultsFile(path, self._run.id)

    async def carry_out(self) -> RunState:
        if self._output is not None:
            self._output.check()
        try:
            pending = await asyncio.to_thread(self._read)
            if not pending:
                pending = await asyncio.to_thread(self._next_stage)
            if pending and self._is_cancelled():
                return RunState.CANCELLED
            if pending:
                await self._open_and_work(pending)
            elif self._run.state is not RunState.DONE:
                self._say_done()
            self._see_to_the_file()
        except Cancelled:
            return RunState.CANCELLED
        finally:
            if self._output is not None:
                self._output.close()
        return self._swarm.run(self._run.id).state

    # The journal's side

    def _read(self) -> list[Pending]:
        """In a thread. What is left to do, and the results file as the journal has it."""
        self._tasks.update((task.id, task) for task in self._swarm.tasks(self._run.id))
        if self._output is not None:
            self._output.complete(self._tasks, self._swarm.results(self._run.id))
        return pending_tasks(self._swarm, self._run.id)

    def _next_stage(self) -> list[Pending]:
        """In a thread. The tasks that follow from the results; none: the run is done.

        They follow from the journal alone, so that a killed run goes on with the same ones.
        """
        if self._run.kind != "ask":
            return []
        from skep.swarm.ask.merging import next_tasks  # not loaded for a plain map

        run_id = self._run.id
        new = next_tasks(self._run, [*self._tasks.values()], self._swarm.results(run_id))
        if new:
            self._tally.grew(self._swarm.add_tasks(run_id, new))
            self._tasks.update((task.id, task) for task in self._swarm.tasks(run_id))
        return pending_tasks(self._swarm, run_id) if new else []

    def _say_done(self) -> None:
        """Every task has its result, and whoever wrote the last one was killed before this word."""
        now, agents = time.time(), self._order.agents
        simulated = bool(self._run.simulated)
        number = self._swarm.open_session(self._run.id, at=now, agents=agents, endpoint={}, simulated=simulated)
        self._swarm.close_session(self._run.id, number, at=time.time(), outcome="done")

    def _see_to_the_file(self) -> None:
        """Somebody may have moved it meanwhile."""
        if self._output is not None and self._output.moved:
            self._output.close()
            self._output.complete(self._tasks, self._swarm.results(self._run.id))

    def _is_cancelled(self) -> bool:
        return self._swarm.cancelled_after(self._run.id, self._after_cancel)

    # The endpoint's side

    async def _find(self) -> Endpoint:
        return await find_endpoint(self._run.url, self._run.model, key=self._key)

    async def _wait_for_endpoint(self) -> Endpoint:
        since, pause = time.monotonic(), FIRST_LOOK_S
        while True:
            try:
                return await self._find()
            except KeyRefused:
                raise
            except EndpointError as error:
                now = time.monotonic()
                if now - since >= self._order.deadline_s:
                    waited = f"the endpoint did not answer for {now - since:.0f} s: {error.message}"
                    hint = f"nothing is lost: `skep swarm resume {self._run.id}` goes on when it is up"
                    raise EndpointError(waited, hint=hint) from None
                self._tally.away(now, since, error.message)
            if await asyncio.to_thread(self._is_cancelled):
                raise Cancelled("the run was cancelled")
            left = self._order.deadline_s - (time.monotonic() - since)
            await asyncio.sleep(max(0.0, min(pause, left)))
            pause = next_pause_s(pause, time.monotonic() - since)

    async def _open_and_work(self, pending: list[Pending]) -> None:
        endpoint = await self._wait_for_endpoint()
        number = self._swarm.open_session(
            self._run.id,
            at=time.time(),
            agents=self._order.agents,
            endpoint={"url": endpoint.url, "model": endpoint.model, **endpoint.engine},
            simulated=endpoint.simulated,
            after_cancel=self._after_cancel,
        )
        outcome: SessionOutcome = "failed"
        why: str | None = None
        try:
            await self._work_off(endpoint, number, pending)
            outcome = "done"
        except asyncio.CancelledError:
            outcome = "done" if self._all_ended else "stopped"
            raise
        except Cancelled:
            outcome = "cancelled"
            raise
        except BaseException as error:
            why = error.message if isinstance(error, SkepError) else f"{type(error).__name__}: {error}"
            raise
        finally:
            self._close(number, outcome, why)

    def _close(self, number: int, outcome: SessionOutcome, why: str | None) -> None:
        try:
            self._swarm.close_session(self._run.id, number, at=time.time(), outcome=outcome, error=why)
        except SkepError:
            if outcome == "done":
                raise  # otherwise what went wrong first is the better word

    async def _work_off(self, endpoint: Endpoint, number: int, pending: list[Pending]) -> None:
        order = self._order
        async with AsyncExitStack() as stack:
            line = Line(endpoint, timeout_s=order.timeout_s, flow=f"swarm-{self._run.id}")
            stack.push_async_callback(line.close)
            checking = await stack.enter_async_context(Checking())
            await checking.prepare(one.task for one in pending)
            make = self._work or ChatWork
            now = time.monotonic()
            schedule = Schedule(
                pending,
                session=number,
                epoch=time.time() - now,
                rng=random.Random(),
                tries=order.tries,
                deadline_s=order.deadline_s,
                stragglers=order.stragglers,
            )
            writer = Writer(
                self._swarm,
                self._run.id,
                number,
                tasks=self._tasks,
                output=self._output,
                on_result=self._on_result,
            )
            stack.push_async_callback(writer.close)
            pace = Pace(told_by(endpoint), order.agents)
            shift = Shift(
                line=line,
                work=make(line, checking, order),
                schedule=schedule,
                pace=pace,
                writer=writer,
                tally=self._tally,
                find=self._find,
                is_cancelled=self._is_cancelled,
            )
            with _Metered(endpoint, writer):
                await self._all_stages(shift, writer, checking)
            self._all_ended = True
            self._tally.show(schedule, pace, {}, time.monotonic(), at_once=True)
            await writer.drain()

    async def _all_stages(self, shift: Shift, writer: Writer, checking: Checking) -> None:
        while True:
            await shift.work_off()
            await writer.drain()
            following = await asyncio.to_thread(self._next_stage)
            if not following:
                return
            await checking.prepare(one.task for one in following)
            shift.schedule.add(following)


class _Metered:
    """What the GPUs of this machine draw meanwhile, if they are the ones that serve."""

    def __init__(self, endpoint: Endpoint, writer: Writer) -> None:
        self._meter: PowerMeter | None = open_meter() if endpoint.origin.host in LOOPBACK else None
        self._writer = writer

    def __enter__(self) -> None:
        if self._meter is not None:
            self._meter.begin()

    def __exit__(self, *_: object) -> None:
        if self._meter is not None:
            drawn = self._meter.end()
            self._meter.close()
            if drawn is not None:
                self._writer.fact("energy", drawn)
