"""What is counted of each request that ended: metrics, and its row for the log.

Ended exchanges are put aside and settled a few times a second, so that no client waits for
bookkeeping."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from skep.config.keys import Priority
from skep.gateway.answer_tokens import Tokens
from skep.gateway.proxied_request import Exchange
from skep.gateway.request_log import NO_SESSION, RequestColumns, Row, SessionColumns
from skep.gateway.sessions import EndedTurn, RequestSession, Sessions
from skep.stats.stream_tokens import TokensPerEvent
from skep.wire.prometheus import Counter, Gauge, Histogram, Metric, metrics_text
from skep.wire.server_request import ServerRequest

NO_REPLICA = ""  # the replica of a request that reached none
NORMAL_CLASS = Priority.NORMAL.label
UNKNOWN_MODEL = "unknown"  # in metrics: names that clients made up are no labels
MOST_UNSETTLED = 500  # exchanges put aside at most
# What those are told who may not call.
UNIDENTIFIED = frozenset(("invalid_api_key", "origin_refused", "host_refused"))

SECOND_BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    900.0,
)
RATE_BUCKETS = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    50.0,
    75.0,
    100.0,
    150.0,
    200.0,
    300.0,
    500.0,
    1000.0,
)


class Metrics:
    """Counters and histograms of the gateway. docs/metrics.md has a heading for each."""

    def __init__(self) -> None:
        by_class = ("model", "class")
        by_replica = ("model", "class", "replica")
        self.requests = Counter(
            "skep_requests_total",
            "Ended requests, by outcome.",
            (*by_class, "replica", "outcome", "status", "code"),
        )
        self.retries = Counter(
            "skep_retries_total", "Requests sent again to this replica.", ("model", "replica")
        )
        self.queue_wait = Histogram(
            "skep_queue_wait_seconds", "Seconds from arrival to slot.", by_class, SECOND_BUCKETS
        )
        self.ttft = Histogram(
            "skep_ttft_seconds",
            "Seconds from arrival to the first body byte.",
            by_replica,
            SECOND_BUCKETS,
        )
        self.duration = Histogram(
            "skep_request_seconds", "Seconds from arrival to the end.", by_replica, SECOND_BUCKETS
        )
        self.prompt_tokens = Counter(
            "skep_prompt_tokens_total", "Prompt tokens, as engines report them.", by_replica
        )
        self.cached_tokens = Counter(
            "skep_cached_tokens_total", "Prompt tokens from a prefix cache.", by_replica
        )
        self.possible_tokens = Counter(
            "skep_possible_cached_tokens_total",
            "Prompt tokens of sessions that a prefix cache could have held.",
            by_replica,
        )
        self.cold_turns = Counter(
            "skep_cold_turns_total",
            "Turns of sessions whose prompt had to be read again, by reason.",
            ("model", "replica", "reason"),
        )
        self.output_tokens = Counter(
            "skep_output_tokens_total", "Output tokens, as engines report them.", by_replica
        )
        self.counted_tokens = Counter(
            "skep_output_tokens_counted_total",
            "Stream events of answers without a token count.",
            by_replica,
        )
        self.token_rate = Histogram(
            "skep_output_tokens_per_second",
            "Speed of a streamed answer after its first byte.",
            by_replica,
            RATE_BUCKETS,
        )
        self.unknown_tokens = Counter(
            "skep_answers_without_usage_total", "Answers without a token count.", by_replica
        )
        self.loads = Counter(
            "skep_model_loads_total", "Attempts to load a model on demand.", ("model", "outcome")
        )
        self.slots = Gauge(
            "skep_slots", "Sequences a replica decodes at a time.", ("model", "replica")
        )
        self.busy = Gauge("skep_slots_busy", "Slots in use.", ("model", "replica", "state"))
        self.up = Gauge(
            "skep_replica_up",
            "1: gets requests; 0: broken or draining.",
            ("model", "replica", "state"),
        )
        self.queued = Gauge("skep_queue_length", "Requests waiting.", by_class)
        self.connections = Gauge("skep_client_connections", "Open client connections.", ())
        self.refused_connections = Counter(
            "skep_connections_refused_total", "Client connections that were not served.", ("why",)
        )
        self.lost_rows = Gauge("skep_rows_lost", "Request rows that were not stored.", ("why",))
        self.build = Gauge("skep_build_info", "Always 1, with the version.", ("version",))

    def text(self) -> bytes:
        metrics: list[Metric] = [*vars(self).values()]
        return metrics_text(metrics)


class RequestAccounting:
    """`keep` gets the rows; `knows` tells whether a model of that name is served here."""

    def __init__(
        self, metrics: Metrics, keep: Callable[[Row], None], knows: Callable[[str], bool]
    ) -> None:
        self.metrics = metrics
        self._keep = keep
        self._knows = knows
        self.sessions = Sessions()
        self._unsettled: list[tuple[Exchange, float]] = []
        self.last_ended: dict[str, float] = {}  # by model: when its last answer ended
        self.tokens_per_event = defaultdict[str, TokensPerEvent](TokensPerEvent)  # by replica

    def ended(self, exchange: Exchange, now: float) -> None:
        self._unsettled.append((exchange, now))
        if len(self._unsettled) > MOST_UNSETTLED:
            self.settle()

    def settle(self, limit: int | None = None) -> bool:
        """Account for requests that have ended, at most `limit` of them, and return whether there
        are more.
        """
        unsettled = self._unsettled[:limit]
        self._unsettled = self._unsettled[limit:] if limit else []
        wall = time.time() - time.monotonic()
        for exchange, now in unsettled:
            tokens = exchange.tokens()
            row = row_of(exchange, tokens, now, wall)
            session = exchange.session(tokens)
            self.account(row, now, exchange.events, exchange.leased, session)
            exchange.forget()
        return bool(self._unsettled)

    def unsettled(self) -> list[Exchange]:
        return [exchange for exchange, _ in self._unsettled]

    def refused(self, request_id: str, request: ServerRequest, status: int, code: str) -> None:
        """Account for a request that came no further than the border."""
        row = unserved_row(
            request_id,
            request,
            NORMAL_CLASS,
            arrived_at=time.time(),
            outcome="refused",
            status=status,
            code=code,
        )
        self.account(row, time.monotonic(), 0, leased=False)

    def left_early(
        self, request_id: str, request: ServerRequest, priority: str, arrived_at: float
    ) -> None:
        """Account for a request whose client left while its body was inspected."""
        now = time.monotonic()
        total_s = now - arrived_at
        row = unserved_row(
            request_id,
            request,
            priority,
            arrived_at=time.time() - total_s,
            outcome="hung_up",
            ended_s=total_s,
        )
        self.account(row, now, 0, leased=False)

    def account(
        self,
        row: RequestColumns,
        now: float,
        events: int,
        leased: bool,
        session: RequestSession | None = None,
    ) -> None:
        """Count a request that ended `now`, and keep its row.

        Requests of strangers are only counted: their rows would fill the disk.
        """
        (
            _id,
            _arrived_at,
            _path,
            model,
            priority,
            _flow,
            replica,
            _attempts,
            outcome,
            status,
            code,
            _streamed,
            queued_s,
            first_byte_s,
            ended_s,
            *_tokens_and_bytes,
        ) = row
        if replica is not None and model is not None:
            self.last_ended[model] = now
        elif model is None or not self._knows(model):
            model = UNKNOWN_MODEL
        labels = (model, priority, replica or NO_REPLICA)
        metrics = self.metrics
        metrics.requests.add((*labels, outcome or "", str(status or ""), code or ""))
        if queued_s is not None:
            metrics.queue_wait.observe(labels[:2], queued_s)
            metrics.duration.observe(labels, ended_s)
        if first_byte_s is not None:
            metrics.ttft.observe(labels, first_byte_s)
            if leased:
                self._count_tokens(labels, row, events, ended_s - first_byte_s)
        session_columns = NO_SESSION
        if session is not None:
            session_columns = self._turn_of(session, row, labels, now)
        if code not in UNIDENTIFIED:
            self._keep(row + session_columns)

    def _turn_of(
        self,
        session: RequestSession,
        row: RequestColumns,
        labels: tuple[str, str, str],
        now: float,
    ) -> SessionColumns:
        """Count the turn of a session that a request is, and return its columns."""
        model, _priority, replica = labels
        outcome, status = row[8:10]
        if outcome != "answered" or status != 200 or replica == NO_REPLICA:
            return self.sessions.failed(session)
        arrived_at = row[1]
        ended_s = row[14]
        prompt, cached, output = row[15:18]
        turn = EndedTurn(
            model,
            replica,
            now - ended_s,
            now,
            arrived_at + ended_s,
            prompt,
            cached,
            output,
            session,
        )
        columns = self.sessions.ended(turn)
        *_description, cold, _cold_at, possible = columns
        if cold is not None:
            self.metrics.cold_turns.add((model, replica, cold))
        if possible is not None and cached is not None:
            self.metrics.possible_tokens.add(labels, possible)
        return columns

    def _count_tokens(
        self, labels: tuple[str, str, str], row: RequestColumns, events: int, answering_s: float
    ) -> None:
        """Count the tokens of an answer, which took `answering_s` after its first byte."""
        outcome, status, _code, streamed = row[8:12]
        prompt, cached, output = row[15:18]
        metrics = self.metrics
        if prompt is not None:
            metrics.prompt_tokens.add(labels, prompt)
        elif output is None and outcome == "answered" and status == 200:
            metrics.unknown_tokens.add(labels)
        if output is None:
            metrics.counted_tokens.add(labels, events)
            return
        metrics.output_tokens.add(labels, output)
        replica = labels[2]
        if streamed and replica != NO_REPLICA:
            self.tokens_per_event[replica].take(events, output)
        if cached is not None:
            metrics.cached_tokens.add(labels, cached)
        if streamed and output > 1 and answering_s > 0:
            metrics.token_rate.observe(labels, (output - 1) / answering_s)


def unserved_row(
    request_id: str,
    request: ServerRequest,
    priority: str,
    *,
    arrived_at: float,
    outcome: str,
    status: int | None = None,
    code: str | None = None,
    ended_s: float = 0.0,
) -> RequestColumns:
    """Return the row of a request that no replica had, and whose model nobody looked up."""
    no_tokens = (None, None, None)
    return (
        request_id,
        arrived_at,
        request.path,
        None,
        priority,
        None,
        None,
        0,
        outcome,
        status,
        code,
        False,
        None,
        None,
        ended_s,
        *no_tokens,
        len(request.body),
        0,
    )


def row_of(exchange: Exchange, tokens: Tokens, now: float, wall: float) -> RequestColumns:
    plan = exchange.plan
    granted = exchange.granted
    arrived_at = exchange.arrived_at
    name = None
    attempt = 0
    queued_s = None
    if granted is not None:
        name = granted.replica.name
        attempt = granted.attempt
        queued_s = granted.queued_s
    if exchange.first_at is not None:
        first_s = exchange.first_at - arrived_at
    else:
        first_s = None
    return (
        exchange.id,
        wall + arrived_at,
        plan.path,
        exchange.model,
        plan.priority.label,
        exchange.flow or None,
        name,
        attempt,
        exchange.outcome,
        exchange.status,
        exchange.code,
        exchange.streamed,
        queued_s,
        first_s,
        now - arrived_at,
        tokens.prompt,
        tokens.cached,
        tokens.output,
        exchange.request_bytes,
        exchange.response_bytes,
    )
