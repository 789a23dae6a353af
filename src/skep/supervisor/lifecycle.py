"""The life of one replica as a state machine: events in, actions out. Knows no process, no socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

RESTART = "restart asked for"


class State(Enum):
    WAITING = "waiting"  # for others that start on its cards
    STARTING = "starting"  # the process runs, or is about to; it is not healthy yet
    WARMING = "warming"  # healthy; its first generation is under way
    READY = "ready"
    BACKOFF = "backoff"  # it died; the next start is due at a known time
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # given up


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    start_deadline_s: float = 180.0  # from the start to healthy
    warm_deadline_s: float = 120.0
    first_delay_s: float = 0.5  # doubles with each failure in a row
    max_delay_s: float = 30.0
    stable_s: float = 60.0  # ready for so long: the failures before are forgotten
    failures_before_ready: int = 3  # in a row, without ever having been ready
    failures_after_ready: int = 8
    grace_s: float = 2.0  # from TERM to KILL
    watch_every_s: float = 10.0  # health checks of a ready replica
    watch_timeout_s: float = 20.0
    watch_failures: int = 3  # in a row: it hangs, and is started anew
    fallbacks: int = 0  # changes of a launch that died, one at a time, before it is given up


class Do(Enum):
    """What the shell is to do."""

    SPAWN = "spawn"
    PROBE = "probe"
    WARM_UP = "warm_up"
    PUBLISH = "publish"  # tell the gateway: traffic may come
    RETRACT = "retract"
    TERMINATE = "terminate"  # TERM, then KILL after the grace


class Lifecycle:
    """One replica. `why` says in one line what last went wrong; `due_at` when `tick` next has something to do."""

    def __init__(self, policy: RestartPolicy | None = None) -> None:
        self.policy = policy or RestartPolicy()
        self.state = State.STOPPED
        self.url: str | None = None
        self.why: str | None = None
        self.note: str | None = None  # what is odd about it, also while it serves
        self.restarts = 0
        self.due_at: float | None = None
        self._failures = 0
        self._ready_at: float | None = None
        self._was_ready = False
        self._ending: str | None = None  # why we are ending the process ourselves

    def __repr__(self) -> str:
        return f"<Lifecycle {self.state.value}, {self.restarts} restarts, {self._failures} failures in a row>"

    @property
    def serving(self) -> bool:
        """Traffic may come: ready, and not being ended."""
        return self.state is State.READY and self._ending is None

    @property
    def being_ended(self) -> bool:
        """Its process goes, or went, because it was told to."""
        return self._ending is not None or self.state in (State.STOPPING, State.STOPPED)

    def start(self, now: float) -> list[Do]:
        if self.state is not State.STOPPED:
            return []
        return self._spawn(now)

    def must_wait(self) -> None:
        """It is not its turn to be spawned; `granted` says when."""
        self.state, self.due_at = State.WAITING, None

    def granted(self, now: float) -> list[Do]:
        return self._spawn(now) if self.state is State.WAITING else []

    def addressed(self, url: str) -> list[Do]:
        if self.state is not State.STARTING:
            return []
        self.url = url
        return [Do.PROBE]

    def healthy(self, now: float) -> list[Do]:
        if self.state is not State.STARTING:
            return []
        self.state = State.WARMING
        self.due_at = now + self.policy.warm_deadline_s
        return [Do.WARM_UP]

    def warmed(self, now: float) -> list[Do]:
        if self.state is not State.WARMING:
            return []
        self.state = State.READY
        self.why = self.note
        self.due_at = None
        self._ready_at = now
        self._was_ready = True
        return [Do.PUBLISH]

    def warm_up_failed(self, why: str) -> list[Do]:
        if self.state is not State.WARMING:
            return []
        return self._end(f"the warm-up generation failed: {why}")

    def vanished(self) -> list[Do]:
        """The process is gone, and why is being found out: `exited` follows. It serves nobody meanwhile."""
        self.url = None
        if self.state is not State.READY:
            return []
        self.state = State.BACKOFF
        return [Do.RETRACT]

    def exited(self, why: str, now: float, *, final: bool = False, by_itself: bool = False) -> list[Do]:
        """The process is gone. `final`: it would end in the same way again. `by_itself`: not because we ended it."""
        retract, before = self.vanished(), self.state
        if before in (State.STOPPING, State.STOPPED):
            self.state, self.due_at = State.STOPPED, None
            return []
        ending, self._ending = self._ending, None
        if ending == RESTART:
            self.state, self.due_at = State.BACKOFF, now
            return retract
        self.why = why if by_itself or ending is None else ending
        if self._ready_at is not None and now - self._ready_at >= self.policy.stable_s:
            self._failures = 0
        self._ready_at = None
        self._failures += 1
        limit = self.policy.failures_after_ready if self._was_ready else self.policy.failures_before_ready
        if final or self._failures >= limit:
            self.state = State.FAILED
            self.due_at = None
        else:
            self.state = State.BACKOFF
            self.due_at = now + self._delay_s()
        return retract

    def changed_and_again(self, why: str, now: float) -> list[Do]:
        """The process is gone, and its launch was changed since: started at once, the failures before do not count."""
        retract = self.vanished()
        self.why, self._ending = why, None
        self._ready_at, self._failures = None, 0
        self.restarts += 1
        return [*retract, *self._spawn(now)]

    def tick(self, now: float) -> list[Do]:
        if self.due_at is None or now < self.due_at:
            return []
        match self.state:
            case State.BACKOFF:
                self.restarts += 1
                return self._spawn(now)
            case State.STARTING:
                return self._end(f"not healthy within {self.policy.start_deadline_s:g} s")
            case _:
                return self._end(f"the warm-up generation took longer than {self.policy.warm_deadline_s:g} s")

    def unresponsive(self) -> list[Do]:
        """It was ready and no longer answers: a frozen engine holds its slots and answers nobody."""
        if self.state is not State.READY:
            return []
        return self._end(f"no answer to {self.policy.watch_failures} health checks in a row")

    def restart(self, now: float) -> list[Do]:
        """Asked for by the user: end the process, its exit leads to a start; or start what waits or was given up."""
        match self.state:
            case State.STARTING | State.WARMING | State.READY:
                return self._end(RESTART)
            case State.BACKOFF | State.FAILED:
                self.restarts += 1
                self._failures = 0
                return self._spawn(now)
            case _:
                return []

    def stop(self) -> list[Do]:
        retract = [Do.RETRACT] if self.state is State.READY else []
        self.due_at = None
        if self.state in (State.STARTING, State.WARMING, State.READY):
            self.state = State.STOPPING
            return [*retract, Do.TERMINATE]
        if self.state in (State.WAITING, State.BACKOFF, State.FAILED):
            self.state = State.STOPPED
        return []

    def _end(self, why: str) -> list[Do]:
        self._ending = why
        self.due_at = None
        return [Do.TERMINATE]

    def _spawn(self, now: float) -> list[Do]:
        self.state = State.STARTING
        self.due_at = now + self.policy.start_deadline_s
        return [Do.SPAWN]

    def _delay_s(self) -> float:
        return float(min(self.policy.max_delay_s, self.policy.first_delay_s * 2 ** (self._failures - 1)))
