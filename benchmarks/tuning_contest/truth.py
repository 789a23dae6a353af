"""What configurations really do on a rig: the planner's word times a seeded ruggedness that nobody
is told.

Every value of a knob is off by a factor of its own, so that ladders are not one clean hill; some
pairs of knobs interact; more memory is needed than planned; and some regions do not start, hang,
or die under load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from random import Random

from tuning_contest.planned import Planned, PlannedRig, rule_against

from skep.tuner.records import ConfigFailure, Knob, KnobConfig, TuneReading, Value

_FARTHEST = 0.2  # of a value's effect from the planner's
_PAIR = 0.02  # standard deviation of what a pair of values does beyond both
# that the space does not tell of
_HIDDEN_PAIRS = 2
_HIDDEN_PAIR = 0.01
_MORE_MEMORY_BYTES = 0.6 * 2**30  # at most, than planned
_REGIONS = ("crash-under-load", "crash-under-load", "no-start", "hang")
_LARGEST_REGION = 0.13  # of all configurations
_SMALL_KNOBS = ("prefix_cache", "memory_share")  # not what engines die of

_WORDS = {
    "crash-under-load": ConfigFailure(
        "crash-under-load",
        "the engine died after a good start",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "turn back what was turned",
    ),
    "no-start": ConfigFailure(
        "no-start",
        "the engine does not take these together",
        "ValueError: Selected backend is not valid for this configuration",
        "turn back one of the two",
    ),
    "hang": ConfigFailure(
        "hang", "nothing was heard of the engine for 10 minutes", None, "turn back what was turned"
    ),
}


@dataclass(frozen=True, slots=True)
class Region:
    """Configurations that have one of `a`'s values and one of `b`'s fail alike."""

    kind: str
    a: str
    a_values: frozenset[Value]
    b: str
    b_values: frozenset[Value]

    def has(self, values: dict[str, Value]) -> bool:
        return values[self.a] in self.a_values and values[self.b] in self.b_values


@dataclass(frozen=True, slots=True)
class Survey:
    """Every configuration looked at.

    `grid_s`: one start, warm-up and reading of each that works.
    """

    best: KnobConfig
    best_figure: float
    foreseen: KnobConfig  # as best, by the planner
    configurations: int
    working: int
    failing: int  # not refused beforehand, and yet
    grid_s: float


class RuggedTruth:
    """In the place of what `skep.tuner.predictions.Predictor` foresees.

    The same rig and seed are the same hills.
    """

    def __init__(self, planned: PlannedRig, seed: int) -> None:
        self.planned = planned
        self.rig = rig = planned.rig
        rng = Random(f"{rig.name} {seed}")
        self.factors = {knob.name: _factors(knob, rig.rough(knob.name), rng) for knob in rig.knobs}
        for name, shares in rig.by_hand.items():
            self.factors[name] = {
                value: factor * shares[value] for value, factor in self.factors[name].items()
            }
        self.pairs = dict(_interactions(rig.knobs, rig.interacting, rng))
        self.regions = tuple(_region(kind, rig.knobs, rig.baseline, rng) for kind in _REGIONS)
        spare = planned.of(rig.baseline).spare_bytes
        if rig.on_cards:
            self.more_memory_bytes = rng.random() * min(_MORE_MEMORY_BYTES, 0.9 * spare)
        else:
            self.more_memory_bytes = 0.0
        assert self.value(rig.baseline) is not None

    def figure(self, config: KnobConfig) -> TuneReading | ConfigFailure:
        failure = self._failure(config)
        if failure is not None and failure.kind != "crash-under-load":
            return failure
        return self._reading(config, self.planned.of(config))

    def dies(self, config: KnobConfig) -> ConfigFailure | None:
        failure = self._failure(config)
        if failure is not None and failure.kind == "crash-under-load":
            return failure
        return None

    def start_s(self, config: KnobConfig) -> float:
        return self.planned.start_s(config)

    def value(self, config: KnobConfig) -> float | None:
        """The goal's figure without noise; None where it fails."""
        if self._failure(config) is not None:
            return None
        return self.planned.of(config).effective_tok_s * self._factor(config.as_dict)

    def survey(self) -> Survey:
        best = self.rig.baseline
        best_figure = 0.0
        working = 0
        failing = 0
        count = 0
        grid_s = 0.0
        foreseen = self.rig.baseline
        highest = 0.0
        for config in every(self.rig.knobs):
            count += 1
            planned = self.planned.of(config)
            if planned.spare_bytes < 0 or self._refused(config) is not None:
                continue
            if planned.effective_tok_s > highest:
                foreseen = config
                highest = planned.effective_tok_s
            figure = self.value(config)
            if figure is None:
                failing += 1
                continue
            working += 1
            grid_s += self.start_s(config) + 1.5 * self.planned.reading_s(figure)
            if figure > best_figure:
                best = config
                best_figure = figure
        self.planned.keep()
        return Survey(best, best_figure, foreseen, count, working, failing, grid_s)

    @cached_property
    def _pair_list(self) -> list[tuple[str, str, dict[tuple[Value, Value], float]]]:
        return [(a, b, table) for (a, b), table in self.pairs.items()]

    def _factor(self, values: dict[str, Value]) -> float:
        found = 1.0
        for name, table in self.factors.items():
            found *= table[values[name]]
        for a, b, table in self._pair_list:
            found *= table[values[a], values[b]]
        return found

    def _reading(self, config: KnobConfig, planned: Planned) -> TuneReading:
        factor = self._factor(config.as_dict)
        effective = planned.effective_tok_s * factor
        tasks = max(6, 3 * self.rig.aim.concurrency)
        return TuneReading(
            effective,
            effective,
            planned.task_tok_s * factor,
            planned.ttft_ms / factor,
            planned.tpot_ms / factor,
            wall_s=self.planned.reading_s(effective),
            requests=tasks,
        )

    def _refused(self, config: KnobConfig) -> ConfigFailure | None:
        words = rule_against(config) or self.planned.of(config).refusal
        if words is None:
            return None
        return ConfigFailure("refused", words)

    def _failure(self, config: KnobConfig) -> ConfigFailure | None:
        refused = self._refused(config)
        if refused is not None:
            return refused
        planned = self.planned.of(config)
        spare = planned.spare_bytes
        if spare < self.more_memory_bytes:
            return _out_of_memory(self.more_memory_bytes - spare, inside=planned.inside)
        values = config.as_dict
        return next((_WORDS[region.kind] for region in self.regions if region.has(values)), None)


