"""Capacity of nodes: what is free, which node takes which replica, and the machine that a plan is made for. Pure.

Ray places the replicas; this module says beforehand whether it can and which node would spread them best.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skep.catalog.gpus import HostFacts
from skep.cluster.values import ClusterSurvey, Node, NodeFacts, can_keep_actor
from skep.engines.base import Launch, PlacementRequest
from skep.units import format_bytes

SHOWN = 8  # nodes that an error lists
HEAD = "node:__internal_head__"  # a resource that only the head has
MOST = 1024  # replicas of one model
_EPSILON = 1e-6  # Ray counts in ten-thousandths


def nodes_of(rows: Iterable[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]) -> list[Node]:
    """Return the live nodes of `ray.nodes()` with their free resources, the head first."""
    nodes = [_node(row, free.get(row["NodeID"], {})) for row in rows if row["Alive"]]
    return sorted(nodes, key=lambda node: (not node.head, node.name, node.id))


def _node(row: Mapping[str, Any], free: Mapping[str, float]) -> Node:
    has = row["Resources"]
    return Node(
        id=row["NodeID"],
        name=row.get("NodeName") or row["NodeManagerAddress"],
        address=row["NodeManagerAddress"],
        head=HEAD in has,
        cpus=has.get("CPU", 0.0),
        gpus=has.get("GPU", 0.0),
        memory_bytes=int(has.get("memory", 0)),
        free_cpus=free.get("CPU", 0.0),
        free_gpus=free.get("GPU", 0.0),
        free_memory_bytes=int(free.get("memory", 0)),
        labels={name: value for name, value in row.get("Labels", {}).items() if not name.startswith("ray.io/")},
    )


def named_apart(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with unique names: those that share one get the first letters of their id."""
    names = Counter(node.name for node in nodes)
    return [node if names[node.name] == 1 else replace(node, name=_apart(node)) for node in nodes]


def _apart(node: Node) -> str:
    return f"{node.name}-{node.id[:6]}"


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """The nodes that a replica may use, by current id. If `only` is None, any but those of `never`."""

    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return self.only is not None and not self.only

    def takes(self, node: Node) -> bool:
        return node.id not in self.never if self.only is None else node.id in self.only

    def selector(self) -> str | None:
        """Return Ray's label selector for the node id."""
        if self.only is not None:
            return f"in({','.join(sorted(self.only))})"
        return f"!in({','.join(sorted(self.never))})" if self.never else None


def choice_of(place: PlacementRequest, avoid: Collection[str], nodes: Sequence[Node]) -> NodeChoice:
    """Return the allowed nodes. `avoid`: names of nodes not to use. `nodes`: all live ones, under Ray's names.

    A node that came back can be listed beside its old entry; both have its name.
    """
    never = _ids(avoid, nodes)
    return NodeChoice(_ids(place.nodes, nodes) - never) if place.nodes else NodeChoice(never=never)


def first_choice(place: PlacementRequest, avoid: Collection[str], nodes: Sequence[Node]) -> NodeChoice:
    """Return the choice without shunned nodes, unless only these have room."""
    far, near = choice_of(place, avoid, nodes), choice_of(place, (*avoid, *place.shunned), nodes)
    if near.is_empty or (fitting(place, far, nodes) and not fitting(place, near, nodes)):
        return far
    return near


def fitting(place: PlacementRequest, choice: NodeChoice, nodes: Iterable[Node]) -> list[Node]:
    """Return the allowed nodes that have the requested resources free."""
    asked = replace(place, nodes=(), shunned=())  # names may have changed; `choice` has the ids
    return [room.node for room in free_capacity(nodes) if choice.takes(room.node) and room.holds(asked)]


