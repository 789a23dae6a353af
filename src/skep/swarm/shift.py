"""One session at work: carries out what `Schedule` decides, at the pace that `Pace` allows."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from statistics import median
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.errors import EndpointError, SkepError
from skep.store.swarm import Recorded
from skep.swarm.attempted import REJECTED, Attempted
from skep.swarm.climbing import Look
from skep.swarm.line import Line
from skep.swarm.mishaps import Mishap, mishap_of
from skep.swarm.outage import GiveUp, Probe
from skep.swarm.pace import Pace, Told
from skep.swarm.schedule import Action, Cancel, Record, Schedule, Start
from skep.swarm.tally import Tally
from skep.swarm.work import Work
from skep.swarm.writer import Writer
from skep.tasks import Ending

TICK_S = 0.1
ASK_EVERY_S = 3.0  # how many slots there are now
CANCELLED_EVERY_S = 1.0
REMEMBERED = 20

Find = Callable[[], Awaitable[Endpoint]]


class Cancelled(SkepError):
    """Somebody asked for it from another process."""


def told_by(endpoint: Endpoint) -> Told:
    slots = endpoint.engine.get("slots")
    known = slots if isinstance(slots, int) and not isinstance(slots, bool) and slots >= 0 else None
    return Told(known, is_gateway="replicas" in endpoint.engine)


class Shift:
    """`work_off` returns when every task of the schedule has its result. It may be called again with more of them."""

    def __init__(
        self,
        *,
        line: Line,
        work: Work,
        schedule: Schedule,
        pace: Pace,
        writer: Writer,
        tally: Tally,
        find: Find,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.schedule = schedule
        self._line = line
        self._work = work
        self._pace = pace
        self._writer = writer
        self._tally = tally
        self._find = find
        self._is_cancelled = is_cancelled
        self._fault: BaseException | None = None
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._first: deque[float] = deque(maxlen=REMEMBERED)
        self._begun: set[int] = set()  # leases whose answer has begun
        self._sent: set[tuple[str, int]] = set()  # attempts under way
        self._whole: set[tuple[str, int]] = set()  # attempts whose answer is here, and not yet read and checked
        line.on_whole = self._answer_is_here
        self._ask_at = self._cancelled_at = 0.0
        self._limit_told: tuple[int, str] | None = None
        self._was_away = False

    async def work_off(self) -> None:
        """Raises what ended it; what was under way is then written down as cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                self._tell(time.monotonic())
                self._step()
                while not self.schedule.is_over and self._fault is None:
                    await self._tick()
            finally:
                self._carry_out(self.schedule.stop(time.monotonic()))
                for task in (*self._attempts.values(), *self._errands):
                    task.cancel()
        if self._fault is not None:
            raise self._fault

    # Rounds

    async def _tick(self) -> None:
        now = time.monotonic()
        due = self.schedule.wake_at
        pause = TICK_S if due is None else max(0.0, min(TICK_S, due - now))
        self._wake.clear()
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            pass
        if self._writer.fault is not None:
            self._fault = self._writer.fault
            return
        now = time.monotonic()
        self._look(now)
        self._step()
        self._run_errands(now)
        self._tally.show(self.schedule, self._pace, self._heard(), now)

    def _step(self) -> None:
        now = time.monotonic()
        limit = self._pace.may_start(now, len(self.schedule.leases) - len(self._whole))
        more = min(len(self._whole), limit)  # when answers are checked slower than they come, fewer are asked for
        self._carry_out(self.schedule.step(now, limit + more, self._heard()))

    def _answer_is_here(self, attempt: tuple[str, int]) -> None:
        """The endpoint is done with it: another may be sent, before this one is read."""
        if self._fault is None and attempt in self._sent:
            self._whole.add(attempt)
            self._step()

    def _heard(self) -> dict[int, int]:
        return {one.id: self._line.heard(one.task.id, one.number) for one in self.schedule.leases.values()}

    def _look(self, now: float) -> None:
        heard = self._heard()
        for lease in self.schedule.leases.values():
            if heard[lease.id] and lease.id not in self._begun:
                self._begun.add(lease.id)
                self._first.append(now - lease.started)
        streaming = sum(1 for count in heard.values() if count)
        self._tally.heard(now, self._line.total)
        self._pace.look(
            Look(
                now,
                tokens=self._line.total,
                in_flight=len(heard),
                streaming=streaming,
                waiting=self.schedule.waiting,
                task_s=median(self._took) if self._took else None,
                first_s=median(self._first) if self._first else None,
            )
        )
        self._tell(now)

    def _tell(self, now: float) -> None:
        """What the picture of the run needs: how many were allowed, and when the endpoint was away."""
        limit = (self._pace.limit, self._pace.why)
        if limit != self._limit_told:
            self._limit_told = limit
            self._writer.fact("limit", {"limit": limit[0], "why": limit[1]})
        outage = self.schedule.outage
        if outage.is_away != self._was_away:
            self._was_away = outage.is_away
            self._writer.fact("endpoint", {"up": not outage.is_away, "why": outage.why})
            self._tally.say(f"the endpoint is away: {outage.why}" if outage.is_away else "the endpoint is back")
            if not outage.is_away:
                self._pace.forgive()
                self._ask_at = now

    # Actions

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._tally.began(action)
                self._sent.add((action.task.id, action.number))
                self._attempts[action.lease] = self._group.create_task(self._attempt(action))
            elif isinstance(action, Cancel):
                task = self._attempts.pop(action.lease, None)
                if task is not None:
                    task.cancel()
            elif isinstance(action, Record):
                self._record(action)
            elif isinstance(action, Probe):
                self._errand(self._probe())
            elif isinstance(action, GiveUp) and self._fault is None:
                self._fault = _given_up(action)
                self._wake.set()

    def _record(self, record: Record) -> None:
        attempt = record.attempt
        self._line.forget(attempt.task, attempt.number)
        self._whole.discard((attempt.task, attempt.number))
        self._sent.discard((attempt.task, attempt.number))
        self._writer.put(Recorded(attempt, record.result))
        self._tally.ended(attempt, record.result)
        if record.result is not None and record.result.ending is Ending.FAILED:
            self._tally.say(f"`{attempt.task}` is set aside: {record.result.error}")

    async def _attempt(self, start: Start) -> None:
        began = time.monotonic()
        try:
            came = await self._work.attempt(start.task, start.number, start.complaint)
        except SkepError as error:
            came = Attempted(error_kind="unworkable", error=error.message)
        except Exception as error:  # one task's oddity must not end the others
            came = Attempted(error_kind="unworkable", error=f"{type(error).__name__}: {error}")
        now = time.monotonic()
        self._attempts.pop(start.lease, None)
        self._begun.discard(start.lease)
        mishap = mishap_of(came.error_kind, came.status)
        if mishap is Mishap.REFUSED:
            self._pace.refused(now, len(self.schedule.leases), came.retry_after_s)
        elif mishap is None or came.error_kind == REJECTED:
            self._took.append(now - began)
            self._pace.answered(queued_ms=came.queued_ms, took_s=now - began)
        if mishap is not None:
            self._tally.say(f"`{start.task.id}`: {came.error}")
        if not self._line.heard(start.task.id, start.number) and came.output_tokens:
            self._line.took((start.task.id, start.number), came.output_tokens)  # it came in one piece
        self._carry_out(self.schedule.ended(start.lease, came, now))
        if self._fault is None:
            self._step()
        if self.schedule.is_over:
            self._wake.set()

    # Errands

    def _run_errands(self, now: float) -> None:
        if now >= self._cancelled_at:
            self._cancelled_at = now + CANCELLED_EVERY_S
            self._errand(self._look_whether_cancelled())
        if now >= self._ask_at and self._line.is_gateway and not self.schedule.outage.is_away:
            self._ask_at = now + ASK_EVERY_S
            self._errand(self._ask_for_slots())

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _probe(self) -> None:
        why: str | None = None
        try:
            self._pace.told(told_by(await self._find()))
        except SkepError as error:
            why = error.message
        self._carry_out(self.schedule.probed(why, time.monotonic()))
        self._wake.set()

    async def _ask_for_slots(self) -> None:
        try:
            self._pace.told(told_by(await self._find()))
        except SkepError:
            return  # the attempts will tell
        self._step()

    async def _look_whether_cancelled(self) -> None:
        try:
            cancelled = await asyncio.to_thread(self._is_cancelled)
        except SkepError:
            return  # the writer says what is wrong with the store
        if cancelled and self._fault is None:
            self._fault = Cancelled("the run was cancelled")
            self._wake.set()


def _given_up(action: GiveUp) -> EndpointError:
    if action.after_s is None:
        return EndpointError(action.why, hint="check the key, then `skep swarm resume` goes on with the rest")
    hint = "what is done is kept: `skep swarm resume` goes on with the rest"
    return EndpointError(f"the endpoint was of no use for {action.after_s:.0f} s: {action.why}", hint=hint)
