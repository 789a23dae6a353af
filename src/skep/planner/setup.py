"""The values the planner works on: number formats, cards and their links, layouts, engines as
started, loads.

Formats of weights and of the KV cache are in `quants.toml`: how many bytes, and which kernel reads
them. A model's parameters are counted by what reads them and then scaled to the published total,
so that what the formulas leave out (biases, norms, gates) is spread over the layers rather than
lost. Knows nothing of speed, and not whether anything fits.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import combinations

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.catalog.models import Geometry
from skep.errors import UserError


class Quant(msgspec.Struct, frozen=True):
    """`bits` is what one parameter takes with its scales."""

    id: str
    title: str
    bits: float
    nominal: int
    family: str  # int4, int8, fp8, fp4, half, gguf
    # linear attention, shared experts and attention of a MoE stay in more bits
    keeps_small: bool = False
    end_bits: float = 16.0  # of embeddings and head
    small_bits: float = 16.0  # of what `keeps_small` keeps


class KvType(msgspec.Struct, frozen=True):
    id: str
    title: str
    bytes: float  # of one value, with its scales
    family: str  # half, fp8, int8, turboquant, gguf, fp4


_DATA = tomllib.loads(files("skep.planner").joinpath("quants.toml").read_text(encoding="utf-8"))
QUANTS: dict[str, Quant] = {name: Quant(name, **entry) for name, entry in _DATA["weights"].items()}
KV_TYPES: dict[str, KvType] = {name: KvType(name, **entry) for name, entry in _DATA["kv"].items()}


def known_quant(name: str) -> Quant | None:
    """Return the format of this id or of a name people use, whatever the case: `AWQ`, `Q4_K_M`,
    `w4a16`.
    """
    key = name.strip().lower().replace(" ", "-")
    key = _DATA["weights_names"].get(key, key)
    return QUANTS.get(key) or QUANTS.get(key.replace("-", "_"))


def find_quant(name: str) -> Quant:
    quant = known_quant(name)
    if quant is None:
        raise UserError(f"no quantization is called `{name}`", hint="known: " + ", ".join(QUANTS))
    return quant


def known_kv(name: str) -> KvType | None:
    key = name.strip().lower().replace(" ", "_").replace("-", "_")
    return KV_TYPES.get(_DATA["kv_names"].get(key, key))


def find_kv(name: str) -> KvType:
    kv = known_kv(name)
    if kv is None:
        raise UserError(
            f"no KV cache type is called `{name}`", hint="known: " + ", ".join(KV_TYPES)
        )
    return kv


class Parts(msgspec.Struct, frozen=True):
    """Parameter counts.

    `head` is read for every token even where it is tied; `embedding` is looked up, not read.
    """

    embedding: float
    head: float  # 0 in memory where tied: the embedding's memory is the head's
    attention: float
    linear: float
    mlp: float
    shared: float
    experts: float
    draft: float  # one MTP layer, its experts included
    draft_experts: float
    vision: float

    @property
    def small(self) -> float:
        """The parameters that quantizers of mixture models leave alone: attention, linear
        attention, shared experts.
        """
        return self.attention + self.linear + self.shared


@lru_cache(maxsize=512)
def parts_of(model: Geometry) -> Parts:
    """Return the parameters of each part, scaled so that they add up to the published total."""
    ends = float(model.vocab * model.hidden)
    attention = float(_attention(model))
    linear = float(_linear_attention(model))
    mlp = 3.0 * model.hidden * model.intermediate * max(0, _dense_layers(model))
    shared = 3.0 * model.hidden * model.shared_intermediate * model.expert_layers
    experts = 3.0 * model.hidden * model.expert_intermediate * model.experts * model.expert_layers
    counted = attention + linear + mlp + shared + experts
    published = model.params_total - ends * (1 if model.tied_embeddings else 2)
    scale, scale_experts = _scales(model, counted, experts, published)
    attending = model.full_layers + model.sliding_layers + model.linear_layers
    attention_of_layer = (attention + linear) / max(1, min(attending, model.layers))
    draft = 0.0
    draft_experts = 0.0
    if model.mtp_layers:
        draft_mlp = 3.0 * model.hidden * model.intermediate
        if model.is_moe:
            draft_mlp = 0.0
            draft_experts = experts / model.expert_layers
        draft = attention_of_layer + draft_mlp + draft_experts + 2.0 * model.hidden**2
    return Parts(
        embedding=ends,
        head=0.0 if model.tied_embeddings else ends,
        attention=attention * scale,
        linear=linear * scale,
        mlp=mlp * scale,
        shared=shared * scale,
        experts=experts * scale_experts,
        draft=draft,
        draft_experts=draft_experts,
        vision=model.vision_params,
    )


def _scales(
    model: Geometry, counted: float, experts: float, published: float
) -> tuple[float, float]:
    """Return what the layers' counts, and the experts', are multiplied with to come to the
    published total.

    `counted`: of all layers, experts included; `published`: the total less both ends.
    """
    scale = published / counted if counted > 0 and published > 0 else 1.0
    if not model.is_moe or not 0.5 < scale < 2:
        return scale, scale
    # The experts' count is exact: the rest takes the difference.
    scale_rest = scale
    scale_experts = scale
    rest = counted - experts
    if published > experts:
        scale_experts = 1.0
        if rest > 0:
            scale_rest = (published - experts) / rest
    return min(max(scale_rest, 0.25), 4.0), scale_experts


def part_bits(quant: Quant, model: Geometry) -> dict[str, float]:
    """Return the bits of one parameter in each part, as checkpoints of this format are
    published.
    """
    small = quant.small_bits if quant.keeps_small else quant.bits
    draft = quant.bits if quant.family == "gguf" else 16.0
    # 24 GB for 35B-A3B: only experts are 4 bit.
    awq_hybrid = quant.id == "awq" and model.is_moe and model.is_hybrid
    if awq_hybrid or quant.id in model.kept_small:
        small = 16.0
    return {
        "ends": quant.end_bits,
        "small": small,
        "draft": draft,
        "vision": 16.0,
        "mlp": quant.bits,
        "experts": quant.bits,
    }


def _dense_layers(model: Geometry) -> int:
    """Return the layers with an MLP that is no mixture."""
    if model.is_moe:
        return model.layers - model.expert_layers
    if model.intermediate:
        return model.layers
    return 0


def _attention(model: Geometry) -> float:
    hidden = model.hidden
    if model.attention_params:
        return model.attention_params
    if model.mla_rank:
        # Queries are compressed too.
        queries = hidden * model.heads * (model.head_dim + model.mla_rope_dim) / 3
        keys_values = (
            hidden * (model.mla_rank + model.mla_rope_dim)
            + 2 * model.mla_rank * model.heads * model.head_dim
        )
        output = model.heads * model.head_dim * hidden
        return model.full_layers * (queries + keys_values + output)
    # Gated attention has a second query projection.
    gate = 2 if model.is_hybrid and model.linear_k_heads else 1
    full_dim = model.full_head_dim or model.head_dim
    full_kv = model.full_kv_heads or model.kv_heads
    full = hidden * (model.heads * full_dim * (1 + gate) + 2 * full_kv * full_dim)
    sliding = hidden * (2 * model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim)
    return model.full_layers * full + model.sliding_layers * sliding


def _linear_attention(model: Geometry) -> int:
    keys = model.linear_k_heads * model.linear_k_dim
    values = model.linear_v_heads * model.linear_v_dim
    projections = model.hidden * (2 * keys + 2 * values)
    return model.linear_layers * (projections + values * model.hidden)


class CardLink(msgspec.Struct, frozen=True):
    """How two cards talk.

    `gbs` is one direction of the slower end; `p2p` False: every transfer goes through memory.
    """

    kind: str  # nvlink, pcie, none
    gbs: float
    p2p: bool = True
    title: str = ""  # as the user wrote it, or "PCIe 4.0 x16"


class Rig(msgspec.Struct, frozen=True):
    """Cards of one box, in the order the user named them, with the link of every pair that is not
    the default.
    """

    cards: tuple[Device, ...]
    default_link: CardLink | None = None  # None: not known, taken as PCIe of the slower card
    pairs: tuple[tuple[int, int, CardLink], ...] = ()
    title: str = ""
    price: float | None = None
    ram_gib: float | None = None  # of the machine; None: not known

    def link(self, a: int, b: int) -> CardLink | None:
        for first, second, link in self.pairs:
            if {first, second} == {a, b}:
                return link
        return self.default_link


class Layout(msgspec.Struct, frozen=True):
    """`ep` is the expert-parallel size, 1 where unused. Cards used: `tp * pp * replicas`."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    replicas: int = 1

    @property
    def cards(self) -> int:
        return self.tp * self.pp * self.replicas

    @property
    def cards_each(self) -> int:
        return self.tp * self.pp

    def __str__(self) -> str:
        further = (
            f"{name}={size}" for name, size in (("PP", self.pp), ("EP", self.ep)) if size > 1
        )
        text = " + ".join([f"TP={self.tp}", *further])
        if self.replicas > 1:
            return f"{self.replicas} x {text}"
        return text


