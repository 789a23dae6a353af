"""The record that `skep cluster start` and `join` keep of this node, and the cluster's token.

A driver on this machine learns from it how to reach the cluster. Starts and ends nothing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from skep.cluster import ray_processes
from skep.cluster.ray_command import reaching
from skep.errors import UserError
from skep.paths import Paths, user_paths

_SHORTEST = 16  # characters of a token


@dataclass(frozen=True, slots=True)
class NodeRecord:
    head: str  # HOST:PORT
    address: str
    is_head: bool
    name: str
    ports: str
    mark: str

    @property
    def runs(self) -> bool:
        return any(process.name == "raylet" for process in ray_processes.marked(self.mark))


@dataclass(frozen=True, slots=True)
class RayConnection:
    """How a driver reaches a cluster. `environment` is set before ray is imported."""

    head: str  # HOST:PORT, or `auto`
    node: str | None = None  # the address of the node that this machine is
    session: str | None = None  # the name of the cluster that this node is in
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        """Options of `ray.init`. Without them Ray guesses the node's address."""
        return {"_node_ip_address": self.node} if self.node is not None else {}


def token_path(paths: Paths) -> Path:
    return paths.config / "ray-token"


def folder_of(paths: Paths) -> Path:
    """Return Ray's folder. Ray makes it public, so its parent is private; sockets in it need short paths."""
    mark = paths.runtime.name.rpartition("-")[2]
    return Path(f"/tmp/skep-ray-{os.getuid()}-{mark}/r")  # noqa: S108 - made private by who uses it


def read_node(paths: Paths) -> NodeRecord | None:
    try:
        return msgspec.json.decode(_record(paths).read_bytes(), type=NodeRecord)
    except (OSError, ValueError):  # none, or of another version
        return None


def write_node(paths: Paths, node: NodeRecord) -> None:
    paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    _record(paths).write_bytes(msgspec.json.encode(node))


def forget_node(paths: Paths) -> None:
    _record(paths).unlink(missing_ok=True)


def connection_to(address: str, env: Mapping[str, str]) -> RayConnection:
    """Return how to reach the cluster; one that skep did not start here is left to Ray."""
    paths = user_paths(env)
    node = read_node(paths)
    if node is None or address not in ("auto", node.head) or not node.runs:
        return RayConnection(address)
    return RayConnection(node.head, node.address, session_of(paths), reaching(node.address, token_path(paths)))


def session_of(paths: Paths) -> str | None:
    """Return the session of the cluster of this node, read from Ray's folder."""
    try:
        return (folder_of(paths) / "session_latest").readlink().name
    except OSError:
        return None


def token_of(paths: Paths) -> str:
    """Return the stored token. Raise UserError if there is none or others may read it."""
    path = token_path(paths)
    try:
        mode, text = path.stat().st_mode, path.read_text().strip()
    except FileNotFoundError:
        raise UserError("there is no token here", hint="`skep cluster start` makes one on the head") from None
    if mode & 0o077:
        raise UserError(
            f"other users may read the token in `{path}`", hint=f"`chmod 600 {path}`, or delete it for a new one"
        )
    return checked_token(text)


def ensure_token(paths: Paths) -> None:
    """Create a token unless one is stored; a new head keeps the one that the other nodes have."""
    if token_path(paths).exists():
        token_of(paths)
    else:
        keep_token(paths, secrets.token_hex(32))


def keep_token(paths: Paths, token: str) -> None:
    path = token_path(paths)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def checked_token(text: str) -> str:
    if len(text) < _SHORTEST or not text.isascii() or not text.isprintable() or " " in text:
        raise UserError("this is not a cluster token", hint="`skep cluster token` prints it on the head")
    return text


def _record(paths: Paths) -> Path:
    return paths.state / "ray-node.json"
