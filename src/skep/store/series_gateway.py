"""Passive series: what the gateway's requests say of an hour, computed once when the hour is over.

A request belongs to the hour in which it *ended*: its row is written then, however long it took, so an hour is whole
two minutes after its end. Hours are closed in order and never opened again; a watermark says up to when. A row that
comes later than that (its disk was full), or that ended more than a day after it arrived, is in no hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from sqlite3 import Connection, Row

from skep.series import DAY_S, HOUR_S, PROBES_FLOW, Heat, Metric, SeriesKey, Shape, SpanKind
from skep.store.database import Store
from skep.store.series_spans import put_span, series_id, start_of

LONGEST_S = DAY_S  # from arrival to end
WRITTEN_WITHIN_S = 120.0
FEWEST_TOKENS = 8  # a speed of less is the speed of one chunk
NO_MODEL = "(none)"  # asked for none, or for one that never was here: names that clients make up open no series

_MARK = "gateway"
_PUT_MARK = "INSERT OR REPLACE INTO watermarks VALUES (?, ?)"
# Of each request: whether a replica had it, whether it failed, its first byte and its speed where they can be told.
_REQUESTS = f"""
SELECT model, replica IS NOT NULL, outcome IN ('broken', 'refused') OR coalesce(status, 0) >= 500,
    CASE WHEN told THEN first_byte_s * 1000 END,
    CASE WHEN told AND output_tokens >= {FEWEST_TOKENS} AND ended_s > first_byte_s
        THEN output_tokens / (ended_s - first_byte_s) END,
    arrived_at + ended_s
FROM (
    SELECT *, outcome = 'answered' AND streamed AND coalesce(status, 0) < 400 AS told
    FROM gateway_requests WHERE arrived_at >= ? AND arrived_at < ? AND coalesce(flow, '') <> '{PROBES_FLOW}'
)
WHERE arrived_at + ended_s >= ? AND ended_s <= {LONGEST_S}
"""  # noqa: S608
_KNOWN = "SELECT DISTINCT target FROM series WHERE heat = ?"


@dataclass(slots=True)
class _Seen:
    """What was seen of one model in one hour."""

    requests: int = 0
    failed: int = 0
    served: bool = False  # one of them reached a replica
    ttft_ms: list[float] = field(default_factory=list)
    tok_s: list[float] = field(default_factory=list)

    def add(self, served: int, failed: int, ttft_ms: float | None, tok_s: float | None) -> None:
        self.requests += 1
        self.failed += failed
        self.served = self.served or bool(served)
        if ttft_ms is not None:
            self.ttft_ms.append(ttft_ms)
        if tok_s is not None:
            self.tok_s.append(tok_s)

    def join(self, other: _Seen) -> None:
        self.requests += other.requests
        self.failed += other.failed
        self.ttft_ms += other.ttft_ms
        self.tok_s += other.tok_s


_Hours = dict[float, dict[str | None, _Seen]]  # by the start of the hour and the model


def close_hours(store: Store, until: float) -> int:
    """How many hours with requests were closed. Each is a transaction of its own; reading holds nobody up."""
    end = start_of(until - WRITTEN_WITHIN_S, HOUR_S)
    at = _first_hour(store)
    if at is None or at >= end:
        return 0
    closed = 0
    hours = _whole_day_until(store, at)
    while at < end:
        _gather(hours, store.read(_REQUESTS, at, at + HOUR_S, at))
        following = min(end, _next_hour(store, at + HOUR_S, hours))
        if at in hours:
            with store.transaction() as connection:
                _write_hour(connection, at, hours)
                if following >= min(end, start_of(at, DAY_S) + DAY_S):
                    _write_day(connection, start_of(at, DAY_S), hours)
                # Not up to `end`: a clock that is wrong for a minute must not close the years to come.
                connection.execute(_PUT_MARK, (_MARK, at + HOUR_S))
            closed += 1
        for old in [hour for hour in hours if hour < start_of(following, DAY_S)]:
            del hours[old]
        at = following
    return closed


def _first_hour(store: Store) -> float | None:
    marks = store.read("SELECT at FROM watermarks WHERE name = ?", _MARK)
    if marks:
        return float(marks[0]["at"])
    first = store.read("SELECT min(arrived_at) FROM gateway_requests")[0][0]
    return None if first is None else start_of(first, HOUR_S)


def _next_hour(store: Store, at: float, hours: _Hours) -> float:
    """The first hour from `at` on that can have a request: nobody walks through years of nothing."""
    arrived = store.read("SELECT min(arrived_at) FROM gateway_requests WHERE arrived_at >= ?", at)[0][0]
    candidates = [hour for hour in hours if hour >= at]
    if arrived is not None:
        candidates.append(start_of(arrived, HOUR_S))
    return min(candidates, default=float("inf"))


def _whole_day_until(store: Store, at: float) -> _Hours:
    """The hours of the day before `at`, which its day is made of too, and what is still to end after it."""
    day = start_of(at, DAY_S)
    hours: _Hours = {}
    _gather(hours, store.read(_REQUESTS, day - LONGEST_S, at, day))
    return hours


def _gather(hours: _Hours, rows: Iterable[Row]) -> None:
    for model, served, failed, ttft_ms, tok_s, end in rows:
        models = hours.setdefault(start_of(end, HOUR_S), defaultdict(_Seen))
        models[model].add(served, failed, ttft_ms, tok_s)


def _by_target(connection: Connection, models: dict[str | None, _Seen]) -> dict[str, _Seen]:
    known = {row["target"] for row in connection.execute(_KNOWN, (Heat.SEEN.value,))}
    found: dict[str, _Seen] = defaultdict(_Seen)
    for model, seen in models.items():
        name = f"gateway:{model}"
        found[name if seen.served and model else name if name in known else f"gateway:{NO_MODEL}"].join(seen)
    return found


def _write_hour(connection: Connection, at: float, hours: _Hours) -> None:
    for target, seen in _by_target(connection, hours[at]).items():
        _write(connection, target, SpanKind.HOUR, at, [seen])


def _write_day(connection: Connection, day: float, hours: _Hours) -> None:
    by_target: dict[str, list[_Seen]] = defaultdict(list)
    for hour in sorted(hour for hour in hours if day <= hour < day + DAY_S):
        for target, seen in _by_target(connection, hours[hour]).items():
            by_target[target].append(seen)
    for target, seens in by_target.items():
        _write(connection, target, SpanKind.DAY, day, seens)


def _write(connection: Connection, target: str, kind: SpanKind, start: float, hours: list[_Seen]) -> None:
    """Times and speeds are over all requests; numbers of requests are one for each hour, so a day has a median hour."""
    for metric, values in _figures(hours):
        if values:
            key = SeriesKey(target, Heat.SEEN, Shape.ANY, 0, metric)
            put_span(connection, series_id(connection, key), kind, start, values)


def _figures(hours: list[_Seen]) -> Iterator[tuple[Metric, list[float]]]:
    yield Metric.TTFT_MS, [value for hour in hours for value in hour.ttft_ms]
    yield Metric.TOK_S, [value for hour in hours for value in hour.tok_s]
    yield Metric.REQUESTS, [float(hour.requests) for hour in hours]
    yield Metric.FAILED, [float(hour.failed) for hour in hours]