def every(knobs: tuple[Knob, ...]) -> Iterator[KnobConfig]:
    ordered = sorted(knobs, key=lambda knob: knob.name)
    names = [knob.name for knob in ordered]
    for values in product(*(knob.values for knob in ordered)):
        yield KnobConfig(tuple(zip(names, values, strict=True)))


def _factors(knob: Knob, rough: float, rng: Random) -> dict[Value, float]:
    return {value: _factor_of(rough, rng) for value in knob.values}


def _factor_of(rough: float, rng: Random) -> float:
    return math.exp(max(-_FARTHEST, min(_FARTHEST, rng.gauss(0.0, rough))))


def _interactions(
    knobs: tuple[Knob, ...], told: tuple[tuple[str, str], ...], rng: Random
) -> Iterator[tuple[tuple[str, str], dict[tuple[Value, Value], float]]]:
    """Only among knobs that do something themselves."""
    values = {knob.name: knob.values for knob in knobs if knob.name not in _SMALL_KNOBS}
    names = sorted(values)
    others = [
        (a, b) for a in names for b in names if a < b and (a, b) not in told and (b, a) not in told
    ]
    hidden = rng.sample(others, min(_HIDDEN_PAIRS, len(others)))
    for pairs, strength in ((told, _PAIR), (hidden, _HIDDEN_PAIR)):
        for a, b in pairs:
            if a in values and b in values:
                yield (
                    (a, b),
                    {both: _factor_of(strength, rng) for both in product(values[a], values[b])},
                )


def _region(kind: str, knobs: tuple[Knob, ...], baseline: KnobConfig, rng: Random) -> Region:
    able = [knob for knob in knobs if knob.name not in _SMALL_KNOBS]
    while True:
        a, b = rng.sample(able, 2)
        of_a = _part(a, baseline, rng)
        of_b = _part(b, baseline, rng)
        if len(of_a) * len(of_b) <= _LARGEST_REGION * len(a.values) * len(b.values):
            return Region(kind, a.name, of_a, b.name, of_b)


def _part(knob: Knob, baseline: KnobConfig, rng: Random) -> frozenset[Value]:
    """The upper end of a ladder, or one value: never what the search begins with."""
    others = [value for value in knob.values if value != baseline[knob.name]]
    if not knob.ordered:
        return frozenset((rng.choice(others),))
    return frozenset(others[rng.randrange(len(others) // 2, len(others)) :])


def _out_of_memory(over_bytes: float, *, inside: bool) -> ConfigFailure:
    """Inside its share the engine finds no room for its cache;
    beside it the card has none left.
    """
    if inside:
        said = "ValueError: No available memory for the cache blocks"
        return ConfigFailure(
            "out-of-memory",
            "no memory for the KV cache",
            said,
            "raise memory_share, or lower slots",
        )
    said = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        f"{over_bytes / 2**20 + 64:.0f} MiB. GPU 0"
    )
    return ConfigFailure(
        "out-of-memory",
        "the card's memory was not enough",
        said,
        "lower memory_share, slots or batched_tokens",
    )
