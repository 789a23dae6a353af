"""The server over HTTP: on loopback for everybody there, elsewhere for those with a key.

On loopback only loopback's own names are answered to, and a page of somebody else's is refused by its origin, so that
no browser can be made to reach in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import urlsplit

from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from skep.errors import UserError
from skep.gateway.keys import KeyRing, KeySpec, digest_of, given_keys
from skep.keyfile import keys_path, read_keys
from skep.listening import Listening
from skep.mcp_server.place import Place
from skep.mcp_server.server import make_server
from skep.places import LOOPBACK

PATH = "/mcp"
BODY_BYTES = 32 * 1024 * 1024
GRACE_S = 1
LONGEST_KEY = 1024


class Guard:
    """Around every request: the name it was asked by, where it comes from, the key. `ring` None: no key is wanted."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, ring: KeyRing | None) -> None:
        self._app, self._hosts, self._ring = app, hosts, ring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and _name_of(f"//{host}") not in self._hosts:
            return _said(421, f"this server does not answer to the name {host[:100]!r}")
        if origin is not None and not _same(origin, host):
            return _said(403, "pages of other sites may not speak with this server")
        if self._ring is not None and not any(
            len(key) <= LONGEST_KEY and self._ring.find(key) is not None for key in given_keys(headers.raw)
        ):
            return _said(401, "an API key is wanted: send it as `Authorization: Bearer KEY`")
        return None


def listen(place: Place, *, host: str, port: int, on_ready: Callable[[str], None] = lambda _url: None) -> Listening:
    """Bound, or refused; its `run` serves. `on_ready` hears the URL."""
    ring, hosts = _keys(place, host), frozenset((*LOOPBACK, host)) if host in LOOPBACK else None
    app = make_server(place).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_BYTES,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `Guard` does that
    )
    guard = Guard(app, hosts, ring)
    return Listening(
        guard, host=host, port=port, guarded=ring is not None, grace_s=GRACE_S, path=PATH, on_ready=on_ready
    )


def _keys(place: Place, host: str) -> KeyRing | None:
    """The gateway's rule: beyond loopback a key is wanted."""
    if host in LOOPBACK:
        return None
    keys, own = read_keys(keys_path(place.paths)), place.env.get("SKEP_API_KEY")
    if not keys and not own:
        hint = "`skep key add NAME` makes a key; or set SKEP_API_KEY, or bind 127.0.0.1"
        raise UserError(f"serving MCP on `{host}` without an API key would let anybody in", hint=hint)
    return KeyRing((*keys, *((KeySpec("SKEP_API_KEY", digest_of(own)),) if own else ())))


def _said(status: int, message: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return Response(json.dumps({"error": {"message": message}}), status, headers, "application/json")


def _name_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _same(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
