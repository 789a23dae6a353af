"""Which batches are under way at once: shared between owners, and between the models of an owner. Decides; no I/O.

There is room for a few. Who has the fewest under way begins next. Where there is no room, a batch of whoever has at
least two more gives way. Where all have the same, batches take turns: a short one for a batch that only waits, for its
model to be loaded or for a slot, and a long one for a batch that is being answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from skep.store.batches import UnfinishedBatch

MOST_AT_ONCE = 16
WAITING_TURN_S, TURN_S = 30.0, 600.0  # how long it stays under way while others take turns with it


@dataclass(frozen=True, slots=True)
class UnderWay:
    """`waits`: no replica has a request of it. None: it cannot give way, its file is being read or written."""

    batch: UnfinishedBatch
    since: float
    waits: bool | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The batch that begins, and the one that gives way to it; None: there is room."""

    begins: UnfinishedBatch
    gives_way: UnfinishedBatch | None = None


def choose(
    waiting: Iterable[UnfinishedBatch],
    under_way: Sequence[UnderWay],
    had_turn: Mapping[str, float],
    now: float,
    most: int = MOST_AT_ONCE,
) -> Choice | None:
    """None: nothing can begin now. `waiting` is oldest first; `had_turn` says when a batch gave way last."""
    owners = Counter(one.batch.owner for one in under_way)
    models = Counter(_model(one.batch) for one in under_way)

    def place(batch: UnfinishedBatch) -> tuple[int, int, float]:
        return owners[batch.owner], models[_model(batch)], had_turn.get(batch.id, 0.0)

    first: dict[tuple[str, str | None], UnfinishedBatch] = {}  # of each owner and model: the others come no sooner
    for batch in sorted(waiting, key=place):
        first.setdefault(_model(batch), batch)
    for batch in first.values():
        if len(under_way) < most:
            return Choice(batch)
        other = _who_has_more(batch, under_way)
        if other is None and now - had_turn.get(batch.id, -inf) >= WAITING_TURN_S:
            other = _whose_turn_is_over(batch, under_way, now)
        if other is not None:
            return Choice(batch, other)
    return None


def _who_has_more(batch: UnfinishedBatch, under_way: Sequence[UnderWay]) -> UnfinishedBatch | None:
    """Of those who have more than their share one that waits, if there is one, else the one that began last."""
    owners = Counter(one.batch.owner for one in under_way)
    models = Counter(_model(one.batch) for one in under_way)
    able = [one for one in under_way if one.waits is not None]
    of_others = [one for one in able if owners[one.batch.owner] >= owners[batch.owner] + 2]
    of_owner = [one for one in able if one.batch.owner == batch.owner]
    of_models = [one for one in of_owner if models[_model(one.batch)] >= models[_model(batch)] + 2]
    more = of_others or of_models
    by_share = {one.batch.id: (owners[one.batch.owner], models[_model(one.batch)]) for one in more}
    return max(more, key=lambda one: (by_share[one.batch.id], one.waits, one.since)).batch if more else None


def _whose_turn_is_over(batch: UnfinishedBatch, under_way: Sequence[UnderWay], now: float) -> UnfinishedBatch | None:
    """Not for one of the same owner and model: that would wait for the same."""
    over = [
        one
        for one in under_way
        if one.waits is not None
        and _model(one.batch) != _model(batch)
        and now - one.since >= (WAITING_TURN_S if one.waits else TURN_S)
    ]
    return min(over, key=lambda one: one.since).batch if over else None


def _model(batch: UnfinishedBatch) -> tuple[str, str | None]:
    return batch.owner, batch.model
