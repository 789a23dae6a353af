"""Published measurements as the planner sees them: a row of a table becomes a setup, a load and what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from skep.catalog.estimate import geometry_from_parameters
from skep.catalog.gpus import Device, find_device
from skep.catalog.models import Geometry, find_geometry
from skep.errors import UserError
from skep.planner.quants import KvType, Quant, find_kv, find_quant, known_kv, known_quant
from skep.planner.rigs import default_link, pace_setter, pcie_gbs
from skep.planner.setup import CardLink, Layout, PlannedLoad, Speculation
from skep.planner.step import LLAMACPP

_PROMPT, _ANSWER = 128.0, 512.0  # where a row does not tell: a question, an answer


class Unpredictable(Exception):
    """A row that lacks a fact. Its text names the fact."""


@dataclass(frozen=True, slots=True)
class PublishedCase:
    """What was measured, and on what. `metric`: effective (tokens over wall time) or decode (agents x task speed)."""

    row: int
    source: str
    model: Geometry
    card: Device
    cards: int
    quant: Quant
    kv: KvType
    engine: str
    layout: Layout
    link: CardLink | None
    split: bool
    slots: int | None
    pool_tokens: float | None
    chunk_tokens: int | None
    utilization: float | None
    spec: Speculation | None
    graphs: bool
    weight_only: bool
    load: PlannedLoad
    metric: str
    published: float


def source_of(url: str) -> str:
    """Host plus owner/repository: what counts as one source. A mirror's path of two parts is the same place."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    path = [piece for piece in parts.path.split("/") if piece]
    host = parts.netloc.lower().removeprefix("www.")
    if host in ("github.com", "huggingface.co", "gitlab.com", "raw.githubusercontent.com"):
        keep = 3 if path[:1] == ["datasets"] or path[:1] == ["spaces"] else 2
        return "/".join([host, *path[:keep]]).lower()
    return host or url


def read_case(row: int, cells: Mapping[str, str]) -> PublishedCase:
    text = {key: (value or "").strip() for key, value in cells.items() if key}
    notes = text.get("notes", "").lower()
    if "diffusion" in text.get("spec", "").lower() or "dllm" in text.get("model", "").lower():
        raise Unpredictable("model: block diffusion, not one token after the other")
    if "offload" in (text.get("gpu", "") + notes).lower():
        raise Unpredictable("memory: part of the weights is kept in the CPU's memory")
    cards = _count(text)
    devices = _devices(text.get("gpu", ""), cards)
    model = _model(text)
    engine = _engine(text)
    quant = _quant(text, notes, engine, model)
    split, layout = _layout(text, cards, engine, notes, model)
    card = pace_setter(devices, in_turn=split)
    load, slots = _load(text, notes, card)
    published, metric = _published(text, load)
    link = _link(text.get("interconnect", ""), card, layout.tp) if layout.tp > 1 else None
    kv = _kv(text.get("kv_dtype", ""))
    pool = re.search(r"kv pool[= ]*([\d,]+) ?tok", notes)
    share = re.search(r"(?:util|gpu-memory-utilization)[= ](0\.\d+)", notes)
    chunk = re.search(r"(?:max-num-batched-tokens|max_num_tokens)[= ](\d+)", notes)
    if slots is None and engine == "llamacpp":
        slots = load.concurrency
    return PublishedCase(
        row=row,
        source=source_of(text.get("source_url", "")),
        model=model,
        card=card,
        cards=cards,
        quant=quant,
        kv=kv,
        engine=engine,
        layout=layout,
        link=link,
        split=split,
        slots=slots,
        pool_tokens=float(pool[1].replace(",", "")) if pool else None,
        chunk_tokens=int(chunk[1]) if chunk else None,
        utilization=float(share[1]) if share else None,
        spec=_spec(text.get("spec", ""), notes),
        graphs="enforce-eager" not in notes and "eager mode" not in notes,
        weight_only="backend marlin" in notes or "marlin" in notes,
        load=load,
        metric=metric,
        published=published,
    )


def _count(text: Mapping[str, str]) -> int:
    count = _positive(text.get("n_gpu", ""))
    if count is None:
        raise Unpredictable("count: how many cards is not stated")
    if not 1 <= count <= 4096:
        raise Unpredictable(f"count: {text['n_gpu']} cards")
    return int(count)


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
            raise Unpredictable(f"gpu: nothing is known of `{piece}`")
        prefix = prefix or piece.split(" ")[0]
        found.extend([device] * (int(times[1]) if times else 1))
    return found if len(found) > 1 else found * cards


