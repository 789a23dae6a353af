"""What a client may use up before it has shown a key: bytes and time of a head, connections, time
of a body.
"""

import asyncio
import contextlib
import queue
import socket
import threading
from functools import partial
from urllib.parse import urlsplit

import pytest

from skep.units import KIB
from skep.wire.serve_asgi import AsgiServer, LimitedConnection

WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Quick(LimitedConnection):
    look_every_s = 0.1


class Two(LimitedConnection):
    max_connections = 2


class App:
    """Answers with the length of the body: at `/early` before it came,
    at `/slow` after `go_on`.
    """

    def __init__(self):
        self.go_on = threading.Event()
        self.gone = threading.Event()
        self.slow = threading.Semaphore(0)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        length = 0
        more_body = True
        while more_body and scope["path"] != "/early":
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return
            length = length + len(message["body"])
            more_body = message["more_body"]
        if scope["path"] == "/slow":
            self.slow.release()
            await asyncio.to_thread(self.go_on.wait, 10)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            await self.send_without_end(receive, send)
            return
        await send({"type": "http.response.body", "body": f"{length} bytes".encode()})

    async def send_without_end(self, receive, send):
        """Until the connection is closed."""
        closed = asyncio.create_task(receive())
        while not closed.done():
            await send({"type": "http.response.body", "body": bytes(64 * KIB), "more_body": True})
            await asyncio.sleep(0)
        self.gone.set()


@contextlib.contextmanager
def listening(connection=Quick):
    app = App()
    ready = queue.Queue()
    with AsgiServer(
        app,
        host="127.0.0.1",
        port=0,
        guarded=False,
        grace_s=1,
        connection=connection,
        on_ready=ready.put,
    ) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            port = urlsplit(ready.get(timeout=10)).port
            connect = partial(socket.create_connection, ("127.0.0.1", port), timeout=10)
            connect.app = app
            yield connect
        finally:
            app.go_on.set()
            server.stop()
            thread.join(10)


def rest_of(connection):
    """All that comes until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(64 * KIB):
            parts.append(part)
    return b"".join(parts)


def is_answered(connection):
    """Whether a request gets its whole answer; the connection stays open."""
    connection.sendall(WHOLE)
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        part = connection.recv(64 * KIB)
        if not part:
            return False
        received += part
    return received.startswith(b"HTTP/1.1 200 ")


def send_on(connection, data):
    """As much of it as the server takes."""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(data)


@pytest.fixture(scope="module")
def quick():
    with listening() as connect:
        yield connect


@pytest.fixture(scope="module")
def usual():
    with listening(None) as connect:
        yield connect


TOO_LONG = b"x" * (70 * KIB)


@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        (b"GET /", TOO_LONG),
        (b"GET / HTTP/1.1\r\nHost: x\r\nx: ", TOO_LONG),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
            b"t: " + TOO_LONG,
        ),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b""),
    ],
)
def test_a_head_or_trailer_without_end_and_what_is_not_http_are_refused(usual, begin, rest):
    with usual() as client:
        client.sendall(begin)
        send_on(client, rest)
        assert rest_of(client).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("before", [b"", WHOLE])
def test_a_head_that_trickles_ends_the_connection(quick, before):
    with quick() as client:
        client.sendall(before + b"GET / HTTP/1.1\r\nHost: x\r\nx: ")
        client.settimeout(0.02)
        answers = [b""]
        while answers[-1] or len(answers) == 1:
            try:
                answers.append(client.recv(100))
            except TimeoutError:
                send_on(client, b"y")
            except ConnectionResetError:
                break
        assert b"".join(answers).count(b"HTTP/1.1 ") == bool(before)


@pytest.mark.parametrize("before", [b"", WHOLE])
def test_a_connection_on_which_nothing_comes_is_closed(quick, before):
    with quick() as client:
        client.sendall(before)
        assert rest_of(client).count(b"HTTP/1.1 ") == bool(before)


@pytest.mark.parametrize(("path", "answers"), [("/", 0), ("/early", 1)])
def test_a_body_that_does_not_come_is_not_waited_for(quick, path, answers):
    """Whether it was answered already or not."""
    quick.app.gone.clear()
    with quick() as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: x\r\ncontent-length: 100\r\n\r\nbegin".encode()
        )
        assert rest_of(client).count(b"HTTP/1.1 200 ") == answers
    assert path == "/early" or quick.app.gone.wait(10)


def test_an_answer_may_take_longer_than_a_request(quick):
    """No time limit is on what the server itself does."""
    with quick() as client, quick() as idle:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert rest_of(idle) == b""  # a time limit has passed
        quick.app.go_on.set()
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_long_body_is_taken(usual):
    with usual() as client:
        length = 3 * 1024 * KIB
        client.sendall(
            (
                "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\ncontent-length: "
                f"{length}\r\n\r\n"
            ).encode()
        )
        client.sendall(bytes(length))
        assert f"{length} bytes".encode() in rest_of(client)


def test_one_connection_too_many_ends_the_one_that_waited_longest_for_a_request():
    """Idle connections of somebody else kept everybody out, as the newest one was closed."""
    with listening(Two) as connect, connect() as first, connect() as second:
        for client in (first, second):
            assert is_answered(client)
        with connect() as third:
            assert is_answered(third)
            assert rest_of(first) == b""
            assert is_answered(second)


def test_one_connection_too_many_is_closed_where_all_others_are_being_answered():
    with listening(Two) as connect, connect() as first, connect() as second:
        for client in (first, second):
            client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connect.app.slow.acquire(timeout=10)
        with connect() as third:
            send_on(third, WHOLE)
            assert rest_of(third) == b""
        connect.app.go_on.set()
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def test_a_body_in_chunks_is_refused_and_what_follows_it_is_not_read(usual):
    """Two clients that sent chunks of one byte kept all others waiting for over 30 s, before any
    key.
    """
    with usual() as client:
        send_on(client, CHUNKED + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n" + WHOLE)
        answer = rest_of(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"content-length" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_body_that_is_sent_on_after_its_answer_is_not_read_for_ever(usual):
    with usual() as client:
        client.sendall(b"POST /early HTTP/1.1\r\nHost: x\r\ncontent-length: 9999999999\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.sendall(bytes(64 << 20))


def test_a_body_that_trickles_is_given_up(quick):
    quick.app.gone.clear()
    with quick() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\ncontent-length: 100000\r\n\r\n")
        while not quick.app.gone.wait(0.02):
            send_on(client, b"x")
        assert rest_of(client) == b""


def test_who_does_not_read_an_answer_loses_it(quick):
    quick.app.gone.clear()
    with quick() as client:
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        assert quick.app.gone.wait(20)


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_offer_of_another_protocol_is_a_plain_request(usual, protocol):
    offer = (
        f"connection: Upgrade, HTTP2-Settings\r\nupgrade: {protocol}\r\nhttp2-settings: "
        "AAMAAABk\r\n"
    )
    keys = "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    head = f"GET / HTTP/1.1\r\nHost: x\r\n{offer}{keys}\r\n".encode()
    with usual() as client:
        client.sendall(head + WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = rest_of(client)
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert b"upgrade" not in answers.lower()


def test_http_2_without_asking_is_refused_with_one_answer(usual):
    with usual() as client:
        send_on(client, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        answer = rest_of(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 400 ") == 1
    assert b"not HTTP/2" in answer
