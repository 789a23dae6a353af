"""Where one could go from here, and which of it to look at next: the largest expected gain a
minute first.

Single changes, pairs that interact, and changes that only go together (a layout that fits only
with fewer slots). Works on what is believed; measures nothing and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from random import Random

import msgspec
from msgspec.structs import replace

from skep.tuner.measurements import Belief, Measurements
from skep.tuner.predictions import Predictor
from skep.tuner.records import Knob, KnobChange, KnobConfig, Value

STARTS = 2  # of either side, before anything is accepted or nothing could be read
# readings of a start that decides
FEWEST = 3
MOST = 8
# what is measured over what was expected
_FASTEST = 0.1
_SLOWEST = 10.0

SCREENED = 3  # readings of a start that only sorts
TIGHT_LOOKS = 45  # a budget for fewer first looks than these is spent sparingly


class TimeBudget:
    """What a search has spent, and what its requests will take.

    Where time is tight a start is read as seldom as is enough, and a first look is not beside the
    best so far. Whether it is tight is settled once the baseline has shown how long things take.
    """

    def __init__(self, space: Predictor, baseline: KnobConfig, budget_s: float) -> None:
        self.budget_s = budget_s
        self.spent_s = 0.0
        self._space = space
        self._baseline = baseline
        self._slowness = 1.0  # measured over expected seconds
        self.is_tight = False
        self.settle()

    def settle(self) -> None:
        self.is_tight = self.budget_s < TIGHT_LOOKS * self.look_s

    @property
    def look_s(self) -> float:
        """What a first look at one configuration is expected to take."""
        return self.seconds((self._baseline,), SCREENED)

    @property
    def decision_s(self) -> float:
        """What a decision is expected to take: two starts of either side."""
        return 2 * STARTS * self.seconds((self._baseline,), self.readings(self._baseline))

    @property
    def baseline_starts(self) -> int:
        """The starts of the baseline by itself: where time is tight the second one is that beside
        the first challenger.
        """
        return 1 if self.is_tight else STARTS

    def changes(self) -> int:
        """Return how many changes the budget has room for, where of three that are looked at one
        is decided about.
        """
        start_s = self.seconds((self._baseline,), self.readings(self._baseline))
        begin_s = self.baseline_starts * start_s
        looks = SIDE_BY_SIDE
        if not self.is_tight:
            looks += 1
        cycle_s = looks * self.look_s + self.decision_s
        remaining_s = self.budget_s - begin_s
        return max(1, int(SIDE_BY_SIDE * remaining_s / cycle_s))

    def learn(self, configs: Sequence[KnobConfig], readings: int, seconds: float) -> None:
        """Take in what a request really took."""
        expected = self.seconds(configs, readings) / self._slowness
        slowness = seconds / max(1e-6, expected)
        slowness = min(_SLOWEST, max(_FASTEST, slowness))
        self._slowness = 0.7 * self._slowness + 0.3 * slowness

    def seconds(self, configs: Sequence[KnobConfig], readings: int) -> float:
        """Return what one start, a warm-up and so many readings of each are expected to take."""
        seconds_of_each = (
            self._space.start_s(config) + (readings + 1) * self._space.reading_s(config)
            for config in configs
        )
        return self._slowness * sum(seconds_of_each)

    def readings(self, config: KnobConfig) -> int:
        """Return the readings of a start: it is measured for as long as it takes, since more would
        tell ever less than another start.
        """
        if self.is_tight:
            return FEWEST
        readings = self._space.start_s(config) / max(0.1, self._space.reading_s(config))
        return min(MOST, max(FEWEST, round(readings)))

    def can_afford(self, seconds: float) -> bool:
        return seconds <= self.budget_s - self.spent_s


_DRAWN = 250  # configurations tried for one value
# chances that another knob stays as it is: near ones are drawn as well as far ones
_KEPT = (0.8, 0.5)
_PASSES = 2
_ALIKE = 0.01  # a change that brings less than this is not made


class PromisedConfig(msgspec.Struct, frozen=True):
    """A configuration and the gain that is believed of it, in logarithms."""

    config: KnobConfig
    promise: float


def best_config_with(
    measurements: Measurements,
    incumbent: KnobConfig,
    knob: str,
    value: Value,
) -> KnobConfig | None:
    """Return the most promising configuration with this value, with as little else turned as that
    takes.
    """
    drawn = _best_drawn(measurements, incumbent, knob, value)
    if drawn is None:
        return None
    climbed = _climbed(measurements, incumbent, knob, drawn)
    best = climbed.config
    for change in best.changes_from(incumbent):  # what does not matter stays as it was
        without = best.turned({change.knob: change.before})
        is_allowed = change.knob != knob and not measurements.is_refused(without)
        if is_allowed and measurements.promise(without, incumbent) > climbed.promise - _ALIKE:
            best = without
    return best


def _best_drawn(
    measurements: Measurements,
    incumbent: KnobConfig,
    knob: str,
    value: Value,
) -> PromisedConfig | None:
    """Return the most promising of configurations with this value that are drawn at random, always
    the same ones.
    """
    rng = Random(f"{incumbent.key}/{knob}={value}")
    best = None
    for number in range(_DRAWN):
        keep_chance = _KEPT[number % len(_KEPT)]
        others = {
            knob.name: rng.choice(knob.values)
            for knob in measurements.space.knobs
            if rng.random() > keep_chance
        }
        drawn = incumbent.turned(others | {knob: value})
        if measurements.is_refused(drawn):
            continue
        promise = measurements.promise(drawn, incumbent)
        if best is None or promise > best.promise:
            best = PromisedConfig(drawn, promise)
    return best


def _climbed(
    measurements: Measurements,
    incumbent: KnobConfig,
    fixed: str,
    best: PromisedConfig,
) -> PromisedConfig:
    """Turn all knobs but one, knob by knob, to the value that promises most."""
    knobs = [knob for knob in measurements.space.knobs if knob.name != fixed]
    for _ in range(_PASSES):
        before = best
        for knob in knobs:
            for rung in knob.values:
                turned = best.config.turned({knob.name: rung})
                if measurements.is_refused(turned):
                    continue
                promise = measurements.promise(turned, incumbent)
                if promise > best.promise + _ALIKE:
                    best = PromisedConfig(turned, promise)
        if best.config == before.config:
            break
    return best


SIDE_BY_SIDE = 3  # challengers that share one start of the incumbent
# foreseen so clearly that it is decided about at once
SURE = 0.95
SURE_GAIN = 0.05
BOLD = 0.02  # expected gain of a single change, below which several at once are looked at too
READY = 0.75  # chance of being better, from which on it is decided about
LARGE = math.log(1.25)  # a gain or loss that no drift of a machine explains
_SLIGHT = 0.002  # a gain that is worth carrying into a combination
_TOGETHER = 0.012  # what a combination should promise
_FEW = 3  # values of each knob that are combined in pairs
_LEAPS = 6  # times that one value is leapt for from one place
_DETOURS = 6  # dead ends of one value, after which no way around them is looked for
_DEAD_ENDS = 3  # of one change, before it is let be for good


class Grain(msgspec.Struct, frozen=True):
    """How finely one looks. Coarse first; finer when nothing more is found and time is left."""

    floor: float  # expected gain below which nothing is tried
    worth: float  # a gain that is worth a decision of its own
    screens: int  # starts spent on sorting one configuration, at most
    rounds: int  # starts of either side, at most, for one decision


# In tight time one look at a configuration is enough to sort it out.
TIGHT_GRAIN = Grain(floor=0.01, worth=0.02, screens=1, rounds=3)
GRAINS = (
    Grain(floor=0.004, worth=0.02, screens=2, rounds=4),
    Grain(floor=0.0015, worth=0.008, screens=4, rounds=10),
    Grain(floor=0.0008, worth=0.005, screens=7, rounds=16),
)


class Move(msgspec.Struct, frozen=True):
    config: KnobConfig
    changes: tuple[KnobChange, ...]
    belief: Belief
    trust: float = 1.0  # that it runs at all
    together: bool = False  # of changes that could not be told from nothing one by one

    @property
    def hope(self) -> float:
        return self.belief.hope * self.trust


class DecidedChange(msgspec.Struct, frozen=True):
    """A change that was decided, and from where it was looked at."""

    incumbent: KnobConfig
    same: bool  # not to be told apart, so that it may still bring a little
    failed: bool = False  # it may not fail elsewhere
    grain: int = 0  # how finely it was looked at


_ChangeKey = tuple[tuple[str, Value], ...]  # knobs and the values they are turned to, in order


class Chooser:
    """What to look at next, from what is believed and from what was decided before."""

    def __init__(self, measurements: Measurements, time_budget: TimeBudget) -> None:
        self._measurements = measurements
        self._time_budget = time_budget
        self._knobs = {knob.name: knob for knob in measurements.space.knobs}
        self._partners: dict[str, set[str]] = {name: set() for name in self._knobs}
        for first, second in measurements.space.pairs:
            if first in self._knobs and second in self._knobs:
                self._partners[first].add(second)
                self._partners[second].add(first)
        self._closed: dict[_ChangeKey, DecidedChange] = {}
        self._dead_ends: dict[_ChangeKey, int] = {}
        self._leapt: dict[tuple[KnobConfig, str, Value], list[KnobConfig | None]] = {}
        self._owed: list[KnobConfig] = []  # neighbours of a peak that were looked at less often
        self._grain = 0

    @property
    def grain(self) -> Grain:
        return self._grains[self._grain]

    @property
    def _grains(self) -> tuple[Grain, ...]:
        if self._time_budget.is_tight:
            return (TIGHT_GRAIN, *GRAINS)
        return GRAINS

    def close(
        self,
        changes: Iterable[KnobChange],
        incumbent: KnobConfig,
        *,
        same: bool = False,
        failed: bool = False,
    ) -> None:
        key = _key(changes)
        self._closed[key] = DecidedChange(
            incumbent=incumbent,
            same=same,
            failed=failed,
            grain=self._grain,
        )
        self._dead_ends[key] = self._dead_ends.get(key, 0) + failed

    def choose(self, incumbent: KnobConfig) -> Move | tuple[KnobConfig, ...] | None:
        """Return one to decide about, or a few to sort; None: nothing promises anything."""
        while True:
            moves = self._open_moves(incumbent)
            if moves or self._owed:
                chosen = self._chosen(moves)
                if chosen:
                    return chosen
            elif self._grain + 1 == len(self._grains):
                return None
            else:
                self._grain += 1

    def _open_moves(self, incumbent: KnobConfig) -> list[Move]:
        """Return what is worth a look, best first: single changes, and several at once where these
        promise little.
        """
        floor = self.grain.floor
        singles = list(self._singles(incumbent))
        moves = list(singles)
        if self._time_budget.is_tight:
            moves += self._moves(self._leaps(incumbent), incumbent)
        moves = self._ranked(moves, incumbent, floor)
        largest_hope = max((move.hope for move in moves), default=0.0)
        if not self._owed and largest_hope < BOLD:
            moves += self._further(incumbent, singles)
            moves = self._ranked(moves, incumbent, floor)
        return moves

    def _minutes(self, move: Move, incumbent: KnobConfig) -> float:
        """Return the minutes that deciding about it is expected to take."""
        configs = self.measured_for(move.config, incumbent)
        readings = self._time_budget.readings(move.config)
        return STARTS * self._time_budget.seconds(configs, readings) / 60

    def measured_for(self, config: KnobConfig, incumbent: KnobConfig) -> tuple[KnobConfig, ...]:
        """Return what is started to decide about it: the best so far is measured again only beside
        a small gain.
        """
        is_measured = self._measurements.counted_starts(incumbent) >= STARTS
        if is_measured and self.is_large(config, incumbent):
            return (config,)
        return (incumbent, config)

    def is_large(self, config: KnobConfig, incumbent: KnobConfig) -> bool:
        return abs(self._measurements.surrogate.mean_gain(config, incumbent)) >= LARGE

    def owe(self, config: KnobConfig, names: Sequence[str], *, looks: int) -> bool:
        """Note the neighbours of a peak to be looked at first. Return whether there are any.

        On a ladder a peak is believed only beside neighbours that were looked at as often as it
        was.
        """
        for name in names:
            knob = self._knobs[name]
            if not knob.ordered or knob.along:
                continue
            place = knob.values.index(config[name])
            below = knob.values[max(0, place - 1) : place]
            above = knob.values[place + 1 : place + 2]
            for rung in (*below, *above):
                beside = config.turned({name: rung})
                is_seldom = len(self._measurements.starts(beside)) < looks
                if is_seldom and beside not in self._owed and not self._is_refused(beside):
                    self._owed.append(beside)
        return bool(self._owed)

    def _is_refused(self, config: KnobConfig) -> bool:
        return self._measurements.is_refused(config)

    def moved(self, incumbent: KnobConfig, changes: Sequence[KnobChange]) -> None:
        """Go on from another place: what was owed from the one before is owed from here, and so
        are the neighbours on the ladders just climbed.
        """
        values = {change.knob: change.after for change in changes}
        self._owed = [config.turned(values) for config in self._owed]
        self.owe(incumbent, list(values), looks=1)

    def is_promising(self, belief: Belief) -> bool:
        return belief.mean >= self.grain.worth and belief.chance >= READY

    def _chosen(self, moves: Sequence[Move]) -> Move | tuple[KnobConfig, ...]:
        """Return the best move where it can be decided about, else a few to sort.

        An empty tuple: all that was owed is refused by now.
        """
        best = self._best_decidable(moves)
        if best is not None and not self._owes_neighbours(best):
            return best
        chosen = [config for config in self._owed if not self._is_refused(config)][:SIDE_BY_SIDE]
        self._owed = []
        for move in moves:
            has_room = len(chosen) < SIDE_BY_SIDE
            if has_room and move.config not in chosen and not self._is_decidable(move):
                chosen.append(move.config)
        if not chosen and moves:
            return moves[0]
        return tuple(chosen)

    def _best_decidable(self, moves: Sequence[Move]) -> Move | None:
        """Return the best move where it can be decided about at once: unless it is large, what is
        owed comes first.
        """
        if not moves:
            return None
        best = moves[0]
        if self._owed and best.hope < LARGE:
            return None
        if not self._is_decidable(best):
            return None
        return best

    def _owes_neighbours(self, move: Move) -> bool:
        """Note the neighbours of a single change that was looked at. Return whether there are
        any.
        """
        looks = self._measurements.counted_starts(move.config)
        if len(move.changes) != 1 or looks == 0:
            return False
        (change,) = move.changes
        return self.owe(move.config, [change.knob], looks=looks)

    def _ranked(self, moves: Iterable[Move], incumbent: KnobConfig, floor: float) -> list[Move]:
        """Return the moves that are open, by the expected gain a minute; where time is tight, the
        planner's word first.
        """
        weight = 1.0 if self._time_budget.is_tight else 0.0
        hopeful = (
            move
            for move in moves
            if move.hope >= floor and not self._is_closed(move.changes, incumbent)
        )

        def worth(move: Move) -> float:
            gain = move.hope + weight * move.belief.mean
            return gain / max(1e-6, self._minutes(move, incumbent))

        return sorted(hopeful, key=worth, reverse=True)

    def _is_decidable(self, move: Move) -> bool:
        """Return whether it was looked at and is promising, or is foreseen beyond doubt, or made
        of what was looked at one by one.
        """
        if move.together:
            return True
        if self._measurements.counted_starts(move.config) == 0:
            return move.belief.chance >= SURE and move.belief.mean >= SURE_GAIN
        return self.is_promising(move.belief)

    def _is_closed(self, changes: tuple[KnobChange, ...], incumbent: KnobConfig) -> bool:
        """Return whether it was decided, and no knob that it interacts with has been turned since,
        nor does one look more finely.
        """
        key = _key(changes)
        closed = self._closed.get(key)
        if closed is None:
            return False
        if closed.same and closed.grain < self._grain:
            return False
        if closed.failed:
            # Elsewhere it is another configuration: tried again from another place, but not often.
            return closed.incumbent == incumbent or self._dead_ends[key] >= _DEAD_ENDS
        involved = {change.knob for change in changes}
        for change in changes:
            involved |= self._partners[change.knob]
        decided_at = closed.incumbent
        return all(decided_at[name] == incumbent[name] for name in involved)

    def _moves(self, configs: Iterable[KnobConfig], incumbent: KnobConfig) -> Iterator[Move]:
        for config in configs:
            changes = config.changes_from(incumbent)
            if changes and not self._is_refused(config):
                yield Move(
                    config=config,
                    changes=changes,
                    belief=self._measurements.surrogate.gain(config, incumbent),
                    trust=self._measurements.suspects.trust(config),
                )

    def _singles(self, incumbent: KnobConfig) -> Iterator[Move]:
        for knob in self._turned_alone():
            turned = (incumbent.turned({knob.name: value}) for value in knob.values)
            yield from self._moves(turned, incumbent)

    def _turned_alone(self) -> Iterator[Knob]:
        return (knob for knob in self._knobs.values() if not knob.along)

    def _further(self, incumbent: KnobConfig, singles: Sequence[Move]) -> Iterator[Move]:
        """Yield what is looked at when no single change promises anything: pairs, and several at
        once.
        """
        best = sorted(singles, key=lambda move: -move.belief.mean)
        yield from self._moves(self._pairs(incumbent, best), incumbent)
        yield from self._moves(self._leaps(incumbent), incumbent)
        for move in self._moves(self._combined(best, incumbent), incumbent):
            yield replace(move, together=True)

    def _pairs(self, incumbent: KnobConfig, singles: Sequence[Move]) -> Iterator[KnobConfig]:
        """Yield combinations of the best values of two knobs that interact.

        One that died here would be tried again blindly.
        """
        best: dict[str, list[Move]] = {}
        for move in singles:
            best.setdefault(move.changes[0].knob, []).append(move)
        for first, second in self._measurements.space.pairs:
            first_moves = best.get(first, ())[:_FEW]
            second_moves = best.get(second, ())[:_FEW]
            for both in product(first_moves, second_moves):
                if any(self._is_dead_end(move.changes, incumbent) for move in both):
                    continue
                changes = [change for move in both for change in move.changes]
                values = {change.knob: change.after for change in changes}
                yield incumbent.turned(values)

    def _is_dead_end(self, changes: tuple[KnobChange, ...], incumbent: KnobConfig) -> bool:
        closed = self._closed.get(_key(changes))
        return closed is not None and closed.failed and self._is_closed(changes, incumbent)

    def _leaps(self, incumbent: KnobConfig) -> Iterator[KnobConfig]:
        """Yield configurations with values that are refused from here, or that died here, and with
        something else turned as well.
        """
        for knob in self._turned_alone():
            for value in knob.values:
                if self._needs_leap(incumbent, knob.name, value):
                    leap = self._leap(incumbent, knob.name, value)
                    if leap is not None:
                        yield leap

    def _needs_leap(self, incumbent: KnobConfig, name: str, value: Value) -> bool:
        """Return whether a value is refused by itself, and may run with something else turned."""
        alone = incumbent.turned({name: value})
        may_run = (
            self._measurements.is_narrow(alone)
            or 1 <= self._measurements.deaths(name, value) < _DETOURS
        )
        return may_run and self._is_refused(alone)

    def _leap(self, incumbent: KnobConfig, name: str, value: Value) -> KnobConfig | None:
        """Return the configuration to leap to for a value.

        It is looked for once, and again where the one before has failed since.
        """
        leaps = self._leapt.setdefault((incumbent, name, value), [])
        last = None
        if leaps:
            last = leaps[-1]
        has_failed = last is not None and self._is_refused(last)
        if not leaps or (has_failed and len(leaps) < _LEAPS):
            last = best_config_with(self._measurements, incumbent, name, value)
            leaps.append(last)
        return last

    def _combined(self, singles: Sequence[Move], incumbent: KnobConfig) -> Iterator[KnobConfig]:
        """Yield the changes that could not be told from nothing one by one, all together: what
        they bring adds up.
        """
        best: dict[str, Move] = {}
        for move in singles:
            closed = self._closed.get(_key(move.changes))
            is_undecided = closed is not None and closed.same
            if is_undecided and move.belief.mean > _SLIGHT:
                knob = move.changes[0].knob
                best.setdefault(knob, move)
        promise = sum(move.belief.mean for move in best.values())
        if len(best) > 1 and promise >= _TOGETHER:
            values = {name: move.changes[0].after for name, move in best.items()}
            yield incumbent.turned(values)


def _key(changes: Iterable[KnobChange]) -> _ChangeKey:
    values = [(change.knob, change.after) for change in changes]
    return tuple(sorted(values))
