"""Names of actors, placement groups, live nodes. A call may wait a minute for a lost head: never in the event loop."""

from __future__ import annotations

import contextlib
from typing import Any

from skep.cluster.connect import NAMESPACE
from skep.cluster.nodes import Node, NodeChoice, nodes_of
from skep.engines.base import PlacementRequest

NODE_ID = "ray.io/node-id"
WAITS = ("PENDING", "PREPARED", "RESCHEDULING")
GONE = "REMOVED"


def registry_name(hive: str) -> str:
    return f"{hive}/ledger"


def actor_name(hive: str, replica: str) -> str:
    """Return the name of a replica's actor, which its placement group has too."""
    return f"{hive}/post/{replica}"


def find_actor(full: str) -> Any | None:
    import ray

    try:
        return ray.get_actor(full, NAMESPACE)
    except ValueError:
        return None


def living_nodes() -> list[Node]:
    """Return the live nodes with their free resources, under Ray's names."""
    import ray

    return nodes_of(ray.nodes(), free_by_node())


def free_by_node() -> dict[str, dict[str, float]]:
    """Return the free resources by node id; Ray has no public call for this."""
    from ray._private.state import available_resources_per_node

    found: dict[str, dict[str, float]] = available_resources_per_node()
    return found


def make_group(full: str, place: PlacementRequest, choice: NodeChoice, target: str | None) -> Any:
    """Create a group of that name, replacing an unused one. `target`: the preferred node."""
    from ray.util.placement_group import placement_group

    remove_group(full)
    selector = choice.selector()
    asked = {"CPU": place.cpus, "GPU": float(place.cards), "memory": float(place.memory_bytes)}
    return placement_group(
        [{name: amount for name, amount in asked.items() if amount} or {"CPU": 0.001}],
        strategy="STRICT_PACK",
        name=full,
        lifetime="detached",
        _soft_target_node_id=target,
        bundle_label_selector=None if selector is None else [{NODE_ID: selector}],
    )


def remove_group(full: str) -> None:
    """Remove a group, and with it the actor inside."""
    from ray.util import get_placement_group, remove_placement_group

    with contextlib.suppress(ValueError):  # there is none
        remove_placement_group(get_placement_group(full))


def groups_by_name() -> dict[str, str]:
    """Return the state of each group by name, without removed ones."""
    from ray.util import placement_group_table

    return {row["name"]: row["state"] for row in placement_group_table().values() if row["state"] != GONE}


def placed_names(hive: str) -> list[str]:
    """Return the replicas whose group has a node. Others wait for room or have not asked for it."""
    prefix = actor_name(hive, "")
    placed = [name for name, state in groups_by_name().items() if state not in WAITS]
    return [name.removeprefix(prefix) for name in placed if name.startswith(prefix)]


def actor_names(hive: str) -> list[str]:
    from ray.util import list_named_actors

    prefix = actor_name(hive, "")
    found = {*list_named_actors(all_namespaces=False), *groups_by_name()}
    return sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix))
