"""How many at once: the highest level that does the work as well, not much slower, and gets more of it done.

A level will do if (a) its answers pass no less often than before, as far as chance allows to tell: the conversation's
against C=1, those of each side task against the lowest level that had it, (b) the conversation takes at most 2.5 times
as long as alone, and (c) more tasks are finished a minute than one level below.

Whether a level passes less often is Fisher's exact test, one-sided: given how many of both levels passed together, how
likely is it that so few of them are this level's? It takes answers for independent, which turns of one conversation
are not quite, and with three repeats it sees only a collapse; the reasons say how far a fall would have to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

from skep.units import format_seconds
from skep.verdicts import Advice, MixedLevel, SideFigures, TurnFigures

OTHER_LENGTH = 0.2  # of the conversation's tokens, from which on it is told
MOST_SLOWDOWN = 2.5  # of the whole conversation, against C=1
CHANCE = 0.05


@dataclass(frozen=True, slots=True)
class Tally:
    """Of the same tasks at this level and at lower ones."""

    what: str  # "primary answers"; side tasks by name, as not all of a level were there before
    passed: int
    judged: int
    base_passed: int
    base_judged: int
    base: str  # "at C=2 and C=3"

    @property
    def chance(self) -> float:
        return fisher_less(self.passed, self.judged, self.base_passed, self.base_judged)

    @property
    def is_worse(self) -> bool:
        return self.passed * self.base_judged < self.base_passed * self.judged and self.chance <= CHANCE

    def __str__(self) -> str:
        now, before = f"{self.passed} of {self.judged}", f"{self.base_passed} of {self.base_judged}"
        return f"{self.what}: {now} passed, {before} {self.base}"

    def power(self) -> str:
        """What the test could have seen."""
        floor = smallest_fall(self.judged, self.base_passed, self.base_judged)
        if floor is None:
            return "too few to tell any loss from chance"
        return f"a loss stands out from chance at {floor} of {self.judged} or fewer"


def advice_of(levels: Sequence[MixedLevel]) -> Advice:
    """`levels` in order of C."""
    solo = next((level for level in levels if level.concurrency == 1), None)
    if solo is None:
        return Advice(None, None, ("C=1 was not measured: there is nothing to hold the other levels against",))
    if solo.primary_s is None:
        return Advice(None, None, ("the conversation was never finished at C=1",))
    parts = [part for level in levels for part in tasks_of(level)]
    if not any(part.judged for part in parts):
        return Advice(None, None, ("no answer was judged: speed alone is no reason to choose a level",))
    if not any(part.passed for part in parts):
        why = f"none of {sum(part.judged for part in parts)} answers passed, at any level: no level does this work"
        return Advice(None, None, (why, *(_cost(level, solo) for level in levels if level is not solo)))
    faults = {level.concurrency: _faults(place, levels, solo) for place, level in enumerate(levels)}
    best = max(level for level, found in faults.items() if not found)  # C=1 has none
    place = next(place for place, level in enumerate(levels) if level.concurrency == best)
    beyond = (f"C={level}: {'; '.join(found)}" for level, found in faults.items() if level > best)
    return Advice(best, levels[place].name, (*_merits(place, levels, solo), *beyond))


def tasks_of(level: MixedLevel) -> list[TurnFigures | SideFigures]:
    return [*level.turns, *level.side]


def fisher_less(passed: int, judged: int, base_passed: int, base_judged: int) -> float:
    """The chance of `passed` or fewer, if both levels were alike and as many passed in all."""
    both, in_all = passed + base_passed, judged + base_judged
    ways = sum(comb(judged, one) * comb(base_judged, both - one) for one in range(passed + 1) if one <= both)
    return ways / comb(in_all, both)


def smallest_fall(judged: int, base_passed: int, base_judged: int) -> int | None:
    """The most passes that would still count as a loss; None: not even none at all."""
    seen = [
        passed
        for passed in range(judged + 1)
        if passed * base_judged < base_passed * judged
        and fisher_less(passed, judged, base_passed, base_judged) <= CHANCE
    ]
    return max(seen, default=None)


def other_length(level: MixedLevel, solo: MixedLevel | None) -> str:
    """ "for 103 tokens instead of 184", wherever a time is held against C=1 and the answers are not as long: long ones
    take longer at any load, and a model that gives up early looks quick. Empty: about as long, or not known.
    """
    tokens, alone = _tokens(level), _tokens(solo) if solo else None
    if tokens is None or not alone or abs(tokens / alone - 1) <= OTHER_LENGTH:
        return ""
    return f"for {tokens:,.0f} tokens instead of {alone:,.0f}"


def tallies(place: int, levels: Sequence[MixedLevel]) -> list[Tally]:
    """The conversation against C=1; each side task against the lowest level that had it."""
    level, lower = levels[place], levels[:place]
    found = []
    solo = next((one for one in lower if one.concurrency == 1), None)
    if solo is not None:
        found.append(_tally("primary answers", level.turns, solo.turns, "at C=1"))
    known = [(part, *first) for part in level.side if (first := _first(part.item, lower)) is not None]
    if known:
        names = ", ".join(part.item for part, _, _ in known)
        where = _listed([f"C={c}" for c in dict.fromkeys(c for _, c, _ in known)])
        found.append(_tally(names, [part for part, _, _ in known], [base for _, _, base in known], f"at {where}"))
    return [tally for tally in found if tally.judged and tally.base_judged]


def _tally(
    what: str,
    parts: Iterable[TurnFigures | SideFigures],
    base: Iterable[TurnFigures | SideFigures],
    where: str,
) -> Tally:
    now, before = [*parts], [*base]
    return Tally(
        what,
        passed=sum(one.passed for one in now),
        judged=sum(one.judged for one in now),
        base_passed=sum(one.passed for one in before),
        base_judged=sum(one.judged for one in before),
        base=where,
    )


def _first(item: str, levels: Sequence[MixedLevel]) -> tuple[int, SideFigures] | None:
    """The lowest of these levels that had it, and how it went there."""
    had = ((level.concurrency, part) for level in levels for part in level.side if part.item == item and part.judged)
    return next(had, None)


def _listed(names: Sequence[str]) -> str:
    """ "C=2, C=3 and C=5"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _faults(place: int, levels: Sequence[MixedLevel], solo: MixedLevel) -> list[str]:
    """Why a level will not do, with what it costs; none: it will."""
    level = levels[place]
    if level is solo:
        return []
    found = [f"{tally}, less than chance explains (p = {tally.chance:.2g})" for tally in _worse(place, levels)]
    slowdown = _slowdown(level, solo)
    if slowdown is None:
        found.append("the conversation was never finished")
    elif slowdown > MOST_SLOWDOWN:
        found.append(f"the conversation takes {_taking(level, solo, slowdown)}, more than {MOST_SLOWDOWN}x")
    rate, below = per_minute(level), per_minute(levels[place - 1]) if place else None
    if rate is None:
        found.append("no answer passed")
    elif below is not None and rate <= below:
        found.append(f"{rate:.1f} finished tasks a minute, {below:.1f} at C={levels[place - 1].concurrency}")
    return found


