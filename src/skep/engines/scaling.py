"""Settings with another number of replicas of a model, as `skep scale` asks for. Knows no process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skep.catalog.names import model_id
from skep.errors import UserError

MOST = 1024  # replicas of a model
Document = Mapping[str, Any]  # settings, as `asdict` has them


def tables_of(document: Document, model: str) -> list[int]:
    """The places of its [[serve]] tables: one, or one for each kind of node."""
    return [place for place, table in enumerate(document.get("serve", ())) if model_id(table["model"]) == model]


def models_of(document: Document) -> tuple[str, ...]:
    """Every model that skep starts."""
    return tuple(dict.fromkeys(model_id(table["model"]) for table in document.get("serve", ())))


def rescaled(document: Document, model: str, replicas: int) -> Iterator[Document]:
    """Settings in which the model has so many, the most wanted way first: where one does not fit, the next may."""
    places = tables_of(document, model)
    tables = [document["serve"][place] for place in places]
    if not tables:
        known = ", ".join(models_of(document))
        hint = f"known: {known}" if known else "its replicas are not started from here"
        raise UserError(f"there is no model `{model}` that skep starts here", hint=hint)
    if not 1 <= replicas <= MOST:
        away = "`skep down` takes" if document.get("cluster") else f"`skep unload {model}` and `skep down` take"
        hint = f"from 1 to {MOST}; {away} it away"
        raise UserError(f"`{model}` cannot have {replicas} replicas", hint=hint)
    for counts in _splits([table["replicas"] for table in tables], replicas):
        changed = {place: {**table, "replicas": n} for place, table, n in zip(places, tables, counts, strict=True)}
        yield {**document, "serve": [changed.get(place, table) for place, table in enumerate(document["serve"])]}


def _splits(have: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """`total` over tables that have so many now: what goes, goes from the last ones; what comes, to the first ones."""
    if total <= sum(have):
        before = itertools.accumulate(have, initial=0)
        yield tuple(max(0, min(count, total - sooner)) for count, sooner in zip(have, before, strict=False))
        return
    for extra in _handed_out(total - sum(have), len(have)):
        yield tuple(count + n for count, n in zip(have, extra, strict=True))


def _handed_out(total: int, tables: int) -> Iterator[tuple[int, ...]]:
    """All ways, as much as possible to the first."""
    if tables == 1:
        yield (total,)
        return
    for first in range(total, -1, -1):
        for rest in _handed_out(total - first, tables - 1):
            yield (first, *rest)
