"""Tracks whether the endpoint answers, when to probe it, and when to give up. Pure.

*Away*: nobody answers; nothing is sent, and one look at a time finds out when it is back. *Trouble*: it answers, but
with nothing of use (refusals, broken streams), since its last good answer. Either, for the whole deadline, ends the
session.
"""

from __future__ import annotations

from dataclasses import dataclass

from skep.wire.retry import ErrorKind

FIRST_LOOK_S = 0.25
USUAL_LOOK_S = 1.0
LONGEST_LOOK_S = 5.0
RESTARTING_S = 30.0  # an engine that is started again is mostly back by then
DOUBT = 3  # mishaps in a row, after which no more are added to those under way


@dataclass(frozen=True, slots=True)
class ProbeEndpoint:
    """Ask the endpoint whether it is there."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """`after_s` None: at once, since waiting would not help."""

    why: str
    after_s: float | None


def next_pause_s(pause_s: float, away_s: float) -> float:
    """Between two looks."""
    return min(2 * pause_s, USUAL_LOOK_S if away_s < RESTARTING_S else LONGEST_LOOK_S)


class Outage:
    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self.since: float | None = None  # away
        self.why: str | None = None
        self._trouble: float | None = None  # since
        self._row = 0  # mishaps since the last good answer
        self._looking = False
        self._look_at: float | None = None
        self._pause_s = FIRST_LOOK_S
        self._refused_key = False

    def __repr__(self) -> str:
        return f"away: {self.why}" if self.is_away else f"{self._row} mishaps in a row" if self._row else "up"

    @property
    def is_away(self) -> bool:
        return self.since is not None

    @property
    def is_doubtful(self) -> bool:
        return self._row >= DOUBT

    @property
    def wake_at(self) -> float | None:
        return None if self._looking else self._look_at

    def came(self, mishap: ErrorKind | None, error: str | None, now: float, *, answered: bool) -> None:
        """What came of an attempt. Any answer to it at all, a rejected one too, shows that the endpoint works."""
        if answered:
            self._clear()
            return
        if mishap is ErrorKind.TRY:
            self.doubt(now)
            return
        self._row += 1
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
            if self._look_at is None:
                self._look_at = now

    def _clear(self) -> None:
        self.since = self.why = self._trouble = None
        self._row, self._pause_s = 0, FIRST_LOOK_S
        if not self._looking:
            self._look_at = None
