"""The chat in front of a real gateway: the visitor's own key, the browser's pace, the slot of who
left.
"""

import http.client
import json
import socket
from contextlib import ExitStack

import pytest
from endless_upstream import EndlessUpstream
from running_site import running
from stored_runs import installation

from commands import eventually
from skep.config.keys import KeySpec, add_entry, checked, digest_of, keys_path
from skep.testing.process import FakeEngine
from skep.web.context import Site

FAR_TOO_MANY_BYTES = 256 << 20  # all socket buffers on the way together hold a tenth of it
CLIENT = "sk-client"
QUESTION = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def chatting(start_gateway, monkeypatch, tmp_path):
    """Start a fake engine, a gateway before it and a dashboard: returns all three."""
    with ExitStack() as stack:

        def start(*, site=None, slots=1, engine=None, **setup):
            options = {"slots": slots, "token_ms": 1, **(engine or {})}
            fake = stack.enter_context(FakeEngine(**options))
            gateway = start_gateway(**setup)
            gateway.serve_engines(fake, slots=slots)
            monkeypatch.setenv("SKEP_URL", gateway.url)
            paths = installation(tmp_path)
            add_entry(keys_path(paths), checked(KeySpec("client", digest_of(CLIENT))))
            ask = stack.enter_context(running(Site(paths, **(site or {}))))
            return ask, gateway, fake

        yield start


def one_key(**limits):
    """A gateway's setup with the key of the client."""
    return [{"name": "client", "sha256": digest_of(CLIENT), **limits}]


def question(ask, **headers):
    """A question on its way, as a connection that is not read yet."""
    connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=30)
    fields = {"origin": ask.origin, **headers}
    connection.request("POST", "/api/chat", json.dumps(QUESTION), fields)
    return connection


def answered(ask, **headers):
    """The status of the answer and its error, if it is one."""
    connection = question(ask, **headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response, {} if response.status == 200 else json.loads(text)["error"]


def bearer(key=CLIENT):
    return {"authorization": f"Bearer {key}"}


def logged_in(ask, key=CLIENT):
    response, _ = ask("/login", "POST", form={"key": key}, headers={"origin": ask.origin})
    assert response.status == 303
    return {"cookie": response.headers["set-cookie"].partition(";")[0]}


def busy(gateway):
    return gateway.ask(op="status")["in_flight"]


# Whose key


def test_without_a_key_the_chat_is_refused_as_the_gateway_refuses(chatting, monkeypatch):
    """The dashboard asked with the key of its owner's environment, and served everybody on the
    machine.
    """
    monkeypatch.setenv("SKEP_API_KEY", CLIENT)
    ask, _, engine = chatting(keys=one_key())
    response, error = answered(ask)
    assert response.status == 401
    assert error["message"].startswith("this endpoint requires an API key")
    assert "enter a key" in error["hint"]
    page = ask("/chat")[1]
    assert "this endpoint requires an API key" in page
    assert 'href="/login?next=%2Fchat"' in page
    assert engine.state()["requests"] == 0


@pytest.mark.parametrize("site", [{}, {"guarded": True}], ids=["loopback", "with keys"])
def test_a_key_that_was_entered_is_what_the_gateway_is_asked_with(chatting, site):
    ask, _, engine = chatting(site=site, keys=one_key())
    session = logged_in(ask)
    page = ask("/chat", headers=session)[1]
    assert "<option>fake-model</option>" in page
    assert ("Forget my key" in page) is (site == {})
    assert answered(ask, **session)[0].status == 200
    assert answered(ask, **bearer())[0].status == 200
    assert engine.state()["requests"] == 2


def test_a_key_that_is_forgotten_is_asked_with_no_more(chatting):
    ask, _, _ = chatting(keys=one_key())
    session = logged_in(ask)
    response, _ = ask("/logout", "POST", headers={"origin": ask.origin, **session})
    assert response.headers["location"] == "/"
    assert answered(ask, **session)[0].status == 401


def test_a_key_that_the_gateway_does_not_know_yet_is_told_as_such(chatting):
    """Made by `skep key add`, and not read by the running deployment."""
    ask, _, _ = chatting(site={"guarded": True}, keys=[{"name": "x", "sha256": digest_of("x")}])
    response, error = answered(ask, **bearer())
    assert response.status == 401
    assert "skep replica reload" in error["hint"]


def test_the_limit_of_a_key_holds_through_the_chat(chatting):
    """A key limited to one request at a time had four through the chat, which asked with the
    owner's.
    """
    keys = one_key(max_concurrent=1)
    ask, gateway, engine = chatting(
        site={"guarded": True}, slots=4, keys=keys, engine={"ttft_ms": 60_000}
    )
    first = question(ask, **bearer())
    engine.wait_for(running=1)
    responses = [answered(ask, **bearer()) for _ in range(3)]
    assert [response.status for response, _ in responses] == [429] * 3
    assert "too_many_requests_of_key" in responses[0][1]["message"]
    assert engine.state()["max_running"] == 1
    first.close()
    eventually(lambda: busy(gateway) == 0)


# Who leaves, and who does not read


@pytest.mark.parametrize("workers", [1, 2])
def test_who_leaves_before_the_first_byte_frees_the_slot(chatting, workers):
    """It was held for up to 15 minutes, as nobody looked at the browser before the first byte."""
    ask, gateway, engine = chatting(engine={"ttft_ms": 600_000}, workers=workers)
    connection = question(ask)
    engine.wait_for(running=1)
    assert busy(gateway) == 1
    connection.close()
    engine.wait_for(hangups=1)
    eventually(lambda: busy(gateway) == 0)
    eventually(lambda: gateway.ask(op="status")["busy"] == {"r0": 0})


def test_who_leaves_behind_a_second_request_frees_the_slot(chatting):
    """A server that stops reading while a request waits behind the first one hears of nobody
    leaving.
    """
    ask, gateway, engine = chatting(engine={"ttft_ms": 600_000})
    with raw_question(ask) as browser:
        browser.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        engine.wait_for(running=1)
    engine.wait_for(hangups=1)
    eventually(lambda: busy(gateway) == 0)


def test_who_leaves_in_the_middle_of_an_answer_frees_the_slot(chatting):
    ask, gateway, engine = chatting(engine={"token_ms": 50, "default_tokens": 5000})
    connection = question(ask)
    assert connection.getresponse().read(10)
    connection.sock.close()
    connection.close()
    engine.wait_for(hangups=1)
    eventually(lambda: busy(gateway) == 0)


def raw_question(ask):
    """The same on a socket that is read by nobody yet."""
    body = json.dumps(QUESTION).encode()
    head = f"POST /api/chat HTTP/1.1\r\nhost: 127.0.0.1:{ask.port}\r\norigin: {ask.origin}\r\n"
    sock = socket.create_connection(("127.0.0.1", ask.port), timeout=30)
    sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return sock


def test_a_browser_that_does_not_read_holds_the_engine_back(chatting):
    """One that did not read filled the memory with 2.8 GB in 4 s."""
    ask, gateway, _ = chatting()
    with EndlessUpstream(FAR_TOO_MANY_BYTES) as upstream:
        gateway.serve_engines(upstream, slots=1, confirms="")
        with raw_question(ask) as browser:
            assert upstream.stuck.wait(60), f"{upstream.sent} bytes were taken"
            taken = upstream.sent
            assert taken < FAR_TOO_MANY_BYTES / 4
            while upstream.sent < taken + 1_000_000:
                assert browser.recv(65536), "it goes on when it is read again"
        assert upstream.ended.wait(30)
