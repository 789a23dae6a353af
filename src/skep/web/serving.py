"""The process that serves the dashboard."""

from __future__ import annotations

from collections.abc import Callable

from skep.listening import Listening
from skep.web.app import make_app
from skep.web.site import Site

DEFAULT_PORT = 8401
GRACE_S = 3


def serve(site: Site, *, host: str, port: int, on_ready: Callable[[str], None] = lambda _url: None) -> None:
    """Until Ctrl-C or SIGTERM. `on_ready` hears the URL once it answers. A port in use is a GatewayError."""
    app = make_app(site)
    guarded, end_streams = site.public or site.guarded, app.state.live.close
    with Listening(
        app, host=host, port=port, guarded=guarded, grace_s=GRACE_S, on_ready=on_ready, on_end=end_streams
    ) as listening:
        listening.run()
