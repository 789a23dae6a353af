"""The nodes of a cluster: facts, what is free, and which would take which replica before Ray places it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Gpu, HostFacts
from skep.engines.base import Launch, PlacementRequest
from skep.units import format_bytes

SHOWN = 8  # nodes that an error lists
HEAD = "node:__internal_head__"  # a resource that only the head has
MOST = 1024  # replicas of one model
_EPSILON = 1e-6  # Ray counts in ten-thousandths


class NodeCard(Gpu, frozen=True):
    used_bytes: int | None = None


class NodeFacts(msgspec.Struct, frozen=True):
    """What a task of skep found on the node itself."""

    cores: int
    memory_bytes: int | None
    cards: tuple[NodeCard, ...] = ()
    skep: str = ""  # its version on the node
    engines: Mapping[str, str | None] = {}  # installed ones, with their version
    links: tuple[tuple[int, int, str], ...] = ()  # between cards, by their rank among `cards`
    paths: Mapping[str, bool] = {}  # of those asked for: does it exist on the node


class Node(msgspec.Struct, frozen=True):
    """One node with the resources that Ray counts. `facts` is None if nobody looked or looking failed (`why`)."""

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
    labels: Mapping[str, str] = {}
    facts: NodeFacts | None = None
    why: str | None = None

    @property
    def cards(self) -> tuple[NodeCard, ...]:
        return self.facts.cards if self.facts is not None else ()

    @property
    def engines(self) -> Mapping[str, str | None]:
        return self.facts.engines if self.facts is not None else {}

    @property
    def kind(self) -> str:
        """The GPUs of the node, such as `2x NVIDIA GeForce RTX 3090`. Nodes of one kind get the same plan."""
        counts = Counter(card.name for card in self.cards)
        if counts:
            return " + ".join(f"{count}x {name}" for name, count in sorted(counts.items()))
        return f"{self.gpus:g} GPUs" if self.gpus else "CPU only"

    @property
    def long_name(self) -> str:
        """Its name among nodes that share one."""
        return f"{self.name}-{self.id[:6]}"

    def holds(self, place: PlacementRequest) -> bool:
        """Return whether it may be used and has the requested resources free."""
        return (
            (not place.nodes or self.name in place.nodes)
            and self.name not in place.shunned
            and place.cards <= self.free_gpus + _EPSILON
            and place.cpus <= self.free_cpus + _EPSILON
            and place.memory_bytes <= self.free_memory_bytes
        )

    def without(self, place: PlacementRequest) -> Node:
        """Return it with what is free beside one more replica."""
        left = self.free_gpus - place.cards, self.free_cpus - place.cpus, self.free_memory_bytes - place.memory_bytes
        return replace(self, free_gpus=left[0], free_cpus=left[1], free_memory_bytes=left[2])

    def describe(self) -> str:
        gpus = f"{self.free_gpus:g} of {self.gpus:g} GPUs" if self.gpus else "no GPU"
        memory = f"{format_bytes(self.free_memory_bytes)} of {format_bytes(self.memory_bytes)}"
        return f"{self.name} has {gpus}, {self.free_cpus:g} of {self.cpus:g} CPUs, {memory} free"


class ClusterSurvey(msgspec.Struct, frozen=True):
    address: str  # of its head
    ray: str  # version
    nodes: tuple[Node, ...]
    here: str | None = None  # the id of the node that this machine is
    standing: tuple[Launch, ...] = ()  # replicas of the hive that run already, as their actors were created
    housed: tuple[str, ...] | None = None  # replicas of the hive whose placement group is ready; None: not asked

    @property
    def kinds(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.kind, []).append(node)
        return found


def can_keep_actor(old: Launch, new: Launch) -> bool:
    """Return whether the actor of `old` can serve `new`: they differ only in placement and in what the gateway does."""
    return replace(old, place=None).same_process(replace(new, place=None))


def nodes_of(rows: Iterable[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]) -> list[Node]:
    """Return the live nodes of `ray.nodes()` with their free resources, the head first."""
    nodes = []
    for row in rows:
        if not row["Alive"]:
            continue
        has, left = row["Resources"], free.get(row["NodeID"], {})
        nodes.append(
            Node(
                id=row["NodeID"],
                name=row.get("NodeName") or row["NodeManagerAddress"],
                address=row["NodeManagerAddress"],
                head=HEAD in has,
                cpus=has.get("CPU", 0.0),
                gpus=has.get("GPU", 0.0),
                memory_bytes=int(has.get("memory", 0)),
                free_cpus=left.get("CPU", 0.0),
                free_gpus=left.get("GPU", 0.0),
                free_memory_bytes=int(left.get("memory", 0)),
                labels={name: value for name, value in row.get("Labels", {}).items() if not name.startswith("ray.io/")},
            )
        )
    return sorted(nodes, key=lambda node: (not node.head, node.name, node.id))


def named_apart(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with unique names: those that share one get the first letters of their id."""
    names = Counter(node.name for node in nodes)
    return [node if names[node.name] == 1 else replace(node, name=node.long_name) for node in nodes]


