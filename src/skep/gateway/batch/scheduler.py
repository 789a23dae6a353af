"""Which request of a batch is next, what becomes of an answer, and which batches are under way. No
clock, no I/O.

An answer is final, or it is no answer and the request comes again later: the endpoint is full,
loads its model or lost a replica. What loses replicas again and again is set aside with its error;
the rest waits until the batch expires.

A request that was under way whenever the gateway died may be the cause of it, or was only there at
the time. From the third time on it goes last, and one at a time: whoever is innocent ends, and the
cause is alone with what it does."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from skep.gateway.answer_tokens import tokens_of
from skep.gateway.batch.store import BatchRequest, BatchResult, UnfinishedBatch
from skep.units import MIB
from skep.wire.openai import FULL_OR_AWAY, REFUSAL_STATUSES, json_object

# The gateway's codes where a replica had the request, and gave no answer.
COSTLY_ERRORS = frozenset(("replica_lost", "replica_timeout"))
MOST_COSTLY = 5  # such answers, or broken ones, of one request
# Deaths of the gateway while one request was under way.
ALONE_FROM = 3
MOST_LOST = 5
_NO_ANSWER = FULL_OR_AWAY | {None}  # None: it was broken off
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
# An answer is in memory until it is whole. 131,072 tokens of text are half a MiB, 1,000 embeddings
# 20 to 40 MiB.
MOST_ANSWER_BYTES = 64 * MIB
WITHOUT_ANSWER = {  # code and message of a request's error where it has no answer
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed: the batch was cancelled.",
    "input_file_missing": "This request was not executed: the input file cannot be read any more.",
    "gateway_died": (
        f"The gateway died {MOST_LOST} times while this request was in progress (killed, or "
        "out of memory),"
        " and it was not sent again. Send it alone, or ask for less in one request."
    ),
    "stream_cut": f"The answer was interrupted {MOST_COSTLY} times.",
    "answer_too_large": (
        f"The answer was given up when it was longer than {MOST_ANSWER_BYTES // MIB} MiB."
        " Ask for less in one request, or set `max_tokens`."
    ),
}


class BatchAnswer(msgspec.Struct, frozen=True):
    """`status` None: the answer was broken off.

    `fault`: and asking again would not help, for this reason.
    """

    status: int | None
    body: bytes = b""
    request_id: str = ""
    retry_after_s: float | None = None
    fault: str = ""


_Queued = tuple[float, int, BatchRequest]  # when it may go out, its index


class BatchSchedule:
    """The requests of one batch that have no result: each is out, or in a queue until it may go
    out.

    `lost`: how often the gateway died while a request was under way, by index. `set_aside`: those
    that are not tried again because of it. `turn`: the batch that has a suspect out, of all; only
    one goes out at a time."""

    def __init__(
        self,
        pending: Sequence[BatchRequest],
        lost: Mapping[int, int] | None = None,
        turn: set[BatchSchedule] | None = None,
    ) -> None:
        lost = lost or {}
        self.set_aside = [
            request for request in pending if lost.get(request.index, 0) >= MOST_LOST
        ]
        self._suspects = {index for index, times in lost.items() if times >= ALONE_FROM}
        # The first of all others, the second of suspects; the soonest first.
        self._queues: tuple[list[_Queued], list[_Queued]] = ([], [])
        for request in pending:
            if lost.get(request.index, 0) < MOST_LOST:
                self._queues[request.index in self._suspects].append((0.0, request.index, request))
        self._turn = set() if turn is None else turn
        self.out: dict[int, BatchRequest] = {}
        # By index: how often, and how often at the cost of a replica.
        self._tried: dict[int, tuple[int, int]] = {}
        self._held_until = 0.0  # the endpoint said when to come back: nothing new goes out before

    @property
    def done(self) -> bool:
        return not (self.out or any(self._queues))

    def remaining(self) -> list[BatchRequest]:
        """Return all requests without a final answer, in the file's order."""
        queued = (request for queue in self._queues for _, _, request in queue)
        return sorted((*queued, *self.out.values()), key=lambda request: request.index)

    def next(self, now: float) -> BatchRequest | None:
        """Return a request that goes out now. It counts as out until it is `answered` or taken
        back.
        """
        for is_suspect, queue in enumerate(self._queues):
            if not queue or max(queue[0][0], self._held_until) > now:
                continue
            if is_suspect and self._turn:
                continue
            _, index, request = heapq.heappop(queue)
            self.out[index] = request
            if is_suspect:
                self._turn.add(self)
            return request
        return None

    def take_back(self, index: int, due_at: float = 0.0) -> None:
        """Queue a request again that was out; it may go out from `due_at` on."""
        heapq.heappush(self._queues[index in self._suspects], (due_at, index, self.out.pop(index)))
        self._pass_turn(index)

    def leave(self) -> None:
        """Pass the turn on to another batch: nothing of this one goes out any more."""
        self._turn.discard(self)

    def answered(self, index: int, answer: BatchAnswer, now: float) -> bool:
        """Return whether it is final. If not, the request comes again."""
        times, costly = self._tried.get(index, (0, 0))
        costly += answer.status is None or _code_of(answer.body) in COSTLY_ERRORS
        self._tried[index] = times + 1, costly
        if answer.status not in _NO_ANSWER or answer.fault or costly >= MOST_COSTLY:
            del self.out[index], self._tried[index]
            self._pass_turn(index)
            return True
        pause_s = min(
            LONGEST_PAUSE_S,
            max(FIRST_PAUSE_S * 2.0 ** min(times, 10), answer.retry_after_s or 0.0),
        )
        if answer.status in REFUSAL_STATUSES:
            self._held_until = max(self._held_until, now + pause_s)
        self.take_back(index, now + pause_s)
        return False

    def _pass_turn(self, index: int) -> None:
        if index in self._suspects:
            self.leave()


