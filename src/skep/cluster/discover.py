"""Asks a cluster for its nodes and replicas, through a child process that imports ray.

Nodes that do not answer are listed with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep import __version__
from skep.catalog.engines import EMBEDDED, engines_with_program, own_engines
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
LOOK_S = 20.0  # for the answers of all nodes: their tasks run in parallel
_SHOWN = ("name", "model", "state", "why", "slots", "url")


def survey(address: str, *, hive: str | None = None) -> ClusterSurvey:
    """Return the nodes and the replicas of `hive`. It takes seconds."""
    require_ray()
    checked_connection(address)
    document = ask_ray(
        survey_here,
        address,
        hive,
        subject=f"the cluster at {address}",
        wait_s=SURVEY_S,
        hint="`skep cluster status` may say more",
    )
    cluster_survey: ClusterSurvey = from_document(document, ClusterSurvey)
    return cluster_survey


def ask_status(address: str) -> Message:
    """Return every node with its free resources and its replicas."""
    require_ray()
    checked_connection(address)
    message: Message = ask_ray(
        status_here, address, subject=f"the cluster at {address}", wait_s=STATUS_S
    )
    return message


# In the child process


def survey_here(address: str, hive: str | None) -> Message:
    join(address)
    import ray

    context = ray.get_runtime_context()
    cluster_survey = ClusterSurvey(
        address=context.gcs_address,
        ray=ray.__version__,
        nodes=_read_facts(named_apart(living_nodes())),
        here=context.get_node_id(),
        standing=() if hive is None else _standing(hive),
    )
    ray.shutdown()
    return to_document(cluster_survey)


def _read_facts(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes with their facts, or with the reason why there are none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(look)
    requests = []
    for node in nodes:
        on_node = task.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        requests.append(on_node.remote())
    done = _wait_for(requests, LOOK_S)
    surveyed = []
    for node, answer in zip(nodes, requests, strict=True):
        if answer not in done:
            surveyed.append(replace(node, why=f"does not answer within {LOOK_S:g} s"))
            continue
        try:
            surveyed.append(with_facts(node, ray.get(answer)))
        except Exception as error:
            surveyed.append(replace(node, why=_why(error)))
    return tuple(surveyed)


def _wait_for(requests: Sequence[Any], timeout_s: float) -> Sequence[Any]:
    """Return the requests that are answered in time."""
    import ray

    if not requests:
        return ()
    done: Sequence[Any]
    done, _ = ray.wait(requests, num_returns=len(requests), timeout=timeout_s)
    return done


def with_facts(node: Node, document: Message) -> Node:
    """Return a node with its facts if it runs this version of skep, else with the reason.

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
    last_line = lines[-1] if lines else type(error).__name__
    return f"cannot run a task of skep: {last_line[:200]}"


def _standing(hive: str) -> tuple[Launch, ...]:
    """Return the running replicas of a hive."""
    launches = []
    for description in _described(actor_name(hive, "")):
        with contextlib.suppress(LookupError, msgspec.ValidationError):  # of another version
            launches.append(from_document(description["launch"], Launch))
    return tuple(launches)


def _described(part: str) -> list[Message]:
    """Return the descriptions that replica actors whose name has this part give of themselves,
    without those that do not answer.
    """
    import ray

    requests = []
    for name in ray.util.list_named_actors():
        if part in name:
            with contextlib.suppress(ValueError):  # ended meanwhile
                requests.append(ray.get_actor(name).describe.remote())
    descriptions = []
    for answer in _wait_for(requests, STANDING_S):
        with contextlib.suppress(Exception):  # it died meanwhile
            descriptions.append(ray.get(answer))
    return descriptions


def status_here(address: str) -> Message:
    join(address)
    import ray

    context = ray.get_runtime_context()
    replicas = _described(actor_name("", ""))
    rows = rows_of(ray.nodes(), free_by_node(), replicas)
    this_node = context.get_node_id()
    # The machine and process of each hive's gateway, without the random part of its name.
    owners = {
        replica["hive"]: replica["owner"] and replica["owner"].rpartition(":")[0]
        for replica in replicas
    }
    status = {
        "address": context.gcs_address,
        "ray": ray.__version__,
        "hives": [{"name": name, "gateway": owner} for name, owner in sorted(owners.items())],
        "nodes": [{**row, "here": row["id"] == this_node} for row in rows],
    }
    ray.shutdown()
    return status


