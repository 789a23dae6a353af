"""The OpenAI client: streamed chat requests to one server, for whoever measures, asks or watches
it.

An answer is received by a `StreamReader`: it keeps bytes with the time of their arrival, and reads
them when the answer has ended. What costs time is put off: while tokens stream, a read is one time
and one piece of memory, so that a client with a thousand streams still notes each arrival when it
happens. Times belong to network reads, never to parsing. Tokens come from `usage` or the engine,
never from counting events. Faults are told in `error_kind`, not raised. Knows nothing of tasks,
rows and retries."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from random import Random
from typing import Any

import msgspec

from skep.wire.client import Pool, WireFailure
from skep.wire.heads import ResponseHead, gateway_fields, strip_chunk_headers

CHAT = "/chat/completions"


class LineSplitter:
    """Takes bytes as they arrive, cut anywhere, and returns the lines that became complete,
    without their `\\n`.
    """

    __slots__ = ("_parts", "held_bytes")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the line under way; joined once, when it ends
        self.held_bytes = 0

    @property
    def rest(self) -> bytes:
        """What has come of a line that is not complete."""
        return b"".join(self._parts)

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = chunk.split(b"\n")
        last = lines.pop()
        if lines:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self.held_bytes = 0
        if last:
            self._parts.append(last)
            self.held_bytes += len(last)
        return lines

    def forget(self) -> None:
        self._parts.clear()
        self.held_bytes = 0


class SseParser:
    """Takes bytes as they arrive, cut anywhere, and returns the `data` payloads of the events that
    became complete.
    """

    __slots__ = ("_data", "_data_bytes", "_lines")

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._data: list[bytes] = []
        self._data_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are kept of an event that is not complete."""
        return self._lines.held_bytes + self._data_bytes

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has arrived of an event that is not complete."""
        return not self._lines.held_bytes and not self._data

    def feed(self, chunk: bytes) -> list[bytes]:
        events = []
        for raw in self._lines.feed(chunk):
            line = raw[:-1] if raw.endswith(b"\r") else raw
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
                    self._data_bytes = 0
            elif line.startswith(b"data:"):
                payload = line[6:] if line[5:6] == b" " else line[5:]
                self._data.append(payload)
                self._data_bytes += len(payload) + 1
        return events

    def forget(self) -> None:
        self._lines.forget()
        self._data = []
        self._data_bytes = 0


MAX_ERROR_TEXT = 300
LARGEST_NUMBER = 2**53  # of a count or a time; what is beyond is nonsense
LONGEST_WAIT_S = 3600.0  # that a Retry-After is believed
NANOSECONDS_IN_MS = 1e6
MAX_WHOLE_BYTES = 16 << 20  # of an answer that is no stream
READ_BEFORE_THE_END_BYTES = 4 << 20  # an endless stream must not fill the memory
MAX_EVENT_BYTES = 16 << 20  # nor an endless event of it


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw | None = None


class _StreamChoice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _StreamEvent(msgspec.Struct):
    """The form of nearly every event. What does not fit is read by `_odd_event`."""

    choices: list[_StreamChoice] | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None  # llama.cpp
    metrics: dict[str, Any] | None = None  # vLLM with --enable-per-request-metrics
    error: Any = None


_decode = msgspec.json.Decoder(_StreamEvent).decode


def _body(read: bytes | tuple[bytes]) -> bytes:
    """Return what a network read carries of the body; whole chunks are mostly one."""
    if isinstance(read, tuple):
        return read[0]
    if read.count(b"\r\n") == 2:  # a chunk has one behind its size and one at its end
        return read[read.find(b"\r\n") + 2 : -2]
    return strip_chunk_headers(read)


class StreamReader:
    """Receives one answer. `done` is set to the time of its end, whatever that was."""

    takes_chunks = False
    first_byte: float | None = None
    status: int | None = None
    head: ResponseHead | None = None
    finish_reason: str | None = None
    error_kind: str | None = None
    error: str | None = None
    finished = False  # [DONE] or a finish_reason was seen
    _stream = ""  # "sse" | "ndjson": Ollama's own
    _bytes = 0
    started_at = 0.0  # of `time.monotonic()`, as all times here
    ended_at = 0.0
    _broken: tuple[str, str] | None = None

    def __init__(self, done: asyncio.Future[float]) -> None:
        self.done = done
        self.arrivals: list[float] = []  # of each event with content
        self.usage: dict[str, Any] = {}
        self.timings: dict[str, Any] = {}
        self.text: list[str] = []
        self.reasoning: list[str] = []
        # Arrivals and bytes, side by side: whole chunks as they came, or a part of the body in a
        # tuple.
        self._times: list[float] = []
        self._reads: list[bytes | tuple[bytes]] = []
        self._parser = SseParser()
        self._lines = LineSplitter()  # of Ollama's own streams

    @property
    def is_given_up(self) -> bool:
        """Return whether the answer ended before the server had ended it."""
        return self._broken is not None

    @property
    def reads(self) -> int:
        """Return how many network reads are not parsed yet: about one a token while streaming."""
        return len(self._times)

    # The wire's side

    def on_head(self, head: ResponseHead, at: float) -> None:
        self.first_byte = at
        self.head = head
        self.status = head.status
        kind = (head.get(b"content-type") or b"").lower()
        if head.status == 200 and kind.startswith(b"text/event-stream"):
            self._stream = "sse"
        elif head.status == 200 and kind.startswith(b"application/x-ndjson"):
            self._stream = "ndjson"
        self.takes_chunks = bool(self._stream)

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        self._times.append(at)
        self._reads.append(raw)
        self._bytes += carried
        if self._bytes > READ_BEFORE_THE_END_BYTES:
            self._digest()

    def on_body(self, data: bytes, at: float) -> None:
        self._bytes += len(data)
        if self._stream or self._bytes < MAX_WHOLE_BYTES:
            self._times.append(at)
            self._reads.append((data,))
        if self._stream and self._bytes > READ_BEFORE_THE_END_BYTES:
            self._digest()

    def on_end(self, at: float) -> None:
        self.ended_at = at
        if not self.done.done():
            self.done.set_result(at)

    def on_failure(self, failure: WireFailure, at: float) -> None:
        if self.first_byte is not None and failure.kind == "closed":
            kind = "cut"
        else:
            kind = failure.kind
        self.give_up(kind, str(failure), at)

    def give_up(self, kind: str, message: str, at: float) -> None:
        """End the answer with an error. What has arrived until now is read all the same."""
        if not self.done.done():
            self._broken = (kind, message)
            self.on_end(at)

    def digest(self) -> None:
        """Parse the reads that were kept. Called once, after the end."""
        if self._stream:
            self._digest()
            rest = self._lines.rest
            if rest.strip() and self._broken is None:
                self._line(rest, self.ended_at, fault="cut")
            if not self.finished and self._broken is None:
                self._fail("cut", "the stream ended without a finish_reason and without [DONE]")
        elif self._broken is None:
            self._whole(self.ended_at)
        if self._broken is not None:
            self._fail(*self._broken)

    # What was read

    @property
    def prompt_tokens(self) -> int | None:
        return count_of(self.usage.get("prompt_tokens"))

    @property
    def output_tokens(self) -> int | None:
        return count_of(self.usage.get("completion_tokens"))

    @property
    def replica(self) -> str | None:
        """Return which replica answered, as skep's gateway says."""
        return self._gateway_fields.get("replica")

    @property
    def queued_ms(self) -> float | None:
        return _number(self._gateway_fields.get("queue-ms"))

    @property
    def retry_after_s(self) -> float | None:
        """Return the Retry-After in seconds; None where there is none, or a date."""
        if not self.head:
            return None
        seconds = _number(self.head.get(b"retry-after"))
        if seconds is None or seconds < 0:
            return None
        return min(seconds, LONGEST_WAIT_S)

    def engine_figures(self) -> dict[str, Any]:
        """Return the engine's own figures: llama.cpp's `timings`, vLLM's `metrics`, Ollama's
        durations.
        """
        timings = self.timings
        if "eval_duration" in timings:
            count = count_of(timings.get("eval_count"))
            nanoseconds = float_of(timings.get("eval_duration"))
            prompt = float_of(timings.get("prompt_eval_duration"))
            return {
                "prompt_tokens": count_of(timings.get("prompt_eval_count")),
                "prompt_ms": None if prompt is None else prompt / NANOSECONDS_IN_MS,
                "output_tokens": count,
                "decode_ms": None if nanoseconds is None else nanoseconds / NANOSECONDS_IN_MS,
                "decode_tok_s": count * 1e9 / nanoseconds if count and nanoseconds else None,
            }
        cached = timings.get(
            "cache_n", _inner(self.usage, "prompt_tokens_details").get("cached_tokens")
        )
        if "generation_time_ms" in timings:
            gap = float_of(timings.get("mean_itl_ms"))
            return {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": count_of(cached),
                "prompt_ms": float_of(timings.get("time_to_first_token_ms")),
                "output_tokens": self.output_tokens,
                "decode_ms": float_of(timings.get("generation_time_ms")),
                "decode_tok_s": 1000 / gap if gap else None,
                "queue_ms": float_of(timings.get("queue_time_ms")),
            }
        return {
            "prompt_tokens": count_of(timings.get("prompt_n")),
            "cached_tokens": count_of(cached),
            "prompt_ms": float_of(timings.get("prompt_ms")),
            "output_tokens": count_of(timings.get("predicted_n")),
            "decode_ms": float_of(timings.get("predicted_ms")),
            "decode_tok_s": float_of(timings.get("predicted_per_second")),
        }

    # Inside

    @property
    def _gateway_fields(self) -> dict[str, str]:
        if self.head:
            return gateway_fields(self.head.get(b"x-skep"))
        return {}

    def _digest(self) -> None:
        times = self._times
        reads = self._reads
        self._times = []
        self._reads = []
        self._bytes = 0
        if self._stream == "ndjson":
            self._digest_lines(times, reads)
            return
        parser = self._parser
        for at, read in zip(times, reads, strict=True):
            for payload in self._payloads(_body(read)):
                if payload == b"[DONE]":
                    self.finished = True
                else:
                    self._event(payload, at)
            if parser.held_bytes > MAX_EVENT_BYTES:
                parser.forget()
                self._give_up_event(at)

    def _payloads(self, body: bytes) -> Sequence[bytes]:
        """Return the payloads of the events that a read completes.

        Nearly every read is one whole event on one line: the parser need not see it."""
        alone = body[:6] == b"data: " and body[-2:] == b"\n\n" and body.count(b"\n") == 2
        if alone and self._parser.is_empty and body[-3:-2] != b"\r":
            return (body[6:-2],)
        return self._parser.feed(body)

    def _digest_lines(self, times: list[float], reads: list[bytes | tuple[bytes]]) -> None:
        for at, read in zip(times, reads, strict=True):
            for line in filter(None, self._lines.feed(_body(read))):
                self._line(line, at)
            if self._lines.held_bytes > MAX_EVENT_BYTES:
                self._lines.forget()
                self._give_up_event(at)

    def _give_up_event(self, at: float) -> None:
        message = f"an event of the stream is longer than {MAX_EVENT_BYTES >> 20} MiB"
        self._fail("garbage", message)
        self.give_up("garbage", message, at)

    def _event(self, payload: bytes, at: float) -> None:
        try:
            event = _decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._odd_event(payload, at)
            return
        if event.error:
            self._fail("engine_error", message_of({"error": event.error}))
            return
        if event.usage:
            self.usage = event.usage
        if event.timings or event.metrics:
            self.timings = event.timings or event.metrics or {}
        for choice in event.choices or ():
            delta = choice.delta
            if delta is not None:
                if delta.content:
                    self.arrivals.append(at)
                    self.text.append(delta.content)
                    if delta.tool_calls:
                        self.take_calls(bytes(delta.tool_calls))
                else:
                    self._take_thought(delta, at)
            elif choice.text:
                self.arrivals.append(at)
                self.text.append(choice.text)
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
                self.finished = True

    def _take_thought(self, delta: _Delta, at: float) -> None:
        """Take a delta without text: of the reasoning, of a tool call, or of neither."""
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            self.arrivals.append(at)
            self.reasoning.append(thought)
        elif delta.tool_calls and bytes(delta.tool_calls) not in (b"null", b"[]"):
            self.arrivals.append(at)
        if delta.tool_calls:
            self.take_calls(bytes(delta.tool_calls))

    def take_calls(self, calls: bytes | list[Any]) -> None:
        """Take a part of an answer's tool calls, as JSON or parsed. They are not kept here."""

    def _odd_event(self, payload: bytes, at: float) -> None:
        """Read an event of another form than `_StreamEvent`, with half a surrogate pair, or that
        is no JSON at all.
        """
        event = self._object(payload, "an event")
        for choice in _choices(event):
            self._take(_inner(choice, "delta"), choice.get("text"), at)
            if isinstance(choice.get("finish_reason"), str):
                self.finish_reason = choice["finish_reason"]
                self.finished = True

    def _line(self, line: bytes, at: float, *, fault: str = "garbage") -> None:
        """Read a line of Ollama's own API: a JSON object, in the last line with durations."""
        document = self._object(line, "a line", fault)
        self._take(_inner(document, "message"), document.get("response"), at)
        if document.get("done"):
            self.finished = True
            reason = document.get("done_reason") or "stop"
            self.finish_reason = reason if isinstance(reason, str) else None
            counts = {"prompt_tokens": "prompt_eval_count", "completion_tokens": "eval_count"}
            self.usage = {name: document[key] for name, key in counts.items() if key in document}
            self.timings = {key: document[key] for key in OLLAMA_DURATIONS if key in document}

    def _whole(self, at: float) -> None:
        """Read an answer that is no stream: an error, or of a server that does not stream."""
        raw = b"".join(map(_body, self._reads))
        self._times = []
        self._reads = []
        if self.status != 200:
            document = json_object(raw)
            error = raw[:MAX_ERROR_TEXT].decode(errors="replace")
            if document is not None:
                error = message_of(document)
            self._fail(f"http_{self.status}", error or f"HTTP {self.status}")
            return
        choice = next(_choices(self._object(raw, "the answer")), None)
        if choice is None:
            self._fail("garbage", f"the answer is not a chat completion: {raw[:80]!r}")
            return
        reason = choice.get("finish_reason")
        self.finish_reason = reason if isinstance(reason, str) else None
        message = _inner(choice, "message")
        content = message.get("content") if message else choice.get("text")
        self.text.append(content if isinstance(content, str) else "")
        self.arrivals.append(at)
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            self.take_calls(calls)

    def _object(self, text: bytes, subject: str, kind: str = "garbage") -> dict[str, Any]:
        """Return a JSON object, whose figures are taken; an empty one, and note why, for a text
        that is none or that tells of an error.
        """
        document = json_object(text)
        if document is None:
            self._fail(kind, f"{subject} is not a JSON object: {text[:80]!r}")
            return {}
        if document.get("error"):
            self._fail("engine_error", message_of(document))
            return {}
        if isinstance(document.get("usage"), dict):
            self.usage = document["usage"]
        for name in ("metrics", "timings"):
            if isinstance(document.get(name), dict):
                self.timings = document[name]
        return document

    def _take(self, fields: dict[str, Any], text: object, at: float) -> None:
        """Take the text of an event, wherever it stands: in these fields of its message, or beside
        them.
        """
        content = fields.get("content") or text
        thought = (
            fields.get("reasoning_content") or fields.get("reasoning") or fields.get("thinking")
        )
        calls = fields.get("tool_calls")
        if content or thought or calls:
            self.arrivals.append(at)
        if isinstance(calls, list):
            self.take_calls(calls)
        if isinstance(content, str):
            self.text.append(content)
        if isinstance(thought, str):
            self.reasoning.append(thought)

    def _fail(self, kind: str, message: str) -> None:
        if self.error_kind is None:
            self.error_kind = kind
            self.error = message[:MAX_ERROR_TEXT]


