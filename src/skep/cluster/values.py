"""The nodes of a cluster and their free resources as frozen values, with their JSON forms. Does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from skep.catalog.gpus import Gpu
from skep.engines.base import Launch
from skep.units import format_bytes

NAMESPACE = "skep"


@dataclass(frozen=True, slots=True)
class NodeCard(Gpu):
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a task of skep found on the node itself."""

    cores: int
    memory_bytes: int | None
    cards: tuple[NodeCard, ...] = ()
    skep: str = ""  # its version on the node
    engines: Mapping[str, str | None] = field(default_factory=dict)  # installed ones, with their version
    links: tuple[tuple[int, int, str], ...] = ()  # between cards, by their rank among `cards`
    paths: Mapping[str, bool] = field(default_factory=dict)  # of those asked for: does it exist on the node


@dataclass(frozen=True, slots=True)
class Node:
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
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: NodeFacts | None = None
    why: str | None = None

    @property
    def kind(self) -> str:
        """The GPUs of the node, such as `2x NVIDIA GeForce RTX 3090`. Nodes of one kind get the same plan."""
        if self.facts is not None and self.facts.cards:
            names = sorted({card.name for card in self.facts.cards})
            counted = [f"{sum(card.name == name for card in self.facts.cards)}x {name}" for name in names]
            return " + ".join(counted)
        return f"{self.gpus:g} GPUs" if self.gpus else "CPU only"

    def describe(self) -> str:
        gpus = f"{self.free_gpus:g} of {self.gpus:g} GPUs" if self.gpus else "no GPU"
        memory = f"{format_bytes(self.free_memory_bytes)} of {format_bytes(self.memory_bytes)}"
        return f"{self.name} has {gpus}, {self.free_cpus:g} of {self.cpus:g} CPUs, {memory} free"


@dataclass(frozen=True, slots=True)
class ClusterSurvey:
    """A cluster at one moment."""

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