def _model(text: Mapping[str, str]) -> Geometry:
    name = text.get("model", "")
    found = find_geometry(name) if name else None
    if found is not None:
        return found
    total, active = _positive(text.get("params_total_b", "")), _positive(text.get("params_active_b", ""))
    if total is None:
        raise Unpredictable(f"model: nothing is known of `{name or '?'}` and its parameters are not stated")
    named = re.search(r"a(\d+(?:\.\d+)?)b", name.lower())
    if active is None and named:
        active = float(named[1])
    if active is None:
        raise Unpredictable(f"model: nothing is known of `{name}` and its active parameters are not stated")
    try:
        return geometry_from_parameters(name or f"{total:g}B", total, active)
    except UserError as impossible:
        raise Unpredictable(f"model: {impossible.message}") from None


def _engine(text: Mapping[str, str]) -> str:
    name = text.get("engine", "").lower()
    if not name:
        gguf = "gguf" in text.get("notes", "").lower() or re.search(r"\bq\d_", text.get("notes", "").lower())
        return "llamacpp" if gguf else "vllm"
    if name.startswith("ik_llama"):
        return "ik_llamacpp"
    for word, engine in (("ollama", "ollama"), ("lm studio", "llamacpp"), ("llama", "llamacpp"), ("sglang", "sglang"),
                         ("trt", "trtllm"), ("tensorrt", "trtllm")):  # fmt: skip
        if word in name:
            return engine
    return "vllm"


_GGUF_BY_BITS = {3: "q3_k_m", 4: "q4_k_m", 5: "q5_k_m", 6: "q6_k", 8: "q8_0"}
_QUANT_WORDS = (
    ("fp8 weights", "fp8"), ("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"),
    ("autoround int8", "int8"), ("int8 autoround", "int8"), ("w8a8", "int8"),
    ("w8a16", "int8"), ("int8", "int8"), ("autoround", "autoround"), ("gptq", "gptq"), ("awq", "awq"), ("w4a8", "w4a8"),
    ("w4a16", "int4"), ("fp8", "fp8"),
)  # fmt: skip


def _quant(text: Mapping[str, str], notes: str, engine: str, model: Geometry) -> Quant:
    bits = _positive(text.get("quant_bits", ""))
    if bits is None:
        raise Unpredictable("bits: the quantization is not stated")
    if engine in LLAMACPP:
        named = re.search(r"\b(?:ud-)?(i?q\d_[0k](?:_[smx]l?)?|iq4_xs|iq4_ks|f16)\b", notes)
        flavour = known_quant(named[1]) if named else None  # one that is not in the table: its bits decide
        if model.native_bits and bits <= 5 and flavour is None:
            return find_quant("gguf_mxfp4")
        return flavour or find_quant(_GGUF_BY_BITS.get(int(bits), "f16"))
    if model.native_bits and bits <= 5:
        return find_quant("mxfp4")
    for word, name in _QUANT_WORDS:
        if word in notes and find_quant(name).nominal == int(bits):
            return find_quant(name)
    return find_quant({4: "int4", 5: "q5_k_m", 6: "q6_k", 8: "fp8", 3: "int4"}.get(int(bits), "bf16"))


