"""Where one could go from here: single changes, ladders by their bracket, pairs that interact, and several at once.

Knows what was believed and closed; measures nothing and chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from skep.tuner.book import Book
from skep.tuner.leaps import leap
from skep.tuner.surrogate import Belief
from skep.tunings import Change, Config, Knob, Value

_FEW = 3  # values of each knob that are combined in pairs
_SLIGHT = 0.002  # a gain that is worth carrying into a combination
_TOGETHER = 0.012  # what a combination should promise
_LEAPS = 6  # times that one value is leapt for from one place
_DETOURS = 6  # dead ends of one value, after which no way around them is looked for
_DEAD_ENDS = 3  # of one change, before it is let be for good


@dataclass(frozen=True, slots=True)
class Move:
    """`kind`: "single" | "pair" | "leap" | "remedy" | "together"."""

    config: Config
    changes: tuple[Change, ...]
    kind: str
    belief: Belief
    trust: float = 1.0  # that it runs at all

    @property
    def hope(self) -> float:
        return self.belief.hope * self.trust


@dataclass(frozen=True, slots=True)
class Closed:
    """A change that was decided, and from where it was looked at."""

    incumbent: Config
    same: bool  # not to be told apart, so that it may still bring a little
    failed: bool = False  # it may not fail elsewhere
    grain: int = 0  # how finely it was looked at


class Moves:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._knobs = {knob.name: knob for knob in book.terrain.knobs}
        self._partners: dict[str, set[str]] = {name: set() for name in self._knobs}
        for first, second in book.terrain.pairs:
            if first in self._knobs and second in self._knobs:
                self._partners[first].add(second)
                self._partners[second].add(first)
        self._closed: dict[tuple[tuple[str, Value], ...], Closed] = {}
        self._dead_ends: dict[tuple[tuple[str, Value], ...], int] = {}
        self._remedies: list[Config] = []
        self._leapt: dict[tuple[Config, str, Value, int], Config | None] = {}
        self.grain = 0

    def close(self, changes: Iterable[Change], incumbent: Config, *, same: bool = False, failed: bool = False) -> None:
        key = _key(changes)
        self._closed[key] = Closed(incumbent, same, failed, self.grain)
        self._dead_ends[key] = self._dead_ends.get(key, 0) + failed

    def remedy(self, config: Config) -> None:
        """A way out of a dead end, to be tried like any other move."""
        if config not in self._remedies:
            self._remedies.append(config)

    def singles(self, incumbent: Config) -> list[Move]:
        """Open ones."""
        return [move for move in self._all_singles(incumbent) if not self.is_closed(move.changes, incumbent)]

    def neighbours(self, config: Config, names: Iterable[str]) -> list[Config]:
        """One rung up and down each of these ladders, where that may be tried."""
        found = []
        for name in names:
            knob = self._knobs[name]
            if not knob.ordered:
                continue
            place = knob.values.index(config[name])
            for rung in (place - 1, place + 1):
                if 0 <= rung < len(knob.values):
                    beside = config.turned({name: knob.values[rung]})
                    if self._book.refusal(beside) is None:
                        found.append(beside)
        return found

    def further(self, incumbent: Config) -> list[Move]:
        """What is looked at when no single change promises anything: remedies, pairs, several at once."""
        singles = self._all_singles(incumbent)
        found = [*self._pairs(incumbent, singles), *self._combined(incumbent, singles), *self._leaps(incumbent)]
        remedies = (self._move(config, incumbent, "remedy") for config in self._remedies)
        found += [move for move in remedies if move is not None]
        return [move for move in found if not self.is_closed(move.changes, incumbent)]

    def is_closed(self, changes: tuple[Change, ...], incumbent: Config) -> bool:
        """Until a knob that it interacts with has been turned since, or one looks more finely.

        A dead end elsewhere is another configuration: it is tried again from another place, but not often.
        """
        closed = self._closed.get(_key(changes))
        if closed is None or (closed.same and closed.grain < self.grain):
            return False
        if closed.failed:
            return closed.incumbent == incumbent or self._dead_ends[_key(changes)] >= _DEAD_ENDS
        own = {change.knob for change in changes}
        partners = {partner for name in own for partner in self._partners[name]} - own
        return all(closed.incumbent[name] == incumbent[name] for name in partners | own)

    def _all_singles(self, incumbent: Config) -> list[Move]:
        found = []
        for knob in self._knobs.values():
            for value in self._values(knob, incumbent):
                move = self._move(incumbent.turned({knob.name: value}), incumbent, "single")
                found += [move] if move is not None else []
        return found

    def _values(self, knob: Knob, incumbent: Config) -> list[Value]:
        """All of an unordered knob; of a ladder the bracket around where one stands and around its best rungs."""
        now = incumbent[knob.name]
        others = [value for value in knob.values if value != now]
        if not knob.ordered or now not in knob.values:
            return others
        here = knob.values.index(now)
        worth = {
            place: self._book.surrogate.mean_gain(incumbent.turned({knob.name: value}), incumbent)
            for place, value in enumerate(knob.values)
            if place != here
        }
        peaks = [here, *sorted(worth, key=lambda place: -worth[place])[:2]]
        rungs = {peak + step for peak in peaks for step in (-2, -1, 0, 1, 2)}  # two: a dip is no end
        return [knob.values[place] for place in sorted(rungs) if place in worth]

    def _pairs(self, incumbent: Config, singles: list[Move]) -> Iterator[Move]:
        best: dict[str, list[Move]] = {}
        for move in sorted(singles, key=lambda move: -move.belief.mean):
            best.setdefault(move.changes[0].knob, []).append(move)
        for first, second in self._book.terrain.pairs:
            for one in best.get(first, ())[:_FEW]:
                for other in best.get(second, ())[:_FEW]:
                    if self._is_dead_end(one.changes, incumbent) or self._is_dead_end(other.changes, incumbent):
                        continue
                    both = {change.knob: change.after for change in (*one.changes, *other.changes)}
                    found = self._move(incumbent.turned(both), incumbent, "pair")
                    if found is not None:
                        yield found

    def _is_dead_end(self, changes: tuple[Change, ...], incumbent: Config) -> bool:
        """From here: turning something else besides would be trying it again blindly."""
        closed = self._closed.get(_key(changes))
        return closed is not None and closed.failed and self.is_closed(changes, incumbent)

    def _leaps(self, incumbent: Config) -> Iterator[Move]:
        """For values that are refused from here, and for those that died here, away from what is suspected of it."""
        for knob in self._knobs.values():
            for value in knob.values:
                alone = incumbent.turned({knob.name: value})
                if not self._book.is_narrow(alone) and not 1 <= self._book.deaths(knob.name, value) < _DETOURS:
                    continue
                if self._book.refusal(alone) is None:
                    continue
                config = self._leap(incumbent, knob.name, value)
                move = self._move(config, incumbent, "leap") if config is not None else None
                if move is not None:
                    yield move

    def _leap(self, incumbent: Config, knob: str, value: Value) -> Config | None:
        """Looked for once, and again where what was found has failed since."""
        for number in range(_LEAPS):
            key = (incumbent, knob, value, number)
            if key not in self._leapt:
                self._leapt[key] = leap(self._book, incumbent, knob, value)
            config = self._leapt[key]
            if config is None or self._book.refusal(config) is None:
                return config
        return None

    def _combined(self, incumbent: Config, singles: list[Move]) -> Iterator[Move]:
        """Those that could not be told from nothing one by one, all together: what they bring adds up."""
        best: dict[str, Move] = {}
        for move in singles:
            closed = self._closed.get(_key(move.changes))
            slight = closed is not None and closed.same and move.belief.mean > _SLIGHT
            knob = move.changes[0].knob
            if slight and (knob not in best or best[knob].belief.mean < move.belief.mean):
                best[knob] = move
        if len(best) < 2 or sum(move.belief.mean for move in best.values()) < _TOGETHER:
            return
        turned = {name: move.changes[0].after for name, move in best.items()}
        together = self._move(incumbent.turned(turned), incumbent, "together")
        if together is not None:
            yield together

    def _move(self, config: Config, incumbent: Config, kind: str) -> Move | None:
        changes = config.changes_from(incumbent)
        if not changes or self._book.refusal(config) is not None:
            return None
        return Move(config, changes, kind, self._book.gain(config, incumbent), self._book.trust(config))


def _key(changes: Iterable[Change]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted((change.knob, change.after) for change in changes))
