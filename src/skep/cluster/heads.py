"""Asks a head which cluster it has, with a token of the asker's choice. Joins nothing.

`ask_head` starts `python -m skep.cluster.heads ADDRESS`, which imports ray in our place and reads the token from stdin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skep.cluster.joining import KNOCK_S, check_address, explained, require_ray
from skep.errors import EngineError, SkepError, UserError

ASK_S = 20.0  # Ray itself gives up after 40 s
_OTHERS = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True, slots=True)
class Head:
    address: str  # HOST:PORT, as it was asked
    session: str  # of the cluster: a head that was started anew has another one
    mismatch: UserError | None = None  # it has another Ray or another Python than we


def ask_head(address: str, token: str) -> Head:
    require_ray()
    check_address(address)
    argv = [sys.executable, "-m", "skep.cluster.heads", address]
    env = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    env = {"RAY_gcs_server_request_timeout_seconds": "8", "RAY_USAGE_STATS_ENABLED": "0", **env}
    try:
        done = subprocess.run(
            argv, input=token.encode(), env={**env, "RAY_AUTH_MODE": "token"},
            capture_output=True, timeout=ASK_S, check=False,
        )  # fmt: skip
        told: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise EngineError(f"what listens at {address} did not answer as a head within {ASK_S:g} s") from None
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise EngineError(f"the head at {address} cannot be asked: {lines[-1][:200]}") from None
    if "error" in told:
        raise EngineError(told["error"], hint=told["hint"])
    other = told["mismatch"]
    return Head(address, told["session"], UserError(other["error"], hint=other["hint"]) if other else None)


def main(argv: Sequence[str] | None = None) -> int:
    (address,) = sys.argv[1:] if argv is None else argv
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever Ray prints is no answer
    os.environ["RAY_AUTH_TOKEN"] = sys.stdin.read()  # not in the environment that others can read
    try:
        document = _told(address)
    except SkepError as error:
        document = _words(error)
    with answer:
        json.dump(document, answer)
    return 0


def _told(address: str) -> dict[str, Any]:
    """By Ray's own calls, which may become others: then it is an error, and nothing is known."""
    import ray
    from ray._private.utils import check_version_info

    try:
        gcs = ray._raylet.GcsClient(address=address)  # noqa: SLF001
        session = gcs.internal_kv_get(b"session_name", namespace=b"session", timeout=KNOCK_S)
        versions = gcs.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=KNOCK_S)
    except Exception as error:
        raise explained(address, error) from None
    if not session:
        raise EngineError(f"the head at {address} does not say which cluster it has")
    mismatch = None
    if versions:
        try:
            check_version_info(json.loads(versions), "here")
        except Exception as error:  # Ray raises a RuntimeError
            mismatch = _words(explained(address, error))
    return {"session": session.decode(), "mismatch": mismatch}


def _words(error: SkepError) -> dict[str, Any]:
    return {"error": error.message, "hint": error.hint}


if __name__ == "__main__":
    sys.exit(main())