class Speculation(msgspec.Struct, frozen=True):
    """`depth` tokens are drafted a step.

    `acceptance` of the first one; None: the evidence's for this method.
    """

    method: str  # mtp, draft, eagle, ngram, dflash
    depth: int
    acceptance: float | None = None
    text: str = "mixed"  # that is written: prose, code or mixed

    def __str__(self) -> str:
        return f"{self.method} n={self.depth}"


class Setup(msgspec.Struct, frozen=True):
    """One engine as it is started, on every replica alike."""

    model: Geometry
    quant: Quant
    kv: KvType
    engine: str  # vllm, sglang, llamacpp, ollama, ik_llamacpp
    layout: Layout = Layout()
    slots: int | None = None  # sequences a replica decodes at once; None: the engine's default
    context: int | None = None  # tokens of the longest sequence; None: the model's or what fits
    utilization: float | None = None  # share of the card it may fill; None: the engine's default
    graphs: bool = True
    spec: Speculation | None = None
    batched_tokens: int | None = None  # prefill tokens a step at most; None: the engine's default
    version: str | None = None
    vision: bool = True  # its tower is loaded, where the checkpoint has one
    shared_kv: bool = False  # llama.cpp: one KV cache for all slots
    cpu_moe: int = 0  # llama.cpp: so many layers keep their experts in system memory

    @property
    def ram_share(self) -> float:
        """The share of the experts that is in system memory."""
        if self.cpu_moe:
            return min(1.0, self.cpu_moe / self.model.expert_layers)
        return 0.0


