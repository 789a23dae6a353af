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
from skep.catalog.models import Geometry, find_geometry, geometry_from_parameters
from skep.errors import UserError
from skep.planner.constants import Constants, honest_constants
from skep.planner.fit import pool_tokens_as_reported
from skep.planner.memory import defaults, kv_bytes_per_token, memory, state_bytes, weights_bytes, window_bytes
from skep.planner.predict import PredictedOutcome, simulate_load
from skep.planner.quants import Quant, find_kv, find_quant, known_kv, known_quant, part_bits, parts_of
from skep.planner.ranking import band
from skep.planner.rigs import default_link, pace_setter, pcie_gbs
from skep.planner.setup import CardLink, Layout, PlannedLoad, Setup, Speculation
from skep.planner.step import LLAMACPP, UNTUNED, StepTuning, step_model
from skep.units import GIB

_PROMPT, _ANSWER = 128.0, 512.0  # tokens, where a row does not state them
_WORDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    files("skep.planner").joinpath("points.toml").read_text(encoding="utf-8")
)
_AT_ONCE = {"sglang": 2048, "trtllm": 2048}  # bounded by memory alone, as far as people meet it
_AT_ONCE_DRAFTING = {"sglang": 48}  # set by SGLang itself as soon as it speculates
_FEW = 8  # sequences: who has room for fewer raises the engine's share of the card
_FILLED = 0.96
_PUSHED_OUT = 0.2  # of what the prefix cache could have answered, where the pool is too small to keep it


class Unpredictable(Exception):
    """A row that cannot be predicted. The text begins with the missing fact: `bits: ...`."""


class PublishedCase(msgspec.Struct, frozen=True):
    """A measurement and its setup. `metric`: effective (tokens over wall time) or decode (agents x task speed)."""

    row: int
    source: str
    setup: Setup
    card: Device
    link: CardLink | None
    split: bool
    pool_tokens: float | None
    weight_only: bool
    load: PlannedLoad
    metric: str
    published: float


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
    count = row.number("n_gpu")
    if count is None or not 1 <= count <= 4096:
        stated = "the number of cards is not stated" if count is None else f"{row.text('n_gpu')} cards"
        raise Unpredictable(f"count: {stated}")
    cards, name = int(count), row.lower("engine")
    devices, model = _devices(row.text("gpu"), cards), _model(row)
    gguf = not name and ("gguf" in row.notes or re.search(r"\bq\d_", row.notes))
    engine = next((own for word, own in _WORDS["engine"].items() if word in name), "llamacpp" if gguf else "vllm")
    quant = _quant(row, engine, model)
    split, layout = _layout(row, cards, engine, model)
    card = pace_setter(devices, in_turn=split)
    load, slots = _load(row, card)
    published, metric = _published(row, load)
    pool, share, chunk = (row.noted(name) for name in ("pool", "utilization", "chunk"))
    kv = re.split(r"[(/]", row.lower("kv_dtype"))[0].strip()
    if kv.startswith("turboquant"):
        kv = "turboquant_k8v4" if "k8" in kv else "turboquant_3bit"
    if slots is None and engine == "llamacpp":
        slots = load.concurrency
    setup = Setup(
        model, quant, known_kv(kv) or find_kv("bf16"), engine, layout, slots=slots, spec=_spec(row),
        utilization=float(share) if share else None, batched_tokens=int(chunk) if chunk else None,
        graphs="enforce-eager" not in row.notes and "eager mode" not in row.notes,
    )  # fmt: skip
    link = _link(row.text("interconnect"), card, layout.tp) if layout.tp > 1 else None
    held = float(pool.replace(",", "")) if pool else None
    source, weight_only = source_of(row.text("source_url")), "marlin" in row.notes
    return PublishedCase(number, source, setup, card, link, split, held, weight_only, load, metric, published)


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
    total, active = row.number("params_total_b"), row.number("params_active_b")
    if active is None and (named := _found(r"a(\d+(?:\.\d+)?)b", name.lower())):
        active = float(named)
    if total is None or active is None:
        which = "total" if total is None else "active"
        raise Unpredictable(f"model: `{name or '?'}` is not in the catalogue; its {which} parameters are not stated")
    try:
        return geometry_from_parameters(name or f"{total:g}B", total, active)
    except UserError as impossible:
        raise Unpredictable(f"model: {impossible.message}") from None


