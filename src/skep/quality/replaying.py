"""Verdicts had again from the store alone: the answers that were kept, judged by the items that were kept with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from skep.quality.judging import Answered
from skep.records import Request
from skep.verdicts import Verdict
from skep.workload.items import Item

Place = tuple[int, int, int, str]  # level, repeat, index, item: of one request


class Judges(Protocol):
    async def judge(self, answered: Sequence[Answered], on_done: Callable[[int], None] = ...) -> list[Verdict]: ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """One answer with what was said of it then and now. `stored` None: it was never judged."""

    answered: Answered
    stored: Verdict | None
    again: Verdict

    @property
    def agrees(self) -> bool | None:
        """By what decides: the outcome, and what a search for words found. None: there is nothing to agree with."""
        if self.stored is None:
            return None
        return (self.stored.outcome, self.stored.keywords) == (self.again.outcome, self.again.keywords)

    @property
    def of_other_rules(self) -> bool:
        """The stored verdict is of another version of the checks: where it differs, the rules may be why."""
        return self.stored is not None and self.stored.checker != self.again.checker

    @property
    def of_older_rules(self) -> bool:
        return self.stored is not None and _version(self.stored) < _version(self.again)


@dataclass(frozen=True, slots=True)
class Replay:
    """`lost`: stored verdicts whose answer or item is no longer stored, so that nothing could be judged."""

    answers: tuple[Replayed, ...]
    lost: tuple[Verdict, ...] = ()

    @property
    def confirmed(self) -> bool:
        """Every answer has a verdict, every verdict an answer, and each is what it was."""
        return self.agreeing == len(self.answers) and not self.lost

    @property
    def agreeing(self) -> int:
        return sum(one.agrees is True for one in self.answers)

    @property
    def differing(self) -> tuple[Replayed, ...]:
        return tuple(one for one in self.answers if one.agrees is False)

    @property
    def of_other_rules(self) -> tuple[Replayed, ...]:
        return tuple(one for one in self.answers if one.of_other_rules)

    @property
    def unjudged(self) -> int:
        """Never judged before: the run was broken off."""
        return sum(one.agrees is None for one in self.answers)


def answers_of(rows: Iterable[Request], items: Iterable[Item]) -> list[Answered]:
    """Every stored answer with its item and, in a conversation, the answers to the turns before it."""
    by_id = {item.id: item for item in items}
    kept = [row for row in rows if row.level and row.kind in by_id]
    turns: dict[tuple[int, int, int], dict[int, str]] = {}
    for row in kept:
        if row.session is not None and row.turn is not None:
            turns.setdefault((row.level, row.repeat, row.session), {})[row.turn] = row.answer or ""
    return [Answered(row, by_id[row.kind], _earlier(row, turns)) for row in kept]


def _earlier(row: Request, turns: Mapping[tuple[int, int, int], Mapping[int, str]]) -> tuple[str, ...]:
    if row.session is None or row.turn is None:
        return ()
    said = turns[row.level, row.repeat, row.session]
    return tuple(said.get(turn, "") for turn in range(row.turn))


async def replay(
    answered: Sequence[Answered],
    verdicts: Iterable[Verdict],
    judge: Judges,
    on_done: Callable[[int], None] = lambda _: None,
) -> Replay:
    known = {_place(one): one for one in verdicts}
    again = await judge.judge(answered, on_done)
    return Replay(
        tuple(
            Replayed(one, known.pop(_place(verdict), None), verdict)
            for one, verdict in zip(answered, again, strict=True)
        ),
        lost=tuple(known.values()),
    )


def _version(verdict: Verdict) -> int:
    """Of its checks. 0: it names none, as the first ones did not."""
    number = verdict.checker.rpartition("/")[2]
    return int(number) if number.isdecimal() else 0


def _place(verdict: Verdict) -> Place:
    return verdict.level, verdict.repeat, verdict.index, verdict.item