class PlannedLoad(msgspec.Struct, frozen=True):
    """`concurrency` agents: each sends its next task when the last is answered (steady), or all at
    once (burst).
    """

    concurrency: int
    input_tokens: float = 1024
    output_tokens: float = 512
    tasks: int | None = None  # None: enough rounds for the level to settle
    shape: str = "steady"  # steady, burst, mixed
    # open loop: tasks arrive at this rate whatever is still running
    rate_per_s: float | None = None
    cached_share: float = 0.0  # of the prompt that the prefix cache already holds
    spread: float = 0.0  # of output lengths: 0 all alike, 1 as uneven as chat answers are


# Which cards work together, and over which link

# Of one lane, one direction.
PCIE_GBS = {
    "1.0": 0.25,
    "1.1": 0.25,
    "2.0": 0.5,
    "3.0": 0.985,
    "4.0": 1.969,
    "5.0": 3.938,
    "6.0": 7.56,
}
_SLOT = r"(?i)^(?:pcie)? ?(\d(?:\.\d)?)?(?:\s*x\s*(\d{1,2}))?$"
_NETWORK = CardLink("pcie", 22.0, p2p=False, title="200 Gbit/s network")
# below it NVLink is a bridge between two cards: NCCL's latency, as on A100 without the own kernel
BRIDGE_GBS = 120.0
_GEFORCE = re.compile(r"(?:rtx|gtx)-\d{4}(?!-ada)\b")
# USB4 or Thunderbolt between machines
_CABLE = CardLink("pcie", 5.0, p2p=False, title="40 Gbit/s network")


def is_built_in(link: CardLink) -> bool:
    """Return whether it is NVLink or xGMI of a board, not a bridge between two cards."""
    return link.kind == "nvlink" and link.gbs >= BRIDGE_GBS


