"""What has been measured so far: every start with its readings, what failed, and what that makes one believe.

Keeps evidence; decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from skep.stats.percentiles import median
from skep.stats.sequential import Noise, mean_of_starts
from skep.tuner.failures import Suspicion, hopeless, is_of_memory
from skep.tuner.ports import Terrain
from skep.tuner.surrogate import Belief, Surrogate
from skep.tunings import Config, Failure, Reading, Round, Sitting, Value
from skep.units import Interval

_TOO_LATE = 10.0  # how heavily a broken promise weighs, in logarithms
_HOPELESSLY_LATE = 5.0
_DOUBT = 0.06  # of a gain that trust is worth, in logarithms of both
_GROUND = ("layout", "replicas", "checkpoint", "quant")  # memory is comparable only on the same of these


@dataclass(frozen=True, slots=True)
class Seat:
    """A sitting and the round it was of."""

    round: int
    sitting: Sitting


class Measurements:
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
        return f"<Measurements {self.rounds} rounds, {len(self._seats)} configurations, {len(self.failures)} failures>"

    def took(self, round_: Round, *, spared: Config | None = None) -> None:
        """`spared`: whose failure is not held against it yet."""
        self.rounds += 1
        for sitting in round_.sittings:
            self._seats.setdefault(sitting.config, []).append(Seat(self.rounds, sitting))
            if sitting.failure is not None:
                if sitting.config != spared:
                    self.failed(sitting.config, sitting.failure)
                continue
            self._learn(sitting)

    def failed(self, config: Config, failure: Failure) -> None:
        self.failures.append((config, failure))
        if not is_of_memory(failure) or self.terrain.spare_bytes(config) is None:
            self._suspicion.failed(config)

    def _learn(self, sitting: Sitting) -> None:
        logs = speeds(sitting.readings)
        if not logs:
            return
        self._suspicion.ran(sitting.config)
        self.noise.took_start(logs)
        late = _lateness(sitting.readings)
        variance = self.noise.mean_variance(len(logs)) * (1 + (_TOO_LATE * (late > 0)) ** 2)
        mean = fmean(self.noise.clipped(logs)) - _TOO_LATE * late
        self.surrogate.took(sitting.config, self.rounds, mean, variance)

    def settle(self, config: Config) -> None:
        """What its starts differ by is learned."""
        logs = [speeds(one.readings) for one in self.sittings(config)]
        known = [one for one in logs if one]
        self.noise.took_starts([fmean(self.noise.clipped(one)) for one in known], [len(one) for one in known])

    def figure(self, sittings: Sequence[Sitting]) -> Interval | None:
        """The mean with a 95 % interval; None: nothing counts."""
        return mean_of_starts([speeds(one.readings) for one in sittings], self.noise)

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


def speeds(readings: Iterable[Reading]) -> list[float]:
    """The logarithms of those that count."""
    return [math.log(one.figure) for one in readings if one.counts and one.figure is not None]


def paired(a: Sequence[Reading], b: Sequence[Reading], of: Callable[[Reading], float]) -> list[tuple[float, float]]:
    """The nth of both, where both count."""
    return [(of(one), of(other)) for one, other in zip(a, b, strict=False) if one.counts and other.counts]


def speed(reading: Reading) -> float:
    assert reading.figure is not None
    return math.log(reading.figure)


def nearness(reading: Reading) -> float:
    """To its limits: more is better."""
    return -min(math.log(max(reading.over_limit, 1e-3)), _HOPELESSLY_LATE)


def _lateness(readings: Sequence[Reading]) -> float:
    shares = [one.over_limit for one in readings if one.counts]
    return min(math.log(max(1.0, median(shares))), _HOPELESSLY_LATE) if shares else 0.0


def over_limit(sittings: Sequence[Sitting]) -> float:
    """The median share of the limits; 0 where there are none."""
    shares = [one.over_limit for sitting in sittings for one in sitting.readings if one.counts]
    return median(shares) if shares else 0.0


def typical(sittings: Sequence[Sitting], name: str) -> float | None:
    """The median of `ttft_ms` or `tpot_ms` over the readings that count."""
    values = [getattr(one, name) for sitting in sittings for one in sitting.readings if one.counts]
    known = [value for value in values if value is not None]
    return median(known) if known else None
