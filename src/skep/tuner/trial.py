"""One decision under way: a challenger against the best so far, on readings of its own.

Speed decides between two that keep their limits. One that breaks them loses to one that keeps them, however fast; of
two that break them, the one that is nearer wins. What is shown as a ratio is always one of speeds.
"""

from __future__ import annotations

from skep.stats.sequential import Contest, Noise, Verdict
from skep.tuner.candidates import Grain, Move
from skep.tuner.measurements import nearness, over_limit, paired, speed
from skep.tuner.verdicts import Evidence
from skep.tunings import Config, Sitting
from skep.units import Interval

STARTS = 2  # of either side, before anything is accepted or nothing could be read
_FAR = 1.1  # times a limit: clear after one start
_LATE_NOISE = 0.08  # of percentiles of a reading, until something better is known


class Trial:
    """`verdict` is final once it is not OPEN. `late`: limits decided, not speed."""

    def __init__(self, move: Move, incumbent: Config, noise: Noise, grain: Grain, predicted: float | None) -> None:
        self.move = move
        self.evidence = Evidence(move.config, incumbent, (), (), 0.0, predicted)
        self._speed = Contest(noise, rounds=grain.rounds, worth=grain.worth)
        self._near = Contest(Noise(reading=_LATE_NOISE, start=_LATE_NOISE / 2), rounds=grain.rounds, worth=grain.worth)
        self.verdict = Verdict.OPEN
        self.late = False

    def __repr__(self) -> str:
        return f"<Trial {self.move.changes} {self.verdict.value} after {len(self.evidence.sittings)} starts>"

    @property
    def rounds(self) -> int:
        return len(self.evidence.sittings)

    @property
    def ratio(self) -> Interval | None:
        """Of speeds, whatever decided."""
        standing = self._speed.standing
        return standing.ratio if standing is not None else None

    @property
    def speeds(self) -> Contest:
        return self._speed

    def spent(self, seconds: float) -> None:
        self.evidence = self.evidence.also((), (), seconds)

    def took(self, first: Sitting, second: Sitting, seconds: float) -> None:
        """One round, in which neither failed."""
        self.evidence = self.evidence.also((second,), (first,), seconds)
        pairs = paired(first.readings, second.readings, speed)
        self._speed.feed(pairs)
        self._near.feed(paired(first.readings, second.readings, nearness))
        self.verdict = self._judged()
        if self.verdict is Verdict.OPEN and not self._speed.pairs and self.rounds >= STARTS:
            self.verdict = Verdict.SAME

    def _judged(self) -> Verdict:
        here, there = over_limit(self.evidence.sittings), over_limit(self.evidence.beside)
        self.late = max(here, there) > 1
        if not self.late:
            return self._speed.verdict
        if here <= 1:  # the other one is late
            return Verdict.BETTER if self.rounds >= STARTS else Verdict.OPEN
        if there <= 1:
            return Verdict.WORSE if here > _FAR or self.rounds >= STARTS else Verdict.OPEN
        return self._near.verdict
