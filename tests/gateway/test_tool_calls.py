"""Tool calls through the gateway with the real clients. The embedded model knows no tools: the answers are recorded."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import openai
import pytest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ASKED = [{"role": "user", "content": "Weather in Paris?"}]


def event(document, name=None):
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document)}\n\n"


def chat_chunk(delta, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
THOUGHT = "It wants weather."
OPENAI_WHOLE = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{
        "index": 0, "finish_reason": "tool_calls",
        "message": {"role": "assistant", "content": None, "reasoning_content": THOUGHT, "tool_calls": [CALL]},
    }],
    "usage": {"prompt_tokens": 60, "completion_tokens": 18, "total_tokens": 78},
}  # fmt: skip
OPENAI_STREAM = [
    chat_chunk({"role": "assistant", "reasoning_content": THOUGHT}),
    chat_chunk({"tool_calls": [{"index": 0, **CALL, "function": {"name": "get_weather", "arguments": ""}}]}),
    chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Pa'}}]}),
    chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": 'ris"}'}}]}),
    chat_chunk({}, "tool_calls"),
    "data: [DONE]\n\n",
]
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
ANTHROPIC_WHOLE = {
    **MESSAGE, "content": [USE], "stop_reason": "tool_use", "usage": {"input_tokens": 60, "output_tokens": 18},
}  # fmt: skip
BEGUN = {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 60, "output_tokens": 1}}
PART = {"type": "content_block_delta", "index": 0}
ANTHROPIC_STREAM = [
    event({"type": "message_start", "message": BEGUN}, "message_start"),
    event({"type": "content_block_start", "index": 0, "content_block": {**USE, "input": {}}}, "content_block_start"),
    event({**PART, "delta": {"type": "input_json_delta", "partial_json": '{"city": "Pa'}}, "content_block_delta"),
    event({**PART, "delta": {"type": "input_json_delta", "partial_json": 'ris"}'}}, "content_block_delta"),
    event({"type": "content_block_stop", "index": 0}, "content_block_stop"),
    event(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 18},
        },
        "message_delta",
    ),
    event({"type": "message_stop"}, "message_stop"),
]


class Recorded(BaseHTTPRequestHandler):
    """Plays the answers and keeps the bodies it got."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append(body)
        whole, stream = (
            (ANTHROPIC_WHOLE, ANTHROPIC_STREAM) if "messages" in self.path else (OPENAI_WHOLE, OPENAI_STREAM)
        )
        streamed = json.loads(body).get("stream")
        self.send_response(200)
        if not streamed:
            data = json.dumps(whole).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in (part.encode() for part in stream):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


@pytest.fixture
def recorded():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorded)
    server.daemon_threads = True
    server.bodies = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def gateway(start_gateway, recorded):
    process = start_gateway()
    process.serve_engines(recorded, model="m", confirms="")
    return process


def test_openai_tool_calls_come_back_whole_and_in_pieces(gateway, recorded):
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
    ask = {"model": "m", "messages": ASKED, "tools": tools, "extra_body": {"unknown_field": {"kept": [1, 2.50, None]}}}
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
        message = client.chat.completions.create(**ask).choices[0].message
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**ask, stream=True)]
    assert message.tool_calls[0].function.arguments == '{"city": "Paris"}'
    assert message.reasoning_content == deltas[0].reasoning_content == THOUGHT
    pieces = [delta.tool_calls[0].function.arguments for delta in deltas if delta.tool_calls]
    assert "".join(pieces) == '{"city": "Paris"}'
    assert [json.loads(body)["tools"] for body in recorded.bodies] == [tools, tools]
    assert b'"unknown_field"' in recorded.bodies[0]


def test_anthropic_tool_use_comes_back_whole_and_in_pieces(gateway, recorded):
    tools = [{"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}]
    ask = {"model": "m", "messages": ASKED, "tools": tools, "max_tokens": 50}
    with anthropic.Anthropic(base_url=gateway.url, api_key="x", max_retries=0) as client:
        whole = client.messages.create(**ask)
        with client.messages.stream(**ask) as stream:
            pieced = stream.get_final_message()
    for answer in (whole, pieced):
        assert answer.content[0].input == {"city": "Paris"}
        assert (answer.stop_reason, answer.usage.output_tokens) == ("tool_use", 18)
    assert [json.loads(body)["tools"] for body in recorded.bodies] == [tools, tools]
