"""What has been measured so far: every start with its readings, what failed, and what to believe
of configurations that were not measured.

Keeps evidence; decides nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from operator import add, mul, sub
from statistics import NormalDist, fmean

import msgspec

from skep.stats.percentiles import median
from skep.stats.sequential import MeasurementNoise, mean_of_starts
from skep.tuner.predictions import Predictor
from skep.tuner.records import (
    ConfigFailure,
    Knob,
    KnobConfig,
    MeasurementRound,
    ServerStart,
    TuneReading,
    Value,
)
from skep.units import Interval

_LEVEL = 1.0  # how far the planner may be off altogether
# with one knob's value: at least, and of what it predicts
_OFF = 0.06
_OFF_SHARE = 0.35
_MOST_OFF = 0.5
# deviations: of two knobs that interact, of a configuration by itself, of a round
_PAIR = 0.05
_OWN = 0.01
_COMMON = 0.02
# neighbours on a ladder share so much, fading over so many rungs
_ALIKE = 0.5
_NEAR = 2.0
_NORMAL = NormalDist()


class Belief(msgspec.Struct, frozen=True):
    """What is believed of a gain, as the logarithm of a ratio."""

    mean: float
    deviation: float

    @property
    def hope(self) -> float:
        """The gain to be expected where only gains are kept."""
        if self.deviation <= 0:
            return max(0.0, self.mean)
        z = self.mean / self.deviation
        return self.mean * _NORMAL.cdf(z) + self.deviation * _NORMAL.pdf(z)

    @property
    def chance(self) -> float:
        """The probability of being better at all."""
        if self.deviation > 0:
            return _NORMAL.cdf(self.mean / self.deviation)
        return float(self.mean > 0)


class Surrogate:
    """A Gaussian process over configurations: the planner's prediction is its prior, starts
    correct it.

    Configurations with the same values share what was learned of these. All is in logarithms of
    the metric.
    """

    def __init__(self, space: Predictor, baseline: KnobConfig) -> None:
        self._space = space
        self._baseline = baseline
        self._knobs = {knob.name: knob for knob in space.knobs}
        self._pairs = [
            pair for pair in space.pairs if pair[0] in self._knobs and pair[1] in self._knobs
        ]
        self._prior: dict[KnobConfig, float] = {}
        self._level = self._foreseen(baseline) or 0.0
        self._reach = {
            knob.name: {value: self._reach_of(knob, value) for value in knob.values}
            for knob in space.knobs
        }
        self._places = {
            name: {value: n for n, value in enumerate(knob.values)}
            for name, knob in self._knobs.items()
        }
        self._columns: dict[KnobConfig, list[float]] = {}
        self._observed: list[tuple[KnobConfig, int]] = []
        self._first: dict[KnobConfig, int] = {}  # the place of its first start in what was seen
        self._rows: list[list[float]] = []  # of the Cholesky factor
        self._rest: list[float] = []  # what was measured less the prior, through that factor
        self._weights: list[float] = []

    def learn(
        self,
        config: KnobConfig,
        round_: int,
        score: float,
        variance: float,
    ) -> None:
        """Take in one start's mean, with the variance it has as a measure of its configuration."""
        of_round = (_COMMON**2 * (other_round == round_) for _, other_round in self._observed)
        column = list(map(add, self._column(config), of_round))
        row = self._forward(column)
        own_variance = self._kernel(config, config) + _COMMON**2 + variance
        explained_variance = sum(map(mul, row, row))
        pivot = math.sqrt(max(own_variance - explained_variance, 1e-9))
        explained = sum(map(mul, row, self._rest))
        unexplained = score - self.prior(config) - explained
        self._rest.append(unexplained / pivot)
        self._rows.append([*row, pivot])
        self._first.setdefault(config, len(self._observed))
        self._observed.append((config, round_))
        self._weights = self._backward()

    def gain(self, config: KnobConfig, over: KnobConfig) -> Belief:
        """Return what is believed of one configuration over another."""
        apart = list(map(sub, self._column(config), self._column(over)))
        through = self._forward(apart)
        variance = (
            self._kernel(config, config)
            + self._kernel(over, over)
            - 2 * self._kernel(config, over)
        )
        explained = sum(map(mul, through, through))
        deviation = math.sqrt(max(variance - explained, 0.0))
        return Belief(self.mean_gain(config, over), deviation)

    def mean_gain(self, config: KnobConfig, over: KnobConfig) -> float:
        """Return the mean alone, which is had quickly."""
        apart: Iterable[float] = map(sub, self._column(config), self._column(over))
        learned: float = sum(map(mul, apart, self._weights))
        return self.prior(config) - self.prior(over) + learned

    def prior(self, config: KnobConfig) -> float:
        """Return what the planner makes one expect."""
        if config not in self._prior:
            score = self._foreseen(config)
            if score is None:
                score = self._summed_prior(config)
            self._prior[config] = score
        return self._prior[config]

    def _summed_prior(self, config: KnobConfig) -> float:
        """Return what the planner says of each change by itself, where it says nothing of the
        whole.
        """
        score = self._level
        for change in config.changes_from(self._baseline):
            alone = self._foreseen(self._baseline.turned({change.knob: change.after}))
            if alone is not None:
                score += alone - self._level
        return score

    def _foreseen(self, config: KnobConfig) -> float | None:
        speed = self._space.predict(config)
        if speed is not None and speed > 0:
            return math.log(speed)
        return None

    def _reach_of(self, knob: Knob, value: Value) -> float:
        """Return how far the effect of this value may be from what is foreseen; none at the
        baseline's.
        """
        if value == self._baseline.get(knob.name):
            return 0.0
        foreseen = self._foreseen(self._baseline.turned({knob.name: value}))
        if foreseen is not None:
            predicted = foreseen - self._level
        else:
            predicted = 0.0
        reach = _OFF + _OFF_SHARE * abs(predicted)
        if not predicted:
            reach = max(reach, 1.5 * knob.expected)
        return min(_MOST_OFF, reach)

    def _column(self, config: KnobConfig) -> list[float]:
        """Return the covariance of a configuration with each start that was seen."""
        column = self._columns.setdefault(config, [])
        for place in range(len(column), len(self._observed)):
            measured = self._observed[place][0]
            first = self._first[measured]
            column.append(column[first] if first < place else self._kernel(config, measured))
        return column

    def _kernel(self, a: KnobConfig, b: KnobConfig) -> float:
        """Return the covariance of two configurations."""
        total = _LEVEL**2
        alike = a == b
        mine = a.as_dict
        theirs = b.as_dict
        for name, knob in self._knobs.items():
            value_a = mine[name]
            value_b = theirs[name]
            reaches = self._reach[name]
            reach = reaches.get(value_a, _OFF) * reaches.get(value_b, _OFF)
            if reach and value_a == value_b:
                total += reach
            elif reach and knob.ordered:
                places = self._places[name]
                apart = abs(places.get(value_a, 0) - places.get(value_b, 0))
                total += reach * (_ALIKE * math.exp(-apart / _NEAR))
        for first, second in self._pairs:
            same = mine[first] == theirs[first] and mine[second] == theirs[second]
            if not same:
                continue
            if all(mine[name] != self._baseline.get(name) for name in (first, second)):
                total += _PAIR**2
        return total + _OWN**2 * alike

    def _forward(self, column: list[float]) -> list[float]:
        """Solve the lower triangle of the Cholesky factor for a column."""
        solution: list[float] = []
        for value, row in zip(column, self._rows, strict=True):
            solution.append((value - sum(map(mul, row, solution))) / row[-1])
        return solution

    def _backward(self) -> list[float]:
        """Solve its transpose for the rest that was measured."""
        rest = list(self._rest)
        for place in range(len(rest) - 1, -1, -1):
            row = self._rows[place]
            rest[place] /= row[-1]
            value = rest[place]
            for before in range(place):
                rest[before] -= row[before] * value
        return rest


