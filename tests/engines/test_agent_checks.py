"""What agents need of an endpoint, checked against servers that answer as engines do."""

import asyncio
import json
import threading

import pytest

from recorded_server import recorded
from skep.engines.agent_checks import (
    LARGEST_ANSWER_BYTES,
    CheckedEndpoint,
    check_documents,
    check_for_agents,
)

ARGUMENTS = '{"path": "notes.txt"}'
VLLM_WITHOUT_PARSER = {
    "error": {
        "message": "tool_choice=required requires --tool-call-parser to be set",
        "type": "BadRequestError",
    }
}


def completion(text=None, calls=None, finish="stop", **fields):
    message = {
        "role": "assistant",
        "content": text,
        "tool_calls": calls or [],
        **fields.pop("message", {}),
    }
    return json.dumps(
        {"choices": [{"message": message, "finish_reason": finish}], **fields}
    ).encode()


def call(arguments=ARGUMENTS, name="read_file"):
    return [{"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}]


def read(cached=None, tokens=600, **fields):
    """An answer to a long prompt, with what a server says of its cache."""
    if cached is None:
        details = {}
    else:
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return completion("yes", usage={"prompt_tokens": tokens, **details}, **fields)


class Scripted:
    """Answers tool calls with one answer, and prompts with those of a list, the last one again and
    again.
    """

    def __init__(self, tools=None, prompts=(), pages=None, lines=()):
        if tools is None:
            self.tools = completion(calls=call())
        else:
            self.tools = tools
        self.prompts = list(prompts) or [read(0), read(576)]
        self.pages = pages or {}
        self.lines = lines  # of every head
        self.asked = []

    def answer(self, _path, _headers, body):
        document = json.loads(body)
        self.asked.append(document)
        if "tools" in document:
            if callable(self.tools):
                return self.tools(document)
            return self.tools
        if len(self.prompts) > 1:
            return self.prompts.pop(0)
        return self.prompts[0]

    def page(self, path):
        page = self.pages.get(path, (404, b"{}"))
        if isinstance(page, list):
            return page.pop(0)
        return page

    def results(self, engine="", deadline_s=20.0, **fields):
        with recorded(self.answer, self.page, self.lines) as server:
            endpoint = CheckedEndpoint(f"{server.url}/v1", "a-model", engine, **fields)
            return asyncio.run(check_for_agents(endpoint, deadline_s))


def test_a_call_and_a_prompt_that_is_read_once_are_said_in_a_few_words():
    script = Scripted()
    tool_calls, prefix_cache = script.results()
    assert (tool_calls.state, tool_calls.text) == ("ok", "tool calls: ok")
    assert (prefix_cache.state, prefix_cache.text) == ("ok", "prefix cache: 96 % hit")
    assert check_documents([tool_calls, prefix_cache]) == {
        "tool_calls": {"state": "ok", "text": "tool calls: ok"},
        "prefix_cache": {"state": "ok", "text": "prefix cache: 96 % hit", "hit_share": 0.96},
    }
    forced, first, second = script.asked
    # llama.cpp ignores the named form.
    assert (forced["tool_choice"], len(forced["tools"])) == (
        "required",
        1,
    )
    assert forced["max_tokens"] <= 128
    assert first == second


TOOLS = [
    (
        (400, json.dumps(VLLM_WITHOUT_PARSER).encode()),
        "vllm",
        (
            "tool calls: refused, vLLM was started without --tool-call-parser: agents cannot "
            "call tools"
        ),
    ),
    (
        (400, b'{"error": "tools are not supported"}'),
        "",
        "tool calls: refused with HTTP 400 (tools are not supported)",
    ),
    (
        completion('[{"name": "read_file", "parameters": {"path": "notes.txt"}}]'),
        "sglang",
        "tool calls: they come as text, so that agents do not see them",
    ),
    (
        completion("<tool_call>\n<function=read_file>\n</function>"),
        "vllm",
        "tool calls: they come as text, so that agents do not see them",
    ),
    (
        completion(calls=call('{"path": ')),
        "vllm",
        "tool calls: malformed, their arguments are no JSON object",
    ),
    (
        completion(calls=call("[]")),
        "vllm",
        "tool calls: malformed, their arguments are no JSON object",
    ),
    (
        completion("I cannot read files."),
        "vllm",
        "tool calls: none, the model answered with text though a call was required",
    ),
    (completion(), "vllm", "tool calls: none, the answer was empty"),
    (
        completion(message={"reasoning": "I should call it."}),
        "vllm",
        "tool calls: none, the whole answer came as reasoning",
    ),
]


@pytest.mark.parametrize(("answer", "engine", "text"), TOOLS)
def test_a_call_that_does_not_come_as_one_is_a_warning_with_what_to_do(answer, engine, text):
    tool_calls, prefix_cache = Scripted(tools=answer).results(engine)
    assert (tool_calls.state, tool_calls.text) == ("warning", text)
    assert tool_calls.hint
    assert prefix_cache.state == "ok"


def test_prose_of_a_vllm_names_the_versions_that_do_not_force_a_call():
    tool_calls, _ = Scripted(tools=completion("Sure, which file?")).results("vllm")
    assert "0.28" in tool_calls.hint
    assert "gemma4" in tool_calls.hint


def test_a_chat_template_without_tools_is_asked_of_llama_cpp_and_costs_no_generation():
    script = Scripted(pages={"/props": b'{"chat_template_caps": {"supports_tools": false}}'})
    tool_calls, _ = script.results("embedded")
    assert tool_calls.state == "warning"
    assert tool_calls.text.startswith("tool calls: none, the model's chat template knows no tools")
    assert not any("tools" in document for document in script.asked)


def test_a_server_that_refuses_the_field_against_thinking_is_asked_without_it():
    def strict(document):
        if "chat_template_kwargs" in document:
            return (
                400,
                b'{"error": {"message": "Unrecognized request argument: chat_template_kwargs"}}',
            )
        return completion(calls=call())

    tool_calls, _ = Scripted(tools=strict).results()
    assert tool_calls.state == "ok"


def test_a_model_that_thinks_all_the_same_gets_the_tokens_for_it():
    def thinking(document):
        if document["max_tokens"] > 128:
            return completion(calls=call())
        return completion(finish="length", message={"reasoning_content": "Let me see"})

    assert Scripted(tools=thinking).results()[0].state == "ok"
    for_ever = Scripted(
        tools=completion(finish="length", message={"reasoning_content": "Let me see"})
    ).results()[0]
    assert (for_ever.state, for_ever.text) == (
        "unknown",
        "tool calls: not seen, the model was still thinking after 1,024 tokens",
    )


def metrics(hits, queries):
    lines = (("hits", hits), ("queries", queries))
    return "".join(
        f'vllm:prefix_cache_{name}_total{{engine="0"}} {value}.0\n' for name, value in lines
    ).encode()


CACHES = [
    (
        {"prompts": [read(0), read(0)]},
        {},
        "warning",
        "no hit, every turn reads the whole session again",
    ),
    (
        {"prompts": [read(0), read(60)]},
        {},
        "warning",
        "only 10 % hit, every turn reads most of the session again",
    ),
    ({"prompts": [read(), read()]}, {}, "unknown", "not told by the engine"),
    ({"prompts": [read(timings={"cache_n": 570, "prompt_n": 30})]}, {}, "ok", "95 % hit"),
    # vLLM leaves the details out of an answer without a hit, and counts all the same
    (
        {"pages": {"/metrics": [metrics(0, 900), metrics(588, 1500)]}, "prompts": [read()]},
        {},
        "ok",
        "98 % hit",
    ),
    (
        {"pages": {"/metrics": [metrics(0, 900), metrics(0, 1500)] * 2}, "prompts": [read()]},
        {"engine": "vllm"},
        "warning",
        "no hit, every turn reads the whole session again",
    ),
    ({}, {"caches_prefixes": False}, "unknown", "off, as prefix_cache = false says"),
    ({}, {"context_tokens": 100}, "unknown", "not checked, 100 tokens of context are too few"),
    (
        {"prompts": [(503, b'{"error": {"message": "loading"}}')]},
        {},
        "unknown",
        "not checked, HTTP 503 (loading)",
    ),
    ({"prompts": [b"<html>"]}, {}, "unknown", "not checked, the answer is no chat completion"),
    # the blocks of a model with linear attention are long
    (
        {"prompts": [read(0), read(0)]},
        {"is_hybrid": True, "context_tokens": 2048},
        "unknown",
        "no hit in 1,024 tokens, which may be less than the engine caches in one piece",
    ),
]


@pytest.mark.parametrize(("script", "fields", "state", "text"), CACHES)
def test_what_a_second_reading_found_in_the_cache_is_told(script, fields, state, text):
    _, prefix_cache = Scripted(**script).results(**fields)
    assert (prefix_cache.state, prefix_cache.text) == (state, f"prefix cache: {text}")
    assert (prefix_cache.hint is None) == (state == "ok")


def size_of(document):
    return sum(len(message["content"]) for message in document["messages"])


def test_the_prompt_is_as_long_as_the_models_blocks_but_half_the_context_at_most():
    sizes = {}
    for name, fields in {
        "usual": {"context_tokens": 32768},
        "hybrid": {"context_tokens": 32768, "is_hybrid": True},
        "short": {"context_tokens": 512},
        "cpu": {"engine": "embedded", "context_tokens": 2048},
    }.items():
        script = Scripted()
        script.results(**fields)
        sizes[name] = size_of(script.asked[-1])
    assert sizes["cpu"] < sizes["short"] < sizes["usual"] < sizes["hybrid"] / 5


def test_a_prompt_that_did_not_hit_is_tried_again_longer_before_anybody_is_warned():
    script = Scripted(prompts=[read(0), read(0), read(0, 4500), read(4224, 4500)])
    _, prefix_cache = script.results("vllm")
    assert (prefix_cache.state, prefix_cache.text) == ("ok", "prefix cache: 94 % hit")


def test_a_template_without_a_place_for_a_system_prompt_gets_the_text_from_the_user():
    refused = 400, b'{"error": {"message": "System role not supported"}}'
    script = Scripted(prompts=[refused, read(0), read(576)])
    assert script.results()[1].state == "ok"
    assert [message["role"] for message in script.asked[-1]["messages"]] == ["user"]


def test_each_result_is_told_as_soon_as_it_is_there():
    """A prompt that takes long on a slow machine does not hide what is known already."""
    script = Scripted(prompts=[read(0)])
    states = []
    with recorded(script.answer, script.page) as server:
        endpoint = CheckedEndpoint(server.url, "a-model")
        asyncio.run(
            check_for_agents(
                endpoint, tell=lambda check: states.append((check.name, len(script.asked)))
            )
        )
    assert states[0] == ("tool_calls", 1)
    assert states[1][0] == "prefix_cache"


def test_nobody_there_and_no_answer_in_time_are_unknown():
    checks = asyncio.run(check_for_agents(CheckedEndpoint("http://127.0.0.1:9", "m")))
    assert [check.state for check in checks] == ["unknown", "unknown"]
    assert "connection refused" in checks[0].text

    def slow(_document):
        threading.Event().wait(1.0)
        return completion(calls=call())

    late = Scripted(tools=slow).results(deadline_s=0.2)
    assert [check.text for check in late] == [
        "tool calls: not checked, there was no answer in time",
        "prefix cache: not checked, there was no answer in time",
    ]


def test_a_call_that_begins_and_does_not_end_is_no_verdict():
    """Weights that never learned it fill a call with blanks, as seen on vLLM 0.24 with Llama's
    parser.
    """
    begun = completion('{"name": "read_file", "parameters": {\n\n\t\n', finish="length")
    tool_calls = Scripted(tools=begun).results("vllm 0.24.0")[0]
    assert (tool_calls.state, tool_calls.text) == (
        "unknown",
        "tool calls: not seen, a call began and did not end in time",
    )


HOSTILE = [
    (
        b'{"choices": [{"message": {"content": "%b"}}]}' % (b"x" * LARGEST_ANSWER_BYTES),
        "an answer of more than 1,048,576 bytes",
    ),
    (
        b'{"choices": [{"message": {"tool_calls": [%b{}]}}]}' % (b"{}," * 300_000),
        "the answer is no chat completion",
    ),
    (
        b'{"choices": [{"message": {"content": %b' % (b"[" * 300_000),
        "the answer is no chat completion",
    ),
    (
        b'{"choices": [{"message": {"content": 7, "tool_calls": "x"}}], "usage": 1}',
        "the answer is no chat completion",
    ),
]


@pytest.mark.parametrize(
    ("answer", "why"), HOSTILE, ids=["above the bound", "many calls", "nested", "wrong types"]
)
def test_an_answer_that_would_hold_up_the_supervisor_is_not_read(answer, why):
    """One of 64 MB with empty calls kept all other replicas waiting for 20 s."""
    checks = Scripted(tools=answer, prompts=[answer]).results()
    assert [check.text for check in checks] == [
        f"tool calls: not checked, {why}",
        f"prefix cache: not checked, {why}",
    ]


STATUSES = [
    (401, {}, "name the variable of its key with --key-env"),
    (403, {"headers": {"authorization": "Bearer x"}}, "check the key's value"),
    (307, {}, "ask the server that it leads to (https://elsewhere/v1)"),
    (
        404,
        {},
        "is this the base URL of an OpenAI-compatible server? /v1/chat/completions is asked there",
    ),
    (503, {}, "it is busy, or still loading: try again later"),
    (500, {}, "its own log may say more"),
]


@pytest.mark.parametrize(("status", "fields", "hint"), STATUSES)
def test_a_server_that_answers_no_question_is_said_to_with_what_to_do(status, fields, hint):
    refusal = status, b"<html>no</html>"
    script = Scripted(
        tools=refusal, prompts=[refusal], lines=[("location", "https://elsewhere/v1")]
    )
    checks = script.results(**fields)
    assert [(check.text.partition(", ")[2], check.hint, check.answered) for check in checks] == [
        (f"HTTP {status}", hint, False),
        (f"HTTP {status}", hint, False),
    ]


def test_a_prompt_that_is_refused_is_an_answer():
    """A server may have less context than the prompt has tokens, and not tell."""
    refusal = 400, b'{"error": {"message": "maximum context length is 512 tokens"}}'
    _, prefix_cache = Scripted(prompts=[refusal]).results()
    assert (
        prefix_cache.text
        == "prefix cache: not checked, HTTP 400 (maximum context length is 512 tokens)"
    )
    assert (prefix_cache.hint, prefix_cache.answered) == (
        "its context may be shorter than the prompt",
        True,
    )


def test_an_error_with_the_status_of_a_success_is_no_answer():
    """LM Studio answers so where it does not know a path."""
    error = b'{"error": "Unexpected endpoint or method."}'
    checks = Scripted(tools=error, prompts=[error]).results()
    words = "not checked, the answer is no chat completion (Unexpected endpoint or method.)"
    assert [check.text for check in checks] == [f"tool calls: {words}", f"prefix cache: {words}"]
