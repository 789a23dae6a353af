"""Starts and stops a Ray node here: ends only what skep started, such as, with a message, leftovers before a start."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.cluster import connect
from skep.cluster import ray_processes as local
from skep.cluster.ray_processes import LOOPBACK, NodeOptions, NodeRecord, NodeStart, checked_address, checked_ports
from skep.errors import EngineError, SkepError, UserError
from skep.paths import Paths, make_runtime
from skep.wire.listen import is_final, refusal_of

ASK_S = 20.0  # Ray itself gives up after 40 s
START_S = 90.0
FREED_S = 5.0  # a killed process holds its ports for a moment
_LEAVES = "`skep cluster stop` leaves it and ends its replicas on this machine"


class Head(msgspec.Struct, frozen=True):
    address: str  # HOST:PORT
    session: str  # of the cluster; it changes when the head is restarted


class LeftoverNode(msgspec.Struct, frozen=True):
    node: NodeRecord
    session: str | None  # of its cluster; None: unknown
    names: Collection[str]  # of its processes that still run
    token: str | None  # of its cluster; None: not stored here


def start_head(
    paths: Paths, env: Mapping[str, str], address: str, port: int, options: NodeOptions, say: Callable[[str], None]
) -> NodeRecord:
    address, ports = checked_address(address), checked_ports(port)
    _check_machine(address)
    _make_way(paths, say)
    local.ensure_token(paths)
    return _start(paths, env, f"{address}:{ports.first}", address, port, options, is_head=True)


def join_head(
    paths: Paths,
    env: Mapping[str, str],
    head: str,
    address: str | None,
    port: int | None,
    options: NodeOptions,
    token: str | None,
    say: Callable[[str], None],
) -> NodeRecord:
    """Join the cluster at `head`, with the stored token if `token` is None."""
    host, head_port = connect.head_of(head)
    connect.require_ray()
    connect.check_address(head)
    if host in (LOOPBACK, "localhost"):
        hint = "run `skep cluster start --address IP` on its machine, with an address that this machine reaches"
        raise UserError(f"the cluster at {head} listens on loopback only: no other machine can join", hint=hint)
    if address is None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect((host, head_port))
            address = str(probe.getsockname()[0])  # of the interface that leads to the head
    address = checked_address(address)
    if address == LOOPBACK:
        raise UserError(f"{address} cannot be reached from {head}", hint="add --address with an IP of this machine")
    port = port or head_port
    checked_ports(port)
    _check_machine(address)
    kept = local.stored_token(paths)
    token = token or kept
    if token is None:
        raise UserError(f"the token of the cluster at {head} is not stored here", hint=_bring(head))
    _make_way(paths, say, lambda: ask_head(head, token, must_match=True))
    local.keep_token(paths, token)
    try:
        return _start(paths, env, head, address, port, options, is_head=False)
    except BaseException:
        if kept is None:
            local.token_path(paths).unlink()
        else:
            local.keep_token(paths, kept)
        raise


def stop_node(paths: Paths) -> tuple[NodeRecord | None, list[int]]:
    """Stop the node. Return it (None if there is none) and the processes that had to be killed."""
    node, killed = local.read_node(paths), []
    if node is not None and not local.marked(node.mark):
        node = None
    if node is not None:
        killed = local.end(node.mark)
    local.record_path(paths).unlink(missing_ok=True)
    return node, killed


def open_ports(node: NodeRecord) -> list[local.Listener]:
    return local.listeners(local.marked(node.mark))


# The head


def ask_head(address: str, token: str, *, must_match: bool = False) -> Head:
    """Return the head. Raise its refusal; with `must_match` also if its Ray or Python differs from this machine's."""
    connect.require_ray()
    connect.check_address(address)
    asked = f"the server at {address}"
    return Head(address, connect.ask_ray(session_behind, address, token, must_match, asked=asked, wait_s=ASK_S))


