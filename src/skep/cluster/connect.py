"""Connects this process to a Ray cluster, or explains in one line why it cannot. The only place
that calls `ray.init`.

Neither the supervisor nor a short command imports ray: `ask_ray` calls a function in a child
process, `python -m skep.cluster.connect MODULE:FUNCTION`, which reads its arguments from stdin and
prints one JSON document. Ray waits half a minute for an address where nobody listens and then
reports a time-out, so the port is tried first."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from skep.cluster.nodes import Node, nodes_of
from skep.cluster.ray_processes import LENIENT, RayConnection, connection_to
from skep.engines.base import PlacementRequest
from skep.errors import DoesNotFit, EngineError, SkepError, UserError
from skep.host.installation import extra_hint

NAMESPACE = "skep"
NODE_ID = "ray.io/node-id"
WAITING_STATES = ("PENDING", "PREPARED", "RESCHEDULING")  # states of a placement group
REMOVED_STATE = "REMOVED"
KNOCK_S = 3.0
NOT_A_NODE = "this machine is not a node of the cluster"
HOW_TO_START = "`skep cluster start` starts one here, `skep cluster join ADDRESS` joins one"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# A machine that is not a node gets its error after this time.
_IMPATIENT = {"RAY_gcs_server_request_timeout_seconds": "8"}
_REFUSED = re.compile(r"AuthenticationError|InvalidAuthToken|Unauthenticated")
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")
_ERRORS: dict[int, type[SkepError]] = {
    error.exit_code: error for error in (EngineError, UserError, DoesNotFit)
}


def require_ray() -> None:
    if find_spec("ray") is None:
        raise UserError(
            "Ray is not installed", hint=f"{extra_hint('ray')}, on every node the same"
        )


def join(address: str) -> None:
    """Connect this process to the cluster at `address`, or to the one that runs here ("auto")."""
    require_ray()
    connection = checked_connection(address)
    for name, value in {**_QUIET, **LENIENT, **connection.environment}.items():
        os.environ.setdefault(name, value)
    import ray

    # Else Ray guesses the node's address.
    where = {} if connection.node is None else {"_node_ip_address": connection.node}
    try:
        ray.init(
            address=connection.head,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            **where,
        )
    except (Exception, SystemExit) as error:  # a raylet that is not there ends the process
        is_sigterm = isinstance(error, SystemExit) and error.code == signal.SIGTERM
        if is_sigterm:  # Ray's own handler of the signal
            raise
        with contextlib.suppress(Exception):
            ray.shutdown()
        raise explained(address, error) from None


def head_of(address: str) -> tuple[str, int]:
    """Return host and port of a head node. Raise UserError for a malformed address."""
    if "://" in address:
        raise UserError(
            f"`{address}` is not the address of a head node",
            hint="write HOST:PORT of the head, "
            "and run skep on a machine that is a node of the cluster",
        )
    host, _, port = address.rpartition(":")
    is_port = port.isdecimal() and port.isascii() and 0 < int(port) < 65536
    if not host or not is_port:
        raise UserError(
            f"`{address}` is not the address of a head node",
            hint="write its HOST:PORT, such as 10.0.0.1:6379",
        )
    return host, int(port)


def checked_connection(address: str) -> RayConnection:
    """Return the connection to an address, or to that of `auto`.

    Raise EngineError if nobody listens there.
    """
    connection = connection_to(address, os.environ)
    try:
        check_address(connection.head)
    except EngineError:
        if connection.node is None:
            raise
        hint = (
            "running replicas go on serving; docs/cluster.md says how to start the cluster again"
        )
        raise EngineError(
            f"the head node at {connection.head} is lost; this machine was its node", hint=hint
        ) from None
    return connection


def check_address(address: str) -> None:
    """Raise if the address is malformed or nobody listens there."""
    if address == "auto":
        return
    host, port = head_of(address)
    try:
        socket.create_connection((host.strip("[]"), port), timeout=KNOCK_S).close()
    except OSError as error:
        why = error.strerror or "no answer"
        raise EngineError(f"there is no cluster at {address}: {why}", hint=HOW_TO_START) from None


def explained(address: str, error: BaseException) -> EngineError | UserError:
    """Return what an error of Ray means, from the text of it and of its cause."""
    message = f"{error.__cause__ or ''}\n{type(error).__name__}: {error}"  # the cause has details
    # The file lines of a traceback name `node.py` and `_raylet.pyx`, which means nothing here.
    lines = [line for line in message.splitlines() if not line.lstrip().startswith('File "')]
    text = "\n".join(lines)
    if "ersion mismatch" in text:
        return _version_mismatch(text)
    if _REFUSED.search(text):
        hint = "give this machine the cluster's token: docs/cluster.md"
        return EngineError(
            f"the cluster at {address} refuses the connection: its token differs", hint=hint
        )
    is_stranger = "No node info found" in text
    if address == "auto" and isinstance(error, ConnectionError) and not is_stranger:
        return EngineError(
            "no Ray cluster runs here",
            hint=f"{HOW_TO_START}; or name its head with --cluster HOST:PORT",
        )
    if "Failed to connect to GCS" in text:
        return EngineError(
            f"the server at {address} is not the head of a Ray cluster", hint=HOW_TO_START
        )
    names_raylet = "node" in text.lower() and "raylet" in text.lower()
    if is_stranger or names_raylet or isinstance(error, SystemExit):
        return EngineError(
            f"{NOT_A_NODE} at {address}", hint=f"`skep cluster join {address}` joins it"
        )
    last_line = next(
        (line.strip() for line in reversed(text.splitlines()) if line.strip()),
        type(error).__name__,
    )
    return EngineError(
        f"the cluster at {address} cannot be joined: {last_line[:200]}",
        hint="`skep cluster status` may say more",
    )


def _version_mismatch(text: str) -> UserError:
    """Return the error of a machine whose Ray or Python differs; the cluster's stand first."""
    versions = _VERSIONS.findall(text)
    if len(versions) > 1:
        ray, python = versions[0]
        own_ray, own_python = versions[-1]
    else:
        ray = python = own_ray = own_python = "?"
    return UserError(
        f"the cluster runs Ray {ray} on Python {python}, "
        f"this machine has Ray {own_ray} and Python {own_python}",
        hint=f"install ray=={ray} with Python {python} here, "
        f"or restart the cluster with ray {own_ray}",
    )


