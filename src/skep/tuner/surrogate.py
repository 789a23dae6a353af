"""What is believed of configurations that were not measured, from those that were and from the planner.

The logarithm of a figure is taken as the planner's prediction plus one effect for each knob's value, a smaller one for
pairs of knobs that interact, and a rest of the configuration's own: a Gaussian process whose kernel is their sum.
How far the planner may be off with a knob grows with what it predicts of it. What a round has in common (a slow hour of
the machine) is an effect of its own. Only chooses what to measure next: nothing is accepted on its word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul
from statistics import NormalDist

from skep.tuner.ports import Terrain
from skep.tunings import Config, Knob, Value

_LEVEL = 1.0  # how far the planner may be off altogether
_OFF, _OFF_SHARE, _MOST_OFF = 0.06, 0.35, 0.5  # with one knob's value: at least, and of what it predicts
_PAIR = 0.05  # of two knobs that interact
_OWN = 0.01  # of a configuration
_COMMON = 0.02  # of a round
_ALIKE, _NEAR = 0.5, 2.0  # neighbours on a ladder share so much, fading over so many rungs
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Belief:
    """In the logarithm of a ratio."""

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
        """Of being better at all."""
        return _NORMAL.cdf(self.mean / self.deviation) if self.deviation > 0 else float(self.mean > 0)


class Surrogate:
    def __init__(self, terrain: Terrain, baseline: Config) -> None:
        self._terrain, self._baseline = terrain, baseline
        self._knobs = {knob.name: knob for knob in terrain.knobs}
        self._pairs = [pair for pair in terrain.pairs if pair[0] in self._knobs and pair[1] in self._knobs]
        self._prior: dict[Config, float] = {}
        self._level = self._foreseen(baseline) or 0.0
        self._reach = {name: self._reaches(knob) for name, knob in self._knobs.items()}
        self._places = {name: {value: n for n, value in enumerate(knob.values)} for name, knob in self._knobs.items()}
        self._columns: dict[Config, dict[Config, float]] = {}  # the kernel, as far as it was asked for
        self._seen: list[tuple[Config, int]] = []
        self._rows: list[list[float]] = []  # of the Cholesky factor
        self._rest: list[float] = []  # what was measured less the prior, through that factor
        self._weights: list[float] = []
        self._pull: dict[Config, float] = {}  # the weights of all starts of a configuration

    def __repr__(self) -> str:
        return f"<Surrogate {len(self._seen)} starts>"

    def took(self, config: Config, round_: int, score: float, variance: float) -> None:
        """One start's mean, with the variance it has as a measure of its configuration."""
        near = self._column(config)
        column = [near[other] + _COMMON**2 * (there == round_) for other, there in self._seen]
        row = self._forward(column)
        own = self._kernel(config, config) + _COMMON**2 + variance
        pivot = math.sqrt(max(own - sum(map(mul, row, row)), 1e-9))
        self._rest.append((score - self.prior(config) - sum(map(mul, row, self._rest))) / pivot)
        self._rows.append([*row, pivot])
        self._seen.append((config, round_))
        self._weights = self._backward()
        self._pull = dict.fromkeys((other for other, _ in self._seen), 0.0)
        for (other, _), weight in zip(self._seen, self._weights, strict=True):
            self._pull[other] += weight

    def gain(self, config: Config, over: Config) -> Belief:
        """Of one configuration over another."""
        mine, theirs = self._column(config), self._column(over)
        column = [mine[other] - theirs[other] for other, _ in self._seen]
        mean = self.prior(config) - self.prior(over) + sum(map(mul, column, self._weights))
        through = self._forward(column)
        variance = self._kernel(config, config) + self._kernel(over, over) - 2 * self._kernel(config, over)
        return Belief(mean, math.sqrt(max(variance - sum(map(mul, through, through)), 0.0)))

    def mean_gain(self, config: Config, over: Config) -> float:
        """The mean alone, which is had quickly."""
        mine, theirs = self._column(config), self._column(over)
        pulled = sum(weight * (mine[other] - theirs[other]) for other, weight in self._pull.items())
        return self.prior(config) - self.prior(over) + pulled

    def prior(self, config: Config) -> float:
        if config not in self._prior:
            found = self._foreseen(config)
            self._prior[config] = found if found is not None else self._nearest(config)
        return self._prior[config]

    def _nearest(self, config: Config) -> float:
        """Where the planner says nothing of the whole: what it says of each change by itself, from the baseline."""
        total = self._level
        for change in config.changes_from(self._baseline):
            alone = self._foreseen(self._baseline.turned({change.knob: change.after}))
            total += alone - self._level if alone is not None else 0.0
        return total

    def _foreseen(self, config: Config) -> float | None:
        found = self._terrain.foresee(config)
        return math.log(found) if found is not None and found > 0 else None

    def _reaches(self, knob: Knob) -> dict[Value, float]:
        return {value: self._reach_of(knob, value) for value in knob.values}

    def _reach_of(self, knob: Knob, value: Value) -> float:
        """How far the effect of this value may be from what is foreseen; none at the baseline's."""
        if value == self._baseline.get(knob.name):
            return 0.0
        foreseen = self._foreseen(self._baseline.turned({knob.name: value}))
        predicted = foreseen - self._level if foreseen is not None else 0.0
        unforeseen = 1.5 * knob.expected if not predicted else 0.0
        return min(_MOST_OFF, max(_OFF + _OFF_SHARE * abs(predicted), unforeseen))

    def _kernel(self, a: Config, b: Config) -> float:
        column = self._columns.setdefault(a, {})
        if b not in column:
            column[b] = self._worked_out(a, b)
        return column[b]

    def _column(self, config: Config) -> dict[Config, float]:
        """The kernel of it with all that were seen."""
        column = self._columns.setdefault(config, {})
        for other in self._pull:
            if other not in column:
                column[other] = self._worked_out(config, other)
        return column

    def _worked_out(self, a: Config, b: Config) -> float:
        total, alike = _LEVEL**2, a == b
        mine, theirs = a.as_dict, b.as_dict
        for name, knob in self._knobs.items():
            one, other = mine[name], theirs[name]
            reach = self._reach[name].get(one, _OFF) * self._reach[name].get(other, _OFF)
            if reach:
                total += reach * (1.0 if one == other else self._likeness(knob, one, other))
        for first, second in self._pairs:
            same = mine[first] == theirs[first] and mine[second] == theirs[second]
            if same and self._moved(mine, first) and self._moved(mine, second):
                total += _PAIR**2
        return total + _OWN**2 * alike

    def _moved(self, values: dict[str, Value], name: str) -> bool:
        return values[name] != self._baseline.get(name)

    def _likeness(self, knob: Knob, one: Value, other: Value) -> float:
        if not knob.ordered:
            return 0.0
        places = self._places[knob.name]
        apart = abs(places.get(one, 0) - places.get(other, 0))
        return _ALIKE * math.exp(-apart / _NEAR)

    def _forward(self, column: list[float]) -> list[float]:
        found: list[float] = []
        for value, row in zip(column, self._rows, strict=True):
            found.append((value - sum(map(mul, row, found))) / row[-1])
        return found

    def _backward(self) -> list[float]:
        rest = list(self._rest)
        for place in range(len(rest) - 1, -1, -1):
            row = self._rows[place]
            rest[place] /= row[-1]
            value = rest[place]
            for before in range(place):
                rest[before] -= row[before] * value
        return rest
