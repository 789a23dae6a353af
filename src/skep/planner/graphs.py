"""Which batch sizes vLLM records as CUDA graphs, and what the recordings keep."""

from __future__ import annotations

from skep.catalog.devices import Device
from skep.planner.memory_facts import (
    GRAPH_BASE_BYTES,
    GRAPH_FULL_BYTES,
    GRAPH_PIECEWISE_BYTES,
    GRAPHS_INSIDE_SINCE,
    version_of,
)
from skep.planner.setup import Setup

LARGEST_CAPTURE = 512


def capture_sizes(slots: int, depth: int = 0) -> tuple[int, ...]:
    """1, 2, 4, every 8 up to 256, then every 16; at most twice what the slots decode at once, and at most 512."""
    top = min(2 * max(1, slots) * (1 + depth), LARGEST_CAPTURE)
    sizes = [n for n in (1, 2, 4) if n <= top]
    sizes += range(8, min(top, 256) + 1, 8)
    sizes += range(272, top + 1, 16)
    return tuple(sizes)


def full_sizes(slots: int, depth: int = 0) -> tuple[int, ...]:
    """Whole decode steps are recorded too, up to the number of slots; with speculation most kernels cannot."""
    return () if depth else tuple(n for n in capture_sizes(slots) if n <= max(1, slots))


def drafts(setup: Setup) -> int:
    """Tokens drafted a step; 0 without speculation."""
    return max(0, setup.spec.depth) if setup.spec else 0


def graph_bytes(setup: Setup, card: Device, slots: int) -> int:
    """On one card. The activations of a recording are shared by all sizes; what is left grows with sizes and layers."""
    if not setup.graphs or card.vendor not in ("nvidia", "amd"):
        return 0
    depth = drafts(setup)
    layers = setup.model.layers / setup.layout.pp
    pieces = len(capture_sizes(slots, depth)) * GRAPH_PIECEWISE_BYTES * layers
    full = len(full_sizes(slots, depth)) * GRAPH_FULL_BYTES * layers
    return int(GRAPH_BASE_BYTES + pieces + full)


def graphs_inside(setup: Setup) -> bool:
    """Newer vLLM sizes the KV pool with the graphs in mind; older ones record them in what the budget leaves."""
    version = version_of(setup.version)
    return setup.engine == "vllm" and version is not None and version[:2] >= GRAPHS_INSIDE_SINCE
