"""The life of one replica as a state machine: events in, actions out. Knows no process, no socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

RESTART = "restart asked for"


class ReplicaState(Enum):
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


class LifecycleAction(Enum):
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
        self.state = ReplicaState.STOPPED
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
        return self.state is ReplicaState.READY and self._ending is None

    @property
    def being_ended(self) -> bool:
        """Its process goes, or went, because it was told to."""
        return self._ending is not None or self.state in (ReplicaState.STOPPING, ReplicaState.STOPPED)

    def start(self, now: float) -> list[LifecycleAction]:
        if self.state is not ReplicaState.STOPPED:
            return []
        return self._spawn(now)

    def must_wait(self) -> None:
        """It is not its turn to be spawned; `granted` says when."""
        self.state, self.due_at = ReplicaState.WAITING, None

    def granted(self, now: float) -> list[LifecycleAction]:
        return self._spawn(now) if self.state is ReplicaState.WAITING else []

    def addressed(self, url: str) -> list[LifecycleAction]:
        if self.state is not ReplicaState.STARTING:
            return []
        self.url = url
        return [LifecycleAction.PROBE]

    def healthy(self, now: float) -> list[LifecycleAction]:
        if self.state is not ReplicaState.STARTING:
            return []
        self.state = ReplicaState.WARMING
        self.due_at = now + self.policy.warm_deadline_s
        return [LifecycleAction.WARM_UP]

    def warmed(self, now: float) -> list[LifecycleAction]:
        if self.state is not ReplicaState.WARMING:
            return []
        self.state = ReplicaState.READY
        self.why = self.note
        self.due_at = None
        self._ready_at = now
        self._was_ready = True
        return [LifecycleAction.PUBLISH]

    def warm_up_failed(self, why: str) -> list[LifecycleAction]:
        if self.state is not ReplicaState.WARMING:
            return []
        return self._end(f"the warm-up generation failed: {why}")

    def vanished(self) -> list[LifecycleAction]:
        """The process is gone, and why is being found out: `exited` follows. It serves nobody meanwhile."""
        self.url = None
        if self.state is not ReplicaState.READY:
            return []
        self.state = ReplicaState.BACKOFF
        return [LifecycleAction.RETRACT]

    def exited(self, why: str, now: float, *, final: bool = False, by_itself: bool = False) -> list[LifecycleAction]:
        """The process is gone. `final`: it would end in the same way again. `by_itself`: not because we ended it."""
        retract, before = self.vanished(), self.state
        if before in (ReplicaState.STOPPING, ReplicaState.STOPPED):
            self.state, self.due_at = ReplicaState.STOPPED, None
            return []
        ending, self._ending = self._ending, None
        if ending == RESTART:
            self.state, self.due_at = ReplicaState.BACKOFF, now
            return retract
        self.why = why if by_itself or ending is None else ending
        if self._ready_at is not None and now - self._ready_at >= self.policy.stable_s:
            self._failures = 0
        self._ready_at = None
        self._failures += 1
        limit = self.policy.failures_after_ready if self._was_ready else self.policy.failures_before_ready
        if final or self._failures >= limit:
            self.state = ReplicaState.FAILED
            self.due_at = None
        else:
            self.state = ReplicaState.BACKOFF
            self.due_at = now + self._delay_s()
        return retract

    def restart_changed(self, why: str, now: float) -> list[LifecycleAction]:
        """The process is gone, and its launch was changed since: started at once, the failures before do not count."""
        retract = self.vanished()
        self.why, self._ending = why, None
        self._ready_at, self._failures = None, 0
        self.restarts += 1
        return [*retract, *self._spawn(now)]

    def tick(self, now: float) -> list[LifecycleAction]:
        if self.due_at is None or now < self.due_at:
            return []
        match self.state:
            case ReplicaState.BACKOFF:
                self.restarts += 1
                return self._spawn(now)
            case ReplicaState.STARTING:
                return self._end(f"not healthy within {self.policy.start_deadline_s:g} s")
            case _:
                return self._end(f"the warm-up generation took longer than {self.policy.warm_deadline_s:g} s")

    def unresponsive(self) -> list[LifecycleAction]:
        """It was ready and no longer answers: a frozen engine holds its slots and answers nobody."""
        if self.state is not ReplicaState.READY:
            return []
        return self._end(f"no answer to {self.policy.watch_failures} health checks in a row")

    def restart(self, now: float) -> list[LifecycleAction]:
        """Asked for by the user: end the process, its exit leads to a start; or start what waits or was given up."""
        match self.state:
            case ReplicaState.STARTING | ReplicaState.WARMING | ReplicaState.READY:
                return self._end(RESTART)
            case ReplicaState.BACKOFF | ReplicaState.FAILED:
                self.restarts += 1
                self._failures = 0
                return self._spawn(now)
            case _:
                return []

    def stop(self) -> list[LifecycleAction]:
        retract = [LifecycleAction.RETRACT] if self.state is ReplicaState.READY else []
        self.due_at = None
        if self.state in (ReplicaState.STARTING, ReplicaState.WARMING, ReplicaState.READY):
            self.state = ReplicaState.STOPPING
            return [*retract, LifecycleAction.TERMINATE]
        if self.state in (ReplicaState.WAITING, ReplicaState.BACKOFF, ReplicaState.FAILED):
            self.state = ReplicaState.STOPPED
        return []

    def _end(self, why: str) -> list[LifecycleAction]:
        self._ending = why
        self.due_at = None
        return [LifecycleAction.TERMINATE]

    def _spawn(self, now: float) -> list[LifecycleAction]:
        self.state = ReplicaState.STARTING
        self.due_at = now + self.policy.start_deadline_s
        return [LifecycleAction.SPAWN]

    def _delay_s(self) -> float:
        return float(min(self.policy.max_delay_s, self.policy.first_delay_s * 2 ** (self._failures - 1)))
