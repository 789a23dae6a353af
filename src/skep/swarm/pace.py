"""How many agents at once. Pure: told what the endpoint says and how it fares, asked for a number.

skep's gateway tells its slots: all of them are used, and a few more requests wait in its queue, so that a slot that
becomes free never waits for a new request to come. Other servers tell less; `skep.swarm.climbing` finds out. Whoever
refuses (429, 503) gets fewer at once, and more again as time passes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from skep.swarm.climbing import MOST, Climb, Look

MOST_BACKLOG = 16
CUT = 0.8
EPISODE_S = 1.0  # refusals so close together have one cause
RECOVER_S = 0.5
LONGEST_RECOVER_S = 30.0
GROWTH = 1.25
REMEMBERED = 20  # answers
CROWDED = 3.0  # times as long in the queue as our own backlog explains
CROWDED_S = 0.25


@dataclass(frozen=True, slots=True)
class Told:
    """What the endpoint says of itself. `slots` None: nothing."""

    slots: int | None = None
    is_gateway: bool = False


class Pace:
    """`limit` is never above `cap`, and never below one; `may_start` is none while a refusal has to be waited out."""

    def __init__(self, told: Told, cap: int | None = None) -> None:
        self._cap = cap
        self._told = told
        self._climb = None if told.is_gateway else self._new_climb(told)
        self._ceiling: float | None = None
        self._refused_at: float | None = None  # how many were under way
        self._cut_at = self._raised_at = float("-inf")
        self._recover_s = RECOVER_S
        self._hold_until = float("-inf")
        self._answers: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)  # seconds in the queue, seconds at work

    def __repr__(self) -> str:
        return f"<Pace {self.limit}: {self.why}>"

    @property
    def limit(self) -> int:
        wanted = self._wanted()
        if self._ceiling is not None:
            wanted = min(wanted, int(self._ceiling))
        return max(1, wanted if self._cap is None else min(wanted, self._cap))

    @property
    def why(self) -> str:
        wanted = self._wanted()
        if self._cap is not None and self._cap <= min(wanted, self._ceiling or wanted):
            return "as many as --agents allows"
        if self._ceiling is not None and self._ceiling < wanted:
            return "fewer for a while: the endpoint refused some"
        if self._climb is not None:
            return self._climb.phase.value
        slots = self._told.slots or 0
        if slots == 0:
            return "the model is not loaded yet"
        return f"{slots} slots and {self._backlog()} in the queue"

    def may_start(self, now: float, in_flight: int) -> int:
        """How many may be under way now."""
        return 0 if in_flight == 0 and now < self._hold_until else self.limit

    def told(self, told: Told) -> None:
        """What it says now: replicas come, go and sleep."""
        if told.is_gateway:
            self._climb = None
        elif self._climb is None or (told.slots is not None and told.slots != self._told.slots):
            self._climb = self._new_climb(told)
        self._told = told

    def answered(self, *, queued_ms: float | None, took_s: float) -> None:
        """A whole answer came."""
        if queued_ms is not None:
            queued_s = queued_ms / 1000
            self._answers.append((queued_s, max(0.0, took_s - queued_s)))

    def refused(self, now: float, in_flight: int, retry_after_s: float | None) -> None:
        """429 or 503. `in_flight`: with the one refused."""
        if retry_after_s is not None:
            self._hold_until = max(self._hold_until, now + retry_after_s)
        if now - self._cut_at < EPISODE_S:
            return
        again = self._refused_at is not None and in_flight >= CUT * self._refused_at
        self._recover_s = min(2 * self._recover_s, LONGEST_RECOVER_S) if again else RECOVER_S
        self._refused_at = in_flight
        self._ceiling = max(1.0, CUT * min(self.limit, in_flight))
        self._cut_at = self._raised_at = now
        if self._climb is not None and self._climb.level > self._ceiling:
            self._climb.lower_to(int(self._ceiling), now)

    def forgive(self) -> None:
        """The endpoint was away and has come back: what it said before is past."""
        self._ceiling, self._hold_until, self._recover_s = None, float("-inf"), RECOVER_S
        self._refused_at = None

    def look(self, look: Look) -> None:
        if self._climb is not None:
            self._climb.look(look)
        if self._ceiling is None or look.now - self._raised_at < self._recover_s:
            return
        self._raised_at = look.now
        self._ceiling = max(self._ceiling + 1, self._ceiling * GROWTH)
        enough = self._wanted() if self._climb is None else 2 * self._climb.level
        if self._ceiling >= enough:
            self._ceiling = None

    def _wanted(self) -> int:
        if self._climb is not None:
            return self._climb.level
        return (self._told.slots or 0) + self._backlog()

    def _backlog(self) -> int:
        slots = self._told.slots or 0
        if slots == 0:
            return 1
        usual = backlog_of(slots)
        if len(self._answers) < self._answers.maxlen:  # type: ignore[operator]
            return usual
        queued, at_work = (median(part) for part in zip(*self._answers, strict=True))
        ours = (usual / slots) * at_work
        return 1 if queued > CROWDED * ours + CROWDED_S else usual

    def _new_climb(self, told: Told) -> Climb:
        hint = None if told.slots is None else told.slots + backlog_of(told.slots)
        return Climb(min(MOST, self._cap or MOST), hint=hint)


def backlog_of(slots: int) -> int:
    """How many wait in the endpoint's queue: those that end at the same moment are followed at once."""
    return min(MOST_BACKLOG, max(min(slots, 2), -(-slots // 4)))
