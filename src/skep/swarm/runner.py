"""Carries out a run, from its first task or from where an earlier session stopped."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
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
from skep.swarm.answer_check import AnswerChecker, Demand
from skep.swarm.attempt import ChatWorker
from skep.swarm.client import SwarmClient
from skep.swarm.concurrency import ConcurrencyLimit, ConcurrencySample, EndpointSlots
from skep.swarm.progress import ProgressTracker, SwarmProgress
from skep.swarm.records import (
    REJECTED,
    AttemptOutcome,
    AttemptResult,
    Recorded,
    SwarmRun,
    SwarmRunState,
    Task,
    Why,
)
from skep.swarm.results_file import ResultsFile, ResultsWriter
from skep.swarm.schedule import (
    FIRST_LOOK_S,
    LONGEST_LOOK_S,
    Action,
    Cancel,
    GiveUp,
    Pending,
    ProbeEndpoint,
    Start,
    TaskSchedule,
)
from skep.swarm.store import SessionOutcome, SwarmStore, lock_path
from skep.wire.openai import ErrorKind, classify_error

TICK_S = 0.1
ASK_EVERY_S = 3.0  # how many slots there are now
CANCELLED_EVERY_S = 1.0
TASK_TIMES_KEPT = 20


class Cancelled(SkepError):
    """The run was cancelled from another process."""


def endpoint_slots_of(endpoint: Endpoint) -> EndpointSlots:
    slots = endpoint.engine.get("slots")
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 0:
        slots = None
    return EndpointSlots(slots, is_gateway="replicas" in endpoint.engine)


@dataclass(eq=False)
class SwarmRunner:
    """Runs attempts as the schedule says.

    `run_tasks` may be called again when the schedule has more tasks.
    """

    client: SwarmClient
    worker: ChatWorker
    schedule: TaskSchedule
    limit: ConcurrencyLimit
    writer: ResultsWriter
    session: _Session

    def __post_init__(self) -> None:
        self._fault: BaseException | None = None
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[object]] = set()
        self._wake = asyncio.Event()
        self._task_times: deque[float] = deque(maxlen=TASK_TIMES_KEPT)
        self._first_token_times: deque[float] = deque(maxlen=TASK_TIMES_KEPT)
        self._begun: set[int] = set()  # leases whose answer has begun
        self._unchecked: set[int] = set()  # leases whose answer is here, not yet read and checked
        self.client.on_whole = self._answer_is_here
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
        self._take_sample(now)
        self._step()
        if now >= self._cancelled_at:
            self._cancelled_at = now + CANCELLED_EVERY_S
            self._run_in_background(self._check_cancelled())
        if now >= self._ask_at and self.client.is_gateway and not self.schedule.outage.is_away:
            self._ask_at = now + ASK_EVERY_S
            # Whether it answers at all, the attempts will tell.
            self._run_in_background(self._ask_for_slots())
        self.session.progress.show(self.schedule, self.limit, self.client.heard, now)

    def _step(self) -> None:
        now = time.monotonic()
        limit = self.limit.may_start(now, len(self.schedule.leases) - len(self._unchecked))
        # When answers are checked slower than they arrive, fewer requests are sent.
        unchecked = min(len(self._unchecked), limit)
        self._carry_out(self.schedule.step(now, limit + unchecked, self.client.heard))

    def _answer_is_here(self, lease: int) -> None:
        """Send the next task: the endpoint has sent the whole answer, which is not read yet."""
        if self._fault is None and lease in self.schedule.leases:
            self._unchecked.add(lease)
            self._step()

    def _take_sample(self, now: float) -> None:
        heard = self.client.heard
        for lease, start in self.schedule.leases.items():
            if heard[lease] and lease not in self._begun:
                self._begun.add(lease)
                self._first_token_times.append(now - start.started)
        streaming = sum(1 for count in heard.values() if count)
        self.session.progress.heard(now, self.client.total)
        self.limit.look(
            ConcurrencySample(
                now=now,
                tokens=self.client.total,
                in_flight=len(heard),
                streaming=streaming,
                waiting=self.schedule.waiting,
                task_s=_median(self._task_times),
                first_s=_median(self._first_token_times),
            )
        )
        self._record_outage(now)

    def _record_outage(self, now: float) -> None:
        """Record that the endpoint went away or came back."""
        outage = self.schedule.outage
        if outage.is_away == self._was_away:
            return
        self._was_away = outage.is_away
        self.writer.fact("endpoint", {"up": not outage.is_away, "why": outage.why})
        if outage.is_away:
            self.session.progress.tell(f"the endpoint does not answer: {outage.why}")
        else:
            self.session.progress.tell("the endpoint answers again")
            self.limit.forgive()
            self._ask_at = now

    # Actions

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self.session.progress.retried += action.why is Why.RETRY
                self.client.heard[action.lease] = 0
                self._attempts[action.lease] = self._group.create_task(self._attempt(action))
            elif isinstance(action, Cancel):
                if (task := self._forget(action.lease)) is not None:
                    task.cancel()
            elif isinstance(action, Recorded):
                self.writer.put(action)
                self.session.progress.ended(action)
            elif isinstance(action, ProbeEndpoint):
                self._run_in_background(self._probe())
            elif self._fault is None:
                self._fault = _given_up(action)
                self._wake.set()

    def _forget(self, lease: int) -> asyncio.Task[None] | None:
        """Forget an attempt, and return its asyncio task if that still runs."""
        self._begun.discard(lease)
        self._unchecked.discard(lease)
        self.client.heard.pop(lease, None)
        return self._attempts.pop(lease, None)

    async def _attempt(self, start: Start) -> None:
        began = time.monotonic()
        try:
            result = await self.worker.attempt(
                start.task, start.number, start.complaint, start.lease
            )
        except Exception as error:  # one task's oddity must not end the others
            result = AttemptResult(error_kind="unworkable", error=_message_of(error))
        now = time.monotonic()
        error_kind = classify_error(result.error_kind, result.status)
        if error_kind is ErrorKind.REFUSED:
            self.limit.refused(now, len(self.schedule.leases), result.retry_after_s)
        elif error_kind is None or result.error_kind == REJECTED:
            self._task_times.append(now - began)
        if error_kind is not None:
            self.session.progress.tell(f"`{start.task.id}`: {result.error}")
        events = self.client.heard.get(start.lease, 0)
        if not events and result.output_tokens:
            events = result.output_tokens  # the answer came in one piece
            self.client.total += events
        self.session.progress.answered(events, result.output_tokens)
        self._forget(start.lease)
        self._carry_out(self.schedule.ended(start.lease, result, now))
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
            self.limit.update_slots(endpoint_slots_of(await self.session.find()))
        except SkepError as error:
            return error.message
        return None

    async def _check_cancelled(self) -> None:
        with suppress(SkepError):  # the writer says what is wrong with the store
            if await asyncio.to_thread(self.session.is_cancelled) and self._fault is None:
                self._fault = Cancelled("the run was cancelled")
                self._wake.set()


def _median(times: Collection[float]) -> float | None:
    if not times:
        return None
    return median(times)


def _given_up(action: GiveUp) -> EndpointError:
    if action.after_s is None:
        hint = "check the key, then `skep swarm resume` goes on with the rest"
        return EndpointError(action.why, hint=hint)
    hint = "finished tasks are kept: `skep swarm resume` goes on with the rest"
    message = f"the endpoint gave no usable answer for {action.after_s:.0f} s: {action.why}"
    return EndpointError(message, hint=hint)


def _message_of(error: BaseException) -> str:
    if isinstance(error, SkepError):
        return error.message
    return f"{type(error).__name__}: {error}"


def pending_tasks(swarm: SwarmStore, run_id: str) -> list[Pending]:
    """Return the tasks without a result, in the input's order, with their earlier attempts.

    A broken connection costs a task no try; a suspect stays one.
    """
    pending_by_id = {task.id: Pending(task) for task in swarm.pending(run_id)}
    if not pending_by_id:
        return []
    for attempt in swarm.attempts(run_id):
        pending = pending_by_id.get(attempt.task)
        if pending is None:
            continue
        pending.attempts = max(pending.attempts, attempt.number)
        if pending.first_at is None:
            pending.first_at = attempt.started_at
        else:
            pending.first_at = min(pending.first_at, attempt.started_at)
        if attempt.outcome in (AttemptOutcome.FAILED, AttemptOutcome.REJECTED):
            error_kind = classify_error(attempt.error_kind, attempt.status)
            pending.tries += error_kind is ErrorKind.TRY
            pending.breaks += error_kind is ErrorKind.BROKEN
    return [*pending_by_id.values()]


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
    """Work on a run until every task has its result; tasks that have one are not sent again.

    When the caller is cancelled, attempts under way are broken off, what is done is kept, and the
    run may be carried out again. An endpoint that is down is waited for until the deadline of the
    run's options; then EndpointError is raised."""
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
        self._options = self._run.options
        self._tasks: dict[str, Task] = {}
        self._all_ended = False  # every task has its result
        self.progress = ProgressTracker(self._run.counts, self._watch, time.monotonic())
        self._output: ResultsFile | None = None
        if self._options.output is not None:
            self._output = ResultsFile(Path(self._options.output), self._run.id)

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
        self.progress.total += self._swarm.add_tasks(self._run.id, new)
        self._tasks.update((task.id, task) for task in self._swarm.tasks(self._run.id))
        return pending_tasks(self._swarm, self._run.id)

    def _open_session(self, endpoint: Mapping[str, Any], **fields: Any) -> int:
        agents = self._options.agents
        return self._swarm.open_session(
            self._run.id, at=time.time(), agents=agents, endpoint=endpoint, **fields
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
                waited_s = now - since
                if waited_s >= self._options.deadline_s:
                    message = f"the endpoint did not answer for {waited_s:.0f} s: {error.message}"
                    resume = f"`skep swarm resume {self._run.id}`"
                    hint = f"nothing is lost: {resume} goes on when it is up"
                    raise EndpointError(message, hint=hint) from None
                self.progress.away(now, since, error.message)
            if await asyncio.to_thread(self.is_cancelled):
                raise Cancelled("the run was cancelled")
            remaining_s = self._options.deadline_s - (time.monotonic() - since)
            await asyncio.sleep(max(0.0, min(pause, remaining_s)))
            pause = min(2 * pause, LONGEST_LOOK_S)

    async def _open_and_work(self, pending: list[Pending]) -> None:
        endpoint = await self._wait_for_endpoint()
        endpoint_fields = {"url": endpoint.url, "model": endpoint.model, **endpoint.engine}
        number = self._open_session(
            endpoint_fields, simulated=endpoint.simulated, after_cancel=self._after_cancel
        )
        outcome: SessionOutcome = "failed"
        message: str | None = None
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
            message = _message_of(error)
            raise
        finally:
            self._close_session(number, outcome, message)

    def _close_session(self, number: int, outcome: SessionOutcome, message: str | None) -> None:
        try:
            self._swarm.close_session(
                self._run.id, number, at=time.time(), outcome=outcome, error=message
            )
        except SkepError:
            # Of a session that failed, what went wrong first is the better message.
            if outcome == "done":
                raise

    async def _work_off(self, endpoint: Endpoint, number: int, pending: list[Pending]) -> None:
        options = self._options
        flow = f"swarm-{self._run.id}"
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                aclosing(SwarmClient(endpoint, timeout_s=options.timeout_s, flow=flow))
            )
            checker = await stack.enter_async_context(AnswerChecker(self._demand))
            await checker.prepare(entry.task for entry in pending)
            epoch = time.time() - time.monotonic()
            schedule = TaskSchedule(
                pending, options, session=number, epoch=epoch, rng=random.Random()
            )
            writer = ResultsWriter(self._swarm, self._run.id, number, self._tasks, self._output)
            stack.push_async_callback(writer.close)
            limit = ConcurrencyLimit(endpoint_slots_of(endpoint), options.agents)
            worker = ChatWorker(client, checker, options)
            runner = SwarmRunner(client, worker, schedule, limit, writer, self)
            while True:
                await runner.run_tasks()
                await writer.drain()
                following = await asyncio.to_thread(self._next_stage)
                if not following:
                    break
                await checker.prepare(entry.task for entry in following)
                schedule.add(following)
            self._all_ended = True
            self.progress.show(schedule, limit, {}, time.monotonic(), at_once=True)
