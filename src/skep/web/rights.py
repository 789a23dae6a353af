"""Who may see and do what: the class of every route, and whose request it is.

A key without the mark `admin` opens the pages as the public sees them, counts of the swarm, and
the chat, which asks the gateway with that very key. What shows or changes what is the owner's is
for admins: a key with the mark, SKEP_API_KEY, and everybody on a dashboard that answers on
loopback."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from skep.config.keys import KeySpec
from skep.web.context import Site
from skep.web.responses import AdminsOnly

VISITOR = "skep.visitor"  # the key of an ASGI scope


class Visitor(msgspec.Struct, frozen=True):
    """Whose request it is.

    The key itself is kept as long as the request or the session, in memory alone.
    """

    is_admin: bool
    key: bytes | None = None  # as it was shown
    spec: KeySpec | None = None  # of a key that was checked here
    session: bytes | None = None  # the digest of its token

    def __repr__(self) -> str:
        return f"<Visitor {self.spec.name if self.spec else 'without a key'}>"


class RouteClass(StrEnum):
    OPEN = "open"  # for everybody, before a key is shown
    SHARED = "shared"  # for whoever may look; what is private is shown to admins alone
    KEY = (
        "key"  # for whoever has a key, and for everybody on loopback; the public does not have it
    )
    ADMIN = "admin"  # shows or changes what is the owner's


ROUTE_CLASSES = {
    "GET /login": RouteClass.OPEN,
    "POST /login": RouteClass.OPEN,
    "GET /static/{name}": RouteClass.OPEN,
    "GET /healthz": RouteClass.OPEN,
    "GET /": RouteClass.SHARED,
    "GET /api/now.json": RouteClass.SHARED,
    "GET /live": RouteClass.SHARED,
    "GET /metrics": RouteClass.SHARED,
    "GET /history": RouteClass.SHARED,
    "GET /api/history.json": RouteClass.SHARED,
    "GET /compare": RouteClass.SHARED,
    "GET /api/compare.json": RouteClass.SHARED,
    "GET /runs": RouteClass.SHARED,
    "GET /runs/compare": RouteClass.SHARED,
    "GET /runs/{id}": RouteClass.SHARED,
    "GET /runs/{id}/report.html": RouteClass.SHARED,
    "GET /api/runs.json": RouteClass.SHARED,
    "GET /api/run.json": RouteClass.SHARED,
    "GET /plan": RouteClass.SHARED,
    "GET /plan/fragment": RouteClass.SHARED,
    "GET /api/plan.json": RouteClass.SHARED,
    "GET /tuning": RouteClass.SHARED,
    "GET /tuning/{id}": RouteClass.SHARED,
    "GET /tuning/{id}/body": RouteClass.SHARED,
    "GET /tuning/{id}/report.html": RouteClass.SHARED,
    "GET /api/tuning.json": RouteClass.SHARED,
    "GET /api/tuning/{id}.json": RouteClass.SHARED,
    "POST /logout": RouteClass.KEY,
    "GET /chat": RouteClass.KEY,
    "POST /api/chat": RouteClass.KEY,
    "GET /swarm": RouteClass.KEY,  # counts, where it is not an admin who asks
    "GET /api/swarm.json": RouteClass.KEY,
    "GET /swarm/{id}": RouteClass.ADMIN,
    "GET /swarm/{id}/body": RouteClass.ADMIN,
    "GET /swarm/{id}/report.html": RouteClass.ADMIN,
    "GET /api/swarm/{id}.json": RouteClass.ADMIN,
    "POST /swarm/{id}/cancel": RouteClass.ADMIN,
    "POST /swarm/{id}/resume": RouteClass.ADMIN,
    "GET /sessions": RouteClass.ADMIN,
    "GET /sessions/{id}": RouteClass.ADMIN,
    "GET /api/sessions.json": RouteClass.ADMIN,
    "GET /api/sessions/{id}.json": RouteClass.ADMIN,
    "POST /notes": RouteClass.ADMIN,
}


def address_of(route: Route) -> str:
    """Return the method and the path as `ROUTE_CLASSES` has them."""
    (method,) = (route.methods or {"GET"}) - {"HEAD"}
    return f"{method} {route.path}"


def class_of(route: Route) -> RouteClass:
    """Return its class; one that nobody has classified is for admins."""
    return ROUTE_CLASSES.get(address_of(route), RouteClass.ADMIN)


def visitor_of(request: Request) -> Visitor:
    """Return whose request it is, as the access check has found it."""
    visitor: Visitor = request.scope[VISITOR]
    return visitor


def view_of(site: Site, scope: Scope) -> Site:
    """Return the site as the one who asks may see it; before a key is checked, as clients do."""
    visitor: Visitor | None = scope.get(VISITOR)
    is_owner = not site.guarded or (visitor is not None and visitor.is_admin)
    return site if is_owner else site.for_clients()


def public_routes(routes: Sequence[Route]) -> list[Route]:
    return [route for route in routes if class_of(route) in (RouteClass.OPEN, RouteClass.SHARED)]


def routes_by_visitor(
    admin_routes: Sequence[Route], client_routes: Sequence[Route]
) -> list[Route]:
    """Return each route once: admins get what the first have there,
    clients what the second have.
    """
    for_clients = {
        address_of(route): route.app
        for route in client_routes
        if class_of(route) is not RouteClass.ADMIN
    }
    chosen = []
    for route in admin_routes:
        answer = ByVisitor(route.app, for_clients.get(address_of(route), refuse_client))
        chosen.append(Route(route.path, answer, methods=list(route.methods or ())))
    return chosen


class ByVisitor:
    """One address that answers admins and clients differently."""

    def __init__(self, admin_app: ASGIApp, client_app: ASGIApp) -> None:
        self._admin_app = admin_app
        self._client_app = client_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visitor: Visitor | None = scope.get(VISITOR)
        is_admin = visitor is not None and visitor.is_admin
        app = self._admin_app if is_admin else self._client_app
        await app(scope, receive, send)


async def refuse_client(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AdminsOnly
