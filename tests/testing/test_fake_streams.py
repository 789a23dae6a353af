"""What a streamed answer of the fake engine carries."""

import json

import pytest

from skep.testing.fake_answers import WORDS, AnswerHead, StreamEncoder, parse_request

HEAD = AnswerHead("chatcmpl-1", "fake-model", 0, chat=True, prompt_tokens=5)
TOKENS = tuple(WORDS[:7])


def events(**form) -> list[dict]:
    encoder = StreamEncoder(HEAD, **form)
    data = b"".join([*map(encoder.token, TOKENS), encoder.ending("length", {"predicted_n": 7})])
    assert data.endswith(b"data: [DONE]\n\n")
    blocks = data.decode().split("\n\n")
    return [
        json.loads(block.removeprefix("data: "))
        for block in blocks
        if block and "[DONE]" not in block
    ]


def deltas(chunks: list[dict], name: str) -> str:
    return "".join(
        choice["delta"].get(name, "") for event in chunks for choice in event["choices"]
    )


def test_stream_sends_role_tokens_end_usage_and_timings():
    """One event per token, usage in a chunk without choices, timings in the last chunk."""
    chunks = events()
    assert len(chunks) == 1 + len(TOKENS) + 2
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert deltas(chunks, "content") == "".join(TOKENS)
    assert [choice["finish_reason"] for event in chunks for choice in event["choices"]].count(
        "length"
    ) == 1
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], len(TOKENS))
    assert chunks[-1]["timings"] == {"predicted_n": 7}


def test_a_stream_of_any_form_carries_the_whole_answer():
    """With reasoning, several tokens an event, and without usage."""
    chunks = events(thought=2, per_chunk=3, usage=False)
    assert deltas(chunks, "reasoning_content") == "".join(TOKENS[:2])
    assert deltas(chunks, "content") == "".join(TOKENS[2:])
    assert len(chunks) == 1 + 1 + 2 + 1  # role, thought, text, end
    assert "usage" not in chunks[-1]


@pytest.mark.parametrize(
    ("fields", "count", "finish"),
    [({"max_tokens": 3}, 3, "length"), ({}, 9, "stop"), ({"max_tokens": 99}, 18, "length")],
)
def test_answer_has_the_tokens_asked_for(fields, count, finish):
    """Never more than the context leaves room for."""
    ask = parse_request(json.dumps({"prompt": "a b", **fields}).encode(), chat=False)
    got = ask.answer(default_tokens=9, ctx=20)
    assert (len(got.tokens), got.finish_reason) == (count, finish)
