"""The hours and days of series: each is written anew when a sample comes that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from sqlite3 import Connection, Row
from statistics import fmean

from skep.monitor.records import DAY_S, ProbeSample, SeriesKey, SeriesMetric, SpanKind
from skep.stats.percentiles import mad, percentile
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
    return series, kind.value, start, len(ordered), *_figures(ordered), busy


def update_spans(connection: Connection, target: str, samples: Iterable[ProbeSample], thinned_before: float) -> None:
    """Write the hours and days that these samples, stored already, belong to.

    A day whose samples were thinned stays as it is: what is left of it would tell of a part only.
    """
    for one, news in _by_day(samples):
        day = start_of(one.at, DAY_S)
        values = (target, one.heat.value, one.shape.value, one.concurrency, day, day + DAY_S)
        rows = connection.execute(_SAMPLES_OF_A_DAY, values).fetchall() if day >= thinned_before else []
        for metric in RAW_METRICS:
            told = [sample.at for sample in news if sample.value(metric) is not None]
            if told:
                key = SeriesKey(target, one.heat, one.shape, one.concurrency, metric)
                _update_series(connection, series_id(connection, key), metric, rows, told)


def _by_day(samples: Iterable[ProbeSample]) -> Iterator[tuple[ProbeSample, list[ProbeSample]]]:
    """One of a kind of run and day, with all of them. What failed has no figures that count."""
    days: dict[tuple[object, ...], list[ProbeSample]] = {}
    for sample in samples:
        if sample.error_kind is None:
            kind = (sample.heat, sample.shape, sample.concurrency, start_of(sample.at, DAY_S))
            days.setdefault(kind, []).append(sample)
    for news in days.values():
        yield news[0], news


def _update_series(
    connection: Connection, series: int, metric: SeriesMetric, rows: Sequence[Row], told: Iterable[float]
) -> None:
    known = [(row["at"], row["busy"], row[metric]) for row in rows if row[metric] is not None]
    touched = {(kind, start_of(at, kind.seconds)) for kind in SpanKind for at in told}
    for kind, start in touched if known else ():
        inside = [one for one in known if start <= one[0] < start + kind.seconds]
        figures = [value for _, busy, value in inside if not busy]
        put_span(connection, series, kind, start, figures, len(inside) - len(figures))


def _figures(ordered: list[float]) -> tuple[float | None, ...]:
    if not ordered:
        return (None,) * 7
    if len(ordered) == 1:  # an hour of an hourly probe: most of all there are
        return (*(ordered * 6), 0.0)
    p10, median, p90 = (percentile(ordered, q) for q in (10, 50, 90))
    return ordered[0], p10, median, p90, ordered[-1], fmean(ordered), mad(ordered)
