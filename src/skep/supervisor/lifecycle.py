"""The lifecycle of one replica as a state machine: events in, actions out. Knows no process, no socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

RESTART = "restart asked for"


class ReplicaState(Enum):
    WAITING = "waiting"  # for other replicas that start on its cards
    STARTING = "starting"  # the process runs, or is about to; it is not healthy yet
    WARMING = "warming"  # healthy; its first generation is under way
    READY = "ready"
    BACKOFF = "backoff"  # it died; the next start is due at a known time
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # given up


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Deadlines, delays and limits of starting a replica again."""

    start_deadline_s: float = 180.0  # from the start to healthy
    warm_deadline_s: float = 120.0
    first_delay_s: float = 0.5  # doubles with each failure in a row
    max_delay_s: float = 30.0
    stable_s: float = 60.0  # after so long as ready, earlier failures are forgotten
    failures_before_ready: int = 3  # in a row, without ever having been ready
    failures_after_ready: int = 8
    grace_s: float = 2.0  # from TERM to KILL
    watch_every_s: float = 10.0  # health checks of a ready replica
    watch_timeout_s: float = 20.0
    watch_failures: int = 3  # in a row: it hangs, and is restarted
    fallbacks: int = 0  # changes of a launch that died, one at a time, before it is given up


class LifecycleAction(Enum):
    """What the caller is to do."""

    SPAWN = "spawn"
    PROBE = "probe"
    WARM_UP = "warm_up"
    PUBLISH = "publish"  # tell the gateway: traffic may come
    RETRACT = "retract"
    TERMINATE = "terminate"  # TERM, then KILL after the grace


class Lifecycle:
    """The state of one replica. `why` says in one line what last went wrong; `due_at` is when `tick` is due."""

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
        """Whether it takes requests: ready, and not being ended."""
        return self.state is ReplicaState.READY and self._ending is None

    @property
    def being_ended(self) -> bool:
        """Whether its process ends, or ended, because skep ended it."""
        return self._ending is not None or self.state in (ReplicaState.STOPPING, ReplicaState.STOPPED)

    def start(self, now: float) -> list[LifecycleAction]:
        if self.state is not ReplicaState.STOPPED:
            return []
        return self._spawn(now)

    def must_wait(self) -> None:
        """Wait to be spawned until `granted`."""
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
        """Serve no requests: the process is gone. `exited` follows when the cause is known."""
        self.url = None
        if self.state is not ReplicaState.READY:
            return []
        self.state = ReplicaState.BACKOFF
        return [LifecycleAction.RETRACT]

    def exited(self, why: str, now: float, *, final: bool = False, by_itself: bool = False) -> list[LifecycleAction]:
        """Handle the exit of the process. `final`: it would end so again. `by_itself`: skep did not end it."""
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
        """Start a changed launch at once after its process ended; earlier failures do not count."""
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
        """End a ready process that no longer answers: a hanging engine holds its slots."""
        if self.state is not ReplicaState.READY:
            return []
        return self._end(f"no answer to {self.policy.watch_failures} health checks in a row")

    def restart(self, now: float) -> list[LifecycleAction]:
        """End the process, whose exit leads to a start; or start one that waits or was given up."""
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
