"""The log of requests that ended: a thread of its own writes a line and a row of each.

Nobody waits for it: what it cannot write it counts. Knows rows, files and the store; knows nothing
of how a request went."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TextIO, cast

from skep.errors import SkepError
from skep.files import RotatingLog
from skep.store.database import (
    GATEWAY_COLUMNS,
    Store,
    is_about_a_row,
    is_busy,
    open_store,
    read_store,
)
from skep.units import MIB

# The fields of `records.GatewayRequest`, in its order, up to what its session adds. A plain tuple,
# as a NamedTuple takes three times as long to make.
RequestColumns = tuple[
    str,  # id
    float,  # arrived_at
    str,  # path
    str | None,  # model
    str,  # priority
    str | None,  # flow
    str | None,  # replica
    int,  # attempts
    str | None,  # outcome
    int | None,  # status
    str | None,  # code
    bool,  # streamed
    float | None,  # queued_s
    float | None,  # first_byte_s
    float,  # ended_s
    int | None,  # prompt_tokens
    int | None,  # cached_tokens
    int | None,  # output_tokens
    int,  # request_bytes
    int,  # response_bytes
]
# And the rest of them.
SessionColumns = tuple[
    str | None,  # session
    str | None,  # conversation
    int | None,  # turn
    float | None,  # pause_s
    bool | None,  # tool_call
    str | None,  # cold
    int | None,  # cold_at
    int | None,  # possible_tokens
]
Row = tuple[*RequestColumns, *SessionColumns]
NO_SESSION: SessionColumns = (None,) * 8

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

    def last_turns(self, since: float, limit: int) -> dict[tuple[str, str], int]:
        """Return the last turn of each conversation since then, as they are stored; none where
        the store cannot be read. May be called by any thread, and takes as long as the store does.
        """
        if self.store_path is None:
            return {}
        with suppress(SkepError), read_store(self.store_path) as store:
            return store.last_turns(since, limit)
        return {}

    def add(self, values: Row) -> None:
        """Take a row. It is a tuple, as making a `GatewayRequest` here would cost thirty times as
        much.
        """
        if len(self._pending) < self.max_pending:
            self._pending.append(values)
        else:
            self.dropped += 1

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is pending, and return whether that is done.

        If not, it took too long, and the rest is lost if the process ends now.
        """
        self._stopping.set()
        if self._thread.ident is None:
            self._run()  # never started: there is nobody else to write
        else:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def write(self, batch: list[Row], now: float) -> None:
        """Write rows to the log and the store. Called by the log's own thread."""
        lines: list[str] = []
        rows: list[Row] = []
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
        """Give the event loop its turn: rows come half a second at a time, and written at one go
        they would hold it up for all of their time.
        """
        self._stopping.wait(PAUSE_S_BEHIND if self._behind else PAUSE_S)

    def _say_failed(self, kind: str, why: str, what_next: str) -> None:
        """Report a failure: once for each kind, until the store is well again."""
        if kind not in self._reported_failures:
            self._reported_failures.add(kind)
            self._say("journal.failed", why=why, next=what_next)

    def _say(self, event: str, **facts: str) -> None:
        self._write_stream(
            " ".join([event, *(f"{name}={quoted(fact)}" for name, fact in facts.items())]) + "\n"
        )

    def _write_stream(self, text: str) -> None:
        # A full disk, a closed stream, whatever: there is nowhere to report it.
        with suppress(Exception):
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
        """Store rows. A row that does not fit is lost alone."""
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
        """Keep the rows where the store is only locked; leave it alone for a while where it
        failed in another way.
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
    """Return the row with its texts cut off where they are too long: no client fills the disk
    with a name of a megabyte.
    """
    _, _, path, model, _, flow, *_ = values
    if (
        len(path) <= MAX_TEXT
        and (model is None or len(model) <= MAX_TEXT)
        and (flow is None or len(flow) <= MAX_TEXT)
    ):
        return values
    short = (
        f"{v[: MAX_TEXT - 1]}…" if isinstance(v, str) and len(v) > MAX_TEXT else v for v in values
    )
    return cast("Row", tuple(short))


def request_line(values: Row) -> str:
    """Return `request.done id=… at=… …`, without what is None. Raises for values that no field
    can have.
    """
    (
        request_id,
        at,
        *description,
        queued_s,
        first_byte_s,
        ended_s,
        prompt,
        cached,
        output,
        bytes_in,
        bytes_out,
        session,
        conversation,
        turn,
        pause_s,
        tool_call,
        cold,
        cold_at,
        possible,
    ) = values
    second = int(at)
    return (
        f"request.done id={quoted(request_id)} "
        f"at={_stamp(second)}.{int((at - second) * 1000):03d}Z{_describe(*description)}"
        f"{'' if queued_s is None else f' queued_s={queued_s:.3f}'}"
        f"{'' if first_byte_s is None else f' first_byte_s={first_byte_s:.3f}'}"
        f" ended_s={ended_s:.3f}"
        f"{'' if prompt is None else f' prompt_tokens={prompt:d}'}"
        f"{'' if cached is None else f' cached_tokens={cached:d}'}"
        f"{'' if output is None else f' output_tokens={output:d}'}"
        f" request_bytes={bytes_in:d} response_bytes={bytes_out:d}"
        f"{_text_of('session', session)}"
        f"{_text_of('conversation', conversation)}"
        f"{'' if turn is None else f' turn={turn:d}'}"
        f"{'' if pause_s is None else f' pause_s={pause_s:.3f}'}"
        f"{'' if tool_call is None else f' tool_call={tool_call:d}'}"
        f"{_text_of('cold', cold)}"
        f"{'' if cold_at is None else f' cold_at={cold_at:d}'}"
        f"{'' if possible is None else f' possible_tokens={possible:d}'}\n"
    )


def _text_of(name: str, text: str | None) -> str:
    return "" if text is None else f" {name}={quoted(text)}"


def quoted(text: str) -> str:
    """Return a plain text as it is, and any other as a JSON string in ASCII, so that no name can
    end a line or forge a field.
    """
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text).replace("\x7f", "\\u007f")


@lru_cache(maxsize=2048)
def _describe(*values: Any) -> str:
    """Return the fields from `path` to `streamed`. Cached, as the same clients ask the same models
    again and again.
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
