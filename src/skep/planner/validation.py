"""The planner's predictions against published measurements, row by row of a table, and against two simple formulas."""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from skep.catalog.gpus import Device, find_device
from skep.catalog.models import Geometry, find_geometry
from skep.errors import UserError
from skep.planner.memory import has_pool, kv_bytes_per_token, state_bytes, weights_bytes, window_bytes
from skep.planner.predict import SpeedModel, prospect
from skep.planner.ranking import band
from skep.planner.setup import (
    CardLink,
    Layout,
    PlannedLoad,
    Quant,
    Rig,
    Setup,
    Speculation,
    default_link,
    find_kv,
    find_quant,
    known_kv,
    known_quant,
    pace_setter,
    pcie_gbs,
)
from skep.planner.step import LLAMACPP, TEXTS, UNTUNED, Constants, StepTuning, published_constants
from skep.units import GIB

_PROMPT, _ANSWER = 128.0, 512.0  # tokens, where a row does not state them
_WORDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    files("skep.planner").joinpath("points.toml").read_text(encoding="utf-8")
)
_METRICS = {"effective": "effective", "stream": "decode", "engine": "decode"}  # a stream's rate, by client or engine
_AT_ONCE = {"sglang": (2048, 48)}  # bounded by memory alone, as far as people meet it; what it sets when it drafts
_FEW = 8  # sequences: who has room for fewer raises the engine's share of the card
_FILLED = 0.96
_PUSHED_OUT = 0.5  # of what the prefix cache could have answered, where the pool is too small to keep it


class Unpredictable(Exception):
    """A row that cannot be predicted. The text begins with the missing fact: `bits: ...`."""


class PublishedCase(msgspec.Struct, frozen=True):
    """A measurement and its setup. `metric`: effective (tokens over wall time) or decode (agents x a stream's rate)."""

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
        return pace_setter(self.rig.cards[: self.setup.layout.cards_each], in_turn=self.setup.layout.tp == 1)


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
        self.cells = {key: (value or "").strip() for key, value in cells.items() if key}
        self.notes = self.lower("notes")

    def text(self, name: str) -> str:
        return self.cells.get(name, "")

    def lower(self, name: str) -> str:
        return self.text(name).lower()

    def number(self, name: str) -> float | None:
        return _positive(self.text(name))

    def count(self, name: str, noted: str | None = None) -> int | None:
        """Return a small count (cards, replicas, slots), of the cell or else of the notes, or None."""
        value = self.number(name) or (_positive(self.noted(noted) or "") if noted else None)
        return int(value) if value is not None and 1 <= value <= 65536 else None

    def noted(self, name: str) -> str | None:
        return _found(_WORDS["noted"][name], self.notes)


def read_case(number: int, cells: Mapping[str, str]) -> PublishedCase:
    row = _Row(cells)
    if "diffusion" in row.lower("spec") or "dllm" in row.lower("model"):
        raise Unpredictable("model: block diffusion, not one token after the other")
    if "offload" in row.lower("gpu") + row.notes:
        raise Unpredictable("memory: part of the weights is kept in the CPU's memory")
    if (cards := row.count("n_gpu")) is None:
        raise Unpredictable(f"count: {row.text('n_gpu') or 'an unknown number of'} cards")
    name = row.lower("engine")
    if other := next((word for word in _WORDS["not_served"]["engines"] if word in name), None):
        raise Unpredictable(f"engine: skep does not serve with `{name}` ({other})")
    devices, model = _devices(row.text("gpu"), cards), _model(row)
    gguf = not name and ("gguf" in row.notes or re.search(r"\bq\d_", row.notes))
    engine = next((own for word, own in _WORDS["engine"].items() if word in name), "llamacpp" if gguf else "vllm")
    quant = _quant(row, engine, model)
    layout = _layout(row, cards, engine, model)
    load, slots = _load(row, devices[0])
    load = _as_it_ran(row, load)
    published, metric = _published(row, load)
    pool, share, chunk = (row.noted(name) for name in ("pool", "utilization", "chunk"))
    kv = re.split(r"[(/]", row.lower("kv_dtype"))[0].strip()
    if kv.startswith("turboquant"):
        kv = "turboquant_k8v4" if "k8" in kv else "turboquant_3bit"
    spec = _spec(row)
    if slots is None:
        slots = load.concurrency if engine in LLAMACPP else _AT_ONCE.get(engine, (None, None))[spec is not None]
    setup = Setup(
        model, quant, known_kv(kv) or find_kv("bf16"), engine, layout, slots=slots, spec=spec, vision=False,
        utilization=float(share) if share else None, batched_tokens=int(chunk) if chunk else None,
        graphs="enforce-eager" not in row.notes and "eager mode" not in row.notes,
        version=row.text("version") or None, shared_kv="unified" in row.notes,
    )  # fmt: skip
    link = _link(row.text("interconnect"), devices[0], layout.tp) if layout.tp > 1 else None
    rig = Rig(tuple(devices) if len(devices) >= layout.cards else (devices[0],) * layout.cards, link)
    held = float(pool.replace(",", "")) if pool else None
    return PublishedCase(number, source_of(row.text("source_url")), setup, rig, held, load, metric, published)


