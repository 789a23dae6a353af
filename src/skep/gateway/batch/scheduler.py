"""Which request of a batch is next, what becomes of an answer, and which batches are under way. No clock, no I/O.

An answer is final, or it is no answer and the request comes again later: the endpoint is full, loads its model or lost
a replica. What loses replicas again and again is set aside with its error; the rest waits until the batch expires.

A request that was under way whenever the gateway died may be the cause of it, or was only there at the time. From the
third time on it goes last, and one at a time: whoever is innocent ends, and the cause is alone with what it does.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from skep.gateway.batch.store import BatchRequest, BatchResult, UnfinishedBatch
from skep.gateway.body_inspection import tokens_of
from skep.units import MIB
from skep.wire.openai import FULL_OR_AWAY, REFUSALS

COSTLY = frozenset(("replica_lost", "replica_timeout"))  # of the gateway: a replica had it, and gave no answer
MOST_COSTLY = 5  # such answers, or broken ones, of one request
ALONE_FROM, MOST_LOST = 3, 5  # deaths of the gateway while one request was under way
TURN_AGAIN_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
# An answer is in memory until it is whole. 131,072 tokens of text are half a MiB, 1,000 embeddings 20 to 40 MiB.
MOST_ANSWER_BYTES = 64 * MIB
WITHOUT_ANSWER = {  # code and message of a request's error where it has no answer
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed: the batch was cancelled.",
    "input_file_missing": "This request was not executed: the input file cannot be read any more.",
    "gateway_died": (
        f"The gateway died {MOST_LOST} times while this request was in progress (killed, or out of memory),"
        " and it was not sent again. Send it alone, or ask for less in one request."
    ),
    "stream_cut": f"The answer was interrupted {MOST_COSTLY} times.",
    "answer_too_large": (
        f"The answer was given up when it was longer than {MOST_ANSWER_BYTES // MIB} MiB."
        " Ask for less in one request, or set `max_tokens`."
    ),
}


class BatchAnswer(msgspec.Struct, frozen=True):
    """`status` None: the answer was broken off. `fault`: and asking again would not help, for this reason."""

    status: int | None
    body: bytes = b""
    request_id: str = ""
    retry_after_s: float | None = None
    fault: str = ""


@dataclass(slots=True)
class SuspectTurn:
    """Of the requests that may be what the gateway dies of, one is out at a time, whatever batch it is of."""

    holder: BatchSchedule | None = None


class BatchSchedule:
    """The requests of one batch that have no result: each is waiting, out, or paused until it may come again.

    `lost`: how often the gateway died while a request was under way, by index. `set_aside`: those that are not tried
    again because of it.
    """

    def __init__(
        self,
        pending: Sequence[BatchRequest],
        lost: Mapping[int, int] | None = None,
        turn: SuspectTurn | None = None,
    ) -> None:
        lost = lost or {}
        self.set_aside = [request for request in pending if lost.get(request.index, 0) >= MOST_LOST]
        self._suspects = deque(one for one in pending if ALONE_FROM <= lost.get(one.index, 0) < MOST_LOST)
        self._waiting = deque(one for one in pending if lost.get(one.index, 0) < ALONE_FROM)
        self._suspected = frozenset(request.index for request in self._suspects)
        self._turn = turn or SuspectTurn()
        self._out: dict[int, BatchRequest] = {}
        self._paused: list[tuple[float, int, BatchRequest]] = []
        self._tried: dict[int, tuple[int, int]] = {}  # how often, and how often at the cost of a replica
        self.held_until = 0.0  # the endpoint said when to come back: nothing new goes out before

    @property
    def done(self) -> bool:
        return not (self._waiting or self._suspects or self._out or self._paused)

    def left(self) -> list[BatchRequest]:
        """Return everything without a final answer, in the file's order."""
        paused = [request for _, _, request in self._paused]
        every = (*self._waiting, *self._suspects, *self._out.values(), *paused)
        return sorted(every, key=lambda request: request.index)

    def next(self, now: float) -> BatchRequest | None:
        """It counts as out until it is `answered`."""
        request = self._next(now) if now >= self.held_until else None
        if request is not None:
            self._out[request.index] = request
        return request

    def _next(self, now: float) -> BatchRequest | None:
        while self._paused and self._paused[0][0] <= now:
            request = heapq.heappop(self._paused)[2]
            if request.index not in self._suspected:
                return request
            self._suspects.append(request)
        if self._waiting:
            return self._waiting.popleft()
        if self._suspects and self._turn.holder is None:
            self._turn.holder = self
            return self._suspects.popleft()
        return None

    def due_in_s(self, now: float) -> float | None:
        """Return how long until there may be a next one; None: only an answer changes that."""
        due = [0.0] if self._waiting else [TURN_AGAIN_S] if self._suspects else []
        if self._paused:
            due.append(self._paused[0][0] - now)
        return max(0.0, min(due), self.held_until - now) if due else None

    def take_back(self, index: int) -> None:
        """It was out, and was given up before it was answered."""
        if index in self._suspected:
            self.leave()
        (self._suspects if index in self._suspected else self._waiting).appendleft(self._out.pop(index))

    def leave(self) -> None:
        """Nothing of it goes out any more: another batch may have the turn."""
        if self._turn.holder is self:
            self._turn.holder = None

    def answered(self, index: int, answer: BatchAnswer, now: float) -> bool:
        """Return whether it is final. If not, the request comes again."""
        if index in self._suspected:
            self.leave()
        times, costly = self._tried.get(index, (0, 0))
        costly += answer.status is None or _code_of(answer.body) in COSTLY
        self._tried[index] = times + 1, costly
        answered = answer.status is not None and answer.status not in FULL_OR_AWAY
        if answered or answer.fault or costly >= MOST_COSTLY:
            del self._out[index], self._tried[index]
            return True
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(times, 10))
        if answer.retry_after_s is not None:
            pause_s = max(pause_s, min(answer.retry_after_s, LONGEST_PAUSE_S))
        if answer.status in REFUSALS:
            self.held_until = max(self.held_until, now + pause_s)
        heapq.heappush(self._paused, (now + pause_s, index, self._out.pop(index)))
        return False


