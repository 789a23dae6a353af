"""Starts and stops a Ray node on this machine. Stops only what skep started here.

Processes left over from a cluster that has ended are stopped before a new node starts, with a message.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skep.cluster import ray_processes, ray_subprocess
from skep.cluster.connect import KNOCK_S, check_address, explained, head_of, require_ray, session_at
from skep.cluster.node_file import (
    NodeRecord,
    ensure_token,
    folder_of,
    forget_node,
    keep_token,
    read_node,
    session_of,
    token_of,
    token_path,
    write_node,
)
from skep.cluster.ray_command import (
    LOOPBACK,
    NodeStart,
    arguments,
    checked_address,
    checked_ports,
    environment,
)
from skep.cluster.ray_processes import Listener
from skep.errors import EngineError, SkepError, UserError
from skep.paths import Paths, make_runtime
from skep.wire.listen import is_final, refusal_of

ASK_S = 20.0  # Ray itself gives up after 40 s
_OTHERS = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True, slots=True)
class Head:
    address: str  # HOST:PORT
    session: str  # of the cluster; it changes when the head is restarted
    mismatch: UserError | None = None  # its Ray or Python version differs from this machine


def ask_head(address: str, token: str) -> Head:
    require_ray()
    check_address(address)
    env = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    env = {"RAY_USAGE_STATS_ENABLED": "0", **env, "RAY_AUTH_MODE": "token"}
    told = ray_subprocess.send(
        __name__, [address], asked=f"the server at {address}", wait_s=ASK_S, given=token, env=env
    )
    other = told["mismatch"]
    return Head(address, told["session"], UserError(other["error"], hint=other["hint"]) if other else None)


def main(argv: Sequence[str] | None = None) -> int:
    (address,) = sys.argv[1:] if argv is None else argv
    os.environ["RAY_AUTH_TOKEN"] = sys.stdin.read()  # not in the environment that others can read
    return ray_subprocess.tell(lambda: _told(address))


def _told(address: str) -> dict[str, Any]:
    """Ask the head by private calls of Ray; an error if they have changed."""
    import ray
    from ray._private.utils import check_version_info

    try:
        gcs = ray._raylet.GcsClient(address=address)  # noqa: SLF001
        session = session_at(gcs)
        versions = gcs.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=KNOCK_S)
    except Exception as error:
        raise explained(address, error) from None
    if not session:
        raise EngineError(f"the head at {address} does not report its session")
    mismatch = None
    if versions:
        try:
            check_version_info(json.loads(versions), "here")
        except Exception as error:  # Ray raises a RuntimeError
            mismatch = ray_subprocess.words_of(explained(address, error))
    return {"session": session, "mismatch": mismatch}


_LEAVES = "`skep cluster stop` leaves it and ends its replicas on this machine"
Ask = Callable[[str, str], Head]


@dataclass(frozen=True, slots=True)
class LeftoverNode:
    node: NodeRecord
    session: str | None  # of its cluster; None: unknown
    names: Collection[str]  # of its processes that still run
    token: str | None  # of its cluster; None: not stored here


def why_over(remains: LeftoverNode, to: Head | None, ask: Ask = ask_head) -> str:
    """Describe the leftovers that may be ended, or raise UserError. `to`: the head to join; None: a head starts."""
    node = remains.node
    if "gcs_server" in remains.names:
        raise _already(node) if "raylet" in remains.names else _headless(node)
    if "raylet" not in remains.names:
        return f"processes left over from a node of the cluster at {node.head}"
    if remains.session is None:
        raise _already(node, f"it is unknown whether that cluster has ended (its session is not recorded): {_LEAVES}")
    if to is not None and to.session == remains.session:
        raise _already(node)
    if _is_gone(node, to) or _has_another(remains, to, ask):
        return f"a node of the cluster at {node.head}, whose head is lost, with its replicas"
    raise _already(node)


def _is_gone(node: NodeRecord, to: Head | None) -> bool:
    """Return whether the head is gone. A head on another machine may only be unreachable."""
    try:
        check_address(node.head)
    except EngineError:
        if to is None and not node.is_head:
            raise _already(node, f"its head does not answer but may only be unreachable: {_LEAVES}") from None
        return True
    return False


def _has_another(remains: LeftoverNode, to: Head | None, ask: Ask) -> bool:
    """Return whether another cluster answers at the address of its head."""
    node = remains.node
    try:
        found = to if to is not None and to.address == node.head else _asked(remains, ask)
    except SkepError as error:
        raise _already(node, f"it is unknown whether that cluster has ended ({error.message}): {_LEAVES}") from None
    return found.session != remains.session


def _asked(remains: LeftoverNode, ask: Ask) -> Head:
    if remains.token is None:
        raise UserError("its token is not stored here")
    return ask(remains.node.head, remains.token)


def _already(node: NodeRecord, hint: str = f"`skep cluster status` shows it; {_LEAVES}") -> UserError:
    return UserError(f"this machine is already a node of the cluster at {node.head}", hint=hint)


def _headless(node: NodeRecord) -> UserError:
    hint = "`skep cluster stop` ends it; the other nodes go on serving until a new head starts at this address"
    return UserError(f"the head of the cluster at {node.head} still runs here, only its raylet has died", hint=hint)


START_S = 90.0
FREED_S = 5.0  # a killed process holds its ports for a moment
Say = Callable[[str], None]


def _quietly(_line: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options of a node. None means what Ray detects."""

    name: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    labels: Mapping[str, str] | None = None