def default_link(card: Device) -> CardLink:
    """Return the link of two such cards where the user names none: NVLink where the board has it
    built in, PCIe of the card's slot otherwise.
    """
    bridged = (
        "pcie" in card.id or "nvl" in card.id.split("-") or "bridge" in (card.nvlink or "").lower()
    )
    if card.nvlink_gbs is not None and card.nvlink_gbs >= BRIDGE_GBS and not bridged:
        title = "xGMI" if card.vendor == "amd" else "NVLink"
        return CardLink("nvlink", card.nvlink_gbs, title=title)
    if card.pcie is not None and re.match(_SLOT, card.pcie.strip()) is None:
        return _NETWORK  # machines of their own, joined by a cable
    slot = card.pcie or "4.0 x16"
    return CardLink("pcie", pcie_gbs(slot), title=f"PCIe {slot}")


def pcie_gbs(text: str) -> float:
    """Return the GB/s of a slot, "4.0 x16" → 31.5.

    Lanes are 16 and the generation is 4.0 where the text does not say.
    """
    slot = re.match(_SLOT, text.strip())
    if slot is None:
        return PCIE_GBS["4.0"] * 16
    generation = f"{float(slot[1]):.1f}" if slot[1] else "4.0"
    return PCIE_GBS.get(generation, PCIE_GBS["4.0"]) * max(1, int(slot[2] or 16))


def groups(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the cards of each replica, in the order the user named them."""
    cards_each = layout.cards_each
    return tuple(
        tuple(range(first * cards_each, (first + 1) * cards_each))
        for first in range(layout.replicas)
    )


def pace_setter(cards: Sequence[Device], *, in_turn: bool = False) -> Device:
    """Return the card whose speed is that of all.

    Of cards that work on every layer together it is the slowest; where layers are split they take
    turns, and it is their mean.
    """
    if len({card.id for card in cards}) == 1:
        return cards[0]
    memory = min(card.memory_gib for card in cards)
    if in_turn:
        rate = len(cards) / sum(1 / card.bandwidth_gbs for card in cards)
        return dataclasses.replace(cards[0], bandwidth_gbs=rate, memory_gib=memory)
    slowest = min(cards, key=lambda card: card.bandwidth_gbs)
    rates = [card.fp16_tflops for card in cards if card.fp16_tflops is not None]
    return dataclasses.replace(
        slowest, fp16_tflops=min(rates) if rates else None, memory_gib=memory
    )


def group_link(rig: Rig, cards: Sequence[int]) -> CardLink | None:
    """Return the slowest link inside a group: an all-reduce waits for it.

    A bridge helps only where every pair has one.
    """
    links = []
    for a, b in combinations(cards, 2):
        slower = min((rig.cards[a], rig.cards[b]), key=lambda card: card.bandwidth_gbs)
        links.append(rig.link(a, b) or default_link(slower))
    return min(links, key=lambda link: (link.kind == "nvlink", link.p2p, link.gbs), default=None)


def of_machines(rig: Rig) -> bool:
    """Return whether the rig is several machines: of chips whose memory is the machine's each is
    one.
    """
    return len(rig.cards) > 1 and any(card.unified_memory for card in rig.cards)


def is_geforce(card: Device) -> bool:
    """Return whether the driver lets no such card read another's memory over PCIe."""
    return card.vendor == "nvidia" and _GEFORCE.match(card.id) is not None


def usual_link(cards: Sequence[Device]) -> CardLink:
    """Return the link of all pairs where the user names none: the board's NVLink where it is built
    in, else the slowest slot.
    """
    slow = min(
        (_own_link(card) for card in cards), key=lambda link: (link.kind == "nvlink", link.gbs)
    )
    if slow.kind == "nvlink":
        return slow
    return _over_pcie(slow, cards)


def _over_pcie(link: CardLink, cards: Sequence[Device]) -> CardLink:
    return replace(link, p2p=link.p2p and not any(is_geforce(card) for card in cards))


def _own_link(card: Device) -> CardLink:
    link = default_link(card)
    if card.unified_memory and link.kind != "nvlink" and link.title.startswith("PCIe"):
        return _CABLE
    return link