_TOO_LATE = 10.0  # how heavily a broken promise weighs, in logarithms
_HOPELESSLY_LATE = 5.0

_DOUBT = 0.06  # of a gain that trust is worth, in logarithms of both
_OTHERWISE = 4.0  # how much speaks for a cause that no pair explains

Suspect = tuple[tuple[str, Value], ...]  # one value, or two


class FailureSuspects:
    """Values, and pairs of them, that configurations had which failed, and none that ran."""

    def __init__(self) -> None:
        self._ran: set[Suspect] = set()
        self._failed: dict[KnobConfig, None] = {}  # in order
        self._explained: Counter[Suspect] = Counter()
        self._suspects_of_configs: dict[KnobConfig, frozenset[Suspect]] = {}

    def clear(self, config: KnobConfig) -> None:
        """Take in that a configuration ran: nothing in it is suspect any more."""
        self._ran |= self._suspects(config)

    def suspect(self, config: KnobConfig) -> None:
        """Take in that a configuration failed."""
        if config not in self._failed:
            self._failed[config] = None
            self._explained.update(self._suspects(config))

    def trust(self, config: KnobConfig) -> float:
        """Return 1 where nothing of it is under suspicion, and little where it has all that the
        failures have.
        """
        mine = self._suspects(config)
        worst = 0.0
        for failed in self._failed:  # of what is suspected of it, how much this one has as well
            whole = 0.0
            shared = 0.0
            for suspect in self._suspects(failed) - self._ran:
                weight = self._explained[suspect] ** 2
                whole += weight
                if suspect in mine:
                    shared += weight
            worst = max(worst, shared / (whole + _OTHERWISE))
        return float((1 - worst) ** 2)

    def _suspects(self, config: KnobConfig) -> frozenset[Suspect]:
        if config not in self._suspects_of_configs:
            singles = ((value,) for value in config.values)
            pairs = combinations(config.values, 2)
            self._suspects_of_configs[config] = frozenset([*singles, *pairs])
        return self._suspects_of_configs[config]


