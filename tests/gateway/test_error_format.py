"""The gateway's own answers, as the clients' own libraries read them, and their page."""

import json
import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from api_clients import anthropic, httpx2, openai
from skep.config.keys import RefusalCode
from skep.gateway.admission_messages import Reject, RejectCode
from skep.gateway.error_format import ERRORS, error_body, event_of, rejection, speaks_anthropic

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
OPENAI_TYPES = {"rate_limit_error", "server_error", "invalid_request_error"}
# https://docs.anthropic.com/en/api/errors
ANTHROPIC_TYPES = {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error",
    "request_too_large", "rate_limit_error", "api_error", "overloaded_error", "timeout_error",
}  # fmt: skip
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
ASKED = [{"role": "user", "content": "hi"}]
BEGUN = {
    CHAT: (
        b"data: "
        b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n'
    ),
    MESSAGES: b'event: ping\ndata: {"type": "ping"}\n\n',
    RESPONSES: b"",
}


def ask(path, status, body, *, stream=False):
    """What the library of a path's dialect makes of this answer."""
    headers = {"content-type": "text/event-stream" if stream else "application/json"}
    answer = httpx2.MockTransport(lambda _: httpx2.Response(status, headers=headers, content=body))
    options = {"api_key": "k", "max_retries": 0, "http_client": httpx2.Client(transport=answer)}
    if path == MESSAGES:
        claude = anthropic.Anthropic(base_url="http://gateway", **options)
        return claude.messages.create(model="m", max_tokens=5, messages=ASKED, stream=stream)
    gpt = openai.OpenAI(base_url="http://gateway/v1", **options)
    if path == RESPONSES:
        return gpt.responses.create(model="m", input="hi", stream=stream)
    return gpt.chat.completions.create(model="m", messages=ASKED, stream=stream)


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_the_libraries_of_both_dialects_read_every_error(code):
    status, ours, theirs = ERRORS[code]
    with pytest.raises(openai.APIStatusError, match="why it is") as caught:
        ask(CHAT, status, error_body(code, "why it is", CHAT))
    error = caught.value
    assert (error.status_code, error.code, error.type, error.param) == (status, code, ours, None)
    with pytest.raises(anthropic.APIStatusError, match="why it is") as caught:
        ask(MESSAGES, status, error_body(code, "why it is", MESSAGES))
    assert (caught.value.status_code, caught.value.body["type"]) == (status, "error")
    assert caught.value.body["error"] == {"type": theirs, "message": "why it is", "code": code}


@pytest.mark.parametrize("path", BEGUN)
def test_the_libraries_raise_what_a_stream_ends_with(path):
    stream = ask(
        path,
        200,
        BEGUN[path] + event_of(error_body("stream_cut", "it died", path), path),
        stream=True,
    )
    with pytest.raises((openai.APIError, anthropic.APIStatusError), match="it died") as caught:
        list(stream)
    assert caught.value.body.get("error", caught.value.body)["code"] == "stream_cut"


@given(
    st.sampled_from(sorted(ERRORS)),
    st.text(),
    st.sampled_from([CHAT, MESSAGES, RESPONSES, "", "/x"]),
)
@settings(deadline=None)
def test_a_message_of_any_text_stays_inside_its_body_and_its_event(code, why, path):
    """Messages repeat what clients sent: names of models, paths, origins."""
    body = json.loads(error_body(code, why, path))
    assert body["source"] == "gateway"
    assert (body["error"]["message"], body["error"]["code"]) == (why, code)
    event = event_of(error_body(code, why, path), path)
    assert event.isascii()
    blank, *lines, end, nothing = event.removeprefix(b"\n").split(b"\n")
    assert (blank, end, nothing) == (b"", b"", b"")
    assert [line.split(b": ")[0] for line in lines] in ([b"data"], [b"event", b"data"])
    document = json.loads(lines[-1].removeprefix(b"data: "))
    assert document["error"] == body["error"]
    if path == RESPONSES:
        assert (document["type"], document["code"], document["message"]) == ("error", code, why)


def test_the_dialect_is_told_by_the_path():
    for path in (MESSAGES, "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/complete"):
        assert speaks_anthropic(path)
    for path in (
        CHAT,
        "/v1/completions",
        "/v1/completion",
        RESPONSES,
        "/v1/messagesx",
        "/messages",
        "",
        "/",
    ):
        assert not speaks_anthropic(path)


@pytest.mark.parametrize("code", list(RejectCode))
def test_a_rejection_says_when_to_come_back_as_soon_as_that_is_known(code):
    for seconds, header in (
        (None, None),
        (0.2, b"1"),
        (1.0, b"1"),
        (6.01, b"7"),
        (1e9, b"1000000000"),
    ):
        status, headers, body = rejection(
            Reject("r", code, seconds), CHAT, model="m", models=("a", "b")
        )
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (ERRORS[code.value][0], code.value)
        assert dict(headers).get(b"retry-after") == header
        assert "None" not in error["message"]
        assert not error["message"].endswith(".")
        if header is not None and code is not RejectCode.UNKNOWN_MODEL:
            assert f"try again in {header.decode()} s" in error["message"]
        if code is RejectCode.UNKNOWN_MODEL:
            assert error["message"] == "the model `m` is not served here; known: a, b"
    assert len(rejection(Reject("r", code), CHAT, model="x" * 60_000, models=())[2]) < 500


def test_every_code_has_a_status_and_types_that_its_clients_know():
    assert {code.value for code in RejectCode} | {code.value for code in RefusalCode} <= set(
        ERRORS
    )
    for code, (status, ours, theirs) in ERRORS.items():
        assert 400 <= status < 600, code
        assert ours in OPENAI_TYPES, code
        assert theirs in ANTHROPIC_TYPES, code
        assert (status == 429) == (ours == theirs == "rate_limit_error"), code
        assert (status >= 500) == (ours == "server_error"), code


# The page


def test_every_code_has_its_heading_and_the_examples_have_the_shape_of_the_answers():
    assert sorted(re.findall(r"^### `([^`]+)`$", PAGE, re.MULTILINE)) == sorted(ERRORS)
    for code, (status, _, _) in ERRORS.items():
        _, _, rest = PAGE.partition(f"### `{code}`\n")
        assert re.search(rf"\b{status}\b", rest.split("\n#")[0]), code
    examples = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    assert examples == [
        json.loads(error_body("queue_full", "…", path)) for path in (CHAT, MESSAGES)
    ]
