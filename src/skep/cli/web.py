"""`skep web`: the dashboard, until Ctrl-C."""

from __future__ import annotations

import os
from typing import Annotated

from skep.cli.options import ROOT, command, option
from skep.paths import user_paths
from skep.report.terminal import note


@command(ROOT, "skep web --port 8401 --open")
def web(
    host: Annotated[
        str, option("Address to listen on; beyond loopback a key or --public is required.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("Port to listen on; 0 picks a free port.", min=0, max=65535)
    ] = 8401,
    public: Annotated[
        bool,
        option("Serve everyone without a key: read-only, without prompts, keys or addresses."),
    ] = False,
    open_browser: Annotated[bool, option("Open the dashboard in the browser.", "--open")] = False,
) -> None:
    """Serve the web dashboard: current state, history of monitored targets, runs, plans."""
    from skep.web.app import serve
    from skep.web.context import make_site

    def ready(url: str) -> None:
        print(url, flush=True)  # noqa: T201
        note(
            "the dashboard is up"
            + (", open to everyone who can reach it" if public else "")
            + "; Ctrl-C stops it"
        )
        if open_browser:
            show(url)

    key = os.environ.get("SKEP_API_KEY") or None
    site = make_site(user_paths(os.environ), host=host, public=public, api_key=key)
    serve(site, host=host, port=port, on_ready=ready)


def show(url: str) -> None:
    """Open the URL in a thread: some browsers block until they are closed."""
    import threading
    import webbrowser

    reachable = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    threading.Thread(target=webbrowser.open, args=(reachable,), daemon=True).start()
