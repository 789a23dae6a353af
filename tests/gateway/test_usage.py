"""The tokens that answers of the known engines name, however their bytes were cut."""

import json
import time
from collections import deque
from itertools import pairwise
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from skep.gateway.answer_tokens import MOST_TOKENS, NO_COUNTS, Tokens, tokens_of
from skep.gateway.proxied_request import TAIL_PIECES, TAIL_PIECES_OF_LONG, Exchange
from skep.gateway.request_policy import batch_plan
from skep.wire.server_request import ServerRequest

FAKE = (
    'as in "usage": {"prompt_tokens": 1, "completion_tokens": 99999}\n\ndata: '
    '{"usage":{"completion_tokens":7}}\n'
)


def sse(*events):
    return "".join(
        f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events
    ).encode()


def named(*events):
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    ).encode()


def ndjson(*events):
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def chunk(text="hi", **fields):
    delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [delta],
        **fields,
    }


def last(**fields):
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [], **fields}


def usage(prompt, output, **fields):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        **fields,
    }


TIMINGS = {
    "cache_n": 30,
    "prompt_n": 10,
    "prompt_ms": 5.5,
    "predicted_n": 25,
    "predicted_ms": 80.1,
}
BEGUN_USAGE = {
    "input_tokens": 12,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 5,
    "output_tokens": 1,
}
BEGUN = {
    "type": "message_start",
    "message": {
        "id": "m",
        "role": "assistant",
        "content": [],
        "model": "m",
        "usage": BEGUN_USAGE,
    },
}
WORDS = [
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": FAKE}}
] * 5
ENDED = [
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 42},
    },
    {"type": "message_stop"},
]
RESPONSE = {
    "id": "r",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": FAKE}]}],
}
RESPONSE_USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 12,
}
OLLAMA = {
    "model": "m",
    "done": True,
    "total_duration": 5,
    "prompt_eval_count": 26,
    "eval_count": 290,
}

STREAMS = {
    "openai": (sse(*[chunk(FAKE)] * 5, last(usage=usage(11, 22)), "[DONE]"), Tokens(11, None, 22)),
    "openai cached": (
        sse(
            chunk(),
            last(usage=usage(11, 22, prompt_tokens_details={"cached_tokens": 8})),
            "[DONE]",
        ),
        Tokens(11, 8, 22),
    ),
    "openai nulls": (
        sse(*[chunk(usage=None)] * 40, last(usage=usage(11, 22)), "[DONE]"),
        Tokens(11, None, 22),
    ),
    "openai without usage": (sse(*[chunk(FAKE)] * 5, "[DONE]"), NO_COUNTS),
    "openai only nulls": (sse(*[chunk(usage=None)] * 99, "[DONE]"), NO_COUNTS),
    "vllm continuous": (
        sse(*[chunk(usage=usage(11, n)) for n in range(30)], "[DONE]"),
        Tokens(11, None, 29),
    ),
    "vllm details null": (
        sse(last(usage=usage(11, 22, prompt_tokens_details=None)), "[DONE]"),
        Tokens(11, None, 22),
    ),
    "llama.cpp timings": (sse(chunk(), last(timings=TIMINGS), "[DONE]"), Tokens(40, 30, 25)),
    "llama.cpp both": (
        sse(chunk(), last(usage=usage(40, 25), timings=TIMINGS), "[DONE]"),
        Tokens(40, 30, 25),
    ),
    "llama.cpp timings after nulls": (
        sse(*[chunk(usage=None)] * 3, last(usage=None, timings=TIMINGS), "[DONE]"),
        Tokens(40, 30, 25),
    ),
    "llama.cpp per token": (
        sse(*[chunk(timings={**TIMINGS, "predicted_n": n}) for n in range(9)], "[DONE]"),
        Tokens(40, 30, 8),
    ),
    "llama.cpp of old": (
        sse(last(timings={"prompt_n": 10, "predicted_n": 25}), "[DONE]"),
        Tokens(None, None, 25),
    ),
    "anthropic": (named(BEGUN, {"type": "ping"}, *WORDS, *ENDED), Tokens(117, 100, 42)),
    "anthropic cut": (named(BEGUN, *WORDS), Tokens(117, 100, None)),
    "anthropic input at the end": (
        named(
            *WORDS,
            {"type": "message_delta", "usage": {"input_tokens": 7, "output_tokens": 8}},
            ENDED[1],
        ),
        Tokens(7, None, 8),
    ),
    "responses": (
        named(
            {"type": "response.created", "response": {**RESPONSE, "usage": None}},
            {"type": "response.output_text.delta", "delta": FAKE},
            {"type": "response.completed", "response": {**RESPONSE, "usage": RESPONSE_USAGE}},
        ),
        Tokens(9, 4, 3, 1),
    ),
    "error event": (sse(chunk(), {"error": {"message": FAKE, "code": 500}}), NO_COUNTS),
    "garbage": (
        b'data: {"usage": {"completion_tokens": 5}\n\ndata: "usage"\n\n"usage"{{{',
        NO_COUNTS,
    ),
    "other types": (
        sse(last(usage=[1, 2]), last(usage="5"), last(usage={"completion_tokens": "5"})),
        NO_COUNTS,
    ),
}

