"""Which task is sent next, which is sent again, which has failed. Pure: events in, actions out; no
clock, no I/O.

Every task ends in exactly one result. What is the endpoint's fault costs a task none of its tries.
A task that is under way again and again when the connection breaks is a suspect: suspects are sent
one at a time, so that a break is known to be the fault of one task and costs it a try. Times
are of one steady clock; `epoch` turns them into unix seconds for the records."""

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
HOLD_AFTER_ERRORS = 3  # errors in a row, after which no more attempts are added to those under way


class ProbeEndpoint(msgspec.Struct, frozen=True):
    """Ask the endpoint whether it is there."""


class GiveUp(msgspec.Struct, frozen=True):
    why: str
    after_s: float | None  # None: at once, since waiting would not help


class Outage:
    """Whether the endpoint answers, when to probe it, and when to give up.

    *Away*: nobody answers; nothing is sent, and one probe at a time finds out when it is back.
    An endpoint that is not away may give nothing of use (refusals, broken streams). A session ends
    when either has lasted for the whole deadline."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self.is_away = False
        self.since: float | None = None  # without a good answer
        self.why: str | None = None
        self.errors_in_row = 0  # since the last good answer
        self._is_probing = False
        self._probe_at: float | None = None
        self._pause_s = FIRST_LOOK_S
        self._refused_key = False

    @property
    def wake_at(self) -> float | None:
        return None if self._is_probing else self._probe_at

    def attempt_ended(
        self, error_kind: ErrorKind | None, error: str | None, now: float, *, answered: bool
    ) -> None:
        """Learn from an attempt: any answer to it, a rejected one too, shows that the endpoint
        works.
        """
        if answered:
            self.since = None
            self.why = None
            self.is_away = False
            self.errors_in_row = 0
            self._pause_s = FIRST_LOOK_S
            if not self._is_probing:
                self._probe_at = None
            return
        if error_kind is not ErrorKind.TRY:
            self.errors_in_row += 1
            self.why = error
            if self.since is None:
                self.since = now
        if error_kind is ErrorKind.AWAY:
            self.is_away = True
        if error_kind is ErrorKind.KEY:
            self._refused_key = True
        if error_kind in (ErrorKind.TRY, ErrorKind.AWAY, ErrorKind.BROKEN):
            self.doubt(now)

    def doubt(self, now: float) -> None:
        """Have the endpoint probed; what is under way goes on meanwhile."""
        if self._probe_at is None:
            self._probe_at = now

    def probed(self, why: str | None, now: float) -> None:
        self._is_probing = False
        self._probe_at = None
        if why is None:
            if self.is_away:
                self.since = None
            self.is_away = False
            self._pause_s = FIRST_LOOK_S
            return
        self.why = why
        self.is_away = True
        if self.since is None:
            self.since = now
        self._probe_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_LOOK_S)

    def step(self, now: float, *, quiet: bool) -> list[ProbeEndpoint | GiveUp]:
        """Return a probe or the end of the session, where it is due. `quiet`: none of the answers
        under way has begun.
        """
        why = self.why or "it does not answer"
        if self._refused_key:
            return [GiveUp(why, None)]
        if (
            self.since is not None
            and (self.is_away or quiet)
            and now - self.since >= self._deadline_s
        ):
            return [GiveUp(why, now - self.since)]
        if self._probe_at is not None and now >= self._probe_at and not self._is_probing:
            self._is_probing = True
            return [ProbeEndpoint()]
        return []


FREE_BREAKS = 2  # of a connection, before its task is a suspect
SILENT_S = 30.0  # without a token of any answer under way, before the endpoint is probed


class Start(msgspec.Struct, frozen=True):
    """Send a task. `lease` names this attempt while it is under way."""

    lease: int
    task: Task
    number: int
    agent: int
    why: Why
    complaint: str | None
    started: float
    blamed: bool = False  # the only suspect under way: a break is its fault


class Cancel(msgspec.Struct, frozen=True):
    """Break an attempt off, and ignore what still arrives of it."""

    lease: int


Action = Start | Cancel | Recorded | ProbeEndpoint | GiveUp


@dataclass(slots=True)
class Pending:
    """A task without a result, with what was done for it, by earlier sessions too."""

    task: Task
    attempts: int = 0  # so far
    tries: int = 0  # attempts that count against `SwarmRunOptions.tries`
    breaks: int = 0
    first_at: float | None = None  # unix seconds
    place: int = 0  # in the input's order
    errors_in_row: int = 0  # of the kind `last_error`
    last_error: ErrorKind | None = None
    complaint: str | None = None

    @property
    def is_suspect(self) -> bool:
        return self.breaks >= FREE_BREAKS


class TaskSchedule:
    """Each task that was added ends with one result, and no more attempts are under way than the
    limit of a step allows."""

    def __init__(
        self,
        pending: Iterable[Pending],
        options: SwarmRunOptions,
        *,
        session: int,
        epoch: float,
        rng: Random,
    ) -> None:
        self._options = options
        self._session = session
        self._epoch = epoch
        self._rng = rng
        self.outage = Outage(options.deadline_s)
        self.leases: dict[int, Start] = {}
        self._jobs: dict[str, Pending] = {}  # without a result
        self._ready: list[tuple[int, str]] = []  # a heap of places and ids
        self._later: dict[str, float] = {}  # by id: when the task is ready again
        self._suspects: deque[str] = deque()  # ids, ready
        self._placed = 0
        self._last_lease = 0
        self._heard_tokens = 0  # tokens of all answers under way
        self._heard_at = float("-inf")  # when their number last changed
        self.add(pending)

    @property
    def is_over(self) -> bool:
        """Return whether every task has its result."""
        return not self._jobs

    @property
    def waiting(self) -> int:
        """Tasks that could be sent now."""
        return len(self._ready) + len(self._suspects)

    @property
    def wake_at(self) -> float | None:
        """Return when `step` should be called again, although nothing has happened."""
        times = list(self._later.values())
        if self.outage.wake_at is not None:
            times.append(self.outage.wake_at)
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
        if sum(counts.values()) != self._heard_tokens or not self.leases:
            self._heard_tokens = sum(counts.values())
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
        max_in_flight = limit
        if quiet and self.outage.errors_in_row >= HOLD_AFTER_ERRORS:
            max_in_flight = min(limit, max(1, len(self.leases)))
        while len(self.leases) < max_in_flight:
            job = self._next()
            if job is None:
                break
            actions.append(self._start(job, now))
        return actions

    def ended(self, lease_id: int, attempt_result: AttemptResult, now: float) -> list[Action]:
        """Record the end of an attempt. One that is not under way any more changes nothing."""
        start = self.leases.pop(lease_id, None)
        if start is None:
            return []
        job = self._jobs[start.task.id]
        error_kind = classify_error(attempt_result.error_kind, attempt_result.status)
        rejected = attempt_result.error_kind == REJECTED
        answered = rejected or error_kind in (None, ErrorKind.FINAL)
        self.outage.attempt_ended(error_kind, attempt_result.error, now, answered=answered)
        is_blamed_break = error_kind is ErrorKind.BROKEN and start.blamed
        if is_blamed_break or error_kind in (None, ErrorKind.TRY, ErrorKind.FINAL):
            job.tries += 1
        if error_kind is None:
            return [self._settle(job, start, AttemptOutcome.DONE, attempt_result, now)]
        if job.last_error is not error_kind:
            job.errors_in_row = 0
        job.errors_in_row += 1
        job.last_error = error_kind
        if error_kind is ErrorKind.BROKEN:
            job.breaks += 1
        outcome = AttemptOutcome.FAILED
        if rejected:
            outcome = AttemptOutcome.REJECTED
            job.complaint = attempt_result.error
        if job.tries >= self._options.tries or error_kind is ErrorKind.FINAL:
            return [self._settle(job, start, outcome, attempt_result, now)]
        pause_s = wait_s(error_kind, job.errors_in_row, self._rng, attempt_result.retry_after_s)
        self._later[job.task.id] = now + pause_s
        return [Recorded(self._attempt(start, outcome, attempt_result, now))]

    def probed(self, why: str | None, now: float) -> list[Action]:
        """Take the outcome of a probe: `why` the endpoint is not there, or None.

        If it is gone, what is under way there is broken off.
        """
        was_away = self.outage.is_away
        self.outage.probed(why, now)
        if why is None and was_away:
            # It is back: tasks that only waited for that need not wait longer.
            for name in self._later:
                if self._jobs[name].last_error in (ErrorKind.AWAY, ErrorKind.BROKEN):
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
        """Break off what is under way, and record it as cancelled."""
        actions: list[Action] = []
        for lease_id, start in self.leases.items():
            broken_off = self._attempt(start, AttemptOutcome.CANCELLED, AttemptResult(), now)
            actions += [Cancel(lease_id), Recorded(broken_off)]
        self.leases.clear()
        return actions

    # Inside

    def _next(self) -> Pending | None:
        """Return the next task: a suspect if none is under way, else the first by its place."""
        started = (self._jobs[start.task.id] for start in self.leases.values())
        if self._suspects and not any(job.is_suspect for job in started):
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
        why = Why.FIRST
        if job.last_error is not None:
            why = Why.RETRY
        elif job.attempts:
            why = Why.RESUMED
        self._last_lease += 1
        job.attempts += 1
        if job.first_at is None:
            job.first_at = now + self._epoch
        busy_agents = {start.agent for start in self.leases.values()}
        start = Start(
            lease=self._last_lease,
            task=job.task,
            number=job.attempts,
            agent=next(number for number in count() if number not in busy_agents),
            why=why,
            complaint=job.complaint,
            started=now,
            blamed=job.is_suspect,
        )
        self.leases[start.lease] = start
        return start

    def _settle(
        self,
        job: Pending,
        start: Start,
        outcome: AttemptOutcome,
        attempt_result: AttemptResult,
        now: float,
    ) -> Recorded:
        """Forget a task, and return its last attempt with its result."""
        del self._jobs[job.task.id]
        ended_at = now + self._epoch
        ending = TaskEnding.FAILED
        if outcome is AttemptOutcome.DONE:
            ending = TaskEnding.DONE
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
        started_at = ended_at if job.first_at is None else job.first_at
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
