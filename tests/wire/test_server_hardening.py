"""What the server refuses, bounds and survives: real sockets, uvloop, bytes as an attacker would
send them.
"""

import asyncio
import contextlib
import json
import resource
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uvloop
from wire_server import echo, hang_up, is_empty, serving, until

from skep.wire.server import within_files
from skep.wire.server_request import ClientTimeouts, ConnectionStage, ServerLimits, SweepAction
from skep.wire.transport import unsent_bytes

START_LOOP = uvloop.run  # as the gateway runs
QUICK_S = 0.15
CERTIFICATE = Path(__file__).parent / "localhost.pem"
AFTER = b"GET /after HTTP/1.1\r\nhost: a\r\n\r\n"


def quick(**limits):
    return ServerLimits(sweep_s=0.02, **limits)


def get(*lines, first=b"GET / HTTP/1.1", host=b"host: a"):
    return b"\r\n".join([first, *([host] if host else []), *lines, b"", b""])


def post(*lines, body=b"hello"):
    return get(*lines, first=b"POST / HTTP/1.1") + body


def chunked(body):
    return post(b"transfer-encoding: chunked", body=body)


def each(kind, make, values, status=400):
    """A row for each value; `|` stands between them."""
    return {f"{kind} {value!r}": (make(value), status) for value in values.split(b"|")}


def asking(target):
    return get(first=b"GET " + target + b" HTTP/1.1")


def coded(value):
    return post(b"transfer-encoding: " + value, body=b"0\r\n\r\n")


