"""What is kept of each request that ended: metrics, and by a thread of its own a line and a row.

Ended exchanges are put aside and settled a few times a second, so that no client waits for
bookkeeping."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TextIO

from skep.config.keys import Priority
from skep.errors import SkepError
from skep.files import RotatingLog
from skep.gateway.proxied_request import Exchange
from skep.stats.stream_tokens import TokensPerEvent
from skep.store.database import GATEWAY_COLUMNS, Store, is_about_a_row, is_busy, open_store
from skep.units import MIB
from skep.wire.prometheus import Counter, Gauge, Histogram, Metric, metrics_text
from skep.wire.server_request import ServerRequest

NO_REPLICA = ""  # the replica of a request that reached none
NORMAL = Priority.NORMAL.label
UNKNOWN_MODEL = "unknown"  # in metrics: names that clients made up are no labels
UNSETTLED = 500  # exchanges put aside at most
UNIDENTIFIED = frozenset(
    ("invalid_api_key", "origin_refused", "host_refused")
)  # what those are told who may not call

Row = tuple[Any, ...]  # in the order of `records.GatewayRequest`
SECONDS = (
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
RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)


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
            "skep_queue_wait_seconds", "Seconds from arrival to slot.", by_class, SECONDS
        )
        self.ttft = Histogram(
            "skep_ttft_seconds",
            "Seconds from arrival to the first body byte.",
            by_replica,
            SECONDS,
        )
        self.duration = Histogram(
            "skep_request_seconds", "Seconds from arrival to the end.", by_replica, SECONDS
        )
        self.prompt_tokens = Counter(
            "skep_prompt_tokens_total", "Prompt tokens, as engines report them.", by_replica
        )
        self.cached_tokens = Counter(
            "skep_cached_tokens_total", "Prompt tokens from a prefix cache.", by_replica
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
            RATES,
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
    """`knows` tells whether a model's name is served here."""

    def __init__(
        self, metrics: Metrics, keep: Callable[[Row], None], knows: Callable[[str], bool]
    ) -> None:
        self.metrics = metrics
        self._keep = keep
        self._knows = knows
        self._unsettled: list[tuple[Exchange, float]] = []
        self.last_ended: dict[str, float] = {}  # by model: when its last answer ended
        self.tokens_per_event = defaultdict[str, TokensPerEvent](TokensPerEvent)  # by replica

    def ended(self, exchange: Exchange, now: float) -> None:
        self._unsettled.append((exchange, now))
        if len(self._unsettled) > UNSETTLED:
            self.settle()

    def settle(self, limit: int | None = None) -> bool:
        """Account for requests that have ended, for so many at `most`.

        Return whether there are more.
        """
        unsettled = self._unsettled[:limit]
        self._unsettled = self._unsettled[limit:] if limit else []
        wall = time.time() - time.monotonic()
        for exchange, now in unsettled:
            self.account(row_of(exchange, now, wall), now, exchange.events, exchange.leased)
            exchange.forget()
        return bool(self._unsettled)

    def refused(self, request_id: str, request: ServerRequest, status: int, code: str) -> None:
        """Account for a request that came no further than the border."""
        row = (
            request_id,
            time.time(),
            request.path,
            None,
            NORMAL,
            None,
            None,
            0,
            "refused",
            status,
            code,
            False,
            None,
            None,
            0.0,
            None,
            None,
            None,
            len(request.body),
            0,
        )
        self.account(row, time.monotonic(), 0, leased=False)

    def left_early(
        self, request_id: str, request: ServerRequest, priority: str, arrived_at: float
    ) -> None:
        """Account for a request whose client left while its body was looked at: it had no turn
        yet.
        """
        now = time.monotonic()
        total_s = now - arrived_at
        row = (
            request_id,
            time.time() - total_s,
            request.path,
            None,
            priority,
            None,
            None,
            0,
            "hung_up",
            None,
            None,
            False,
            None,
            None,
            total_s,
            None,
            None,
            None,
            len(request.body),
            0,
        )
        self.account(row, now, 0, leased=False)

    def account(self, row: Row, now: float, events: int, leased: bool) -> None:
        """Count a request that ended `now` and keep its row.

        Strangers' are only counted: rows would fill the disk.
        """
        (
            _,
            _,
            _,
            model,
            label,
            _,
            replica,
            _,
            outcome,
            status,
            code,
            streamed,
            queued_s,
            first_s,
            total_s,
            prompt,
            cached,
            output,
            _,
            _,
        ) = row
        if replica is not None:
            self.last_ended[model] = now
        elif model is None or not self._knows(model):
            model = UNKNOWN_MODEL
        labels = (model, label, replica or NO_REPLICA)
        metrics = self.metrics
        metrics.requests.add((*labels, outcome or "", str(status or ""), code or ""))
        if queued_s is not None:
            metrics.queue_wait.observe(labels[:2], queued_s)
            metrics.duration.observe(labels, total_s)
        if first_s is not None:
            metrics.ttft.observe(labels, first_s)
        if first_s is not None and leased:
            if prompt is not None:
                metrics.prompt_tokens.add(labels, prompt)
            elif output is None and outcome == "answered" and status == 200:
                metrics.unknown_tokens.add(labels)
            if output is None:
                metrics.counted_tokens.add(labels, events)
            else:
                metrics.output_tokens.add(labels, output)
                if streamed and replica is not None:
                    self.tokens_per_event[replica].take(events, output)
                if cached is not None:
                    metrics.cached_tokens.add(labels, cached)
                if streamed and output > 1 and total_s > first_s:
                    metrics.token_rate.observe(labels, (output - 1) / (total_s - first_s))
        if code not in UNIDENTIFIED:
            self._keep(row)


