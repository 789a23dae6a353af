"""Which endpoint is meant where none is named: the one that `SKEP_URL` says, or this machine's own gateway."""

from __future__ import annotations

from collections.abc import Mapping

from skep.engines.control import ask, socket_of
from skep.errors import SkepError
from skep.places import DEFAULT_PORT, LOOPBACK, Paths
from skep.wire.heads import parse_url

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


def key_here(url: str, env: Mapping[str, str]) -> str | None:
    """The key of the gateway that is meant where none is named; it goes to this machine and to `SKEP_URL` only."""
    named = env.get(URL_VARIABLE)
    places = [parse_url(one)[0] for one in (url, named) if one]
    is_here = places[0].host in LOOPBACK or places[0] in places[1:]
    return env.get(KEY_VARIABLE) or None if is_here else None
