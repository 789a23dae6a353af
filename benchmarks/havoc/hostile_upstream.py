"""An upstream that means harm, as a process of its own: `python hostile_upstream.py MODE`.

It writes its port, and is an idle engine until somebody asks for `/hostile/start`. From then on
chat requests, `/metrics` or `/slots` get what its mode says; `/hostile/sent` answers how many
bytes that were. Written with threads and plain sockets, as no server library sends what these
modes send."""

from __future__ import annotations

import argparse
import socket
import threading
from collections.abc import Callable, Iterator

BLOCK = 65_536
CHAT_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
WORDS = b"hi " * 5000  # of one event: few large ones come faster than many small ones
EVENT = (
    b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % WORDS
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
SLOT = b'{"id":0,"is_processing":true,"prompt":"%b"}' % (b"x" * 1000)
LABEL_LINE = b"a{\n"  # a label set that never closes: each line begins another one
MIB = 1 << 20


def endless_trailers() -> Iterator[bytes]:
    yield CHAT_HEAD + CHUNK + b"0\r\n"
    lines = b"x-trailer: " + b"t" * 1000 + b"\r\n"
    while True:
        yield lines * (BLOCK // len(lines))


def endless_extension() -> Iterator[bytes]:
    yield CHAT_HEAD + CHUNK + b"5;name="
    while True:
        yield b"e" * BLOCK


def endless_events() -> Iterator[bytes]:
    yield CHAT_HEAD
    while True:
        yield CHUNK * 4


def one_event_and_silence() -> Iterator[bytes]:
    yield CHAT_HEAD + CHUNK


def metrics_page(size: int) -> Iterator[bytes]:
    yield plain_head(size)
    for start in range(0, size, BLOCK):
        yield (LABEL_LINE * (BLOCK // len(LABEL_LINE) + 1))[: min(BLOCK, size - start)]


def slots_page(size: int) -> Iterator[bytes]:
    count = size // (len(SLOT) + 1)
    yield plain_head(count * (len(SLOT) + 1) + 1)
    yield b"["
    for number in range(count):
        yield SLOT + (b"]" if number == count - 1 else b",")


def plain_head(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % size


def whole_answer(text: bytes) -> Iterator[bytes]:
    yield plain_head(len(text)) + text


IDLE_ENGINE = {
    b"/metrics": b"vllm:num_requests_running 0\n",
    b"/slots": b"[]",
    b"/health": b"{}",
}
Pages = dict[bytes, Callable[[], Iterator[bytes]]]
MODES: dict[str, Pages] = {
    "trailers": {b"/v1/": endless_trailers},
    "extension": {b"/v1/": endless_extension},
    "events": {b"/v1/": endless_events},
    "labels-24k": {b"/v1/": one_event_and_silence, b"/metrics": lambda: metrics_page(24 * 1024)},
    "labels-100m": {b"/v1/": one_event_and_silence, b"/metrics": lambda: metrics_page(100 * MIB)},
    "slots": {b"/v1/": one_event_and_silence, b"/slots": lambda: slots_page(100 * MIB)},
}


class HostileUpstream:
    def __init__(self, mode: str) -> None:
        self._pages = MODES[mode]
        self._started = False
        self._sent = 0
        self._lock = threading.Lock()  # of `_sent`, which every connection's thread adds to

    def serve(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
            print(listener.getsockname()[1], flush=True)
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._answer_all, args=(client,), daemon=True).start()

    def _answer_all(self, client: socket.socket) -> None:
        with client:
            try:
                while (path := read_request(client)) is not None:
                    self._answer(client, path)
            except OSError:
                return  # the gateway has had enough of it

    def _answer(self, client: socket.socket, path: bytes) -> None:
        if path == b"/hostile/start":
            self._started = True
        if path == b"/hostile/sent":
            client.sendall(b"".join(whole_answer(b"%d" % self._sent)))
            return
        page = self._page(path)
        if page is None:
            client.sendall(b"".join(whole_answer(IDLE_ENGINE.get(path, b"{}"))))
            return
        for block in page():
            client.sendall(block)
            with self._lock:
                self._sent += len(block)

    def _page(self, path: bytes) -> Callable[[], Iterator[bytes]] | None:
        """None: nothing bad is answered there."""
        if not self._started:
            return None
        return next((page for start, page in self._pages.items() if path.startswith(start)), None)


def read_request(client: socket.socket) -> bytes | None:
    """Return the path of the next request after reading its head and body; None at the end."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(BLOCK)
        if not data:
            return None
        head += data
    head, _, body = head.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in lines)
    missing = int(fields.get(b"content-length", b"0")) - len(body)
    while missing > 0:
        missing -= len(client.recv(BLOCK))
    return first.split(b" ")[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=MODES)
    HostileUpstream(parser.parse_args().mode).serve()
