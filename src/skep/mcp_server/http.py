"""The server over HTTP: on loopback for everybody there, elsewhere for those with a key.

On loopback only its own names are answered to, and other sites' pages are refused: no browser can be made to reach in.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from skep.config.access import AcceptedKeys, answer_while, host_of, is_same_origin
from skep.config.keys import given_keys, keys_path
from skep.errors import UserError
from skep.mcp_server.context import ServerContext
from skep.mcp_server.server import make_server
from skep.paths import LOOPBACK
from skep.wire.serve_asgi import AsgiServer

PATH = "/mcp"
BODY_BYTES = 32 * 1024 * 1024
GRACE_S = 1
SESSION_IDLE_S = 30 * 60.0  # without a request and without an open stream
MOST_SESSIONS = 256


class AccessCheck:
    """Around every request: the name it was asked by, where it comes from, the key. `keys` None: no key is wanted."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, keys: AcceptedKeys | None) -> None:
        self._app, self._hosts, self._keys = app, hosts, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (refused := self._refusal(headers)) is not None:
            await refused(scope, receive, send)
        elif (keys := self._keys) is None:
            await self._app(scope, receive, send)
        elif (key := keys.find(given_keys(headers.raw))) is None:
            await _said(401, "an API key is required: send it as `Authorization: Bearer KEY`")(scope, receive, send)
        else:
            # The SDK answers in a session only to the user that opened it.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=key.sha256, scopes=[]))
            await answer_while(lambda: keys.accepts(key), self._app, scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and host_of(host) not in self._hosts:
            return _said(421, f"this server does not answer as {host[:100]!r}")
        if origin is not None and not is_same_origin(origin, host):
            return _said(403, "requests from pages of other sites are refused")
        return None


def listen(
    place: ServerContext,
    *,
    host: str,
    port: int,
    session_idle_s: float = SESSION_IDLE_S,
    most_sessions: int = MOST_SESSIONS,
    on_ready: Callable[[str], None] = lambda _url: None,
) -> AsgiServer:
    """Bind the port and return the server; its `run` serves. `on_ready` is called with the URL."""
    hosts, keys = (frozenset(LOOPBACK), None) if host in LOOPBACK else (None, _keys(place, host))
    app = make_server(place).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_BYTES,
        session_idle_timeout=session_idle_s,
        max_sessions=most_sessions,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `AccessCheck` does that
    )
    guard, guarded = AccessCheck(app, hosts, keys), keys is not None
    return AsgiServer(guard, host=host, port=port, guarded=guarded, grace_s=GRACE_S, path=PATH, on_ready=on_ready)


def _keys(place: ServerContext, host: str) -> AcceptedKeys:
    """The gateway's rule: beyond loopback a key is wanted."""
    keys = AcceptedKeys(keys_path(place.paths), place.env.get("SKEP_API_KEY"))
    if not len(keys):
        hint = "`skep key add NAME` makes a key; or set SKEP_API_KEY, or bind 127.0.0.1"
        raise UserError(f"serving MCP on `{host}` without an API key would let anybody in", hint=hint)
    return keys


def _said(status: int, message: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return Response(json.dumps({"error": {"message": message}}), status, headers, "application/json")
