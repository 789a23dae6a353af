"""The errand `python -m skep.cluster.surveyor ADDRESS`: a cluster's nodes.

A node that cannot be asked is in the answer all the same, with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from skep import __version__
from skep.cluster import errands
from skep.cluster.facts import look
from skep.cluster.joining import join
from skep.cluster.names import post_name
from skep.cluster.nodes import named_apart
from skep.cluster.plots import housed_names, living_nodes
from skep.cluster.values import Node, Survey, facts_of, launch_of, survey_document
from skep.engines.base import Launch

STANDING_S = 3.0
LOOK_S = 20.0  # for all nodes together: they are asked at the same time


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="skep.cluster.surveyor")
    options.add_argument("address")
    options.add_argument("--path", action="append", default=[], help="ask each node whether it has this path")
    options.add_argument("--hive", help="and which replicas this hive has there")
    told = options.parse_args(argv)
    return errands.tell(lambda: {"survey": survey_document(_survey(told.address, told.path, told.hive))})


def _survey(address: str, paths: Sequence[str], hive: str | None) -> Survey:
    join(address)
    import ray

    try:
        context = ray.get_runtime_context()
        nodes = _looked_at(named_apart(living_nodes()), paths)
        standing, housed = ((), None) if hive is None else (_standing(hive), tuple(housed_names(hive)))
        return Survey(context.gcs_address, ray.__version__, tuple(nodes), context.get_node_id(), standing, housed)
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
    """Its facts, where it runs the skep that we are. The last cards, which Ray does not lend, are not there."""
    version = document.get("skep")
    if version != __version__:
        return replace(node, why=f"runs skep {version}, here is {__version__}")
    facts = facts_of(document)
    return replace(node, facts=replace(facts, cards=facts.cards[: int(node.gpus)]))


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    missing = next((line for line in lines if "ModuleNotFoundError" in line or "No module named" in line), None)
    if missing is not None and "skep" in missing:
        other = "skep." in missing
        return f"runs another skep than {__version__}" if other else "has no skep beside its Ray"
    return f"cannot run a task of skep: {(lines[-1] if lines else type(error).__name__)[:200]}"


def _standing(hive: str) -> tuple[Launch, ...]:
    """One that does not answer stands nowhere yet."""
    import ray

    names = [name for name in ray.util.list_named_actors() if name.startswith(post_name(hive, ""))]
    asked = []
    for name in names:
        with contextlib.suppress(ValueError):  # gone meanwhile
            asked.append(ray.get_actor(name).describe.remote())
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=STANDING_S) if asked else ((), ())
    found = []
    for answer in done:
        with contextlib.suppress(Exception):  # it died meanwhile, or is of another version
            found.append(launch_of(ray.get(answer)))
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main())