def row_of(exchange: Exchange, now: float, wall: float) -> Row:
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
    tokens = exchange.tokens()
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


MAX_PENDING = 20_000
RETRY_S = 30.0
BATCH_ROWS = 200  # in one transaction and one write to the log
# when rows pile up: a busy loop gives the GIL away every 5 ms only, so fewer steps are more
BATCH_ROWS_BEHIND = 1000
SLICE_ROWS = 40  # formatted before the loop gets its turn: about 0.25 ms
PAUSE_S = 0.004  # between slices: 9,000 rows a second
PAUSE_S_BEHIND = 0.001
MAX_TEXT = 200  # of what clients choose: model, flow, path

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@+-]+")


@dataclass(eq=False, repr=False)
class RequestLog:
    """`add` is called by one thread, the event loop's; all else happens in the log's own thread,
    and raises nothing.

    Request lines go to `log_path`, which is rotated, and without one to `stream`; events always to
    `stream`."""

    store_path: Path | None
    stream: TextIO
    log_path: Path | None = None
    log_bytes: int = 16 * MIB
    max_pending: int = MAX_PENDING
    every_s: float = 0.5

    def __post_init__(self) -> None:
        self.dropped = 0  # rows that found the buffer full: neither logged nor stored
        self.unwritten = 0  # rows that the store did not take
        self._pending: deque[Row] = deque()
        self._held: list[Row] = []  # while somebody else has the store locked
        self._store: Store | None = None
        self._log: RotatingLog | None = None
        self._retry_at = float("-inf")  # of the store
        self._reported_failures: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def __repr__(self) -> str:
        return (
            f"<RequestLog {len(self._pending)} pending, {self.dropped} dropped, "
            f"{self.unwritten} not in the store>"
        )

    def add(self, values: Row) -> None:
        """The fields of a `GatewayRequest` as a tuple: making the record here would cost thirty
        times as much.
        """
        if len(self._pending) < self.max_pending:
            self._pending.append(values)
        else:
            self.dropped += 1

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is pending.

        False: that took too long, and the rest is lost if the process ends now.
        """
        self._stopping.set()
        if self._thread.ident is None:
            self._run()  # never started: there is nobody else to write
        else:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def write(self, batch: list[Row], now: float) -> None:
        """To the log and the store. Called by the log's own thread."""
        lines = list[str]()
        rows = list[Row]()
        try:
            for number, values in enumerate(batch):
                if number % SLICE_ROWS == 0:
                    self._pause()
                try:
                    row = shortened(values)
                    lines.append(request_line(row))
                    rows.append(row)
                except (TypeError, ValueError, OverflowError, OSError) as error:
                    self._refuse_row(error)
            self._write_lines("".join(lines))
            if self.store_path is not None:
                self._write_rows(self.store_path, rows, now)
        except Exception as error:  # ours, and no reason to harm the gateway
            self.unwritten += len(batch)
            self._say_failed(f"bug {type(error).__name__}", repr(error), "please report it")

    # In the thread

    @property
    def _behind(self) -> bool:
        return len(self._pending) > self.max_pending // 2

    def _run(self) -> None:
        self.write([], time.monotonic())  # log and store are open before the first request ends
        while not self._stopping.wait(self.every_s):
            self._drain()
        self._drain()
        self.unwritten += len(self._held)
        self._held = []
        with suppress(Exception):
            self._drop_store()
        if self._log is not None:
            self._log.close()

    def _drain(self) -> None:
        while self._pending:
            batch_size = BATCH_ROWS_BEHIND if self._behind else BATCH_ROWS
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), batch_size))]
            self.write(batch, time.monotonic())
        self.write([], time.monotonic())  # what was held back has no other occasion
        if self.dropped:
            why = (
                f"{self.dropped} requests ended while {self.max_pending} others waited to be "
                "written"
            )
            what_next = (
                "nothing to do if it was a short burst; else check the disk of the store and "
                "the logs"
            )
            self._say_failed("dropped", why, what_next)

    def _pause(self) -> None:
        """Rows come half a second at a time; written at one go they would hold up the loop for
        that long together.
        """
        self._stopping.wait(PAUSE_S_BEHIND if self._behind else PAUSE_S)

    def _say_failed(self, kind: str, why: str, what_next: str) -> None:
        """Once for each kind, until the store is well again."""
        if kind not in self._reported_failures:
            self._reported_failures.add(kind)
            self._say("journal.failed", why=why, next=what_next)

    def _say(self, event: str, **facts: str) -> None:
        self._write_stream(
            " ".join([event, *(f"{name}={quoted(fact)}" for name, fact in facts.items())]) + "\n"
        )

    def _write_stream(self, text: str) -> None:
        with suppress(
            Exception
        ):  # a full disk, a closed stream, whatever: there is nowhere to say it
            if text:
                self.stream.write(text)
                self.stream.flush()

    def _write_lines(self, text: str) -> None:
        path = self.log_path
        if path is None:
            self._write_stream(text)
        elif self._log is None:
            try:
                self._log = RotatingLog(path, max_bytes=self.log_bytes, tail_lines=0)
            except OSError as error:
                why = f"`{path}` cannot be opened: {error.strerror}"
                self._say_failed(f"log {error.errno}", why, "tried again with every write")
        if self._log is not None:
            self._log.write(text.encode("utf-8", "replace"))

    def _write_rows(self, path: Path, rows: list[Row], now: float) -> None:
        rows = [*self._held, *rows]
        self._held = []
        try:
            if self._store is not None and self._store.moved:
                self._say("journal.reopened", why=f"`{path}` was deleted or replaced")
                self._drop_store()
            if self._store is None and now >= self._retry_at:
                self._store = open_store(path)
            if self._store is None:
                self.unwritten += len(rows)
                return
            self._append(self._store, rows)
        except SkepError as error:
            self._store_failed(error, rows, now)
            return
        if store_failures := {
            kind for kind in self._reported_failures if kind.startswith("store ")
        }:
            self._reported_failures -= store_failures
            self._say("journal.resumed", unwritten=str(self.unwritten))

    def _append(self, store: Store, rows: list[Row]) -> None:
        """One row that does not fit costs itself only."""
        try:
            store.append_gateway_values(rows)
        except (SkepError, OverflowError) as error:
            if not is_about_a_row(error):
                raise
            if len(rows) == 1:
                self._refuse_row(error)
                return
            for row in rows:
                self._append(store, [row])

    def _refuse_row(self, error: Exception) -> None:
        self.unwritten += 1
        self._say_failed("row", f"a request does not fit the table: {error}", "please report it")

    def _store_failed(self, error: SkepError, rows: list[Row], now: float) -> None:
        """A locked store is well and has only to be waited for; any other is left alone for a
        while.
        """
        if is_busy(error):
            self._held = rows[-MAX_PENDING:]
            self.unwritten += len(rows) - len(self._held)
            what_next = "rows wait in memory until it is free"
        else:
            what_next = f"{error.hint or 'check the file'}; tried again every {RETRY_S:g} s"
            self.unwritten += len(rows)
            self._retry_at = now + RETRY_S
            with suppress(SkepError):
                self._drop_store()
        # Messages of one kind differ in their details.
        kind = (
            f"{type(error.__cause__).__name__} "
            f"{getattr(error.__cause__, 'sqlite_errorname', error.message)}"
        )
        self._say_failed(f"store {kind}", error.message, what_next)

    def _drop_store(self) -> None:
        if self._store is not None:
            store = self._store
            self._store = None
            store.close()


