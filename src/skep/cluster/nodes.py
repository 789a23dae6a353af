"""The nodes of a cluster: facts, what is free, and which node would take which replica before Ray
places it. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Gpu, HostFacts
from skep.engines.base import Launch, PlacementRequest
from skep.units import format_bytes

NODES_SHOWN = 8  # nodes that an error lists
HEAD_RESOURCE = "node:__internal_head__"  # a resource that only the head has
MOST_REPLICAS = 1024  # replicas of one model
_EPSILON = 1e-6  # Ray counts in ten-thousandths


class NodeCard(Gpu, frozen=True):
    used_bytes: int | None = None


class NodeFacts(msgspec.Struct, frozen=True):
    """What a task of skep has read on the node itself."""

    cores: int
    memory_bytes: int | None
    cards: tuple[NodeCard, ...] = ()
    skep: str = ""  # its version on the node
    engines: Mapping[str, str | None] = {}  # installed ones, with their version
    links: tuple[tuple[int, int, str], ...] = ()  # between cards, by their rank among `cards`


class Node(msgspec.Struct, frozen=True):
    """One node with the resources that Ray counts.

    `facts` is None if they were not read, or could not be (`why`).
    """

    id: str
    name: str  # unique among the nodes
    address: str
    head: bool = False
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0
    free_cpus: float = 0.0
    free_gpus: float = 0.0
    free_memory_bytes: int = 0
    facts: NodeFacts | None = None
    why: str | None = None

    @property
    def cards(self) -> tuple[NodeCard, ...]:
        if self.facts is not None:
            return self.facts.cards
        return ()

    @property
    def engines(self) -> Mapping[str, str | None]:
        if self.facts is not None:
            return self.facts.engines
        return {}

    @property
    def kind(self) -> str:
        """Return the GPUs of the node in words, such as `2x NVIDIA GeForce RTX 3090`.

        Nodes of one kind get the same plan.
        """
        counts = Counter(card.name for card in self.cards)
        if counts:
            return " + ".join(f"{count}x {name}" for name, count in sorted(counts.items()))
        if self.gpus:
            return f"{self.gpus:g} GPUs"
        return "CPU only"

    @property
    def names(self) -> set[str]:
        """Return its name, and the one that it has among nodes that share it."""
        return {self.name, f"{self.name}-{self.id[:6]}"}

    def has_room(self, place: PlacementRequest) -> bool:
        """Return whether the requested resources are free."""
        return (
            place.cards <= self.free_gpus + _EPSILON
            and place.cpus <= self.free_cpus + _EPSILON
            and place.memory_bytes <= self.free_memory_bytes
        )

    def without(self, place: PlacementRequest) -> Node:
        """Return the node with what one more replica leaves free."""
        return replace(
            self,
            free_gpus=self.free_gpus - place.cards,
            free_cpus=self.free_cpus - place.cpus,
            free_memory_bytes=self.free_memory_bytes - place.memory_bytes,
        )

    def describe(self) -> str:
        if self.gpus:
            gpus = f"{self.free_gpus:g} of {self.gpus:g} GPUs"
        else:
            gpus = "no GPU"
        memory = f"{format_bytes(self.free_memory_bytes)} of {format_bytes(self.memory_bytes)}"
        return f"{self.name} has {gpus}, {self.free_cpus:g} of {self.cpus:g} CPUs, {memory} free"


class ClusterSurvey(msgspec.Struct, frozen=True):
    address: str  # of its head
    ray: str  # version
    nodes: tuple[Node, ...]
    here: str | None = None  # the id of the node that this machine is
    # The replicas of the hive that run already, as their actors were created.
    standing: tuple[Launch, ...] = ()

    @property
    def kinds(self) -> dict[str, list[Node]]:
        nodes_by_kind: dict[str, list[Node]] = {}
        for node in self.nodes:
            nodes_by_kind.setdefault(node.kind, []).append(node)
        return nodes_by_kind


def can_keep_actor(old: Launch, new: Launch) -> bool:
    """Return whether the actor of `old` can serve `new`: they differ only in placement and in what
    the gateway does.
    """
    return replace(old, place=None).same_process(replace(new, place=None))


def nodes_of(
    rows: Iterable[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]
) -> list[Node]:
    """Return the live nodes of `ray.nodes()` with their free resources, the head first."""
    nodes = []
    for row in rows:
        if not row["Alive"]:
            continue
        resources = row["Resources"]
        free_resources = free.get(row["NodeID"], {})
        nodes.append(
            Node(
                id=row["NodeID"],
                name=row.get("NodeName") or row["NodeManagerAddress"],
                address=row["NodeManagerAddress"],
                head=HEAD_RESOURCE in resources,
                cpus=resources.get("CPU", 0.0),
                gpus=resources.get("GPU", 0.0),
                memory_bytes=int(resources.get("memory", 0)),
                free_cpus=free_resources.get("CPU", 0.0),
                free_gpus=free_resources.get("GPU", 0.0),
                free_memory_bytes=int(free_resources.get("memory", 0)),
            )
        )
    return sorted(nodes, key=lambda node: (not node.head, node.name, node.id))


def named_apart(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with unique names: a shared one gets the first letters of the node's id."""
    names = Counter(node.name for node in nodes)
    return [
        node if names[node.name] == 1 else replace(node, name=f"{node.name}-{node.id[:6]}")
        for node in nodes
    ]


