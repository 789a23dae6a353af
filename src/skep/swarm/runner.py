"""Carries out a run, from its first task or from where an earlier session stopped."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.errors import EndpointError, KeyRefused, SkepError
from skep.files import check_place, hold_lock
from skep.paths import Paths
from skep.store.database import open_store
from skep.swarm.client import (
    REJECTED,
    AnswerChecker,
    AttemptResult,
    ChatWorker,
    Demand,
    SwarmClient,
)
from skep.swarm.concurrency import ConcurrencyLimit, ConcurrencySample, EndpointSlots
from skep.swarm.progress import ProgressTracker, SwarmProgress
from skep.swarm.records import AttemptOutcome, Recorded, SwarmRun, SwarmRunState, Task, Why
from skep.swarm.results_file import ResultsFile, ResultsWriter
from skep.swarm.schedule import (
    FIRST_LOOK_S,
    LONGEST_LOOK_S,
    Action,
    Cancel,
    GiveUp,
    Pending,
    Start,
    TaskSchedule,
)
from skep.swarm.store import SessionOutcome, SwarmStore, lock_path
from skep.wire.openai import ErrorKind, classify_error

TICK_S = 0.1
ASK_EVERY_S = 3.0  # how many slots there are now
CANCELLED_EVERY_S = 1.0
REMEMBERED = 20


class Cancelled(SkepError):
    """The run was cancelled from another process."""


def endpoint_slots_of(endpoint: Endpoint) -> EndpointSlots:
    slots = endpoint.engine.get("slots")
    if isinstance(slots, int) and not isinstance(slots, bool) and slots >= 0:
        known = slots
    else:
        known = None
    return EndpointSlots(known, is_gateway="replicas" in endpoint.engine)


@dataclass(eq=False)
class SwarmRunner:
    """Runs attempts as the schedule says.

    `run_tasks` may be called again when the schedule has more tasks.
    """

    line: SwarmClient
    work: ChatWorker
    schedule: TaskSchedule
    pace: ConcurrencyLimit
    writer: ResultsWriter
    session: _Session

    def __post_init__(self) -> None:
        self._fault: BaseException | None = None
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[object]] = set()
        self._wake = asyncio.Event()
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._first: deque[float] = deque(maxlen=REMEMBERED)
        self._begun: set[int] = set()  # leases whose answer has begun
        self._whole: set[int] = set()  # leases whose answer is here, and not yet read and checked
        self.line.on_whole = self._answer_is_here
        self._ask_at = self._cancelled_at = 0.0
        self._was_away = False

    async def run_tasks(self) -> None:
        """Run until every task has its result.

        An error ends it, and attempts under way are recorded as cancelled.
        """
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                self._step()
                while not self.schedule.is_over and self._fault is None:
                    await self._tick()
            finally:
                self._carry_out(self.schedule.stop(time.monotonic()))
                for task in (*self._attempts.values(), *self._background):
                    task.cancel()
        if self._fault is not None:
            raise self._fault

    # Rounds

    async def _tick(self) -> None:
        now = time.monotonic()
        due = self.schedule.wake_at
        if due is None:
            pause = TICK_S
        else:
            pause = max(0.0, min(TICK_S, due - now))
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        if self.writer.fault is not None:
            self._fault = self.writer.fault
            return
        now = time.monotonic()
        self._look(now)
        self._step()
        if now >= self._cancelled_at:
            self._cancelled_at = now + CANCELLED_EVERY_S
            self._run_in_background(self._check_cancelled())
        if now >= self._ask_at and self.line.is_gateway and not self.schedule.outage.is_away:
            self._ask_at = now + ASK_EVERY_S
            # Whether it answers at all, the attempts will tell.
            self._run_in_background(self._ask_for_slots())
        self.session.tally.show(self.schedule, self.pace, self.line.heard, now)

    def _step(self) -> None:
        now = time.monotonic()
        limit = self.pace.may_start(now, len(self.schedule.leases) - len(self._whole))
        # When answers are checked slower than they come, fewer are asked for.
        more = min(len(self._whole), limit)
        self._carry_out(self.schedule.step(now, limit + more, self.line.heard))

    def _answer_is_here(self, lease: int) -> None:
        """Send the next task: the endpoint has sent the whole answer, which is not read yet."""
        if self._fault is None and lease in self.schedule.leases:
            self._whole.add(lease)
            self._step()

    def _look(self, now: float) -> None:
        heard = self.line.heard
        for lease, start in self.schedule.leases.items():
            if heard[lease] and lease not in self._begun:
                self._begun.add(lease)
                self._first.append(now - start.started)
        streaming = sum(1 for count in heard.values() if count)
        self.session.tally.heard(now, self.line.total)
        task_s, first_s = (median(times) if times else None for times in (self._took, self._first))
        counts = (self.line.total, len(heard), streaming, self.schedule.waiting)
        self.pace.look(ConcurrencySample(now, *counts, task_s, first_s))
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Record that the endpoint went away or came back."""
        outage = self.schedule.outage
        if outage.is_away == self._was_away:
            return
        self._was_away = outage.is_away
        self.writer.fact("endpoint", {"up": not outage.is_away, "why": outage.why})
        if outage.is_away:
            self.session.tally.tell(f"the endpoint does not answer: {outage.why}")
        else:
            self.session.tally.tell("the endpoint answers again")
            self.pace.forgive()
            self._ask_at = now

    # Actions

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self.session.tally.retried += action.why is Why.RETRY
                self.line.heard[action.lease] = 0
                self._attempts[action.lease] = self._group.create_task(self._attempt(action))
            elif isinstance(action, Cancel):
                if (task := self._forget(action.lease)) is not None:
                    task.cancel()
            elif isinstance(action, Recorded):
                self.writer.put(action)
                self.session.tally.ended(action)
            elif not isinstance(action, GiveUp):
                self._run_in_background(self._probe())
            elif self._fault is None:
                hint = "finished tasks are kept: `skep swarm resume` goes on with the rest"
                why = (
                    f"the endpoint gave no usable answer for {action.after_s or 0:.0f} s: "
                    f"{action.why}"
                )
                if action.after_s is None:
                    why = action.why
                    hint = "check the key, then `skep swarm resume` goes on with the rest"
                self._fault = EndpointError(why, hint=hint)
                self._wake.set()

    def _forget(self, lease: int) -> asyncio.Task[None] | None:
        """Nothing more is wanted of an attempt, whose task is returned if it still runs."""
        self._begun.discard(lease)
        self._whole.discard(lease)
        self.line.heard.pop(lease, None)
        return self._attempts.pop(lease, None)

    async def _attempt(self, start: Start) -> None:
        began = time.monotonic()
        try:
            came = await self.work.attempt(start.task, start.number, start.complaint, start.lease)
        except Exception as error:  # one task's oddity must not end the others
            if isinstance(error, SkepError):
                why = error.message
            else:
                why = f"{type(error).__name__}: {error}"
            came = AttemptResult(error_kind="unworkable", error=why)
        now = time.monotonic()
        mishap = classify_error(came.error_kind, came.status)
        if mishap is ErrorKind.REFUSED:
            self.pace.refused(now, len(self.schedule.leases), came.retry_after_s)
        elif mishap is None or came.error_kind == REJECTED:
            self._took.append(now - began)
        if mishap is not None:
            self.session.tally.tell(f"`{start.task.id}`: {came.error}")
        events = self.line.heard.get(start.lease, 0)
        if not events and came.output_tokens:
            events = came.output_tokens  # the answer came in one piece
            self.line.total += events
        self.session.tally.answered(events, came.output_tokens)
        self._forget(start.lease)
        self._carry_out(self.schedule.ended(start.lease, came, now))
        if self._fault is None:
            self._step()
        if self.schedule.is_over:
            self._wake.set()

    # Background work

    def _run_in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task = self._group.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _probe(self) -> None:
        self._carry_out(self.schedule.probed(await self._ask_for_slots(), time.monotonic()))
        self._wake.set()

    async def _ask_for_slots(self) -> str | None:
        """Return why it cannot be asked; None: it answers."""
        try:
            self.pace.told(endpoint_slots_of(await self.session.find()))
        except SkepError as error:
            return error.message
        return None

    async def _check_cancelled(self) -> None:
        with suppress(SkepError):  # the writer says what is wrong with the store
            if await asyncio.to_thread(self.session.is_cancelled) and self._fault is None:
                self._fault = Cancelled("the run was cancelled")
                self._wake.set()