def _devices(name: str, cards: int) -> list[Device]:
    if not name:
        raise Unpredictable("gpu: not stated")
    found: list[Device] = []
    prefix = ""
    for words in re.sub(r"\(.*?\)", "", name).split("+"):
        times = re.search(r"\bx(\d+)$", words.strip())
        piece = re.sub(r"\s*\bx\d+$", "", words.strip()).strip()
        device = find_device(piece) or find_device(f"{prefix} {piece}") or find_device(name)
        if device is None:
            raise Unpredictable(f"gpu: `{piece}` is not in the catalogue")
        prefix = prefix or piece.split(" ")[0]
        found.extend([device] * (int(times[1]) if times else 1))
    return found if len(found) > 1 else found * cards


def _model(row: _Row) -> Geometry:
    name = row.text("model")
    if name and (found := find_geometry(name)) is not None:
        return found
    raise Unpredictable(f"model: `{name or '?'}` is not in the catalogue")


def _quant(row: _Row, engine: str, model: Geometry) -> Quant:
    """By its name, which tells the bits of each part of the model; else by the bits of most of it."""
    if (named := known_quant(row.text("format"))) is not None:
        return named
    bits = row.number("quant_bits")
    if bits is None:
        raise Unpredictable("bits: the quantization is not stated")
    if model.native_bits and bits <= 5:
        return find_quant("gguf_mxfp4" if engine in LLAMACPP else "mxfp4")
    by_bits, whole = ("gguf_bits", "f16") if engine in LLAMACPP else ("quant_bits", "bf16")
    return find_quant(_WORDS[by_bits].get(str(int(bits)), whole))