def host_of(node: Node) -> HostFacts:
    """Return the node as the machine that a plan is made for."""
    facts = node.facts or NodeFacts(int(node.cpus), None)
    return HostFacts(
        os="", machine="", python="", cpu_model=None, cpu_cores=facts.cores, cpu_features=(),
        memory_bytes=facts.memory_bytes, memory_available_bytes=None, open_files_soft=None, open_files_hard=None,
        gpus=facts.cards, links=facts.links,
    )  # fmt: skip


# Which nodes a replica may use


class NodeChoice(msgspec.Struct, frozen=True):
    """The nodes that a replica may use, by current id. If `only` is None, any but those of `never`."""

    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return self.only is not None and not self.only

    def takes(self, node: Node) -> bool:
        return node.id not in self.never if self.only is None else node.id in self.only

    def selector(self) -> str | None:
        if self.only is not None:
            return f"in({','.join(sorted(self.only))})"
        return f"!in({','.join(sorted(self.never))})" if self.never else None


def choice_of(place: PlacementRequest, avoid: Collection[str], nodes: Sequence[Node]) -> NodeChoice:
    """Return the allowed nodes. `avoid`: names not to use; a node that came back may be in `nodes` twice."""

    def ids(names: Collection[str]) -> frozenset[str]:
        return frozenset(node.id for node in nodes if node.name in names or node.long_name in names)

    never = ids(avoid)
    return NodeChoice(ids(place.nodes) - never) if place.nodes else NodeChoice(never=never)


def first_choice(place: PlacementRequest, avoid: Collection[str], nodes: Sequence[Node]) -> NodeChoice:
    """Return the choice without shunned nodes, unless only these have room."""
    far, near = choice_of(place, avoid, nodes), choice_of(place, (*avoid, *place.shunned), nodes)
    return far if near.is_empty or (fitting(place, far, nodes) and not fitting(place, near, nodes)) else near


def fitting(place: PlacementRequest, choice: NodeChoice, nodes: Iterable[Node]) -> list[Node]:
    """Return the allowed nodes that have the requested resources free."""
    asked = replace(place, nodes=(), shunned=())  # names may have changed; `choice` has the ids
    return [node for node in nodes if choice.takes(node) and node.holds(asked)]


# Nodes that get no replica


class LeftOut(msgspec.Struct, frozen=True):
    """A node that gets no replica at a start; `busy`: because others use its GPUs at the moment."""

    node: Node
    why: str  # what it lacks, to be read after its name; of a busy one a clause of its own
    busy: bool = False

    def __str__(self) -> str:
        return f"{self.node.name}{':' if self.busy else ''} {self.why}"


def left_out_lines(found: Iterable[LeftOut]) -> list[str]:
    """Return one line for each node left out, at most `SHOWN`."""
    lines = list(dict.fromkeys(f"{one.node.name} is left out: {'' if one.busy else 'it '}{one.why}" for one in found))
    more = len(lines) - SHOWN
    return lines[:SHOWN] + ([f"{more} more node{'s are' if more > 1 else ' is'} left out"] if more > 0 else [])


def split_busy(nodes: Iterable[Node], share: float) -> tuple[tuple[Node, ...], tuple[LeftOut, ...]]:
    """Return the nodes whose GPUs are free, `share` of each, and those whose GPUs others use."""
    words = [(node, busy_cards(node, share)) for node in nodes]
    busy = tuple(LeftOut(node, why, busy=True) for node, why in words if why is not None)
    return tuple(node for node, why in words if why is None), busy


def busy_cards(node: Node, share: float) -> str | None:
    """Return the cards that Ray would lend and that somebody else holds, in words; `share` of each should be free.

    Ray says how many it has lent, not which: so many may be full. What this misses, the replica's actor finds.
    """
    sizes = [(card.index, card.memory_bytes, card.used_bytes) for card in node.cards]
    full = [
        (index, f"{format_bytes(whole - used)} of {format_bytes(whole)}")
        for index, whole, used in sizes
        if whole and used and whole - used < share * whole
    ]
    lent = math.ceil(node.gpus - node.free_gpus - _EPSILON)  # one that is lent in part is lent to nobody else
    if len(full) <= lent:
        return None
    if len(full) == 1:
        return "GPU {} is busy: {} are free".format(*full[0])
    named = [f"GPU {index} ({room} free)" for index, room in full]
    which = f"full, Ray assigned {lent} of them" if lent else "busy"
    return f"{', '.join(named[:-1])} and {named[-1]} are {which}"


