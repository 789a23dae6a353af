"""The store of watching over time: targets, probes and their samples, series, events, alerts,
changes.

Each append is one short transaction. Hours and days are brought up to date with their samples, so
that reading a year never reads these. Times are arguments, unix seconds. A window from `since` to
`until` has its beginning but no end."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from sqlite3 import Connection, Row
from statistics import fmean
from typing import Self

import msgspec

from skep.catalog.names import did_you_mean, similar_names, squeeze
from skep.errors import UserError
from skep.monitor.records import (
    DAY_S,
    Alert,
    MonitorEvent,
    Probe,
    ProbeSample,
    ProbeTarget,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
    SeriesSpan,
    SpanKind,
)
from skep.monitor.schedule import LastSlot
from skep.stats.percentiles import mad, percentile
from skep.store.database import Store
from skep.store.rows import insert, insert_all, json_text, queries, read

SERIES_OF = (
    "SELECT id FROM series WHERE target = ? AND heat = ? AND shape = ? AND concurrency = ? AND "
    "metric = ?"
)
PUT_SPAN = "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_LAST = "SELECT * FROM probes WHERE target = ? AND outcome {which} ORDER BY id DESC LIMIT 1"
_SAMPLES = "SELECT * FROM samples WHERE probe_id = ? AND shape <> 'quality' ORDER BY id"
_GAPS = "SELECT * FROM probes WHERE target = ? AND slots > 1 AND ended_at >= ? AND due_at < ?"
# An earlier skep kept series of the gateway's own requests, and of small tasks, too.
_KEYS = (
    "SELECT * FROM series WHERE heat <> 'seen' AND shape <> 'quality' AND (target = ?1 OR ?1 IS "
    "NULL)"
)
_DELETE_SOME = "DELETE FROM samples WHERE id IN (SELECT id FROM samples WHERE at < ? LIMIT ?)"
_SIMULATED = (
    "SELECT 1 FROM probes WHERE target = ? AND due_at >= ? AND due_at < ? AND simulated LIMIT 1"
)
_EVENTS = "SELECT * FROM events WHERE at >= ?1 AND at < ?2 {of} ORDER BY at, id"


def query(name: str) -> str:
    return queries("skep.monitor")[name]


class SeriesStore:
    """Reads and writes what the monitor knows, over an open store.

    What was appended is final; a slot of a target is covered once or not at all.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.store.close()

    def put_target(self, target: ProbeTarget) -> None:
        """Store a target: a new one, a changed one, or one that was removed before."""
        with self.store.transaction() as connection:
            document = {
                name: value
                for name, value in msgspec.to_builtins(target).items()
                if name != "removed_at"
            }
            values = (target.name, json_text(document), target.added_at, target.removed_at)
            connection.execute("INSERT OR REPLACE INTO targets VALUES (?, ?, ?, ?)", values)

    def remove_target(self, name: str, at: float) -> None:
        """Probe a target no more. Its history stays, its open alerts are closed."""
        self.target(name)
        with self.store.transaction() as connection:
            connection.execute("UPDATE targets SET removed_at = ? WHERE name = ?", (at, name))
        for alert in self.alerts(open_only=True):
            if alert.target == name and alert.id is not None:
                self.close_alert(alert.id, at, "the target was removed")

    def targets(self, *, removed: bool = False) -> list[ProbeTarget]:
        """Return the targets by name; with `removed` also those that are probed no more."""
        rows = self.store.read(
            "SELECT * FROM targets WHERE ? OR removed_at IS NULL ORDER BY name", removed
        )
        # A field that a later skep added is ignored; one that an earlier skep did not write has
        # its default.
        documents = [
            json.loads(row["document"]) | {"removed_at": row["removed_at"]} for row in rows
        ]
        return msgspec.convert(documents, list[ProbeTarget])

    def target(self, name: str, *, removed: bool = False) -> ProbeTarget:
        targets = {target.name: target for target in self.targets(removed=True)}
        if not removed and name in targets and targets[name].removed_at is not None:
            hint = "its history is kept; `skep monitor add` brings it back"
            raise UserError(f"target `{name}` was removed", hint=hint)
        return targets[known_target(name, targets)]

    def append_probe(
        self,
        probe: Probe,
        samples: Sequence[ProbeSample] = (),
        events: Sequence[MonitorEvent] = (),
    ) -> int | None:
        """Store a probe, its samples, their hours and days, and the events that it shows, or
        nothing at all.

        Return its id; None: one of its slots was covered already.
        """
        with self.store.transaction() as connection:
            end = connection.execute(
                query("row_before"), (probe.target, probe.era, probe.slot + probe.slots)
            ).fetchone()
            if end is not None and end[0] > probe.slot:
                return None
            probe_id = insert(connection, "probes", probe, id=None).lastrowid
            of_probe = {
                "id": None,
                "probe_id": probe_id,
                "target": probe.target,
                "busy": probe.busy,
            }
            insert_all(connection, "samples", samples, **of_probe)
            insert_all(connection, "events", events, id=None)
            update_spans(connection, probe.target, samples)
        return probe_id

    def last_slots(self) -> dict[str, LastSlot]:
        """Return each target's last slot covered in its highest era; a gap covers slots too."""
        names = [row["target"] for row in self.store.read(query("targets_with_probes"))]
        return {name: LastSlot(*self.store.read(query("last_slot"), name)[0]) for name in names}

    def latest(self, target: str) -> tuple[Probe | None, list[ProbeSample]]:
        """Return the last probe that was really made and its samples; None where none was."""
        rows = self.store.read(_LAST.format(which="<> 'missed'"), target)
        if not rows:
            return None, []
        samples = self.store.read(_SAMPLES, rows[0]["id"])
        return read(rows, Probe)[0], read(samples, ProbeSample)

    def last_done(self, target: str) -> list[Probe]:
        """Return the last probe that succeeded, however long ago; empty where none did."""
        return read(self.store.read(_LAST.format(which="= 'done'"), target), Probe)

    def probes(
        self, target: str, since: float, until: float, limit: int | None = None
    ) -> list[Probe]:
        """Return the probes, newest first by the time they were due, with the gaps that reach into
        the window.
        """
        rows = self.store.read(query("probes"), target, since, until, _sql_limit(limit))
        return read(rows, Probe)

    def keys(self, target: str | None = None) -> list[SeriesKey]:
        return sorted(read(self.store.read(_KEYS, target), SeriesKey))

    def points(
        self, key: SeriesKey, since: float, until: float, *, limit: int | None = None
    ) -> list[SeriesPoint]:
        """Return the newest `limit` points, oldest first."""
        values = (*key_values(key), since, until, _sql_limit(limit))
        rows = self.store.read(query("points").format(metric=key.metric.value), *values)
        return [
            SeriesPoint(at, value, bool(busy), probe_id)
            for at, value, busy, probe_id in reversed(rows)
        ]

    def spans(
        self, key: SeriesKey, kind: SpanKind, since: float, until: float
    ) -> list[SeriesSpan]:
        """Return the spans that begin in the window and have figures, oldest first."""
        values = (*key_values(key), key.metric.value, kind.value, since, until)
        return read(self.store.read(query("spans"), *values), SeriesSpan)

    def coverage(self, target: str, since: float, until: float) -> dict[str, int]:
        """Return how many occasions of the window were probed, failed or missed.

        Each slot of a gap is one occasion.
        """
        (occasions,) = self.store.read(query("occasions"), target, since, until)
        counts = dict(occasions)
        for row in self.store.read(_GAPS, target, since, until):
            counts[row["outcome"]] += _slots_inside(row, since, until)
        return counts

    def is_simulated(self, target: str, since: float, until: float) -> bool:
        """Return whether some of the probes met a simulated engine."""
        return bool(self.store.read(_SIMULATED, target, since, until))

    def append_event(self, event: MonitorEvent) -> int:
        return self._append("events", event, id=None)

    def events(
        self,
        since: float,
        until: float,
        target: str | None = None,
        *,
        version_of: Sequence[str] = (),
    ) -> list[MonitorEvent]:
        """Return the events, oldest first; with a target, its own and those of all targets.

        `version_of`: only changes of these versions.
        """
        condition = ""
        values: list[object] = [since, until]
        if target is not None:
            condition = "AND (target IS NULL OR target = ?3)"
            values.append(target)
        if version_of:
            names = ", ".join(f"'{name}'" for name in version_of)
            condition += f" AND kind = 'version' AND json_extract(detail, '$.what') IN ({names})"
        return read(self.store.read(_EVENTS.format(of=condition), *values), MonitorEvent)

    def open_alert(self, alert: Alert) -> int:
        return self._append("alerts", alert, id=None)

    def close_alert(self, alert_id: int, at: float, because: str) -> None:
        """Close an alert. To close it again has no effect."""
        self._append(
            "alert_ends",
            None,
            "ON CONFLICT DO NOTHING",
            alert_id=alert_id,
            closed_at=at,
            because=because,
        )

    def alerts(self, *, open_only: bool = False, since: float | None = None) -> list[Alert]:
        """Return the alerts, newest first; with `since` those that were open at some time from
        then on.
        """
        rows = self.store.read(query("alerts"), open_only, -math.inf if since is None else since)
        return read(rows, Alert)

    def append_notice(
        self, alert_id: int, event: str, at: float, via: str, error: str | None
    ) -> None:
        self._append("notices", alert_id=alert_id, what=event, at=at, via=via, error=error)

    def notices(self, alert_id: int | None) -> list[tuple[str, float, str, str | None]]:
        """Return the event (opened or closed), time, notifier and error of each notice, in the
        order they were tried.
        """
        rows = self.store.read(
            "SELECT what, at, via, error FROM notices WHERE alert_id = ? ORDER BY id", alert_id
        )
        return [(row["what"], row["at"], row["via"], row["error"]) for row in rows]

    def set_changes(self, key: SeriesKey, changes: Sequence[SeriesChange]) -> None:
        """Replace the stored changes of a series. Nothing is written where nothing is new."""
        if list(changes) == [change for change in self.changes(key.target) if change.key == key]:
            return
        with self.store.transaction() as connection:
            series = series_id(connection, key)
            connection.execute("DELETE FROM changes WHERE series = ?", (series,))
            for change in changes:
                earliest, latest = change.between
                insert(
                    connection,
                    "changes",
                    change,
                    series=series,
                    earliest_at=earliest,
                    latest_at=latest,
                )

    def changes(self, target: str | None = None, since: float | None = None) -> list[SeriesChange]:
        """Return the changes, oldest first."""
        rows = self.store.read(query("changes"), target, -math.inf if since is None else since)
        times = itemgetter("earliest_at", "latest_at")
        return read(rows, SeriesChange, key=lambda row: read([row], SeriesKey)[0], between=times)

    def count_samples(self, before: float = math.inf) -> int:
        return int(self.store.read("SELECT count(*) FROM samples WHERE at < ?", before)[0][0])

    def delete_samples(self, before: float) -> int:
        """Delete the older samples; their hours and days stay. Return how many were deleted."""
        return self.store.delete_in_parts("thinning_before", before, _DELETE_SOME)

    def _append(
        self, table: str, record: object = None, clash: str = "", /, **columns: object
    ) -> int:
        with self.store.transaction() as connection:
            return insert(connection, table, record, clash, **columns).lastrowid or 0


