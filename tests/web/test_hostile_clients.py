"""What a hostile page, or a program on the way, asks of a dashboard: one refusal, and nothing is
written.
"""

import socket
from contextlib import suppress

import pytest
from running_site import running
from stored_runs import installation, put_run

from sample_swarm import put_swarm_run
from skep.config.keys import KeySpec, add_entry, checked, digest_of, keys_path
from skep.monitor.store import SeriesStore
from skep.store.database import open_store
from skep.web.context import make_site

STORED = {}
NOTE = b"text=a+note"
FORM = b"content-type: application/x-www-form-urlencoded\r\n"
# What is nothing but the name of the machine, and what only looks like it.
NO_NAMES = (
    b"evil.example", b"127.0.0.1.evil.example", b"127.0.0.1@evil.example",
    b"evil.example@127.0.0.1", b"localhost#.evil.example", b"localhost/evil.example",
    b"localhost?evil.example", b"", b"[::2]", b"0.0.0.0",
)  # fmt: skip
FOREIGN = (
    b"http://evil.example",
    b"null",
    b"http://127.0.0.1:1",
    b"https://127.0.0.1.evil.example",
    b"",
)
WRITES = (
    "/notes",
    "/api/chat",
    "/login",
    "/logout",
    "/swarm/{swarm}/cancel",
    "/swarm/{swarm}/resume",
)
OUTSIDE = (
    "/static/../../../../etc/passwd", "/static/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/static/..%5c..%5cskep.css", "/static//etc/passwd", "/static/skep.css%00.js",
    "/runs/..%2f..%2fetc%2fpasswd/report.html", "/runs/%00/report.html", "/runs/%25/report.html",
    "/runs/_/report.html", "/swarm/%25/report.html", "/swarm/*/report.html",
    "/tuning/%25/report.html", "/api/swarm/%25.json", "/login/../api/swarm.json",
    "/static/../api/swarm.json", "/healthz/../api/swarm.json",
)  # fmt: skip


def fill(store):
    STORED["run"] = put_run(store, 0)
    STORED["swarm"] = put_swarm_run(store, "tasks.jsonl")


@pytest.fixture(scope="module")
def site_paths(tmp_path_factory):
    paths = installation(tmp_path_factory.mktemp("hostile"), fill)
    add_entry(keys_path(paths), checked(KeySpec("owner", digest_of("sk-owner"), admin=True)))
    return paths


@pytest.fixture(scope="module")
def loopback(site_paths):
    with running(make_site(site_paths, host="127.0.0.1")) as ask:
        yield ask


@pytest.fixture(scope="module")
def guarded(site_paths):
    with running(make_site(site_paths, host="0.0.0.0")) as ask:
        yield ask


def talk(ask, data):
    """All that is answered to these bytes until the server closes the connection."""
    parts = []
    with socket.create_connection(("127.0.0.1", ask.port), timeout=20) as client:
        with suppress(ConnectionResetError, BrokenPipeError):
            client.sendall(data)
        with suppress(ConnectionResetError):
            while part := client.recv(65536):
                parts.append(part)
    return b"".join(parts)


def request(method, path, *lines, body=b"", host=b"127.0.0.1"):
    fields = [b"host: " + host, b"connection: close", *lines]
    if body:
        fields.append(b"content-length: %d" % len(body))
    return f"{method} {path} HTTP/1.1\r\n".encode() + b"\r\n".join(fields) + b"\r\n\r\n" + body


def notes(paths):
    with open_store(paths.store, read_only=True) as store:
        return len(SeriesStore(store).events(0, 4e9))


