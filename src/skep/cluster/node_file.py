"""The record of this node, from which a driver here learns how to reach the cluster, and the cluster's token."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from skep.cluster.ray_processes import marked, reaching
from skep.errors import UserError
from skep.files import write_whole
from skep.paths import Paths, make_private, user_paths

_SHORTEST = 16  # characters of a token


class NodeRecord(msgspec.Struct, frozen=True):
    head: str  # HOST:PORT
    address: str
    is_head: bool
    name: str
    ports: str
    mark: str


class RayConnection(msgspec.Struct, frozen=True):
    """How a driver reaches a cluster. `environment` is set before ray is imported."""

    head: str  # HOST:PORT, or `auto`
    node: str | None = None  # the address of the node that this machine is
    session: str | None = None  # the name of the cluster that this node is in
    environment: Mapping[str, str] = {}


def token_path(paths: Paths) -> Path:
    return paths.config / "ray-token"


def record_path(paths: Paths) -> Path:
    return paths.state / "ray-node.json"


def folder_of(paths: Paths) -> Path:
    """Return Ray's folder. Ray makes it public, so its parent is private; sockets in it need short paths."""
    mark = paths.runtime.name.rpartition("-")[2]
    return Path(f"/tmp/skep-ray-{os.getuid()}-{mark}/r")  # noqa: S108 - made private by who uses it


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
    if node is None or address not in ("auto", node.head) or "raylet" not in marked(node.mark).values():
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
    if (token := stored_token(paths)) is None:
        raise UserError("this machine has no cluster token", hint="`skep cluster start` makes one on the head")
    return token


def stored_token(paths: Paths) -> str | None:
    path = token_path(paths)
    if not path.exists():
        return None
    if path.stat().st_mode & 0o077:
        hint = f"`chmod 600 {path}`, or delete it for a new one"
        raise UserError(f"other users can read the token in `{path}`", hint=hint)
    return checked_token(path.read_text().strip())


def ensure_token(paths: Paths) -> None:
    """Create a token unless one is stored; a new head keeps the one that the other nodes have."""
    if stored_token(paths) is None:
        keep_token(paths, secrets.token_hex(32))


def keep_token(paths: Paths, token: str) -> None:
    make_private(paths.config)
    write_whole(token_path(paths), token, 0o600)


def checked_token(text: str) -> str:
    if len(text) < _SHORTEST or not text.isascii() or not text.isprintable() or " " in text:
        raise UserError("this is not a cluster token", hint="`skep cluster token` prints it on the head")
    return text
