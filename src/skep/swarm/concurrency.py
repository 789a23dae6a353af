"""How many tasks run at once. Pure: samples in, a limit out.

`ConcurrencySearch` finds the limit of an endpoint that does not tell its slots. A level is
measured when the agents it has added are streaming; the rate counts all tokens that arrive. Levels
are doubled while the rate grows, then the best is held. A step up is tried now and then.
`ConcurrencyLimit` adds what the endpoint tells and refuses, and the cap."""

from __future__ import annotations

from enum import Enum

import msgspec

FIRST_LEVEL = 4  # level of a search that begins without a hint
HIGHEST_LEVEL = 256  # level of a search
GAIN_OF_DOUBLING = 0.05  # of the rate, that a doubling must bring
GAIN_OF_STEP = 0.025  # that a smaller step must bring
WINDOW_S = 0.5  # in which a rate is measured, at least
LONGEST_WINDOW_S = 3.0
LONGEST_UNSTREAMED_S = 30.0  # of a window, where the server does not stream
FEWEST_TOKENS = 24  # in a window
SETTLE_S = 1.0  # at most, for those added to begin to stream, unless the others took longer
RETRY_STEP_S = 10.0  # until a step up is tried again; doubled while it brings nothing
LONGEST_RETRY_STEP_S = 120.0
NEWEST_WEIGHT = 0.3  # weight of the newest window in the rate of a level that is held


class ConcurrencySample(msgspec.Struct, frozen=True):
    """What the runner measures at one moment."""

    now: float
    tokens: int  # of all answers since the beginning; the same count throughout
    in_flight: int
    streaming: int  # of those, how many have begun to answer
    waiting: int  # tasks that could be sent at once
    task_s: float | None = None  # how long one takes, as far as known
    first_s: float | None = None  # until an answer begins


class Phase(Enum):
    UP = "looking for the level at which the rate stops growing"
    HOLD = "holding the best level found"
    HIGHER = "trying one step more"


