"""What has been measured so far: every start with its readings, what failed, and what that makes one believe.

Keeps evidence; decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from skep.records import Interval
from skep.stats.intervals import mean_t_interval
from skep.stats.percentiles import median
from skep.stats.sequential import Noise
from skep.stats.student import t_quantile
from skep.tuner.dead_ends import hopeless, is_of_memory
from skep.tuner.ports import Terrain
from skep.tuner.surrogate import Belief, Surrogate
from skep.tuner.suspicion import Suspicion
from skep.tunings import Config, Failure, Reading, Round, Sitting, Value

_TOO_LATE = 10.0  # how heavily a broken promise weighs, in logarithms
_HOPELESSLY_LATE = 5.0
_DOUBT = 0.03  # of a gain that trust is worth, in logarithms of both
_GROUND = ("layout", "replicas", "checkpoint", "quant")  # memory is comparable only on the same of these


@dataclass(frozen=True, slots=True)
class Seat:
    """A sitting and the round it was of."""

    round: int
    sitting: Sitting


class Book:
    def __init__(self, terrain: Terrain, baseline: Config) -> None:
        self.terrain = terrain
        self.noise = Noise()
        self.surrogate = Surrogate(terrain, baseline)
        self.failures: list[tuple[Config, Failure]] = []
        self.rounds = 0
        self._seats: dict[Config, list[Seat]] = {}
        self._suspicion = Suspicion()
        self._refused: dict[Config, str] = {}
        self._narrow: set[Config] = set()
        self._looked: dict[Config, int] = {}  # at so many of the failures

    def __repr__(self) -> str:
        return f"<Book {self.rounds} rounds, {len(self._seats)} configurations, {len(self.failures)} failures>"

    def took(self, round_: Round) -> None:
        self.rounds += 1
        for sitting in round_.sittings:
            self._seats.setdefault(sitting.config, []).append(Seat(self.rounds, sitting))
            if sitting.failure is not None:
                self.failures.append((sitting.config, sitting.failure))
                explained = is_of_memory(sitting.failure) and self.terrain.spare_bytes(sitting.config) is not None
                if not explained:
                    self._suspicion.failed(sitting.config)
                continue
            logs = scores(sitting.readings)
            if logs:
                self._suspicion.ran(sitting.config)
                self.noise.took_start(logs)
                mean = fmean(self.noise.clipped(logs))
                self.surrogate.took(sitting.config, self.rounds, mean, self.noise.mean_variance(len(logs)))

    def gain(self, config: Config, over: Config) -> Belief:
        return self.surrogate.gain(config, over)

    def starts(self, config: Config) -> int:
        """That gave a figure."""
        return sum(bool(seat.sitting.figures) for seat in self._seats.get(config, ()))

    def readings(self, config: Config) -> int:
        return sum(len(seat.sitting.figures) for seat in self._seats.get(config, ()))

    def sittings(self, config: Config, since: int = 0) -> list[Sitting]:
        return [seat.sitting for seat in self._seats.get(config, ()) if seat.round > since]

    def refusal(self, config: Config) -> str | None:
        """Why it is not to be started: a rule, or a dead end that it would run into again."""
        if config in self._refused:
            return self._refused[config]
        looked = self._looked.get(config)
        new = self.failures[looked or 0 :]
        narrow = self.terrain.refusal(config) if looked is None else None
        narrow = narrow or self._no_more_room(config, new)
        reason = narrow or hopeless(config, new, self.terrain.knobs)
        self._looked[config] = len(self.failures)
        if reason is not None:
            self._refused[config] = reason
        if narrow is not None:
            self._narrow.add(config)
        return reason

    def is_narrow(self, config: Config) -> bool:
        """Refused by a rule or for want of memory, so that it may do with something else turned as well."""
        return self.refusal(config) is not None and config in self._narrow

    def _no_more_room(self, config: Config, failures: Sequence[tuple[Config, Failure]]) -> str | None:
        """The planner may be off by some memory, but of two configurations it knows which leaves more."""
        for failed, failure in failures:
            if not is_of_memory(failure) or any(config.get(name) != failed.get(name) for name in _GROUND):
                continue
            left, there = self.terrain.spare_bytes(config), self.terrain.spare_bytes(failed)
            if left is not None and there is not None and left <= there and not self.starts(config):
                return f"leaves no more memory than one that ran out of it: {failure.cause}"
        return None

    def deaths(self, knob: str, value: Value) -> int:
        """How many configurations with this value failed for another reason than memory."""
        return sum(config.get(knob) == value and not is_of_memory(failure) for config, failure in self.failures)

    def trust(self, config: Config) -> float:
        """That it runs at all."""
        return self._suspicion.trust(config)

    def promise(self, config: Config, over: Config) -> float:
        """The gain that is believed, less for what looks like something that failed."""
        return self.surrogate.mean_gain(config, over) + _DOUBT * math.log(max(1e-3, self.trust(config)))


def score(reading: Reading) -> float | None:
    """More is better. Beyond its limits a configuration loses more than any speed could bring."""
    if not reading.counts or reading.figure is None:
        return None
    late = min(math.log(reading.over_limit), _HOPELESSLY_LATE) if reading.over_limit > 1 else 0.0
    return math.log(reading.figure) - _TOO_LATE * late


def scores(readings: Iterable[Reading]) -> list[float]:
    return [value for value in map(score, readings) if value is not None]


def paired(a: Sequence[Reading], b: Sequence[Reading]) -> list[tuple[float, float]]:
    """The nth of both, where both count."""
    pairs = ((score(one), score(other)) for one, other in zip(a, b, strict=False))
    return [(one, other) for one, other in pairs if one is not None and other is not None]


def figure_of(sittings: Sequence[Sitting]) -> Interval | None:
    """The mean with a 95 % interval, by starts where there are several; None: nothing counts."""
    means = [fmean(sitting.figures) for sitting in sittings if sitting.figures]
    if not means:
        return None
    if len(means) >= 3:
        return mean_t_interval(means)
    values = [figure for sitting in sittings for figure in sitting.figures]
    estimate = fmean(means)
    if len(values) < 2:
        return Interval(estimate, estimate, estimate)
    within = fmean((value - fmean(values)) ** 2 for value in values) * len(values) / (len(values) - 1) / len(values)
    between = (means[0] - means[1]) ** 2 / 4 if len(means) == 2 else 0.0
    reach = t_quantile(0.95, len(values) - 1) * math.sqrt(max(within, between))
    return Interval(max(0.0, estimate - reach), estimate, estimate + reach)


def over_limit(sittings: Sequence[Sitting]) -> float:
    """The median share of the limits; 0 where there are none."""
    shares = [one.over_limit for sitting in sittings for one in sitting.readings if one.counts]
    return median(shares) if shares else 0.0


def typical(sittings: Sequence[Sitting], name: str) -> float | None:
    """The median of `ttft_ms` or `tpot_ms` over the readings that count."""
    values = [getattr(one, name) for sitting in sittings for one in sitting.readings if one.counts]
    known = [value for value in values if value is not None]
    return median(known) if known else None