def _layout(row: _Row, cards: int, engine: str, model: Geometry) -> Layout:
    tp, replicas = row.count("tp"), row.count("replicas") or 1
    local = engine in LLAMACPP
    split = local and cards > 1 and (tp is None or (tp == 1 and "tensor" not in row.notes))
    if tp is None:
        tp = 1 if local else max(1, cards // replicas)
    elif local and tp > 1:
        tp = cards
    ep = tp if row.text("ep") not in ("", "0") and model.is_moe else 1
    pp = cards if split else min(cards, int(row.noted("pipeline") or 1))
    return Layout(tp=tp, pp=max(1, pp), ep=ep, replicas=replicas)


def _load(row: _Row, card: Device) -> tuple[PlannedLoad, int | None]:
    notes = row.notes
    prompt, answer = row.number("input_len") or _PROMPT, row.number("output_len") or _ANSWER
    slots = row.count("max_num_seqs", noted="slots")
    stated = row.lower("concurrency") or row.noted("all_at_once") or ""
    chat = 1.0 if "sharegpt" in notes else 0.0
    if stated.startswith("offline"):
        slots = slots or int(row.noted("offline_slots") or 256)
        fewer = re.search(r"\((\d+) for ([\w./-]+) on (\d+)gb cards\)", notes)
        here = fewer is not None and card.memory_gib == float(fewer[3])
        if fewer and here and any(part in row.lower("model") for part in fewer[2].split("/")):
            slots = int(fewer[1])
        return PlannedLoad(4 * slots, prompt, answer, shape="burst"), slots
    rate = _found(r"rate ([\d.]+)", stated)
    if rate:
        return PlannedLoad(200, prompt, answer, tasks=200, rate_per_s=float(rate), spread=chat), slots
    agents = _positive(stated)
    if agents is None or not 1 <= agents <= 1e6:
        raise Unpredictable(f"concurrency: {'not stated' if agents is None else stated}")
    at_once = "at once" in notes and agents >= 200
    burst = at_once or any(word in notes for word in ("llama-benchy", "swarm", "agent shape"))
    spread = chat if at_once else 0.5 if "swarm" in notes else 0.0
    cached = 0.75 if "prefix-cache hits" in notes else 0.0
    shape = "burst" if burst else "steady"
    return PlannedLoad(int(agents), prompt, answer, shape=shape, spread=spread, cached_share=cached), slots


def _as_it_ran(row: _Row, load: PlannedLoad) -> PlannedLoad:
    """With as many streams as speed and time per token say (Little's law), where those that are stated are the peak."""
    aggregate, tpot, first = (row.number(name) for name in ("agg_tok_s", "tpot_ms", "ttft_ms"))
    if load.shape != "steady" or load.rate_per_s or not (aggregate and tpot and first):
        return load
    running = aggregate * (tpot + first / load.output_tokens) / 1000
    return replace(load, concurrency=max(1, round(running))) if running < load.concurrency / 2 else load


def _published(row: _Row, load: PlannedLoad) -> tuple[float, str]:
    """Return the tokens a second over all agents, and the metric: `effective` if prompts are part of the time."""
    aggregate, stream, tpot = (row.number(name) for name in ("agg_tok_s", "stream_tok_s", "tpot_ms"))
    c = load.concurrency
    if aggregate:
        times = stream is not None and abs(aggregate - stream * c) <= 0.03 * aggregate
        return aggregate, _METRICS.get(row.lower("metric"), "decode" if times else "effective")
    alone = stream or (tpot and 1000.0 / tpot)
    if not alone or load.rate_per_s is not None or row.lower("concurrency").startswith("offline"):
        raise Unpredictable("measurement: no aggregate tok/s, and no time per token of a known number of agents")
    return alone * c, "decode"


def _link(text: str, card: Device, tp: int) -> CardLink:
    lower = text.lower()
    if "nvlink" in lower and "no nvlink" not in lower and "removed" not in lower:
        server = "sxm" in lower or (card.nvlink_gbs or 0) > 100
        if server or tp <= 2:
            return CardLink("nvlink", card.nvlink_gbs or (300.0 if server else 50.0), title="NVLink")
    no_p2p = any(words in lower for words in ("no p2p", "p2p disabled", "no nvlink"))
    geforce = card.vendor == "nvidia" and re.match(r"rtx-\d{4}", card.id) is not None
    p2p = not no_p2p and ("p2p" in lower or not geforce)
    slot = card.pcie or "4.0 x16"
    lanes = [int(n) for n in re.findall(r"x(\d+)", lower)]
    generation = _found(r"pcie ?(\d)", lower)
    if not lanes and not generation:
        built_in = default_link(card)
        return built_in if built_in.kind == "nvlink" else CardLink("pcie", pcie_gbs(slot), p2p=p2p, title="PCIe")
    speed = f"{generation}.0" if generation else slot.split(" ")[0]
    return CardLink("pcie", pcie_gbs(f"{speed} x{min(lanes, default=16)}"), p2p=p2p, title=text)


def _spec(row: _Row) -> Speculation | None:
    said = row.lower("spec")
    if not said:
        return None
    method, default = next((found for word, found in _WORDS["spec"].items() if word in said), ("mtp", 2))
    depth = row.noted("drafts") or _found(r"(?:k|n|n-max)=(\d+)", said)
    text = row.lower("text")
    return Speculation(method, min(16, int(depth or default)), text=text if text in TEXTS else "mixed")


def _found(pattern: str, text: str) -> str | None:
    """Return the first group of a pattern's first match."""
    found = re.search(pattern, text)
    return found[1] if found else None


def _positive(text: str) -> float | None:
    """Return a number above zero, or None."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if 0 < value < 1e9 else None


def speed_model(case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED) -> SpeedModel:
    """As `skep plan` would have it. Raise Unpredictable if the weights do not fit the cards.

    The row was measured, so one sequence fits whatever the arithmetic says; who has room for few raises the share.
    """
    setup, load, card, each = case.setup, case.load, case.card, case.setup.layout.cards_each
    weights = weights_bytes(setup.model, setup.quant, with_vision=False)
    if weights > 1.02 * card.memory_gib * GIB * each:
        has = f"{each} x {card.memory_gib:g} GiB"
        raise Unpredictable(f"memory: {weights / GIB:.0f} GiB of {setup.quant.title} weights do not fit {has}")
    context = int(load.input_tokens + load.output_tokens)
    found = prospect(setup, case.rig, constants, context=context, tuning=tuning)
    pool = found.pool_tokens if case.pool_tokens is None else case.pool_tokens
    if not has_pool(setup.engine):
        pool = 2.0 * context * load.concurrency  # taken at the start, for every slot
    elif case.pool_tokens is None and pool < min(_FEW, load.concurrency) * context:
        sequence = kv_bytes_per_token(setup) * context + window_bytes(setup, context, found.chunk_tokens)
        left = (_FILLED * card.memory_gib * GIB * each - weights) / each
        pool = max(pool, left / (sequence + state_bytes(setup)) * context)
    return replace(found, pool_tokens=max(1.1 * context, pool))


def predict(case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED) -> float:
    """Tokens a second in the row's own terms."""
    found, load = speed_model(case, constants, tuning), case.load
    if load.cached_share and found.pool_tokens < 1.5 * load.concurrency * (load.input_tokens + load.output_tokens):
        load = replace(load, cached_share=_PUSHED_OUT * load.cached_share)
    return found.figure(load, case.metric)


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
        told = {name: getattr(self.case, name) for name in ("row", "metric", "published", "source")}
        return told | {name: round(getattr(self, name), 3) for name in ("predicted", "low", "high")}


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
        return sum(inside) / len(inside) if inside else None

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
        return {name: spread([p.error for p in self.points if p.case.source == name]) for name in sources}


def read_rows(text: str, file: str) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV table, numbered as lines in an editor: the header is row 1."""
    reader = csv.DictReader(io.StringIO(text), restval="")
    try:
        rows = [(n, {k: v for k, v in row.items() if k and isinstance(v, str)}) for n, row in enumerate(reader, 2)]
    except csv.Error as broken:
        raise UserError(f"`{file}` is not a CSV table: {broken}", hint="give a CSV file with a header line") from None
    missing = {"gpu", "model", "concurrency"} - set(reader.fieldnames or ())
    if missing:
        hint = "docs/accuracy.md names the columns of such a table"
        raise UserError(f"`{file}` has no column {', '.join(sorted(missing))}", hint=hint)
    return rows


def validate(
    rows: Iterable[tuple[int, Mapping[str, str]]], *, tick: Callable[[int], None] = lambda _: None,
    constants_of: Callable[[str], Constants] = lambda _: published_constants(),
) -> ValidationReport:  # fmt: skip
    """Predict every row. `constants_of`: by the row's source, for those that are not to be fitted on it."""
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


def predicted(case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED) -> ValidationPoint:
    """Predict one case. Raise Unpredictable if the weights do not fit the cards."""
    value = predict(case, constants, tuning)
    around = band(case.setup, case.card, case.load.concurrency, calibrated=tuning is not UNTUNED)
    return ValidationPoint(case, value, value * around.low, value * around.high)


def spread(errors: Sequence[float]) -> Spread:
    if not errors:
        return Spread(0, None, None)
    p90 = quantiles(errors, n=10, method="inclusive")[8] if len(errors) > 1 else errors[0]
    return Spread(len(errors), median(errors), p90)


def _spreads(errors: Sequence[tuple[PublishedCase, float]]) -> dict[str, Spread]:
    alone = [error for case, error in errors if case.load.concurrency == 1]
    several = [error for case, error in errors if case.load.concurrency > 1]
    return {"all": spread(alone + several), "C=1": spread(alone), "C>1": spread(several)}
