"""How many replicas a model should have: by what waits, and by what would have been enough. Knows no process, no clock.

Up, at once and by as many as all that wait need, when a request has waited too long. Down, one by one, when for a long
while one fewer would have carried the load with slots to spare; who goes is decided by number, so that none goes unless
more serve than the least. What a replica can carry is what it was seen to carry
while requests waited: slots kept in reserve, or held by another, carry nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skep.catalog.names import model_id
from skep.errors import UserError

SLACK = 0.75  # of the slots of one replica fewer: so much load may be there when one goes
MOST = 1024  # replicas of a model
Document = Mapping[str, Any]  # settings, as `asdict` has them


@dataclass(frozen=True, slots=True)
class Bounds:
    minimum: int
    maximum: int
    up_wait_s: float = 5.0
    down_after_s: float = 600.0

    @property
    def scales(self) -> bool:
        return self.maximum > self.minimum

    def clamp(self, replicas: int) -> int:
        return max(self.minimum, min(self.maximum, replicas))


class Scaling:
    """One model's. `look` is asked about once a second; asked twice, it says the same."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._replicas: int | None = None  # as many as there were at the last look
        self._enough_since: float | None = None  # one fewer would have done
        self._carries: float | None = None  # requests at once by one replica, as seen while others waited

    def __repr__(self) -> str:
        return f"<Scaling {self._replicas} of {self.bounds.minimum}..{self.bounds.maximum}>"

    def look(
        self, now: float, *, replicas: int, ready: int, slots: int, busy: int, queued: int, oldest_wait_s: float
    ) -> int | None:
        """How many there should be, where that is another number. `ready` of the `replicas` serve, with `slots`."""
        if replicas != self._replicas:
            self._replicas, self._enough_since = replicas, None
        if not replicas or self.bounds.clamp(replicas) != replicas:
            return self.bounds.clamp(replicas)
        if not ready:
            return None  # what the first one carries is not known
        if queued and oldest_wait_s >= self.bounds.up_wait_s:
            self._enough_since = None
            return self._more(replicas, ready, slots, busy, queued)
        return self._fewer(now, replicas, ready, slots, busy + queued)

    def _more(self, replicas: int, ready: int, slots: int, busy: int, queued: int) -> int | None:
        """Those that are coming count: no more are called than all together need."""
        if busy:
            self._carries = min(busy, slots) / ready
        need = math.ceil((busy + queued) * ready / max(1, slots))
        coming = replicas > ready
        wanted = self.bounds.clamp(need if coming else max(need, replicas + 1))
        return wanted if wanted > replicas else None

    def _fewer(self, now: float, replicas: int, ready: int, slots: int, load: int) -> int | None:
        each = slots / ready if self._carries is None else min(self._carries, slots / ready)
        if ready <= self.bounds.minimum or load > SLACK * each * (ready - 1):
            self._enough_since = None
            return None
        if self._enough_since is None:
            self._enough_since = now
        return replicas - 1 if now - self._enough_since >= self.bounds.down_after_s else None


def tables_of(document: Document, model: str) -> list[int]:
    """The places of its [[serve]] tables: one, or one for each kind of node."""
    return [place for place, table in enumerate(document.get("serve", ())) if model_id(table["model"]) == model]


def bounds_of(document: Document) -> dict[str, Bounds]:
    """Of every model that skep starts."""
    found: dict[str, Bounds] = {}
    for model in dict.fromkeys(model_id(table["model"]) for table in document.get("serve", ())):
        tables = [document["serve"][place] for place in tables_of(document, model)]
        most = [table["replicas"] if table["on_demand"] else _most(table) for table in tables]
        found[model] = Bounds(
            sum(table["replicas"] for table in tables),
            sum(most),
            min(table["scale_up_wait_s"] for table in tables),
            max(table["scale_down_after_s"] for table in tables),
        )
    return found


def rescaled(document: Document, model: str, replicas: int) -> Iterator[Document]:
    """Settings in which the model has so many, the most wanted way first: where one does not fit, the next may."""
    places = tables_of(document, model)
    tables = [document["serve"][place] for place in places]
    if not tables:
        known = ", ".join(bounds_of(document))
        hint = f"known: {known}" if known else "its replicas are not started from here"
        raise UserError(f"there is no model `{model}` that skep starts here", hint=hint)
    if not 1 <= replicas <= MOST:
        away = "`skep down` takes" if document.get("cluster") else f"`skep unload {model}` and `skep down` take"
        hint = f"from 1 to {MOST}; {away} it away"
        raise UserError(f"`{model}` cannot have {replicas} replicas", hint=hint)
    caps = [table["max_replicas"] and _most(table) for table in tables]
    for counts in _splits([table["replicas"] for table in tables], caps, replicas):
        changed = {place: {**table, "replicas": n} for place, table, n in zip(places, tables, counts, strict=True)}
        yield {**document, "serve": [changed.get(place, table) for place, table in enumerate(document["serve"])]}


def divided_as(now: Document, document: Document, model: str) -> Document | None:
    """With as many replicas for each kind of node as there are now; None: these settings have other kinds."""
    old, places = ([*tables_of(one, model)] for one in (now, document))
    kinds = [now["serve"][place].get("kind") for place in old]
    if kinds != [document["serve"][place].get("kind") for place in places]:
        return None
    counts = {place: now["serve"][before]["replicas"] for place, before in zip(places, old, strict=True)}
    tables = [{**table, "replicas": counts.get(n, table["replicas"])} for n, table in enumerate(document["serve"])]
    return {**document, "serve": tables}


def _most(table: Mapping[str, Any]) -> int:
    return max(int(table["replicas"]), int(table["max_replicas"] or 0))


def _splits(have: Sequence[int], caps: Sequence[int | None], total: int) -> Iterator[tuple[int, ...]]:
    """`total` over tables that have so many now: what goes, goes from the last ones; what comes, to the first ones."""
    if total <= sum(have):
        before = itertools.accumulate(have, initial=0)
        yield tuple(max(0, min(count, total - sooner)) for count, sooner in zip(have, before, strict=False))
        return
    free = [math.inf if cap is None else cap - count for cap, count in zip(caps, have, strict=True)]
    more = total - sum(have)
    for extra in _handed_out(more, free if sum(free) >= more else [math.inf] * len(have)):
        yield tuple(count + n for count, n in zip(have, extra, strict=True))


def _handed_out(total: int, free: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """All ways, as much as possible to the first."""
    if len(free) == 1:
        if total <= free[0]:
            yield (total,)
        return
    for first in range(int(min(total, free[0])), -1, -1):
        for rest in _handed_out(total - first, free[1:]):
            yield (first, *rest)
