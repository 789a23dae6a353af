"""Clients that wait: streams hear something, who hangs up keeps the place, who cannot wait so long
is told at once.
"""

import threading
from contextlib import closing

import pytest
from gateway_client import MODEL, body, call, open_post, open_stream, post, read_until, until
from one_piece_engine import OnePieceEngine

from skep.config.gateway_messages import AdmissionLimits, ReplicaSpec
from skep.gateway.admission import Admission
from skep.gateway.admission_messages import Arrival, Forward, Reject, RejectCode

QUICK = {"comment_after_s": 0.3, "comment_every_s": 0.3}
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"


@pytest.fixture
def busy(serving):
    """Start a gateway whose only slot is taken."""

    def start(**setup):
        gateway, engine = serving({"slots": 1, "token_ms": 50}, slots=1, **setup)
        return gateway, engine, open_stream(gateway, max_tokens=100_000)

    return start


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_that_waits_for_a_slot_gets_its_head_and_comments(busy, path, workers):
    gateway, _, holder = busy(timeouts=QUICK, workers=workers)
    if path == CHAT:
        document = body(stream=True)
    else:
        document = {"model": MODEL, "prompt": "x", "stream": True, "max_tokens": 2}
    with open_post(gateway, document, path) as client:
        received = read_until(client, lambda text: text.count(b": waiting for a slot, ") >= 2)
        assert received.startswith(b"HTTP/1.1 200")
        assert b"data:" not in received
        holder.close()
        assert b"data:" in read_until(client, b"[DONE]", received)


def test_a_stream_whose_prompt_is_read_for_long_gets_comments(serving):
    gateway, _ = serving({"ttft_ms": 1500}, timeouts=QUICK)
    with open_post(gateway, body(stream=True)) as client:
        received = read_until(client, b"[DONE]")
    assert b": the engine reads the prompt, " in received
    assert received.index(b": the engine") < received.index(b"data:")


def test_an_answer_that_comes_in_one_piece_follows_a_head_that_is_out(start_gateway):
    """The engine promises a length, and the head was out without one:
    the bytes go on in chunks.
    """
    read_prompt = threading.Event()
    events = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
    with closing(OnePieceEngine(events, kind="text/event-stream", wait=read_prompt)) as engine:
        gateway = start_gateway(timeouts=QUICK)
        gateway.serve_engines(engine, confirms="")
        with open_post(gateway, body(stream=True)) as client:
            received = read_until(client, b": the engine reads the prompt")
            read_prompt.set()
            received = read_until(client, b"\r\n0\r\n\r\n", received)
    assert b"\r\n%x\r\n%b\r\n" % (len(events), events) in received


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_nothing_comes_before_the_first_event_where_it_would_not_help(busy, path):
    gateway, _, holder = busy(timeouts=QUICK)
    with open_post(
        gateway, {"model": MODEL, "stream": True, "input": "x", "messages": []}, path
    ) as waiting:
        with open_post(gateway, body(stream=True)) as post:
            read_until(post, lambda text: text.count(b": waiting") >= 3)
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
    holder.close()


LATE = {**QUICK, "late_comment_after_s": 1.0}
CLAUDE = "user-agent: claude-cli/{} (external, cli)"


@pytest.mark.parametrize(
    "agent", ["Anthropic/Python 1.0", "claude-cli/2.1.226 (external, cli)", "claude-cli/10.0"]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_of_messages_gets_its_head_and_comments_late(busy, agent, workers):
    gateway, _, holder = busy(timeouts=LATE, workers=workers)
    document = body(stream=True, max_tokens=2)
    with holder, open_post(gateway, document, MESSAGES, [f"user-agent: {agent}"]) as client:
        received = read_until(client, lambda text: text.count(b": waiting for a slot, ") >= 2)
    assert received.startswith(b"HTTP/1.1 200")
    assert b": waiting for a slot, 0 s" not in received


@pytest.mark.parametrize("version", ["2.1.225", "2.0.60", "of-somebody"])
def test_a_claude_code_that_hangs_up_in_spite_of_comments_gets_none(busy, version):
    gateway, _, holder = busy(timeouts={**QUICK, "late_comment_after_s": 0.3})
    document = body(stream=True, max_tokens=2)
    with open_post(gateway, document, MESSAGES, [CLAUDE.format(version)]) as client:
        with open_post(gateway, body(stream=True)) as post:
            read_until(post, lambda text: text.count(b": waiting") >= 3)
        holder.close()
        assert b": waiting" not in read_until(client, b"message_stop")


def test_comments_can_be_turned_off(busy):
    gateway, _, holder = busy(timeouts={**QUICK, "comment_after_s": None})
    threading.Timer(1.0, holder.close).start()
    with open_post(gateway, body(stream=True)) as client:
        assert b": waiting" not in read_until(client, b"[DONE]")


def test_an_answer_that_is_no_stream_has_nothing_before_it(busy):
    gateway, _, holder = busy(timeouts=QUICK)
    threading.Timer(1.0, holder.close).start()
    status, _, text = post(gateway)
    assert status == 200
    assert text.startswith(b"{")


def test_a_refusal_after_the_head_is_the_last_event(busy):
    gateway, _, holder = busy(timeouts=QUICK, limits={"max_wait_s": 1.0})
    with holder, open_post(gateway, body(stream=True)) as client:
        received = read_until(client, b'"code": "queue_timeout"')
    assert received.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("workers", [1, 2])
def test_who_hangs_up_and_comes_back_is_answered_before_those_who_came_later(busy, workers):
    gateway, _, holder = busy(workers=workers)
    document = {
        "model": MODEL,
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "first of all"}],
    }
    leaving = open_post(gateway, document)
    until(lambda: queued(gateway) == 1)
    answered = []

    def ask(name, document):
        post(gateway, document)
        answered.append(name)

    later = threading.Thread(target=ask, args=("later", body(max_tokens=3)))
    later.start()
    until(lambda: queued(gateway) == 2)
    leaving.close()
    until(lambda: queued(gateway) == 1)
    back = threading.Thread(target=ask, args=("came back", document))
    back.start()
    until(lambda: queued(gateway) == 2)
    holder.close()
    back.join()
    later.join()
    assert answered == ["came back", "later"]


