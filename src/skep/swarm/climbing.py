"""How many at once an endpoint can use that does not say: more, as long as more come out. Pure.

A level is measured when those it has added are streaming; the rate is of all tokens that arrive. Levels are doubled
while that pays, the last doubling is halved, and then a level is held, with a step up tried now and then and a step
down when the rate has fallen. Answers that stream tell a rate long before the first of them has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

FIRST = 4
MOST = 256
GAIN = 0.05  # of the rate, that a doubling must bring
SMALL_GAIN = 0.025  # that a smaller step must bring
FALLEN = 0.75  # of the rate that was
SAME = 0.95
WINDOW_S = 0.5
LONGEST_WINDOW_S = 3.0
LONGEST_UNSTREAMED_S = 30.0
FEWEST_TOKENS = 24  # in a window
SETTLE_S = 1.0  # at most, for those added to begin to stream, unless the others took longer
AGAIN_S = 10.0
LONGEST_AGAIN_S = 120.0
NEWEST = 0.3  # the weight of the newest window in what is held to be the rate


@dataclass(frozen=True, slots=True)
class Look:
    """What the shell sees at one moment."""

    now: float
    tokens: int  # of all answers since the beginning; the same count throughout
    in_flight: int
    streaming: int  # of those, how many have begun to answer
    waiting: int  # tasks that could be sent at once
    task_s: float | None = None  # how long one takes, as far as known
    first_s: float | None = None  # until an answer begins


class Phase(Enum):
    UP = "looking for the level at which the rate stops growing"
    BETWEEN = "halving the last step"
    HOLD = "holding the best level found"
    HIGHER = "trying one step more"
    LOWER = "trying one step less: the rate has fallen"


class Climb:
    def __init__(self, most: int = MOST, *, hint: int | None = None) -> None:
        """`hint`: slots that the server has told of."""
        self.most = most
        self.phase = Phase.UP if hint is None else Phase.HOLD
        self.level = max(1, min(most, FIRST if hint is None else hint))
        self._best: tuple[int, float] | None = None
        self._since = 0.0  # of this level
        self._window: tuple[float, int] | None = None  # begun at, tokens by then
        self._again_s = AGAIN_S
        self._held_since: float | None = None
        self._low = 0  # windows in a row
        self._started = False

    def __repr__(self) -> str:
        return f"<Climb at {self.level} of {self.most}, {self.phase.name.lower()}, best {self._best}>"

    def lower_to(self, level: int, now: float) -> None:
        """Somebody knows better: the endpoint refuses more."""
        self._move(max(1, min(level, self.most)), Phase.HOLD, now)
        self._best = None

    def look(self, look: Look) -> None:
        """Asked often, ten times a second or so."""
        if not self._started:
            self._started, self._since = True, look.now
        if look.waiting == 0 or look.in_flight < self.level:
            self._window = None  # it is not for want of agents that no more comes
            if look.waiting == 0:
                self._since = look.now
            return
        if self._window is None:
            if self._settled(look):
                self._window = (look.now, look.tokens)
            return
        begun, before = self._window
        took, came = look.now - begun, look.tokens - before
        if took < self._length(look) or (came < FEWEST_TOKENS and took < LONGEST_WINDOW_S):
            return
        if came == 0 and look.streaming == 0 and took < LONGEST_UNSTREAMED_S:
            return  # nothing can be said of a server that does not stream before something has ended
        self._window = (look.now, look.tokens)
        self._measured(came / took, look.now)

    def _settled(self, look: Look) -> bool:
        if look.streaming >= look.in_flight:
            return True
        slow = 2.5 * look.first_s if look.first_s is not None else SETTLE_S
        return look.now - self._since >= max(SETTLE_S, slow) and (look.streaming > 0 or look.tokens > 0)

    def _length(self, look: Look) -> float:
        longest = LONGEST_WINDOW_S if look.streaming else LONGEST_UNSTREAMED_S
        return WINDOW_S if look.task_s is None else max(WINDOW_S, min(look.task_s, longest))

    def _measured(self, rate: float, now: float) -> None:
        best = self._best
        if self.phase is Phase.UP:
            self._climbed(rate, now)
        elif best is None:
            self._best = (self.level, rate)
        elif self.phase is Phase.HOLD:
            self._held(rate, now, *best)
        elif self.phase is Phase.LOWER:
            if rate < SAME * best[1]:  # `best` is what the higher level gives now
                self._move(best[0], Phase.HOLD, now)
            else:
                self._best = (self.level, rate)
                self._move(self.level, Phase.HOLD, now)
        elif rate > best[1] * (1 + SMALL_GAIN):
            self._best = (self.level, rate)
            self._again_s = AGAIN_S / 2 if self.phase is Phase.HIGHER else AGAIN_S
            self._move(self.level, Phase.HOLD, now)
        else:
            self._again_s = min(2 * self._again_s, LONGEST_AGAIN_S)
            self._move(best[0], Phase.HOLD, now)

    def _climbed(self, rate: float, now: float) -> None:
        best = self._best
        if best is None or rate > best[1] * (1 + GAIN):
            self._best = (self.level, rate)
            higher = min(2 * self.level, self.most)
            self._move(higher, Phase.UP if higher > self.level else Phase.HOLD, now)
            return
        between = (best[0] + self.level) // 2
        if best[0] < between < self.level:
            self._move(between, Phase.BETWEEN, now)
        else:
            self._move(best[0], Phase.HOLD, now)

    def _held(self, rate: float, now: float, level: int, known: float) -> None:
        if self._held_since is None:
            self._held_since = now
        self._low = self._low + 1 if rate < FALLEN * known else 0
        if self._low >= 2 and self.level > 1:
            self._low, self._best = 0, (level, rate)
            self._move(max(1, 2 * self.level // 3), Phase.LOWER, now)
            return
        if self._low == 0:
            self._best = (level, known + NEWEST * (rate - known))
        higher = min(self.level + max(1, self.level // 4), self.most)
        if now - self._held_since >= self._again_s and higher > self.level:
            self._move(higher, Phase.HIGHER, now)

    def _move(self, level: int, phase: Phase, now: float) -> None:
        if level != self.level:
            self._since, self._window = now, None
        self.level, self.phase = level, phase
        self._held_since = now if phase is Phase.HOLD else None
