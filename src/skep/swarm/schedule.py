"""Which task next, which again, which has failed. Pure: events in, actions out; no clock, no I/O.

Every task ends in exactly one result. What is the endpoint's fault costs a task none of its tries.
A task that is under way again and again when the connection breaks is a suspect: suspects are sent
one at a time, so that a break has a culprit, whom it costs a try. Times are of one steady clock;
`epoch` turns them into unix seconds for the records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random

import msgspec

from skep.swarm.records import (
    REJECTED,
    Attempt,
    AttemptOutcome,
    AttemptResult,
    Recorded,
    SwarmRunOptions,
    Task,
    TaskEnding,
    TaskResult,
    Why,
)
from skep.wire.openai import ErrorKind, classify_error, wait_s

FIRST_LOOK_S = 0.25
LONGEST_LOOK_S = 1.0
DOUBT = 3  # mishaps in a row, after which no more are added to those under way


class ProbeEndpoint(msgspec.Struct, frozen=True):
    """Ask the endpoint whether it is there."""


class GiveUp(msgspec.Struct, frozen=True):
    why: str
    after_s: float | None  # None: at once, since waiting would not help


class Outage:
    """Whether the endpoint answers, when to probe it, and when to give up.

    *Away*: nobody answers; nothing is sent, and one look at a time finds out when it is back.
    Else, since its last good answer, it may have answered with nothing of use (refusals, broken
    streams). Either, for the whole deadline, ends the session."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self.is_away = False
        self.since: float | None = None  # without a good answer
        self.why: str | None = None
        self.row = 0  # mishaps since the last good answer
        self._looking = False
        self._look_at: float | None = None
        self._pause_s = FIRST_LOOK_S
        self._refused_key = False

    @property
    def wake_at(self) -> float | None:
        return None if self._looking else self._look_at

    def came(
        self, mishap: ErrorKind | None, error: str | None, now: float, *, answered: bool
    ) -> None:
        """What came of an attempt.

        Any answer to it at all, a rejected one too, shows that the endpoint works.
        """
        if answered:
            self.since = None
            self.why = None
            self.is_away = False
            self.row = 0
            self._pause_s = FIRST_LOOK_S
            if not self._looking:
                self._look_at = None
            return
        if mishap is not ErrorKind.TRY:
            self.row += 1
            self.why = error
            self.since = now if self.since is None else self.since
        self.is_away = self.is_away or mishap is ErrorKind.AWAY
        self._refused_key = self._refused_key or mishap is ErrorKind.KEY
        if mishap in (ErrorKind.TRY, ErrorKind.AWAY, ErrorKind.BROKEN):
            self.doubt(now)

    def doubt(self, now: float) -> None:
        """Is it still there? What is under way goes on meanwhile."""
        if self._look_at is None:
            self._look_at = now

    def probed(self, why: str | None, now: float) -> None:
        self._looking = False
        self._look_at = None
        if why is None:
            self.since = None if self.is_away else self.since
            self.is_away = False
            self._pause_s = FIRST_LOOK_S
            return
        self.why = why
        self.is_away = True
        self.since = now if self.since is None else self.since
        self._look_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_LOOK_S)

    def step(self, now: float, *, quiet: bool) -> list[ProbeEndpoint | GiveUp]:
        """`quiet`: none of the answers under way has begun."""
        why = self.why or "it does not answer"
        if self._refused_key:
            return [GiveUp(why, None)]
        if (
            self.since is not None
            and (self.is_away or quiet)
            and now - self.since >= self._deadline_s
        ):
            return [GiveUp(why, now - self.since)]
        if self._look_at is not None and now >= self._look_at and not self._looking:
            self._looking = True
            return [ProbeEndpoint()]
        return []


FREE_BREAKS = 2  # that nobody blames on the task
SILENT_S = 30.0  # without one token of any answer under way: is anybody there?


class Start(msgspec.Struct, frozen=True):
    """Send it. `lease` names this attempt while it is under way."""

    lease: int
    task: Task
    number: int
    agent: int
    why: Why
    complaint: str | None
    started: float
    blamed: bool = False  # the only suspect under way: a break is its own


class Cancel(msgspec.Struct, frozen=True):
    """Break it off; what it still brings is not wanted."""

    lease: int