def result_of(request: BatchRequest, answer: BatchAnswer, name: str, at: float) -> BatchResult:
    """Return the result of an answer that is final. `name` is the line's own id."""
    document: dict[str, Any] = {
        "id": name,
        "custom_id": request.custom_id,
        "response": None,
        "error": None,
    }
    if answer.status is None:
        code = answer.fault or "stream_cut"
        document["error"] = {"code": code, "message": WITHOUT_ANSWER[code]}
        return BatchResult(request.index, at, ok=False, line=msgspec.json.encode(document) + b"\n")
    body = msgspec.Raw(_one_line(answer.body))
    document["response"] = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": body,
    }
    line = msgspec.json.encode(document) + b"\n"
    is_ok = 200 <= answer.status < 300
    tokens = tokens_of(b"", [answer.body], streamed=False)
    counts = (tokens.prompt, tokens.cached, tokens.output, tokens.reasoning)
    return BatchResult(request.index, at, is_ok, line, answer.status, *counts)


def _code_of(body: bytes) -> str | None:
    """Return the code of an error in the gateway's own words; None: it is no such error."""
    if b'"source"' not in body:
        return None
    document = json_object(body) or {}
    error = document.get("error")
    if document.get("source") == "gateway" and isinstance(error, dict):
        return error.get("code")
    return None


def _one_line(body: bytes) -> bytes:
    """Return a body as JSON without line ends: unchanged where it can be, as a text where it is no
    JSON.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = body.decode("utf-8", "replace")
    else:
        if b"\n" not in body and b"\r" not in body:
            return body.strip()
    return json.dumps(document).encode()


MOST_OF_KIND = 16  # batches of one owner for one model that are under way at once


def choose(
    unfinished: Sequence[UnfinishedBatch], under_way: Container[str]
) -> list[UnfinishedBatch]:
    """Return the batches that begin now. `under_way`: the ids of those that have begun.

    Batches of one kind wait for the same slots, so more of them at once would be none the sooner.
    Those of other kinds wait for others, and among owners the gateway's queue is fair: neither
    keeps the other from beginning."""
    kinds = Counter(
        (batch.owner, batch.model)
        for batch in unfinished
        if batch.id in under_way and not batch.ending
    )
    begin = []
    for batch in unfinished:
        if batch.id not in under_way and (
            batch.ending or kinds[batch.owner, batch.model] < MOST_OF_KIND
        ):
            kinds[batch.owner, batch.model] += not batch.ending
            begin.append(batch)
    return begin
