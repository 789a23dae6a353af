"""The key that the engines of a hive want to see: how an engine gets it, how it is shown, where skep itself finds it.

Knows no engine's own variable or flag. It goes by the environment, or by a file that only the same user can read.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from pathlib import Path

from skep.engines.base import Launch
from skep.paths import make_private

ENGINE_KEY = "SKEP_ENGINE_KEY"
GATEWAY_KEY = "SKEP_API_KEY"
KEY_HERE = "{engine_key}"  # in an argv: the keeper puts the key there, for engines that take it in no other way
KEY_FILE_HERE = "{engine_key_file}"  # in an argv: the keeper puts the name of a YAML file with the key there
KEY_FILE = "engine-key"  # in the state folder while a hive runs
REFUSED = "this engine wants the key of its hive: ask the gateway"
NO_ORIGIN = "none"  # the web pages that an engine gives leave: no page has this origin
ANSWER_S = 2.0


def new_key() -> str:
    """Return a random key. It begins with a letter: an option parser would take a dash for a flag."""
    return f"skep-{secrets.token_urlsafe(24)}"


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


# Where it is kept


def write_secret(path: Path, text: str) -> None:
    """Write a file that only this user can read, at once and whole."""
    make_private(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


@contextmanager
def kept_key(state: Path, key: str) -> Iterator[None]:
    """Keep the hive's key in the state folder while the block runs. Without a key, nothing is kept."""
    path = state / KEY_FILE
    path.unlink(missing_ok=True)  # left by a hive that was killed
    if key:
        write_secret(path, f"{key}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