# Actors, placement groups and live nodes. A call may wait a minute for a lost head: never in the
# event loop


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

    resources: dict[str, dict[str, float]] = available_resources_per_node()
    return resources


def make_group(
    full: str, place: PlacementRequest, ids: Collection[str] | None, target: str | None
) -> Any:
    """Create a placement group of that name, replacing an unused one.

    `ids`: of the nodes that it may use; `target`: the best one.
    """
    from ray.util.placement_group import placement_group

    remove_group(full)
    resources = {"CPU": place.cpus, "GPU": float(place.cards), "memory": float(place.memory_bytes)}
    bundle = {name: amount for name, amount in resources.items() if amount} or {"CPU": 0.001}
    if ids is None:
        selector = None
    else:
        selector = [{NODE_ID: f"in({','.join(sorted(ids))})"}]
    return placement_group(
        [bundle],
        strategy="STRICT_PACK",
        name=full,
        lifetime="detached",
        _soft_target_node_id=target,
        bundle_label_selector=selector,
    )


def remove_group(full: str) -> None:
    """Remove a group, and with it the actor inside."""
    from ray.util import get_placement_group, remove_placement_group

    with contextlib.suppress(ValueError):  # there is none
        remove_placement_group(get_placement_group(full))


def groups_by_name() -> dict[str, str]:
    """Return the state of each group by name, without removed ones."""
    from ray.util import placement_group_table

    return {
        row["name"]: row["state"]
        for row in placement_group_table().values()
        if row["state"] != REMOVED_STATE
    }


def actor_names(hive: str) -> list[str]:
    """Return the replicas of a hive that have an actor or a placement group."""
    from ray.util import list_named_actors

    prefix = actor_name(hive, "")
    names = {*list_named_actors(all_namespaces=False), *groups_by_name()}
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


# Functions that need Ray, in a process of their own


def ask_ray(
    function: Callable[..., Any], *args: Any, subject: str, wait_s: float, hint: str | None = None
) -> Any:
    """Return what the function returns in a child process, or raise its error.

    `asked`: the subject of errors.
    """
    argv = [sys.executable, "-m", __name__, f"{function.__module__}:{function.__name__}"]
    env = {**_IMPATIENT, **LENIENT, **os.environ}
    try:
        done = subprocess.run(
            argv,
            input=json.dumps(args).encode(),
            env=env,
            capture_output=True,
            timeout=wait_s,
            check=False,
        )
        document = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise EngineError(f"{subject} did not answer within {wait_s:g} s", hint=hint) from None
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise EngineError(f"{subject} cannot be queried: {why[:200]}", hint=hint) from None
    if "error" in document:
        raise error_of(document)
    return document["answer"]


def error_of(document: Mapping[str, Any]) -> SkepError:
    """Return the error that a child process or a driver has reported."""
    kind = _ERRORS.get(document["exit_code"], EngineError)
    return kind(document["error"], hint=document["hint"])


def main() -> None:
    """Run as the child process. What Ray prints goes to stderr."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, function = sys.argv[1].partition(":")
    document: dict[str, Any]
    try:
        document = {"answer": getattr(import_module(module), function)(*json.load(sys.stdin))}
    except SkepError as error:
        document = {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}
    with answer:
        json.dump(document, answer)


if __name__ == "__main__":
    main()