OLLAMA_DURATIONS = (
    "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "eval_count",
    "prompt_eval_count",
)  # fmt: skip


def json_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a text is; None: it is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _inner(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object of that name; empty where there is none."""
    inner = document.get(name)
    return inner if isinstance(inner, dict) else {}


def _choices(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    choices = document.get("choices")
    if not isinstance(choices, list):
        return iter(())
    return (choice for choice in choices if isinstance(choice, dict))


def count_of(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_NUMBER:
        return value
    return None


def _number(text: bytes | str | None) -> float | None:
    try:
        return float_of(float(text)) if text else None
    except ValueError:
        return None


def float_of(value: object) -> float | None:
    """Return the value as a float; None for text, NaN and what the store cannot hold."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or abs(value) >= LARGEST_NUMBER
    ):
        return None
    return float(value) if value == value else None  # noqa: PLR0124 - NaN is not itself


def message_of(document: dict[str, Any]) -> str:
    error = document.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error or document.get("message") or document)


class OpenAIClient:
    """Chat requests to one path over one pool. `in_flight`: the answers under way."""

    def __init__(
        self, pool: Pool, path: str, headers: Mapping[str, str], *, timeout_s: float
    ) -> None:
        self.pool = pool
        self.timeout_s = timeout_s
        self.in_flight: set[StreamReader] = set()
        self._loop = asyncio.get_running_loop()
        header_lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        fixed = "accept: */*\r\nuser-agent: skep\r\ncontent-type: application/json\r\n"
        self._lines = b"POST %b HTTP/1.1\r\n%b%b" % (
            path.encode(),
            pool.host_line,
            f"{fixed}{header_lines}".encode(),
        )

    def encode(
        self, body: Mapping[str, Any], headers: Mapping[str, str | None] | None = None
    ) -> tuple[bytes, bytes]:
        """Return the head and the body of a request.

        `headers`: of this one alone; None is left out.
        """
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        header_lines = "".join(
            f"{name}: {_visible(value)}\r\n" for name, value in (headers or {}).items() if value
        )
        return b"%b%bcontent-length: %d\r\n\r\n" % (
            self._lines,
            header_lines.encode(),
            len(data),
        ), data

    async def send(
        self,
        request: tuple[bytes, bytes],
        reading: StreamReader | None = None,
        *,
        timeout_s: float | None = None,
    ) -> StreamReader:
        """Send a request, and return its reader when the answer has ended, in whatever way.

        `reading`: a reader of the caller's own kind.
        """
        reading = reading or StreamReader(self._loop.create_future())
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        self.in_flight.add(reading)
        reading.started_at = time.monotonic()
        call = self.pool.send(request[0], reading, request[1])

        def time_out() -> None:
            call.abort()
            reading.give_up(
                "timeout", f"no complete answer within {limit_s:g} s", time.monotonic()
            )

        timer = self._loop.call_later(limit_s, time_out)
        try:
            await reading.done
        except asyncio.CancelledError:
            call.abort()
            raise
        finally:
            timer.cancel()
            self.in_flight.discard(reading)
        if reading.is_given_up:
            call.abort()
        return reading


