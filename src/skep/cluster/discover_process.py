"""The child process `python -m skep.cluster.discover_process ADDRESS`, which prints the nodes of a cluster.

A node that cannot be asked is listed too, with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from skep import __version__
from skep.catalog.gpus import Gpu
from skep.cluster import ray_subprocess
from skep.cluster.connect import join
from skep.cluster.nodes import named_apart
from skep.cluster.placement_groups import actor_name, living_nodes, placed_names
from skep.cluster.values import ClusterSurvey, Node, NodeCard, NodeFacts
from skep.engines.base import Launch, engine_named
from skep.engines.discovery import find_program, version_of
from skep.errors import UserError
from skep.host.facts import read_host
from skep.host.nvidia import GpuCard, read_gpu_memory, read_nvidia, visible_gpus
from skep.wire.json_pipe import from_document, to_document

PROGRAMS = ("vllm", "sglang", "llamacpp", "ollama")
WITHIN = ("fake", "simulated")  # part of skep


def look(paths: Sequence[str] = ()) -> dict[str, Any]:
    """Return the facts of this node; `paths`: files, folders and programs to look for."""
    with ThreadPoolExecutor() as pool:  # nvidia-smi takes seconds if nothing keeps the driver loaded
        cards_read, memory_read = pool.submit(read_nvidia), pool.submit(read_gpu_memory)
        engines = installed_engines()
        host, memory = read_host(cards_read.result()), memory_read.result()
    used = {gpu.index: gpu.used_bytes for gpu in memory}
    lent = lendable(host.gpus, memory, _of_the_node("CUDA_VISIBLE_DEVICES"))
    cards = tuple(NodeCard(**asdict(gpu), used_bytes=used.get(gpu.index)) for gpu in lent)
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


def lendable(gpus: Sequence[Gpu], memory: Sequence[GpuCard], visible: str | None) -> list[Gpu]:
    """Return the GPUs in the order in which Ray assigns them, that of CUDA_VISIBLE_DEVICES."""
    if not memory:
        return list(gpus)
    known = {gpu.index: gpu for gpu in gpus}
    numbers = dict.fromkeys(gpu.index for gpu in visible_gpus(memory, visible))
    return [known[number] for number in numbers if number in known]


def links_among(cards: Sequence[int], links: Sequence[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """Return the links with card numbers replaced by positions in `cards`, without links to other cards."""
    ranks = {card: rank for rank, card in enumerate(cards)}
    kept = [(ranks[a], ranks[b], kind) for a, b, kind in links if a in ranks and b in ranks]
    return tuple((min(a, b), max(a, b), kind) for a, b, kind in kept)


def _of_the_node(name: str) -> str | None:
    """Return a variable from the start of this process: Ray changes it for each task."""
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


STANDING_S = 3.0
LOOK_S = 20.0  # for all nodes together: they are asked in parallel


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="skep.cluster.discover_process")
    options.add_argument("address")
    options.add_argument("--path", action="append", default=[], help="ask each node whether it has this path")
    options.add_argument("--hive", help="list the running replicas of this hive too")
    told = options.parse_args(argv)
    return ray_subprocess.tell(lambda: {"survey": to_document(_survey(told.address, told.path, told.hive))})


def _survey(address: str, paths: Sequence[str], hive: str | None) -> ClusterSurvey:
    join(address)
    import ray

    try:
        context = ray.get_runtime_context()
        nodes = _looked_at(named_apart(living_nodes()), paths)
        standing, housed = ((), None) if hive is None else (_standing(hive), tuple(placed_names(hive)))
        return ClusterSurvey(
            context.gcs_address, ray.__version__, tuple(nodes), context.get_node_id(), standing, housed
        )
    finally:
        ray.shutdown()


def _looked_at(nodes: Sequence[Node], paths: Sequence[str]) -> list[Node]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(look)
    asked = {
        node.id: task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
        ).remote(list(paths))
        for node in nodes
    }
    done, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=LOOK_S) if asked else ((), ())
    return [_with_facts(node, asked[node.id] if asked[node.id] in done else None) for node in nodes]


def _with_facts(node: Node, answer: Any | None) -> Node:
    import ray

    if answer is None:
        return replace(node, why=f"does not answer within {LOOK_S:g} s")
    try:
        return told_by(node, ray.get(answer))
    except Exception as error:
        return replace(node, why=_why(error))


def told_by(node: Node, document: Mapping[str, Any]) -> Node:
    """Add the facts if the node runs this version of skep. GPUs that Ray does not assign are left out."""
    version = document.get("skep")
    if version != __version__:
        return replace(node, why=f"runs skep {version}, this machine runs {__version__}")
    facts = msgspec.convert(document, NodeFacts)
    return replace(node, facts=replace(facts, cards=facts.cards[: int(node.gpus)]))


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    missing = next((line for line in lines if "ModuleNotFoundError" in line or "No module named" in line), None)
    if missing is not None and "skep" in missing:
        other = "skep." in missing
        return f"runs another version than skep {__version__}" if other else "has no skep in the environment of its Ray"
    return f"cannot run a task of skep: {(lines[-1] if lines else type(error).__name__)[:200]}"


def _standing(hive: str) -> tuple[Launch, ...]:
    """Return the running replicas; an actor that does not answer has not started yet."""
    import ray

    names = [name for name in ray.util.list_named_actors() if name.startswith(actor_name(hive, ""))]
    asked = []
    for name in names:
        with contextlib.suppress(ValueError):  # gone meanwhile
            asked.append(ray.get_actor(name).describe.remote())
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=STANDING_S) if asked else ((), ())
    found = []
    for answer in done:
        with contextlib.suppress(Exception):  # it died meanwhile, or is of another version
            found.append(from_document(ray.get(answer), Launch))
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main())