def _quant(row: _Row, engine: str, model: Geometry) -> Quant:
    bits = row.number("quant_bits")
    if bits is None:
        raise Unpredictable("bits: the quantization is not stated")
    native = model.native_bits and bits <= 5
    if engine in LLAMACPP:
        named = row.noted("gguf")
        by_bits = "gguf_mxfp4" if native else _WORDS["gguf_bits"].get(str(int(bits)), "f16")
        return (known_quant(named) if named else None) or find_quant(by_bits)
    if native:
        return find_quant("mxfp4")
    noted = (find_quant(name) for word, name in _WORDS["quant"].items() if word in row.notes)
    matching = next((quant for quant in noted if quant.nominal == int(bits)), None)
    return matching or find_quant(_WORDS["quant_bits"].get(str(int(bits)), "bf16"))


def _layout(row: _Row, cards: int, engine: str, model: Geometry) -> tuple[bool, Layout]:
    tp, replicas = row.count("tp"), row.count("replicas") or 1
    local = engine in LLAMACPP
    split = local and cards > 1 and (tp is None or (tp == 1 and "tensor" not in row.notes))
    if tp is None:
        tp = 1 if local else max(1, cards // replicas)
    elif local and tp > 1:
        tp = cards
    ep = tp if row.text("ep") not in ("", "0") and model.is_moe else 1
    pp = cards if split else min(cards, int(row.noted("pipeline") or 1))
    return split, Layout(tp=tp, pp=max(1, pp), ep=ep, replicas=replicas)


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


def _published(row: _Row, load: PlannedLoad) -> tuple[float, str]:
    """Return the tokens a second over all agents, and the metric: `effective` if prompts are part of the time."""
    aggregate, stream, tpot = (row.number(name) for name in ("agg_tok_s", "stream_tok_s", "tpot_ms"))
    c = load.concurrency
    if aggregate:
        decode = stream is not None and abs(aggregate - stream * c) <= 0.03 * aggregate
        return aggregate, "decode" if decode else "effective"
    if load.rate_per_s is not None or row.lower("concurrency").startswith("offline"):
        raise Unpredictable("measurement: no aggregate tok/s")
    if stream or tpot:
        return stream * c if stream else c * 1000.0 / (tpot or 1.0), "decode"
    raise Unpredictable("measurement: the row has no tok/s and no time per token")


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
    return Speculation(method, min(16, int(depth or default)))


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


def case_pool_tokens(case: PublishedCase) -> float:
    """Tokens of KV beside the weights. The row was measured, so one sequence fits whatever the arithmetic says."""
    setup, load, card = case.setup, case.load, case.card
    context, each = int(load.input_tokens + load.output_tokens), setup.layout.cards_each
    weights = weights_bytes(setup.model, setup.quant, with_vision=False)
    if weights > 1.02 * card.memory_gib * GIB * each:
        has = f"{each} x {card.memory_gib:g} GiB"
        raise Unpredictable(f"memory: {weights / GIB:.0f} GiB of {setup.quant.title} weights do not fit {has}")
    if setup.engine in LLAMACPP:
        return float(context) * load.concurrency * 2  # taken at the start, for every slot
    plan = memory(setup, card, context=context, vision=False)
    chunk = setup.batched_tokens or defaults(setup.engine, card).batched_tokens
    sequence = kv_bytes_per_token(setup) * context + (window_bytes(setup, context, chunk) + state_bytes(setup))
    held = plan.pool_bytes / sequence * context if sequence else float("inf")
    if case.pool_tokens is not None:
        reported = pool_tokens_as_reported(setup, plan)
        held = case.pool_tokens * (held / reported if setup.model.sliding_layers and reported else 1.0)
    if held < _FEW * context and held < load.concurrency * context:
        held = max(held, (_FILLED * card.memory_gib * GIB * each - weights) / each / sequence * context)
    return max(1.1 * context, held)


def predict(case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED) -> PredictedOutcome:
    setup, load, link = case.setup, case.load, case.link
    step = step_model(setup, case.card, link, constants, split=case.split, tuning=tuning, weight_only=case.weight_only)
    usual, pool = defaults(setup.engine, case.card), case_pool_tokens(case)
    if load.cached_share and pool < 1.5 * load.concurrency * (load.input_tokens + load.output_tokens):
        load = replace(load, cached_share=_PUSHED_OUT * load.cached_share)
    drafting = _AT_ONCE_DRAFTING.get(setup.engine) if setup.spec is not None else None
    slots = setup.slots or drafting or _AT_ONCE.get(setup.engine, usual.slots)
    chunk = setup.batched_tokens or usual.batched_tokens
    return simulate_load(step, load, slots=slots, pool_tokens=pool, chunk_tokens=chunk, replicas=setup.layout.replicas)


def value_of(case: PublishedCase, outcome: PredictedOutcome, constants: Constants) -> float:
    """In the row's own terms."""
    if case.metric == "decode":
        return outcome.task_tok_s * case.load.concurrency
    return outcome.effective_tok_s * (constants.run_tail if case.load.concurrency > 1 else 1.0)


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
            "baselines": to_builtins(self.baselines()),
            "unpredicted": [{"row": row, "why": why} for row, why in self.unpredicted],
            "points": [point.document() for point in self.points],
        }

    def spreads(self) -> dict[str, Spread]:
        return _spreads([(point.case, point.error) for point in self.points])

    def by_source(self) -> dict[str, Spread]:
        sources = sorted({point.case.source for point in self.points})
        return {name: spread([p.error for p in self.points if p.case.source == name]) for name in sources}

    def baselines(self) -> dict[str, dict[str, Spread]]:
        cases = [point.case for point in self.points]
        return {
            name: _spreads([(case, abs(formula(case) / case.published - 1.0)) for case in cases])
            for name, formula in BASELINES.items()
        }


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
    rows: Iterable[tuple[int, Mapping[str, str]]], *, tick: Callable[[int], None] = lambda _: None
) -> ValidationReport:
    """Predict every row with constants that were never fitted on its source."""
    points: list[ValidationPoint] = []
    unpredicted: list[tuple[int, str]] = []
    for row, cells in rows:
        tick(len(points) + len(unpredicted))
        try:
            points.append(predicted(read_case(row, cells)))
        except Unpredictable as missing:
            unpredicted.append((row, str(missing)))
    return ValidationReport(len(points) + len(unpredicted), tuple(points), tuple(unpredicted))


