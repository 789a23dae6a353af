"""Asks a cluster for its nodes and replicas, through a child that imports ray.

Silent nodes are listed, with why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep import __version__
from skep.catalog.gpus import Gpu
from skep.cluster.connect import (
    actor_name,
    ask_ray,
    checked_connection,
    free_by_node,
    join,
    living_nodes,
    require_ray,
)
from skep.cluster.nodes import ClusterSurvey, Node, NodeCard, NodeFacts, named_apart, nodes_of
from skep.engines.base import Launch, engine_named
from skep.engines.discovery import find_program, version_of
from skep.errors import UserError
from skep.host.facts import GpuCard, read_gpu_memory, read_host, read_nvidia, visible_gpus
from skep.wire.json_pipe import Message, from_document, to_document

SURVEY_S = 90.0
STATUS_S = 60.0
STANDING_S = 3.0
LOOK_S = 20.0  # for all nodes together: they are asked in parallel
PROGRAMS = ("vllm", "sglang", "llamacpp", "ollama")
WITHIN = ("fake", "simulated")  # part of skep
_SHOWN = ("name", "model", "state", "why", "slots", "url")


def survey(address: str, *, hive: str | None = None) -> ClusterSurvey:
    """Return the nodes and the replicas of `hive`. It takes seconds."""
    require_ray()
    checked_connection(address)
    asked = f"the cluster at {address}"
    hint = "`skep cluster status` may say more"
    told = ask_ray(survey_here, address, hive, asked=asked, wait_s=SURVEY_S, hint=hint)
    cluster_survey: ClusterSurvey = from_document(told, ClusterSurvey)
    return cluster_survey


def ask_status(address: str) -> Message:
    """Return every node with its free resources and its replicas."""
    require_ray()
    checked_connection(address)
    message: Message = ask_ray(
        status_here, address, asked=f"the cluster at {address}", wait_s=STATUS_S
    )
    return message


# In the child process


def survey_here(address: str, hive: str | None) -> Message:
    join(address)
    import ray

    context = ray.get_runtime_context()
    nodes = _looked_at(named_apart(living_nodes()))
    standing = () if hive is None else _standing(hive)
    cluster_survey = ClusterSurvey(
        context.gcs_address, ray.__version__, nodes, context.get_node_id(), standing
    )
    ray.shutdown()
    return to_document(cluster_survey)


def _looked_at(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes with their facts, or with why there are none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(look)
    asked = []
    for node in nodes:
        node_affinity_scheduling_strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        asked.append(
            task.options(
                num_cpus=0, max_retries=0, scheduling_strategy=node_affinity_scheduling_strategy
            ).remote()
        )
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=LOOK_S) if asked else ((), ())
    found = []
    for node, answer in zip(nodes, asked, strict=True):
        if answer not in done:
            found.append(replace(node, why=f"does not answer within {LOOK_S:g} s"))
            continue
        try:
            found.append(told_by(node, ray.get(answer)))
        except Exception as error:
            found.append(replace(node, why=_why(error)))
    return tuple(found)


def told_by(node: Node, document: Message) -> Node:
    """Add the facts if the node runs this version of skep.

    GPUs that Ray does not assign are left out.
    """
    version = document.get("skep")
    if version != __version__:
        return replace(node, why=f"runs skep {version}, this machine runs {__version__}")
    facts = msgspec.convert(document, NodeFacts)
    return replace(node, facts=replace(facts, cards=facts.cards[: int(node.gpus)]))


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    missing = next(
        (line for line in lines if "ModuleNotFoundError" in line or "No module named" in line), ""
    )
    if "skep." in missing:
        return f"runs another version than skep {__version__}"
    if "skep" in missing:
        return "has no skep in its Ray environment"
    return f"cannot run a task of skep: {(lines[-1] if lines else type(error).__name__)[:200]}"


def _standing(hive: str) -> tuple[Launch, ...]:
    """Return the running replicas of a hive."""
    found = []
    for told in _described(actor_name(hive, "")):
        with contextlib.suppress(LookupError, msgspec.ValidationError):  # of another version
            found.append(from_document(told["launch"], Launch))
    return tuple(found)


def _described(part: str) -> list[Message]:
    """Return what the replica actors say of themselves whose name has this part; without those
    that do not answer.
    """
    import ray

    asked = []
    for name in ray.util.list_named_actors():
        if part in name:
            with contextlib.suppress(ValueError):  # gone meanwhile
                asked.append(ray.get_actor(name).describe.remote())
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=STANDING_S) if asked else ((), ())
    found = []
    for answer in done:
        with contextlib.suppress(Exception):  # it died meanwhile
            found.append(ray.get(answer))
    return found


def status_here(address: str) -> Message:
    join(address)
    import ray

    context = ray.get_runtime_context()
    replicas = _described(actor_name("", ""))
    rows = rows_of(ray.nodes(), free_by_node(), replicas)
    here = context.get_node_id()
    # Machine, process.
    owners = {
        replica["hive"]: replica["owner"] and replica["owner"].rpartition(":")[0]
        for replica in replicas
    }
    told = {
        "address": context.gcs_address,
        "ray": ray.__version__,
        "hives": [{"name": name, "gateway": owner} for name, owner in sorted(owners.items())],
        "nodes": [{**row, "here": row["id"] == here} for row in rows],
    }
    ray.shutdown()
    return told


def rows_of(
    nodes: Sequence[Message], free: Mapping[str, Mapping[str, float]], replicas: Sequence[Message]
) -> list[Message]:
    """Return one row for each node, dead ones last unless they came back.

    `replicas`: as their actors describe them.
    """
    alive = nodes_of(nodes, free)
    here = {(node.name, node.address) for node in alive}
    lost = nodes_of([{**node, "Alive": True} for node in nodes if not node["Alive"]], {})
    gone = {
        (node.name, node.address): node for node in lost if (node.name, node.address) not in here
    }
    rows = []
    for node in (*named_apart(alive), *gone.values()):
        standing = [
            {
                "hive": replica["hive"],
                **{key: {**replica["launch"], **replica["row"]}.get(key) for key in _SHOWN},
            }
            for replica in sorted(replicas, key=lambda one: (one["hive"], one["row"]["name"]))
            if replica["row"].get("node_id") == node.id
        ]
        told = {
            **msgspec.to_builtins(node),
            "alive": node not in gone.values(),
            "replicas": standing,
        }
        del told["facts"], told["why"]
        rows.append(told)
    return rows


# On each node


def look() -> Message:
    """Return the facts of this node."""
    with (
        ThreadPoolExecutor() as pool
    ):  # nvidia-smi takes seconds if nothing keeps the driver loaded
        cards_read = pool.submit(read_nvidia)
        memory_read = pool.submit(read_gpu_memory)
        engines = installed_engines()
        host = read_host(cards_read.result())
        memory = memory_read.result()
    used = {gpu.index: gpu.used_bytes for gpu in memory}
    lent = lendable(host.gpus, memory, _of_the_node("CUDA_VISIBLE_DEVICES"))
    facts = NodeFacts(
        cores=host.cpu_cores,
        memory_bytes=host.memory_bytes,
        cards=tuple(
            NodeCard(**msgspec.structs.asdict(gpu), used_bytes=used.get(gpu.index)) for gpu in lent
        ),
        skep=__version__,
        engines=engines,
        links=links_among([gpu.index for gpu in lent], host.links),
    )
    told: dict[str, object] = msgspec.to_builtins(facts)
    return told


def lendable(gpus: Sequence[Gpu], memory: Sequence[GpuCard], visible: str | None) -> list[Gpu]:
    """Return the GPUs in the order in which Ray assigns them, that of CUDA_VISIBLE_DEVICES."""
    if not memory:
        return list(gpus)
    known = {gpu.index: gpu for gpu in gpus}
    numbers = dict.fromkeys(gpu.index for gpu in visible_gpus(memory, visible))
    return [known[number] for number in numbers if number in known]


def links_among(
    cards: Sequence[int], links: Sequence[tuple[int, int, str]]
) -> tuple[tuple[int, int, str], ...]:
    """Return the links with card numbers replaced by positions in `cards`, without links to other
    cards.
    """
    ranks = {card: rank for rank, card in enumerate(cards)}
    kept = [(ranks[a], ranks[b], kind) for a, b, kind in links if a in ranks and b in ranks]
    return tuple((min(a, b), max(a, b), kind) for a, b, kind in kept)


def _of_the_node(name: str) -> str | None:
    """Return a variable from the start of this process: Ray changes it for each task."""
    with contextlib.suppress(OSError):
        for word in reversed(Path("/proc/self/environ").read_bytes().split(b"\0")):
            if word.startswith(f"{name}=".encode()):
                return word.partition(b"=")[2].decode()
    return None


def installed_engines() -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(WITHIN)
    if find_spec("xllamacpp") is not None:
        found["embedded"] = engine_named("embedded").version()
    for name in PROGRAMS:
        with contextlib.suppress(UserError):
            found[name] = version_of(find_program(name))
    return found
