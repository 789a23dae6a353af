"""Published measurements as the planner reads them: a table's row becomes a setup, a load and a measured value."""

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

_PROMPT, _ANSWER = 128.0, 512.0  # tokens, where a row does not state them


class Unpredictable(Exception):
    """A row that cannot be predicted. The text begins with the missing fact: `bits: ...`."""


@dataclass(frozen=True, slots=True)
class PublishedCase:
    """A measurement and its setup. `metric`: effective (tokens over wall time) or decode (agents x task speed)."""

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
    """Return host plus owner/repository: pages of one repository count as one source."""
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
    pool = _noted(r"kv pool[= ]*([\d,]+) ?tok", notes)
    share = _noted(r"(?:util|gpu-memory-utilization)[= ](0\.\d+)", notes)
    chunk = _noted(r"(?:max-num-batched-tokens|max_num_tokens)[= ](\d+)", notes)
    return PublishedCase(
        row=row,
        source=source_of(text.get("source_url", "")),
        model=model,
        card=card,
        cards=cards,
        quant=quant,
        kv=_kv(text.get("kv_dtype", "")),
        engine=engine,
        layout=layout,
        link=_link(text.get("interconnect", ""), card, layout.tp) if layout.tp > 1 else None,
        split=split,
        slots=load.concurrency if slots is None and engine == "llamacpp" else slots,
        pool_tokens=float(pool.replace(",", "")) if pool else None,
        chunk_tokens=int(chunk) if chunk else None,
        utilization=float(share) if share else None,
        spec=_spec(text.get("spec", ""), notes),
        graphs="enforce-eager" not in notes and "eager mode" not in notes,
        weight_only="marlin" in notes,
        load=load,
        metric=metric,
        published=published,
    )


def _noted(pattern: str, notes: str) -> str | None:
    """Return the first group of a pattern's first match in the notes."""
    found = re.search(pattern, notes)
    return found[1] if found else None


def _count(text: Mapping[str, str]) -> int:
    count = _positive(text.get("n_gpu", ""))
    if count is None:
        raise Unpredictable("count: the number of cards is not stated")
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
            raise Unpredictable(f"gpu: `{piece}` is not in the catalogue")
        prefix = prefix or piece.split(" ")[0]
        found.extend([device] * (int(times[1]) if times else 1))
    return found if len(found) > 1 else found * cards


def _model(text: Mapping[str, str]) -> Geometry:
    name = text.get("model", "")
    found = find_geometry(name) if name else None
    if found is not None:
        return found
    total = _positive(text.get("params_total_b", ""))
    active = _positive(text.get("params_active_b", ""))
    if active is None and (named := _noted(r"a(\d+(?:\.\d+)?)b", name.lower())):
        active = float(named)
    if total is None or active is None:
        which = "total" if total is None else "active"
        raise Unpredictable(f"model: `{name or '?'}` is not in the catalogue; its {which} parameters are not stated")
    try:
        return geometry_from_parameters(name or f"{total:g}B", total, active)
    except UserError as impossible:
        raise Unpredictable(f"model: {impossible.message}") from None


# The first word found in the engine's name decides.
_ENGINE_WORDS = {
    "ik_llama": "ik_llamacpp",
    "ollama": "ollama",
    "lm studio": "llamacpp",
    "llama": "llamacpp",
    "sglang": "sglang",
    "trt": "trtllm",
    "tensorrt": "trtllm",
}


def _engine(text: Mapping[str, str]) -> str:
    name, notes = text.get("engine", "").lower(), text.get("notes", "").lower()
    if not name:
        return "llamacpp" if "gguf" in notes or re.search(r"\bq\d_", notes) else "vllm"
    return next((engine for word, engine in _ENGINE_WORDS.items() if word in name), "vllm")


_GGUF_BY_BITS = {3: "q3_k_m", 4: "q4_k_m", 5: "q5_k_m", 6: "q6_k", 8: "q8_0"}
_QUANT_BY_BITS = {3: "int4", 4: "int4", 5: "q5_k_m", 6: "q6_k", 8: "fp8"}
# The first word found in the notes whose format has the row's bits decides.
_QUANT_WORDS = {
    "fp8 weights": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "w8a8": "int8",
    "w8a16": "int8",
    "int8": "int8",
    "autoround": "autoround",
    "gptq": "gptq",
    "awq": "awq",
    "w4a8": "w4a8",
    "w4a16": "int4",
    "fp8": "fp8",
}


def _quant(text: Mapping[str, str], notes: str, engine: str, model: Geometry) -> Quant:
    bits = _positive(text.get("quant_bits", ""))
    if bits is None:
        raise Unpredictable("bits: the quantization is not stated")
    if engine in LLAMACPP:
        named = _noted(r"\b(?:ud-)?(i?q\d_[0k](?:_[smx]l?)?|iq4_xs|iq4_ks|f16)\b", notes)
        by_bits = "gguf_mxfp4" if model.native_bits and bits <= 5 else _GGUF_BY_BITS.get(int(bits), "f16")
        return (known_quant(named) if named else None) or find_quant(by_bits)
    if model.native_bits and bits <= 5:
        return find_quant("mxfp4")
    noted = (find_quant(name) for word, name in _QUANT_WORDS.items() if word in notes)
    matching = next((quant for quant in noted if quant.nominal == int(bits)), None)
    return matching or find_quant(_QUANT_BY_BITS.get(int(bits), "bf16"))


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
    pp = cards if split else min(cards, int(_noted(r"\bpp=(\d+)", notes) or 1))
    return split, Layout(tp=int(tp), pp=max(1, pp), ep=ep, replicas=replicas)