def start_head(
    paths: Paths, env: Mapping[str, str], address: str, port: int, options: NodeOptions, say: Say = _quietly
) -> NodeRecord:
    address, ports = checked_address(address), checked_ports(port)
    _check_tools()
    _check_address(address)
    _make_way(paths, say)
    ensure_token(paths)
    head = f"{address}:{ports.first}"
    start = _start_of(paths, head, address, port, options, is_head=True)
    _check_ports(start)
    return _run(paths, env, start)


def join_head(
    paths: Paths,
    env: Mapping[str, str],
    head: str,
    address: str | None,
    port: int | None,
    options: NodeOptions,
    token: str | None,
    say: Say = _quietly,
) -> NodeRecord:
    """Join the cluster at `head`, with the stored token if `token` is None."""
    host, head_port = head_of(head)
    _check_tools()
    check_address(head)
    if host in (LOOPBACK, "localhost"):
        hint = "run `skep cluster start --address IP` on its machine, with an address that this machine reaches"
        raise UserError(f"the cluster at {head} listens on loopback only: no other machine can join", hint=hint)
    address = checked_address(address) if address is not None else _address_towards(host, head_port)
    if address == LOOPBACK:
        raise UserError(f"{address} cannot be reached from {head}", hint="add --address IP, one of this machine")
    _check_address(address)
    start = _start_of(paths, head, address, port or head_port, options, is_head=False)
    kept = _kept_token(paths)
    token = token or kept
    if token is None:
        raise UserError(f"the token of the cluster at {head} is not stored here", hint=_bring(head))
    _make_way(paths, say, lambda: _let_in(head, token))
    with _token_kept(paths, token, kept):
        _check_ports(start)
        return _run(paths, env, start)


def _let_in(head: str, token: str) -> Head:
    """Return the head. Raise if its versions do not match this machine."""
    found = ask_head(head, token)
    if found.mismatch is not None:
        raise found.mismatch
    return found


def _kept_token(paths: Paths) -> str | None:
    return token_of(paths) if token_path(paths).exists() else None


@contextmanager
def _token_kept(paths: Paths, token: str, before: str | None) -> Iterator[None]:
    """Store the token; restore the previous one if joining fails."""
    keep_token(paths, token)
    try:
        yield
    except BaseException:
        if before is None:
            token_path(paths).unlink()
        else:
            keep_token(paths, before)
        raise


def _bring(head: str) -> str:
    host = head.rpartition(":")[0]
    return f"`ssh {host} skep cluster token | skep cluster join {head} --token-file -` brings it"


def stop_node(paths: Paths) -> tuple[NodeRecord | None, list[int]]:
    """Stop the node. Return it (None if there is none) and the processes that had to be killed."""
    node = read_node(paths)
    if node is None or not ray_processes.marked(node.mark):
        forget_node(paths)
        return None, []
    killed = ray_processes.end(node.mark)
    forget_node(paths)
    return node, killed