def queued(gateway):
    text = call(gateway, "GET", "/metrics")[2].decode()
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("skep_queue_length{")
    )


# The decider alone


def admission_with_a_busy_slot(service_s=1.0):
    admission = Admission(AdmissionLimits())
    admission.set_replicas((ReplicaSpec("r0", "m", "http://x", 1),), 0.0)
    admission.arrive(Arrival("warm", "m"), 0.0)
    admission.finished("warm", service_s, answered=True)
    (granted,) = admission.arrive(Arrival("holder", "m"), service_s)
    assert isinstance(granted, Forward)
    return admission


def next_one(admission, name, now):
    """End what has the slot; return who gets it."""
    (granted,) = admission.finished(name, now, answered=True)
    return granted.request_id


def test_a_place_is_kept_for_two_minutes_and_for_the_same_request_alone():
    for back_at, fingerprint, expected in (
        (121.0, 7, "back"),
        (123.0, 7, "later"),
        (121.0, 8, "later"),
    ):
        admission = admission_with_a_busy_slot()
        admission.arrive(Arrival("first", "m", fingerprint=7), 1.5)
        admission.arrive(Arrival("later", "m", fingerprint=1), 1.6)
        admission.hung_up("first", 2.0)
        admission.arrive(Arrival("back", "m", fingerprint=fingerprint), back_at)
        assert next_one(admission, "holder", 200.0) == expected


def test_who_gives_up_a_slot_keeps_the_place_once():
    """Each time, a client that never waits for its prompt to be read would keep all others out."""
    admission = admission_with_a_busy_slot()
    admission.arrive(Arrival("first", "m", fingerprint=7), 1.5)
    admission.arrive(Arrival("later", "m", fingerprint=1), 1.6)
    admission.arrive(Arrival("latest", "m", fingerprint=2), 1.7)
    assert next_one(admission, "holder", 2.0) == "first"
    assert after_giving_up(admission, "first", 3.0) == "later"
    admission.arrive(Arrival("again", "m", fingerprint=7), 64.0)
    assert next_one(admission, "later", 65.0) == "again"
    assert after_giving_up(admission, "again", 66.0) == "latest"
    admission.arrive(Arrival("last", "m", fingerprint=3), 127.0)
    admission.arrive(Arrival("third time", "m", fingerprint=7), 128.0)
    assert next_one(admission, "latest", 129.0) == "last"


def after_giving_up(admission, name, now):
    """Hang up while the engine reads the prompt; return who gets the slot once it is free."""
    assert admission.hung_up(name, now) == []
    (granted,) = admission.tick(now + 60.0)
    return granted.request_id


def test_a_place_among_other_flows_is_kept_too():
    admission = admission_with_a_busy_slot()
    admission.arrive(Arrival("first", "m", flow="a", fingerprint=7), 1.5)
    admission.arrive(Arrival("second", "m", flow="b", fingerprint=1), 1.6)
    admission.hung_up("first", 2.0)
    admission.arrive(Arrival("third", "m", flow="c", fingerprint=2), 2.5)
    admission.arrive(Arrival("back", "m", flow="a", fingerprint=7), 3.0)
    assert next_one(admission, "holder", 4.0) == "back"


def test_a_wait_beyond_what_a_client_bears_is_refused_with_the_true_time():
    admission = admission_with_a_busy_slot(service_s=200.0)
    admission.arrive(Arrival("patient", "m", fingerprint=1), 200.5)
    (refused,) = admission.arrive(Arrival("claude", "m", fingerprint=7, patience_s=300.0), 201.0)
    assert refused == Reject("claude", RejectCode.WAIT_TOO_LONG, 400.0)
    assert admission.arrive(Arrival("quick", "m", fingerprint=8, patience_s=500.0), 202.0) == []


def test_who_was_refused_for_a_long_wait_has_a_place_when_it_comes_back():
    admission = admission_with_a_busy_slot(service_s=200.0)
    admission.arrive(Arrival("before", "m", fingerprint=1), 200.5)
    admission.arrive(Arrival("claude", "m", fingerprint=7, patience_s=300.0), 201.0)
    admission.arrive(Arrival("after", "m", fingerprint=2), 210.0)
    assert next_one(admission, "holder", 400.0) == "before"
    assert admission.arrive(Arrival("again", "m", fingerprint=7, patience_s=300.0), 401.0) == []
    assert next_one(admission, "before", 600.0) == "again"


def test_a_client_whose_wait_nobody_has_measured_waits():
    admission = Admission(AdmissionLimits())
    admission.set_replicas((ReplicaSpec("r0", "m", "http://x", 1),), 0.0)
    admission.arrive(Arrival("holder", "m"), 0.0)
    assert admission.arrive(Arrival("claude", "m", fingerprint=7, patience_s=0.1), 1.0) == []