Action = Start | Cancel | Recorded | ProbeEndpoint | GiveUp


@dataclass(slots=True)
class Pending:
    """A task on its way to its result; with what earlier sessions did for it."""

    task: Task
    attempts: int = 0  # the number of the last
    tries: int = 0  # that count
    breaks: int = 0
    first_at: float | None = None  # unix seconds
    place: int = 0  # in the input's order
    row: int = 0  # mishaps of one kind in a row
    last: ErrorKind | None = None
    complaint: str | None = None

    @property
    def is_suspect(self) -> bool:
        return self.breaks >= FREE_BREAKS


class TaskSchedule:
    def __init__(
        self,
        pending: Iterable[Pending],
        order: SwarmRunOptions,
        *,
        session: int,
        epoch: float,
        rng: Random,
    ) -> None:
        self._order = order
        self._session = session
        self._epoch = epoch
        self._rng = rng
        self.outage = Outage(order.deadline_s)
        self.leases: dict[int, Start] = {}
        self._jobs: dict[str, Pending] = {}  # without a result
        self._ready: list[tuple[int, str]] = []  # by place
        self._later: dict[str, float] = {}  # when it is ready
        self._suspects: deque[str] = deque()  # ready
        self._placed = 0
        self._last_lease = 0
        self._heard = 0  # of all under way, when it last changed
        self._heard_at = float("-inf")
        self.add(pending)

    @property
    def is_over(self) -> bool:
        """Every task has its result."""
        return not self._jobs

    @property
    def waiting(self) -> int:
        """Tasks that could be sent now."""
        return len(self._ready) + len(self._suspects)

    @property
    def wake_at(self) -> float | None:
        """When `step` should be asked again, although nothing has happened."""
        times = [
            *self._later.values(),
            *([] if self.outage.wake_at is None else [self.outage.wake_at]),
        ]
        return min(times, default=None)

    def add(self, pending: Iterable[Pending]) -> None:
        for job in pending:
            if job.task.id in self._jobs:
                continue
            job.place = self._placed
            self._placed += 1
            self._jobs[job.task.id] = job
            self._queue(job)

    def step(self, now: float, limit: int, heard: Mapping[int, int] | None = None) -> list[Action]:
        """Return what is to be done now, with at most `limit` under way.

        `heard`: tokens so far, by lease.
        """
        counts = heard or {}
        if sum(counts.values()) != self._heard or not self.leases:
            self._heard = sum(counts.values())
            self._heard_at = now
        elif now - self._heard_at >= SILENT_S:
            self.outage.doubt(now)
        quiet = not any(counts.values())
        actions: list[Action] = [*self.outage.step(now, quiet=quiet)]
        if self.outage.is_away:
            return actions
        for name in [name for name, at in self._later.items() if at <= now]:
            del self._later[name]
            self._queue(self._jobs[name])
        if quiet and self.outage.row >= DOUBT:
            max_in_flight = min(limit, max(1, len(self.leases)))
        else:
            max_in_flight = limit
        while len(self.leases) < max_in_flight and (job := self._next()) is not None:
            actions.append(self._start(job, now))
        return actions

    def ended(self, lease_id: int, attempt_result: AttemptResult, now: float) -> list[Action]:
        """An attempt has ended. One that is not under way any more changes nothing."""
        if (start := self.leases.pop(lease_id, None)) is None:
            return []
        job = self._jobs[start.task.id]
        mishap = classify_error(attempt_result.error_kind, attempt_result.status)
        rejected = attempt_result.error_kind == REJECTED
        self.outage.came(
            mishap,
            attempt_result.error,
            now,
            answered=rejected or mishap in (None, ErrorKind.FINAL),
        )
        if mishap in (None, ErrorKind.TRY, ErrorKind.FINAL) or (
            mishap is ErrorKind.BROKEN and start.blamed
        ):
            job.tries += 1
        if mishap is None:
            return [self._settled(job, start, AttemptOutcome.DONE, attempt_result, now)]
        job.row = job.row + 1 if job.last is mishap else 1
        job.last = mishap
        job.breaks += mishap is ErrorKind.BROKEN
        if rejected:
            job.complaint = attempt_result.error
        if rejected:
            outcome = AttemptOutcome.REJECTED
        else:
            outcome = AttemptOutcome.FAILED
        if job.tries >= self._order.tries or mishap is ErrorKind.FINAL:
            return [self._settled(job, start, outcome, attempt_result, now)]
        self._later[job.task.id] = now + wait_s(
            mishap, job.row, self._rng, attempt_result.retry_after_s
        )
        return [Recorded(self._attempt(start, outcome, attempt_result, now))]

    def probed(self, why: str | None, now: float) -> list[Action]:
        """`why` the endpoint is not there, or None.

        If it is gone, what is under way there is broken off.
        """
        was_away = self.outage.is_away
        self.outage.probed(why, now)
        if (
            why is None and was_away
        ):  # it is back: those who only waited for that need not wait longer
            for name in self._later:
                if self._jobs[name].last in (ErrorKind.AWAY, ErrorKind.BROKEN):
                    self._later[name] = now
        if why is None or now - self._heard_at < SILENT_S:
            return []
        actions: list[Action] = []
        for lease_id in list(self.leases):
            actions += [
                Cancel(lease_id),
                *self.ended(lease_id, AttemptResult(error_kind="closed", error=why), now),
            ]
        return actions

    def stop(self, now: float) -> list[Action]:
        """No more: what is under way is broken off, and written down as such."""
        actions: list[Action] = []
        for lease_id, start in self.leases.items():
            broken_off = self._attempt(start, AttemptOutcome.CANCELLED, AttemptResult(), now)
            actions += [Cancel(lease_id), Recorded(broken_off)]
        self.leases.clear()
        return actions

    # Inside

    def _next(self) -> Pending | None:
        """Return one suspect at a time, and the others by place."""
        if self._suspects and not any(
            self._jobs[lease.task.id].is_suspect for lease in self.leases.values()
        ):
            return self._jobs[self._suspects.popleft()]
        if self._ready:
            return self._jobs[heappop(self._ready)[1]]
        return None

    def _queue(self, job: Pending) -> None:
        if job.is_suspect:
            self._suspects.append(job.task.id)
        else:
            heappush(self._ready, (job.place, job.task.id))

    def _start(self, job: Pending, now: float) -> Start:
        if job.last is not None:
            why = Why.RETRY
        else:
            why = Why.RESUMED if job.attempts else Why.FIRST
        self._last_lease += 1
        job.attempts += 1
        if job.first_at is None:
            job.first_at = now + self._epoch
        taken = {lease.agent for lease in self.leases.values()}
        start = Start(
            self._last_lease,
            job.task,
            job.attempts,
            next(number for number in count() if number not in taken),
            why,
            job.complaint,
            now,
            blamed=job.is_suspect,
        )
        self.leases[start.lease] = start
        return start

    def _settled(
        self,
        job: Pending,
        start: Start,
        outcome: AttemptOutcome,
        attempt_result: AttemptResult,
        now: float,
    ) -> Recorded:
        """Return the last attempt at a task with the task's result.

        The task is not known any more.
        """
        del self._jobs[job.task.id]
        ended_at = now + self._epoch
        if outcome is AttemptOutcome.DONE:
            ending = TaskEnding.DONE
        else:
            ending = TaskEnding.FAILED
        names = (
            "answer",
            "value",
            "error_kind",
            "error",
            "prompt_tokens",
            "output_tokens",
            "finish_reason",
            "replica",
        )
        fields = {name: getattr(attempt_result, name) for name in names}
        if job.first_at is None:
            started_at = ended_at
        else:
            started_at = job.first_at
        result = TaskResult(
            job.task.id,
            ending,
            tries=job.tries,
            started_at=started_at,
            ended_at=ended_at,
            **fields,
        )
        return Recorded(self._attempt(start, outcome, attempt_result, now), result)

    def _attempt(
        self, start: Start, outcome: AttemptOutcome, attempt_result: AttemptResult, now: float
    ) -> Attempt:
        figures = attempt_result.figures()
        if outcome is AttemptOutcome.DONE:
            figures["answer"] = None  # the result has it
        return Attempt(
            task=start.task.id,
            session=self._session,
            number=start.number,
            agent=start.agent,
            why=start.why,
            outcome=outcome,
            started_at=start.started + self._epoch,
            ended_at=now + self._epoch,
            **figures,
        )
