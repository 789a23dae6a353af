"""Starts and stops a Ray node on this machine. Ends only processes that skep started."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from skep.cluster import connect
from skep.cluster import ray_processes as local
from skep.cluster.ray_processes import (
    LOOPBACK,
    NodeOptions,
    NodeRecord,
    Ports,
    checked_address,
    checked_ports,
)
from skep.errors import EngineError, UserError
from skep.paths import Paths, make_runtime
from skep.wire.listen import is_final, refusal_of

START_S = 90.0
FREED_S = 5.0  # a killed process holds its ports for a moment


def start_head(
    paths: Paths, env: Mapping[str, str], address: str, port: int, options: NodeOptions
) -> NodeRecord:
    address = checked_address(address)
    ports = checked_ports(port)
    _check_machine(address)
    _make_way(paths)
    if local.stored_token(paths) is None:  # a new head keeps the token that the other nodes have
        local.keep_token(paths, secrets.token_hex(32))
    return _start(paths, env, f"{address}:{ports.first}", address, ports, options, is_head=True)


def join_head(
    paths: Paths,
    env: Mapping[str, str],
    head: str,
    address: str | None,
    port: int | None,
    options: NodeOptions,
    token: str | None,
) -> NodeRecord:
    """Join the cluster at `head`, with the stored token if `token` is None."""
    host, head_port = connect.head_of(head)
    connect.require_ray()
    connect.check_address(head)
    if host in (LOOPBACK, "localhost"):
        raise UserError(
            f"the cluster at {head} listens on loopback only: no other machine can join",
            hint="run `skep cluster start --address IP` on its machine, with an address that this "
            "machine reaches",
        )
    if address is None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect((host, head_port))
            address = str(probe.getsockname()[0])  # of the interface that leads to the head
    address = checked_address(address)
    if address == LOOPBACK:
        raise UserError(
            f"{address} cannot be reached from {head}",
            hint="add --address with an IP of this machine",
        )
    ports = checked_ports(port or head_port)
    _check_machine(address)
    _make_way(paths)
    stored = local.stored_token(paths)
    token = token or stored
    if token is None:
        copy = f"ssh {host} skep cluster token | skep cluster join {head} --token-file -"
        raise UserError(
            f"the token of the cluster at {head} is not stored here", hint=f"`{copy}` copies it"
        )
    local.keep_token(paths, token)
    try:
        return _start(paths, env, head, address, ports, options, is_head=False)
    except BaseException:  # a token that was refused is not stored
        if stored is None:
            local.token_path(paths).unlink()
        else:
            local.keep_token(paths, stored)
        raise


def stop_node(paths: Paths) -> tuple[NodeRecord | None, list[int]]:
    """Stop the node. Return it (None if there is none) and the processes that had to be killed."""
    node = local.read_node(paths)
    if node is not None and not local.marked(node.mark):
        node = None
    killed = [] if node is None else local.end(node.mark)
    local.record_path(paths).unlink(missing_ok=True)
    return node, killed


def _make_way(paths: Paths) -> None:
    """End the processes that outlived a dead raylet. Raise UserError where a node still runs: only
    the user knows whether it may end.

    A head still runs where its raylet was killed, for want of memory: with a new head here, the
    other nodes would end themselves.
    """
    node = local.read_node(paths)
    if node is None:
        return
    remaining = set(local.marked(node.mark).values())
    if remaining & {"raylet", "gcs_server"}:
        raise UserError(
            f"this machine is already a node of the cluster at {node.head}",
            hint="`skep cluster status` shows it; `skep cluster stop` leaves it and ends its "
            "replicas on this machine",
        )
    if remaining:
        stop_node(paths)


# The node


def _check_machine(address: str) -> None:
    connect.require_ray()
    if not (local.PROC / "self/environ").exists():
        raise UserError(
            "a node of a cluster needs Linux",
            hint="`skep up` serves on this machine without a cluster",
        )
    bind_error = refusal_of(address, 0)
    if bind_error is not None and is_final(bind_error):
        raise UserError(
            f"{address} is not an address of this machine",
            hint="`ip -4 -brief address` lists them",
        )


def _start(
    paths: Paths,
    env: Mapping[str, str],
    head: str,
    address: str,
    ports: Ports,
    options: NodeOptions,
    *,
    is_head: bool,
) -> NodeRecord:
    _wait_for_ports(address, ports, is_head=is_head)
    folder = local.folder_of(paths)
    make_runtime(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)  # logs and sockets of a start before this one
    folder.mkdir()
    name = options.name or socket.gethostname()
    mark = secrets.token_hex(8)
    node = NodeRecord(head, address, is_head, name, str(ports), mark)
    local.write_node(paths, node)
    has_client = find_spec("grpc") is not None
    arguments = local.arguments(node, options, ports, folder, has_client=has_client)
    environment = local.environment(node, ports, local.token_path(paths), env)
    try:
        _ray_start(head, arguments, environment, folder)
    except BaseException:
        local.end(mark, patience_s=2.0)
        local.record_path(paths).unlink(missing_ok=True)
        raise
    return node


def _wait_for_ports(address: str, ports: Ports, *, is_head: bool) -> None:
    """Raise UserError for a port that stays in use."""
    host = address if address == LOOPBACK else ""  # as Ray binds them
    needed_ports = [*ports.services.values()]
    if is_head:
        needed_ports.insert(0, ports.first)
    deadline = time.monotonic() + FREED_S
    for port in needed_ports:
        while refusal_of(host, port) is not None:
            if time.monotonic() > deadline:
                hint = f"choose another first port with --port; Ray and the engines use {ports}"
                raise UserError(f"port {port} is in use", hint=hint)
            time.sleep(0.1)


def _ray_start(head: str, arguments: list[str], env: Mapping[str, str], folder: Path) -> None:
    argv = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
    log = folder.parent / "ray-start.log"
    with log.open("w+") as output:
        try:
            completed = subprocess.run(
                argv,
                env=env,
                cwd=folder,
                timeout=START_S,
                check=False,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"Ray did not start within {START_S:g} s", hint=f"see {log}"
            ) from None
        if completed.returncode != 0:
            output.seek(0)
            raise refusal(head, output.read(), log)


def refusal(head: str, text: str, log: Path) -> EngineError | UserError:
    """Return the error for a start that failed, by what Ray printed."""
    if "AuthenticationError" in text or "ersion mismatch" in text:
        return connect.explained(head, RuntimeError(text))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last_line = lines[-1] if lines else "no message"
    return EngineError(f"Ray did not start: {last_line[:200]}", hint=f"see {log}")
