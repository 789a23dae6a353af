"""One answer, byte by byte: every odd form of stream, and which time belongs to which token."""

import asyncio
import json
import random
import time
from bisect import bisect_left
from itertools import accumulate, pairwise

import msgspec
import pytest

from skep.bench.endpoint import Endpoint
from skep.bench.tasks import BenchTask, Sender
from skep.wire.client import Pool, WireFailure
from skep.wire.heads import ResponseHead, chunked_body_size, parse_url
from skep.wire.openai import READ_BEFORE_THE_END_BYTES, StreamReader

SSE = b"text/event-stream"
NDJSON = b"application/x-ndjson"
JSON = b"application/json"
GONE = WireFailure("closed", "gone")
LINE = b'{"message": {"content": "a"}}\n'
HALF_LINE = b'{"message": {"cont'
END_LINE = b'{"done": true, "eval_count": 3, "prompt_eval_count": 7}\n'
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


def event(**fields):
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()


def said(content, finish=None, **fields):
    return event(
        choices=[{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **fields
    )


def reader():
    """Return a reader that has read the head of a stream."""
    reading = StreamReader(asyncio.get_running_loop().create_future())
    reading.on_head(ResponseHead(200, [(b"content-type", SSE)], None), 0.0)
    return reading


def receive(*reads, kind=SSE, status=200, ended_by=None):
    """Hand on each of `reads` as one network read, at second 1, 2, ...; the head is at second 0."""

    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_head(ResponseHead(status, [(b"content-type", kind)], None), 0.0)
        for at, data in enumerate(reads, start=1):
            reading.on_body(data, float(at))
        if ended_by is None:
            reading.on_end(99.0)
        else:
            reading.on_failure(ended_by, 99.0)
        assert reading.done.result() == 99.0
        return reading

    return asyncio.run(run())


def read(*reads, **how):
    reading = receive(*reads, **how)
    reading.digest()
    return reading


def row_of(reading):
    """Return the row that a sender makes of an answer."""

    async def run():
        origin, _ = parse_url("http://127.0.0.1:9")
        sender = Sender(
            Endpoint(origin, "/v1", "m"), Pool(origin), 0.0, timeout_s=1.0, keep_text=True
        )
        return sender._row(
            BenchTask(1, 0, 0, "fix", [{"role": "user", "content": "?"}], 8), reading
        )

    return asyncio.run(run())


# Where the first token is


@pytest.mark.parametrize(
    ("reads", "kind", "arrivals", "text"),
    [
        (
            [
                event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
                event(choices=[{"delta": {"role": "assistant", "content": None}}]),
                said("a"),
                said("b", "stop") + DONE,
            ],
            *(SSE, [3.0, 4.0], "ab"),
        ),
        (
            [
                event(choices=[{"text": "a"}]),
                event(choices=[{"text": "", "finish_reason": "length"}]),
            ],
            SSE,
            [1.0],
            "a",
        ),
        (
            [b'{"message": {"content": ""}}\n', b'{"message": {"thinking": "hm"}}\n', END_LINE],
            NDJSON,
            [2.0],
            "",
        ),
        *[
            (
                [event(choices=[{"delta": {name: "hm"}}]), said("a", "stop") + DONE],
                SSE,
                [1.0, 2.0],
                "a",
            )
            for name in ("reasoning_content", "reasoning")
        ],
        (
            [
                event(choices=[{"delta": {"content": None, "tool_calls": []}}]),
                event(choices=[{"delta": {"tool_calls": None}}]),
                event(
                    choices=[
                        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}
                    ]
                ),
                event(choices=[{"delta": {}, "finish_reason": "tool_calls"}]) + DONE,
            ],
            SSE,
            [3.0],
            "",
        ),
        (
            [
                event(choices=[{"delta": {"content": [{"type": "text", "text": "a"}]}}]),
                said("", "stop"),
            ],
            SSE,
            [1.0],
            "",
        ),
        (
            [
                (
                    b'data: {"choices": [\ndata: {"delta": {"content": "a"},\ndata: '
                    b'"finish_reason": "stop"}]}\n\n'
                )
            ],
            SSE,
            [1.0],
            "a",
        ),
    ],
    ids=[
        "the role event is no token",
        "completions without chat",
        "Ollama's thinking is one, its empty line none",
        "reasoning is one",
        "under its other name too",
        "a tool call is one, an empty list of them none",
        "content in parts is one of unknown text",
        "one object over several lines is one event",
    ],
)
def test_the_first_token_is_the_first_with_content(reads, kind, arrivals, text):
    """Servers send the role at once, long before the first token."""
    reading = read(*reads, kind=kind)
    assert (reading.arrivals, "".join(reading.text), reading.error_kind) == (arrivals, text, None)


# Which time belongs to which token, however it is cut

HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def compact(choices, **fields):
    document = {**HEAD, "choices": choices, **fields}
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def some_event(rng):
    """Draw the bytes of an event, the text in them, and how many arrivals they count as."""
    word = rng.choice(
        [
            " the",
            "a",
            " x-1",
            ' "quoted"',
            "é",
            "日本",
            " delta",
            " \\n",
            '"}',
            " {}",
            "\t",
            "[DONE]",
            ",",
        ]
    )
    plain = {"index": 0, "delta": {"content": word}, "finish_reason": None}
    second_choice = {"index": 1, "delta": {"content": word}, "finish_reason": None}
    usage = {"prompt_tokens": 1, "completion_tokens": rng.randrange(9)}
    return rng.choice(
        [
            *[(compact([plain]), word, 1)] * 6,
            (compact([plain], usage=None), word, 1),
            (compact([plain], usage=usage), word, 1),
            (compact([plain], timings={"predicted_n": 1}), word, 1),
            (compact([plain, second_choice]), word * 2, 2),
            (compact([{"index": 0, "delta": {"content": word, "refusal": None}}]), word, 1),
            (compact([{"index": 0, "delta": {"reasoning_content": word}}]), "", 1),
            (compact([{"index": 0, "delta": {"content": ""}}]), "", 0),
            (compact([{"index": 0, "delta": {"role": "assistant", "content": word}}]), word, 1),
            (compact([{"index": 0, "text": word}]), word, 1),
            (compact([]), "", 0),
            (compact([plain]).replace(b"\n", b"\r\n"), word, 1),
            (compact([plain]).replace(b"data: ", b"data:"), word, 1),
            (b": ping\n\n", "", 0),
            (b"event: delta\n" + compact([plain]), word, 1),
            (said(word), word, 1),
        ]
    )


def cut(data, ends, rng):
    """Cut bytes into reads that end mostly where events do, as they do on a network."""
    places = {end for end in ends if rng.random() < 0.8} | {
        rng.randrange(1, len(data)) for _ in range(rng.randrange(4))
    }
    edges = [0, *sorted(places - {len(data)}), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)], edges[1:]


