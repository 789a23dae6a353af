"""The key that an engine wants to see where others can reach it: how it gets to the engine, how it is asked for.

Knows no engine's own variable or flag. It goes by the environment, which only the same user can read.
"""

from __future__ import annotations

import os
from hmac import compare_digest

from skep.engines.base import Launch

ENGINE_KEY = "SKEP_ENGINE_KEY"
KEY_HERE = "{engine_key}"  # in an argv: the keeper puts the key there, for engines that take it in no other way
REFUSED = "this engine wants the key of its hive: ask the gateway"


def key_variables(launch: Launch, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, launch.api_key) if launch.api_key else {}


def key_headers(launch: Launch) -> dict[str, str]:
    return {"authorization": launch.authorization} if launch.authorization else {}


def take_key() -> str:
    """Of this process, an engine of ours. What it starts does not inherit it."""
    return os.environ.pop(ENGINE_KEY, "")


def shows_key(key: str, authorization: bytes | None) -> bool:
    """Where there is no key, everybody does."""
    scheme, _, shown = (authorization or b"").partition(b" ")
    return not key or (scheme.lower() == b"bearer" and compare_digest(shown.strip(), key.encode()))