class ConcurrencySearch:
    """Raises the level while the rate of tokens grows, then holds the best."""

    def __init__(self, max_level: int = HIGHEST_LEVEL, *, hint: int | None = None) -> None:
        """`hint`: slots that the server has told of."""
        self.max_level = max_level
        self.phase = Phase.UP if hint is None else Phase.HOLD
        self.level = max(1, min(max_level, FIRST_LEVEL if hint is None else hint))
        self._best: tuple[int, float] | None = None
        self._since = 0.0  # when this level began
        self._window: tuple[float, int] | None = None  # begun at, tokens by then
        self._again_s = RETRY_STEP_S
        self._held_since: float | None = None
        self._started = False

    def lower_to(self, level: int, now: float) -> None:
        """Go down to a level, as the endpoint refuses more."""
        self._move(level, Phase.HOLD, now)
        self._best = None

    def look(self, sample: ConcurrencySample) -> None:
        """Take a sample, about ten times a second."""
        if not self._started:
            self._started = True
            self._since = sample.now
        if sample.waiting == 0:
            self._since = sample.now
        if sample.waiting == 0 or sample.in_flight < self.level:
            self._window = None  # fewer run than the level allows: their rate says nothing of it
        elif self._window is None:
            if self._is_settled(sample):
                self._window = (sample.now, sample.tokens)
        else:
            self._look_at_window(sample, *self._window)

    def _is_settled(self, sample: ConcurrencySample) -> bool:
        """Return whether the agents that the level has added are streaming, or had the time to."""
        if sample.streaming >= sample.in_flight:
            return True
        settle_s = SETTLE_S
        if sample.first_s is not None:
            settle_s = max(SETTLE_S, 2.5 * sample.first_s)
        has_answers = sample.streaming > 0 or sample.tokens > 0
        return has_answers and sample.now - self._since >= settle_s

    def _look_at_window(self, sample: ConcurrencySample, begun: float, tokens: int) -> None:
        """Measure the rate if the window is long enough. `tokens`: by its beginning."""
        window_s = sample.now - begun
        window_tokens = sample.tokens - tokens
        if window_s < _window_length(sample):
            return
        if window_tokens < FEWEST_TOKENS and window_s < LONGEST_WINDOW_S:
            return
        is_unstreamed = window_tokens == 0 and sample.streaming == 0
        if is_unstreamed and window_s < LONGEST_UNSTREAMED_S:
            return  # of a server that does not stream, nothing is known before an answer has ended
        self._window = (sample.now, sample.tokens)
        self._take_rate(window_tokens / window_s, sample.now)

    def _take_rate(self, rate: float, now: float) -> None:
        best = self._best
        if self.phase is Phase.UP and (best is None or rate > best[1] * (1 + GAIN_OF_DOUBLING)):
            self._best = (self.level, rate)
            higher = min(2 * self.level, self.max_level)
            phase = Phase.UP if higher > self.level else Phase.HOLD
            self._move(higher, phase, now)
        elif best is None:
            self._best = (self.level, rate)
        elif self.phase is Phase.UP:
            self._move(best[0], Phase.HOLD, now)
        elif self.phase is Phase.HOLD:
            self._hold(rate, now, *best)
        else:
            if rate > best[1] * (1 + GAIN_OF_STEP):
                self._again_s = RETRY_STEP_S / 2
                best = self._best = (self.level, rate)
            else:
                self._again_s = min(2 * self._again_s, LONGEST_RETRY_STEP_S)
            self._move(best[0], Phase.HOLD, now)

    def _hold(self, rate: float, now: float, level: int, best_rate: float) -> None:
        if self._held_since is None:
            self._held_since = now
        self._best = (level, best_rate + NEWEST_WEIGHT * (rate - best_rate))
        higher = min(self.level + max(1, self.level // 4), self.max_level)
        if now - self._held_since >= self._again_s and higher > self.level:
            self._move(higher, Phase.HIGHER, now)

    def _move(self, level: int, phase: Phase, now: float) -> None:
        if level != self.level:
            self._since = now
            self._window = None
        self.level = level
        self.phase = phase
        self._held_since = now if phase is Phase.HOLD else None


def _window_length(sample: ConcurrencySample) -> float:
    """Return how long a rate is measured: as long as a task takes, within bounds."""
    if sample.task_s is None:
        return WINDOW_S
    longest = LONGEST_WINDOW_S if sample.streaming else LONGEST_UNSTREAMED_S
    return max(WINDOW_S, min(sample.task_s, longest))


MOST_BACKLOG = 16  # tasks in the endpoint's queue
CUT_AFTER_REFUSAL = 0.8  # of the attempts under way at a refusal: the limit after it
EPISODE_S = 1.0  # refusals so close together have one cause
RECOVER_S = 0.5  # until the limit is raised; doubled if about as many are refused again
LONGEST_RECOVER_S = 30.0
LIMIT_GROWTH = 1.25  # of the limit, each time


class EndpointSlots(msgspec.Struct, frozen=True):
    """How many slots the endpoint says it has; None if it does not say."""

    slots: int | None = None
    is_gateway: bool = False


class ConcurrencyLimit:
    """The limit of attempts at once: at least 1, at most `cap`.

    While a Retry-After runs and no attempt is under way, none may start.
    """

    def __init__(self, endpoint_slots: EndpointSlots, cap: int | None = None) -> None:
        self._cap = cap
        self._slots = endpoint_slots
        if endpoint_slots.is_gateway:
            self._search = None
        else:
            self._search = self._new_search(endpoint_slots)
        self._ceiling: float | None = None
        self._in_flight_at_refusal: float | None = None  # attempts under way at the last refusal
        self._cut_at = self._raised_at = float("-inf")
        self._recover_s = RECOVER_S
        self._hold_until = float("-inf")

    @property
    def limit(self) -> int:
        level = self._target()
        if self._ceiling is not None:
            level = min(level, int(self._ceiling))
        return max(1, level if self._cap is None else min(level, self._cap))

    @property
    def why(self) -> str:
        level = self._target()
        if self._cap is not None and self._cap <= min(level, self._ceiling or level):
            return "as many as --concurrency allows"
        if self._ceiling is not None and self._ceiling < level:
            return "fewer for a while: the endpoint refused some"
        if self._search is not None:
            return self._search.phase.value
        if not self._slots.slots:
            return "the model is not loaded yet"
        return f"{self._slots.slots} slots and {backlog_of(self._slots.slots)} in the queue"

    def may_start(self, now: float, in_flight: int) -> int:
        """Return how many attempts may be under way now."""
        if in_flight == 0 and now < self._hold_until:
            return 0
        return self.limit

    def update_slots(self, endpoint_slots: EndpointSlots) -> None:
        """Take in the slots that the endpoint has now: replicas start and stop."""
        if endpoint_slots.is_gateway:
            self._search = None
        elif self._search is None or (
            endpoint_slots.slots is not None and endpoint_slots.slots != self._slots.slots
        ):
            self._search = self._new_search(endpoint_slots)
        self._slots = endpoint_slots

    def refused(self, now: float, in_flight: int, retry_after_s: float | None) -> None:
        """Lower the limit after a 429 or 503. `in_flight`: the refused attempt included."""
        if retry_after_s is not None:
            self._hold_until = max(self._hold_until, now + retry_after_s)
        if now - self._cut_at < EPISODE_S:
            return
        is_same_level = (
            self._in_flight_at_refusal is not None
            and in_flight >= CUT_AFTER_REFUSAL * self._in_flight_at_refusal
        )
        if is_same_level:
            self._recover_s = min(2 * self._recover_s, LONGEST_RECOVER_S)
        else:
            self._recover_s = RECOVER_S
        self._in_flight_at_refusal = in_flight
        self._ceiling = max(1.0, CUT_AFTER_REFUSAL * min(self.limit, in_flight))
        self._cut_at = self._raised_at = now
        if self._search is not None and self._search.level > self._ceiling:
            self._search.lower_to(int(self._ceiling), now)

    def forgive(self) -> None:
        """Forget refusals: the endpoint was away and is back."""
        self._ceiling = None
        self._hold_until = float("-inf")
        self._recover_s = RECOVER_S
        self._in_flight_at_refusal = None

    def look(self, sample: ConcurrencySample) -> None:
        if self._search is not None:
            self._search.look(sample)
        if self._ceiling is None or sample.now - self._raised_at < self._recover_s:
            return
        self._raised_at = sample.now
        self._ceiling = max(self._ceiling + 1, self._ceiling * LIMIT_GROWTH)
        if self._search is None:
            unlimited_from = self._target()
        else:
            unlimited_from = 2 * self._search.level
        if self._ceiling >= unlimited_from:
            self._ceiling = None

    def _target(self) -> int:
        if self._search is not None:
            return self._search.level
        slots = self._slots.slots or 0
        return slots + backlog_of(slots) if slots else 1  # one wakes a model that is not loaded

    def _new_search(self, endpoint_slots: EndpointSlots) -> ConcurrencySearch:
        if endpoint_slots.slots is None:
            hint = None
        else:
            hint = endpoint_slots.slots + backlog_of(endpoint_slots.slots)
        return ConcurrencySearch(min(HIGHEST_LEVEL, self._cap or HIGHEST_LEVEL), hint=hint)


def backlog_of(slots: int) -> int:
    """Return how many tasks should wait in the endpoint's queue, so that slots which become free
    at the same moment are taken at once.
    """
    return min(MOST_BACKLOG, max(min(slots, 2), -(-slots // 4)))