@pytest.mark.parametrize("framed", [False, True], ids=["body", "chunks"])
def test_however_the_bytes_are_cut_the_answer_is_the_same(framed):
    """Every event belongs to the read that brought its end; its text, its figures and its finish
    are as sent.
    """
    seed = random.SystemRandom().randrange(10**9)
    print("seed", seed)
    for rng in map(random.Random, range(seed, seed + 100)):
        events = [some_event(rng) for _ in range(rng.randrange(1, 12))]
        events.append((said("", "length", usage=USAGE) + DONE, "", 0))
        ends = list(accumulate(len(data) for data, _, _ in events))
        reads, edges = cut(b"".join(data for data, _, _ in events), ends, rng)
        reading = read_framed(reads, rng) if framed else read(*reads)
        expected = [
            1.0 + bisect_left(edges, end)
            for end, (_, _, count) in zip(ends, events, strict=True)
            for _ in range(count)
        ]
        assert reading.arrivals == expected, rng
        assert "".join(reading.text) == "".join(text for _, text, _ in events)
        assert (reading.usage, reading.finish_reason, reading.error_kind) == (
            USAGE,
            "length",
            None,
        )


def read_framed(reads, rng):
    """Hand on the same reads as whole chunks, one or two of them a read."""

    async def run():
        reading = reader()
        for at, data in enumerate(reads, start=1):
            if len(data) > 1 and rng.random() < 0.3:
                middle = rng.randrange(1, len(data))
            else:
                middle = 0
            parts = [part for part in (data[:middle], data[middle:]) if part]
            raw = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
            assert chunked_body_size(raw) == len(data)
            reading.on_chunks(raw, len(data), float(at))
        reading.on_end(99.0)
        reading.digest()
        return reading

    return asyncio.run(run())