def rows_of(
    nodes: Sequence[Message], free: Mapping[str, Mapping[str, float]], replicas: Sequence[Message]
) -> list[Message]:
    """Return one row for each node, dead ones last unless they came back.

    `replicas`: as their actors describe them.
    """
    alive = nodes_of(nodes, free)
    living = {(node.name, node.address) for node in alive}
    lost = nodes_of([{**node, "Alive": True} for node in nodes if not node["Alive"]], {})
    dead = {
        (node.name, node.address): node for node in lost if (node.name, node.address) not in living
    }
    ordered = sorted(replicas, key=lambda replica: (replica["hive"], replica["row"]["name"]))
    rows = []
    for node in (*named_apart(alive), *dead.values()):
        row = {
            **msgspec.to_builtins(node),
            "alive": node not in dead.values(),
            "replicas": [
                _replica_row(replica)
                for replica in ordered
                if replica["row"].get("node_id") == node.id
            ],
        }
        del row["facts"]
        del row["why"]
        rows.append(row)
    return rows


def _replica_row(replica: Message) -> Message:
    fields = {**replica["launch"], **replica["row"]}
    return {"hive": replica["hive"], **{name: fields.get(name) for name in _SHOWN}}


# On each node


def look() -> Message:
    """Return the facts of this node."""
    # In threads: nvidia-smi takes seconds if nothing keeps the driver loaded.
    with ThreadPoolExecutor() as pool:
        cards_read = pool.submit(read_nvidia)
        memory_read = pool.submit(read_gpu_memory)
        engines = installed_engines()
        host = read_host(cards_read.result())
        memory = memory_read.result()
    used = {gpu.index: gpu.used_bytes for gpu in memory}
    assignable = lendable(host.gpus, memory, _initial_variable("CUDA_VISIBLE_DEVICES"))
    facts = NodeFacts(
        cores=host.cpu_cores,
        memory_bytes=host.memory_bytes,
        cards=tuple(
            NodeCard(**msgspec.structs.asdict(gpu), used_bytes=used.get(gpu.index))
            for gpu in assignable
        ),
        skep=__version__,
        engines=engines,
        links=links_among([gpu.index for gpu in assignable], host.links),
    )
    document: dict[str, object] = msgspec.to_builtins(facts)
    return document


def lendable(gpus: Sequence[Gpu], memory: Sequence[GpuCard], visible: str | None) -> list[Gpu]:
    """Return the GPUs in the order in which Ray assigns them, that of CUDA_VISIBLE_DEVICES."""
    if not memory:
        return list(gpus)
    by_index = {gpu.index: gpu for gpu in gpus}
    numbers = dict.fromkeys(gpu.index for gpu in visible_gpus(memory, visible))
    return [by_index[number] for number in numbers if number in by_index]


def links_among(
    cards: Sequence[int], links: Sequence[tuple[int, int, str]]
) -> tuple[tuple[int, int, str], ...]:
    """Return the links among these GPUs, with their numbers replaced by positions in `cards`."""
    ranks = {card: rank for rank, card in enumerate(cards)}
    renumbered = [(ranks[a], ranks[b], kind) for a, b, kind in links if a in ranks and b in ranks]
    return tuple((min(a, b), max(a, b), kind) for a, b, kind in renumbered)


def _initial_variable(name: str) -> str | None:
    """Return a variable as it was when this process started: Ray changes it for each task."""
    with contextlib.suppress(OSError):
        for word in reversed(Path("/proc/self/environ").read_bytes().split(b"\0")):
            if word.startswith(f"{name}=".encode()):
                return word.partition(b"=")[2].decode()
    return None


def installed_engines() -> dict[str, str | None]:
    versions: dict[str, str | None] = dict.fromkeys(
        name for name in own_engines() if name != EMBEDDED
    )
    if find_spec("xllamacpp") is not None:
        versions[EMBEDDED] = engine_named(EMBEDDED).version()
    for name in engines_with_program():
        with contextlib.suppress(UserError):
            versions[name] = version_of(find_program(name))
    return versions