REFUSED = {
    # What a proxy before us and we could read differently
    "length and coding": (
        post(b"content-length: 5", b"transfer-encoding: chunked", body=b"0\r\n\r\n"),
        400,
    ),
    "coding and length": (
        post(b"transfer-encoding: chunked", b"content-length: 5", body=b"0\r\n\r\n"),
        400,
    ),
    "two equal lengths": (post(b"content-length: 5", b"content-length: 5"), 400),
    "two lengths": (post(b"content-length: 5", b"content-length: 6"), 400),
    **each(
        "length",
        lambda value: post(b"content-length: " + value),
        b"+5|-5|5,5|5, 5|5 |5\t| 5 |0x5||5 5|5;|5.0|5_0|\x0b5|18446744073709551621|" + b"9" * 1000,
    ),
    "length of 5000 zeros": (post(b"content-length: " + b"0" * 5000 + b"5"), 400),
    "length too large": (post(b"content-length: 9999999999999999999"), 413),
    "coding on 1.0": (
        get(b"transfer-encoding: chunked", first=b"POST / HTTP/1.0") + b"0\r\n\r\n",
        400,
    ),
    **each(
        "coding", coded, b"gzip, chunked|identity|xchunked|chunked;q=1|,chunked|chunked |gzip", 501
    ),
    **each("coding", coded, b"chunked, chunked|chunked, identity|chunked,||\x0bchunked"),
    "coding twice": (
        post(b"transfer-encoding: chunked", b"transfer-encoding: chunked", body=b"0\r\n\r\n"),
        400,
    ),
    "coding in two lines": (
        post(b"transfer-encoding: gzip", b"transfer-encoding: chunked", body=b"0\r\n\r\n"),
        400,
    ),
    "coding undone": (
        post(b"transfer-encoding: chunked", b"transfer-encoding: identity", body=b"0\r\n\r\n"),
        400,
    ),
    # Line ends and bytes
    "bare LF": (b"GET / HTTP/1.1\nhost: a\n\n", 400),
    "bare LF at the end": (b"GET / HTTP/1.1\r\nhost: a\r\n\n", 400),
    **each("line end or folding", get, b"x: y\nz: w|x: y\rz: w|x: y\r|x: y\r\n z|x: y\r\n\tz|xyz"),
    "space before the first header": (b"GET / HTTP/1.1\r\n x: y\r\nhost: a\r\n\r\n", 400),
    **each("name", lambda name: get(name + b": v"), b"x |x\t|x y||x\x00|x\x01|x\x7f|x\xff|x(|x@"),
    **each("value", lambda value: get(b"x: " + value), b"a\x00b|a\x01b|a\x7fb|a\x0bb"),
    # Host
    "no host": (get(host=None), 400),
    "two hosts": (get(b"host: b"), 400),
    "two equal hosts": (get(b"Host: a"), 400),
    **each(
        "host",
        lambda v: get(host=b"host: " + v),
        b"|a b|a/b|a@b|a,b|a:b|a:|a:123456|http://a|a?b|[::1|\xff|a\xc3\xbc",
    ),
    "two authorizations": (get(b"authorization: Bearer a", b"authorization: Bearer b"), 400),
    # Versions and other protocols
    **each(
        "version",
        lambda v: get(first=b"GET / " + v),
        b"HTTP/0.9|HTTP/2.0|HTTP/1.2|HTTP/3.0|HTTP/1.10|http/1.1|",
    ),
    "HTTP/2.0 kept alive": (get(b"connection: keep-alive", first=b"GET / HTTP/2.0"), 400),
    "HTTP/0.9's one line": (b"GET /\r\n", 400),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS to a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    # Targets
    **each("target", asking, b"/a b|/a\x00|/a\x7f|/a\xff|/a\tb|/#f|/a?b#c|*|a|a:80|?x|"),
    **each("target", asking, b"http://b/|http://u@a/|http://a#f|ftp://a/|http://a:1/|http:///x"),
    "absolute target without a host": (get(first=b"GET http://a/ HTTP/1.0", host=None), 400),
    # Methods and expectations
    **each("method", lambda m: get(first=m + b" / HTTP/1.1"), b"TRACE|PROPFIND|SOURCE|QUERY", 501),
    **each("method", lambda m: get(first=m + b" / HTTP/1.1"), b"FOO|get|G\x00T"),
    "CONNECT": (get(first=b"CONNECT a:80 HTTP/1.1"), 501),
    "CONNECT with a length": (get(b"content-length: 5", first=b"CONNECT a:80 HTTP/1.1"), 501),
    "another expectation": (get(b"expect: 200-ok"), 417),
    # Chunks
    **each(
        "chunks",
        chunked,
        b"5\nhello\r\n0\r\n\r\n|5\r\nhello\n0\r\n\r\n|5\r\nhello0\r\n\r\n|5\rhello\r\n0\r\n\r\n"
        b"|0x5\r\nhello|+5\r\nhello|-5\r\nhello| 5\r\nhello|5 \r\nhello|5 "
        b";x\r\nhello|\r\nhello|g\r\n"
        b"|fffffffffffffffff\r\n|5;a\nb\r\nhello|5;\x00\r\nhello",
    ),
    **each(
        "after the chunks",
        lambda end: chunked(b"5\r\nhello\r\n0\r\n" + end),
        (
            b"\n|x: y\n\r\n|content-length: 5\r\n\r\n|transfer-encoding: chunked\r\n\r\n|x: "
            b"y\r\n z\r\n\r\n"
        ),
    ),
    "chunk too large": (chunked(b"ffffffff\r\n" + b"x" * 70_000), 413),
    # Without end
    "a megabyte of headers": (get(*[b"x-%d: " % n + b"y" * 10_000 for n in range(100)]), 431),
    "one header of a megabyte": (get(b"x: " + b"y" * 1_000_000), 431),
    "a name of a megabyte": (get(b"y" * 1_000_000 + b": x"), 431),
    "a target of a megabyte": (get(first=b"GET /" + b"y" * 1_000_000 + b" HTTP/1.1"), 431),
    "100,000 headers": (get(*[b"x: y"] * 100_000), 431),
    "257 headers": (get(*[b"x: y"] * 256), 431),
    "66 KB of headers": (get(*[b"x: " + b"y" * 6_600] * 10), 431),
    "an extension of a megabyte": (chunked(b"5;" + b"x" * 1_000_000), 400),
    "extensions on each chunk": (chunked((b"1;" + b"x" * 5_000 + b"\r\ny\r\n") * 400), 400),
    "a trailer of a megabyte": (chunked(b"5\r\nhello\r\n0\r\nx: " + b"y" * 1_000_000), 400),
    "100,000 trailers": (chunked(b"5\r\nhello\r\n0\r\n" + b"x: y\r\n" * 100_000), 400),
}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
async def test_a_request_that_could_be_misread_gets_one_refusal_and_ends_what_follows(
    data, status
):
    async with serving(limits=ServerLimits(body_bytes=65_536)) as service:
        answer = await service.talk(data + AFTER, AFTER)
        assert service.handled == []
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "bad_request"