# Tokens


@pytest.mark.parametrize(
    "count", ["NaN", "true", '"12"', "-3", "1.5", "null", "[]", "{}", str(10**30)]
)
def test_a_count_that_is_no_count_is_unknown(count):
    """Then, and without `usage`, a whole stream is no measurement: events are not tokens, and none
    are made up.
    """
    data = b'data: {"choices":[],"usage":{"completion_tokens":%b,"prompt_tokens":%b}}\n\n'
    for usage in ([data % (count.encode(), count.encode())], []):
        row = row_of(receive(said("a", "stop"), *usage, DONE))
        assert (row.ok, row.output_tokens, row.prompt_tokens, row.error_kind) == (
            False,
            None,
            None,
            "no_usage",
        )


def test_llama_cpps_timings_and_cached_tokens_are_kept():
    timings = {
        "prompt_n": 4,
        "prompt_ms": 8.0,
        "predicted_n": 3,
        "predicted_ms": 20.0,
        "cache_n": 1,
    }
    row = row_of(
        receive(
            said("a"), said("b", "stop"), event(choices=[], usage=USAGE, timings=timings), DONE
        )
    )
    assert (row.ok, row.engine.prompt_ms, row.engine.decode_ms, row.engine.cached_tokens) == (
        True,
        8.0,
        20.0,
        1,
    )
    details = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}
    assert row_of(receive(said("a", "stop", usage=details), DONE)).engine.cached_tokens == 4
    assert row_of(
        receive(said("a", "stop", usage=USAGE, timings={"predicted_ms": 10**400}), DONE)
    ).ok


# What goes wrong


@pytest.mark.parametrize(
    "half",
    [{"error": "half \ud83d"}, {"choices": [{"finish_reason": "\ud83d"}]}],
    ids=["error", "end"],
)
def test_words_that_are_no_text_can_be_stored(half):
    """SQLite and MessagePack take no half of a surrogate pair."""
    row = row_of(
        receive(
            said("a"),
            f"data: {json.dumps(half)}\n\n".encode(),
            event(choices=[], usage=USAGE),
            DONE,
        )
    )
    msgspec.msgpack.encode(row)


NO_ANSWERS = [b"<html><h1>It works</h1>", b"", b"null", b"[]", b'{"choices": []}', b'{"a":']
NO_OBJECTS = [b"nonsense", b"[1]", b"12", b'"a"', b'{"choices": [', b"\xff\xfe{}"]
NO_OBJECTS += [
    place % (b"[" * 100_000 + b"]" * 100_000)
    for place in (b'{"error": %b}', b'{"unknown": %b}', b'{"usage": {"a": %b}}')
]