def shortened(values: Row) -> Row:
    """No client fills the disk with a name a megabyte long."""
    _, _, path, model, _, flow, *_ = values
    if (
        len(path) <= MAX_TEXT
        and (model is None or len(model) <= MAX_TEXT)
        and (flow is None or len(flow) <= MAX_TEXT)
    ):
        return values
    return tuple(
        f"{v[: MAX_TEXT - 1]}…" if isinstance(v, str) and len(v) > MAX_TEXT else v for v in values
    )


def request_line(values: Row) -> str:
    """`request.done id=… at=… …`: what is None is left out; raises for values that no field can
    have.
    """
    (
        request_id,
        at,
        *what,
        queued_s,
        first_byte_s,
        ended_s,
        prompt,
        cached,
        output,
        bytes_in,
        bytes_out,
    ) = values
    second = int(at)
    return (
        f"request.done id={quoted(request_id)} "
        f"at={_stamp(second)}.{int((at - second) * 1000):03d}Z{_what(*what)}"
        f"{'' if queued_s is None else f' queued_s={queued_s:.3f}'}"
        f"{'' if first_byte_s is None else f' first_byte_s={first_byte_s:.3f}'}"
        f" ended_s={ended_s:.3f}"
        f"{'' if prompt is None else f' prompt_tokens={prompt:d}'}"
        f"{'' if cached is None else f' cached_tokens={cached:d}'}"
        f"{'' if output is None else f' output_tokens={output:d}'}"
        f" request_bytes={bytes_in:d} response_bytes={bytes_out:d}\n"
    )


def quoted(text: str) -> str:
    """As it is if it is plain; else as a JSON string in ASCII, so that no name can end a line or
    forge a field.
    """
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text).replace("\x7f", "\\u007f")


@lru_cache(maxsize=2048)
def _what(*values: Any) -> str:
    """From `path` to `streamed`; kept, for the same clients ask the same models again and
    again.
    """
    named_values = zip(GATEWAY_COLUMNS[2:12], values, strict=True)
    fields = (
        (name, quoted(v) if isinstance(v, str) else f"{v:d}")
        for name, v in named_values
        if v is not None
    )
    return "".join(f" {name}={text}" for name, text in fields)


@lru_cache(maxsize=64)
def _stamp(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))
