"""Asking a hive as its users do, over HTTP and by the command line; servers and hives with nothing
behind them.
"""

import asyncio
import contextlib
import http.server
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from skep.host.processes import descendants
from skep.paths import make_runtime
from skep.supervisor.control_commands import control_socket

HIVE = 'start_deadline = "20s"\ndrain = "10s"\n'


def write_hive(folder, *tables, gateway="", head=HIVE):
    """Writes skep.toml: tables of [[serve]] with a fake engine, and what stands before and under
    [gateway].
    """
    text = [head, "[gateway]\nport = 0\n", gateway]
    for table in tables or ({},):
        values = {"model": "fake-model", "engine": "fake", "slots": 2, **table}
        text += ["[[serve]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    (folder / "skep.toml").write_text("\n".join(text) + "\n")


def rows_of(skep):
    return {row["name"]: row for row in json.loads(skep("ps", "--json", check=0).stdout)}


def ask(url, *, key=None, context=None, **fields):
    body = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3,
        **fields,
    }
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return answer.status, answer.read()


def refusal(url, **kwargs):
    """Status and code of a request that is refused."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, **kwargs)
    with caught.value as error:
        return error.code, json.load(error)["error"]["code"]


def status_of(url, key=None):
    """Of one request, or of one past the gateway to an engine."""
    try:
        return ask(url, key=key)[0]
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def streaming(url, **fields):
    """A plain socket with a streamed answer under way."""
    body = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        **fields,
    }
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30)
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
        % len(data)
        + data
    )
    return sock


def eventually(check, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not (result := check()):
        assert time.monotonic() < deadline, check
        time.sleep(0.02)  # asking another process: there is no event to await
    return result


def family(pid):
    """The process and everything below it."""
    return [pid, *descendants(pid)]


def rest_of(sock, received):
    """What comes until the end of a chunked answer, or of the connection."""
    while b"0\r\n\r\n" not in received and (data := sock.recv(65536)):
        received += data
    return received


@contextlib.contextmanager
def answering(status, body=b"", kind="text/html"):
    """A server that says the same to everybody; gives its URL and the keys that it was shown."""
    lines = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            lines.append(self.headers.get("authorization"))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", lines
        finally:
            server.shutdown()
            thread.join()


class FakeHive:
    """A control socket and nothing behind it: `answer` is called with each message; `down` ends
    it.
    """

    def __init__(self, paths, answer, last_words=dict):
        make_runtime(paths.runtime)
        self._loop = asyncio.new_event_loop()
        self._done = asyncio.Event()
        ready = threading.Event()

        async def answered(message):
            if message["op"] == "down":
                self._loop.call_later(0.05, self._done.set)
            return answer(message)

        async def serve():
            async with control_socket(paths.socket, answered, last_words):
                ready.set()
                await self._done.wait()

        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(serve()))
        self._thread.start()
        assert ready.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join()
            self._loop.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
