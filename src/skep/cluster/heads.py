"""Asks a head which cluster it has, with a token of the asker's choice. Joins nothing.

The errand `python -m skep.cluster.heads ADDRESS` reads the token from stdin.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skep.cluster import errands
from skep.cluster.joining import KNOCK_S, check_address, explained, require_ray, session_at
from skep.errors import EngineError, UserError

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
    env = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    env = {"RAY_USAGE_STATS_ENABLED": "0", **env, "RAY_AUTH_MODE": "token"}
    told = errands.send(__name__, [address], asked=f"what listens at {address}", wait_s=ASK_S, given=token, env=env)
    other = told["mismatch"]
    return Head(address, told["session"], UserError(other["error"], hint=other["hint"]) if other else None)


def main(argv: Sequence[str] | None = None) -> int:
    (address,) = sys.argv[1:] if argv is None else argv
    os.environ["RAY_AUTH_TOKEN"] = sys.stdin.read()  # not in the environment that others can read
    return errands.tell(lambda: _told(address))


def _told(address: str) -> dict[str, Any]:
    """By Ray's own calls, which may become others: then it is an error, and nothing is known."""
    import ray
    from ray._private.utils import check_version_info

    try:
        gcs = ray._raylet.GcsClient(address=address)  # noqa: SLF001
        session = session_at(gcs)
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
            mismatch = errands.words_of(explained(address, error))
    return {"session": session, "mismatch": mismatch}


if __name__ == "__main__":
    sys.exit(main())
