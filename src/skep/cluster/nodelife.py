"""Makes this machine a node of a Ray cluster, and ends that again. Only what was started here is ended.

What is left of a cluster that is over is in the way of the next one: it is ended first, and that is said.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from skep.cluster import rayprocs
from skep.cluster.heads import Head, ask_head
from skep.cluster.homenode import (
    HomeNode,
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
from skep.cluster.joining import check_address, explained, head_of, require_ray
from skep.cluster.rayprocs import Listener
from skep.cluster.raystart import (
    LOOPBACK,
    NodeStart,
    arguments,
    checked_address,
    checked_ports,
    environment,
)
from skep.cluster.remains import Remains, why_over
from skep.engines.binding import is_final, refusal_of
from skep.errors import EngineError, UserError
from skep.places import Paths, make_runtime

START_S = 90.0
FREED_S = 5.0  # a process that was killed holds its ports until the kernel is done with it
Say = Callable[[str], None]


def _quietly(_line: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Wishes:
    """What may be said of a node. None: as Ray finds it."""

    name: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    labels: Mapping[str, str] | None = None


def start_head(
    paths: Paths, env: Mapping[str, str], address: str, port: int, wishes: Wishes, say: Say = _quietly
) -> HomeNode:
    address, ports = checked_address(address), checked_ports(port)
    _check_tools()
    _check_address(address)
    _make_way(paths, say)
    ensure_token(paths)
    head = f"{address}:{ports.first}"
    start = _start_of(paths, head, address, port, wishes, is_head=True)
    _check_ports(start)
    return _run(paths, env, start)


def join_head(
    paths: Paths, env: Mapping[str, str], head: str, address: str | None, port: int | None, wishes: Wishes,
    token: str | None, say: Say = _quietly,
) -> HomeNode:  # fmt: skip
    """`token`: None: the one that is kept here."""
    host, head_port = head_of(head)
    _check_tools()
    check_address(head)
    if host in (LOOPBACK, "localhost"):
        hint = "on its machine: `skep cluster start --address IP`, one that this machine reaches"
        raise UserError(f"the cluster at {head} takes no other machine: it listens on loopback only", hint=hint)
    address = checked_address(address) if address is not None else _address_towards(host, head_port)
    if address == LOOPBACK:
        raise UserError(f"{address} cannot be reached from {head}", hint="add --address IP, one of this machine")
    _check_address(address)
    start = _start_of(paths, head, address, port or head_port, wishes, is_head=False)
    kept = _kept_token(paths)
    token = token or kept
    if token is None:
        raise UserError(f"the token of the cluster at {head} is not here", hint=_bring(head))
    _make_way(paths, say, lambda: _let_in(head, token))
    with _token_kept(paths, token, kept):
        _check_ports(start)
        return _run(paths, env, start)


def _let_in(head: str, token: str) -> Head:
    """The head, if this machine can join it."""
    found = ask_head(head, token)
    if found.mismatch is not None:
        raise found.mismatch
    return found


def _kept_token(paths: Paths) -> str | None:
    return token_of(paths) if token_path(paths).exists() else None


@contextmanager
def _token_kept(paths: Paths, token: str, before: str | None) -> Iterator[None]:
    """One that was refused is not kept."""
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


def stop_node(paths: Paths) -> tuple[HomeNode | None, list[int]]:
    """What was stopped, and the processes that had to be killed. None: skep has started nothing here."""
    node = read_node(paths)
    if node is None or not rayprocs.marked(node.mark):
        forget_node(paths)
        return None, []
    killed = rayprocs.end(node.mark)
    forget_node(paths)
    return node, killed


def open_ports(node: HomeNode) -> list[Listener]:
    return rayprocs.listeners(rayprocs.marked(node.mark))


def _start_of(paths: Paths, head: str, address: str, port: int, wishes: Wishes, *, is_head: bool) -> NodeStart:
    return NodeStart(
        head=head,
        address=address,
        is_head=is_head,
        name=wishes.name or socket.gethostname(),
        ports=checked_ports(port),
        folder=folder_of(paths),
        token=token_path(paths),
        has_client=find_spec("grpc") is not None,
        cpus=wishes.cpus,
        gpus=wishes.gpus,
        labels=wishes.labels or {},
    )


def _check_tools() -> None:
    require_ray()
    rayprocs.require_proc()


def _make_way(paths: Paths, say: Say, joined: Callable[[], Head] | None = None) -> None:
    """What is left here of a cluster that is over is ended. `joined`: asks the head that this machine is to join.

    It is asked first, with the token that it will be joined with: where it refuses, nothing is ended.
    """
    node = read_node(paths)
    if node is None or not (left := rayprocs.marked(node.mark)):
        return
    to = joined() if joined is not None else None
    remains = Remains(node, session_of(paths), {process.name for process in left}, _kept_token(paths))
    what = why_over(remains, to)
    stop_node(paths)
    say(f"ended: {what}")


def _check_address(address: str) -> None:
    refused = refusal_of(address, 0)
    if refused is not None and is_final(refused):
        hint = "`ip -4 -brief address` lists them"
        raise UserError(f"{address} is no address of this machine", hint=hint)


def _check_ports(start: NodeStart) -> None:
    host = start.address if start.is_closed else ""  # as Ray binds them
    own = [start.ports.first] if start.is_head else []
    deadline = time.monotonic() + FREED_S
    for port in (*own, *start.ports.services.values()):
        while refusal_of(host, port) is not None:
            if time.monotonic() > deadline:
                hint = f"--port takes another first one; Ray and the engines take {start.ports} here"
                raise UserError(f"port {port} is in use", hint=hint)
            time.sleep(0.1)


def _address_towards(host: str, port: int) -> str:
    """Of the interface through which the head is reached. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _run(paths: Paths, env: Mapping[str, str], start: NodeStart) -> HomeNode:
    make_runtime(start.folder.parent)
    shutil.rmtree(start.folder, ignore_errors=True)  # logs and sockets of a start before this one
    start.folder.mkdir()
    mark = secrets.token_hex(8)
    node = HomeNode(start.head, start.address, start.is_head, start.name, str(start.ports), mark)
    write_node(paths, node)
    try:
        _ray_start(start, environment(start, mark, env))
    except BaseException:
        rayprocs.end(mark, patience_s=2.0)
        forget_node(paths)
        raise
    return node


def _ray_start(start: NodeStart, env: Mapping[str, str]) -> None:
    argv = [sys.executable, "-m", "ray.scripts.scripts", *arguments(start)]
    log = start.folder.parent / "ray-start.log"
    with log.open("w+") as output:
        try:
            done = subprocess.run(
                argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                timeout=START_S, check=False, start_new_session=True, cwd=start.folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise EngineError(f"Ray did not start within {START_S:g} s", hint=f"{log} says more") from None
        if done.returncode != 0:
            output.seek(0)
            raise refusal(start.head, output.read(), log)


def refusal(head: str, text: str, log: Path) -> EngineError | UserError:
    """Why `ray start` did not, in one line."""
    if "AuthenticationError" in text:
        return EngineError(f"the cluster at {head} refuses us: its token is another one", hint=_bring(head))
    if "ersion mismatch" in text:
        return explained(head, RuntimeError(text))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return EngineError(f"Ray did not start: {(lines or ['no word'])[-1][:200]}", hint=f"{log} says more")


__all__ = ["HomeNode", "Wishes", "join_head", "open_ports", "refusal", "start_head", "stop_node"]