@pytest.mark.parametrize(
    ("reads", "how", "kind", "words"),
    [
        ([said("a", "stop")], {}, None, None),
        ([said("a"), DONE], {}, None, None),
        ([said("a"), said("b")], {}, "cut", None),
        ([], {}, "cut", None),
        ([], {"kind": JSON}, "garbage", None),
        ([said("a", "stop")], {"ended_by": GONE}, "cut", "gone"),
        ([said("a", "stop").replace(b"data: ", b"data:")], {}, None, None),
        ([said("a", "stop") + DONE], {"kind": b"Text/Event-Stream; charset=UTF-8"}, None, None),
        (
            [said("a"), event(error={"message": "no memory"}), event(error="again")],
            {},
            "engine_error",
            "no memory",
        ),
        *[
            ([said("a", "stop", error=nothing), DONE], {}, None, None)
            for nothing in (None, "", {}, False)
        ],
        (
            [b'{"error": {"message": "no such model"}}'],
            {"kind": JSON},
            "engine_error",
            "no such model",
        ),
        ([b'{"error":{"message":"no slot"}}'], {"status": 503}, "http_503", "no slot"),
        ([b"bad gateway"], {"status": 502, "kind": b"text/plain"}, "http_502", "bad gateway"),
        ([], {"status": 500}, "http_500", "HTTP 500"),
        ([said("a", "stop", usage=USAGE)], {"status": 400}, "http_400", None),
        ([b'{"error": "model not found"}\n'], {"kind": NDJSON}, "engine_error", "model not found"),
        ([b"<html>\n", END_LINE], {"kind": NDJSON}, "garbage", None),
        ([LINE], {"kind": NDJSON}, "cut", None),
        ([LINE, END_LINE.rstrip()], {"kind": NDJSON}, None, None),
        ([LINE, HALF_LINE], {"kind": NDJSON, "ended_by": GONE}, "cut", "gone"),
        (
            [LINE, HALF_LINE],
            {"kind": NDJSON, "ended_by": WireFailure("protocol", "gone")},
            "protocol",
            "gone",
        ),
        *[([page], {"kind": b"text/html"}, "garbage", None) for page in NO_ANSWERS],
        *[
            ([said("a"), b"data: %b\n\n" % data, said("b", "stop"), DONE], {}, "garbage", None)
            for data in NO_OBJECTS
        ],
    ],
)
def test_how_an_answer_ended_is_told_by_kind_with_the_first_words(reads, how, kind, words):
    """Either `[DONE]` or a finish reason may be missing; a connection lost after the finish had
    its `usage` to come.
    """
    reading = read(*reads, **how)
    assert reading.error_kind == kind
    assert row_of(reading).ok is False or kind is None
    assert words is None or reading.error == words
    assert how.get("status", 200) == 200 or reading.arrivals == []


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": {"0": {}}},
        {"choices": "none"},
        {"choices": [None, 3, "x", []]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": [], "finish_reason": 5}]},
        {"choices": [{"delta": {"content": "", "tool_calls": {}}}]},
        {"choices": [], "usage": [1, 2]},
        {"choices": [], "usage": "12"},
        {"choices": [], "timings": 3},
    ],
    ids=json.dumps,
)
def test_fields_of_another_type_are_neither_tokens_nor_a_fault(odd):
    reading = read(event(**odd), said("a", "stop", usage=USAGE), DONE)
    assert (reading.error_kind, reading.arrivals, reading.usage) == (None, [2.0], USAGE)
    assert row_of(reading).ok


@pytest.mark.parametrize("whole", [False, True])
def test_what_came_before_a_timeout_is_read_but_does_not_count_unless_it_is_complete(whole):
    """A timer and the end can come in one round of the loop,
    before whoever waits has been woken.
    """

    async def run():
        reading = reader()
        reading.on_body(said("a", "stop", usage=USAGE) + DONE, 1.0)
        if whole:
            reading.on_end(1.0)
        reading.give_up("timeout", "too slow", 2.0)
        reading.digest()
        return reading

    row = row_of(asyncio.run(run()))
    assert (row.error_kind, row.first_token_s, row.finish_reason) == (
        None if whole else "timeout",
        1.0,
        "stop",
    )


@pytest.mark.parametrize(("size", "reads"), [(65_536, 200), (1, 1000)], ids=["endless", "small"])
def test_reading_is_put_off_to_the_end_but_for_an_endless_stream(size, reads):
    """While tokens stream, a read costs one append.

    Of much, only times and text are kept, not its bytes.
    """
    data = said("x" * size)

    async def run():
        reading = reader()
        max_buffered = 0
        for at in range(reads):
            reading.on_body(data, float(at))
            max_buffered = max(max_buffered, reading.reads)
        assert (
            max_buffered == reads
            if size == 1
            else max_buffered <= READ_BEFORE_THE_END_BYTES // len(data) + 1
        )
        assert (reading.arrivals == []) == (size == 1)
        reading.give_up("timeout", "enough", float(reads))
        reading.digest()
        return reading

    reading = asyncio.run(run())
    assert (reading.arrivals, reading.reads, reading.error_kind) == (
        [float(at) for at in range(reads)],
        0,
        "timeout",
    )


