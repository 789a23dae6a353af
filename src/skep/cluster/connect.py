"""Connects this process to a Ray cluster, or says in one line why it cannot. The only place that calls `ray.init`.

Ray waits half a minute for an address where nobody listens and then reports a time-out, so the port is tried first.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from importlib.util import find_spec
from typing import Any

from skep.cluster.node_file import RayConnection, connection_to
from skep.cluster.ray_command import LENIENT
from skep.cluster.values import NAMESPACE
from skep.errors import EngineError, UserError

KNOCK_S = 3.0
STRANGER = "this machine is not a node of the cluster"
START = "`skep cluster start` starts one here, `skep cluster join ADDRESS` joins one"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_REFUSED = re.compile(r"AuthenticationError|InvalidAuthToken|Unauthenticated")
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")


def require_ray() -> None:
    if find_spec("ray") is None:
        raise UserError("Ray is not installed", hint="run `pip install 'skep[ray]'`, the same version on every node")


def join(address: str, *, namespace: str = NAMESPACE) -> None:
    """Connect this process to the cluster at `address`, or to the one that runs here ("auto")."""
    require_ray()
    way = checked_connection(address)
    for name, value in {**_QUIET, **LENIENT, **way.environment}.items():
        os.environ.setdefault(name, value)
    import ray

    if way.session is not None and _session_of(way.head) not in (None, way.session):
        raise _stranger(address)
    try:
        ray.init(address=way.head, namespace=namespace, log_to_driver=False, configure_logging=False, **way.options)
    except (Exception, SystemExit) as error:  # a raylet that is not there ends the process
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:  # Ray's own handler of it
            raise
        with contextlib.suppress(Exception):
            ray.shutdown()
        raise explained(address, error) from None


def head_of(address: str) -> tuple[str, int]:
    """Return host and port of an address HOST:PORT."""
    if "://" in address:
        hint = "write HOST:PORT of the head, and run skep on a machine that is a node of the cluster"
        raise UserError(f"`{address}` is no address of a head", hint=hint)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65536:
        raise UserError(f"`{address}` is no address of a head", hint="write its HOST:PORT, such as 10.0.0.1:6379")
    return host, int(port)


def checked_connection(address: str) -> RayConnection:
    """Return the connection to an address, or to that of `auto`. Raise EngineError if nobody listens there."""
    way = connection_to(address, os.environ)
    try:
        check_address(way.head)
    except EngineError:
        if way.node is None:
            raise
        hint = "running replicas go on serving; docs/cluster.md says how to start the cluster again"
        raise EngineError(f"the head at {way.head} is lost; this machine was a node of it", hint=hint) from None
    return way


def check_address(address: str) -> None:
    """Raise if the address is malformed or nobody listens there."""
    if address == "auto":
        return
    host, port = head_of(address)
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=KNOCK_S):
            pass
    except OSError as error:
        why = error.strerror or "no answer"
        raise EngineError(f"there is no cluster at {address}: {why}", hint=START) from None


def _session_of(head: str) -> str | None:
    """Return the session of the head; `ray.init` would compare it too, after 20 s."""
    with contextlib.suppress(Exception):  # private calls of Ray, which may change: then `ray.init` decides
        import ray

        return session_at(ray._raylet.GcsClient(address=head))  # noqa: SLF001
    return None


def session_at(gcs: Any) -> str | None:
    """Return the session of the cluster, which differs after a restart of the head; None if it does not say."""
    name = gcs.internal_kv_get(b"session_name", namespace=b"session", timeout=KNOCK_S)
    return str(name.decode()) if name else None


def _stranger(address: str) -> EngineError:
    return EngineError(f"{STRANGER} at {address}", hint=f"`skep cluster join {address}` makes it one")


def explained(address: str, error: BaseException) -> EngineError | UserError:
    """Return the error that says in one line why Ray cannot connect."""
    said = f"{error.__cause__ or ''}\n{type(error).__name__}: {error}"  # the cause has the details
    text = _without_files(said)
    if "ersion mismatch" in text:
        found = _VERSIONS.findall(text)
        (ray, python), (own_ray, own_python) = (found[0], found[-1]) if len(found) > 1 else (("?", "?"),) * 2
        hint = f"install ray=={ray} with Python {python} here, or restart the cluster with ray {own_ray}"
        return UserError(
            f"the cluster runs Ray {ray} on Python {python}, this machine has Ray {own_ray} and Python {own_python}",
            hint=hint,
        )
    if _REFUSED.search(text):
        hint = "give this machine the cluster's token: docs/cluster.md"
        return EngineError(f"the cluster at {address} refuses the connection: it has another token", hint=hint)
    strange = "No node info found" in text
    if address == "auto" and isinstance(error, ConnectionError) and not strange:
        return EngineError("no Ray cluster runs here", hint=f"{START}; or name its head with --cluster HOST:PORT")
    if "Failed to connect to GCS" in text:
        return EngineError(f"the server at {address} is not the head of a Ray cluster", hint=START)
    if strange or isinstance(error, SystemExit) or ("node" in text.lower() and "raylet" in text.lower()):
        return _stranger(address)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
    hint = "`skep cluster status` may say more"
    return EngineError(f"the cluster at {address} cannot be joined: {last[:200]}", hint=hint)


def _without_files(text: str) -> str:
    """Return the text without the file lines of a traceback: `node.py` and `_raylet.pyx` say nothing about a node."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith('File "'))