def open_ports(node: NodeRecord) -> list[Listener]:
    return ray_processes.listeners(ray_processes.marked(node.mark))


def _start_of(paths: Paths, head: str, address: str, port: int, options: NodeOptions, *, is_head: bool) -> NodeStart:
    return NodeStart(
        head=head,
        address=address,
        is_head=is_head,
        name=options.name or socket.gethostname(),
        ports=checked_ports(port),
        folder=folder_of(paths),
        token=token_path(paths),
        has_client=find_spec("grpc") is not None,
        cpus=options.cpus,
        gpus=options.gpus,
        labels=options.labels or {},
    )


def _check_tools() -> None:
    require_ray()
    ray_processes.require_proc()


def _make_way(paths: Paths, say: Say, joined: Callable[[], Head] | None = None) -> None:
    """End the leftovers of a cluster that has ended. `joined` asks the head that this machine is to join.

    The head is asked first, with the token for joining: if it refuses, nothing is ended.
    """
    node = read_node(paths)
    if node is None or not (left := ray_processes.marked(node.mark)):
        return
    to = joined() if joined is not None else None
    remains = LeftoverNode(node, session_of(paths), {process.name for process in left}, _kept_token(paths))
    what = why_over(remains, to)
    stop_node(paths)
    say(f"ended: {what}")


def _check_address(address: str) -> None:
    refused = refusal_of(address, 0)
    if refused is not None and is_final(refused):
        hint = "`ip -4 -brief address` lists them"
        raise UserError(f"{address} is not an address of this machine", hint=hint)


def _check_ports(start: NodeStart) -> None:
    host = start.address if start.is_closed else ""  # as Ray binds them
    own = [start.ports.first] if start.is_head else []
    deadline = time.monotonic() + FREED_S
    for port in (*own, *start.ports.services.values()):
        while refusal_of(host, port) is not None:
            if time.monotonic() > deadline:
                hint = f"choose another first port with --port; Ray and the engines use {start.ports}"
                raise UserError(f"port {port} is in use", hint=hint)
            time.sleep(0.1)


def _address_towards(host: str, port: int) -> str:
    """Return the address of the interface that leads to the head. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _run(paths: Paths, env: Mapping[str, str], start: NodeStart) -> NodeRecord:
    make_runtime(start.folder.parent)
    shutil.rmtree(start.folder, ignore_errors=True)  # logs and sockets of a start before this one
    start.folder.mkdir()
    mark = secrets.token_hex(8)
    node = NodeRecord(start.head, start.address, start.is_head, start.name, str(start.ports), mark)
    write_node(paths, node)
    try:
        _ray_start(start, environment(start, mark, env))
    except BaseException:
        ray_processes.end(mark, patience_s=2.0)
        forget_node(paths)
        raise
    return node


def _ray_start(start: NodeStart, env: Mapping[str, str]) -> None:
    argv = [sys.executable, "-m", "ray.scripts.scripts", *arguments(start)]
    log = start.folder.parent / "ray-start.log"
    with log.open("w+") as output:
        try:
            done = subprocess.run(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=START_S,
                check=False,
                start_new_session=True,
                cwd=start.folder,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"Ray did not start within {START_S:g} s", hint=f"see {log}") from None
        if done.returncode != 0:
            output.seek(0)
            raise refusal(start.head, output.read(), log)


def refusal(head: str, text: str, log: Path) -> EngineError | UserError:
    """Return the error that says in one line why `ray start` failed."""
    if "AuthenticationError" in text:
        return EngineError(f"the cluster at {head} refuses the connection: it has another token", hint=_bring(head))
    if "ersion mismatch" in text:
        return explained(head, RuntimeError(text))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return EngineError(f"Ray did not start: {(lines or ['no message'])[-1][:200]}", hint=f"see {log}")


__all__ = ["NodeOptions", "NodeRecord", "join_head", "open_ports", "refusal", "start_head", "stop_node"]


if __name__ == "__main__":
    sys.exit(main())