def host_of(node: Node) -> HostFacts:
    """Return the node as the machine that a plan is made for."""
    facts = node.facts or NodeFacts(int(node.cpus), None)
    return HostFacts(
        os="",
        machine="",
        python="",
        cpu_model=None,
        cpu_cores=facts.cores,
        cpu_features=(),
        memory_bytes=facts.memory_bytes,
        memory_available_bytes=None,
        open_files_soft=None,
        open_files_hard=None,
        gpus=facts.cards,
        links=facts.links,
    )


# Which nodes a replica may use


def allowed(place: PlacementRequest, nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that a replica may use.

    It names nodes as they were at its start; one that came back may be listed twice.
    """
    return [node for node in nodes if not place.nodes or node.names & set(place.nodes)]


def fitting(place: PlacementRequest, nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.has_room(place)]


# Nodes that get no replica


class LeftOut(msgspec.Struct, frozen=True):
    """A node that gets no replica at a start."""

    node: Node
    why: str  # what it lacks, to be read after its name

    def __str__(self) -> str:
        return f"{self.node.name} {self.why}"


def busy_cards(node: Node, share: float) -> str | None:
    """Return the GPUs that Ray would assign although others use them, in words; None: there are
    none. `share` of each should be free.

    Ray reports how many it has assigned, not which: so many may be full. The replica's actor
    finds what is overlooked here.
    """
    sizes = [(card.index, card.memory_bytes, card.used_bytes) for card in node.cards]
    full = [
        f"GPU {index} ({format_bytes(whole - used)} of {format_bytes(whole)} free)"
        for index, whole, used in sizes
        if whole and used and whole - used < share * whole
    ]
    # One that is assigned in part is assigned to nobody else.
    assigned = math.ceil(node.gpus - node.free_gpus - _EPSILON)
    if len(full) <= assigned:
        return None
    reason = f"has busy cards: {', '.join(full)}"
    if assigned:
        reason += f"; Ray assigned {assigned} of them"
    return reason


# What fits


def assign_nodes(places: Sequence[PlacementRequest], nodes: Sequence[Node]) -> list[str | None]:
    """Return the id of each request's node, None if none fits.

    The largest requests choose first; each goes where the fewest replicas are.
    """
    node_ids: list[str | None] = [None] * len(places)
    remaining = {node.id: node for node in nodes}
    taken = Counter[str]()
    for number in sorted(range(len(places)), key=lambda n: (-places[n].cards, -places[n].cpus)):
        place = places[number]

        def preference(node: Node, place: PlacementRequest = place) -> tuple[float, ...]:
            wastes_gpus = bool(node.free_gpus) and not place.cards
            return (
                taken[node.id],
                wastes_gpus,
                -node.free_gpus,
                -node.free_cpus,
                -node.free_memory_bytes,
            )

        best = min(
            fitting(place, allowed(place, remaining.values())), key=preference, default=None
        )
        if best is not None:
            node_ids[number] = best.id
            remaining[best.id] = best.without(place)
            taken[best.id] += 1
    return node_ids


def capacity(place: PlacementRequest, nodes: Sequence[Node]) -> int:
    """Return how many replicas of one kind fit on the nodes."""
    return MOST_REPLICAS - assign_nodes([place] * MOST_REPLICAS, nodes).count(None)


def describe_request(place: PlacementRequest) -> str:
    """Return a request in words: `2 GPUs, 2 CPUs, 1.0 GiB of memory`."""
    parts = []
    if place.cards:
        plural = "s" if place.cards > 1 else ""
        parts.append(f"{place.cards} GPU{plural}")
    if place.cpus:
        plural = "s" if place.cpus != 1 else ""
        parts.append(f"{place.cpus:g} CPU{plural}")
    if place.memory_bytes:
        parts.append(f"{format_bytes(place.memory_bytes)} of memory")
    return ", ".join(parts) or "nothing"


def has_words(nodes: Sequence[Node]) -> str:
    """Return in words what each node has, for the first `NODES_SHOWN`."""
    descriptions = [node.describe() for node in nodes[:NODES_SHOWN]]
    if len(nodes) > NODES_SHOWN:
        descriptions.append(f"and {len(nodes) - NODES_SHOWN} more")
    return "; ".join(descriptions)
