"""Commands for Ray's own processes: cluster start, join, status, token, stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skep.cli.options import JsonOption
from skep.errors import UserError

if TYPE_CHECKING:
    from skep.cluster.node_file import NodeRecord

cluster_app = typer.Typer(
    no_args_is_help=True,
    help="Make machines one Ray cluster, for `skep up --cluster` (docs/cluster.md).",
    rich_markup_mode=None,
)

NameOption = Annotated[str | None, typer.Option("--name", help="Name of the node. Default: the machine's name.")]
CpusOption = Annotated[int | None, typer.Option("--cpus", min=0, help="CPU cores to offer to Ray (default: all).")]
GpusOption = Annotated[int | None, typer.Option("--gpus", min=0, help="GPUs to offer to Ray (default: all).")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Label of the node. Repeatable.")
]


def register(app: typer.Typer) -> None:
    app.add_typer(cluster_app, name="cluster")
    cluster_app.command("start", epilog="Example: skep cluster start --address 10.0.0.1")(start)
    cluster_app.command("join", epilog="Example: skep cluster join 10.0.0.1:6379")(join)
    cluster_app.command("status", epilog="Example: skep cluster status --json")(status)
    cluster_app.command("token", epilog="Example: skep cluster token > token")(token)
    cluster_app.command("stop", epilog="Example: skep cluster stop")(stop)


def start(
    address: Annotated[
        str, typer.Option(help="Address of this machine, as the other machines reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the head; Ray and the engines use the 1120 after it.")] = 6379,
    name: NameOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    label: LabelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster: this machine becomes its head, and its first node."""
    from skep.cli.output import note
    from skep.cluster.node_commands import start_head
    from skep.paths import user_paths

    paths = user_paths(os.environ)
    node = start_head(paths, os.environ, address, port, _wishes(name, cpus, gpus, label), note)
    _tell(node, as_json=as_json)


def join(
    head: Annotated[str, typer.Argument(metavar="HEAD:PORT", help="Address printed by `skep cluster start`.")],
    address: Annotated[
        str | None, typer.Option(help="Address of this machine. Default: the one that reaches the head.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="First of the 1121 ports used here. Default: the head's port.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the cluster's token, which is stored; - reads stdin.", allow_dash=True),
    ] = None,
    name: NameOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    label: LabelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make this machine a node of the cluster at HEAD."""
    from skep.cli.output import note
    from skep.cluster.node_commands import join_head
    from skep.paths import user_paths

    given = _read_token(token_file) if token_file is not None else None
    wishes = _wishes(name, cpus, gpus, label)
    node = join_head(user_paths(os.environ), os.environ, head, address, port, wishes, given, note)
    _tell(node, as_json=as_json)


def status(
    address: Annotated[
        str, typer.Option("--cluster", metavar="ADDRESS", help="HOST:PORT of the cluster's head.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """The cluster's nodes: what each has, what is free, which replicas stand there."""
    from skep.cli.output import print_json
    from skep.cluster.status import ask_status

    found = ask_status(address)
    if as_json:
        print_json(found)
    else:
        _show(found)


def token() -> None:
    """Print the token of the cluster that was started or joined here: whoever has it runs code on every node."""
    from skep.cluster.node_file import token_of
    from skep.paths import user_paths

    print(token_of(user_paths(os.environ)))  # noqa: T201


def stop() -> None:
    """End the Ray processes that skep started on this machine, and the engines on it. Other nodes stay."""
    from skep.cli.output import note
    from skep.cluster.node_commands import stop_node
    from skep.paths import user_paths

    node, killed = stop_node(user_paths(os.environ))
    if node is None:
        note("skep has started no Ray here")
        return
    what = f"the head of the cluster at {node.head}" if node.is_head else f"a node of the cluster at {node.head}"
    note(f"stopped: {what}" + (f"; {len(killed)} of its processes had to be killed" if killed else ""))


def _wishes(name: str | None, cpus: int | None, gpus: int | None, label: list[str] | None) -> Any:
    from skep.cluster.node_commands import NodeOptions
    from skep.cluster.ray_command import checked_labels

    return NodeOptions(name, cpus, gpus, checked_labels(label or []))


def _read_token(path: Path) -> str:
    from skep.cluster.node_file import checked_token

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"`{path}` cannot be read: {error}", hint="`skep cluster token` prints it on the head"
        ) from None
    return checked_token(text.strip())


def _tell(node: NodeRecord, *, as_json: bool) -> None:
    from dataclasses import asdict

    from skep.cli.output import note, print_json
    from skep.cluster.node_commands import open_ports

    found = open_ports(node)
    wide = sorted({one.port for one in found if one.is_everywhere})
    if as_json:
        told = {key: value for key, value in asdict(node).items() if key != "mark"}
        print_json({**told, "listeners": [asdict(one) for one in found]})
    what = "head" if node.is_head else "node"
    note(f"{what} `{node.name}` of the cluster at {node.head}; `skep up MODEL --cluster auto` serves on it")
    if node.address == "127.0.0.1":
        note("it listens on loopback only: other machines cannot join; `--address IP` starts one that they can")
        return
    if node.is_head:
        note(f"another machine: `ssh {node.address} skep cluster token | skep cluster join {node.head} --token-file -`")
    if wide:
        note(f"warning: Ray listens on every interface (now {', '.join(map(str, wide))}; later up to {node.ports}):")
        note("         whoever has no token is refused, but close these ports: docs/cluster.md has the firewall lines")


def _show(found: dict[str, Any]) -> None:
    from skep.cli.output import note, print_table
    from skep.units import format_bytes

    rows = []
    for node in found["nodes"]:
        marks = [word for word in ("head", "here") if node[word]]
        marks += [f"{name}={value}" for name, value in node["labels"].items()]
        runs = ", ".join(f"{row['name']} ({row['state']})" for row in node["replicas"])
        room = [f"{node[f'free_{key}']:g}/{node[key]:g}" for key in ("cpus", "gpus")]
        memory = f"{format_bytes(node['free_memory_bytes'])} of {format_bytes(node['memory_bytes'])}"
        if not node["alive"]:
            room, memory = ["–", "–"], "–"
        state = "alive" if node["alive"] else "dead"
        rows.append([node["name"], node["address"], ", ".join((state, *marks)), *room, memory, runs or "–"])
    print_table(("NODE", "ADDRESS", "STATE", "CPUS FREE", "GPUS FREE", "MEMORY FREE", "REPLICAS"), rows)
    for hive in found["hives"]:
        note(f"hive `{hive['name']}`: {'no gateway' if hive['gateway'] is None else 'gateway ' + hive['gateway']}")
    note(f"Ray {found['ray']}, head at {found['address']}")
