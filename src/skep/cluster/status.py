"""The status of a cluster: every node with its free resources and its replicas.

The child process that asks Ray is `python -m skep.cluster.status ADDRESS`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from skep.cluster import ray_subprocess
from skep.cluster.connect import checked_connection, join, require_ray
from skep.cluster.nodes import named_apart, nodes_of
from skep.cluster.placement_groups import free_by_node, registry_name

STATUS_S = 60.0
REGISTRY_S = 5.0
_REGISTRY = registry_name("")
_SHOWN = ("name", "model", "state", "why", "slots", "url")


def ask_status(address: str) -> dict[str, Any]:
    require_ray()
    checked_connection(address)
    return ray_subprocess.send(__name__, [address], asked=f"the cluster at {address}", wait_s=STATUS_S)


def rows_of(
    nodes: Sequence[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]], hives: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return one row for each node, dead ones last unless they came back. `hives`: the state of each registry."""
    alive = nodes_of(nodes, free)
    here = {(node.name, node.address) for node in alive}
    lost = nodes_of([{**node, "Alive": True} for node in nodes if not node["Alive"]], {})
    gone = {(node.name, node.address): node for node in lost if (node.name, node.address) not in here}
    rows = []
    for node in (*named_apart(alive), *gone.values()):
        told = asdict(node)
        del told["facts"], told["why"]
        standing = [
            {"hive": hive, **{key: row.get(key) for key in _SHOWN}}
            for hive, said in sorted(hives.items())
            for row in said["rows"].values()
            if row.get("node_id") == node.id
        ]
        rows.append({**told, "alive": node.id in {one.id for one in alive}, "replicas": standing})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    (address,) = sys.argv[1:] if argv is None else argv
    return ray_subprocess.tell(lambda: _status(address))


def _status(address: str) -> dict[str, Any]:
    join(address)
    import ray

    try:
        context = ray.get_runtime_context()
        hives = _hives()
        rows = rows_of(ray.nodes(), free_by_node(), hives)
        here = context.get_node_id()
        return {
            "address": context.gcs_address,
            "ray": ray.__version__,
            "hives": [
                {"name": name, "gateway": said["owner"] and said["owner"].rpartition(":")[0]}  # its machine and process
                for name, said in sorted(hives.items())
            ],
            "nodes": [{**row, "here": row["id"] == here} for row in rows],
        }
    finally:
        ray.shutdown()


def _hives() -> dict[str, Any]:
    """Return the state of each hive's registry; one that does not answer may have ended and is left out."""
    import ray

    found = {}
    for name in ray.util.list_named_actors():
        if name.endswith(_REGISTRY):
            with contextlib.suppress(Exception):
                found[name.removesuffix(_REGISTRY)] = ray.get(ray.get_actor(name).state.remote(), timeout=REGISTRY_S)
    return found


if __name__ == "__main__":
    sys.exit(main())