@pytest.mark.parametrize(
    "name", ["a megabyte of headers", "an extension of a megabyte", "100,000 trailers"]
)
async def test_what_has_no_end_is_bounded_also_in_small_packets_and_behind_another_request(name):
    data = AFTER + REFUSED[name][0]
    async with serving() as service:
        answer = await service.talk(*[data[i : i + 1400] for i in range(0, len(data), 1400)])
        assert service.targets == [b"/after"]
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 %d " % REFUSED[name][1] in answer


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\r\n" + AFTER, (b"GET", b"/after", b"")),
        (get(host=None, first=b"GET /x HTTP/1.0"), (b"GET", b"/x", b"")),
        (get(host=b"Host: [::1]:80"), (b"GET", b"/", b"")),
        (get(first=b"GET http://A/p?q HTTP/1.1"), (b"GET", b"/p?q", b"")),
        (get(first=b"GET http://a?q HTTP/1.1"), (b"GET", b"/?q", b"")),
        (post(b"content-length: 005"), (b"POST", b"/", b"hello")),
        (chunked(b"1\r\nh\r\n" * 3 + b"0\r\n\r\n"), (b"POST", b"/", b"hhh")),
        (chunked(b"5;x=y\r\nhello\r\n0\r\nx: y\r\n\r\n"), (b"POST", b"/", b"hello")),
        (post(b"Transfer-Encoding: Chunked", body=b"0\r\n\r\n"), (b"POST", b"/", b"")),
        (get(*[b"x: y"] * 255), (b"GET", b"/", b"")),
        (get(b"x: " + b"y" * 60_000), (b"GET", b"/", b"")),
    ],
)
@pytest.mark.parametrize("piece", [1 << 20, 999, 7])
async def test_what_is_legal_is_taken_in_whatever_pieces_it_comes(data, expected, piece):
    if piece == 7 and len(data) > 1000:
        pytest.skip("tells nothing more")
    async with serving() as service:
        answer = await service.talk(
            *[data[i : i + piece] for i in range(0, len(data), piece)], get(b"connection: close")
        )
        assert answer.startswith(b"HTTP/1.1 200 OK")
        first = service.handled[0]
        assert (first.method, first.target, first.body) == expected


async def test_many_chunks_of_one_byte_are_legal_and_trailers_never_become_headers():
    """A trailer `authorization` came after the checks on headers: it must not look like one."""
    async with serving() as service:
        data = chunked(
            b"1\r\nx\r\n" * 50_000 + b"0\r\nauthorization: Bearer x\r\nhost: evil\r\n\r\n"
        )
        await service.talk(data, get(b"connection: close"))
        assert service.handled[0].body == b"x" * 50_000
        assert service.handled[0].headers == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk"


@pytest.mark.parametrize("piece", [10_000, 5])
async def test_an_offer_of_another_protocol_hides_no_request(piece):
    """The body is read as a body, however much it looks like a request; what follows it is read
    once.
    """
    inner = get(first=b"GET /smuggled HTTP/1.1")
    lengthy = post(OFFER, b"content-length: %d" % len(inner), body=inner)
    chunks = post(
        OFFER, b"transfer-encoding: chunked", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)
    )
    data = lengthy + chunks + get(OFFER) + get(b"connection: close", first=b"GET /last HTTP/1.1")
    async with serving() as service:
        await service.talk(*[data[i : i + piece] for i in range(0, len(data), piece)])
        assert [(request.target, request.body) for request in service.handled] == [
            (b"/", inner),
            (b"/", inner),
            (b"/", b""),
            (b"/last", b""),
        ]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((b"content-length: 5", b"transfer-encoding: chunked"), 400),
        ((b"content-length: 5 ",), 400),
        ((b"transfer-encoding: gzip, chunked",), 501),
        ((b"host: b",), 400),
        ((b"expect: x",), 417),
        ((b"content-length: 99999999999",), 413),
    ],
)
async def test_an_offer_of_another_protocol_passes_no_check_by(lines, status):
    async with serving() as service:
        answer = await service.talk(post(OFFER, *lines) + AFTER)
        assert service.handled == []
    assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_an_offer_keeps_the_version_and_what_the_client_says_of_closing():
    async with serving() as service:
        closing = get(b"connection: close, upgrade", b"upgrade: h2c")
        assert (await service.talk(closing)).count(b"connection: close") == 1
        old = get(b"connection: upgrade", b"upgrade: h2c", first=b"GET / HTTP/1.0", host=None)
        assert b"connection: close" in await service.talk(old)
        assert [request.version for request in service.handled] == ["1.1", "1.0"]