def _merits(place: int, levels: Sequence[MixedLevel], solo: MixedLevel) -> list[str]:
    level = levels[place]
    here = f"C={level.concurrency}"
    if level is solo:
        return [
            f"{here}: the conversation alone takes {format_seconds(solo.primary_s or 0.0)}; no higher level will do"
        ]
    found = [f"{here}: the conversation takes {_taking(level, solo, _slowdown(level, solo) or 0.0)}"]
    rates = [(one.concurrency, per_minute(one)) for one in levels[:place]]
    others = ", ".join(f"{rate:.1f} at C={c}" for c, rate in reversed(rates) if rate is not None)
    found.append(f"{here}: {per_minute(level) or 0.0:.1f} finished tasks a minute{', ' if others else ''}{others}")
    found.extend(f"{here}: {tally}; {tally.power()}" for tally in tallies(place, levels))
    return found


def _worse(place: int, levels: Sequence[MixedLevel]) -> list[Tally]:
    return [tally for tally in tallies(place, levels) if tally.is_worse]


def _cost(level: MixedLevel, solo: MixedLevel) -> str:
    slowdown = _slowdown(level, solo)
    cost = "was never finished" if slowdown is None else f"takes {_taking(level, solo, slowdown)}"
    return f"C={level.concurrency}: the conversation {cost}"


def _taking(level: MixedLevel, solo: MixedLevel, slowdown: float) -> str:
    length = other_length(level, solo)
    return f"{slowdown:.2f}x of C=1 ({format_seconds(level.primary_s or 0.0)}{', ' if length else ''}{length})"


def _tokens(level: MixedLevel) -> float | None:
    known = [turn.output_tokens for turn in level.turns if turn.output_tokens is not None]
    return sum(known) if known and len(known) == len(level.turns) else None


def _slowdown(level: MixedLevel, solo: MixedLevel) -> float | None:
    return level.primary_s / solo.primary_s if level.primary_s is not None and solo.primary_s else None


def per_minute(level: MixedLevel) -> float | None:
    """Tasks whose answers passed; None: none did."""
    return 60 / level.seconds_per_task if level.seconds_per_task else None
