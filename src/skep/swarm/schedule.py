"""Which task next, which again, which is set aside. Pure: events in, actions out; no clock, no I/O.

Every task ends in exactly one result. What is the endpoint's fault costs a task none of its tries. A task that is under
way again and again when the connection breaks is a suspect: half of the suspects are sent at a time, then half of
those, and so on, until the one that breaks the endpoint is the only one under way; that costs it a try. A task that is
slow far beyond the others is asked a second time, once; the first whole answer counts. Times are of one steady clock;
`epoch` turns them into unix seconds for the records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random
from statistics import median
from typing import Any

from skep.swarm.attempt import REJECTED, copied
from skep.swarm.client import AttemptResult
from skep.swarm.endpoint_health import GiveUp, Outage, ProbeEndpoint
from skep.swarm.records import FREE_BREAKS, Attempt, AttemptOutcome, Task, TaskEnding, TaskResult, Why
from skep.wire.retry import ErrorKind, classify_error, wait_s

FEWEST = 5  # answers, before anything can be said
REMEMBERED = 200
TIMES = 2.5  # the time that nine of ten stay below
FLOOR_S = 1.0
SLOW = 0.5  # of the usual tokens a second: one that is faster is not stuck, only long


class Stragglers:
    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._rates: deque[float] = deque(maxlen=REMEMBERED)

    def took(self, seconds: float, tokens: int | None) -> None:
        """A whole answer came."""
        self._seconds.append(seconds)
        if tokens and seconds > 0:
            self._rates.append(tokens / seconds)

    def is_one(self, seconds: float, tokens: int) -> bool:
        if seconds <= FLOOR_S or len(self._seconds) < FEWEST:
            return False
        slowest = sorted(self._seconds)[int(0.9 * (len(self._seconds) - 1))]
        if seconds <= TIMES * slowest:
            return False
        return not self._rates or tokens / seconds < SLOW * median(self._rates)


SILENT_S = 30.0  # without one token of any answer under way: is anybody there?
RANKS = {"interactive": 0, "normal": 1, None: 1, "batch": 2}


@dataclass(frozen=True, slots=True)
class Start:
    """Send it. `lease` names this attempt while it is under way."""

    lease: int
    task: Task
    number: int
    agent: int
    why: Why
    complaint: str | None
    started: float
    blamed: bool = False  # the only suspect under way: a break is its own


@dataclass(frozen=True, slots=True)
class Cancel:
    """Break it off; what it still brings is not wanted."""

    lease: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write it down; with its result, where the task has come to its end."""

    attempt: Attempt
    result: TaskResult | None = None


Action = Start | Cancel | Record | ProbeEndpoint | GiveUp


@dataclass(frozen=True, slots=True)
class Pending:
    """A task without a result, with what earlier sessions did for it."""

    task: Task
    attempts: int = 0  # the number of the last
    tries: int = 0  # that count
    breaks: int = 0
    first_at: float | None = None  # unix seconds


@dataclass(slots=True)
class _TaskState:
    """A task on its way to its result."""

    task: Task
    place: tuple[int, int]
    attempts: int
    tries: int
    breaks: int
    first_at: float | None
    resumed: bool
    row: int = 0  # mishaps of one kind in a row
    last: ErrorKind | None = None
    complaint: str | None = None
    failed: AttemptResult | None = None  # the last that failed
    doubled: bool = False
    leases: set[int] = field(default_factory=set)

    @property
    def is_suspect(self) -> bool:
        return self.breaks >= FREE_BREAKS


