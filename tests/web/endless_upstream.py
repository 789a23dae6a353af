"""An upstream that streams without an end, as fast as it is read, and counts what was taken from
it.
"""

import contextlib
import select
import socket
import threading

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 4000 + b'"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
STUCK_S = 1.5  # nothing was taken for so long: whoever reads has stopped


class EndlessUpstream:
    """Streams to one request.

    `sent` are the bytes that the socket took; `stuck` is set when it takes no more.
    """

    def __init__(self, most_bytes):
        self._most_bytes = most_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0
        self.stuck = threading.Event()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self):
        with contextlib.suppress(OSError):
            while not self.ended.is_set():
                client, _ = self._listener.accept()
                with client:
                    self._answer(client)

    def _answer(self, client):
        if not client.recv(65536).startswith(b"POST"):  # what the gateway asks by itself
            client.sendall(NOT_FOUND)
            return
        client.sendall(HEAD)
        with contextlib.suppress(OSError):
            self._stream_to(client)
        self.ended.set()

    def _stream_to(self, client):
        client.setblocking(False)
        rest = b""
        while self.sent < self._most_bytes:
            if not select.select([], [client], [], STUCK_S)[1]:
                self.stuck.set()
                select.select([], [client], [])
            rest = rest or CHUNK
            count = client.send(rest)
            rest = rest[count:]
            self.sent += count

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
