"""Ray's own processes on this machine: how they are started, which run, how they end. Linux only.

Ray binds what it starts to every interface, except on a node whose address is exactly 127.0.0.1.
So the ports are pinned to one range that a firewall can name, and every call needs a token;
docs/cluster.md has all of it. Processes are recognized by a mark in their environment: their
numbers are used again, and their names are shared with other people's clusters."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from skep.errors import EngineError, UserError
from skep.files import write_whole
from skep.host.processes import descendants, living
from skep.paths import Paths, make_private, user_paths

LOOPBACK = "127.0.0.1"
HEAD_PORT = 6379
MARK = "SKEP_RAY_NODE"  # in the environment of every process of the node
ENGINE_PORTS = "SKEP_ENGINE_PORTS"  # in the same environment: FIRST-LAST
WORKERS = 1000  # ports: each worker and each driver has one
ENGINES = 100  # ports: each engine has one
_SERVICES = 20  # ports kept for the processes of the node itself
_AFTER = _SERVICES + WORKERS + ENGINES
# Of shared memory: next to nothing travels through Ray, so the engines get the rest.
STORE_BYTES = 256 * 2**20
PROC = Path("/proc")
_LOOK_EVERY_S = 0.1

# A process that dies is noticed after about 6 s, a machine that is silent after about 15 s.
_WATCHFUL = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
# Ray by itself refuses Python 3.11.9 beside 3.11.2. What travels through it is data and the names
# of functions of skep.
LENIENT = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor"}
# Else every node and every driver ends itself, with what it serves, 60 s after the head is lost.
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(7 * 24 * 3600)}


class Ports(msgspec.Struct, frozen=True):
    """One range for a node. The head listens on the first; on other nodes it stays free."""

    first: int = HEAD_PORT

    @property
    def last(self) -> int:
        return self.first + _AFTER

    @property
    def services(self) -> dict[str, int]:
        """Return the ports of Ray's own processes, by flag of `ray start`."""
        flags = (
            "node-manager-port", "object-manager-port", "runtime-env-agent-port",
            "dashboard-agent-grpc-port", "dashboard-agent-listen-port", "metrics-export-port",
        )  # fmt: skip
        return {flag: self.first + 1 + number for number, flag in enumerate(flags)}

    @property
    def workers(self) -> tuple[int, int]:
        return self.first + _SERVICES + 1, self.first + _SERVICES + WORKERS

    @property
    def engines(self) -> tuple[int, int]:
        """Return the first and the last port of the engines.

        They are in the same range, so that the same lines of a firewall close them.
        """
        return self.workers[1] + 1, self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class NodeOptions(msgspec.Struct, frozen=True):
    """What a machine offers as a node. None means what Ray detects."""

    name: str | None = None
    cpus: int | None = None
    gpus: int | None = None


class NodeRecord(msgspec.Struct, frozen=True):
    """A node that was started here."""

    head: str  # HOST:PORT, its own where it is the head
    address: str
    is_head: bool
    name: str
    ports: str
    mark: str


def checked_address(text: str) -> str:
    """Return the IPv4 address of one interface. Raise UserError for anything else."""
    try:
        ipv4_address = ipaddress.IPv4Address(LOOPBACK if text == "localhost" else text)
    except ValueError:
        raise UserError(
            f"`{text}` is not an IPv4 address", hint="write one of this machine: 10.0.0.1"
        ) from None
    if ipv4_address.is_unspecified or ipv4_address.is_multicast:
        hint = "name the one that the other machines reach; `ip -4 -brief address` lists them"
        raise UserError(f"`{text}` is not the address of one network interface", hint=hint)
    return str(ipv4_address)


def checked_ports(first: int) -> Ports:
    ports = Ports(first)
    if first < 1024 or ports.last > 65535:
        hint = f"choose a port from 1024 to {65535 - _AFTER}; Ray's default is {HEAD_PORT}"
        raise UserError(
            f"port {first} is not possible: the {_AFTER} ports after it are used too", hint=hint
        )
    return ports


def arguments(
    node: NodeRecord, options: NodeOptions, ports: Ports, folder: Path, *, has_client: bool = False
) -> list[str]:
    """Return the arguments of `ray start`.

    `folder`: of its logs and sockets. `has_client`: Ray's client server is installed.
    """
    flags = {
        "node-ip-address": node.address,
        "node-name": node.name,
        "temp-dir": folder,
        **ports.services,
        "min-worker-port": ports.workers[0],
        "max-worker-port": ports.workers[1],
        "object-store-memory": STORE_BYTES,
        "include-log-monitor": "false",
        "log-style": "record",
        "num-cpus": options.cpus,
        "num-gpus": options.gpus,
    }
    if node.is_head:
        # Nobody listens on the port of the dashboard, which Ray counts as taken all the same.
        flags |= {
            "port": ports.first,
            "include-dashboard": "false",
            "dashboard-port": ports.first + _SERVICES,
        }
        if has_client:  # where it is installed, the server for remote drivers always runs
            flags["ray-client-server-port"] = ports.first + _SERVICES - 1
        role = ["--head", "--no-monitor"]
    else:
        flags["address"] = node.head
        role = []
    values = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return ["start", *role, "--disable-usage-stats", *values]