def result_of(request: BatchRequest, answer: BatchAnswer, name: str, at: float) -> BatchResult:
    """Of an answer that is final. `name` is the line's own id."""
    if answer.status is None:
        return without_answer(request, answer.fault or "stream_cut", name, at)
    body, _ = _one_line(answer.body)
    response = b'{"status_code": %d, "request_id": %b, "body": %b}' % (
        answer.status, json.dumps(answer.request_id).encode(), body,
    )  # fmt: skip
    line, ok = _line(name, request, response, b"null"), 200 <= answer.status < 300
    tokens = tokens_of(b"", [answer.body], streamed=False)
    counts = (tokens.prompt, tokens.cached, tokens.output, tokens.reasoning)
    return BatchResult(request.index, at, ok, line, answer.status, *counts)


def without_answer(request: BatchRequest, code: str, name: str, at: float) -> BatchResult:
    error = {"code": code, "message": WITHOUT_ANSWER[code]}
    return BatchResult(request.index, at, ok=False, line=_line(name, request, b"null", json.dumps(error).encode()))


def _code_of(body: bytes) -> str | None:
    """Of an error in the gateway's own words."""
    document = _one_line(body)[1] if b'"source"' in body else {}
    error = document.get("error") if document.get("source") == "gateway" else None
    return error.get("code") if isinstance(error, dict) else None


def _line(name: str, request: BatchRequest, response: bytes, error: bytes) -> bytes:
    names = (json.dumps(name).encode(), json.dumps(request.custom_id).encode())
    return b'{"id": %b, "custom_id": %b, "response": %b, "error": %b}\n' % (*names, response, error)


def _one_line(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """As JSON without line ends: as it came where it can be, as a text where it is no JSON. And the object in it."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return json.dumps(body.decode("utf-8", "replace")).encode(), {}
    line = json.dumps(document).encode() if b"\n" in body or b"\r" in body else body.strip()
    return line, document if isinstance(document, dict) else {}


MOST_OF_KIND = 16  # batches of one owner for one model that are under way at once


def choose(unfinished: Sequence[UnfinishedBatch], under_way: Container[str], now: float) -> list[UnfinishedBatch]:
    """Return the batches that begin now. `under_way`: the ids of those that have begun.

    Batches of one kind wait for the same slots, so more of them at once would be none the sooner. Those of other kinds
    wait for others, and among owners the gateway's queue is fair: neither keeps the other from beginning.
    """
    kinds = Counter(one.kind for one in unfinished if one.id in under_way and not one.is_ending(now))
    begin = []
    for batch in unfinished:
        if batch.id not in under_way and (batch.is_ending(now) or kinds[batch.kind] < MOST_OF_KIND):
            kinds[batch.kind] += not batch.is_ending(now)
            begin.append(batch)
    return begin