class Measurements:
    """All starts of a search, and what they say: of speeds, of noise, of failures."""

    def __init__(self, space: Predictor, baseline: KnobConfig) -> None:
        self.space = space
        self.noise = MeasurementNoise()
        self.surrogate = Surrogate(space, baseline)
        self.failures: list[tuple[KnobConfig, ConfigFailure]] = []
        self.rounds = 0
        self._starts: dict[KnobConfig, list[ServerStart]] = {}
        self._failed: set[KnobConfig] = set()
        self.suspects = FailureSuspects()
        # bytes that were spared by what ran out of them
        self._too_little: dict[tuple[Value, ...], float] = {}

    def add_round(self, round_: MeasurementRound, *, spared: KnobConfig | None = None) -> None:
        """Take in a round. `spared`: whose failure is not held against it yet."""
        self.rounds += 1
        for start in round_.starts:
            self._starts.setdefault(start.config, []).append(start)
            if start.failure is None:
                self._learn(start)
            elif start.config != spared:
                self.add_failure(start.config, start.failure)

    def _learn(self, start: ServerStart) -> None:
        logs = speeds(start.readings)
        if not logs:
            return
        self.suspects.clear(start.config)
        self.noise.add_start(logs)
        share_of_limit = max(1.0, over_limit([start]))
        late = min(math.log(share_of_limit), _HOPELESSLY_LATE)
        variance = self.noise.mean_variance(len(logs))
        if late > 0:
            variance *= 1 + _TOO_LATE**2
        mean_log = fmean(self.noise.clipped(logs))
        score = mean_log - _TOO_LATE * late
        self.surrogate.learn(start.config, self.rounds, score, variance)

    def add_failure(self, config: KnobConfig, failure: ConfigFailure) -> None:
        self.failures.append((config, failure))
        self._failed.add(config)
        # The planner may be off by some memory, but of two configurations it knows which leaves
        # more.
        if failure.is_of_memory:
            spare = self.space.spare_bytes(config)
        else:
            spare = None
        if spare is None:
            self.suspects.suspect(config)
        else:
            ground = _ground(config)
            self._too_little[ground] = max(spare, self._too_little.get(ground, spare))

    def settle(self, config: KnobConfig) -> None:
        """Learn from a configuration how much starts differ."""
        logs_of_starts = [speeds(start.readings) for start in self.starts(config)]
        logs_of_starts = [logs for logs in logs_of_starts if logs]
        means = [fmean(self.noise.clipped(logs)) for logs in logs_of_starts]
        self.noise.add_means(means, list(map(len, logs_of_starts)), sides=1)

    def figure(self, starts: Sequence[ServerStart]) -> Interval | None:
        """Return the mean with a 95 % interval; None: nothing counts."""
        return mean_of_starts([speeds(start.readings) for start in starts], self.noise)

    def counted_starts(self, config: KnobConfig) -> int:
        """Return how many of its starts gave a figure."""
        return sum(bool(start.figures) for start in self.starts(config))

    @property
    def configs(self) -> Iterable[KnobConfig]:
        """The configurations that were started."""
        return self._starts.keys()

    def starts(self, config: KnobConfig) -> Sequence[ServerStart]:
        return self._starts.get(config, ())

    def is_refused(self, config: KnobConfig) -> bool:
        """Return whether it is not to be started: it failed before, or is narrow."""
        return self.is_narrow(config) or config in self._failed

    def is_narrow(self, config: KnobConfig) -> bool:
        """Return whether it is refused by a rule or for want of memory, so that it may run with
        something else turned as well.
        """
        if self.space.refusal(config) is not None:
            return True
        too_little = self._too_little.get(_ground(config))
        if too_little is None or self.counted_starts(config):
            return False
        spare = self.space.spare_bytes(config)
        return spare is not None and spare <= too_little

    def deaths(self, knob: str, value: Value) -> int:
        """Return how many configurations with this value failed for another reason than memory."""
        return sum(
            config.get(knob) == value and not failure.is_of_memory
            for config, failure in self.failures
        )

    def promise(self, config: KnobConfig, over: KnobConfig) -> float:
        """Return the gain that is believed, less for what looks like something that failed."""
        trust = max(1e-3, self.suspects.trust(config))
        return self.surrogate.mean_gain(config, over) + _DOUBT * math.log(trust)


