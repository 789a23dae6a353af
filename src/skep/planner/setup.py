"""The values the planner works on: a rig of cards, a layout on it, how an engine is set up, and the load it gets."""

from __future__ import annotations

import msgspec

from skep.catalog.gpus import Device
from skep.catalog.models import Geometry
from skep.planner.quants import KvType, Quant


class CardLink(msgspec.Struct, frozen=True):
    """How two cards talk. `gbs` is one direction of the slower end; `p2p` False: every transfer goes through memory."""

    kind: str  # nvlink, pcie, none
    gbs: float
    p2p: bool = True
    title: str = ""  # as the user wrote it, or "PCIe 4.0 x16"


class Rig(msgspec.Struct, frozen=True):
    """Cards of one box, in the order the user named them, with the link of every pair that is not the default."""

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
        further = (f"{name}={size}" for name, size in (("PP", self.pp), ("EP", self.ep)) if size > 1)
        text = " + ".join([f"TP={self.tp}", *further])
        return f"{self.replicas} x {text}" if self.replicas > 1 else text


class Speculation(msgspec.Struct, frozen=True):
    """`depth` tokens are drafted a step. `acceptance` of the first one; None: the evidence's for this method."""

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
    utilization: float | None = None  # share of the card the engine may fill; None: the engine's default
    graphs: bool = True
    spec: Speculation | None = None
    batched_tokens: int | None = None  # prefill tokens a step at most; None: the engine's default
    version: str | None = None
    vision: bool = True  # its tower is loaded, where the checkpoint has one
    shared_kv: bool = False  # llama.cpp: one KV cache for all slots
    cpu_moe: int = 0  # llama.cpp: so many layers keep their experts in system memory

    @property
    def ram_share(self) -> float:
        """Of the experts, that are in system memory."""
        return min(1.0, self.cpu_moe / self.model.expert_layers) if self.cpu_moe else 0.0


class PlannedLoad(msgspec.Struct, frozen=True):
    """`concurrency` agents: each sends its next task when the last is answered (steady), or all at once (burst)."""

    concurrency: int
    input_tokens: float = 1024
    output_tokens: float = 512
    tasks: int | None = None  # None: enough rounds for the level to settle
    shape: str = "steady"  # steady, burst, mixed
    rate_per_s: float | None = None  # open loop: tasks arrive at this rate whatever is still running
    cached_share: float = 0.0  # of the prompt that the prefix cache already holds
    spread: float = 0.0  # of output lengths: 0 all alike, 1 as uneven as chat answers are
