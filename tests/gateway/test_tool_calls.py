"""Tool calls pass through the gateway byte for byte, whole and in pieces, in both dialects.

They are recorded.
"""

import json

import pytest
from gateway_client import call

from recorded_server import recorded, sse

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}
SAID = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "It wants weather.",
    "tool_calls": [CALL],
}
PIECES = [
    {"role": "assistant", "reasoning_content": "It wants weather."},
    {"tool_calls": [{"index": 0, **CALL, "function": {"name": "get_weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Pa'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": 'ris"}'}}]},
]
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
PART = {"type": "content_block_delta", "index": 0}
RECORDED = {
    "/v1/chat/completions": (
        {"id": "c", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": SAID}]},
        [
            *sse(*({"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in PIECES)),
            b"data: [DONE]\n\n",
        ],
    ),
    "/v1/messages": (
        {
            **MESSAGE,
            "content": [USE],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 60, "output_tokens": 18},
        },
        sse(
            {
                "type": "message_start",
                "message": {**MESSAGE, "content": [], "usage": {"input_tokens": 60}},
            },
            {"type": "content_block_start", "index": 0, "content_block": {**USE, "input": {}}},
            {**PART, "delta": {"type": "input_json_delta", "partial_json": '{"city": "Pa'}},
            {**PART, "delta": {"type": "input_json_delta", "partial_json": 'ris"}'}},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use"},
                "usage": {"output_tokens": 18},
            },
            {"type": "message_stop"},
        ),
    ),
}


@pytest.mark.parametrize("path", RECORDED)
def test_tool_calls_pass_whole_and_in_pieces_and_tools_reach_the_engine(start_gateway, path):
    whole, pieces = RECORDED[path]
    tools = [
        {
            "name": "get_weather",
            "input_schema": {"type": "object"},
            "unknown_field": {"kept": [1, 2.50, None]},
        }
    ]

    def answer(_path, _headers, body):
        if json.loads(body)["stream"]:
            return pieces
        return json.dumps(whole).encode()

    with recorded(answer) as engine:
        gateway = start_gateway()
        gateway.serve_engines(engine, model="m", confirms="")
        for stream, expected in ((False, json.dumps(whole).encode()), (True, b"".join(pieces))):
            body = json.dumps(
                {"model": "m", "messages": [], "tools": tools, "stream": stream}
            ).encode()
            assert call(gateway, path=path, document=body)[2] == expected
            assert engine.bodies[-1] == body
