"""Streamed answers: what a client reads of them does not depend on how the bytes were cut."""

import asyncio

from fuzz.pieces import split_input, ways_to_cut
from skep.wire.heads import ResponseHead
from skep.wire.openai import SseParser, StreamReader

KINDS = [b"text/event-stream", b"application/x-ndjson", b"application/json"]
STATUSES = [200, 200, 200, 500]
SEEDS = [
    b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n',
    (
        b'data: {"choices":[{"text":"a","finish_reason":"stop"}],'
        b'"usage":{"completion_tokens":3}}\r\n\r\n'
    ),
    b'event: x\ndata: {"choices":\ndata: [{"delta":{"reasoning":"r","tool_calls":[{}]}}]}\n\n',
    b'data: {"error":{"message":"no"}}\n\n',
    b': comment\n\ndata:{"timings":{"predicted_n":3,"predicted_ms":2.5}}\n\n',
    b'{"response":"a"}\n{"response":"b","done":true,"eval_count":2,"eval_duration":5}\n',
    (
        b'{"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":1}}'
    ),
]
WORDS = [
    b"data: ",
    b"data:",
    b"\n\n",
    b"\r\n\r\n",
    b"\r",
    b"[DONE]",
    b'{"choices":[',
    b'{"delta":{"content":"',
    b'"text":"a"',
    b'"finish_reason":"stop"',
    b'"usage":{',
    b'"timings":{',
    b'"error":',
    b"null",
    b"1e400",
    b"NaN",
    b'"\\ud800"',
    b"9" * 30,
    b'"done":true',
    b'"eval_duration":',
    b'"message":{',
    b": x\n\n",
    b"\xff",
    b'"completion_tokens":',
]


async def check(data):
    choice, payload = split_input(data)
    whole = read([payload], choice)
    for pieces in ways_to_cut(payload, choice):
        assert read(pieces, choice) == whole, pieces
        assert events([payload]) == events(pieces)


def read(pieces, choice):
    """All that the reader tells of an answer that came in these reads, but for its times."""
    reading = StreamReader(asyncio.get_running_loop().create_future())
    fields = [(b"content-type", KINDS[choice % len(KINDS)]), (b"retry-after", b"5")]
    reading.on_head(ResponseHead(STATUSES[choice % len(STATUSES)], fields), 1.0)
    for piece in pieces:
        if reading.takes_chunks and choice & 1024:
            reading.on_chunks(b"%x\r\n%b\r\n" % (len(piece), piece), len(piece), 2.0)
        else:
            reading.on_body(piece, 2.0)
    reading.on_end(3.0)
    reading.digest()
    return {
        "text": "".join(reading.text),
        "reasoning": "".join(reading.reasoning),
        "arrivals": len(reading.arrivals),
        "usage": repr(reading.usage),
        "figures": repr(reading.engine_figures()),
        "tokens": (reading.prompt_tokens, reading.output_tokens),
        "end": (reading.finished, reading.finish_reason, reading.error_kind, reading.error),
        "times": (reading.first_byte, reading.ended_at, reading.retry_after_s),
    }


def events(pieces):
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]
