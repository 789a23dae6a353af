"""A dashboard on a random port, in a thread of the test's own process, what is asked of it, and a
hive before it.
"""

import contextlib
import http.client
import json
import queue
import threading
from urllib.parse import urlencode, urlsplit

from skep.supervisor.control import NotRunning
from skep.web.app import make_app
from skep.web.live import Live
from skep.wire.serve_asgi import AsgiServer


def no_hive(_site):
    raise NotRunning


def status(*replicas, url="http://127.0.0.1:1", pid=1, queues=None, up_s=90.0, tokens=10.0):
    """What a hive says of itself. Of a replica its name, its slots and what else is not usual."""
    rows = [
        {
            "kind": "replica",
            "state": "ready",
            "pid": 7,
            "url": url,
            "busy": 1,
            "model": "m",
            "engine": "fake",
            "restarts": 0,
            "why": None,
            **replica,
        }
        for replica in replicas
    ]
    served = [
        {**row, "active": 3, "releasing": 1, "state": "up", "simulated": False} for row in rows
    ]
    gateway = {
        "queued": 2,
        "in_flight": 6,
        "busy": {},
        "models": {},
        "replicas": served,
        "ended": {"answered": 12},
        "tokens": {row["name"]: tokens for row in rows},
        "queues": queues or {"m": {"interactive": 0, "normal": 2, "batch": 0}},
    }
    return {
        "phase": "ready",
        "url": url,
        "pid": pid,
        "rows": rows,
        "gateway": gateway,
        "up_s": up_s,
    }


def folders(place):
    """The environment of an installation in that folder."""
    return {
        "HOME": str(place),
        **{f"XDG_{name}_HOME": str(place / name) for name in ("CONFIG", "DATA", "STATE", "CACHE")},
    }


@contextlib.contextmanager
def running(site, *, read=no_hive, routes=()):
    """Gives a function that asks: `ask(path, method="GET", headers=..., form=...)` -> (response,
    text).

    `ask.json(path)` is the document that is answered, `ask.rows(path)` the rows of a CSV file.
    """
    app = make_app(site, live=Live(site, read=read, first_paint_s=10.0), warm=False)
    app.router.routes.extend(routes)
    ready = queue.Queue()
    end_streams = app.state.end_streams
    with AsgiServer(
        app,
        host="127.0.0.1",
        port=0,
        guarded=True,
        grace_s=2,
        on_ready=ready.put,
        on_end=end_streams,
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
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
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

    ask.json = lambda path: json.loads(ask(path)[1])
    ask.origin = f"http://127.0.0.1:{port}"
    ask.port = port
    return ask
