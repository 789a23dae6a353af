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

import msgspec

from skep.swarm.client import REJECTED, AttemptResult
from skep.swarm.records import Attempt, AttemptOutcome, Recorded, SwarmRunOptions, Task, TaskEnding, TaskResult, Why
from skep.wire.openai import ErrorKind, classify_error, wait_s

FIRST_LOOK_S = 0.25
USUAL_LOOK_S = 1.0
LONGEST_LOOK_S = 5.0
RESTARTING_S = 30.0  # an engine that is started again is mostly back by then
DOUBT = 3  # mishaps in a row, after which no more are added to those under way


class ProbeEndpoint(msgspec.Struct, frozen=True):
    """Ask the endpoint whether it is there."""


class GiveUp(msgspec.Struct, frozen=True):
    why: str
    after_s: float | None  # None: at once, since waiting would not help


def next_pause_s(pause_s: float, away_s: float) -> float:
    """Between two looks."""
    return min(2 * pause_s, USUAL_LOOK_S if away_s < RESTARTING_S else LONGEST_LOOK_S)


class Outage:
    """Whether the endpoint answers, when to probe it, and when to give up.

    *Away*: nobody answers; nothing is sent, and one look at a time finds out when it is back. *Trouble*: it answers,
    but with nothing of use (refusals, broken streams), since its last good answer. Either, for the whole deadline, ends
    the session.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self.since: float | None = None  # away
        self.why: str | None = None
        self._trouble: float | None = None  # since
        self.row = 0  # mishaps since the last good answer
        self._looking = False
        self._look_at: float | None = None
        self._pause_s = FIRST_LOOK_S
        self._refused_key = False

    @property
    def is_away(self) -> bool:
        return self.since is not None

    @property
    def wake_at(self) -> float | None:
        return None if self._looking else self._look_at

    def came(self, mishap: ErrorKind | None, error: str | None, now: float, *, answered: bool) -> None:
        """What came of an attempt. Any answer to it at all, a rejected one too, shows that the endpoint works."""
        if answered:
            self.since = self.why = self._trouble = None
            self.row, self._pause_s = 0, FIRST_LOOK_S
            if not self._looking:
                self._look_at = None
            return
        if mishap is ErrorKind.TRY:
            self.doubt(now)
            return
        self.row += 1
        self.why = error
        if self._trouble is None:
            self._trouble = now
        if mishap is ErrorKind.AWAY:
            self._away(now)
        elif mishap is ErrorKind.KEY:
            self._refused_key = True
        elif mishap is ErrorKind.BROKEN:
            self.doubt(now)

    def doubt(self, now: float) -> None:
        """Is it still there? What is under way goes on meanwhile."""
        if self._look_at is None:
            self._look_at = now

    def probed(self, why: str | None, now: float) -> None:
        self._looking, self._look_at = False, None
        if why is None:
            self.since, self._pause_s = None, FIRST_LOOK_S
            return
        self.why = why
        self._away(now)
        self._look_at = now + self._pause_s
        self._pause_s = next_pause_s(self._pause_s, now - (self.since or now))

    def step(self, now: float, *, quiet: bool) -> list[ProbeEndpoint | GiveUp]:
        """`quiet`: none of the answers under way has begun."""
        why = self.why or "it does not answer"
        if self._refused_key:
            return [GiveUp(why, None)]
        since = self.since if self.since is not None else self._trouble if quiet else None
        if since is not None and now - since >= self._deadline_s:
            return [GiveUp(why, now - since)]
        if self._look_at is not None and now >= self._look_at and not self._looking:
            self._looking = True
            return [ProbeEndpoint()]
        return []

    def _away(self, now: float) -> None:
        if self.since is None:
            self.since = now
            self.doubt(now)


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
        return seconds > TIMES * slowest and (not self._rates or tokens / seconds < SLOW * median(self._rates))


FREE_BREAKS = 2  # that nobody blames on the task
SILENT_S = 30.0  # without one token of any answer under way: is anybody there?
RANKS = {"interactive": 0, "normal": 1, None: 1, "batch": 2}


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
    place: tuple[int, int] = (0, 0)  # among those that are ready
    resumed: bool = False
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
        self, pending: Iterable[Pending], order: SwarmRunOptions, *, session: int, epoch: float, rng: Random
    ) -> None:
        self._order = order
        self._session = session
        self._epoch = epoch
        self._rng = rng
        self.outage = Outage(order.deadline_s)
        self.leases: dict[int, Start] = {}
        self._stragglers = Stragglers()
        self._jobs: dict[str, Pending] = {}  # without a result
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
        times = [self._later[0][0] if self._later else None, self.outage.wake_at]
        return min((at for at in times if at is not None), default=None)

    def add(self, pending: Iterable[Pending]) -> None:
        for one in pending:
            if one.task.id in self._jobs:
                continue
            one.place, one.resumed = (RANKS.get(one.task.priority, 1), self._placed), one.attempts > 0
            self._placed += 1
            self._jobs[one.task.id] = one
            self._queue(one)

    def step(self, now: float, limit: int, heard: Mapping[int, int] | None = None) -> list[Action]:
        """Return what is to be done now, with at most `limit` under way. `heard`: tokens so far, by lease."""
        counts = heard or {}
        if sum(counts.values()) != self._heard or not self.leases:
            self._heard, self._heard_at = sum(counts.values()), now
        elif now - self._heard_at >= SILENT_S:
            self.outage.doubt(now)
        quiet = not any(counts.values())
        actions: list[Action] = [*self.outage.step(now, quiet=quiet)]
        if self.outage.is_away:
            return actions
        while self._later and self._later[0][0] <= now:
            self._queue(self._jobs[heappop(self._later)[2]])
        most = min(limit, max(1, len(self.leases))) if quiet and self.outage.row >= DOUBT else limit
        while len(self.leases) < most and (job := self._next()) is not None:
            again = Why.RESUMED if job.resumed else Why.FIRST
            actions.append(self._start(job, again if job.failed is None else Why.RETRY, now))
        for start in list(self.leases.values()) if self._order.stragglers and not self.waiting else ():
            job = self._jobs[start.task.id]
            may_be = len(self.leases) < most and not job.doubled and len(job.leases) == 1 and not job.is_suspect
            if may_be and self._stragglers.is_one(now - start.started, counts.get(start.lease, 0)):
                job.doubled = True
                actions.append(self._start(job, Why.STRAGGLER, now))
        return actions

    def ended(self, lease_id: int, came: AttemptResult, now: float) -> list[Action]:
        """An attempt has ended. One that is not under way any more changes nothing."""
        if (start := self._release(lease_id)) is None:
            return []
        job = self._jobs[start.task.id]
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
            # Those of a group break one after the other in the same moment: only the first of them makes it smaller.
            if job.is_suspect and start.lease > self._split:
                self._together = max(1, (self._suspects_under_way + 1) // 2)
                self._split = self._last_lease
            job.breaks += 1
        if mishap in (ErrorKind.TRY, ErrorKind.FINAL) or (mishap is ErrorKind.BROKEN and start.blamed):
            job.tries += 1
        attempt = self._attempt(start, AttemptOutcome.REJECTED if rejected else AttemptOutcome.FAILED, came, now)
        if (job.tries >= self._order.tries or mishap is ErrorKind.FINAL) and not job.leases:
            self._drop(job)
            return [Recorded(attempt, self._result(job, TaskEnding.FAILED, came, now))]
        if not job.leases:
            at = now + wait_s(mishap, job.row, self._rng, came.retry_after_s)
            heappush(self._later, (at, job.place, job.task.id))
        return [Recorded(attempt)]

    def probed(self, why: str | None, now: float) -> list[Action]:
        """`why` the endpoint is not there, or None. If it is gone, what is under way there is broken off."""
        was_away = self.outage.is_away
        self.outage.probed(why, now)
        if why is None and was_away:  # it is back: those who only waited for that need not wait longer
            late = {one for one in self._later if self._jobs[one[2]].last in (ErrorKind.AWAY, ErrorKind.BROKEN)}
            self._later = [one for one in self._later if one not in late]
            heapify(self._later)
            for _, _, name in sorted(late):
                self._queue(self._jobs[name])
        if why is None or now - self._heard_at < SILENT_S:
            return []
        actions: list[Action] = []
        for lease_id in list(self.leases):
            actions += [Cancel(lease_id), *self.ended(lease_id, AttemptResult(error_kind="closed", error=why), now)]
        return actions

    def stop(self, now: float) -> list[Action]:
        """No more: what is under way is broken off, and written down as such."""
        return [one for lease in list(self.leases) for one in self._break_off(lease, AttemptOutcome.CANCELLED, now)]

    # Inside

    def _next(self) -> Pending | None:
        if self._suspects:
            self._together = self._together or max(1, len(self._suspects) // 2)
            if self._suspects_under_way < self._together:
                return self._jobs[self._suspects.popleft()]
        return self._jobs[heappop(self._ready)[1]] if self._ready else None

    @property
    def _suspects_under_way(self) -> int:
        return sum(self._jobs[one.task.id].is_suspect for one in self.leases.values())

    def _queue(self, job: Pending) -> None:
        if job.is_suspect:
            self._suspects.append(job.task.id)
        else:
            heappush(self._ready, (job.place, job.task.id))

    def _start(self, job: Pending, why: Why, now: float) -> Start:
        self._last_lease += 1
        job.attempts += 1
        if job.first_at is None:
            job.first_at = now + self._epoch
        blamed = job.is_suspect and self._together == 1
        if not self._agents:
            self._agents.append(self._most_agents)
            self._most_agents += 1
        start = Start(self._last_lease, job.task, job.attempts, heappop(self._agents), why, job.complaint, now, blamed)
        self.leases[start.lease] = start
        job.leases.add(start.lease)
        return start

    def _release(self, lease_id: int) -> Start | None:
        start = self.leases.pop(lease_id, None)
        if start is not None:
            heappush(self._agents, start.agent)
            self._jobs[start.task.id].leases.discard(lease_id)
        return start

    def _won(self, job: Pending, start: Start, came: AttemptResult, now: float) -> list[Action]:
        self._stragglers.took(now - start.started, came.output_tokens)
        job.tries += 1
        result = self._result(job, TaskEnding.DONE, came, now)
        actions: list[Action] = [Recorded(self._attempt(start, AttemptOutcome.DONE, came, now), result)]
        for other_id in list(job.leases):
            actions += self._break_off(other_id, AttemptOutcome.SUPERSEDED, now)
        self._drop(job)
        return actions

    def _break_off(self, lease_id: int, outcome: AttemptOutcome, now: float) -> list[Action]:
        start = self._release(lease_id)
        assert start is not None
        return [Cancel(lease_id), Recorded(self._attempt(start, outcome, AttemptResult(), now))]

    def _drop(self, job: Pending) -> None:
        del self._jobs[job.task.id]
        if self._together is not None and not any(one.is_suspect for one in self._jobs.values()):
            self._together = None

    def _result(self, job: Pending, ending: TaskEnding, came: AttemptResult, now: float) -> TaskResult:
        ended_at = now + self._epoch
        names = ("answer", "value", "error_kind", "error", "prompt_tokens", "output_tokens", "finish_reason", "replica")
        told = {name: getattr(came, name) for name in names}
        started_at = ended_at if job.first_at is None else job.first_at
        return TaskResult(job.task.id, ending, tries=job.tries, started_at=started_at, ended_at=ended_at, **told)

    def _attempt(self, start: Start, outcome: AttemptOutcome, came: AttemptResult, now: float) -> Attempt:
        figures = came.figures()
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