class TaskSchedule:
    def __init__(
        self,
        pending: Iterable[Pending],
        *,
        session: int,
        epoch: float,
        rng: Random,
        tries: int = 4,
        deadline_s: float = 600.0,
        stragglers: bool = True,
    ) -> None:
        self._session = session
        self._epoch = epoch
        self._rng = rng
        self._tries = tries
        self.outage = Outage(deadline_s)
        self.leases: dict[int, Start] = {}
        self._stragglers = Stragglers() if stragglers else None
        self._jobs: dict[str, _TaskState] = {}  # without a result
        self._ready: list[tuple[tuple[int, int], str]] = []
        self._later: list[tuple[float, tuple[int, int], str]] = []
        self._suspects: deque[str] = deque()  # ready
        self._together: int | None = None  # suspects under way at once
        self._split = 0  # the last lease of the group of suspects that broke last
        self._agents: list[int] = []  # free numbers
        self._most_agents = 0
        self._placed = 0
        self._last_lease = 0
        self._heard = 0  # of all under way, when it last changed
        self._heard_at = float("-inf")
        self.add(pending)

    def __repr__(self) -> str:
        counts = f"{len(self.leases)} running, {self.waiting} ready, {len(self._later)} later"
        return f"<TaskSchedule {counts}, {self.outage}>"

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
        times = [at for at in (self._later[0][0] if self._later else None, self.outage.wake_at) if at is not None]
        return min(times, default=None)

    def add(self, pending: Iterable[Pending]) -> None:
        for one in pending:
            if one.task.id in self._jobs:
                continue
            place = (RANKS.get(one.task.priority, 1), self._placed)
            self._placed += 1
            job = _TaskState(one.task, place, one.attempts, one.tries, one.breaks, one.first_at, one.attempts > 0)
            self._jobs[one.task.id] = job
            self._queue(job)

    def step(self, now: float, limit: int, heard: Mapping[int, int] | None = None) -> list[Action]:
        """Return what is to be done now, with at most `limit` under way. `heard`: tokens so far, by lease."""
        counts = heard or {}
        self._listen(now, sum(counts.values()))
        quiet = not any(counts.values())
        actions: list[Action] = [*self.outage.step(now, quiet=quiet)]
        if self.outage.is_away:
            return actions
        while self._later and self._later[0][0] <= now:
            self._queue(self._jobs[heappop(self._later)[2]])
        most = min(limit, max(1, len(self.leases))) if quiet and self.outage.is_doubtful else limit
        while len(self.leases) < most and (job := self._next()) is not None:
            actions.append(self._start(job, self._why(job), now))
        if self._stragglers is not None and not self.waiting and len(self.leases) < most:
            actions += self._second_attempts(now, most, counts)
        return actions

    def ended(self, lease_id: int, came: AttemptResult, now: float) -> list[Action]:
        """An attempt has ended. One that is not under way any more changes nothing."""
        start = self._release(lease_id)
        if start is None:
            return []
        job = self._jobs[start.task.id]
        job.leases.discard(lease_id)
        mishap = classify_error(came.error_kind, came.status)
        rejected = came.error_kind == REJECTED
        self.outage.came(mishap, came.error, now, answered=rejected or mishap in (None, ErrorKind.FINAL))
        if mishap is None:
            return self._won(job, start, came, now)
        job.row = job.row + 1 if job.last is mishap else 1
        job.last, job.failed = mishap, came
        if rejected:
            job.complaint = came.error
        if mishap is ErrorKind.BROKEN:
            self._broke(job, start)
        if mishap in (ErrorKind.TRY, ErrorKind.FINAL) or (mishap is ErrorKind.BROKEN and start.blamed):
            job.tries += 1
        attempt = self._attempt(start, AttemptOutcome.REJECTED if rejected else AttemptOutcome.FAILED, came, now)
        if (job.tries >= self._tries or mishap is ErrorKind.FINAL) and not job.leases:
            return [Record(attempt, self._set_aside(job, now))]
        if not job.leases:
            self._again(job, now + wait_s(mishap, job.row, self._rng, came.retry_after_s))
        return [Record(attempt)]

    def probed(self, why: str | None, now: float) -> list[Action]:
        """The endpoint was asked whether it is there; `why` it is not, or None.

        Gone without a word: what is under way there would not end by itself, and is broken off.
        """
        was_away = self.outage.is_away
        self.outage.probed(why, now)
        if why is None and was_away:
            self._recall()
        if why is None or now - self._heard_at < SILENT_S:
            return []
        actions: list[Action] = []
        for lease_id in list(self.leases):
            actions += [Cancel(lease_id), *self.ended(lease_id, AttemptResult(error_kind="closed", error=why), now)]
        return actions

    def stop(self, now: float) -> list[Action]:
        """No more: what is under way is broken off, and written down as such."""
        actions: list[Action] = []
        for lease_id, start in list(self.leases.items()):
            self._release(lease_id)
            self._jobs[start.task.id].leases.discard(lease_id)
            attempt = self._attempt(start, AttemptOutcome.CANCELLED, AttemptResult(), now)
            actions += [Cancel(lease_id), Record(attempt)]
        return actions

    # Inside

    def _listen(self, now: float, heard: int) -> None:
        if heard != self._heard or not self.leases:
            self._heard, self._heard_at = heard, now
        elif now - self._heard_at >= SILENT_S:
            self.outage.doubt(now)

    def _next(self) -> _TaskState | None:
        if self._suspects:
            if self._together is None:
                self._together = max(1, len(self._suspects) // 2)
            if self._suspects_under_way < self._together:
                return self._jobs[self._suspects.popleft()]
        return self._jobs[heappop(self._ready)[1]] if self._ready else None

    @property
    def _suspects_under_way(self) -> int:
        return sum(1 for one in self.leases.values() if self._jobs[one.task.id].is_suspect)

    def _broke(self, job: _TaskState, start: Start) -> None:
        """Those of a group break one after the other in the same moment: only the first of them makes it smaller."""
        if job.is_suspect and start.lease > self._split:
            self._together = max(1, (self._suspects_under_way + 1) // 2)
            self._split = self._last_lease
        job.breaks += 1

    def _queue(self, job: _TaskState) -> None:
        if job.is_suspect:
            self._suspects.append(job.task.id)
        else:
            heappush(self._ready, (job.place, job.task.id))

    def _again(self, job: _TaskState, at: float) -> None:
        heappush(self._later, (at, job.place, job.task.id))

    def _recall(self) -> None:
        """It is back: those who only waited for that need not wait longer."""
        late = (ErrorKind.AWAY, ErrorKind.BROKEN)
        for _, _, name in self._later:
            if self._jobs[name].last in late:
                self._queue(self._jobs[name])
        self._later = [one for one in self._later if self._jobs[one[2]].last not in late]
        heapify(self._later)

    def _why(self, job: _TaskState) -> Why:
        if job.failed is not None:
            return Why.RETRY
        return Why.RESUMED if job.resumed else Why.FIRST

    def _start(self, job: _TaskState, why: Why, now: float) -> Start:
        self._last_lease += 1
        job.attempts += 1
        if job.first_at is None:
            job.first_at = now + self._epoch
        blamed = job.is_suspect and self._together == 1
        start = Start(self._last_lease, job.task, job.attempts, self._agent(), why, job.complaint, now, blamed)
        self.leases[start.lease] = start
        job.leases.add(start.lease)
        return start

    def _agent(self) -> int:
        if self._agents:
            return heappop(self._agents)
        self._most_agents += 1
        return self._most_agents - 1

    def _release(self, lease_id: int) -> Start | None:
        start = self.leases.pop(lease_id, None)
        if start is not None:
            heappush(self._agents, start.agent)
        return start

    def _won(self, job: _TaskState, start: Start, came: AttemptResult, now: float) -> list[Action]:
        if self._stragglers is not None:
            self._stragglers.took(now - start.started, came.output_tokens)
        attempt = self._attempt(start, AttemptOutcome.DONE, came, now)
        job.tries += 1
        result = self._result(job, TaskEnding.DONE, came, now, value=came.value)
        actions: list[Action] = [Record(attempt, result)]
        for other_id in job.leases:
            other = self._release(other_id)
            if other is not None:
                late = self._attempt(other, AttemptOutcome.SUPERSEDED, AttemptResult(), now)
                actions += [Cancel(other_id), Record(late)]
        self._drop(job)
        return actions

    def _drop(self, job: _TaskState) -> None:
        del self._jobs[job.task.id]
        if self._together is not None and not any(one.is_suspect for one in self._jobs.values()):
            self._together = None

    def _set_aside(self, job: _TaskState, now: float) -> TaskResult:
        assert job.failed is not None
        self._drop(job)
        return self._result(job, TaskEnding.FAILED, job.failed, now, value=None)

    def _result(
        self, job: _TaskState, ending: TaskEnding, came: AttemptResult, now: float, *, value: Any
    ) -> TaskResult:
        return copied(
            TaskResult,
            came,
            task=job.task.id,
            ending=ending,
            value=value,
            tries=job.tries,
            started_at=now + self._epoch if job.first_at is None else job.first_at,
            ended_at=now + self._epoch,
        )

    def _attempt(self, start: Start, outcome: AttemptOutcome, came: AttemptResult, now: float) -> Attempt:
        return copied(
            Attempt,
            came,
            task=start.task.id,
            session=self._session,
            number=start.number,
            agent=start.agent,
            why=start.why,
            outcome=outcome,
            started_at=start.started + self._epoch,
            ended_at=now + self._epoch,
            answer=None if outcome is AttemptOutcome.DONE else came.answer,
        )

    def _second_attempts(self, now: float, most: int, heard: Mapping[int, int]) -> list[Action]:
        assert self._stragglers is not None
        actions: list[Action] = []
        for start in list(self.leases.values()):
            job = self._jobs[start.task.id]
            if len(self.leases) >= most:
                break
            if job.doubled or len(job.leases) != 1 or job.is_suspect:
                continue
            if self._stragglers.is_one(now - start.started, heard.get(start.lease, 0)):
                job.doubled = True
                actions.append(self._start(job, Why.STRAGGLER, now))
        return actions
