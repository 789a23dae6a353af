"""The fake engine as agents meet it, by the official libraries of OpenAI and Anthropic."""

import asyncio
import json

import anthropic
import openai
import pytest

from skep.errors import EngineError
from skep.testing.process import FakeEngine

WRITE = {
    "type": "object",
    "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["file_path", "content"],
}
COUNT = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["new", "old"]},
        "number": {"type": "integer", "minimum": 3},
        "names": {"type": "array", "items": {"$ref": "#/$defs/name"}},
        "left_out": {"type": "string"},
    },
    "required": ["kind", "number", "names"],
    "$defs": {"name": {"type": "string", "minLength": 2}},
}
FORCED = {"kind": "new", "number": 3, "names": ["xx"]}
ORDER = "WRITE notes.txt hello"
WRITTEN = {"file_path": "notes.txt", "content": "hello"}


def chat_tool(name, schema):
    return {
        "type": "function",
        "function": {"name": name, "description": "", "parameters": schema},
    }


def messages_tool(name, schema):
    return {"name": name, "input_schema": schema}


def responses_tool(name, schema):
    return {"type": "function", "name": name, "parameters": schema}


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=4, token_ms=0, ctx=4000) as started:
        yield started


@pytest.fixture
def scripted():
    with FakeEngine(slots=4, token_ms=0, ctx=4000, script="agents", speaks="vllm") as started:
        yield started


@pytest.fixture
def vllm():
    with FakeEngine(token_ms=0, tool_calls="refused", ctx=50, speaks="vllm") as started:
        yield started


def openai_of(engine):
    return openai.OpenAI(base_url=f"{engine.url}/v1", api_key="k", max_retries=0)


def anthropic_of(engine):
    return anthropic.Anthropic(base_url=engine.url, api_key="k", max_retries=0)


def asked(text):
    return [{"role": "user", "content": text}]


CHOICES = ["required", {"type": "function", "function": {"name": "count"}}]


