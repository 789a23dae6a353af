"""The page Chat: a question goes to the gateway, the answer comes back as it is made."""

import http.client
import json

import pytest
from running_site import running
from stored_runs import installation

from recorded_server import recorded
from skep.testing.process import FakeEngine
from skep.web.context import Site


@pytest.fixture
def chat(tmp_path, monkeypatch):
    """A dashboard whose gateway is a fake engine."""
    with (
        FakeEngine(slots=1, token_ms=1, ctx=300) as engine,
        running(Site(installation(tmp_path))) as ask,
    ):
        monkeypatch.setenv("SKEP_URL", engine.url)
        yield ask, engine


def say(ask, **question):
    body_sent = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "hi"}],
        **question,
    }
    connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=10)
    connection.request("POST", "/api/chat", json.dumps(body_sent), {"origin": ask.origin})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_page_offers_what_is_served(chat):
    ask, _ = chat
    page = ask("/chat")[1]
    assert "<option>fake-model</option>" in page
    assert 'role="alert"' not in page


def test_an_answer_comes_as_the_events_of_the_engine(chat):
    ask, engine = chat
    answer, body = say(ask)
    assert answer.status == 200
    assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    assert any(event["choices"][0]["delta"].get("content") for event in events if event["choices"])
    assert events[-1]["usage"]["completion_tokens"] > 0
    assert engine.state()["requests"] == 1


def test_a_question_that_is_too_long_is_refused_in_the_words_of_the_engine(chat):
    answer, body = say(chat[0], messages=[{"role": "user", "content": "word " * 5000}])
    assert answer.status == 400
    assert "context" in json.loads(body)["error"]["message"]


def test_without_a_gateway_the_page_says_how_to_start_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEP_URL", "http://127.0.0.1:9")
    with running(Site(installation(tmp_path))) as ask:
        assert "<code>skep up -d</code> starts one" in ask("/chat")[1]
        answer, body = say(ask)
    assert answer.status == 500
    assert "the gateway did not answer" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (500, b'{"error": ' + b"[" * 60_000, 500),  # deeper than a parser goes
        (500, b'{"error": {"message": 1' + b"0" * 5000 + b"}}", 500),
        (204, b"", 502),
        (302, b"{}", 502),
    ],
    ids=["nested", "a long number", "no content", "moved"],
)
def test_an_answer_that_is_none_is_one_line_of_json(tmp_path, monkeypatch, status, body, expected):
    """It was an error inside, or a connection that was closed without a word."""
    with (
        recorded(answer=lambda *_: (status, body)) as server,
        running(Site(installation(tmp_path))) as ask,
    ):
        monkeypatch.setenv("SKEP_URL", server.url)
        answer, text = say(ask)
    assert answer.status == expected
    assert json.loads(text)["error"]["message"] == f"HTTP {status}"


def test_what_is_no_question_is_refused(chat):
    ask, engine = chat
    for bad in (
        {"messages": "hi"},
        {"model": 3},
        {"messages": [{"role": "user", "content": "x" * (1 << 20)}]},
    ):
        answer, body = say(ask, **bad)
        assert answer.status == 400, bad
        assert json.loads(body)["error"]["message"]
    assert engine.state()["requests"] == 0


def test_a_question_of_another_page_is_refused(chat):
    ask, engine = chat
    assert ask("/api/chat", "POST", {"origin": "http://evil.example"})[0].status == 403
    assert engine.state()["requests"] == 0


def test_the_public_has_no_chat(tmp_path):
    with running(Site(installation(tmp_path), public=True)) as public:
        assert public("/chat")[0].status == 404
        assert "/chat" not in public("/")[1]