async def test_thousands_of_offers_are_just_requests():
    async with serving() as service:
        await service.talk(get(OFFER) * 3000 + get(b"connection: close"))
        assert len(service.handled) == 3001


@pytest.mark.parametrize("lines", [(), (OFFER,)], ids=["plain", "with an offer"])
async def test_a_client_that_asks_first_is_told_to_go_on_once(lines):
    async with serving() as service:
        reader, writer = await service.connect()
        writer.write(post(*lines, b"expect: 100-continue", b"content-length: 2", body=b""))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        await hang_up(writer)


async def test_nothing_after_a_request_that_closes_is_handled():
    def last(request):
        request.keep_alive = False
        echo(request)

    async with serving(last) as service:
        assert (await service.talk(AFTER * 5)).count(b"HTTP/1.1 ") == 1
        assert service.targets == [b"/after"]
        service.handled.clear()
    async with serving() as service:
        assert (await service.talk(get(b"connection: close") + AFTER)).count(b"HTTP/1.1 ") == 1
        assert service.targets == [b"/"]


@pytest.mark.parametrize(
    "surplus",
    [
        AFTER * 17,
        post(b"content-length: 600000", body=b"x" * 600_000) * 2,
        post(b"content-length: 3000000", body=b"x" * 2_000_000),
        b"garbage\r\n\r\n",
        get(host=None),
    ],
    ids=["too many", "too much", "one too large", "garbage", "no host"],
)
async def test_abuse_behind_an_answer_under_way_makes_it_the_last(surplus):
    """The answer is finished; nothing sent behind it is handled."""
    event = asyncio.Event()

    async with serving(lambda _: event.set()) as service:
        reader, writer = await service.connect()
        writer.write(get())
        await event.wait()
        writer.write(surplus)
        connection = next(iter(service.server.open))
        await until(lambda: connection._ended)
        echo(service.handled[0])
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.endswith(b"GET / ")
        assert b"connection: close" in answer
        assert len(service.handled) == 1
        await hang_up(writer)


async def test_a_large_body_may_follow_an_answer_that_ends_meanwhile():
    async with serving() as service:
        body = b"x" * 3_000_000
        data = get() + post(b"content-length: %d" % len(body), b"connection: close", body=body)
        await service.talk(*[data[i : i + 50_000] for i in range(0, len(data), 50_000)])
        assert service.handled[1].body == body


@pytest.mark.parametrize("count", [17, 500])
async def test_a_client_that_asks_and_does_not_read_is_not_answered_without_bound(count):
    """Its requests wait while answers pile up; more of them than may wait end the connection."""
    unsent = []

    def large(request):
        unsent.append(unsent_bytes(request.carrier.transport))
        request.respond(200, [], b"x" * 2_000_000)

    async with serving(large) as service:
        answer = await service.talk(AFTER * (count - 1) + get(b"connection: close"))
    assert (answer.count(b" 200 OK") == count) == (count == 17)
    assert (b" 429 " in answer) == (count > 17)
    assert max(unsent) < 65_536


# Times


