"""One answer, byte by byte: every odd form of stream, and which time belongs to which token."""

import asyncio
import json
import random
import time
from bisect import bisect_left
from itertools import accumulate, pairwise

import pytest

from skep.bench.endpoint import Endpoint
from skep.bench.load_process import LoadUpdate, framed
from skep.bench.request import BenchTask, Sender
from skep.wire.client import Pool, WireFailure, chunked_body_size
from skep.wire.heads import ResponseHead, parse_url
from skep.wire.stream_reader import READ_BEFORE_THE_END_BYTES, StreamReader

SSE = b"text/event-stream"
NDJSON = b"application/x-ndjson"
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


def event(**fields):
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()


def said(content, finish=None, **fields):
    return event(choices=[{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **fields)


def receive(*reads, kind=SSE, status=200, ended_by=None):
    """Each of `reads` is one network read, at second 1, 2, ...; the head came at second 0."""

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
    """The row that a sender makes of it."""

    async def run():
        origin, _ = parse_url("http://127.0.0.1:9")
        sender = Sender(Endpoint(origin, "/v1", "m"), Pool(origin), 0.0, timeout_s=1.0, keep_text=True)
        return sender._row(BenchTask(1, 0, 0, "fix", [{"role": "user", "content": "?"}], 8), reading, 0.0, 99.0)

    return asyncio.run(run())


# Where the first token is


def test_the_role_event_is_no_token():
    """Servers send it at once, long before the first token."""
    role = event(choices=[{"delta": {"role": "assistant", "content": ""}}])
    null = event(choices=[{"delta": {"role": "assistant", "content": None}}])
    reading = read(role, null, said("a"), said("b", "stop") + DONE)
    assert (reading.arrivals, "".join(reading.text)) == ([3.0, 4.0], "ab")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_the_first_reasoning_token_is_the_first_token(name):
    thought = event(choices=[{"delta": {name: "hm"}}])
    reading = read(thought, said("a", "stop") + DONE)
    assert reading.arrivals == [1.0, 2.0]
    assert (reading.reasoning, reading.text) == (["hm"], ["a"])


def test_a_tool_call_is_a_token_and_an_empty_list_of_them_is_none():
    call = event(choices=[{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}])
    none = event(choices=[{"delta": {"content": None, "tool_calls": []}}])
    null = event(choices=[{"delta": {"tool_calls": None}}])
    reading = read(none, null, call, event(choices=[{"delta": {}, "finish_reason": "tool_calls"}]) + DONE)
    assert (reading.arrivals, reading.finish_reason, reading.error_kind) == ([3.0], "tool_calls", None)


def test_completions_without_chat_have_their_text_read():
    reading = read(event(choices=[{"text": "a"}]), event(choices=[{"text": "", "finish_reason": "length"}]) + DONE)
    assert (reading.arrivals, reading.text, reading.finish_reason) == ([1.0], ["a"], "length")


# Which time belongs to which token


def test_events_of_one_read_have_its_time():
    reading = read(said("a") + said("b") + said("c"), said("d") + said("e", "stop") + DONE)
    assert reading.arrivals == [1.0, 1.0, 1.0, 2.0, 2.0]


def test_an_event_that_spans_two_reads_came_with_the_second():
    data = said("ab")
    for cut in range(1, len(data)):
        reading = read(data[:cut], data[cut:], said("", "stop") + DONE)
        assert reading.arrivals == ([1.0] if cut == len(data) else [2.0]), cut


def test_chunks_with_their_framing_are_the_same_as_their_content():
    """The wire hands on whole chunks unread; a read may hold several."""

    def chunk(data):
        return b"%x\r\n%b\r\n" % (len(data), data)

    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_head(ResponseHead(200, [(b"content-type", SSE)], None), 0.0)
        assert reading.takes_chunks
        first, second = said("é")[:-14], said("é")[-14:]
        reading.on_chunks(chunk(first), len(first), 1.0)
        reading.on_chunks(chunk(second) + chunk(said("b")), len(second) + len(said("b")), 2.0)
        reading.on_body(said("c", "stop") + DONE, 3.0)
        reading.on_end(4.0)
        reading.digest()
        return reading

    reading = asyncio.run(run())
    assert (reading.arrivals, "".join(reading.text)) == ([2.0, 2.0, 3.0], "ébc")


def test_a_character_split_between_any_two_reads_stays_whole():
    data = said("日本 café 😀") + said("", "stop") + DONE
    for cut in range(1, len(data)):
        assert "".join(read(data[:cut], data[cut:]).text) == "日本 café 😀"


def test_one_byte_a_read_is_the_same_text():
    data = said("naïve") + said("—", "stop", usage=USAGE) + DONE
    reading = read(*(bytes([byte]) for byte in data))
    assert ("".join(reading.text), len(reading.arrivals), reading.usage) == ("naïve—", 2, USAGE)


def test_the_two_halves_of_a_surrogate_pair_may_come_in_two_events():
    """As some engines write an emoji whose bytes are two tokens."""
    half = b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n'
    other = b'data: {"choices":[{"delta":{"content":"\\ude00"},"finish_reason":"stop"}]}\n\n'
    reading = read(half, other + DONE)
    assert (reading.arrivals, reading.error_kind) == ([1.0, 2.0], None)
    joined = "".join(reading.text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    assert joined == "😀"


# However it is cut

HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def compact(choices, **fields):
    document = {**HEAD, "choices": choices, **fields}
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def some_event(rng):
    """Bytes, the text in them, and how many arrivals they are."""
    word = rng.choice(
        [" the", "a", " x-1", ' "quoted"', "é", "日本", " delta", " \\n", '"}', " {}", "\t", "[DONE]", ","]
    )
    plain = {"index": 0, "delta": {"content": word}, "finish_reason": None}
    other = {"index": 1, "delta": {"content": word}, "finish_reason": None}
    usage = {"prompt_tokens": 1, "completion_tokens": rng.randrange(9)}
    return rng.choice(
        [
            *[(compact([plain]), word, 1)] * 6,
            (compact([plain], usage=None), word, 1),
            (compact([plain], usage=usage), word, 1),
            (compact([plain], timings={"predicted_n": 1}), word, 1),
            (compact([plain, other]), word * 2, 2),
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
    """Reads that end mostly where events do, as they do on a network."""
    places = {end for end in ends if rng.random() < 0.8} | {
        rng.randrange(1, len(data)) for _ in range(rng.randrange(4))
    }
    edges = [0, *sorted(places - {len(data)}), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)], edges[1:]


@pytest.mark.parametrize("framed", [False, True], ids=["body", "chunks"])
def test_however_the_bytes_are_cut_the_answer_is_the_same(framed):
    """Every event belongs to the read that brought its end; its text, its figures and its finish are as sent."""
    seed = random.SystemRandom().randrange(10**9)
    print("seed", seed)
    for rng in map(random.Random, range(seed, seed + 300)):
        events = [some_event(rng) for _ in range(rng.randrange(1, 12))]
        events.append((said("", "length", usage=USAGE) + DONE, "", 0))
        ends = list(accumulate(len(data) for data, _, _ in events))
        reads, edges = cut(b"".join(data for data, _, _ in events), ends, rng)
        reading = read_framed(reads, rng) if framed else read(*reads)
        expected = [
            1.0 + bisect_left(edges, end) for end, (_, _, count) in zip(ends, events, strict=True) for _ in range(count)
        ]
        assert reading.arrivals == expected, rng
        assert "".join(reading.text) == "".join(text for _, text, _ in events)
        assert (reading.usage, reading.finish_reason, reading.error_kind) == (USAGE, "length", None)


def read_framed(reads, rng):
    """The same reads as whole chunks, one or two of them a read."""

    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_head(ResponseHead(200, [(b"content-type", SSE)], None), 0.0)
        for at, data in enumerate(reads, start=1):
            middle = rng.randrange(1, len(data)) if len(data) > 1 and rng.random() < 0.3 else 0
            parts = [part for part in (data[:middle], data[middle:]) if part]
            raw = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
            assert chunked_body_size(raw) == len(data)
            reading.on_chunks(raw, len(data), float(at))
        reading.on_end(99.0)
        reading.digest()
        return reading

    return asyncio.run(run())


# Legal forms of the stream


def test_crlf_comments_and_other_fields_are_read_over():
    lines = b": keep-alive\r\n\r\nevent: message\r\nid: 7\r\nretry: 10\r\n"
    data = lines + said("a").replace(b"\n", b"\r\n") + b": ping\r\n\r\n" + said("b", "stop").replace(b"\n", b"\r\n")
    reading = read(b": first\r\n\r\n", data, DONE.replace(b"\n", b"\r\n"))
    assert (reading.arrivals, "".join(reading.text), reading.error_kind) == ([2.0, 2.0], "ab", None)


def test_one_object_over_several_data_lines_is_one_event():
    text = json.dumps({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}, indent=1)
    data = "".join(f"data: {line}\n" for line in text.split("\n")).encode() + b"\n"
    reading = read(data, DONE)
    assert (reading.arrivals, reading.finish_reason) == ([1.0], "stop")


def test_data_without_the_space_is_data():
    assert read(said("a", "stop").replace(b"data: ", b"data:")).text == ["a"]


def test_a_content_type_in_capitals_is_a_stream_all_the_same():
    assert read(said("a", "stop") + DONE, kind=b"Text/Event-Stream; charset=UTF-8").error_kind is None


# Tokens


def test_usage_in_every_event_means_the_last_one():
    reads = [said(text, usage={**USAGE, "completion_tokens": n}) for n, text in enumerate("abc", start=1)]
    reading = read(*reads, said("", "stop", usage=None), DONE)
    assert reading.usage["completion_tokens"] == 3


def test_without_usage_a_whole_stream_is_no_measurement():
    """Events are not tokens, and none are made up."""
    row = row_of(receive(said("a"), said("b", "stop"), DONE))
    assert (row.ok, row.error_kind, row.output_tokens) == (False, "no_usage", None)


@pytest.mark.parametrize("count", ["NaN", "true", '"12"', "-3", "1.5", "null", "[]", "{}"])
def test_a_count_that_is_no_count_is_unknown(count):
    data = b'data: {"choices":[],"usage":{"completion_tokens":%b,"prompt_tokens":%b}}\n\n'
    row = row_of(receive(said("a", "stop"), data % (count.encode(), count.encode()), DONE))
    assert (row.output_tokens, row.prompt_tokens, row.error_kind) == (None, None, "no_usage")


def test_a_count_that_no_store_can_hold_is_unknown():
    row = row_of(receive(said("a", "stop", usage={"completion_tokens": 10**30}), DONE))
    assert row.output_tokens is None


def test_a_time_that_is_no_float_is_unknown():
    row = row_of(receive(said("a", "stop", usage=USAGE, timings={"predicted_ms": 10**400}), DONE))
    assert row.ok


def test_llama_cpps_timings_and_cached_tokens_are_kept():
    timings = {"prompt_n": 4, "prompt_ms": 8.0, "predicted_n": 3, "predicted_ms": 20.0, "cache_n": 1}
    row = row_of(receive(said("a"), said("b", "stop"), event(choices=[], usage=USAGE, timings=timings), DONE))
    assert (row.ok, row.engine.prompt_ms, row.engine.decode_ms, row.engine.cached_tokens) == (True, 8.0, 20.0, 1)
    details = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}
    assert row_of(receive(said("a", "stop", usage=details), DONE)).engine.cached_tokens == 4


# What goes wrong


def test_an_error_in_mid_stream_is_the_engines_and_its_first_words_stay():
    reading = read(said("a"), event(error={"message": "out of memory"}), event(error="again"), DONE)
    assert (reading.error_kind, reading.error, reading.arrivals) == ("engine_error", "out of memory", [1.0])


@pytest.mark.parametrize(
    "half", [{"error": "half \ud83d"}, {"choices": [{"finish_reason": "\ud83d"}]}], ids=["error", "end"]
)
def test_words_that_are_no_text_can_be_handed_on_and_stored(half):
    """A load process writes its rows as MessagePack, which takes no half of a surrogate pair."""
    row = row_of(receive(said("a"), f"data: {json.dumps(half)}\n\n".encode(), event(choices=[], usage=USAGE), DONE))
    framed(LoadUpdate([row]))


@pytest.mark.parametrize("nothing", [None, "", {}, False])
def test_an_empty_error_is_none(nothing):
    assert read(said("a", "stop", error=nothing), DONE).error_kind is None


def test_done_may_be_missing_where_there_is_a_finish_reason_and_the_other_way_round():
    assert read(said("a", "stop")).error_kind is None
    assert read(said("a"), DONE).error_kind is None
    assert read(said("a"), said("b")).error_kind == "cut"


def test_a_connection_lost_after_the_finish_is_cut_all_the_same():
    """`usage` was still to come."""
    reading = read(said("a", "stop"), ended_by=WireFailure("closed", "gone"))
    assert (reading.error_kind, reading.error) == ("cut", "gone")


def test_a_connection_lost_before_the_head_is_closed_not_cut():
    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_failure(WireFailure("closed", "gone"), 1.0)
        reading.digest()
        return reading

    assert asyncio.run(run()).error_kind == "closed"


@pytest.mark.parametrize("payload", [b"nonsense", b"[1]", b"12", b'"a"', b'{"choices": [', b"\xff\xfe{}"])
def test_an_event_that_is_no_object_is_garbage(payload):
    reading = read(said("a"), b"data: " + payload + b"\n\n", said("b", "stop"), DONE)
    assert reading.error_kind == "garbage"
    assert not row_of(reading).ok


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


def test_content_in_parts_is_a_token_with_an_unknown_text():
    reading = read(event(choices=[{"delta": {"content": [{"type": "text", "text": "a"}]}}]), said("", "stop"), DONE)
    assert (reading.arrivals, reading.text) == ([1.0], [])


@pytest.mark.parametrize("place", ['{"error": %s}', '{"unknown": %s}', '{"usage": {"a": %s}}'])
def test_brackets_without_end_are_garbage(place):
    deep = (place % ("[" * 100_000 + "]" * 100_000)).encode()
    assert read(b"data: " + deep + b"\n\n", DONE).error_kind == "garbage"


def test_an_empty_body_is_cut():
    assert read().error_kind == "cut"
    assert read(kind=b"application/json").error_kind == "garbage"


def test_what_came_before_a_timeout_is_read_but_does_not_count():
    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_head(ResponseHead(200, [(b"content-type", SSE)], None), 0.0)
        reading.on_body(said("a", "stop", usage=USAGE), 1.0)
        reading.give_up("timeout", "too slow", 2.0)
        reading.digest()
        return reading

    row = row_of(asyncio.run(run()))
    assert (row.error_kind, row.first_token_s, row.finish_reason) == ("timeout", 1.0, "stop")


def test_a_timer_that_fires_when_the_answer_is_complete_changes_nothing():
    """Both can come in one round of the loop, before whoever waits has been woken."""

    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_head(ResponseHead(200, [(b"content-type", SSE)], None), 0.0)
        reading.on_body(said("a", "stop", usage=USAGE) + DONE, 1.0)
        reading.on_end(1.0)
        reading.give_up("timeout", "too slow", 1.1)
        reading.digest()
        return reading

    assert asyncio.run(run()).error_kind is None


def test_an_endless_stream_is_read_before_its_end():
    """Its bytes are not kept: only times and text are."""
    big = said("x" * 65_536)

    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_head(ResponseHead(200, [(b"content-type", SSE)], None), 0.0)
        most = 0
        for at in range(200):
            reading.on_body(big, float(at))
            most = max(most, reading.reads)
        assert most <= READ_BEFORE_THE_END_BYTES // len(big) + 1
        reading.give_up("timeout", "enough", 200.0)
        reading.digest()
        return reading

    reading = asyncio.run(run())
    assert (reading.arrivals, reading.error_kind) == ([float(at) for at in range(200)], "timeout")


# Answers that are no stream


def test_a_whole_answer_arrives_at_its_end():
    body = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": USAGE}).encode()
    row = row_of(receive(body[:20], body[20:], kind=b"application/json"))
    assert (row.ok, row.first_token_s, row.last_token_s, row.output_tokens) == (True, 99.0, 99.0, 3)
    assert (row.answer, row.finish_reason) == ("hi", "stop")


@pytest.mark.parametrize("body", [b"<html><h1>It works</h1>", b"", b"null", b"[]", b'{"choices": []}', b'{"a":'])
def test_a_page_instead_of_an_answer_is_garbage(body):
    reading = read(body, kind=b"text/html")
    assert (reading.error_kind, reading.arrivals) == ("garbage", [])


def test_an_error_with_status_200_is_told_in_its_own_words():
    reading = read(b'{"error": {"message": "no such model"}}', kind=b"application/json")
    assert (reading.error_kind, reading.error) == ("engine_error", "no such model")


def test_an_error_status_is_told_with_its_words():
    assert read(b'{"error":{"message":"no slot"}}', status=503).error == "no slot"
    plain = read(b"bad gateway", status=502, kind=b"text/plain")
    assert (plain.error_kind, plain.error) == ("http_502", "bad gateway")
    assert read(status=500).error == "HTTP 500"


def test_an_error_status_with_a_stream_in_it_is_no_answer():
    reading = read(said("a", "stop", usage=USAGE), status=400)
    assert (reading.error_kind, reading.arrivals) == ("http_400", [])


# Ollama's own


def lines(*objects):
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


OLLAMA_END = {
    "done": True,
    "done_reason": "length",
    "eval_count": 3,
    "prompt_eval_count": 7,
    "eval_duration": 20_000_000,
    "prompt_eval_duration": 5_000_000,
}


def test_ollamas_lines_and_durations_are_read():
    first, second = lines({"message": {"content": "日"}, "done": False}), lines({"message": {"content": "b"}})
    row = row_of(receive(first[:25], first[25:] + second[:5], second[5:], lines(OLLAMA_END), kind=NDJSON))
    assert (row.ok, row.arrivals_s, row.answer) == (True, (2.0, 3.0), "日b")
    assert (row.prompt_tokens, row.output_tokens, row.finish_reason) == (7, 3, "length")
    assert (row.engine.prompt_ms, row.engine.decode_ms, row.engine.decode_tok_s) == (5.0, 20.0, 150.0)


def test_ollamas_thinking_is_a_token_and_its_empty_line_is_none():
    reading = read(
        lines({"message": {"content": ""}}), lines({"message": {"thinking": "hm"}}), lines(OLLAMA_END), kind=NDJSON
    )
    assert reading.arrivals == [2.0]


def test_ollamas_errors_and_broken_lines_are_counted_by_kind():
    assert read(lines({"error": "model not found"}), kind=NDJSON).error == "model not found"
    assert read(b"<html>\n", lines(OLLAMA_END), kind=NDJSON).error_kind == "garbage"
    assert read(lines({"message": {"content": "a"}}), kind=NDJSON).error_kind == "cut"


def test_ollamas_last_line_needs_no_newline():
    assert read(lines({"message": {"content": "a"}}), lines(OLLAMA_END).rstrip(), kind=NDJSON).error_kind is None


@pytest.mark.parametrize("kind", ["closed", "protocol"])
def test_ollamas_stream_that_breaks_within_a_line_is_cut_and_not_garbage(kind):
    whole, half = lines({"message": {"content": "a"}}), b'{"message": {"cont'
    assert read(whole, half, kind=NDJSON, ended_by=WireFailure(kind, "gone")).error == "gone"


def test_ollamas_content_of_another_type_is_no_traceback():
    row_of(receive(lines({"message": {"content": ["a"]}}, OLLAMA_END), kind=NDJSON))


def test_ollamas_reason_of_another_type_is_unknown():
    row = row_of(receive(lines({"message": {"content": "a"}}, {**OLLAMA_END, "done_reason": 5}), kind=NDJSON))
    assert row.finish_reason is None or isinstance(row.finish_reason, str)


def test_reading_a_thousand_reads_is_put_off_to_the_end():
    """While tokens stream, a read costs one append."""

    async def run():
        reading = StreamReader(asyncio.get_running_loop().create_future())
        reading.on_head(ResponseHead(200, [(b"content-type", SSE)], None), time.monotonic())
        for _ in range(1000):
            reading.on_body(said("a"), time.monotonic())
        assert (reading.reads, reading.arrivals) == (1000, [])
        reading.on_body(said("", "stop", usage=USAGE) + DONE, time.monotonic())
        reading.on_end(time.monotonic())
        reading.digest()
        return reading

    reading = asyncio.run(run())
    assert (len(reading.arrivals), reading.reads) == (1000, 0)
    assert reading.arrivals == sorted(reading.arrivals)
