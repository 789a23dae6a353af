"""A dashboard on a random port, in a thread of the test's own process, and what is asked of it."""

import contextlib
import http.client
import queue
import threading
from urllib.parse import urlencode, urlsplit

from skep.supervisor.control import NotRunning
from skep.web.app import make_app
from skep.web.live import Live
from skep.wire.serve_asgi import AsgiServer


def no_hive(_site):
    raise NotRunning


def folders(place):
    """The environment of an installation in that folder."""
    return {
        "HOME": str(place),
        **{f"XDG_{name}_HOME": str(place / name) for name in ("CONFIG", "DATA", "STATE", "CACHE")},
    }


@contextlib.contextmanager
def running(site, *, read=no_hive, routes=()):
    """Gives a function that asks: `ask(path, method="GET", headers=..., form=...)` -> (response, text)."""
    app = make_app(site, live=Live(site, read=read, first_paint_s=10.0), warm=False)
    app.router.routes.extend(routes)
    ready = queue.Queue()
    end_streams = app.state.live.close
    with AsgiServer(
        app, host="127.0.0.1", port=0, guarded=True, grace_s=2, on_ready=ready.put, on_end=end_streams
    ) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield _asking(urlsplit(ready.get(timeout=10)).port)
        finally:
            server.stop()
            thread.join(10)


def _asking(port):
    def ask(path, method="GET", headers=(), form=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        sent = dict(headers)
        body = None
        if form is not None:
            body = urlencode(form)
            sent = {"content-type": "application/x-www-form-urlencoded", **sent}
        try:
            connection.request(method, path, body=body, headers=sent)
            response = connection.getresponse()
            return response, response.read().decode()
        finally:
            connection.close()

    ask.origin = f"http://127.0.0.1:{port}"
    ask.port = port
    return ask