@pytest.mark.parametrize(
    ("pieces", "limits", "status"),
    [
        ([b"GET / HT"], {"head_timeout_s": QUICK_S}, 408),
        ([b"GET / HTTP/1.1\r\nhost: a\r\nx: y"], {"head_timeout_s": QUICK_S}, 408),
        ([post(b"content-length: 9")], {"body_idle_s": QUICK_S}, 408),
        ([chunked(b"5\r\nhello\r\n")], {"body_idle_s": QUICK_S}, 408),
        ([AFTER, b"GET / HTTP/1.1\r\n"], {"head_timeout_s": QUICK_S}, 408),
        ([], {"head_timeout_s": QUICK_S}, None),
        ([AFTER], {"idle_timeout_s": QUICK_S}, None),
        ([AFTER, b"\r\n"], {"idle_timeout_s": QUICK_S}, None),
    ],
)
async def test_a_client_that_says_nothing_more_is_given_up(pieces, limits, status):
    async with serving(limits=quick(**limits)) as service:
        started = time.monotonic()
        answer = await service.talk(*pieces)
        assert time.monotonic() - started >= QUICK_S
    assert (b"HTTP/1.1 408 " in answer) == (status == 408)


@pytest.mark.parametrize(
    ("start", "drip", "limits"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: ", b"y", {"head_timeout_s": 0.4}),
        (
            post(b"content-length: 1000", body=b""),
            b"y",
            {"request_timeout_s": 0.4, "body_idle_s": 0.2},
        ),
        (chunked(b"5;"), b"y", {"body_idle_s": 0.4}),
    ],
    ids=["head", "body", "extension"],
)
async def test_a_client_that_drips_is_given_up(start, drip, limits):
    async with serving(limits=quick(**limits)) as service:
        started = time.monotonic()
        reader, writer = await service.connect()
        writer.write(start)
        answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
        while not answer.done():
            await asyncio.wait([answer], timeout=0.02)
            writer.write(drip)
            assert time.monotonic() - started < 20
        assert b" 408 " in answer.result()
        assert time.monotonic() - started >= 0.4
        await hang_up(writer)


async def test_an_answer_may_take_longer_than_any_of_these_times():
    limits = quick(
        head_timeout_s=0.05,
        body_idle_s=0.05,
        request_timeout_s=0.05,
        idle_timeout_s=0.05,
        linger_s=0.05,
    )

    def slowly(request):
        asyncio.get_running_loop().call_later(0.3, echo, request)

    async with serving(slowly, limits) as service:
        assert b"200 OK" in await service.talk(get())


async def test_a_client_that_takes_none_of_its_answer_is_cut_and_its_handler_told():
    event = asyncio.Event()

    def endless(request):
        request.on_gone = event.set
        request.start(200, [], None)
        request.write(b"x" * 20_000_000)

    async with serving(endless, quick(write_idle_s=QUICK_S)) as service:
        with socket.create_connection((service.origin.host, service.origin.port)) as sock:
            sock.sendall(get())
            await asyncio.wait_for(event.wait(), 5)


@pytest.mark.parametrize("closing", [b"connection: close", b"connection: keep-alive"])
async def test_a_finished_answer_that_is_not_fetched_is_cut_too(closing):
    async with serving(
        lambda r: r.respond(200, [], b"x" * 20_000_000), quick(write_idle_s=QUICK_S)
    ) as service:
        with socket.create_connection((service.origin.host, service.origin.port)) as sock:
            sock.sendall(get(closing))
            await until(lambda: service.handled and is_empty(service.server))


async def test_a_client_that_reads_slowly_gets_all_of_its_answer():
    size = 20_000_000
    limits = quick(write_idle_s=1.2, idle_timeout_s=0.1, linger_s=0.1)
    async with serving(lambda r: r.respond(200, [], b"x" * size), limits) as service:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (service.origin.host, service.origin.port))
        await loop.sock_sendall(sock, get(b"connection: close"))
        got = 0
        started = time.monotonic()
        while data := await loop.sock_recv(sock, 1_000_000):
            got += len(data)
            if time.monotonic() - started < 1.6:  # for longer than the limit
                await asyncio.sleep(0.05)
        sock.close()
    assert got > size


ANSWERING = ConnectionStage.ANSWERING


