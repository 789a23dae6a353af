"""The process that serves the dashboard: uvicorn on a socket that was bound before anything else."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from skep.settings import Gateway
from skep.web.app import make_app
from skep.web.site import Site
from skep.wiring import bind

DEFAULT_PORT = 8401
GRACE_S = 3


def serve(site: Site, *, host: str, port: int, on_ready: Callable[[str], None] = lambda _url: None) -> None:
    """Until Ctrl-C or SIGTERM. `on_ready` hears the URL once it answers. A port in use is a GatewayError."""
    with bind(Gateway(host=host, port=port), guarded=site.public or site.guarded) as listener:
        app = make_app(site)
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        _Server(config, app.state.live.close, lambda: on_ready(url_of(listener))).run(sockets=[listener])


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Ends quietly: a signal is an end as good as any, and streams do not hold it up."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None], ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams, self._ready = end_streams, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Without uvicorn's raising the signal again at the end: the command ends with 0."""
        self.force_exit = self.should_exit
        self.should_exit = True
