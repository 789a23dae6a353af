"""Commands for Ray's own processes: cluster start, join, status, token, stop."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from skep.cli.options import JsonOption, argument, command, group, option
from skep.errors import UserError
from skep.paths import user_paths
from skep.report.hive_text import print_nodes
from skep.report.terminal import note, print_json

if TYPE_CHECKING:
    from skep.cluster.ray_processes import NodeOptions, NodeRecord

cluster_app = group(
    "cluster", "Join machines into one Ray cluster for `skep up --cluster` (docs/cluster.md)."
)


@dataclass(frozen=True)
class JoinOptions:
    """What a machine offers to Ray."""

    name: Annotated[str | None, option("Name of this node (default: its host name).")] = None
    cpus: Annotated[int | None, option("CPU cores to offer to Ray (default: all).", min=0)] = None
    gpus: Annotated[int | None, option("GPUs to offer to Ray (default: all).", min=0)] = None
    as_json: JsonOption = False

    def node(self) -> NodeOptions:
        from skep.cluster.ray_processes import NodeOptions

        return NodeOptions(self.name, self.cpus, self.gpus)


@command(cluster_app, "skep cluster start --address 10.0.0.1")
def start(
    address: Annotated[
        str, option("Address at which other machines reach this one.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("Port of the head; Ray and the engines use the 1120 ports after it.")
    ] = 6379,
    *,
    options: JoinOptions,
) -> None:
    """Start a cluster with this machine as its head and first node."""
    from skep.cluster.node_commands import start_head

    node = start_head(user_paths(os.environ), os.environ, address, port, options.node())
    _tell(node, as_json=options.as_json)


@command(cluster_app, "skep cluster join 10.0.0.1:6379")
def join(
    head: Annotated[
        str, argument("Address printed by `skep cluster start`.", metavar="HEAD:PORT")
    ],
    address: Annotated[
        str | None, option("Address of this machine (default: the one that reaches the head).")
    ] = None,
    port: Annotated[
        int | None, option("First of the 1121 ports used here (default: the head's port).")
    ] = None,
    token_file: Annotated[
        Path | None, option("File with the cluster's token, which skep stores; - reads stdin.")
    ] = None,
    *,
    options: JoinOptions,
) -> None:
    """Add this machine to the cluster at HEAD:PORT."""
    from skep.cluster.node_commands import join_head

    if token_file is not None:
        given = _read_token(token_file)
    else:
        given = None
    node = join_head(
        user_paths(os.environ), os.environ, head, address, port, options.node(), given
    )
    _tell(node, as_json=options.as_json)


@command(cluster_app, "skep cluster status --json")
def status(
    address: Annotated[
        str,
        option(
            "HOST:PORT of the cluster's head; auto is the cluster that this machine is in.",
            "--cluster",
            metavar="ADDRESS",
        ),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """List the nodes of the cluster with their resources, what is free, and their replicas."""
    from skep.cluster.discover import ask_status

    cluster_status = ask_status(address)
    if as_json:
        print_json(cluster_status)
    else:
        print_nodes(cluster_status)


@command(cluster_app, "skep cluster token > token")
def token() -> None:
    """Print the token of this machine's cluster. Anyone who has it can run code on every node."""
    from skep.cluster.ray_processes import token_of

    print(token_of(user_paths(os.environ)))  # noqa: T201


@command(cluster_app, "skep cluster stop")
def stop() -> None:
    """Stop the engines and skep's Ray processes on this machine. Other nodes keep running."""
    from skep.cluster.node_commands import stop_node

    node, killed = stop_node(user_paths(os.environ))
    if node is None:
        note("skep has not started Ray on this machine")
        return
    if node.is_head:
        role = f"the head of the cluster at {node.head}"
    else:
        role = f"a node of the cluster at {node.head}"
    note(
        f"stopped: {role}"
        + (f"; {len(killed)} of its processes had to be killed" if killed else "")
    )


def _read_token(path: Path) -> str:
    from skep.cluster.ray_processes import checked_token

    try:
        if str(path) == "-":
            text = sys.stdin.read()
        else:
            text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        hint = "`skep cluster token` prints it on the head"
        raise UserError(f"`{path}` cannot be read: {error}", hint=hint) from None
    return checked_token(text.strip())


def _tell(node: NodeRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {key: value for key, value in msgspec.to_builtins(node).items() if key != "mark"}
        )
    role = "head" if node.is_head else "node"
    note(
        f"{role} `{node.name}` of the cluster at {node.head}; `skep up MODEL --cluster "
        "auto` serves on it"
    )
    if node.address == "127.0.0.1":
        note(
            "it listens on loopback only, so no other machine can join; `--address IP` "
            "changes that"
        )
        return
    if node.is_head:
        note(
            f"another machine: `ssh {node.address} skep cluster token | skep cluster join "
            f"{node.head} --token-file -`"
        )
    note(
        f"warning: Ray listens on every interface, on ports {node.ports}: calls without the "
        "token are refused,"
    )
    note("         but close these ports to everybody else (firewall rules: docs/cluster.md)")
