"""Which endpoint is meant where none is named: the one that `SKEP_URL` says, or this machine's own gateway."""

from __future__ import annotations

from collections.abc import Mapping

from skep.engines.control import ask, socket_of
from skep.errors import SkepError
from skep.places import DEFAULT_PORT, Paths

ANSWER_S = 2.0
URL_VARIABLE = "SKEP_URL"
KEY_VARIABLE = "SKEP_API_KEY"


def url_here(paths: Paths, env: Mapping[str, str]) -> str:
    """Where no skep runs, the place where it would: a run waits there until it does."""
    if env.get(URL_VARIABLE):
        return env[URL_VARIABLE]
    try:
        return str(ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=ANSWER_S)["url"])
    except SkepError:
        return f"http://127.0.0.1:{DEFAULT_PORT}"