# What fits


def assign_nodes(
    places: Sequence[PlacementRequest], nodes: Sequence[Node]
) -> tuple[list[str | None], tuple[Node, ...]]:
    """Return the id of each request's node, None if none fits, and the nodes with what is left.

    Most GPUs choose first; each goes where fewest are.
    """
    found: list[str | None] = [None] * len(places)
    left, taken = {node.id: node for node in nodes}, Counter[str]()
    for number in sorted(range(len(places)), key=lambda n: (-places[n].cards, -places[n].cpus)):
        place = places[number]

        def preference(node: Node, place: PlacementRequest = place) -> tuple[float, ...]:
            spared = bool(node.free_gpus) and not place.cards
            return taken[node.id], spared, -node.free_gpus, -node.free_cpus, -node.free_memory_bytes

        best = min((node for node in left.values() if node.holds(place)), key=preference, default=None)
        if best is not None:
            found[number], left[best.id] = best.id, best.without(place)
            taken[best.id] += 1
    return found, tuple(left.values())


def kept_and_unplaceable(
    asked: Sequence[Launch], running: Sequence[Launch], survey: ClusterSurvey, avoid: Collection[str] = ()
) -> tuple[set[str], set[str]]:
    """Return the names of replicas that stay as they are and of those that do not fit.

    Who stays keeps what it has, and who of them waits for room was there first; fewer of what stands need none. Where
    one goes and others come or change, the whole nodes count. `avoid`: nodes on which nothing new is to stand.
    """
    stand = {launch.name: launch for launch in running if launch.place is not None}
    stays = {one.name for one in asked if one.name in stand and can_keep_actor(stand[one.name], one)}
    places = {one.name: one.place for one in asked if one.place is not None}
    elsewhere = {name: replace(place, shunned=(*place.shunned, *avoid)) for name, place in places.items()}
    new = {name: place for name, place in elsewhere.items() if name not in stays}
    if not new:
        return stays, set()
    waiting = {name for name in places if name in stays and survey.housed is not None and name not in survey.housed}
    if stays == stand.keys():
        _, nodes = assign_nodes([elsewhere[name] for name in places if name in waiting], survey.nodes)
    else:
        nodes = tuple(
            replace(one, free_gpus=one.gpus, free_cpus=one.cpus, free_memory_bytes=one.memory_bytes)
            for one in survey.nodes
        )
        new |= {name: place for name, place in places.items() if name in stays - waiting}
    found, _ = assign_nodes(list(new.values()), nodes)
    return stays, {name for name, node in zip(new, found, strict=True) if node is None}


def capacity(place: PlacementRequest, nodes: Sequence[Node]) -> int:
    found, _ = assign_nodes([place] * MOST, nodes)
    return MOST - found.count(None)


def threads_each(replicas: int, nodes: Sequence[Node]) -> int:
    """CPU threads of each, where so many share these nodes' free cores as evenly as nodes allow; at least 1."""
    cores = {
        node.id: min(int(node.free_cpus + _EPSILON), node.facts.cores if node.facts is not None else int(node.cpus))
        for node in nodes
    }
    if not cores:
        return 1
    taken: Counter[str] = Counter()
    for _ in range(min(replicas, MOST)):
        taken[max(cores, key=lambda node: cores[node] / (taken[node] + 1))] += 1
    return max(1, min((cores[node] // count for node, count in taken.items()), default=1))


def describe_request(place: PlacementRequest) -> str:
    """Return a request in words: `2 GPUs, 2 CPUs and 1.0 GiB of memory`."""
    parts = [f"{place.cards} GPU{'s' if place.cards > 1 else ''}"] if place.cards else []
    parts += [f"{place.cpus:g} CPU{'s' if place.cpus != 1 else ''}"] if place.cpus else []
    parts += [f"{format_bytes(place.memory_bytes)} of memory"] if place.memory_bytes else []
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else "nothing"


def has_words(nodes: Sequence[Node]) -> str:
    """Return what each node has, for the first `SHOWN`."""
    shown = "; ".join(node.describe() for node in nodes[:SHOWN])
    return shown + (f"; and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else "")