def _ids(names: Collection[str], nodes: Sequence[Node]) -> frozenset[str]:
    return frozenset(node.id for node in nodes if node.name in names or _apart(node) in names)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A node that gets no replica at a start; `busy`: because others use its GPUs at the moment."""

    node: Node
    why: str  # what it lacks, to be read after its name; of a busy one a clause of its own
    busy: bool = False

    def __str__(self) -> str:
        return f"{self.node.name}{':' if self.busy else ''} {self.why}"

    @property
    def line(self) -> str:
        return f"{self.node.name} is left out: {'' if self.busy else 'it '}{self.why}"


def left_out_lines(found: Iterable[LeftOut]) -> list[str]:
    """Return one line for each node left out, at most `SHOWN`."""
    lines = list(dict.fromkeys(one.line for one in found))
    more = len(lines) - SHOWN
    return lines[:SHOWN] + ([f"{more} more node{'s are' if more > 1 else ' is'} left out"] if more > 0 else [])


def busy_nodes(nodes: Iterable[Node], share: float) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(node, words, busy=True) for node in nodes if (words := busy_cards(node, share)) is not None)


def busy_cards(node: Node, share: float) -> str | None:
    """Return the cards that Ray would lend and that somebody else holds, in words; `share` of each should be free.

    Ray says how many it has lent, not which: so many may be as full as they are. Which one a replica gets is Ray's to
    say too. One that is lent and still empty hides one that somebody else holds: then the post finds it.
    """
    cards = node.facts.cards if node.facts is not None else ()
    free = [(card, card.memory_bytes - card.used_bytes) for card in cards if card.memory_bytes and card.used_bytes]
    full = [(card, left) for card, left in free if left < share * (card.memory_bytes or 0)]
    lent = math.ceil(node.gpus - node.free_gpus - _EPSILON)  # one that is lent in part is lent to nobody else
    if len(full) <= lent:
        return None
    rooms = [(card.index, f"{format_bytes(left)} of {format_bytes(card.memory_bytes or 0)}") for card, left in full]
    if len(rooms) == 1:
        return "GPU {} is busy: {} are free".format(*rooms[0])
    named = [f"GPU {index} ({room} free)" for index, room in rooms]
    which = f"full, Ray has lent {lent} of them" if lent else "busy"
    return f"{', '.join(named[:-1])} and {named[-1]} are {which}"


def host_of(node: Node) -> HostFacts:
    """Return the node as the machine that a plan is made for."""
    facts = node.facts or NodeFacts(int(node.cpus), None)
    return HostFacts(
        os="", machine="", python="", cpu_model=None, cpu_cores=facts.cores, cpu_features=(),
        memory_bytes=facts.memory_bytes, memory_available_bytes=None, open_files_soft=None, open_files_hard=None,
        gpus=facts.cards, links=facts.links,
    )  # fmt: skip


@dataclass(slots=True)
class NodeCapacity:
    """What is left of a node while replicas are counted onto it."""

    node: Node
    cards: float
    cpus: float
    memory_bytes: int
    taken: int = 0

    def holds(self, place: PlacementRequest) -> bool:
        allowed = (not place.nodes or self.node.name in place.nodes) and self.node.name not in place.shunned
        return (
            allowed
            and place.cards <= self.cards + _EPSILON
            and place.cpus <= self.cpus + _EPSILON
            and place.memory_bytes <= self.memory_bytes
        )

    def take(self, place: PlacementRequest) -> None:
        self.cards -= place.cards
        self.cpus -= place.cpus
        self.memory_bytes -= place.memory_bytes
        self.taken += 1


def free_capacity(nodes: Iterable[Node]) -> list[NodeCapacity]:
    return [NodeCapacity(node, node.free_gpus, node.free_cpus, node.free_memory_bytes) for node in nodes]


def total_capacity(nodes: Iterable[Node]) -> list[NodeCapacity]:
    """Return the capacity of empty nodes, for a change in which some replicas make room for others."""
    return [NodeCapacity(node, node.gpus, node.cpus, node.memory_bytes) for node in nodes]


def assign_nodes(places: Sequence[PlacementRequest], rooms: Sequence[NodeCapacity]) -> list[NodeCapacity | None]:
    """Return the node of each request in order, None if none fits. Those with most GPUs choose first.

    Each goes where fewest are; among these, what wants no card goes where none is, and then to the emptiest.
    """
    found: list[NodeCapacity | None] = [None] * len(places)
    for number in sorted(range(len(places)), key=lambda n: (-places[n].cards, -places[n].cpus)):
        place = places[number]
        able = [room for room in rooms if room.holds(place)]
        if able:
            best = min(able, key=lambda room: (room.taken, bool(room.cards) and not place.cards, *_left(room)))
            best.take(place)
            found[number] = best
    return found


def _left(room: NodeCapacity) -> tuple[float, float, int]:
    return (-room.cards, -room.cpus, -room.memory_bytes)


def kept_and_unplaceable(
    asked: Sequence[Launch], running: Sequence[Launch], survey: ClusterSurvey, avoid: Collection[str] = ()
) -> tuple[set[str], set[str]]:
    """Return the names of replicas that stay as they are and of those that do not fit.

    Who stays keeps what it has, and who of them waits for room was there first; fewer of what stands need none. Where
    one goes and others come or change, the whole nodes count. `avoid`: nodes on which nothing new is to stand.
    """
    stand = {launch.name: launch for launch in running if launch.place is not None}
    stays = {one.name for one in asked if one.name in stand and can_keep_actor(stand[one.name], one)}
    new = [(one.name, _off(avoid, one.place)) for one in asked if one.place is not None and one.name not in stays]
    if not new:
        return stays, set()
    kept = [(one.name, one.place) for one in asked if one.place is not None and one.name in stays]
    waiting = {name for name, _ in kept if survey.housed is not None and name not in survey.housed}
    if stays == stand.keys():
        rooms = free_capacity(survey.nodes)
        assign_nodes([_off(avoid, place) for name, place in kept if name in waiting], rooms)
    else:
        rooms = total_capacity(survey.nodes)
        new += [(name, place) for name, place in kept if name not in waiting]
    found = assign_nodes([place for _, place in new], rooms)
    return stays, {name for (name, _), room in zip(new, found, strict=True) if room is None}


def _off(avoid: Collection[str], place: PlacementRequest) -> PlacementRequest:
    return replace(place, shunned=(*place.shunned, *avoid))


def capacity(place: PlacementRequest, nodes: Sequence[Node]) -> int:
    """Return how many such replicas fit now."""
    count, rooms = 0, free_capacity(nodes)
    for room in rooms:
        while count < MOST and room.holds(place):
            room.take(place)
            count += 1
    return count


def threads_each(replicas: int, nodes: Sequence[Node]) -> int:
    """CPU threads of each, where so many share these nodes' free cores as evenly as nodes allow; at least 1."""
    cores = {node.id: _cores(node) for node in nodes}
    taken = dict.fromkeys(cores, 0)
    for _ in range(min(replicas, MOST)):
        best = max(cores, key=lambda node: cores[node] / (taken[node] + 1), default=None)
        if best is None:
            return 1
        taken[best] += 1
    return max(1, min((cores[node] // count for node, count in taken.items() if count), default=1))


def _cores(node: Node) -> int:
    real = node.facts.cores if node.facts is not None else int(node.cpus)
    return min(int(node.free_cpus + _EPSILON), real)


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
