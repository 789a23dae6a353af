"""The hours and days of series: each is written anew when a sample comes that belongs to it.

Passive series, of requests that others sent to the gateway, have nothing else: their hours are closed one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from sqlite3 import Connection, Row
from statistics import fmean

from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    PROBES_FLOW,
    Heat,
    ProbeSample,
    ProbeShape,
    SeriesKey,
    SeriesMetric,
    SpanKind,
)
from skep.stats.percentiles import mad, percentile
from skep.store.database import Store
from skep.store.rows import insert

RAW_METRICS = (
    SeriesMetric.TOK_S,
    SeriesMetric.ENGINE_TOK_S,
    SeriesMetric.EFFECTIVE_TOK_S,
    SeriesMetric.TTFT_MS,
    SeriesMetric.QUALITY,
)

KEY_MATCHES = "target = ? AND heat = ? AND shape = ? AND concurrency = ?"
SERIES_OF = f"SELECT id FROM series WHERE {KEY_MATCHES} AND metric = ?"  # noqa: S608
PUT_SPAN = "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SAMPLES_OF_A_DAY = f"""
SELECT at, busy, {", ".join(RAW_METRICS)} FROM samples
WHERE {KEY_MATCHES} AND at >= ? AND at < ? AND error_kind IS NULL
"""  # noqa: S608


def start_of(at: float, width_s: float) -> float:
    """Hours and days begin with those of UTC."""
    return at // width_s * width_s


def key_values(key: SeriesKey) -> tuple[str, str, str, int]:
    return key.target, key.heat.value, key.shape.value, key.concurrency


def series_id(connection: Connection, key: SeriesKey) -> int:
    """Of a key that is not known yet, too."""
    row = connection.execute(SERIES_OF, (*key_values(key), key.metric.value)).fetchone()
    return int(row[0]) if row else insert(connection, "series", key).lastrowid or 0


def put_span(
    connection: Connection, series: int, kind: SpanKind, start: float, values: Iterable[float], busy: int = 0
) -> None:
    """In place of what stood there. Without a value only the busy ones are counted, without either there is no row."""
    row = span_row(series, kind, start, values, busy)
    if row is not None:
        connection.execute(PUT_SPAN, row)


def span_row(
    series: int, kind: SpanKind, start: float, values: Iterable[float], busy: int = 0
) -> tuple[object, ...] | None:
    """Values for `PUT_SPAN`."""
    ordered = sorted(values)
    if not ordered and not busy:
        return None
    figures: tuple[float | None, ...] = (None,) * 7
    if len(ordered) == 1:  # an hour of an hourly probe: most of all there are
        figures = (*(ordered * 6), 0.0)
    elif ordered:
        p10, median, p90 = (percentile(ordered, q) for q in (10, 50, 90))
        figures = ordered[0], p10, median, p90, ordered[-1], fmean(ordered), mad(ordered)
    return series, kind.value, start, len(ordered), *figures, busy


def update_spans(connection: Connection, target: str, samples: Iterable[ProbeSample], thinned_before: float) -> None:
    """Write the hours and days that these samples, stored already, belong to.

    A day whose samples were thinned stays as it is: what is left of it would tell of a part only.
    """
    days: dict[tuple[object, ...], list[ProbeSample]] = defaultdict(list)
    for sample in samples:
        if sample.error_kind is None:  # what failed has no figures that count
            days[sample.heat, sample.shape, sample.concurrency, start_of(sample.at, DAY_S)].append(sample)
    for news in days.values():
        one, day = news[0], start_of(news[0].at, DAY_S)
        values = (target, one.heat.value, one.shape.value, one.concurrency, day, day + DAY_S)
        rows = connection.execute(_SAMPLES_OF_A_DAY, values).fetchall() if day >= thinned_before else []
        for metric in RAW_METRICS:
            told = [sample.at for sample in news if sample.value(metric) is not None]
            if told:
                key = SeriesKey(target, one.heat, one.shape, one.concurrency, metric)
                _update_series(connection, series_id(connection, key), metric, rows, told)


def _update_series(
    connection: Connection, series: int, metric: SeriesMetric, rows: Sequence[Row], told: Iterable[float]
) -> None:
    known = [(row["at"], row["busy"], row[metric]) for row in rows if row[metric] is not None]
    touched = {(kind, start_of(at, kind.seconds)) for kind in SpanKind for at in told}
    for kind, start in touched if known else ():
        inside = [one for one in known if start <= one[0] < start + kind.seconds]
        figures = [value for _, busy, value in inside if not busy]
        put_span(connection, series, kind, start, figures, len(inside) - len(figures))


LONGEST_S = DAY_S  # from arrival to end
WRITTEN_WITHIN_S = 120.0
FEWEST_TOKENS = 8  # a speed of less is the speed of one chunk
NO_MODEL = "(none)"  # asked for none, or for one that never was here: names that clients make up open no series
_MARK = "gateway"
# Of each request: whether a replica had it, whether it failed, its first byte and its speed where they can be told.
_REQUESTS = f"""
SELECT model, replica IS NOT NULL AS served,
    outcome IN ('broken', 'refused') OR coalesce(status, 0) >= 500 AS failed,
    CASE WHEN told THEN first_byte_s * 1000 END AS ttft_ms,
    CASE WHEN told AND output_tokens >= {FEWEST_TOKENS} AND ended_s > first_byte_s
        THEN output_tokens / (ended_s - first_byte_s) END AS tok_s,
    arrived_at + ended_s AS ended_at
