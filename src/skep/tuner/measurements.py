"""What has been measured so far: every start with its readings, what failed, and what to believe
of configurations that were not measured.

Keeps evidence; decides nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    SessionReading,
    TuneReading,
    Value,
)
from skep.units import Interval

_LEVEL = 1.0  # how far the planner may be off altogether
# How far it may be off with the effect of one knob's value.
_OFF = 0.06  # at least
_OFF_SHARE = 0.35  # of the effect that it foresees, on top
_MOST_OFF = 0.5
# Deviations beside the effects of single values.
_PAIR = 0.05  # of two knobs that interact
_OWN = 0.01  # of a configuration
_COMMON = 0.02  # of a round
_ALIKE = 0.5  # of their effects, that neighbours on a ladder share
_NEAR = 2.0  # rungs, over which that fades
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
        gain_of_mean = self.mean * _NORMAL.cdf(z)
        gain_of_spread = self.deviation * _NORMAL.pdf(z)
        return gain_of_mean + gain_of_spread

    @property
    def chance(self) -> float:
        """The probability of being better at all."""
        if self.deviation > 0:
            z = self.mean / self.deviation
            return _NORMAL.cdf(z)
        return float(self.mean > 0)


class _KnobEffect(msgspec.Struct, frozen=True):
    """What turning one knob may do."""

    ordered: bool  # its values are the rungs of a ladder
    reaches: Mapping[Value, float]  # how far each value's effect may be from what is foreseen
    places: Mapping[Value, int]  # of each value on the ladder


class Surrogate:
    """A Gaussian process over configurations: the planner's prediction is its prior, starts
    correct it.

    Configurations with the same values share what was learned of these. All is in logarithms of
    the metric.
    """

    def __init__(self, space: Predictor, baseline: KnobConfig) -> None:
        self._space = space
        self._baseline = baseline
        self._prior: dict[KnobConfig, float] = {}
        self._level = self._foreseen(baseline) or 0.0
        self._effects = {knob.name: self._effect_of(knob) for knob in space.knobs}
        self._pairs = [
            (first, second)
            for first, second in space.pairs
            if first in self._effects and second in self._effects
        ]
        self._columns: dict[KnobConfig, list[float]] = {}
        self._observed: list[tuple[KnobConfig, int]] = []
        self._first: dict[KnobConfig, int] = {}  # the place of its first start in what was seen
        self._rows: list[list[float]] = []  # of the Cholesky factor
        self._rest: list[float] = []  # what was measured less the prior, through that factor
        self._weights: list[float] = []

    def _effect_of(self, knob: Knob) -> _KnobEffect:
        return _KnobEffect(
            ordered=knob.ordered,
            reaches={value: self._reach_of(knob, value) for value in knob.values},
            places={value: place for place, value in enumerate(knob.values)},
        )

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
        unexplained_variance = max(own_variance - explained_variance, 1e-9)
        pivot = math.sqrt(unexplained_variance)
        explained = sum(map(mul, row, self._rest))
        unexplained = score - self.prior(config) - explained
        self._rest.append(unexplained / pivot)
        self._rows.append([*row, pivot])
        self._first.setdefault(config, len(self._observed))
        self._observed.append((config, round_))
        self._weights = self._backward()

    def gain(self, config: KnobConfig, over: KnobConfig) -> Belief:
        """Return what is believed of one configuration over another."""
        differences = list(self._column_differences(config, over))
        solution = self._forward(differences)
        variance = self._kernel(config, config)
        variance += self._kernel(over, over)
        variance -= 2 * self._kernel(config, over)
        explained = sum(map(mul, solution, solution))
        unexplained = max(variance - explained, 0.0)
        return Belief(
            mean=self.mean_gain(config, over),
            deviation=math.sqrt(unexplained),
        )

    def mean_gain(self, config: KnobConfig, over: KnobConfig) -> float:
        """Return the mean of that belief alone, which is computed quickly."""
        differences = self._column_differences(config, over)
        learned: float = sum(map(mul, differences, self._weights))
        foreseen = self.prior(config) - self.prior(over)
        return foreseen + learned

    def _column_differences(self, config: KnobConfig, over: KnobConfig) -> Iterable[float]:
        """Return by how much the covariances of two configurations differ, start by start."""
        return map(sub, self._column(config), self._column(over))

    def prior(self, config: KnobConfig) -> float:
        """Return the logarithm of the speed that the planner foresees."""
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
            alone = self._baseline.turned({change.knob: change.after})
            foreseen = self._foreseen(alone)
            if foreseen is not None:
                score += foreseen - self._level
        return score

    def _foreseen(self, config: KnobConfig) -> float | None:
        speed = self._space.predict(config)
        if speed is not None and speed > 0:
            return math.log(speed)
        return None

    def _reach_of(self, knob: Knob, value: Value) -> float:
        """Return how far the effect of this value may be from what is foreseen: 0 for the
        baseline's value.
        """
        if value == self._baseline.get(knob.name):
            return 0.0
        alone = self._baseline.turned({knob.name: value})
        foreseen = self._foreseen(alone)
        predicted = 0.0
        if foreseen is not None:
            predicted = foreseen - self._level
        reach = _OFF + _OFF_SHARE * abs(predicted)
        if not predicted:
            reach = max(reach, 1.5 * knob.expected)
        return min(_MOST_OFF, reach)

    def _column(self, config: KnobConfig) -> list[float]:
        """Return the covariance of a configuration with each start that was seen."""
        column = self._columns.setdefault(config, [])
        for place in range(len(column), len(self._observed)):
            measured, _ = self._observed[place]
            first = self._first[measured]
            if first < place:
                covariance = column[first]
            else:
                covariance = self._kernel(config, measured)
            column.append(covariance)
        return column

    def _kernel(self, a: KnobConfig, b: KnobConfig) -> float:
        """Return the covariance of two configurations."""
        total = _LEVEL**2
        alike = a == b
        values_a = a.as_dict
        values_b = b.as_dict
        for name, effect in self._effects.items():
            value_a = values_a[name]
            value_b = values_b[name]
            reaches = effect.reaches
            reach = reaches.get(value_a, _OFF) * reaches.get(value_b, _OFF)
            if reach and value_a == value_b:
                total += reach
            elif reach and effect.ordered:
                place_a = effect.places.get(value_a, 0)
                place_b = effect.places.get(value_b, 0)
                rungs_apart = abs(place_a - place_b)
                total += reach * (_ALIKE * math.exp(-rungs_apart / _NEAR))
        for first, second in self._pairs:
            first_value = values_a[first]
            second_value = values_a[second]
            if first_value != values_b[first] or second_value != values_b[second]:
                continue
            first_is_turned = first_value != self._baseline.get(first)
            if first_is_turned and second_value != self._baseline.get(second):
                total += _PAIR**2
        return total + _OWN**2 * alike

    def _forward(self, column: list[float]) -> list[float]:
        """Solve the lower triangle of the Cholesky factor for a column."""
        solution: list[float] = []
        for value, row in zip(column, self._rows, strict=True):
            explained = sum(map(mul, row, solution))
            unexplained = value - explained
            solution.append(unexplained / row[-1])
        return solution

    def _backward(self) -> list[float]:
        """Solve the transpose of the Cholesky factor for `_rest`."""
        rest = list(self._rest)
        for place in range(len(rest) - 1, -1, -1):
            row = self._rows[place]
            rest[place] /= row[-1]
            value = rest[place]
            for before in range(place):
                rest[before] -= row[before] * value
        return rest


_TOO_LATE = 10.0  # taken off a score, times the logarithm of the share of a limit
_HOPELESSLY_LATE = 5.0  # a larger logarithm of that share is taken as this

_DOUBT = 0.06  # added to a gain, times the logarithm of the trust in a configuration
_OTHERWISE = 4.0  # weight of causes that neither a value nor a pair of them explains

Suspect = tuple[tuple[str, Value], ...]  # one value, or two


class FailureSuspects:
    """Values and pairs of values that failed configurations have, and none that ran."""

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
        own_suspects = self._suspects(config)
        worst = 0.0
        for failed in self._failed:  # how much of what is suspected of it this one has as well
            whole = 0.0
            shared = 0.0
            for suspect in self._suspects(failed) - self._ran:
                weight = self._explained[suspect] ** 2
                whole += weight
                if suspect in own_suspects:
                    shared += weight
            share = shared / (whole + _OTHERWISE)
            worst = max(worst, share)
        return float((1 - worst) ** 2)

    def _suspects(self, config: KnobConfig) -> frozenset[Suspect]:
        if config not in self._suspects_of_configs:
            singles = ((value,) for value in config.values)
            pairs = combinations(config.values, 2)
            suspects = frozenset([*singles, *pairs])
            self._suspects_of_configs[config] = suspects
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
        # By `_memory_group`: the most spare bytes of a configuration that ran out of memory.
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
        self.surrogate.learn(
            config=start.config,
            round_=self.rounds,
            score=mean_log - _TOO_LATE * late,
            variance=variance,
        )

    def add_failure(self, config: KnobConfig, failure: ConfigFailure) -> None:
        self.failures.append((config, failure))
        self._failed.add(config)
        # The planner may be off by some memory, but of two configurations it knows which leaves
        # more.
        spare = None
        if failure.is_of_memory:
            spare = self.space.spare_bytes(config)
        if spare is None:
            self.suspects.suspect(config)
        else:
            group = _memory_group(config)
            too_little = self._too_little.get(group, spare)
            self._too_little[group] = max(spare, too_little)

    def settle(self, config: KnobConfig) -> None:
        """Learn how much starts of one configuration differ."""
        means = []
        counts = []
        for start in self.starts(config):
            logs = speeds(start.readings)
            if logs:
                means.append(fmean(self.noise.clipped(logs)))
                counts.append(len(logs))
        self.noise.add_means(means, counts, sides=1)

    def figure(self, starts: Sequence[ServerStart]) -> Interval | None:
        """Return the mean with a 95 % interval; None: no reading counts."""
        logs_by_start = [speeds(start.readings) for start in starts]
        return mean_of_starts(logs_by_start, self.noise)

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
        too_little = self._too_little.get(_memory_group(config))
        if too_little is None or self.counted_starts(config):
            return False
        spare = self.space.spare_bytes(config)
        return spare is not None and spare <= too_little

    def deaths(self, knob: str, value: Value) -> int:
        """Return how many configurations with this value failed for another reason than memory."""
        count = 0
        for config, failure in self.failures:
            if config.get(knob) == value and not failure.is_of_memory:
                count += 1
        return count

    def promise(self, config: KnobConfig, over: KnobConfig) -> float:
        """Return the gain that is believed, less the more a configuration is like failed ones."""
        gain = self.surrogate.mean_gain(config, over)
        trust = max(1e-3, self.suspects.trust(config))
        return gain + _DOUBT * math.log(trust)


def _memory_group(config: KnobConfig) -> tuple[Value, ...]:
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
    counted_a = []
    counted_b = []
    for reading_a, reading_b in zip(a, b, strict=False):
        if reading_a.counts and reading_b.counts:
            counted_a.append(reading_a)
            counted_b.append(reading_b)
    logs_a = speeds(counted_a)
    logs_b = speeds(counted_b)
    return list(zip(logs_a, logs_b, strict=True))


def _counted_readings(starts: Sequence[ServerStart]) -> Iterator[TuneReading]:
    for start in starts:
        for reading in start.readings:
            if reading.counts:
                yield reading


def over_limit(starts: Sequence[ServerStart]) -> float:
    """Return the median share of the limits; 0 where there are none."""
    shares = (reading.over_limit for reading in _counted_readings(starts))
    return median_known(shares) or 0.0


def typical(starts: Sequence[ServerStart], name: str) -> float | None:
    """Return the median of `ttft_ms` or `tpot_ms` over the readings that count."""
    values = (getattr(reading, name) for reading in _counted_readings(starts))
    return median_known(values)


def typical_sessions(starts: Sequence[ServerStart]) -> SessionReading | None:
    """Return the medians of what sessions got; None where tasks are the load."""
    figures = [reading.sessions for reading in _counted_readings(starts)]
    readings = [figure for figure in figures if figure is not None]
    if not readings:
        return None
    names = SessionReading.__struct_fields__
    return SessionReading(
        **{name: median_known(getattr(figure, name) for figure in readings) for name in names}
    )


def median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are known; None where none is."""
    known_values = [value for value in values if value is not None]
    if not known_values:
        return None
    return median(known_values)
