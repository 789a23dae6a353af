"""What a rule says about a setup, and where the rules read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from skep.catalog.gpus import Device
from skep.planner.setup import CardLink, Rig, Setup

Answer = Literal["refused", "costs", "depends", "fine"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`sentence` is one line that names the values; `remedy` what to do about it."""

    rule: str
    verdict: Answer
    sentence: str
    source: str
    remedy: str | None = None


Rule = Callable[[Setup, Rig], Finding | None]  # None: the rule has nothing to say about this setup

# The write-ups, by title: they disagree in places, and the rules quote both sides where they do.
DUAL_3090 = "From 25 to 283 tok/s: Serving Qwen3.6 on Dual RTX 3090s"
QUAD_3090 = "vLLM TP=4 on 4x RTX 3090: 76.9 tok/s, no marketing spin"
SWARM = "Local LLM Bench part 2: swarms on dual RTX 3090 with NVLink, vLLM 0.17"

OLDEST_CC = 7.0  # vLLM documentation: "compute capability 7.0 or higher"
MARLIN_CC = 7.5  # vllm pull 45306: "its layers run on Marlin, which needs only cc >= 7.5"


def used_cards(setup: Setup, rig: Rig) -> tuple[Device, ...]:
    """The cards the layout takes, in the rig's order; all there are where it asks for more."""
    return rig.cards[: max(1, setup.layout.cards)]


def without(setup: Setup, rig: Rig, form: str) -> Device | None:
    """The first card in use that lacks this number format in hardware."""
    return next((card for card in used_cards(setup, rig) if form not in card.formats), None)


def worst_link(setup: Setup, rig: Rig) -> CardLink | None:
    """The slowest link inside the first tensor-parallel group; None: nobody told."""
    size = min(setup.layout.tp, len(rig.cards))
    links = [rig.link(a, b) for a in range(size) for b in range(a + 1, size)]
    if not links or any(link is None for link in links):
        return None
    return min((link for link in links if link is not None), key=lambda link: (link.p2p, link.gbs))


def capability(card: Device) -> float | None:
    return card.compute_capability if card.vendor == "nvidia" else None


def runs_cuda_kernels(card: Device) -> bool:
    """What vLLM and SGLang are built for: not CPUs and Apple's chips, and of NVIDIA's Volta and newer."""
    cc = capability(card)
    return card.vendor not in ("apple", "cpu") and (cc is None or cc >= OLDEST_CC)


def gpu_engine(setup: Setup) -> bool:
    """vLLM and its like: kernels by format, graphs, a pool."""
    return setup.engine in ("vllm", "sglang", "trtllm")


def gguf_engine(setup: Setup) -> bool:
    return setup.engine in ("llamacpp", "ik_llamacpp", "ollama")