def pending_tasks(swarm: SwarmStore, run_id: str) -> list[Pending]:
    """Tasks without a result, in the input's order, with earlier attempts.

    A break costs no try; suspects stay so.
    """
    found = {task.id: Pending(task) for task in swarm.pending(run_id)}
    for attempt in swarm.attempts(run_id) if found else ():
        if (one := found.get(attempt.task)) is None:
            continue
        one.attempts = max(one.attempts, attempt.number)
        if one.first_at is None:
            one.first_at = attempt.started_at
        else:
            one.first_at = min(one.first_at, attempt.started_at)
        if attempt.outcome in (AttemptOutcome.FAILED, AttemptOutcome.REJECTED):
            mishap = classify_error(attempt.error_kind, attempt.status)
            one.tries += mishap is ErrorKind.TRY
            one.breaks += mishap is ErrorKind.BROKEN
    return [*found.values()]


async def carry_out(
    paths: Paths,
    run_id: str,
    *,
    url: str | None = None,  # this and `model`: of an endpoint that has moved, for this session
    model: str | None = None,
    key: str | None = None,
    watch: Callable[[SwarmProgress], None] = lambda _: None,
    demand: Demand | None = None,  # on every value, beyond its schema
) -> SwarmRunState:
    """Until every task has its result. What has one already is not sent again.

    Cancelled: what is under way is broken off, what is done is kept, and it may be carried out
    again. An endpoint that is down is waited for, as long as the order's deadline says; then
    EndpointError."""
    lock = lock_path(paths, run_id)
    hint = f"`skep swarm show {run_id}` shows how it stands, `skep swarm cancel {run_id}` stops it"
    with open_store(paths.store) as store:
        swarm = SwarmStore(store)
        # Before the lock: who cancels looks for its holder.
        after_cancel = swarm.newest_cancel(run_id)
        with hold_lock(lock, f"swarm run `{run_id}`", hint):
            run = swarm.run(run_id)
            moved = replace(run, url=url or run.url, model=model or run.model)
            state = await _Session(swarm, moved, after_cancel, key, watch, demand).carry_out()
            if state is SwarmRunState.DONE:
                with suppress(OSError):
                    lock.unlink()
            return state