def _ground(config: KnobConfig) -> tuple[Value, ...]:
    """Return the values that memory depends on so much that only the same ones compare."""
    return tuple(config.get(name) for name in ("layout", "replicas"))


def speeds(readings: Iterable[TuneReading]) -> list[float]:
    """Return the logarithms of the readings that count."""
    return [
        math.log(reading.figure)
        for reading in readings
        if reading.counts and reading.figure is not None
    ]


def paired(a: Sequence[TuneReading], b: Sequence[TuneReading]) -> list[tuple[float, float]]:
    """Return the logarithms of the nth readings of both, where both count."""
    both = [pair for pair in zip(a, b, strict=False) if pair[0].counts and pair[1].counts]
    of_a = speeds(first for first, _ in both)
    of_b = speeds(second for _, second in both)
    return list(zip(of_a, of_b, strict=True))


def over_limit(starts: Sequence[ServerStart]) -> float:
    """Return the median share of the limits; 0 where there are none."""
    shares = (
        reading.over_limit for start in starts for reading in start.readings if reading.counts
    )
    return median_known(shares) or 0.0


def typical(starts: Sequence[ServerStart], name: str) -> float | None:
    """Return the median of `ttft_ms` or `tpot_ms` over the readings that count."""
    return median_known(
        getattr(reading, name) for start in starts for reading in start.readings if reading.counts
    )


def median_known(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None