def _sql_limit(limit: int | None) -> int:
    """Return the limit as SQLite takes it: -1 is none."""
    return -1 if limit is None else limit


def _slots_inside(row: Row, since: float, until: float) -> int:
    """Return how many slots of a gap were due in the window.

    They lie one interval apart, and slots count intervals.
    """
    # The last slot was due before the gap was found.
    longest_step_s = max(0.0, row["ended_at"] - row["due_at"]) / (row["slots"] - 1)
    if row["slot"] > 0:
        step_s = min(longest_step_s, row["due_at"] / row["slot"])
    else:
        step_s = longest_step_s
    if step_s <= 0:
        if since <= row["due_at"] < until:
            return int(row["slots"])
        return 0
    first, end = (
        min(max((limit - row["due_at"]) / step_s, 0), row["slots"]) for limit in (since, until)
    )
    return int(math.ceil(end) - math.ceil(first))


def start_of(at: float, width_s: float) -> float:
    """Return the beginning of the hour or the day, of UTC, that holds a moment."""
    return at // width_s * width_s


def key_values(key: SeriesKey) -> tuple[str, str, str, int]:
    return key.target, key.heat.value, key.shape.value, key.concurrency


def series_id(connection: Connection, key: SeriesKey) -> int:
    """Return the id of a series; a new one is stored first."""
    row = connection.execute(SERIES_OF, (*key_values(key), key.metric.value)).fetchone()
    if row:
        return int(row[0])
    return insert(connection, "series", key).lastrowid or 0