@pytest.mark.parametrize("host", NO_NAMES)
@pytest.mark.parametrize("path", ["/", "/api/now.json", "/static/skep.css", "/login", "/nowhere"])
def test_a_name_that_was_made_to_point_here_gets_no_page(loopback, host, path):
    """DNS rebinding: a page of somebody else's reaches this machine under its own name."""
    answer = talk(loopback, request("GET", path, host=host))
    assert answer.startswith((b"HTTP/1.1 421 ", b"HTTP/1.1 400 ")), answer[:80]
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("path", WRITES)
def test_a_form_of_another_site_is_refused_and_nothing_is_written(
    loopback, site_paths, path, origin
):
    before = notes(site_paths)
    if origin:
        lines = [FORM.strip(), b"origin: " + origin]
    else:
        lines = [FORM.strip()]
    answer = talk(loopback, request("POST", path.format(**STORED), *lines, body=NOTE))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert notes(site_paths) == before


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("path", WRITES)
def test_a_browsers_session_is_no_use_to_another_site(guarded, site_paths, path, origin):
    response, _ = guarded(
        "/login", "POST", form={"key": "sk-owner"}, headers={"origin": guarded.origin}
    )
    cookie = response.headers["set-cookie"].partition(";")[0].encode()
    before = notes(site_paths)
    lines = [FORM.strip(), b"cookie: " + cookie, *([b"origin: " + origin] if origin else [])]
    answer = talk(guarded, request("POST", path.format(**STORED), *lines, body=NOTE))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert notes(site_paths) == before


@pytest.mark.parametrize("path", WRITES[3:])
def test_what_writes_is_never_done_by_a_get(loopback, site_paths, path):
    lines = [b"x-http-method-override: POST", b"x-method-override: POST"]
    answer = talk(loopback, request("GET", path.format(**STORED), *lines))
    assert answer.startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_address_leads_out_of_what_is_served(loopback, path):
    answer = talk(loopback, request("GET", path))
    assert answer.startswith(b"HTTP/1.1 404 "), answer[:80]
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "path", [path for path in OUTSIDE if "/../" in path or path.startswith("/swarm")]
)
def test_no_address_leads_past_the_check_of_the_key(guarded, path):
    answer = talk(guarded, request("GET", path, host=b"x"))
    assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 401 ", b"HTTP/1.1 303 ")), answer[:80]
    assert STORED["swarm"].encode() not in answer
    assert b"tasks.jsonl" not in answer


@pytest.mark.parametrize(
    "lines",
    [
        (b"x: " + b"y" * 200_000,),
        (b"host: evil.example",),
        (b"content-length: -3",),
        (b"content-length: 3", b"content-length: 4"),
        (b"content-length: 3", b"transfer-encoding: chunked"),
        (b"transfer-encoding: gzip, chunked",),
        (b"no colon here",),
        (b"x y: z",),
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused_once(loopback, lines):
    hidden = request("GET", "/healthz")
    answer = talk(loopback, request("POST", "/notes", *lines) + hidden)
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not answer or answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
@pytest.mark.parametrize("path", ["/healthz", "/nowhere"])
def test_an_offer_of_another_protocol_gets_the_answer_of_a_plain_request(loopback, path, protocol):
    offer = [b"upgrade: " + protocol, b"http2-settings: AAMAAABk", b"sec-websocket-version: 13"]
    data = request("GET", path, *offer).replace(
        b"connection: close", b"connection: close, upgrade, http2-settings"
    )
    answer = talk(loopback, data)
    assert answer.startswith(b"HTTP/1.1 200 " if path == "/healthz" else b"HTTP/1.1 404 ")
    assert b"101" not in answer.split(b"\r\n", 1)[0]
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("length", [b"99999999999", b"100000"])
def test_a_form_far_too_long_is_refused_before_it_is_whole(loopback, length):
    lines = [FORM.strip(), b"origin: " + loopback.origin.encode(), b"content-length: " + length]
    head = request("POST", "/notes", *lines, host=loopback.origin.removeprefix("http://").encode())
    with socket.create_connection(("127.0.0.1", loopback.port), timeout=20) as client:
        client.sendall(head + b"x" * 50_000)
        assert client.recv(20).startswith(b"HTTP/1.1 400 ")