@pytest.mark.parametrize(
    ("limits", "steps", "end"),
    [
        (
            {"write_idle_s": 10, "write_bytes": 1000},
            [
                (1, ANSWERING, {"taken": 0, "unsent": 100}),
                (9, ANSWERING, {"taken": 900, "unsent": 299}),
                (
                    12,
                    ANSWERING,
                    {"taken": 1100, "unsent": 399},
                ),  # more waits than before, yet enough has left
                (19, ANSWERING, {"taken": 1500, "unsent": 499}),
                (23, ANSWERING, {"taken": 2000, "unsent": 499}),
            ],
            SweepAction.ABORT,
        ),
        (
            {"write_idle_s": 10, "write_bytes": 1000},
            [
                (9, ANSWERING, {"taken": 10, "unsent": 100}),
                (12, ANSWERING, {"taken": 110, "unsent": 0}),
                (21, ANSWERING, {"taken": 120, "unsent": 100}),
            ],
            None,
        ),
    ],
    ids=["too little leaves", "not while nothing waited"],
)
def test_how_long_a_client_is_waited_for(limits, steps, end):
    """Each step: time, stage, counters.

    A reader of 2,000 bytes in 15 s kept a slot for two hours.
    """
    patience = ClientTimeouts(ServerLimits(**limits), 0)
    nothing = {"message": 0, "arrived": 0, "taken": 0, "unsent": 0}
    verdicts = [
        patience.look(at, stage, **{**nothing, **counters}) for at, stage, counters in steps
    ]
    assert verdicts == [*[None] * (len(steps) - 1), end]


# Many connections


async def test_connections_beyond_the_limit_are_told_to_come_back():
    async with serving(limits=quick(max_connections=2, linger_s=QUICK_S)) as service:
        connections = [await service.connect() for _ in range(2)]
        for reader, writer in connections:
            writer.write(AFTER)
            await reader.readuntil(b"/after ")
        answer = await service.talk(AFTER)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        assert (
            json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        )
        assert len(service.handled) == 2
        for _, writer in connections:
            await hang_up(writer)
        await until(lambda: is_empty(service.server))
        await service.is_well()


async def test_a_crowd_beyond_the_limit_holds_no_descriptors():
    async with serving(limits=quick(max_connections=1)) as service:
        crowd = [await service.connect() for _ in range(200)]
        await until(lambda: len(service.server.open) == 1 + 64)
        for _, writer in crowd:
            await hang_up(writer)


async def test_who_comes_when_all_places_are_taken_waits_and_gets_an_answer_later():
    """It was accepted and closed without a word. Now it is served, or told to come back."""
    async with serving(limits=quick(max_connections=1)) as service:
        crowd = [await service.connect() for _ in range(100)]
        await until(lambda: len(service.server.open) == 1 + 64)
        *earlier, (reader, last_writer) = crowd
        last_writer.write(AFTER)
        for _, writer in earlier:
            await hang_up(writer)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))
        await hang_up(last_writer)


STARVED = """
import asyncio, resource, socket, sys, uvloop
from skep.wire.server_request import ServerLimits
from skep.wire.server import HttpServer
async def main():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = HttpServer(lambda request: request.respond(200, [], b"ok"))
    await server.listen(sock)
    # After the server has looked: it believes in thousands.
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    print(sock.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
uvloop.run(main())
"""


def test_a_server_without_descriptors_neither_dies_nor_spins():
    """On uvloop, as the gateway runs.

    Python 3.11's own loop does spin: it tries as often as its backlog is long.
    """
    with subprocess.Popen(
        [sys.executable, "-c", STARVED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        port = int(child.stdout.readline())
        crowd = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(100)]
        before = cpu_s(child.pid)
        time.sleep(0.5)
        assert cpu_s(child.pid) - before < 0.3
        for sock in crowd:
            sock.close()
        give_up_at = time.monotonic() + 10
        while not answers(port):  # it may not have noticed yet that the crowd is gone
            assert time.monotonic() < give_up_at
        child.stdin.close()
        assert child.wait(10) == 0


def answers(port):
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=10) as sock,
    ):
        sock.sendall(get())
        return sock.recv(100).startswith(b"HTTP/1.1 200 OK")
    return False


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_the_limit_of_connections_leaves_each_of_them_a_file_for_its_engine():
    limits = ServerLimits(max_connections=10_000)
    shares = [within_files(limits, files).max_connections for files in (128, 1024, 65536)]
    assert shares == [44, 464, 10_000]
    assert within_files(limits, resource.RLIM_INFINITY) == limits


# TLS