def _load(text: Mapping[str, str], notes: str, card: Device) -> tuple[PlannedLoad, int | None]:
    prompt = _positive(text.get("input_len", "")) or _PROMPT
    answer = _positive(text.get("output_len", "")) or _ANSWER
    slots = _whole(text.get("max_num_seqs", "")) or _whole(_noted(r"max-running-requests[= ](\d+)", notes) or "")
    stated = text.get("concurrency", "").lower() or _noted(r"all requests at once \((\d+)\)", notes) or ""
    chat = 1.0 if "sharegpt" in notes else 0.0
    if stated.startswith("offline"):
        slots = slots or int(_noted(r"max_num_seqs (\d+)", notes) or 256)
        fewer = re.search(r"\((\d+) for ([\w./-]+) on (\d+)gb cards\)", notes)
        here = fewer is not None and card.memory_gib == float(fewer[3])
        if fewer and here and any(part in text.get("model", "").lower() for part in fewer[2].split("/")):
            slots = int(fewer[1])
        return PlannedLoad(4 * slots, prompt, answer, shape="burst"), slots
    rate = _noted(r"rate ([\d.]+)", stated)
    if rate:
        return PlannedLoad(200, prompt, answer, tasks=200, rate_per_s=float(rate), spread=chat), slots
    agents = _positive(stated)
    if agents is None:
        raise Unpredictable("concurrency: not stated")
    if not 1 <= agents <= 1e6:
        raise Unpredictable(f"concurrency: {stated}")
    at_once = "at once" in notes and agents >= 200
    burst = at_once or any(word in notes for word in ("llama-benchy", "swarm", "agent shape"))
    load = PlannedLoad(
        int(agents),
        prompt,
        answer,
        shape="burst" if burst else "steady",
        spread=chat if at_once else 0.5 if "swarm" in notes else 0.0,
        cached_share=0.75 if "prefix-cache hits" in notes else 0.0,
    )
    return load, slots


def _published(text: Mapping[str, str], load: PlannedLoad) -> tuple[float, str]:
    """Return the tokens a second over all agents, and the metric: `effective` if prompts are part of the time."""
    aggregate, stream, tpot = (_positive(text.get(name, "")) for name in ("agg_tok_s", "stream_tok_s", "tpot_ms"))
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
        server = "sxm" in lower or (card.nvlink_gbs or 0) > 100
        if server or tp <= 2:
            return CardLink("nvlink", card.nvlink_gbs or (300.0 if server else 50.0), title="NVLink")
    no_p2p = any(words in lower for words in ("no p2p", "p2p disabled", "no nvlink"))
    geforce = card.vendor == "nvidia" and re.match(r"rtx-\d{4}", card.id) is not None
    p2p = not no_p2p and ("p2p" in lower or not geforce)
    slot = card.pcie or "4.0 x16"
    lanes = [int(n) for n in re.findall(r"x(\d+)", lower)]
    generation = _noted(r"pcie ?(\d)", lower)
    if not lanes and not generation:
        built_in = default_link(card)
        return built_in if built_in.kind == "nvlink" else CardLink("pcie", pcie_gbs(slot), p2p=p2p, title="PCIe")
    speed = f"{generation}.0" if generation else slot.split(" ")[0]
    return CardLink("pcie", pcie_gbs(f"{speed} x{min(lanes, default=16)}"), p2p=p2p, title=text)


def _kv(name: str) -> KvType:
    cleaned = name.lower().split("(")[0].split("/")[0].strip()
    if not cleaned:
        return find_kv("bf16")
    if cleaned.startswith("turboquant"):
        cleaned = "turboquant_k8v4" if "k8" in cleaned else "turboquant_3bit"
    return known_kv(cleaned) or find_kv("bf16")


# The first word found in the column decides: the method and its default number of drafted tokens.
_SPEC_WORDS = {
    "dflash": ("dflash", 5),
    "eagle": ("eagle", 3),
    "draft model": ("draft", 4),
    "mtp": ("mtp", 2),
    "ngram": ("ngram", 3),
}


def _spec(text: str, notes: str) -> Speculation | None:
    lower = text.lower()
    if not lower:
        return None
    method, default = next((found for word, found in _SPEC_WORDS.items() if word in lower), ("mtp", 2))
    depth = _noted(r"(?:num_speculative_tokens|speculative-num-steps)\W+(\d+)", notes)
    depth = depth or _noted(r"(?:k|n|n-max)=(\d+)", lower)
    return Speculation(method, min(16, int(depth or default)))


def _whole(text: str) -> int | None:
    """Return a small count (cards, replicas, slots), or None."""
    value = _positive(text)
    return int(value) if value is not None and 1 <= value <= 65536 else None


def _positive(text: str) -> float | None:
    """Return a number above zero, or None."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if 0 < value < 1e9 else None