def put_span(
    connection: Connection,
    series: int,
    kind: SpanKind,
    start: float,
    values: Iterable[float],
    busy: int = 0,
) -> None:
    """Write an hour or a day of a series, or replace it.

    Without a value only the busy samples are counted, without either there is no row.
    """
    row = span_row(series, kind, start, values, busy)
    if row is not None:
        connection.execute(PUT_SPAN, row)


def span_row(
    series: int, kind: SpanKind, start: float, values: Iterable[float], busy: int = 0
) -> tuple[object, ...] | None:
    """Return the values for `PUT_SPAN`; None: there is nothing to write."""
    ordered = sorted(values)
    if not ordered and not busy:
        return None
    figures: tuple[float | None, ...] = (None,) * 7
    if len(ordered) == 1:  # an hour of an hourly probe: most rows are such
        figures = (*(ordered * 6), 0.0)
    elif ordered:
        p10, median, p90 = (percentile(ordered, q) for q in (10, 50, 90))
        figures = ordered[0], p10, median, p90, ordered[-1], fmean(ordered), mad(ordered)
    return series, kind.value, start, len(ordered), *figures, busy


def update_spans(connection: Connection, target: str, samples: Iterable[ProbeSample]) -> None:
    """Write the hours and days that these stored samples belong to."""
    by_day: dict[tuple[object, ...], list[ProbeSample]] = defaultdict(list)
    for sample in samples:
        if sample.error_kind is None:  # what failed has no figures that count
            day = start_of(sample.at, DAY_S)
            by_day[sample.heat, sample.shape, sample.concurrency, day].append(sample)
    for new_samples in by_day.values():
        first = new_samples[0]
        day = start_of(first.at, DAY_S)
        values = (target, first.heat.value, first.shape.value, first.concurrency, day, day + DAY_S)
        rows = connection.execute(query("samples_of_a_day"), values).fetchall()
        for metric in SeriesMetric:
            moments = [sample.at for sample in new_samples if sample.value(metric) is not None]
            if not moments:
                continue
            key = SeriesKey(target, first.heat, first.shape, first.concurrency, metric)
            series = series_id(connection, key)
            stored = [
                (row["at"], row["busy"], row[metric]) for row in rows if row[metric] is not None
            ]
            spans = {(kind, start_of(at, kind.seconds)) for kind in SpanKind for at in moments}
            for kind, start in spans:
                inside = [point for point in stored if start <= point[0] < start + kind.seconds]
                figures = [value for _, busy, value in inside if not busy]
                put_span(connection, series, kind, start, figures, len(inside) - len(figures))


def all_targets(series: SeriesStore) -> list[str]:
    """Return the names of the targets that are probed, then of those that were."""
    targets = sorted(
        series.targets(removed=True), key=lambda target: target.removed_at is not None
    )
    return [target.name for target in targets]


def known_target(name: str, known_names: Collection[str]) -> str:
    """Return the name. Raise UserError, with similar names, for an unknown one."""
    if name not in known_names:
        if known_names:
            hint = "`skep monitor list --all` shows them"
        else:
            hint = "`skep monitor add` makes one"
        near = similar_names(name, {squeeze(known_name): known_name for known_name in known_names})
        raise UserError(f"there is no target `{name}`", hint=did_you_mean(near, hint))
    return name
