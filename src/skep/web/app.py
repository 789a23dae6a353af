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
from skep.web import auth, chat, compare, history, plan, runs, swarm, tuning
from skep.web.auth import AccessMiddleware
from skep.web.context import Site
from skep.web.layout import StaticFiles, environment
from skep.web.live import Live, routes_of_now
from skep.web.responses import problem
from skep.wire.serve_asgi import AsgiServer

log = logging.getLogger("skep.web")
WARM_S = 1.0  # a store or a hive that takes longer is waited for by nobody
WARM_AFTER_S = 2.0  # the first page comes before the pictures' engine


def make_app(site: Site, *, live: Live | None = None, warm: bool = True) -> Starlette:
    """`app.state.live` is its reader of the hive: closing it ends every stream."""
    authenticator = auth.Authenticator(site)
    reader, static = live or Live(site), StaticFiles(site.paths.cache / "web")

    @contextlib.asynccontextmanager
    async def running(_app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            services = [tasks.create_task(reader.run())]
            if warm:
                services.append(tasks.create_task(_warm(static)))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read_once(), WARM_S)
            yield
            reader.close()
            for service in services:
                service.cancel()

    async def refuse(request: Request, error: Exception) -> Response:
        status = None
        if isinstance(error, HTTPException):
            status = error.status_code
            words = {404: "there is no such page", 405: "this page is read-only"}.get(status, error.detail)
            error = UserError(words, hint="see the links at the top" if status == 404 else None)
        assert isinstance(error, SkepError)
        return problem(site, request, error, status)

    def metrics(_request: Request) -> Response:
        from skep.monitor.status import metrics_page
        from skep.wire.prometheus import CONTENT_TYPE

        with site.series() as series:
            body = metrics_page(series, site.clock())
        return Response(body, headers={"content-type": CONTENT_TYPE})

    def healthy(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    plain = [Route("/metrics", metrics), Route("/healthz", healthy), Route("/static/{name}", static.answer)]
    pages = [route for module in (chat, history, compare, runs, swarm, plan, tuning) for route in module.routes(site)]
    app = Starlette(
        routes=[*routes_of_now(site, reader), *pages, *auth.routes(site, authenticator), *plain],
        middleware=[Middleware(AccessMiddleware, site=site, authenticator=authenticator)],
        exception_handlers={HTTPException: refuse, SkepError: refuse},
        lifespan=running,
    )
    app.state.live = reader
    return app


async def _warm(static: StaticFiles) -> None:
    """Templates are compiled before the first page is asked for; the engine of charts takes a second, and waits."""
    await asyncio.to_thread(lambda: [environment().get_template(name) for name in environment().list_templates()])
    await asyncio.sleep(WARM_AFTER_S)
    from skep.report.svg import picture

    with contextlib.suppress(Exception):  # it is only slower then
        await asyncio.to_thread(picture, {"data": {"values": [{}]}, "mark": "point"}, "warm-up")
        await static.vega()


DEFAULT_PORT = 8401
GRACE_S = 3


def serve(site: Site, *, host: str, port: int, on_ready: Callable[[str], None] = lambda _url: None) -> None:
    """Until Ctrl-C or SIGTERM. `on_ready` hears the URL once it answers. A port in use is a GatewayError."""
    app = make_app(site)
    guarded, end_streams = site.public or site.guarded, app.state.live.close
    with AsgiServer(
        app, host=host, port=port, guarded=guarded, grace_s=GRACE_S, on_ready=on_ready, on_end=end_streams
    ) as listening:
        listening.run()