FROM (
    SELECT *, outcome = 'answered' AND streamed AND coalesce(status, 0) < 400 AS told
    FROM gateway_requests WHERE arrived_at >= ? AND arrived_at < ? AND coalesce(flow, '') <> '{PROBES_FLOW}'
)
WHERE arrived_at + ended_s >= ? AND ended_s <= {LONGEST_S}
"""  # noqa: S608


def close_hours(store: Store, until: float) -> int:
    """Return how many hours with requests were closed. Those of a day are one transaction; reading holds nobody up."""
    end = start_of(until - WRITTEN_WITHIN_S, HOUR_S)
    marks = store.read("SELECT at FROM watermarks WHERE name = ?", _MARK)
    at = marks[0]["at"] if marks else store.read("SELECT min(arrived_at) FROM gateway_requests")[0][0]
    closed = 0
    while at is not None and start_of(at, HOUR_S) < end:
        at, day = start_of(at, HOUR_S), start_of(at, DAY_S)
        tomorrow = day + DAY_S
        hours: dict[float, list[Row]] = defaultdict(list)
        for row in store.read(_REQUESTS, day - LONGEST_S, min(tomorrow, end), day):
            hours[start_of(row["ended_at"], HOUR_S)].append(row)
        known = sorted(hour for hour in hours if hour < min(tomorrow, end))
        new = [hour for hour in known if hour >= at]
        if new:
            with store.transaction() as connection:
                for hour in new:
                    _write_requests(connection, SpanKind.HOUR, hour, [hours[hour]])
                _write_requests(connection, SpanKind.DAY, day, [hours[hour] for hour in known])
                # Not up to `end`: a clock that is wrong for a minute must not close the years to come.
                connection.execute("INSERT OR REPLACE INTO watermarks VALUES (?, ?)", (_MARK, new[-1] + HOUR_S))
        closed += len(new)
        # Nobody walks through years of nothing: on to the next day on which a request ended or came.
        later = store.read("SELECT min(arrived_at) FROM gateway_requests WHERE arrived_at >= ?", tomorrow)[0][0]
        at = tomorrow if any(hour >= tomorrow for hour in hours) else later
    return closed


def _write_requests(connection: Connection, kind: SpanKind, start: float, hours: Sequence[Sequence[Row]]) -> None:
    """Write the requests of one hour, or of the hours of a day, by model; those for a model that nobody served or
    knows are of none. Times and speeds are over all requests; numbers of requests are one for each hour, so a day has
    a median hour."""
    seen = connection.execute("SELECT DISTINCT target FROM series WHERE heat = ?", (Heat.SEEN.value,))
    known = {row["target"] for row in seen}
    by_target: dict[str, list[list[Row]]] = defaultdict(list)
    for rows in hours:
        served = {row["model"] for row in rows if row["served"] and row["model"]}
        of_hour: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            name = f"gateway:{row['model']}"
            of_hour[name if row["model"] in served or name in known else f"gateway:{NO_MODEL}"].append(row)
        for target, own in of_hour.items():
            by_target[target].append(own)
    for target, seen_hours in by_target.items():
        every = [row for rows in seen_hours for row in rows]
        figures = {
            SeriesMetric.TTFT_MS: [row["ttft_ms"] for row in every if row["ttft_ms"] is not None],
            SeriesMetric.TOK_S: [row["tok_s"] for row in every if row["tok_s"] is not None],
            SeriesMetric.REQUESTS: [float(len(rows)) for rows in seen_hours],
            SeriesMetric.FAILED: [float(sum(row["failed"] for row in rows)) for rows in seen_hours],
        }
        for metric, values in figures.items():
            if values:
                key = SeriesKey(target, Heat.SEEN, ProbeShape.ANY, 0, metric)
                put_span(connection, series_id(connection, key), kind, start, values)