def _visible(text: str) -> str:
    """Return the text as a header may hold it."""
    return "".join(
        character if character.isascii() and character.isprintable() else "_" for character in text
    )


# What can happen to a request, and what is done about it: tried again after which wait, or given
# up.

REFUSAL_STATUSES = (429, 503)
# Of a server or what stands before it, not of the request.
FULL_OR_AWAY = frozenset((*REFUSAL_STATUSES, 502, 504))
TASKS_OWN = range(400, 500)  # what else a server says about the request itself
NOT_TASKS_OWN = (404, 408, 409, 425)  # a model that is being exchanged, a proxy's patience


class ErrorKind(Enum):
    """What an error says of the request and of the server."""

    FINAL = "final"  # the request itself is at fault: asked again, it would be refused again
    KEY = "key"  # the endpoint refuses the key: so it will for every task
    REFUSED = "refused"  # too much at once; says nothing about the task
    AWAY = "away"  # nobody answers at the address; says nothing about the task
    # the answer was broken off: the endpoint's fault, unless it happens to one task again and
    # again
    BROKEN = "broken"
    TRY = "try"  # the task has had its chance: too slow, nonsense, rejected


# The name of an error as it is stored: what it says, in words and for whoever may try again. All
# others are a TRY, but for `http_NNN`, whose status says it.
KINDS_OF_ERRORS: Mapping[str, tuple[ErrorKind, str]] = {
    "connect": (ErrorKind.AWAY, "it cannot be reached"),
    "closed": (ErrorKind.BROKEN, "the connection was closed"),
    "cut": (ErrorKind.BROKEN, "the answer was interrupted"),
    "engine_error": (ErrorKind.BROKEN, "the engine reported an error"),
    "protocol": (ErrorKind.BROKEN, "it does not speak HTTP"),
    "timeout": (ErrorKind.TRY, "no answer in time"),
}