def session_behind(address: str, token: str, must_match: bool) -> str:
    """Ask the head by private calls of Ray; an error if they have changed."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}  # not in the environment that others can read
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray._private.utils import check_version_info

    try:
        session = connect.session_at(address)
        head = connect.gcs_client(address)
        versions = head.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=connect.KNOCK_S)
        if must_match and versions:
            check_version_info(json.loads(versions), "here")
    except Exception as error:
        raise connect.explained(address, error) from None
    if not session:
        raise EngineError(f"the head at {address} does not report its session")
    return session


# What is left of a cluster


def _make_way(paths: Paths, say: Callable[[str], None], joined: Callable[[], Head] | None = None) -> None:
    """End the leftovers of a cluster that has ended, after `joined` has asked the head to join, which may refuse."""
    node = local.read_node(paths)
    if node is None or not (left := local.marked(node.mark)):
        return
    to = joined() if joined is not None else None
    what = why_over(LeftoverNode(node, local.session_of(paths), left.values(), local.stored_token(paths)), to)
    stop_node(paths)
    say(f"ended: {what}")


def why_over(remains: LeftoverNode, to: Head | None, ask: Callable[[str, str], Head] = ask_head) -> str:
    """Describe the leftovers that may be ended, or raise UserError. `to`: the head to join; None: a head starts."""
    node = remains.node
    if "raylet" not in remains.names:
        if "gcs_server" in remains.names:
            hint = "`skep cluster stop` ends it; the other nodes go on serving until a new head starts at this address"
            what = f"the head of the cluster at {node.head} still runs here, only its raylet has died"
            raise UserError(what, hint=hint)
        return f"processes left over from a node of the cluster at {node.head}"
    if "gcs_server" in remains.names or (to is not None and to.session == remains.session):
        raise _already(node)
    lost = f"a node of the cluster at {node.head}, whose head is lost, with its replicas"
    unknown = f"it is unknown whether that cluster has ended ({{}}): {_LEAVES}"
    if remains.session is None:
        raise _already(node, unknown.format("its session is not recorded"))
    try:
        connect.check_address(node.head)
    except EngineError:
        if to is None and not node.is_head:  # a head on another machine may only be unreachable
            raise _already(node, f"its head does not answer but may only be unreachable: {_LEAVES}") from None
        return lost
    try:
        if to is not None and to.address == node.head:
            found = to
        elif remains.token is None:
            raise UserError("its token is not stored here")
        else:
            found = ask(node.head, remains.token)
    except SkepError as error:
        raise _already(node, unknown.format(error.message)) from None
    if found.session == remains.session:
        raise _already(node)
    return lost


def _already(node: NodeRecord, hint: str = f"`skep cluster status` shows it; {_LEAVES}") -> UserError:
    return UserError(f"this machine is already a node of the cluster at {node.head}", hint=hint)


def _bring(head: str) -> str:
    return f"`ssh {head.rpartition(':')[0]} skep cluster token | skep cluster join {head} --token-file -` copies it"


# The node


def _check_machine(address: str) -> None:
    connect.require_ray()
    if not (local.PROC / "self/environ").exists():
        raise UserError("a node of a cluster needs Linux", hint="`skep up` serves on this machine without a cluster")
    refused = refusal_of(address, 0)
    if refused is not None and is_final(refused):
        raise UserError(f"{address} is not an address of this machine", hint="`ip -4 -brief address` lists them")


def _start(
    paths: Paths, env: Mapping[str, str], head: str, address: str, port: int, options: NodeOptions, *, is_head: bool
) -> NodeRecord:
    own = options if options.name else replace(options, name=socket.gethostname())
    folder, token, has_client = local.folder_of(paths), local.token_path(paths), find_spec("grpc") is not None
    start = NodeStart(head, address, is_head, own, checked_ports(port), folder, token, has_client)
    host = address if address == LOOPBACK else ""  # as Ray binds them
    deadline = time.monotonic() + FREED_S
    for own_port in (*([start.ports.first] if is_head else []), *start.ports.services.values()):
        while refusal_of(host, own_port) is not None:
            if time.monotonic() > deadline:
                hint = f"choose another first port with --port; Ray and the engines use {start.ports}"
                raise UserError(f"port {own_port} is in use", hint=hint)
            time.sleep(0.1)
    make_runtime(start.folder.parent)
    shutil.rmtree(start.folder, ignore_errors=True)  # logs and sockets of a start before this one
    start.folder.mkdir()
    mark = secrets.token_hex(8)
    node = NodeRecord(head, address, is_head, own.name or "", str(start.ports), mark)
    local.write_node(paths, node)
    try:
        _ray_start(start, local.environment(start, mark, env))
    except BaseException:
        local.end(mark, patience_s=2.0)
        local.record_path(paths).unlink(missing_ok=True)
        raise
    return node


def _ray_start(start: NodeStart, env: Mapping[str, str]) -> None:
    argv = [sys.executable, "-m", "ray.scripts.scripts", *local.arguments(start)]
    log = start.folder.parent / "ray-start.log"
    with log.open("w+") as output:
        try:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            done = subprocess.run(
                argv, env=dict(env), cwd=start.folder, timeout=START_S, check=False, start_new_session=True, **streams
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"Ray did not start within {START_S:g} s", hint=f"see {log}") from None
        if done.returncode != 0:
            output.seek(0)
            raise refusal(start.head, output.read(), log)


def refusal(head: str, text: str, log: Path) -> EngineError | UserError:
    if "AuthenticationError" in text:
        return EngineError(f"the cluster at {head} refuses the connection: its token differs", hint=_bring(head))
    if "ersion mismatch" in text:
        return connect.explained(head, RuntimeError(text))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return EngineError(f"Ray did not start: {(lines or ['no message'])[-1][:200]}", hint=f"see {log}")
