"""An application served over HTTP, as the dashboard and the MCP server are: uvicorn on a socket that is bound first.

Knows nothing of what is served.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import FrameType
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from skep.settings import Gateway
from skep.wiring import bind


class Listening:
    """The socket is bound, or refused, when it is made: a port in use is a GatewayError.

    `guarded`: those who may not come in are turned away by the application. `on_ready` hears the URL, `path` added,
    once it answers; `on_end` ends the streams that are open at the end.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        guarded: bool,
        grace_s: int,
        path: str = "",
        on_ready: Callable[[str], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = bind(Gateway(host=host, port=port), guarded=guarded)
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=grace_s,
        )
        self._server = _Server(config, lambda: on_ready(_url_of(self._listener) + path), on_end)

    def __repr__(self) -> str:
        return f"<Listening {_url_of(self._listener)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def run(self) -> None:
        """Until Ctrl-C, SIGTERM or `stop`."""
        self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """Ends quietly: a signal is an end as good as any, and streams do not hold it up."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], on_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready, self._on_end = on_ready, on_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Without uvicorn's raising the signal again at the end: the command ends with 0."""
        self.force_exit = self.should_exit
        self.should_exit = True


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
