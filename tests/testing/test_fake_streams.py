"""Every odd form carries the same answer."""

import json

import pytest

from skep.errors import UserError
from skep.testing.fake_answers import FORMS, WORDS, AnswerHead, StreamEncoder, parse_form, parse_request

HEAD = AnswerHead("chatcmpl-1", "fake-model", 0, chat=True, prompt_tokens=5)
TOKENS = tuple(WORDS[:7])


def writes(form: str, *, include_usage: bool = True) -> tuple[list[bytes], list[list[bytes]], list[bytes]]:
    encoder = StreamEncoder(parse_form(form), HEAD, total=len(TOKENS), include_usage=include_usage)
    opening = encoder.opening()
    return opening, [encoder.token(token) for token in TOKENS], encoder.ending("length", {"predicted_n": 7})


def all_bytes(form: str, **more: bool) -> bytes:
    opening, middle, end = writes(form, **more)
    return b"".join([*opening, *(data for part in middle for data in part), *end])


def events(data: bytes) -> list[dict]:
    """The chunks of a stream, decoded as the server-sent events standard says."""
    blocks = data.decode().replace("\r\n", "\n").split("\n\n")
    texts = [
        "\n".join(line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: "))
        for block in blocks
    ]
    return [json.loads(text) for text in texts if text and text != "[DONE]"]


def deltas(data: bytes, name: str) -> str:
    return "".join(
        choice["delta"].get(name, "") for event in events(data) for choice in event["choices"] if choice["delta"]
    )


@pytest.mark.parametrize("form", [*FORMS, "cut,crlf,coalesced", "multi-line,crlf,comments,usage-every"])
def test_every_form_carries_the_whole_answer(form):
    """A reader that follows the standards gets the same words from each."""
    data = all_bytes(form)
    assert deltas(data, "reasoning_content") + deltas(data, "content") == "".join(TOKENS)
    assert [c["finish_reason"] for e in events(data) for c in e["choices"]].count("length") == 1


def test_usual_form_sends_role_tokens_end_usage_and_done():
    """One event per token, usage in a chunk without choices, timings in the last chunk."""
    data = all_bytes("normal")
    chunks = events(data)
    assert len(chunks) == 1 + len(TOKENS) + 2
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(TOKENS)
    assert chunks[-1]["timings"] == {"predicted_n": 7}
    assert data.endswith(b"data: [DONE]\n\n")


def test_a_form_is_as_odd_as_its_name_says():
    """Some writes of `cut` end inside a character, and none ends an event; CRLF leaves no bare line feed."""
    data = [b"".join(part) for part in writes("cut")[1]]
    assert not any(part.endswith(b"\n\n") for part in data)
    with pytest.raises(UnicodeDecodeError):
        data[5].decode()  # naïve
    assert all_bytes("comments").startswith(b": ping\n\n")
    assert all_bytes("crlf").count(b"\r\n") == all_bytes("crlf").count(b"\n")
    assert b'data: "choices": [\ndata: ' in all_bytes("multi-line")
    assert deltas(all_bytes("reasoning"), "reasoning_content") == TOKENS[0]
    assert len(events(all_bytes("several-tokens"))) == 1 + 3 + 2
    assert b"[DONE]" not in all_bytes("no-done")
    assert b"usage" not in all_bytes("no-usage") + all_bytes("normal", include_usage=False)


def test_unknown_form_is_the_callers_mistake():
    """The hint lists the forms."""
    with pytest.raises(UserError, match="`odd`"):
        parse_form("cut,odd")


@pytest.mark.parametrize(
    ("fields", "count", "finish"),
    [({"max_tokens": 3}, 3, "length"), ({}, 9, "stop"), ({"max_tokens": 99}, 18, "length")],
)
def test_answer_has_the_tokens_asked_for(fields, count, finish):
    """Never more than the context leaves room for."""
    ask = parse_request(json.dumps({"prompt": "a b", **fields}).encode(), chat=False)
    got = ask.answer(default_tokens=9, ctx=20)
    assert (len(got.tokens), got.finish_reason) == (count, finish)