def classify_error(error_kind: str | None, status: int | None) -> ErrorKind | None:
    """Return the kind of an error; None if there was none."""
    if error_kind is None:
        return None
    if not error_kind.startswith("http_") or status is None:
        if error_kind in KINDS_OF_ERRORS:
            return KINDS_OF_ERRORS[error_kind][0]
        return ErrorKind.TRY
    if status == 401:
        return ErrorKind.KEY
    if status in REFUSAL_STATUSES:
        return ErrorKind.REFUSED
    if status in TASKS_OWN and status not in NOT_TASKS_OWN:
        return ErrorKind.FINAL
    return ErrorKind.BROKEN


def wait_s(
    error_kind: ErrorKind, times: int, rng: Random, retry_after_s: float | None = None
) -> float:
    """Return how long to wait before the same task is tried again, after `times` such errors in a
    row.

    Chance is in it, so that tasks that failed together do not come back together. A wait that the
    server asked for is kept, and some is added."""
    if error_kind is ErrorKind.TRY:
        if times <= 1:
            return 0.0
        return 0.5 * rng.random()
    first = 0.1
    longest = 10.0
    if error_kind is ErrorKind.REFUSED:
        first = 0.5
        longest = 30.0
    backoff = min(longest, first * 2.0 ** min(times - 1, 16)) * (0.5 + rng.random())
    if retry_after_s is None:
        return backoff
    return retry_after_s + min(backoff, first + 0.1 * retry_after_s)
