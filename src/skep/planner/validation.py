"""The planner's predictions against published measurements, row by row of a table.

Reads the rows; the fit of the constants is no part of it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from skep.catalog.engines import kind_of, measured_engines
from skep.catalog.gpus import MOST_CARDS, Device, find_device, rig_parts
from skep.catalog.models import find_geometry
from skep.errors import UserError
from skep.planner.memory import (
    kv_bytes_per_token,
    state_bytes,
    weights_bytes,
    window_bytes,
)
from skep.planner.predict import SpeedModel, prospect
from skep.planner.ranking import band
from skep.planner.setup import (
    CardLink,
    Layout,
    PlannedLoad,
    Rig,
    Setup,
    Speculation,
    find_kv,
    known_kv,
    known_quant,
    pace_setter,
    usual_link,
)
from skep.planner.step import TEXTS, UNTUNED, Constants, StepTuning, published_constants
from skep.units import GIB

METRICS = ("effective", "decode")
# tokens, where a row does not state them
_PROMPT = 128.0
_ANSWER = 512.0
_MOST = 10_000  # agents, tasks, slots
_LINK = re.compile(r"(nvlink|pcie) ([0-9.]+)( p2p)?")
_SPEC = re.compile(r"(mtp|ngram|draft|eagle|dflash):([1-9][0-9]?)")
_FEW = 8  # sequences: who has room for fewer raises the engine's share of the card
_FILLED = 0.96
# of what the prefix cache could have answered, where the pool is too small to keep it
_PUSHED_OUT = 0.5


class Unpredictable(Exception):
    """A row that cannot be predicted. The text begins with the missing fact: `bits: ...`."""


class PublishedCase(msgspec.Struct, frozen=True):
    """A measurement and its setup.

    `metric`: effective (tokens over wall time) or decode (agents x a stream's rate).
    """

    row: int
    source: str
    setup: Setup
    rig: Rig
    pool_tokens: float | None  # as the row states it
    load: PlannedLoad
    metric: str
    published: float

    @property
    def card(self) -> Device:
        return pace_setter(
            self.rig.cards[: self.setup.layout.cards_each], in_turn=self.setup.layout.tp == 1
        )


def source_of(url: str) -> str:
    """Return host plus owner/repository: pages of one repository count as one source."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    path = [piece for piece in parts.path.split("/") if piece]
    host = parts.netloc.lower().removeprefix("www.")
    if host in ("github.com", "huggingface.co", "gitlab.com", "raw.githubusercontent.com"):
        keep = 3 if path[:1] in (["datasets"], ["spaces"]) else 2
        return "/".join([host, *path[:keep]]).lower()
    return host or url


class _Row:
    """The cells of one row, as texts and as numbers."""

    def __init__(self, cells: Mapping[str, str]) -> None:
        self.cells = cells

    def text(self, name: str) -> str:
        return (self.cells.get(name) or "").strip()

    def number(self, name: str, limit: float = 1e9) -> float | None:
        """Return a number above 0 and up to the limit, None for an empty cell."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= limit:
            raise Unpredictable(
                f"{name}: `{text[:40]}` is not a number above 0 and up to {limit:g}"
            )
        return value

    def count(self, name: str, limit: int = _MOST) -> int | None:
        value = self.number(name, limit)
        if value is None:
            return None
        return max(1, int(value))

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices, the first where the cell is empty."""
        text = self.text(name) or choices[0]
        if text not in choices:
            raise Unpredictable(f"{name}: `{text[:40]}` is none of {', '.join(choices)}")
        return text


def read_case(number: int, cells: Mapping[str, str]) -> PublishedCase:
    """Return a row as a case. Raise Unpredictable for a fact that is missing or wrong."""
    row = _Row(cells)
    engine = row.one_of("engine", measured_engines())
    cards = _cards(row.text("gpu"))
    model = find_geometry(row.text("model"))
    quant = known_quant(row.text("quant"))
    if model is None:
        raise Unpredictable(f"model: `{row.text('model')}` is not in the catalogue")
    if quant is None:
        raise Unpredictable(f"quant: `{row.text('quant')}` is no format of weights")
    layout = _layout(row, len(cards))
    share = row.number("utilization", 1)
    pool = row.number("pool_tokens")
    kv = known_kv(row.text("kv") or "bf16") or find_kv("bf16")
    setup = Setup(
        model=model,
        quant=quant,
        kv=kv,
        engine=engine,
        layout=layout,
        slots=row.count("slots"),
        spec=_spec(row),
        vision=False,
        utilization=share,
        batched_tokens=row.count("batched_tokens", 1 << 20),
        graphs=row.text("graphs") != "eager",
        version=row.text("version") or None,
        shared_kv=row.text("shared_kv") == "unified",
    )
    link = _link(row, cards) if layout.tp > 1 else None
    published = row.number("tok_s")
    metric = row.one_of("metric", METRICS)
    if published is None:
        raise Unpredictable("tok_s: not stated")
    return PublishedCase(
        row=number,
        source=source_of(row.text("source_url")),
        setup=setup,
        rig=Rig(cards, link),
        pool_tokens=pool,
        load=_load(row),
        metric=metric,
        published=published,
    )


def _cards(text: str) -> tuple[Device, ...]:
    cards: list[Device] = []
    for name, count, _ in rig_parts(text):
        device = find_device(name)
        if device is None:
            raise Unpredictable(f"gpu: `{name[:40]}` is not in the catalogue")
        cards += [device] * min(count, MOST_CARDS + 1)
    if not 0 < len(cards) <= MOST_CARDS:
        raise Unpredictable(f"gpu: `{text[:40]}` is not 1 to {MOST_CARDS} cards")
    return tuple(cards)


def _layout(row: _Row, cards: int) -> Layout:
    pp = row.count("pp", MOST_CARDS) or 1
    replicas = row.count("replicas", MOST_CARDS) or 1
    tp = row.count("tp", MOST_CARDS) or max(1, cards // (pp * replicas))
    layout = Layout(tp, pp, row.count("ep", MOST_CARDS) or 1, replicas)
    if layout.cards > cards:
        raise Unpredictable(f"gpu: {layout} needs {layout.cards} cards")
    return layout


def _load(row: _Row) -> PlannedLoad:
    agents = row.count("concurrency")
    if agents is None:
        raise Unpredictable("concurrency: not stated")
    prompt = row.number("input_tokens", 1e7) or _PROMPT
    answer = row.number("output_tokens", 1e7) or _ANSWER
    return PlannedLoad(
        agents,
        prompt,
        answer,
        tasks=row.count("tasks"),
        shape=row.one_of("shape", ("steady", "burst")),
        rate_per_s=row.number("rate_per_s"),
        spread=row.number("spread", 1) or 0.0,
        cached_share=row.number("cached_share", 1) or 0.0,
    )


def _link(row: _Row, cards: Sequence[Device]) -> CardLink:
    text = row.text("link")
    if not text:
        return usual_link(cards)
    match = _LINK.fullmatch(text)
    if match is None or match[2].count(".") > 1 or not 0 < float(match[2]) < 1e4:
        raise Unpredictable(
            f"link: `{text[:40]}` is not as `pcie 15.75`, `pcie 15.75 p2p` or `nvlink 56.2` "
            "(GB/s one way)"
        )
    return CardLink(match[1], float(match[2]), p2p=match[3] is not None)


def _spec(row: _Row) -> Speculation | None:
    text = row.text("spec")
    if not text:
        return None
    match = _SPEC.fullmatch(text)
    if match is None:
        raise Unpredictable(f"spec: `{text[:40]}` is not as `mtp:3`")
    return Speculation(match[1], int(match[2]), text=row.one_of("text", ("mixed", *TEXTS)))


def speed_model(
    case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED
) -> SpeedModel:
    """Return what `skep plan` would compute with. Raise Unpredictable if the weights do not fit
    the cards.

    The row was measured, so one sequence fits whatever the arithmetic says; who has room for few
    raises the share.
    """
    setup = case.setup
    load = case.load
    card = case.card
    cards_each = case.setup.layout.cards_each
    weights = weights_bytes(setup.model, setup.quant, with_vision=False)
    if weights > 1.02 * card.memory_gib * GIB * cards_each:
        has = f"{cards_each} x {card.memory_gib:g} GiB"
        raise Unpredictable(
            f"memory: {weights / GIB:.0f} GiB of {setup.quant.title} weights do not fit {has}"
        )
    context = int(load.input_tokens + load.output_tokens)
    model = prospect(setup, case.rig, constants, context=context, tuning=tuning)
    if not kind_of(setup.engine).has_pool:
        pool = 2.0 * context * load.concurrency  # taken at the start, for every slot
    elif case.pool_tokens is not None:
        pool = case.pool_tokens
    else:
        pool = model.pool_tokens
        if pool < min(_FEW, load.concurrency) * context:
            kv = kv_bytes_per_token(setup) * context
            sequence = kv + window_bytes(setup, context, model.chunk_tokens)
            spare_bytes = (_FILLED * card.memory_gib * GIB * cards_each - weights) / cards_each
            pool = max(pool, spare_bytes / (sequence + state_bytes(setup)) * context)
    return replace(model, pool_tokens=max(1.1 * context, pool))


def predict(case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED) -> float:
    """Return the tokens a second in the row's own terms."""
    model = speed_model(case, constants, tuning)
    load = case.load
    task_tokens = load.input_tokens + load.output_tokens
    if load.cached_share and model.pool_tokens < 1.5 * load.concurrency * task_tokens:
        load = replace(load, cached_share=_PUSHED_OUT * load.cached_share)
    return model.figure(load, case.metric)


class ValidationPoint(msgspec.Struct, frozen=True):
    case: PublishedCase
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Absolute error as a fraction of the published value: 0.2 is 20 %."""
        return abs(self.predicted / self.case.published - 1.0)

    def document(self) -> dict[str, Any]:
        return {
            "row": self.case.row,
            "metric": self.case.metric,
            "published": self.case.published,
            "source": self.case.source,
            "predicted": round(self.predicted, 3),
            "low": round(self.low, 3),
            "high": round(self.high, 3),
        }


class Spread(msgspec.Struct, frozen=True):
    rows: int
    median_ape: float | None
    p90_ape: float | None


class ValidationReport(msgspec.Struct, frozen=True):
    rows: int
    points: tuple[ValidationPoint, ...]
    unpredicted: tuple[tuple[int, str], ...]

    @property
    def covered(self) -> float | None:
        """Share of the rows inside their band, which is meant to hold 80 %."""
        inside = [point.low <= point.case.published <= point.high for point in self.points]
        if inside:
            return sum(inside) / len(inside)
        return None

    def document(self) -> dict[str, Any]:
        """Return the report as JSON; errors are fractions."""
        groups = to_builtins(self.spreads())
        return {
            **groups.pop("all"),
            "rows": self.rows,
            "predicted": len(self.points),
            "covered_by_band": self.covered,
            "groups": groups,
            "sources": to_builtins(self.by_source()),
            "unpredicted": [{"row": row, "why": why} for row, why in self.unpredicted],
            "points": [point.document() for point in self.points],
        }

    def spreads(self) -> dict[str, Spread]:
        return _spreads([(point.case, point.error) for point in self.points])

    def by_source(self) -> dict[str, Spread]:
        sources = sorted({point.case.source for point in self.points})
        return {
            name: spread([p.error for p in self.points if p.case.source == name])
            for name in sources
        }


def read_rows(text: str, file: str) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV table, numbered as lines in an editor: the header is row 1."""
    reader = csv.DictReader(io.StringIO(text), restval="")
    try:
        rows = [
            (n, {k: v for k, v in row.items() if k and isinstance(v, str)})
            for n, row in enumerate(reader, 2)
        ]
    except csv.Error as broken:
        raise UserError(
            f"`{file}` is not a CSV table: {broken}", hint="give a CSV file with a header line"
        ) from None
    missing = {"gpu", "model", "quant", "concurrency", "tok_s"} - set(reader.fieldnames or ())
    if missing:
        hint = "docs/accuracy.md names the columns of such a table"
        raise UserError(f"`{file}` has no column {', '.join(sorted(missing))}", hint=hint)
    return rows


def validate(
    rows: Iterable[tuple[int, Mapping[str, str]]],
    *,
    tick: Callable[[int], None] = lambda _: None,
    constants_of: Callable[[str], Constants] = lambda _: published_constants(),
) -> ValidationReport:
    """Predict every row.

    `constants_of`: by the row's source, for those that are not to be fitted on it.
    """
    points: list[ValidationPoint] = []
    unpredicted: list[tuple[int, str]] = []
    for row, cells in rows:
        tick(len(points) + len(unpredicted))
        try:
            case = read_case(row, cells)
            points.append(predicted(case, constants_of(case.source)))
        except Unpredictable as missing:
            unpredicted.append((row, str(missing)))
    return ValidationReport(len(points) + len(unpredicted), tuple(points), tuple(unpredicted))


def predicted(
    case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED
) -> ValidationPoint:
    """Predict one case. Raise Unpredictable if the weights do not fit the cards."""
    value = predict(case, constants, tuning)
    around = band(case.setup, case.card, case.load.concurrency, calibrated=tuning is not UNTUNED)
    return ValidationPoint(case, value, value * around.low, value * around.high)


def spread(errors: Sequence[float]) -> Spread:
    if not errors:
        return Spread(0, None, None)
    if len(errors) > 1:
        p90 = quantiles(errors, n=10, method="inclusive")[8]
    else:
        p90 = errors[0]
    return Spread(len(errors), median(errors), p90)


def _spreads(errors: Sequence[tuple[PublishedCase, float]]) -> dict[str, Spread]:
    alone = [error for case, error in errors if case.load.concurrency == 1]
    several = [error for case, error in errors if case.load.concurrency > 1]
    return {"all": spread(alone + several), "C=1": spread(alone), "C>1": spread(several)}