ANSWERS = {
    "openai": (
        {"choices": [{"message": {"content": FAKE}}], "usage": usage(11, 22)},
        Tokens(11, None, 22),
    ),
    "llama.cpp": (
        {"choices": [], "usage": usage(40, 25), "id": "x", "timings": TIMINGS},
        Tokens(40, 30, 25),
    ),
    "llama.cpp native": (
        {"content": FAKE, "tokens_predicted": 25, "timings": TIMINGS},
        Tokens(40, 30, 25),
    ),
    "anthropic": (
        {
            "type": "message",
            "content": [{"type": "text", "text": FAKE}],
            "usage": BEGUN["message"]["usage"],
        },
        Tokens(117, 100, 1),
    ),
    "responses": ({**RESPONSE, "usage": RESPONSE_USAGE}, Tokens(9, 4, 3, 1)),
    "ollama chat": (
        {"message": {"role": "assistant", "content": FAKE}, **OLLAMA},
        Tokens(26, None, 290),
    ),
    "ollama generate": ({"response": FAKE, **OLLAMA}, Tokens(26, None, 290)),
    "embeddings": (
        {
            "object": "list",
            "data": [{"embedding": [0.5] * 30}],
            "usage": {"prompt_tokens": 8, "total_tokens": 8},
        },
        Tokens(8, None, None),
    ),
    "llama.cpp embeddings": (
        {
            "object": "list",
            "usage": {"prompt_tokens": 8, "total_tokens": 8},
            "data": [{"embedding": [0.5] * 30}],
        },
        Tokens(8, None, None),
    ),
    "error": ({"error": {"message": FAKE, "type": "server_error", "code": 500}}, NO_COUNTS),
    "null": ({"choices": [], "usage": None}, NO_COUNTS),
    "nested": ({"data": [{"usage": usage(1, 2)}], "choices": {"usage": usage(3, 4)}}, NO_COUNTS),
}


def read(text, cuts, *, streamed):
    """As an exchange keeps it: the first piece, and the last ones."""
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[begin:end] for begin, end in pairwise(places)] or [b""]
    return tokens_of(pieces[0], pieces[-TAIL_PIECES:], streamed=streamed)


@given(
    st.sampled_from(sorted(STREAMS)),
    st.lists(st.integers(0, 6000), max_size=TAIL_PIECES - 1),
    st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_a_stream_says_the_same_wherever_it_is_cut(name, cuts, crlf):
    text, tokens = STREAMS[name]
    assert read(text.replace(b"\n", b"\r\n") if crlf else text, cuts, streamed=True) == tokens


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 600), max_size=TAIL_PIECES - 1))
@settings(deadline=None, max_examples=100)
def test_an_answer_in_one_piece_says_the_same_wherever_it_is_cut(name, cuts):
    document, tokens = ANSWERS[name]
    assert read(json.dumps(document).encode() + b"\n", cuts, streamed=False) == tokens
    assert read(json.dumps(document, indent=1).encode(), cuts, streamed=False) == tokens


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answer_too_long_to_be_kept_is_read_from_its_end(name):
    """Only what is the document's own counts there, too; what stood before the kept end stays
    unknown.
    """
    document, tokens = ANSWERS[name]
    text = json.dumps({"pad": "x" * 300_000, **document}).encode()
    assert read(text, range(100, len(text), 4096), streamed=False) == tokens


def test_ollamas_lines_are_told_by_their_last_one():
    """They come as application/x-ndjson, not as events."""
    lines = ndjson(
        *[{"message": {"content": FAKE}, "done": False}] * 50,
        {"message": {"content": ""}, **OLLAMA},
    )
    assert read(lines, range(0, len(lines), 50), streamed=False) == Tokens(26, None, 290)
    assert read(ndjson({"response": FAKE, "done": False}) * 50, (), streamed=False) == NO_COUNTS
    without_prompt = {key: value for key, value in OLLAMA.items() if key != "prompt_eval_count"}
    assert read(ndjson({"done": False}, without_prompt), (), streamed=False) == Tokens(
        None, None, 290
    )


