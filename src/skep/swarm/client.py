"""Requests to one endpoint, streamed, with what was heard of each so far. Knows nothing of retries and checks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.request import LARGEST, OPENAI_CHAT, timings_of
from skep.engines.base import GATEWAY_KEY
from skep.errors import SkepError
from skep.paths import DEFAULT_PORT, Paths, user_paths
from skep.store.rows import storable
from skep.supervisor.control import ask, local_key, socket_of
from skep.wire.client import Pool
from skep.wire.fetch import LARGEST_ANSWER_BYTES
from skep.wire.heads import ResponseHead, parse_url
from skep.wire.stream_reader import StreamReader

MOST_IDLE = 1024  # connections; a server that minds has closed them by then
LONGEST_WAIT_S = 3600.0  # that a Retry-After is believed


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one request. Faults are told, not raised. Times are unix seconds."""

    text: str
    started_at: float
    ended_at: float
    error_kind: str | None = None  # connect, closed, cut, timeout, too_long, garbage, engine_error, protocol, http_500
    error: str | None = None
    status: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    first_token_at: float | None = None
    queued_ms: float | None = None  # in skep's gateway
    decode_ms: float | None = None
    finish_reason: str | None = None
    replica: str | None = None
    retry_after_s: float | None = None


class SwarmClient:
    """One endpoint's connections. `heard` counts by attempt, over all the requests it has made."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, flow: str = "") -> None:
        """`flow`: whose requests these are, for a gateway that shares fairly between several."""
        self.endpoint = endpoint
        self.flow = flow
        self.timeout_s = timeout_s
        self.total = 0  # events of all answers: about as many as tokens
        # Every byte of an attempt's answer is here: another may take its place while it is still being read.
        self.on_whole: Callable[[tuple[str, int]], None] = lambda _: None
        self.is_gateway = "replicas" in endpoint.engine
        self._pool = Pool(endpoint.origin, max_idle=MOST_IDLE)
        self._loop = asyncio.get_running_loop()
        self._heard: dict[tuple[str, int], int] = {}
        self._lines = self._fixed_lines()

    def __repr__(self) -> str:
        return f"<SwarmClient to {self.endpoint.url}, {len(self._heard)} attempts under way>"

    async def close(self) -> None:
        await self._pool.close()

    def heard(self, task: str, number: int) -> int:
        """Events of the answers to this attempt so far."""
        return self._heard.get((task, number), 0)

    def forget(self, task: str, number: int) -> None:
        """The attempt has ended."""
        self._heard.pop((task, number), None)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        attempt: tuple[str, int] = ("", 0),
        fields: Mapping[str, Any] | None = None,
        priority: str | None = None,
        session: str | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send one streamed chat request. `fields`: of the body, beside model and messages.

        `session`: of skep's gateway, which sends what has the same one to the same replica.
        """
        body = {
            **(fields or {}),
            "model": self.endpoint.model,
            "messages": [dict(one) for one in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        own = self._own_lines(priority, session)
        head = b"%b%bcontent-length: %d\r\n\r\n" % (self._lines, own, len(data))
        reading = CountingReader(self._loop.create_future(), self, attempt)
        epoch, started = time.time() - time.monotonic(), time.monotonic()
        call = self._pool.send(head, reading, data)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        timer = self._loop.call_later(limit_s, self._time_out, reading, call.abort, limit_s)
        try:
            ended = await reading.done
        except asyncio.CancelledError:
            call.abort()
            raise
        finally:
            timer.cancel()
        if reading.is_too_long:
            call.abort()
        if reading.is_whole:
            self.on_whole(attempt)
            await asyncio.sleep(0)  # when many end at once, those that follow are sent before these are read
        return _reply(reading, started + epoch, ended + epoch, epoch)

    def took(self, attempt: tuple[str, int], events: int) -> None:
        self.total += events
        self._heard[attempt] = self._heard.get(attempt, 0) + events

    def _time_out(self, reading: StreamReader, abort: Any, limit_s: float) -> None:
        abort()
        reading.give_up("timeout", f"no complete answer within {limit_s:g} s", time.monotonic())

    def _fixed_lines(self) -> bytes:
        own = "".join(f"{name}: {value}\r\n" for name, value in self.endpoint.headers.items())
        if self.flow and self.is_gateway:
            own += f"x-skep-agent: {self.flow}\r\n"
        fixed = "accept: */*\r\nuser-agent: skep\r\ncontent-type: application/json\r\n"
        path = f"{self.endpoint.base}{OPENAI_CHAT}"
        return b"POST %b HTTP/1.1\r\n%b%b" % (path.encode(), self._pool.host_line, f"{fixed}{own}".encode())

    def _own_lines(self, priority: str | None, session: str | None) -> bytes:
        """Nobody but skep's gateway sees them."""
        if not self.is_gateway:
            return b""
        told = (("priority", priority), ("session", session))
        return b"".join(b"x-skep-%b: %b\r\n" % (name.encode(), _visible(value)) for name, value in told if value)


class CountingReader(StreamReader):
    """Counts events as they arrive: a read may hold several."""

    def __init__(self, done: asyncio.Future[float], line: SwarmClient, attempt: tuple[str, int]) -> None:
        super().__init__(done)
        self._owner = line
        self._whose = attempt
        self.heard = 0
        self._received_bytes = 0

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self._broken is None

    @property
    def is_too_long(self) -> bool:
        return self._received_bytes > LARGEST_ANSWER_BYTES

    def on_head(self, head: ResponseHead, at: float) -> None:
        super().on_head(head, at)
        self._mark = b"\n" if self._stream == "ndjson" else b"data:"

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        if self._has_room(carried, at):
            super().on_chunks(raw, carried, at)
            self._count(raw)

    def on_body(self, data: bytes, at: float) -> None:
        if self._has_room(len(data), at):
            super().on_body(data, at)
            if self._stream:
                self._count(data)

    def _has_room(self, size: int, at: float) -> bool:
        """Return whether it is too long. An answer that never ends is given up, and nothing of it is kept."""
        self._received_bytes += size
        if self.is_too_long:
            for kept in (self.text, self.reasoning, self._times, self._reads):
                kept.clear()
            self.give_up("too_long", f"the answer has more than {LARGEST_ANSWER_BYTES:,} bytes", at)
        return not self.is_too_long

    def _count(self, data: bytes) -> None:
        events = data.count(self._mark)
        self.heard += events
        if not self.done.done():
            self._owner.took(self._whose, events)


def _reply(reading: CountingReader, started_at: float, ended_at: float, epoch: float) -> Reply:
    reading.digest()
    head, kind, error = reading.head, reading.error_kind, reading.error
    replica = head.get(b"x-skep-replica") if head else None
    return Reply(
        text=storable("".join(reading.text)) or "",
        started_at=started_at,
        ended_at=ended_at,
        error_kind=kind,
        error=storable(error),
        status=reading.status,
        prompt_tokens=_count(reading.usage.get("prompt_tokens")),
        output_tokens=_count(reading.usage.get("completion_tokens")),
        first_token_at=reading.arrivals[0] + epoch if reading.arrivals else None,
        queued_ms=_number(head.get(b"x-skep-queue-ms")) if head else None,
        decode_ms=timings_of(reading).decode_ms,
        finish_reason=storable(reading.finish_reason),
        replica=replica.decode("latin-1") if replica else None,
        retry_after_s=_wait(head) if head else None,
    )


def _wait(head: ResponseHead) -> float | None:
    """In seconds; a date is not read, and the caller's own patience stands in for it."""
    told = _number(head.get(b"retry-after"))
    return None if told is None or told < 0 else min(told, LONGEST_WAIT_S)


def _number(text: bytes | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and abs(value) < LARGEST else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST else None


def _visible(text: str) -> bytes:
    """As a header may hold it."""
    return "".join(one if one.isascii() and one.isprintable() else "_" for one in text).encode()


ANSWER_S = 2.0
URL_VARIABLE = "SKEP_URL"


def url_here(paths: Paths, env: Mapping[str, str]) -> str:
    """Return the address; where no skep runs, the one where it would: a run waits there until it does."""
    if env.get(URL_VARIABLE):
        return env[URL_VARIABLE]
    try:
        return str(ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=ANSWER_S)["url"])
    except SkepError:
        return f"http://127.0.0.1:{DEFAULT_PORT}"


def key_here(url: str, env: Mapping[str, str]) -> str | None:
    """The key where none is named: on this machine what `local_key` finds, for `SKEP_URL` that of its gateway."""
    if (found := local_key(url, env, user_paths(env))) is not None:
        return found
    named = env.get(URL_VARIABLE)
    return env.get(GATEWAY_KEY) or None if named and parse_url(named)[0] == parse_url(url)[0] else None