@dataclass
class _Session:
    """One process at work on a run."""

    _swarm: SwarmStore
    _run: SwarmRun
    _after_cancel: int
    _key: str | None
    _watch: Callable[[SwarmProgress], None]
    _demand: Demand | None

    def __post_init__(self) -> None:
        self._order = self._run.options
        self._tasks: dict[str, Task] = {}
        self._all_ended = False  # every task has its result
        self.tally = ProgressTracker(self._run.counts, self._watch, time.monotonic())
        path = self._order.output
        if path is None:
            self._output = None
        else:
            self._output = ResultsFile(Path(path), self._run.id)

    async def carry_out(self) -> SwarmRunState:
        if self._output is not None:
            check_place(self._output.path, "the results file")
        try:
            pending = await asyncio.to_thread(self._read)
            if pending and self.is_cancelled():
                return SwarmRunState.CANCELLED
            if pending:
                await self._open_and_work(pending)
            elif self._run.state is not SwarmRunState.DONE:
                # Whoever wrote the last result was killed before it said so.
                number = self._open_session({}, simulated=bool(self._run.simulated))
                self._swarm.close_session(self._run.id, number, at=time.time(), outcome="done")
        except Cancelled:
            return SwarmRunState.CANCELLED
        finally:
            if self._output is not None:
                self._output.close()
        return self._swarm.run(self._run.id).state

    # The journal's side

    def _read(self) -> list[Pending]:
        """Return the tasks that are left, of the next stage if need be; complete the results file.

        In a thread.
        """
        self._tasks.update((task.id, task) for task in self._swarm.tasks(self._run.id))
        if self._output is not None:
            self._output.complete(self._tasks, self._swarm.results(self._run.id))
        return pending_tasks(self._swarm, self._run.id) or self._next_stage()

    def _next_stage(self) -> list[Pending]:
        """Add and return the merges that follow from the journal alone; none if the run is done.

        In a thread.
        """
        if self._run.kind != "ask":
            return []
        from skep.swarm.ask_merging import next_tasks  # not loaded for a plain map

        new = next_tasks(self._run, [*self._tasks.values()], self._swarm.results(self._run.id))
        if not new:
            return []
        self.tally.total += self._swarm.add_tasks(self._run.id, new)
        self._tasks.update((task.id, task) for task in self._swarm.tasks(self._run.id))
        return pending_tasks(self._swarm, self._run.id)

    def _open_session(self, endpoint: Mapping[str, Any], **known: Any) -> int:
        agents = self._order.agents
        return self._swarm.open_session(
            self._run.id, at=time.time(), agents=agents, endpoint=endpoint, **known
        )

    def is_cancelled(self) -> bool:
        return self._swarm.newest_cancel(self._run.id) > self._after_cancel

    # The endpoint's side

    async def find(self) -> Endpoint:
        return await find_endpoint(self._run.url, self._run.model, key=self._key)

    async def _wait_for_endpoint(self) -> Endpoint:
        since = time.monotonic()
        pause = FIRST_LOOK_S
        while True:
            try:
                return await self.find()
            except KeyRefused:
                raise
            except EndpointError as error:
                now = time.monotonic()
                if now - since >= self._order.deadline_s:
                    waited = (
                        f"the endpoint did not answer for {now - since:.0f} s: {error.message}"
                    )
                    hint = (
                        f"nothing is lost: `skep swarm resume {self._run.id}` goes on when it "
                        "is up"
                    )
                    raise EndpointError(waited, hint=hint) from None
                self.tally.away(now, since, error.message)
            if await asyncio.to_thread(self.is_cancelled):
                raise Cancelled("the run was cancelled")
            left = self._order.deadline_s - (time.monotonic() - since)
            await asyncio.sleep(max(0.0, min(pause, left)))
            pause = min(2 * pause, LONGEST_LOOK_S)

    async def _open_and_work(self, pending: list[Pending]) -> None:
        endpoint = await self._wait_for_endpoint()
        told = {"url": endpoint.url, "model": endpoint.model, **endpoint.engine}
        number = self._open_session(
            told, simulated=endpoint.simulated, after_cancel=self._after_cancel
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
            if isinstance(error, SkepError):
                why = error.message
            else:
                why = f"{type(error).__name__}: {error}"
            raise
        finally:
            with suppress(
                *(() if outcome == "done" else (SkepError,))
            ):  # what went wrong first is the better word
                self._swarm.close_session(
                    self._run.id, number, at=time.time(), outcome=outcome, error=why
                )

    async def _work_off(self, endpoint: Endpoint, number: int, pending: list[Pending]) -> None:
        order = self._order
        async with AsyncExitStack() as stack:
            client = SwarmClient(endpoint, timeout_s=order.timeout_s, flow=f"swarm-{self._run.id}")
            line = await stack.enter_async_context(aclosing(client))
            checking = await stack.enter_async_context(AnswerChecker(self._demand))
            await checking.prepare(one.task for one in pending)
            epoch = time.time() - time.monotonic()
            schedule = TaskSchedule(
                pending, order, session=number, epoch=epoch, rng=random.Random()
            )
            writer = ResultsWriter(self._swarm, self._run.id, number, self._tasks, self._output)
            stack.push_async_callback(writer.close)
            pace = ConcurrencyLimit(endpoint_slots_of(endpoint), order.agents)
            work = ChatWorker(line, checking, order)
            runner = SwarmRunner(line, work, schedule, pace, writer, self)
            while True:
                await runner.run_tasks()
                await writer.drain()
                following = await asyncio.to_thread(self._next_stage)
                if not following:
                    break
                await checking.prepare(one.task for one in following)
                schedule.add(following)
            self._all_ended = True
            self.tally.show(schedule, pace, {}, time.monotonic(), at_once=True)