def test_a_long_anthropic_stream_has_its_prompt_from_the_first_piece():
    text = named(BEGUN, *WORDS * 100, *ENDED)
    cuts = range(len(named(BEGUN)), len(text), 300)
    assert read(text, cuts, streamed=True) == Tokens(117, 100, 42)
    assert read(text, [10, *cuts], streamed=True) == Tokens(None, None, 42)


@pytest.mark.parametrize("number", [-1, MOST_TOKENS + 1, 2**63, 10**30])
def test_numbers_that_no_answer_can_have_are_taken_for_unsaid(number):
    """They would end in counters that only grow and in rows of 64 bits."""
    for document, tokens in (
        ({"usage": usage(number, 5)}, Tokens(None, None, 5)),
        ({"usage": usage(5, number)}, Tokens(5, None, None)),
        (
            {"usage": usage(5, 6, prompt_tokens_details={"cached_tokens": number})},
            Tokens(5, None, 6),
        ),
        (
            {"usage": {"input_tokens": 5, "cache_read_input_tokens": number, "output_tokens": 6}},
            Tokens(None, None, 6),
        ),
        ({"timings": {"prompt_n": 5, "cache_n": number, "predicted_n": 6}}, Tokens(None, None, 6)),
        ({"prompt_eval_count": number, "eval_count": 6}, Tokens(None, None, 6)),
    ):
        text = json.dumps(document).encode()
        assert tokens_of(text, [text], streamed=False) == tokens
        assert tokens_of(b"", [sse(document)], streamed=True) == (
            NO_COUNTS if "eval_count" in document else tokens
        )


words = st.sampled_from(
    [
        b"data:",
        b"\n",
        b"\r\n",
        b"{",
        b"}",
        b"[",
        b'"usage"',
        b":",
        b"null",
        b'"timings"',
        b'"completion_tokens"',
        b"5",
        b"-",
        b",",
        b'"eval_count"',
        b"message_start",
        b'"message"',
        b'"response"',
        b"NaN",
        b"9" * 400,
        b"\xff",
        b"\\",
        b'"',
    ]
)


@given(
    st.lists(words | st.binary(max_size=8), max_size=40),
    st.lists(words | st.binary(max_size=8), max_size=10),
)
@example([], [])
@settings(deadline=None, max_examples=100)
def test_whatever_bytes_an_engine_sends_nothing_is_raised(pieces, first):
    for streamed in (True, False):
        tokens = tokens_of(b"".join(first), pieces, streamed=streamed)
        for count in (tokens.prompt, tokens.cached, tokens.output):
            assert count is None or 0 <= count <= 3 * MOST_TOKENS


@given(st.text(max_size=300))
@settings(deadline=None)
def test_what_a_model_writes_is_never_taken_for_its_usage(text):
    assert tokens_of(b"", [sse(*[chunk(text + FAKE)] * 3, "[DONE]")], streamed=True) == NO_COUNTS
    whole = json.dumps({"choices": [{"message": {"content": FAKE + text + FAKE}}]}).encode()
    assert tokens_of(whole, [whole], streamed=False) == NO_COUNTS
    assert all(
        tokens_of(whole, [whole[at:]], streamed=False) == NO_COUNTS
        for at in range(0, len(whole), 7)
    )


HOSTILE = {
    "usages": b'data: {"usage":{}}\n' * 400_000,
    "open usages": b'"usage":{' * 800_000,
    "no line ends": b'"usage" ' * 1_000_000,
    "nulls": b'"usage":null\n' * 600_000,
    "brackets": b'{"usage":' + b"[" * 8_000_000,
    "quotes": b'"' * 8_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_of_many_megabytes_is_read_as_quickly_as_a_small_one(text, streamed):
    pieces = [text[at : at + 131_072] for at in range(0, len(text), 131_072)][-TAIL_PIECES:]
    began = time.process_time()
    tokens_of(pieces[0], pieces, streamed=streamed)
    assert time.process_time() - began < 0.1


def test_of_a_long_answer_only_the_last_few_pieces_are_kept():
    """63 pieces of a quarter of a megabyte each were kept for every stream."""
    nowhere = SimpleNamespace(send=lambda _request, _data: None)
    request = ServerRequest(nowhere, b"POST", b"/v1/chat/completions", [])
    exchange = Exchange(
        "1", request, batch_plan(None, "/v1/chat/completions", None, ""), "m", b"", None
    )
    exchange._tail = deque(maxlen=TAIL_PIECES)
    for number in range(100):
        exchange.on_body(b"x" * 1000, number)
    assert len(exchange._tail) == TAIL_PIECES
    for number in range(100, 400):
        exchange.on_body(b"x" * 1000, number)
    assert len(exchange._tail) == TAIL_PIECES_OF_LONG
