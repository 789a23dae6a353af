"""Faults on command: the plan, and what a client sees of each."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket

import pytest
from fake_raw_client import call, chat, read_all, send

from skep.errors import EngineError, UserError
from skep.testing.fake_faults import FaultKind, FaultPlan, InjectedFault
from skep.testing.process import FakeEngine


@pytest.fixture(scope="module")
def shared():
    with FakeEngine(slots=4, token_ms=1) as engine:
        yield engine


@pytest.fixture
def engine(shared):
    shared.fault(kind="none")
    return shared


def test_fault_strikes_its_number_of_times():
    """Oldest first; other requests are left alone."""
    plan = FaultPlan()
    plan.add(InjectedFault.parse('{"kind": "500", "times": 2}'))
    plan.add(InjectedFault.parse("429"))
    struck = [plan.for_request("POST", "/v1/chat/completions") for _ in range(4)]
    assert [fault.kind.value if fault else None for fault in struck] == ["500", "500", "429", None]


def test_fault_without_a_number_strikes_for_ever():
    """Until it is cleared."""
    plan = FaultPlan()
    plan.add(InjectedFault(FaultKind.HTML, times=None, path="/health"))
    assert plan.for_request("POST", "/v1/completions") is None
    assert all(plan.for_request("GET", "/health") for _ in range(5))
    plan.clear()
    assert plan.for_request("GET", "/health") is None


@pytest.mark.parametrize("values", [{"kind": "odd"}, {}, {"kind": "500", "odd": 1}])
def test_unknown_fault_is_the_callers_mistake(values):
    """A misspelt fault must not pass for one that did not strike."""
    with pytest.raises(UserError):
        InjectedFault.from_json(values)


def test_engine_refuses_an_unknown_fault(engine):
    """The answer of the control endpoint becomes an error."""
    with pytest.raises(EngineError, match="odd"):
        engine.fault(kind="odd")


@pytest.mark.parametrize(("kind", "retry_after"), [("500", None), ("503", "7"), ("429", "7")])
def test_status_faults_answer_in_openai_form(engine, kind, retry_after):
    """Once; the next request is answered."""
    engine.fault(kind=kind, retry_after_s=7)
    reply = call(engine.url, "POST", "/v1/chat/completions", chat())
    assert (reply.status, reply.headers.get("retry-after")) == (int(kind), retry_after)
    assert reply.json()["error"]["message"]
    assert call(engine.url, "POST", "/v1/chat/completions", chat()).status == 200


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ({"kind": "close-first"}, http.client.RemoteDisconnected),
        ({"kind": "close-first", "reset": True}, ConnectionResetError),  # RST, not FIN
        ({"kind": "garbage"}, http.client.BadStatusLine),
        ({"kind": "short-body"}, http.client.IncompleteRead),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else None,
)
def test_an_answer_that_is_none_is_seen_as_what_it_is(engine, fault, seen):
    """No status line, or a head that promises more than comes."""
    engine.fault(**fault)
    with pytest.raises(seen):
        call(engine.url, "POST", "/v1/chat/completions", chat(stream=False))


def test_html_page_comes_with_200(engine):
    """As from a wrong port behind a proxy."""
    engine.fault(kind="html")
    reply = call(engine.url, "POST", "/v1/chat/completions", chat())
    assert (reply.status, reply.body[:9]) == (200, b"<!doctype")


def test_invalid_json_comes_whole_and_as_a_stream(engine):
    """Well-formed HTTP around a broken body."""
    engine.fault(kind="invalid-json", times=2)
    reply = call(engine.url, "POST", "/v1/chat/completions", chat(stream=False))
    with pytest.raises(json.JSONDecodeError):
        reply.json()
    assert b"data: {" in call(engine.url, "POST", "/v1/chat/completions", chat()).body


def test_close_mid_stream_ends_after_the_tokens_named(engine):
    """No last chunk, no [DONE], and the slot is free."""
    engine.fault(kind="close-mid", after_tokens=3)
    stream = asyncio.run(read_all(engine.url, chat()))
    assert b" carry" in stream.raw
    assert b" nectar" not in stream.raw
    assert not stream.raw.endswith(b"0\r\n\r\n")
    engine.wait_for(running=0)


@pytest.mark.parametrize("kind", ["hang-first", "hang-mid"])
def test_hanging_request_holds_its_slot_until_the_client_goes(engine, kind):
    """Nothing more comes; /fake/state still answers."""

    async def hang():
        stream = await send(engine.url, chat())
        if kind == "hang-mid":
            await stream.until(b" bees")
        await asyncio.to_thread(engine.wait_for, running=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.until(b"[DONE]"), 0.05)
        await stream.hang_up()
        assert (b"HTTP/1.1 200" in stream.raw) == (kind == "hang-mid")

    engine.fault(kind=kind, after_tokens=2)
    hangups = engine.state()["hangups"]
    asyncio.run(hang())
    engine.wait_for(running=0, hangups=hangups + 1)


def test_refused_connections_can_be_had_back(engine):
    """The control port stays open, so the fault can be lifted."""
    engine.fault(kind="refuse")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", engine.port))
    engine.fault(kind="none")
    assert call(engine.url, "GET", "/health").status == 200


def test_slow_accept_delays_the_first_byte(engine):
    """The connection is there, nobody reads it yet."""

    async def ask():
        stream = await send(engine.url, chat(tokens=1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.until(b"HTTP/1.1 200"), 0.05)
        await stream.until(b"[DONE]")
        await stream.hang_up()

    engine.fault(kind="slow-accept", delay_ms=150)
    asyncio.run(ask())


def test_fault_on_another_path_strikes_only_there(engine):
    """A replica whose health fails while it still answers."""
    engine.fault(kind="500", path="/health", times=None)
    assert call(engine.url, "GET", "/health").status == 500
    assert call(engine.url, "POST", "/v1/chat/completions", chat()).status == 200


def test_crash_ends_the_process_with_the_code_asked_for():
    """In the middle of a stream."""
    fault = {"kind": "crash", "after_tokens": 2, "exit_code": 7}
    with FakeEngine(fault=fault, token_ms=1) as engine:
        assert b" bees" in asyncio.run(read_all(engine.url, chat())).raw
        assert engine.wait() == 7


def test_crash_at_start_says_why():
    """The message on stderr, before anything listens."""
    with pytest.raises(EngineError, match="exit status 3: CUDA out of memory"):
        FakeEngine(crash_at_start="CUDA out of memory", exit_code=3).start()
