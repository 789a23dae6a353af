"""The application: pages, their JSON, live figures, static files, in one guarded frame."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from skep.errors import SkepError, UserError
from skep.web import auth, chat, compare, history, plan, runs, sessions, swarm, tuning
from skep.web.auth import AccessMiddleware
from skep.web.context import Site
from skep.web.layout import StaticFiles, environment
from skep.web.live import Live, routes_of_now
from skep.web.responses import problem
from skep.web.rights import public_routes, routes_by_visitor, view_of
from skep.wire.serve_asgi import AsgiServer

log = logging.getLogger("skep.web")
WARM_S = 1.0  # a store or a hive that takes longer is waited for by nobody
WARM_AFTER_S = 2.0  # the first page comes before the pictures' engine


def make_app(site: Site, *, live: Live | None = None, warm: bool = True) -> Starlette:
    """Return the application; its `state.end_streams` ends every stream.

    Where keys are required there are two views, with a reader each.
    """
    authenticator = auth.Authenticator(site)
    static = StaticFiles(site.paths.cache / "web")
    reader = live or Live(site)
    readers = [reader]
    if site.guarded:
        readers.append(reader.for_view(site.for_clients()))

    @contextlib.asynccontextmanager
    async def running(_app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            services = [tasks.create_task(reader.run()) for reader in readers]
            if warm:
                services.append(tasks.create_task(_warm(static)))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read_once(), WARM_S)
            yield
            end_streams()
            for service in services:
                service.cancel()

    def end_streams() -> None:
        for reader in readers:
            reader.close()

    async def refuse(request: Request, error: Exception) -> Response:
        status = None
        if isinstance(error, HTTPException):
            status = error.status_code
            words = {404: "there is no such page", 405: "this page is read-only"}.get(
                status, error.detail
            )
            error = UserError(words, hint="see the links at the top" if status == 404 else None)
        assert isinstance(error, SkepError)
        return problem(view_of(site, request.scope), request, error, status)

    views = [_pages(reader.site, reader) for reader in readers]
    pages = routes_by_visitor(*views) if site.guarded else views[0]
    access_routes = auth.routes(site, authenticator)
    routes = [
        *pages,
        *access_routes,
        Route("/healthz", _healthy),
        Route("/static/{name}", static.answer),
    ]
    app = Starlette(
        routes=public_routes(routes) if site.public else routes,
        middleware=[Middleware(AccessMiddleware, site=site, authenticator=authenticator)],
        exception_handlers={HTTPException: refuse, SkepError: refuse},
        lifespan=running,
    )
    app.state.end_streams = end_streams
    return app


def _pages(site: Site, reader: Live) -> list[Route]:
    """Return the pages as that view of the dashboard has them."""

    def metrics(_request: Request) -> Response:
        from skep.monitor.status import metrics_page
        from skep.wire.prometheus import CONTENT_TYPE

        with site.series() as series:
            body = metrics_page(series, site.clock())
        return Response(body, headers={"content-type": CONTENT_TYPE})

    modules = (chat, history, compare, runs, sessions, swarm, plan, tuning)
    pages = [route for module in modules for route in module.routes(site)]
    return [*routes_of_now(site, reader), *pages, Route("/metrics", metrics)]


def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _warm(static: StaticFiles) -> None:
    """Compile the templates before the first page is asked for, and start the engine of charts,
    which takes a second.
    """
    await asyncio.to_thread(
        lambda: [environment().get_template(name) for name in environment().list_templates()]
    )
    await asyncio.sleep(WARM_AFTER_S)
    from skep.report.svg import picture

    with contextlib.suppress(Exception):  # it is only slower then
        await asyncio.to_thread(picture, {"data": {"values": [{}]}, "mark": "point"}, "warm-up")
        await static.vega()


DEFAULT_PORT = 8401
GRACE_S = 3


def serve(
    site: Site, *, host: str, port: int, on_ready: Callable[[str], None] = lambda _url: None
) -> None:
    """Serve until Ctrl-C or SIGTERM; `on_ready` is given the URL once it answers.

    Raise GatewayError where the port is in use.
    """
    app = make_app(site)
    guarded = site.public or site.guarded
    with AsgiServer(
        app,
        host=host,
        port=port,
        guarded=guarded,
        grace_s=GRACE_S,
        on_ready=on_ready,
        on_end=app.state.end_streams,
    ) as listening:
        listening.run()
