"""What others measured with a model on cards: the rows of `published.tsv`, and whether one is of a
given setup. What they could not start with drafts: `draft_failures.tsv`.

`scripts/write_published.py` writes both from the published points and the shipped presets.
Predicts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of, pooled_engines
from skep.catalog.gpus import Device
from skep.planner.setup import (
    QUANTS,
    Layout,
    PlannedLoad,
    Quant,
    Rig,
    Setup,
    Speculation,
    group_link,
)

# tokens of a row that states none: a stream's own rate hardly depends on them
USUAL_INPUT = 128
USUAL_OUTPUT = 512


class PublishedRow(msgspec.Struct, frozen=True):
    """One line of the table. None: the source does not say, or there are none."""

    model: str
    cards: str
    link: str | None  # nvlink or pcie, of cards that work on one layer together
    layout: str  # 2 x TP=1
    drafts: str | None  # mtp:3
    engine: str
    graphs: str | None  # eager: they are off
    quant: str | None
    concurrency: int
    input_tokens: int | None
    output_tokens: int | None
    shape: str
    spread: float
    metric: str  # effective: over wall time; decode: agents x the speed of a stream once it runs
    tok_s: float
    source: str

    @property
    def spec(self) -> Speculation | None:
        method, _, depth = (self.drafts or "").partition(":")
        if method:
            return Speculation(method, int(depth))
        return None

    @property
    def way(self) -> str:
        """Return layout, drafts and engine in the words of `way_of`."""
        return _way(self.layout, self.spec, self.engine, graphs=self.graphs is None)

    @property
    def has_lengths(self) -> bool:
        """Whether it says enough to be compared: a stream's own rate hardly depends on lengths,
        all others do.
        """
        return self.metric == "decode" or None not in (self.input_tokens, self.output_tokens)

    @property
    def load(self) -> PlannedLoad:
        prompt = self.input_tokens or USUAL_INPUT
        answer = self.output_tokens or USUAL_OUTPUT
        return PlannedLoad(self.concurrency, prompt, answer, shape=self.shape, spread=self.spread)

    def is_in_format(self, quant: Quant) -> bool:
        """Return whether its weights have this format, or one that the same kernels read: AWQ and
        GPTQ are both INT4.
        """
        return self.quant is not None and same_format(QUANTS[self.quant], quant)

    def is_of(self, setup: Setup) -> bool:
        """Return whether format and drafts are the setup's too, beside its layout."""
        return self.is_in_format(setup.quant) and str(self.spec) == str(setup.spec)


def same_format(first: Quant, quant: Quant) -> bool:
    return (first.family, first.nominal) == (quant.family, quant.nominal)


def way_of(layout: Layout, spec: Speculation | None, engine: str, *, graphs: bool = True) -> str:
    """Return a layout, drafts and engine in words: `2 x TP=1, mtp n=3 (vllm)`, and `eager` where
    graphs are off.
    """
    return _way(str(layout), spec, engine, graphs=graphs)


def _way(layout: str, spec: Speculation | None, engine: str, *, graphs: bool) -> str:
    parts = [layout]
    if spec:
        parts.append(str(spec))
    if not graphs:
        parts.append("eager")
    return f"{', '.join(parts)} ({engine})"


def cards_title(cards: Sequence[Device]) -> str:
    """Return cards as published tables name them: `2x rtx-3090`."""
    counted = Counter(card.id for card in cards)
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counted.items())


def rows_of_layout(setup: Setup, rig: Rig) -> tuple[PublishedRow, ...]:
    """Return the rows of its model, engine, layout, cards in use and link, in any format and with
    any drafts.
    """
    layout = setup.layout
    graphs = None if setup.graphs else "eager"
    alike = (str(layout), setup.engine, graphs)
    rows = [
        row
        for row in published_rows(setup.model.id)
        if (row.layout, row.engine, row.graphs) == alike
    ]
    if not rows:
        return ()
    used = range(min(layout.cards_each, len(rig.cards)))
    link = group_link(rig, used) if layout.cards_each > 1 else None
    kind = link.kind if link is not None else None
    cards = cards_title(rig.cards[: layout.cards])
    return tuple(row for row in rows if row.cards == cards and row.link in (None, kind))


def is_measured(setup: Setup, rig: Rig) -> bool:
    """Return whether anybody has published a figure of this layout, or of one replica of it, on
    such cards.
    """
    one_replica = replace(setup, layout=replace(setup.layout, replicas=1))
    return any(
        row.is_of(setup)
        for row in (*rows_of_layout(setup, rig), *rows_of_layout(one_replica, rig))
    )


class DraftFailure(msgspec.Struct, frozen=True):
    """That somebody could not start a model with draft tokens, and why; `source` names who."""

    model: str
    cards: str
    engine: str
    why: str
    source: str


def draft_failure(setup: Setup, rig: Rig) -> DraftFailure | None:
    """Return the failure that is known for this model on such cards, with or without drafts in the
    setup.

    What stops one engine that keeps a pool stops the other one: they load the same draft layers.
    """
    return known_draft_failure(setup.model.id, rig.cards[: setup.layout.cards], setup.engine)


def known_draft_failure(model: str, cards: Sequence[Device], engine: str) -> DraftFailure | None:
    engines = pooled_engines() if kind_of(engine).has_pool else (engine,)
    failures = (
        draft_failure
        for draft_failure in _draft_failures()
        if (draft_failure.model, draft_failure.cards) == (model, cards_title(cards))
    )
    return next((failure for failure in failures if failure.engine in engines), None)


@lru_cache(maxsize=1)
def _draft_failures() -> tuple[DraftFailure, ...]:
    text = files("skep.planner").joinpath("draft_failures.tsv").read_text(encoding="utf-8")
    return tuple(DraftFailure(*line.split("\t")) for line in text.splitlines()[1:])


@lru_cache(maxsize=32)
def published_rows(model: str) -> tuple[PublishedRow, ...]:
    """Return the rows of a model, in the table's order."""
    text = files("skep.planner").joinpath("published.tsv").read_text(encoding="utf-8")
    head, *lines = text.splitlines()
    names = head.split("\t")
    mine = (line.split("\t") for line in lines if line.startswith(f"{model}\t"))
    rows = (
        {name: cell for name, cell in zip(names, cells, strict=True) if cell} for cells in mine
    )
    optional = dict.fromkeys(
        ("link", "drafts", "graphs", "quant", "input_tokens", "output_tokens")
    )
    return tuple(msgspec.convert({**optional, **row}, PublishedRow, strict=False) for row in rows)
