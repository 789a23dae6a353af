"""What to look at next: the largest expected gain a minute first, coarsely, and more finely when nothing else is left.

Says which configurations to sort and which one to decide about; measures nothing and decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skep.tuner.book import Book
from skep.tuner.moves import Move, Moves
from skep.tuner.purse import Purse
from skep.tunings import Config

SIDE_BY_SIDE = 3  # challengers that share one start of the incumbent
SURE, SURE_GAIN = 0.95, 0.05  # foreseen so clearly that it is decided about at once
BOLD = 0.02  # expected gain of a single change, below which several at once are looked at too
READY = 0.75  # chance of being better, from which on it is decided about


@dataclass(frozen=True, slots=True)
class Grain:
    """How finely one looks. Coarse first; finer when nothing more is found and time is left."""

    floor: float  # expected gain below which nothing is tried
    worth: float  # a gain that is worth a decision of its own
    screens: int  # starts spent on sorting one configuration, at most
    rounds: int  # starts of either side, at most, for one decision


GRAINS = (Grain(0.004, 0.02, 2, 4), Grain(0.0015, 0.008, 4, 10), Grain(0.0008, 0.005, 7, 16))


class Chooser:
    def __init__(self, book: Book, moves: Moves, purse: Purse) -> None:
        self._book, self._moves, self._purse = book, moves, purse
        self._owed: list[Config] = []  # neighbours of a peak that were looked at less often

    def __repr__(self) -> str:
        return f"<Chooser at grain {self._moves.grain}, {len(self._owed)} owed>"

    @property
    def grain(self) -> Grain:
        return GRAINS[self._moves.grain]

    def choose(self, incumbent: Config) -> Move | tuple[Config, ...] | None:
        """One to decide about, or a few to sort; None: nothing promises anything."""
        while True:
            moves = self._ranked(self._moves.singles(incumbent), incumbent)
            if not self._owed and max((move.hope for move in moves), default=0.0) < BOLD:
                moves = self._ranked([*moves, *self._moves.further(incumbent)], incumbent)
            if moves or self._owed:
                chosen = self._chosen(moves)
                if chosen:
                    return chosen
            elif self._moves.grain + 1 == len(GRAINS):
                return None
            else:
                self._moves.grain += 1

    def ranked(self, incumbent: Config) -> list[Move]:
        """All single changes that are open, best first."""
        moves = self._moves.singles(incumbent)
        return sorted(moves, key=lambda move: self._worth(move, incumbent), reverse=True)

    def minutes(self, move: Move, incumbent: Config) -> float:
        """That deciding about it is expected to take."""
        return 2 * self._purse.seconds((incumbent, move.config), self._purse.readings(move.config)) / 60

    def owe(self, config: Config, names: Sequence[str], *, looks: int) -> bool:
        """On a ladder a peak is believed only beside neighbours that were looked at as often as it was."""
        beside = self._moves.neighbours(config, names)
        self._owed += [one for one in beside if one not in self._owed and len(self._book.sittings(one)) < looks]
        return bool(self._owed)

    def is_promising(self, move: Move) -> bool:
        return move.belief.mean >= self.grain.worth and move.belief.chance >= READY

    def _chosen(self, moves: Sequence[Move]) -> Move | tuple[Config, ...]:
        if moves and not self._owed and self._is_decidable(moves[0]):
            move = moves[0]
            looks = self._book.starts(move.config)
            if move.kind != "single" or not looks or not self.owe(move.config, [move.changes[0].knob], looks=looks):
                return move
        chosen = [config for config in self._owed if self._book.refusal(config) is None][:SIDE_BY_SIDE]
        self._owed = []
        for move in moves:
            if len(chosen) < SIDE_BY_SIDE and move.config not in chosen and not self._is_decidable(move):
                chosen.append(move.config)
        return tuple(chosen) or (moves[0] if moves else ())  # nothing: all that was owed is refused by now

    def _ranked(self, moves: Sequence[Move], incumbent: Config) -> list[Move]:
        hopeful = (move for move in moves if move.hope >= self.grain.floor)
        return sorted(hopeful, key=lambda move: self._worth(move, incumbent), reverse=True)

    def _worth(self, move: Move, incumbent: Config) -> float:
        """Expected gain a minute."""
        return move.hope / max(1e-6, self.minutes(move, incumbent))

    def _is_decidable(self, move: Move) -> bool:
        """Looked at and promising, or foreseen beyond doubt, or made of what was looked at one by one."""
        if move.kind == "together":
            return True
        if self._book.starts(move.config) == 0:
            return move.belief.chance >= SURE and move.belief.mean >= SURE_GAIN
        return self.is_promising(move)
