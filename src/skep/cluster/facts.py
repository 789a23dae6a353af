"""What a node is, told by a task that runs on it. Imported there, so it needs nothing but skep itself.

The answer is a plain document: a node with another version of skep has other classes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skep import __version__
from skep.catalog.machine import Gpu
from skep.cluster.values import NodeCard, NodeFacts
from skep.engines.base import engine_named
from skep.engines.installed import find_program, version_of
from skep.errors import UserError
from skep.host.facts import read_host
from skep.host.nvidia import GpuMemory, read_gpu_memory, read_nvidia, visible_gpus

PROGRAMS = ("vllm", "sglang", "llamacpp", "ollama")
WITHIN = ("fake", "simulated")  # part of skep


def look(paths: Sequence[str] = ()) -> dict[str, Any]:
    """The facts of the node that this runs on; `paths`: files, folders and programs that should be there."""
    with ThreadPoolExecutor() as pool:  # nvidia-smi takes seconds where nothing keeps the driver awake
        cards_read, memory_read = pool.submit(read_nvidia), pool.submit(read_gpu_memory)
        engines = installed_engines()
        host, memory = read_host(cards_read.result()), memory_read.result()
    used = {gpu.index: gpu.used_bytes for gpu in memory}
    lent = lendable(host.gpus, memory, _of_the_node("CUDA_VISIBLE_DEVICES"))
    cards = tuple(
        NodeCard(
            index=gpu.index,
            name=gpu.name,
            total_bytes=gpu.memory_bytes,
            used_bytes=used.get(gpu.index),
            compute_capability=gpu.compute_capability,
            pcie_generation=gpu.pcie_generation_max,
            pcie_lanes=gpu.pcie_lanes,
        )
        for gpu in lent
    )
    facts = NodeFacts(
        cores=host.cpu_cores,
        memory_bytes=host.memory_bytes,
        cards=cards,
        skep=__version__,
        engines=engines,
        links=links_among([gpu.index for gpu in lent], host.links),
        paths={path: os.path.exists(os.path.expanduser(path)) for path in paths},  # noqa: PTH110, PTH111 - never raise
    )
    return asdict(facts)


def lendable(gpus: Sequence[Gpu], memory: Sequence[GpuMemory], visible: str | None) -> list[Gpu]:
    """In the order in which Ray lends them: that of CUDA_VISIBLE_DEVICES. Ray with fewer has the first ones."""
    if not memory:
        return list(gpus)
    known = {gpu.index: gpu for gpu in gpus}
    numbers = dict.fromkeys(gpu.index for gpu in visible_gpus(memory, visible))
    return [known[number] for number in numbers if number in known]


def links_among(cards: Sequence[int], links: Sequence[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """From numbers of cards to ranks in `cards`; those to other cards are left out."""
    ranks = {card: rank for rank, card in enumerate(cards)}
    kept = [(ranks[a], ranks[b], kind) for a, b, kind in links if a in ranks and b in ranks]
    return tuple((min(a, b), max(a, b), kind) for a, b, kind in kept)


def _of_the_node(name: str) -> str | None:
    """A variable as this process was started with it: Ray sets it anew for each task."""
    try:
        words = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [word.partition(b"=")[2] for word in words if word.startswith(f"{name}=".encode())]
    return found[-1].decode() if found else None


def installed_engines() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    if find_spec("xllamacpp") is not None:
        found["embedded"] = engine_named("embedded").version()
    for name in PROGRAMS:
        try:
            found[name] = version_of(find_program(name))
        except UserError:
            continue
    return {**found, **dict.fromkeys(WITHIN)}
