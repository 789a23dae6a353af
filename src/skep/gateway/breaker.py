"""The circuit breaker of one replica. Knows failures and times handed to it; decides whether a request may be tried.

    closed ──failures──> open ──time──> half-open ──an answer, or a healthy check──> closed
                           ^──────a failure─────┘

Half-open admits one request at a time: the trial. Each time it opens for longer, until an answer comes. What fails
while it is open belongs to the failure that opened it: a replica that dies with ten requests has failed once.
"""

from __future__ import annotations

FIRST_OPEN_S = 0.5
LONGEST_OPEN_S = 15.0
BAD_ANSWERS = 3  # in a row (502, 503, 504, or closed without a byte), before a replica is passed over
BAD_CHECKS = 3


class Breaker:
    __slots__ = ("_bad_answers", "_bad_checks", "_open_s", "heard_at", "open_until", "trial")

    def __init__(self, now: float) -> None:
        self.open_until: float | None = None  # None: closed
        self.trial: str | None = None  # the request that decides, while half-open
        self.heard_at = now  # the last sign of life
        self._open_s = 0.0
        self._bad_answers = 0
        self._bad_checks = 0

    def __repr__(self) -> str:
        return "<Breaker closed>" if self.open_until is None else f"<Breaker open until {self.open_until:.1f}>"

    def state(self, now: float) -> str:
        if self.open_until is None:
            return "closed"
        return "open" if now < self.open_until else "half-open"

    def allows(self, now: float) -> bool:
        return self.open_until is None or (self.open_until <= now and self.trial is None)

    def granted(self, request_id: str) -> None:
        """It goes to this replica, which `allows` it. `ended` is called for it, whatever comes."""
        if self.open_until is not None:
            self.trial = request_id

    def answered(self, now: float) -> None:
        """A request got an answer that is no complaint about the server."""
        self.heard_at = now
        self.open_until = self.trial = None
        self._open_s = 0.0
        self._bad_answers = self._bad_checks = 0

    def failed(self, now: float) -> None:
        """Nobody is there: refused, or silent. A trial lasts until it has `ended`, all the same."""
        if self.open_until is not None and now < self.open_until:
            return
        self._open_s = min(LONGEST_OPEN_S, max(FIRST_OPEN_S, 2 * self._open_s))
        self.open_until = now + self._open_s

    def bad_answer(self, now: float) -> None:
        self.heard_at = now
        self.dropped(now)

    def dropped(self, now: float) -> None:
        """A request got nothing: that may be the request's own fault, while others are answered."""
        self._bad_answers += 1
        if self._bad_answers >= BAD_ANSWERS or self.open_until is not None:
            self.failed(now)

    def ended(self, request_id: str) -> None:
        """A request left the replica, with a verdict or without. If it was the trial, the next one is."""
        if self.trial == request_id:
            self.trial = None

    def checked(self, ok: bool, now: float) -> None:
        """An active health check came back."""
        if ok:
            self.heard_at = now
            self._bad_checks = 0
            if self.open_until is not None and self.open_until <= now:
                self.open_until = self.trial = None
        else:
            self._bad_checks += 1
            if self._bad_checks >= BAD_CHECKS and self.allows(now):
                self.failed(now)