def predicted(case: PublishedCase, tuning: StepTuning = UNTUNED) -> ValidationPoint:
    """Predict one case. Raise Unpredictable if the weights do not fit the cards."""
    constants = honest_constants(case.source)
    value = value_of(case, predict(case, constants, tuning), constants)
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


def _bandwidth(case: PublishedCase) -> float:
    """Return what calculators on the web say: bandwidth over the model's size, times a constant, for each agent."""
    size = case.setup.model.params_total * case.setup.quant.nominal / 8
    return 0.55 * case.card.bandwidth_gbs * 1e9 * case.setup.layout.tp / size * _agents(case)


def _roofline(case: PublishedCase) -> float:
    """Return the slower of reading weights and KV once a step and computing the batch, at the data sheet's rates."""
    model, layout, load = case.setup.model, case.setup.layout, case.load
    parts, bits = parts_of(model), part_bits(case.setup.quant, model)
    routed = model.experts_per_token / model.experts if model.experts else 0.0
    dense = parts.embedding * bits["ends"] + parts.small * bits["small"] + parts.mlp * bits["mlp"]
    active = (dense + parts.experts * routed * bits["experts"]) / 8
    each = max(1.0, _agents(case) / layout.replicas)
    kv = model.kv_bytes_per_token(case.setup.kv.bytes) * (load.input_tokens + load.output_tokens / 2)
    read = (active + each * kv) / (case.card.bandwidth_gbs * 1e9 * layout.tp)
    rate = (case.card.fp16_tflops or 50.0) * 1e12 * layout.tp
    prompt = load.input_tokens / load.output_tokens if case.metric == "effective" else 0.0
    return _agents(case) / max(read, 2 * model.params_active * each * (1 + prompt) / rate)


def _agents(case: PublishedCase) -> float:
    """Return how many requests run at once: at most the engine's slots."""
    slots = case.setup.slots or defaults(case.setup.engine, case.card).slots
    if case.load.rate_per_s is not None:
        return float(min(slots, 16))
    return float(min(case.load.concurrency, slots * case.setup.layout.replicas))


# Tokens a second over all agents; agents share a replica's cards, replicas do not share anything.
BASELINES = {"bandwidth / size x 0.55": _bandwidth, "roofline": _roofline}
