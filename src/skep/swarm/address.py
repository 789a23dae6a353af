"""Which endpoint a swarm asks, and with which key, where the user names none. Asks skep's
supervisor on this machine; sends nothing to the endpoint itself."""

from __future__ import annotations

from collections.abc import Mapping

from skep.engines.base import GATEWAY_KEY
from skep.errors import SkepError
from skep.paths import DEFAULT_PORT, Paths, user_paths
from skep.supervisor.control import ask, local_key, socket_of
from skep.wire.heads import parse_url

ANSWER_S = 2.0
URL_VARIABLE = "SKEP_URL"


def url_here(paths: Paths, env: Mapping[str, str]) -> str:
    """Return the address of `SKEP_URL` or of this machine's gateway; where no skep runs, the one
    where it would: a run waits there until it does.
    """
    if env.get(URL_VARIABLE):
        return env[URL_VARIABLE]
    control_socket = socket_of(paths.lock, paths.socket)
    try:
        return str(ask(control_socket, {"op": "status"}, timeout_s=ANSWER_S)["url"])
    except SkepError:
        return f"http://127.0.0.1:{DEFAULT_PORT}"


def key_here(url: str, env: Mapping[str, str]) -> str | None:
    """Return the key where none is named: on this machine what `local_key` finds, for `SKEP_URL`
    that of its gateway.
    """
    stored_key = local_key(url, env, user_paths(env))
    if stored_key is not None:
        return stored_key
    named = env.get(URL_VARIABLE)
    if named and parse_url(named)[0] == parse_url(url)[0]:
        return env.get(GATEWAY_KEY) or None
    return None
