"""A server whose answers are recorded, for what no fake engine says."""

import contextlib
import http.server
import json
import threading


class Recorded(http.server.BaseHTTPRequestHandler):
    """Plays what is recorded for a path, in one piece or in the pieces of a list; keeps the bodies
    that came.

    A status other than 200 stands before what it comes with.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self._play(self.server.page(self.path))

    def do_POST(self):
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self._play(self.server.answer(self.path, self.headers, self.server.bodies[-1]))

    def _play(self, exchange):
        status, data = exchange if isinstance(exchange, tuple) else (200, exchange)
        streamed = isinstance(data, list) or data.startswith((b"data:", b"event:"))
        self.send_response(status)
        for name, value in self.server.lines:
            self.send_header(name, value)
        self.send_header("content-type", "text/event-stream" if streamed else "application/json")
        if isinstance(data, list):
            self.send_header("transfer-encoding", "chunked")
            data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*data, b""])
        else:
            self.send_header("content-length", str(len(data)))
        try:
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError:  # its client has left
            self.close_connection = True

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def recorded(answer=lambda *_: b"{}", page=lambda _path: b"ok", lines=()):
    """A server that plays `answer(path, headers, body)` to a POST, and the page of its path to a
    GET.
    """
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorded) as server:
        server.answer = answer
        server.page = page
        server.lines = lines
        server.bodies = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def sse(*events):
    """Each event as bytes, named by its type where it has one."""
    return [
        (f"event: {event['type']}\n" if "type" in event else "").encode()
        + f"data: {json.dumps(event)}\n\n".encode()
        for event in events
    ]