@pytest.mark.parametrize("choice", CHOICES, ids=["required", "named"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_forced_call_in_a_chat_fits_the_schema_of_its_tool(engine, choice, stream):
    arguments = {
        "model": "m",
        "messages": asked("Hi"),
        "tools": [chat_tool("count", COUNT)],
        "tool_choice": choice,
    }
    with openai_of(engine) as client:
        if stream:
            with client.chat.completions.stream(**arguments) as events:
                (answer,) = events.get_final_completion().choices
        else:
            (answer,) = client.chat.completions.create(**arguments).choices
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("count", FORCED)
    assert call.id.startswith("call_")


@pytest.mark.parametrize(
    "choice", [{"type": "any"}, {"type": "tool", "name": "count"}], ids=["any", "named"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_forced_call_in_a_message_fits_the_schema_of_its_tool(engine, choice, stream):
    tools = [messages_tool("count", COUNT), {"type": "web_search_20250305", "name": "web_search"}]
    arguments = {
        "model": "m",
        "max_tokens": 100,
        "messages": asked("Hi"),
        "tools": tools,
        "tool_choice": choice,
    }
    with anthropic_of(engine) as client:
        if stream:
            with client.messages.stream(**arguments) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**arguments)
    (block,) = message.content
    assert (message.stop_reason, block.type, block.name, block.input) == (
        "tool_use",
        "tool_use",
        "count",
        FORCED,
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_forced_call_in_a_response_fits_the_schema_of_its_tool(engine, stream):
    """Tools that an engine does not run by a schema are passed over; those of a namespace are
    tools like others.
    """
    tools = [
        {"type": "web_search"},
        {"type": "custom", "name": "apply_patch"},
        {
            "type": "namespace",
            "name": "agents",
            "description": "",
            "tools": [responses_tool("count", COUNT)],
        },
    ]
    arguments = {"model": "m", "input": "Hi", "tools": tools, "tool_choice": "required"}
    with openai_of(engine) as client:
        if stream:
            events = list(client.responses.create(stream=True, **arguments))
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
            ids = {event.item_id for event in events if hasattr(event, "item_id")}
            ids |= {event.item.id for event in events if hasattr(event, "item")}
            assert len(ids) == 1
            response = events[-1].response
        else:
            response = client.responses.create(**arguments)
    (item,) = response.output
    assert (item.type, item.name, json.loads(item.arguments)) == ("function_call", "count", FORCED)
    assert (item.namespace, response.status) == ("agents", "completed")


def test_the_script_writes_a_file_by_the_tool_of_a_chat_until_it_has_the_result(scripted):
    tools = [chat_tool("write_file", WRITE)]
    with openai_of(scripted) as client:
        first = (
            client.chat.completions.create(model="m", messages=asked(ORDER), tools=tools)
            .choices[0]
            .message
        )
        assert json.loads(first.tool_calls[0].function.arguments) == WRITTEN
        assert (first.content, first.reasoning_content) == (
            "I write it.",
            "The user wants a file.",
        )
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "ok"}
        last = client.chat.completions.create(
            model="m", messages=[*asked(ORDER), first, result], tools=tools
        )
    assert last.choices[0].message.content == "DONE"
    assert scripted.state()["rules"] == {"write": 1, "result": 1}


def test_the_script_writes_a_file_by_a_shell_where_a_client_has_nothing_else(scripted):
    shell = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
    tools = [responses_tool("exec_command", shell)]
    with openai_of(scripted) as client:
        response = client.responses.create(model="m", input=ORDER, tools=tools)
    assert json.loads(response.output[-1].arguments) == {"cmd": "printf %s hello > notes.txt"}
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]


def test_the_script_writes_a_file_by_the_tool_of_a_message_until_it_has_the_result(scripted):
    given = {"model": "m", "max_tokens": 500, "tools": [messages_tool("Write", WRITE)]}
    with anthropic_of(scripted) as client:
        with client.messages.stream(messages=asked(ORDER), **given) as events:
            message = events.get_final_message()
        thinking, text, call = message.content
        assert (thinking.thinking, text.text, call.input) == (
            "The user wants a file.",
            "I write it.",
            WRITTEN,
        )
        result = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"}],
        }
        answered = {"role": "assistant", "content": message.content}
        last = client.messages.create(messages=[*asked(ORDER), answered, result], **given)
    assert [block.text for block in last.content] == ["DONE"]


@pytest.mark.parametrize(
    "schema", [{"required": 5}, {"properties": {"a": {"$ref": 5}}, "required": ["a"]}]
)
def test_a_forced_call_of_a_tool_with_a_malformed_schema_is_refused(engine, schema):
    """The connection was closed without an answer."""
    arguments = {"model": "m", "messages": asked("Hi"), "tools": [chat_tool("count", schema)]}
    with openai_of(engine) as client, pytest.raises(openai.BadRequestError, match="is malformed"):
        client.chat.completions.create(**arguments, tool_choice="required")


def test_a_sub_agent_is_started_with_the_rest_of_the_order_as_its_prompt(scripted):
    names = ("description", "prompt", "subagent_type")
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
    }
    tools = [chat_tool("write", WRITE), chat_tool("task", schema)]
    with openai_of(scripted) as client:
        completion = client.chat.completions.create(
            model="m", messages=asked(f"DELEGATE {ORDER}"), tools=tools
        )
    (call,) = completion.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, arguments["prompt"]) == ("task", ORDER)
    assert arguments["subagent_type"] == "general-purpose"


def test_a_prompt_beyond_the_context_is_refused_in_the_words_of_the_engine(scripted):
    with openai_of(scripted) as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m", messages=asked("word " * 5000))
    assert (
        "maximum context length is 4000 tokens. However, your request has 5000 input tokens"
        in str(refused.value)
    )
    with anthropic_of(scripted) as client:
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.create(model="m", max_tokens=9, messages=asked("word " * 5000))
        assert refused.value.body["type"] == "error"
        assert (
            client.messages.count_tokens(model="m", messages=asked("one two three")).input_tokens
            == 3
        )
    long = {"model": "m", "messages": asked("1 2 3 4 5")}
    with (
        FakeEngine(ctx=5, speaks="llama-server") as engine,
        openai_of(engine) as client,
        pytest.raises(openai.BadRequestError) as refused,
    ):
        client.chat.completions.create(**long)
    assert (refused.value.body["type"], refused.value.body["n_ctx"]) == (
        "exceed_context_size_error",
        5,
    )


def test_an_engine_without_a_parser_refuses_tools_but_makes_a_forced_call(vllm):
    given = {
        "model": "m",
        "messages": asked("Hi"),
        "tools": [chat_tool("count", COUNT)],
        "max_tokens": 10,
    }
    with openai_of(vllm) as client:
        with pytest.raises(openai.BadRequestError, match="--enable-auto-tool-choice"):
            client.chat.completions.create(**given)
        named = {"type": "function", "function": {"name": "count"}}
        completion = client.chat.completions.create(**given, tool_choice=named)
        assert completion.choices[0].message.tool_calls
        with pytest.raises(openai.BadRequestError, match=r"max_tokens.* is too large: 100"):
            client.chat.completions.create(**given | {"max_tokens": 100})


