"""A prompt that is too long, in the words of each engine, told in the words that the client of the
path knows.
"""

import json
import threading
from contextlib import closing

import pytest
from gateway_client import MODEL, call, open_post, read_until
from one_piece_engine import OnePieceEngine

from skep.gateway.context_errors import context_exceeded, in_clients_words

VLLM = (
    "This model's maximum context length is 8192 tokens. However, you requested 9500 tokens "
    "(9000 in the messages, "
    "500 in the completion). Please reduce the length of the messages or completion."
)
VLLM_NEWER = (
    "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum "
    "context length is 40960 tokens "
    "and your request has 12000 input tokens (32000 > 40960 - 12000)."
)
SGLANG = "The input (9000 tokens) is longer than the model's context length (8192 tokens)."
LLAMA = "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it"
COMPLAINTS = {
    "vllm": {"error": {"message": VLLM, "type": "BadRequestError", "param": None, "code": 400}},
    "vllm, older": {"object": "error", "message": VLLM, "type": "BadRequestError", "code": 400},
    "sglang": {"object": "error", "message": SGLANG, "type": "BadRequestError", "code": 400},
    "llama.cpp": {
        "error": {
            "code": 400,
            "message": LLAMA,
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9000,
            "n_ctx": 8192,
        }
    },
}
OTHER = {
    "error": {"message": "temperature must be positive", "type": "BadRequestError", "code": 400}
}


def complaining(document, status=400, **how):
    """Return an engine that answers every request with one complaint."""
    return closing(OnePieceEngine(json.dumps(document).encode(), status, **how))


def answer_of(start_gateway, document, path, status=400):
    with complaining(document, status) as engine:
        gateway = start_gateway()
        gateway.serve([{"name": "r0", "model": MODEL, "url": engine.url, "slots": 2}])
        status, _, text = call(
            gateway, path=path, document={"model": MODEL, "max_tokens": 1, "messages": []}
        )
        return status, text, engine.body


@pytest.mark.parametrize("engine", COMPLAINTS)
def test_claude_code_reads_that_its_prompt_is_too_long(start_gateway, engine):
    status, text, _ = answer_of(start_gateway, COMPLAINTS[engine], "/v1/messages")
    document = json.loads(text)
    assert (status, document["type"], document["error"]["type"]) == (
        400,
        "error",
        "invalid_request_error",
    )
    assert document["error"]["message"].startswith(
        "prompt is too long: 9000 tokens > 8192 maximum; "
    )


@pytest.mark.parametrize("engine", COMPLAINTS)
def test_other_clients_read_the_code_beside_the_engines_words(start_gateway, engine):
    status, text, _ = answer_of(start_gateway, COMPLAINTS[engine], "/v1/chat/completions")
    error = json.loads(text)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "9000" in error["message"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_any_other_complaint_is_handed_on_as_it_is(start_gateway, path):
    status, text, sent = answer_of(start_gateway, OTHER, path)
    assert (status, text) == (400, sent)


VLLM_COUNTED = (
    "This model's maximum context length is 16384 tokens. However, you requested 64 output "
    "tokens and your prompt "
    "contains at least 16321 input tokens, for a total of at least 16385 tokens. Please "
    "reduce the length of the input "
    "prompt or the number of requested output tokens. (parameter=input_tokens, value=16321)"
)


def test_vllm_s_own_error_on_messages_becomes_one_that_is_not_tried_again(start_gateway):
    """vLLM 0.24 says 500 there, as seen on an H200: clients try that again."""
    document = {"type": "error", "error": {"type": "internal_error", "message": VLLM_COUNTED}}
    status, text, _ = answer_of(start_gateway, document, "/v1/messages", status=500)
    error = json.loads(text)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(
        "prompt is too long: 16385 tokens > 16384 maximum; This model's"
    )


def test_another_error_500_stays_one(start_gateway):
    document = {"type": "error", "error": {"type": "internal_error", "message": "it broke"}}
    status, text, sent = answer_of(start_gateway, document, "/v1/messages", status=500)
    assert (status, text) == (500, sent)


def test_an_answer_that_is_too_long_asks_for_a_shorter_one():
    exceeded = context_exceeded(json.dumps({"error": {"message": VLLM_NEWER}}).encode())
    words = exceeded.anthropic_words()
    assert words.startswith(
        "input length and `max_tokens` exceed context limit: 12000 + 32000 > 40960, "
    )


def test_a_complaint_without_numbers_still_says_what_it_is():
    body = json.dumps({"error": {"message": "exceeds the context window", "type": "x"}}).encode()
    document = json.loads(in_clients_words(body, context_exceeded(body), anthropic=True))
    assert document["error"]["message"] == "prompt is too long: exceeds the context window"


def test_a_stream_that_has_its_head_already_gets_the_code_as_its_last_event(start_gateway):
    """It waited for the prompt to be read, so its 200 was out."""
    event = threading.Event()
    with complaining(COMPLAINTS["vllm"], wait=event) as engine:
        gateway = start_gateway(timeouts={"comment_after_s": 0.2})
        gateway.serve([{"name": "r0", "model": MODEL, "url": engine.url, "slots": 2}])
        with open_post(gateway, {"model": MODEL, "stream": True, "messages": []}) as client:
            received = read_until(client, b": the engine reads the prompt")
            event.set()
            received = read_until(client, b'"code": "context_length_exceeded"', received)
    assert received.startswith(b"HTTP/1.1 200")


def test_a_complaint_that_stops_in_its_middle_is_waited_for_as_long_as_an_answer(start_gateway):
    """Its bytes are held back until it is whole; the first of them has come."""
    with complaining(COMPLAINTS["vllm"], kept_back=5) as engine:
        gateway = start_gateway(timeouts={"idle_s": 0.3})
        gateway.serve([{"name": "r0", "model": MODEL, "url": engine.url, "slots": 2}])
        status, _, text = call(gateway, document={"model": MODEL, "max_tokens": 1, "messages": []})
    assert (status, json.loads(text)["error"]["code"]) == (504, "replica_timeout")
    assert "in the middle of its answer" in json.loads(text)["error"]["message"]