def _layout(text: Mapping[str, str], cards: int, engine: str, notes: str, model: Geometry) -> tuple[bool, Layout]:
    tp, replicas = _whole(text.get("tp", "")), _whole(text.get("replicas", "")) or 1
    local = engine in LLAMACPP
    split = local and tp is None and cards > 1
    if tp is None:
        tp = 1 if local else max(1, cards // replicas)
    if local and tp > 1:
        tp = cards
    if local and "tensor" not in notes and tp == 1 and cards > 1:
        split = True
    ep = int(tp) if text.get("ep", "") not in ("", "0") and model.is_moe else 1
    staged = re.search(r"\bpp=(\d+)", notes)
    pp = cards if split else min(cards, int(staged[1])) if staged else 1
    return split, Layout(tp=int(tp), pp=max(1, pp), ep=ep, replicas=replicas)


def _load(text: Mapping[str, str], notes: str, card: Device) -> tuple[PlannedLoad, int | None]:
    prompt = _positive(text.get("input_len", "")) or _PROMPT
    answer = _positive(text.get("output_len", "")) or _ANSWER
    slots = _whole(text.get("max_num_seqs", ""))
    running = re.search(r"max-running-requests[= ](\d+)", notes)
    if slots is None and running:
        slots = _whole(running[1])
    told = text.get("concurrency", "").lower()
    if not told and (all_of := re.search(r"all requests at once \((\d+)\)", notes)):
        told = all_of[1]
    chat = 1.0 if "sharegpt" in notes else 0.0
    if told.startswith("offline"):
        batch = re.search(r"max_num_seqs (\d+)", notes)
        slots = slots or (int(batch[1]) if batch else 256)
        fewer = re.search(r"\((\d+) for ([\w./-]+) on (\d+)gb cards\)", notes)
        here = fewer is not None and card.memory_gib == float(fewer[3])
        if fewer and here and any(part in text.get("model", "").lower() for part in fewer[2].split("/")):
            slots = int(fewer[1])
        return PlannedLoad(4 * slots, prompt, answer, shape="burst"), slots
    rate = re.search(r"rate ([\d.]+)", told)
    if rate:
        per_s = float(rate[1])
        tasks = 200
        return PlannedLoad(tasks, prompt, answer, tasks=tasks, rate_per_s=per_s, spread=chat), slots
    c = _positive(told)
    if c is None:
        raise Unpredictable("concurrency: not stated")
    if c < 1 or c > 1e6:
        raise Unpredictable(f"concurrency: {told}")
    at_once = "at once" in notes and c >= 200
    burst = at_once or any(word in notes for word in ("llama-benchy", "swarm", "agent shape"))
    spread = chat if at_once else (0.5 if "swarm" in notes else 0.0)
    cached = 0.75 if "prefix-cache hits" in notes else 0.0
    load = PlannedLoad(int(c), prompt, answer, shape="burst" if burst else "steady", spread=spread, cached_share=cached)
    return load, slots


def _published(text: Mapping[str, str], load: PlannedLoad) -> tuple[float, str]:
    """What the row says in tokens a second over all agents, and whether prompts are part of the time."""
    aggregate, stream = _positive(text.get("agg_tok_s", "")), _positive(text.get("stream_tok_s", ""))
    tpot = _positive(text.get("tpot_ms", ""))
    c = load.concurrency
    if aggregate:
        decode = stream is not None and abs(aggregate - stream * c) <= 0.03 * aggregate
        return aggregate, "decode" if decode else "effective"
    if load.rate_per_s is not None or text.get("concurrency", "").lower().startswith("offline"):
        raise Unpredictable("measurement: no aggregate tok/s")
    if stream:
        return stream * c, "decode"
    if tpot:
        return c * 1000.0 / tpot, "decode"
    raise Unpredictable("measurement: the row has no tok/s and no time per token")


def _link(text: str, card: Device, tp: int) -> CardLink:
    lower = text.lower()
    if "nvlink" in lower and "no nvlink" not in lower and "removed" not in lower:
        if "sxm" in lower or (card.nvlink_gbs or 0) > 100:
            return CardLink("nvlink", card.nvlink_gbs or 300.0, title="NVLink")
        if tp <= 2:
            return CardLink("nvlink", card.nvlink_gbs or 50.0, title="NVLink")
    no_p2p = "no p2p" in lower or "p2p disabled" in lower or "no nvlink" in lower
    geforce = (
        card.vendor == "nvidia" and card.id.startswith("rtx-") and re.fullmatch(r"rtx-\d{4}.*", card.id) is not None
    )
    p2p = ("p2p" in lower and not no_p2p) or (not geforce and not no_p2p)
    lanes = [int(n) for n in re.findall(r"x(\d+)", lower)]
    generation = re.search(r"pcie ?(\d)", lower)
    if not lanes and not generation:
        built_in = default_link(card)
        if built_in.kind == "nvlink":
            return built_in
        return CardLink("pcie", pcie_gbs(card.pcie or "4.0 x16"), p2p=p2p, title="PCIe")
    own = (card.pcie or "4.0 x16").split(" ")[0]
    gen = f"{generation[1]}.0" if generation else own
    return CardLink("pcie", pcie_gbs(f"{gen} x{min(lanes) if lanes else 16}"), p2p=p2p, title=text)


def _kv(name: str) -> KvType:
    cleaned = name.lower().split("(")[0].split("/")[0].strip()
    if not cleaned:
        return find_kv("bf16")
    if cleaned.startswith("turboquant"):
        cleaned = "turboquant_k8v4" if "k8" in cleaned else "turboquant_3bit"
    return known_kv(cleaned) or find_kv("bf16")


def _spec(text: str, notes: str) -> Speculation | None:
    lower = text.lower()
    if not lower:
        return None
    depth = re.search(r"num_speculative_tokens\W+(\d+)|speculative-num-steps\W+(\d+)", notes)
    depth = depth or re.search(r"(?:k|n|n-max)=(\d+)", lower)
    for word, method in (("dflash", "dflash"), ("eagle", "eagle"), ("draft model", "draft"), ("mtp", "mtp"),
                         ("ngram", "ngram"), ("spec", "mtp")):  # fmt: skip
        if word in lower:
            default = {"mtp": 2, "dflash": 5, "draft": 4}.get(method, 3)
            return Speculation(method, min(16, int(next(filter(None, depth.groups()))) if depth else default))
    return Speculation("mtp", 2)


def _whole(text: str) -> int | None:
    """A small count: cards, replicas, slots."""
    value = _positive(text)
    return int(value) if value is not None and 1 <= value <= 65536 else None


def _positive(text: str) -> float | None:
    """A number of something; None for what is none, or not above zero."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if 0 < value < 1e9 else None