def environment(
    node: NodeRecord, ports: Ports, token: Path, env: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a node.

    The user's own settings of Ray count, except those that protect the cluster.
    """
    user_settings = {
        name: value for name, value in env.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")
    }
    first, last = ports.engines
    return {
        **PATIENT,
        **_WATCHFUL,
        **LENIENT,
        **user_settings,
        **reaching(node.address, token),
        MARK: node.mark,
        ENGINE_PORTS: f"{first}-{last}",
    }


def engine_ports(env: Mapping[str, str]) -> range | None:
    """Return which ports the engines of a node may have.

    None: any, as in a cluster that skep did not start.
    """
    text = env.get(ENGINE_PORTS)
    if not text:
        return None
    first, _, last = text.partition("-")
    are_numbers = first.isdecimal() and last.isdecimal()
    if not are_numbers or not 0 < int(first) <= int(last) < 65536:
        raise EngineError(
            f"{ENGINE_PORTS} is `{text}`, not a range of ports", hint="such as 7400-7499"
        )
    return range(int(first), int(last) + 1)


def reaching(address: str, token: Path) -> dict[str, str]:
    """Return the environment with which a node or a driver reaches the cluster at `address`.

    It is set before ray is imported.
    """
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        # Else Ray replaces 127.0.0.1 by the address of another interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if address == LOOPBACK else "1",
    }


# The processes that run


def marked(mark: str) -> dict[int, str]:
    """Return every live process that carries the mark, with its name."""
    variable = f"{MARK}={mark}".encode()
    processes = {}
    for pid in living():
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if variable in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                processes[pid] = (PROC / str(pid) / "comm").read_text().strip()
    return processes


def end(mark: str, patience_s: float = 8.0) -> list[int]:
    """End the processes with this mark: the raylet first, which ends its workers, then the rest.

    Return the numbers of those that had to be killed.
    """
    family = descendants(*marked(mark))  # Ray's agents and workers overwrite their mark
    for names in (("raylet",), None):
        deadline = time.monotonic() + patience_s
        signalled = set[int]()
        while remaining := {
            pid for pid, name in marked(mark).items() if names is None or name in names
        }:
            _send(remaining - signalled, signal.SIGTERM)
            signalled |= remaining
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_EVERY_S)
    still_marked = list(marked(mark))
    processes = living()
    _send(still_marked, signal.SIGKILL)
    _send(
        (
            pid
            for pid, began in family.items()
            if pid in processes and processes[pid][1] == began  # else the number is used again
        ),
        signal.SIGKILL,
    )
    return still_marked


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# The record of this node, from which a driver here learns how to reach the cluster, and the
# cluster's token

_SHORTEST = 16  # characters of a token


class RayConnection(msgspec.Struct, frozen=True):
    """How to reach a cluster from a driver. `environment` is set before ray is imported."""

    head: str  # HOST:PORT, or `auto`
    node: str | None = None  # the address of the node that this machine is
    environment: Mapping[str, str] = {}


def token_path(paths: Paths) -> Path:
    return paths.config / "ray-token"


def record_path(paths: Paths) -> Path:
    return paths.state / "ray-node.json"


def folder_of(paths: Paths) -> Path:
    """Return the folder of Ray's logs and sockets.

    Ray makes it public, so its parent is private; sockets in it need short paths.
    """
    mark = paths.runtime.name.rpartition("-")[2]
    return Path(f"/tmp/skep-ray-{os.getuid()}-{mark}/r")  # noqa: S108 - its user makes it private


def read_node(paths: Paths) -> NodeRecord | None:
    try:
        return msgspec.json.decode(record_path(paths).read_bytes(), type=NodeRecord)
    except (OSError, ValueError):  # none, or of another version
        return None


def write_node(paths: Paths, node: NodeRecord) -> None:
    make_private(paths.state)
    record_path(paths).write_bytes(msgspec.json.encode(node))


def connection_to(address: str, env: Mapping[str, str]) -> RayConnection:
    """Return how to reach the cluster; one that skep did not start here is left to Ray."""
    paths = user_paths(env)
    node = read_node(paths)
    if node is None or address not in ("auto", node.head):
        return RayConnection(address)
    if "raylet" not in marked(node.mark).values():  # the node does not run any more
        return RayConnection(address)
    return RayConnection(node.head, node.address, reaching(node.address, token_path(paths)))


def token_of(paths: Paths) -> str:
    """Return the stored token. Raise UserError if there is none or others may read it."""
    token = stored_token(paths)
    if token is None:
        raise UserError(
            "this machine has no cluster token", hint="`skep cluster start` makes one on the head"
        )
    return token


def stored_token(paths: Paths) -> str | None:
    path = token_path(paths)
    if not path.exists():
        return None
    if path.stat().st_mode & 0o077:
        hint = f"`chmod 600 {path}`, or delete it for a new one"
        raise UserError(f"other users can read the token in `{path}`", hint=hint)
    return checked_token(path.read_text().strip())


def keep_token(paths: Paths, token: str) -> None:
    make_private(paths.config)
    write_whole(token_path(paths), token, 0o600)


def checked_token(text: str) -> str:
    is_one_word = text.isascii() and text.isprintable() and " " not in text
    if len(text) < _SHORTEST or not is_one_word:
        raise UserError(
            "this is not a cluster token", hint="`skep cluster token` prints it on the head"
        )
    return text