def tls_of_server():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def tls_of_client():
    return ssl.create_default_context(cafile=CERTIFICATE)


LOOPS = pytest.mark.parametrize("start_loop", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])


@LOOPS
async def test_requests_are_answered_over_tls_and_a_refused_connection_is_told_and_closed(
    start_loop,
):
    async with serving(tls=tls_of_server()) as service:
        reader, writer = await service.connect(ssl=tls_of_client())
        for body in (b"hello", b"x" * 3_000_000):
            writer.write(post(b"content-length: %d" % len(body), body=body))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert await reader.readexactly(len(body) + 7) == b"POST / " + body
        writer.write(get(host=None) + AFTER)
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 400 ")
        assert len(service.handled) == 2
        await hang_up(writer)


@LOOPS
@pytest.mark.parametrize("how", ["politely", "abruptly"])
async def test_a_hang_up_over_tls_is_noticed(start_loop, how):
    event = asyncio.Event()
    has_left = asyncio.Event()

    def never(request):
        request.on_gone = has_left.set
        event.set()

    async with serving(never, tls=tls_of_server()) as service:
        _, writer = await service.connect(ssl=tls_of_client())
        writer.write(get())
        await asyncio.wait_for(event.wait(), 5)
        if how == "politely":
            await hang_up(writer)
        else:
            writer.transport.abort()
        await asyncio.wait_for(has_left.wait(), 5)


async def test_handshakes_that_never_end_hold_no_more_connections_than_the_limit():
    """They were not counted, since nobody is told of a connection before its handshake has
    ended.
    """
    async with serving(limits=quick(max_connections=3), tls=tls_of_server()) as service:
        stalled = [await service.connect() for _ in range(100)]
        await until(lambda: not service.server.has_room)
        assert len(service.server.open) == 3 + 64
        for _, writer in stalled:
            await hang_up(writer)
        await until(lambda: is_empty(service.server))
        reader, writer = await service.connect(ssl=tls_of_client())
        writer.write(get())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        await hang_up(writer)
        service.complaints.clear()  # asyncio reports failed handshakes


@LOOPS
async def test_a_server_that_closes_also_cuts_handshakes_that_have_not_ended(start_loop):
    """They kept their sockets and their places until the time for a handshake was over."""
    async with serving(tls=tls_of_server()) as service:
        reader, writer = await service.connect()
        await until(lambda: len(service.server.open) == 1)
        await service.server.close(0)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        await until(lambda: is_empty(service.server))
        await hang_up(writer)


@LOOPS
async def test_a_plain_request_to_a_tls_port_and_a_stalled_handshake_end(start_loop):
    async with serving(limits=quick(head_timeout_s=QUICK_S), tls=tls_of_server()) as service:
        for opening in (AFTER, b"\x16\x03\x01", b""):
            reader, writer = await service.connect()
            writer.write(opening)
            with contextlib.suppress(ConnectionError):
                assert AFTER not in await asyncio.wait_for(reader.read(), 5)
            await hang_up(writer)
        service.complaints.clear()  # asyncio reports failed handshakes
        assert service.handled == []


# Answers


@pytest.mark.parametrize(
    ("request_data", "status"), [(get(first=b"HEAD / HTTP/1.1"), 200), (get(), 204), (get(), 304)]
)
@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_that_has_no_body_gets_none(request_data, status, whole):
    """A body behind such a head would be read as the next answer."""

    def answer(request):
        if request.target == b"/after":
            echo(request)
        elif whole:
            request.respond(status, [], b"body")
        else:
            request.start(status, [], None)
            request.write(b"body")
            request.finish()

    async with serving(answer) as service:
        first, _, rest = (
            await service.talk(request_data + AFTER + get(b"connection: close"))
        ).partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert rest.startswith(b"HTTP/1.1 200 OK")


async def test_a_handler_that_fails_costs_its_connection_only():
    def fail(request):
        if request.target != b"/well":
            raise RuntimeError(request.target)
        echo(request)

    async with serving(fail) as service:
        assert await service.talk(AFTER * 2) == b""
        assert service.targets == [b"/after"]
        await service.is_well()
        assert len(service.complaints) == 1
        service.complaints.clear()
