"""What was measured of the model that is planned: the levels of stored runs, on the same cards or elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skep.bench.records import LevelSummary
from skep.bench.stored_run import JUDGED, OF_A_TUNING, TIMED
from skep.catalog.gpus import find_device
from skep.catalog.models import find_geometry
from skep.errors import SkepError
from skep.planner.rigs import find_rig
from skep.store.database import Store
from skep.store.records import RunState, StoredRun
from skep.web.run_cache import RunCache, engine_of, is_near, layout_of, machine_of

Facts = Mapping[str, Any]
MOST_DRAWN, MOST_TOLD = 3, 12
_SAME_LOAD = 0.25  # as a share


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    concurrency: int
    effective_tok_s: float
    low: float | None  # 95 % of the mean, where runs were repeated
    high: float | None
    ttft_ms: float | None
    client_limited: bool


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One stored run of the model. `same_rig`: on cards of the kind and number that are planned."""

    run_id: str
    created_at: float
    machine: str
    engine: str
    layout: str
    simulated: bool
    same_rig: bool
    points: tuple[MeasuredPoint, ...]
    input_tokens: int | None = None  # of a request, on the average: a plan is for a load, and the run had its own
    output_tokens: int | None = None

    @property
    def best(self) -> MeasuredPoint:
        return max(self.points, key=lambda point: point.effective_tok_s)

    @property
    def alone_ttft_ms(self) -> float | None:
        return next((point.ttft_ms for point in self.points if point.concurrency == 1), None)

    def has_other_load(self, input_tokens: int, output_tokens: int) -> bool:
        """A curve for other prompts and answers than those of the run says little about it."""
        if self.input_tokens is None or self.output_tokens is None:
            return False
        shares = (self.input_tokens / input_tokens, self.output_tokens / output_tokens)
        return any(abs(share - 1) > _SAME_LOAD for share in shares)


def measured_of(
    store: Store, book: RunCache, model: str, cards: Sequence[str], host: Facts | None = None, *, public: bool = False
) -> list[MeasuredRun]:
    """Of this model; on the same cards first, measured before simulated, then newest first.

    `host` are the facts of this machine, where it is this machine that is planned for.
    """
    known = [run for run in book.runs(store) if _takes(run, model)]
    told = sorted(known, key=lambda run: (not _same(run, cards, host), run.simulated, -run.created_at))[:MOST_TOLD]
    found = []
    for run in told:
        levels = book.levels(store, run)
        points = _points(levels)
        if points:
            found.append(
                MeasuredRun(run.id, run.created_at, machine_of(run, public=public), engine_of(run), layout_of(run),
                         run.simulated, _same(run, cards, host), points,
                         _mean(levels, "prompt_tokens"), _mean(levels, "output_tokens_each"))
            )  # fmt: skip
    return found


def _takes(run: StoredRun, model: str) -> bool:
    if run.kind in (*JUDGED, *TIMED, *OF_A_TUNING) or run.state is not RunState.DONE:
        return False
    found = find_geometry(run.model)
    return found is not None and found.id == model


def _same(run: StoredRun, cards: Sequence[str], host: Facts | None) -> bool:
    if host is not None:
        return not run.simulated and is_near(run.url) and _likeness(run.host) == _likeness(host)
    return bool(cards) and Counter(cards_of(run)) == Counter(cards)


def cards_of(run: StoredRun) -> tuple[str, ...]:
    """The catalogue's names of the cards it ran on; none where they are not known."""
    if run.simulated:
        try:
            return tuple(card.id for card in find_rig(machine_of(run), None).rig.cards)
        except SkepError:
            return ()
    return _host_cards(run.host) if is_near(run.url) else ()


def _likeness(host: Facts) -> tuple[object, ...]:
    names = sorted(str(card.get("name", "")) for card in host.get("gpus") or () if isinstance(card, Mapping))
    return host.get("cpu_model"), host.get("cpu_cores"), *names


def _host_cards(host: Facts) -> tuple[str, ...]:
    names = [str(card.get("name", "")) for card in host.get("gpus") or () if isinstance(card, Mapping)]
    found = [find_device(name) for name in names]
    return tuple(card.id for card in found if card is not None) if all(found) else ()


def _mean(levels: Sequence[LevelSummary], name: str) -> int | None:
    """Over the levels; None where no answer told."""
    told = [value for level in levels if (value := getattr(level, name)) is not None]
    return max(1, round(sum(told) / len(told))) if told else None


def _points(levels: Sequence[LevelSummary]) -> tuple[MeasuredPoint, ...]:
    return tuple(
        MeasuredPoint(
            level.concurrency,
            level.effective_tok_s,
            level.effective_interval.low if level.effective_interval else None,
            level.effective_interval.high if level.effective_interval else None,
            level.ttft_ms.p50 if level.ttft_ms else None,
            level.client_limited,
        )
        for level in levels
        if level.effective_tok_s is not None
    )
