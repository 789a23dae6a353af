"""How Ray's own processes are started: which flags, which environment, which ports. Pure.

Ray binds what it starts to every interface, but for a node whose address is exactly 127.0.0.1. So the ports are pinned
to one range that a firewall can name, and every call wants a token. docs/cluster.md has the whole of it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skep.errors import EngineError, UserError

LOOPBACK = "127.0.0.1"
HEAD_PORT = 6379
MARK = "SKEP_RAY_NODE"  # in the environment of every process of the node
ENGINE_PORTS = "SKEP_ENGINE_PORTS"  # there as well: FIRST-LAST
WORKERS = 1000  # ports: each worker and each driver has one
ENGINES = 100  # ports: each engine has one
_SERVICES = 20  # ports kept for the processes of the node itself
_AFTER = _SERVICES + WORKERS + ENGINES
STORE_BYTES = 256 * 2**20  # of shared memory: next to nothing travels through Ray, so the engines get the rest
_AWAY_S = 7 * 24 * 3600

# A process that dies is missed after about 6 s, a machine that is silent after about 15 s.
_WATCHFUL = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
# Ray alone refuses 3.11.9 beside 3.11.2. What travels through it is data and the names of functions of skep.
LENIENT = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor"}
# Else every node ends itself, and what it serves, 60 s after the head is lost.
_PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(_AWAY_S)}


@dataclass(frozen=True, slots=True)
class Ports:
    """One range for a node. The head listens on the first; on other nodes it stays free."""

    first: int = HEAD_PORT

    @property
    def last(self) -> int:
        return self.first + _AFTER

    @property
    def services(self) -> dict[str, int]:
        """By flag of `ray start`."""
        flags = (
            "node-manager-port",
            "object-manager-port",
            "runtime-env-agent-port",
            "dashboard-agent-grpc-port",
            "dashboard-agent-listen-port",
            "metrics-export-port",
        )
        return {flag: self.first + 1 + number for number, flag in enumerate(flags)}

    @property
    def dashboard(self) -> int:
        """Nobody listens there; Ray counts it as taken all the same."""
        return self.first + _SERVICES

    @property
    def client(self) -> int:
        """Of the head's server for drivers elsewhere, which cannot be left out where Ray has it installed."""
        return self.first + _SERVICES - 1

    @property
    def workers(self) -> tuple[int, int]:
        return self.first + _SERVICES + 1, self.first + _SERVICES + WORKERS

    @property
    def engines(self) -> tuple[int, int]:
        """Not Ray's, but of what it hosts: so that the same lines of a firewall close them."""
        return self.workers[1] + 1, self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class NodeStart:
    """One node to be started. `head`: HOST:PORT of the head, its own where it is the head."""

    head: str
    address: str
    is_head: bool
    name: str
    ports: Ports
    folder: Path  # Ray's logs and sockets: a short path, sockets have a limit of 107 characters
    token: Path
    has_client: bool = False  # Ray's client server is installed
    cpus: int | None = None  # None: what Ray finds
    gpus: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """Nothing of it listens beyond this machine."""
        return self.address == LOOPBACK


def checked_address(text: str) -> str:
    """An address of one interface."""
    if text == "localhost":
        return LOOPBACK
    try:
        found = ipaddress.IPv4Address(text)
    except ValueError:
        raise UserError(f"`{text}` is no IPv4 address", hint="write one of this machine, such as 10.0.0.1") from None
    if found.is_unspecified or found.is_multicast:
        hint = "name the one that the other machines reach; `ip -4 -brief address` lists them"
        raise UserError(f"`{text}` is no address of one interface", hint=hint)
    return str(found)


def checked_ports(first: int) -> Ports:
    ports = Ports(first)
    if first < 1024 or ports.last > 65535:
        hint = f"from 1024 to {65535 - _AFTER}; Ray's own is {HEAD_PORT}"
        raise UserError(f"port {first} leaves no room for the {_AFTER} ports after it", hint=hint)
    return ports


def checked_labels(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value or "," in text:
            raise UserError(f"`--label {text}` is not NAME=VALUE", hint="such as --label rack=7")
        found[name] = value
    return found


def arguments(start: NodeStart) -> list[str]:
    """Of `ray start`."""
    flags = {"node-ip-address": start.address, "node-name": start.name, "temp-dir": str(start.folder)}
    flags |= {name: str(port) for name, port in start.ports.services.items()}
    flags["min-worker-port"], flags["max-worker-port"] = map(str, start.ports.workers)
    flags |= {"object-store-memory": str(STORE_BYTES), "include-log-monitor": "false", "log-style": "record"}
    if start.is_head:
        flags |= {"port": str(start.ports.first), "include-dashboard": "false"}
        flags["dashboard-port"] = str(start.ports.dashboard)
        if start.has_client:
            flags["ray-client-server-port"] = str(start.ports.client)
    else:
        flags["address"] = start.head
    if start.cpus is not None:
        flags["num-cpus"] = str(start.cpus)
    if start.gpus is not None:
        flags["num-gpus"] = str(start.gpus)
    if start.labels:
        flags["labels"] = ",".join(f"{name}={value}" for name, value in start.labels.items())
    whole = ["--head", "--no-monitor"] if start.is_head else []
    return ["start", *whole, "--disable-usage-stats", *(f"--{name}={value}" for name, value in flags.items())]


def environment(start: NodeStart, mark: str, env: Mapping[str, str]) -> dict[str, str]:
    """What the user has set of Ray's own settings counts, but for what closes it."""
    own = {name: value for name, value in env.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")}
    first, last = start.ports.engines
    ours = {MARK: mark, ENGINE_PORTS: f"{first}-{last}"}
    return {**_PATIENT, **_WATCHFUL, **LENIENT, **own, **reaching(start.address, start.token), **ours}


def engine_ports(env: Mapping[str, str]) -> range | None:
    """Return which ports the engines of a node may have. None: any, as in a cluster that skep did not start."""
    text = env.get(ENGINE_PORTS)
    if not text:
        return None
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65536):
        raise EngineError(f"{ENGINE_PORTS} is `{text}`, no range of ports", hint="such as 7400-7499")
    return range(int(first), int(last) + 1)


def reaching(address: str, token: Path) -> dict[str, str]:
    """For a driver as well: with what a node, or the head at `address`, is reached. Set before ray is imported."""
    told = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    # Ray puts another interface's address in the place of 127.0.0.1, unless it takes this for a machine of its own.
    return {**told, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if address == LOOPBACK else "1"}