# Answers that are no stream


def test_a_whole_answer_arrives_at_its_end():
    body = json.dumps(
        {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": USAGE}
    ).encode()
    row = row_of(receive(body[:20], body[20:], kind=b"application/json"))
    assert (row.ok, row.first_token_s, row.last_token_s, row.output_tokens) == (
        True,
        99.0,
        99.0,
        3,
    )
    assert (row.answer, row.finish_reason) == ("hi", "stop")


# Ollama's own


def lines(*objects):
    return b"".join(json.dumps(document).encode() + b"\n" for document in objects)


OLLAMA_END = {
    "done": True,
    "done_reason": "length",
    "eval_count": 3,
    "prompt_eval_count": 7,
    "eval_duration": 20_000_000,
    "prompt_eval_duration": 5_000_000,
}


def test_ollamas_lines_and_durations_are_read():
    first = lines({"message": {"content": "日"}, "done": False})
    second = lines({"message": {"content": "b"}})
    row = row_of(
        receive(first[:25], first[25:] + second[:5], second[5:], lines(OLLAMA_END), kind=NDJSON)
    )
    assert (row.ok, row.arrivals_s, row.answer) == (True, (2.0, 3.0), "日b")
    assert (row.prompt_tokens, row.output_tokens, row.finish_reason) == (7, 3, "length")
    assert (row.engine.prompt_ms, row.engine.decode_ms, row.engine.decode_tok_s) == (
        5.0,
        20.0,
        150.0,
    )
    odd = row_of(
        receive(
            lines({"message": {"content": ["a"]}}, {**OLLAMA_END, "done_reason": 5}), kind=NDJSON
        )
    )
    assert odd.finish_reason is None or isinstance(odd.finish_reason, str)


# What a server must not do to who reads it

MUCH = b"x" * (1 << 20)


@pytest.mark.parametrize("kind", [SSE, NDJSON])
def test_an_event_that_never_ends_is_given_up_before_it_fills_the_memory(kind):
    """Without a line end nothing could be read, and 24 MiB were kept until the time was up."""
    reading = receive(b"data: ", *[MUCH] * 3, kind=kind)
    assert not reading.is_given_up
    reading = receive_until_given_up(MUCH, kind, limit=24)
    assert reading.is_given_up
    reading.digest()
    assert (reading.error_kind, reading.reads) == ("garbage", 0)
    assert "longer than 16 MiB" in reading.error


def receive_until_given_up(data, kind, *, limit):
    """Hand the same bytes to a reader until it gives up, at most so many times."""

    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_head(ResponseHead(200, [(b"content-type", kind)], None), 0.0)
        for at in range(limit):
            if reading.done.done():
                break
            reading.on_body(data, float(at))
        return reading

    return asyncio.run(run())


@pytest.mark.parametrize("kind", [SSE, NDJSON])
def test_a_long_event_in_small_pieces_costs_as_much_as_its_bytes(kind):
    """Each piece was joined to all before it: 4 MiB in reads of 64 bytes stood still for a
    minute.
    """

    def cost_s(reads):
        reading = receive(*[b"x" * 64] * reads, kind=kind)
        began = time.process_time()
        reading.digest()
        return time.process_time() - began

    small = min(cost_s(4_000) for _ in range(3))
    large = min(cost_s(32_000) for _ in range(2))
    assert large < 24 * small + 0.05


def test_the_end_of_a_stream_may_have_one_carriage_return():
    """The same bytes were understood only where they came together with others."""
    reading = read(said("a"), b"data: [DONE]\r\n\n")
    assert (reading.finished, reading.error_kind) == (True, None)


def test_a_whole_line_that_is_no_object_is_garbage_and_half_a_line_is_a_cut():
    assert read(b"1\n1", kind=NDJSON).error_kind == "garbage"
    assert read(END_LINE[:-2], kind=NDJSON).error_kind == "cut"