@pytest.mark.parametrize("kind", ["text", "broken"])
def test_calls_come_as_text_or_as_broken_json_where_that_is_asked_for(kind):
    tools = [chat_tool("count", COUNT)]
    with FakeEngine(token_ms=0, tool_calls=kind) as engine, openai_of(engine) as client:
        completion = client.chat.completions.create(
            model="m", messages=asked("Hi"), tools=tools, tool_choice="required"
        )
    message = completion.choices[0].message
    if kind == "text":
        assert message.tool_calls is None
        assert "<tool_call>" in message.content
    else:
        with pytest.raises(ValueError):
            json.loads(message.tool_calls[0].function.arguments)


def test_the_longest_known_beginning_of_a_prompt_counts_as_cached():
    long = " ".join(f"word{n}" for n in range(100))
    with FakeEngine(token_ms=0) as engine, openai_of(engine) as client:

        def cached(text):
            usage = client.chat.completions.create(
                model="m", messages=asked(text), max_tokens=1
            ).usage
            return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens

        assert [cached(long), cached(long), cached(f"{long} and more")] == [
            (100, 0),
            (100, 99),
            (102, 100),
        ]
        assert cached(f"other {long}") == (101, 0)
        message = anthropic_of(engine).messages.create(
            model="m", max_tokens=1, messages=asked(long)
        )
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (1, 99)
    with FakeEngine(token_ms=0, prefix_cache="off") as engine, openai_of(engine) as client:
        assert [cached(long), cached(long)] == [(100, 0), (100, 0)]
    with (
        FakeEngine(token_ms=0, prefill_tok_s=500, prefix_cache="used") as engine,
        openai_of(engine) as client,
    ):
        completions = [
            client.chat.completions.create(model="m", messages=asked(long), max_tokens=1)
            for _ in range(2)
        ]
        first, second = (answer.timings for answer in completions)
        assert first["prompt_ms"] > 195
        assert second["prompt_ms"] < 100
        assert (second["cache_n"], second["prompt_n"]) == (99, 1)


async def test_a_cut_stream_and_a_late_answer_come_once_and_when_asked_for(scripted):
    tools = [chat_tool("write", WRITE)]
    async with openai.AsyncOpenAI(
        base_url=f"{scripted.url}/v1", api_key="k", max_retries=0
    ) as client:

        async def words(text):
            arguments = {"model": "m", "messages": asked(text), "tools": tools}
            async with client.chat.completions.stream(**arguments) as events:
                return (await events.get_final_completion()).choices[0].message.content

        with pytest.raises(openai.APIConnectionError):
            await words("CUT")
        assert await words("CUT") == "DONE"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await words("SLOWLY green")


@pytest.mark.parametrize(
    "condition", [{"say": "x"}, {"says": "(x"}], ids=["unknown", "no expression"]
)
def test_rules_that_cannot_be_read_end_the_start(tmp_path, condition):
    path = tmp_path / "script.json"
    path.write_text(json.dumps([{"when": condition, "reply": {}}]))
    with pytest.raises(EngineError, match=r"script.json: .*(`say`|unterminated)"):
        FakeEngine(script=str(path)).start()


def test_a_text_with_quotes_fills_the_arguments_of_a_call(tmp_path):
    """It was put into JSON as it stood: the connection was closed without an answer."""
    call = {"name": "count", "arguments": {"kind": "{text}", "names": ["{text}"]}}
    path = tmp_path / "script.json"
    path.write_text(json.dumps([{"when": {"says": "SAY (?P<text>.+)"}, "reply": {"call": call}}]))
    quoted = 'a "quoted" \\ word'
    with FakeEngine(token_ms=0, script=str(path)) as engine, openai_of(engine) as client:
        tools = [chat_tool("count", COUNT)]
        completion = client.chat.completions.create(
            model="m", messages=asked(f"SAY {quoted}"), tools=tools
        )
    arguments = json.loads(completion.choices[0].message.tool_calls[0].function.arguments)
    assert arguments == {"kind": quoted, "names": [quoted], "number": 3}
