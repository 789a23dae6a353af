"""The plots that posts stand on: Ray's placement groups, one a replica, and the nodes there are for them.

Every call may wait for the head, a minute where it is lost: they are made in threads, never on an event loop.
"""

from __future__ import annotations

import contextlib
from typing import Any

from skep.cluster.nodes import NodeChoice, nodes_of
from skep.cluster.values import Node
from skep.engines.base import PlacementRequest


def registry_name(hive: str) -> str:
    return f"{hive}/ledger"


def actor_name(hive: str, replica: str) -> str:
    """Of the actor and of its placement group."""
    return f"{hive}/post/{replica}"


NODE_ID = "ray.io/node-id"
WAITS = ("PENDING", "PREPARED", "RESCHEDULING")
GONE = "REMOVED"


def bundle_of(place: PlacementRequest) -> dict[str, float]:
    """What is asked of Ray; what is not needed is not named."""
    asked = {"CPU": place.cpus, "GPU": float(place.cards), "memory": float(place.memory_bytes)}
    return {name: amount for name, amount in asked.items() if amount} or {"CPU": 0.001}


def living_nodes() -> list[Node]:
    """With what nobody holds on them, under Ray's names."""
    import ray

    return nodes_of(ray.nodes(), free_by_node())


def free_by_node() -> dict[str, dict[str, float]]:
    """Ray has no public call for it."""
    from ray._private.state import available_resources_per_node

    found: dict[str, dict[str, float]] = available_resources_per_node()
    return found


def make_group(full: str, place: PlacementRequest, choice: NodeChoice, target: str | None) -> Any:
    """A group of that name, in place of one on which nobody stands. `target`: the node it had best be on."""
    from ray.util.placement_group import placement_group

    remove_group(full)
    selector = choice.selector()
    return placement_group(
        [bundle_of(place)],
        strategy="STRICT_PACK",
        name=full,
        lifetime="detached",
        _soft_target_node_id=target,
        bundle_label_selector=None if selector is None else [{NODE_ID: selector}],
    )


def remove_group(full: str) -> None:
    """With whoever stands on it."""
    from ray.util import get_placement_group, remove_placement_group

    with contextlib.suppress(ValueError):  # there is none
        remove_placement_group(get_placement_group(full))


def groups_by_name() -> dict[str, str]:
    """By name: what Ray says of each. Those that were removed are not there."""
    from ray.util import placement_group_table

    return {row["name"]: row["state"] for row in placement_group_table().values() if row["state"] != GONE}


def placed_names(hive: str) -> list[str]:
    """The replicas that have their plot. Others wait for room, or have not asked for it yet."""
    prefix = actor_name(hive, "")
    return [name.removeprefix(prefix) for name, state in groups_by_name().items()
            if name.startswith(prefix) and state not in WAITS]  # fmt: skip


def actor_names(hive: str) -> list[str]:
    """The replicas of which Ray knows a post, or a plot on which none stands yet."""
    from ray.util import list_named_actors

    prefix = actor_name(hive, "")
    found = {*list_named_actors(all_namespaces=False), *groups_by_name()}
    return sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix))
