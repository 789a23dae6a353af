"""The lifecycle of one replica as a state machine: events in, actions out.

Knows no process, no socket, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

RESTART_REQUESTED = "restart requested"


class ReplicaState(Enum):
    WAITING = "waiting"  # for other replicas that start on its cards
    STARTING = "starting"  # the process runs, or is about to; it is not healthy yet
    WARMING = "warming"  # healthy; its first generation is under way
    READY = "ready"
    BACKOFF = "backoff"  # it died; the next start is due at a known time
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # given up


RUNNING = (ReplicaState.STARTING, ReplicaState.WARMING, ReplicaState.READY)


class RestartPolicy(msgspec.Struct, frozen=True):
    start_deadline_s: float = 180.0  # from the start to healthy
    warm_deadline_s: float = 120.0
    # What agents need is checked so long before a replica serves, and then beside it. None: it is
    # not checked
    checked_before_ready_s: float | None = 3.0
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
    SPAWN = "spawn"
    PROBE = "probe"
    WARM_UP = "warm_up"
    WATCH = "watch"  # it is ready
    TERMINATE = "terminate"  # TERM, then KILL after the grace


ToDo = LifecycleAction | None


@dataclass(slots=True)
class Life:
    """The state of a replica, wherever it runs and whoever started it. `why` says in one line what
    last went wrong.
    """

    url: str | None = None
    state: ReplicaState = ReplicaState.STOPPED
    why: str | None = None
    restarts: int = 0

    @property
    def serving(self) -> bool:
        return self.state is ReplicaState.READY


class Lifecycle(Life):
    """The state of one replica that skep starts. `due_at` is when `tick` is due."""

    def __init__(self, policy: RestartPolicy | None = None) -> None:
        super().__init__()
        self.policy = policy or RestartPolicy()
        self.note: str | None = None  # what is odd about it, also while it serves
        self.due_at: float | None = None
        self._failures = 0
        self._ready_at: float | None = None
        self._was_ready = False
        self._ending: str | None = None  # why we are ending the process ourselves

    @property
    def serving(self) -> bool:
        return self.state is ReplicaState.READY and self._ending is None

    @property
    def being_ended(self) -> bool:
        """Whether its process ends, or ended, because skep ended it."""
        return self._ending is not None or self.state in (
            ReplicaState.STOPPING,
            ReplicaState.STOPPED,
        )

    def start(self, now: float) -> ToDo:
        if self.state is ReplicaState.STOPPED:
            return self._spawn(now)
        return None

    def must_wait(self) -> None:
        """Wait to be spawned until `granted`."""
        self.state = ReplicaState.WAITING
        self.due_at = None

    def granted(self, now: float) -> ToDo:
        if self.state is ReplicaState.WAITING:
            return self._spawn(now)
        return None

    def addressed(self, url: str) -> ToDo:
        if self.state is not ReplicaState.STARTING:
            return None
        self.url = url
        return LifecycleAction.PROBE

    def healthy(self, now: float) -> ToDo:
        if self.state is not ReplicaState.STARTING:
            return None
        self.state = ReplicaState.WARMING
        self.due_at = now + self.policy.warm_deadline_s
        return LifecycleAction.WARM_UP

    def warmed(self, now: float) -> ToDo:
        if self.state is not ReplicaState.WARMING:
            return None
        self.state = ReplicaState.READY
        self.due_at = None
        self.why = self.note
        self._ready_at = now
        self._was_ready = True
        return LifecycleAction.WATCH

    def warm_up_failed(self, why: str) -> ToDo:
        if self.state is ReplicaState.WARMING:
            return self._end(f"the warm-up generation failed: {why}")
        return None

    def vanished(self) -> None:
        """Serve no requests: the process is gone. `exited` follows when the cause is known."""
        self.url = None
        if self.state is ReplicaState.READY:
            self.state = ReplicaState.BACKOFF

    def exited(
        self, why: str, now: float, *, final: bool = False, by_itself: bool = False
    ) -> ToDo:
        """Handle the exit of the process. `final`: it would end so again. `by_itself`: skep did
        not end it.
        """
        self.vanished()
        if self.state in (ReplicaState.STOPPING, ReplicaState.STOPPED):
            self.state = ReplicaState.STOPPED
            self.due_at = None
            return None
        ending = self._ending
        self._ending = None
        if ending == RESTART_REQUESTED:
            self.state = ReplicaState.BACKOFF
            self.due_at = now
            return None
        self.why = why if by_itself or ending is None else ending
        if self._ready_at is not None and now - self._ready_at >= self.policy.stable_s:
            self._failures = 0
        self._ready_at = None
        self._failures += 1
        if self._was_ready:
            limit = self.policy.failures_after_ready
        else:
            limit = self.policy.failures_before_ready
        if final or self._failures >= limit:
            self.state = ReplicaState.FAILED
            self.due_at = None
        else:
            delay_s = min(
                self.policy.max_delay_s, self.policy.first_delay_s * 2 ** (self._failures - 1)
            )
            self.state = ReplicaState.BACKOFF
            self.due_at = now + delay_s
        return None

    def restart_changed(self, why: str, now: float) -> ToDo:
        """Start a changed launch at once after its process ended, and forget earlier failures."""
        self.vanished()
        self.why = why
        self._ending = None
        self._ready_at = None
        return self._start_again(now)

    def tick(self, now: float) -> ToDo:
        if self.due_at is None or now < self.due_at:
            return None
        match self.state:
            case ReplicaState.BACKOFF:
                self.restarts += 1
                return self._spawn(now)
            case ReplicaState.STARTING:
                return self._end(f"not healthy within {self.policy.start_deadline_s:g} s")
            case _:
                return self._end(
                    f"the warm-up generation took longer than {self.policy.warm_deadline_s:g} s"
                )

    def unresponsive(self) -> ToDo:
        """End a ready process that no longer answers: a hanging engine holds its slots."""
        if self.state is not ReplicaState.READY:
            return None
        return self._end(f"no answer to {self.policy.watch_failures} health checks in a row")

    def restart(self, now: float) -> ToDo:
        """End the process, whose exit leads to a start; start one that waits or was given up."""
        if self.state in RUNNING:
            return self._end(RESTART_REQUESTED)
        if self.state in (ReplicaState.BACKOFF, ReplicaState.FAILED):
            return self._start_again(now)
        return None

    def stop(self) -> ToDo:
        self.due_at = None
        if self.state in RUNNING:
            self.state = ReplicaState.STOPPING
            return LifecycleAction.TERMINATE
        if self.state is not ReplicaState.STOPPING:
            self.state = ReplicaState.STOPPED
        return None

    def _end(self, why: str) -> ToDo:
        self._ending = why
        self.due_at = None
        return LifecycleAction.TERMINATE

    def _start_again(self, now: float) -> ToDo:
        self.restarts += 1
        self._failures = 0
        return self._spawn(now)

    def _spawn(self, now: float) -> ToDo:
        self.state = ReplicaState.STARTING
        self.due_at = now + self.policy.start_deadline_s
        return LifecycleAction.SPAWN
