"""The store of watching over time: targets, probes and their samples, series, events, alerts, changes.

Each append is one short transaction. Hours and days are brought up to date with the samples that belong to them, so
that reading a year never reads its samples. Knows no clock: times are arguments, unix seconds. A window from `since` to
`until` has its beginning and not its end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from sqlite3 import Row
from typing import Self

import msgspec

from skep.catalog.names import did_you_mean, similar_names, squeeze
from skep.errors import UserError
from skep.monitor.records import (
    DAY_S,
    Alert,
    Heat,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeTarget,
    SeriesChange,
    SeriesKey,
    SeriesPoint,
    SeriesSpan,
    SpanKind,
)
from skep.monitor.spans import (
    KEY_MATCHES,
    RAW_METRICS,
    SERIES_OF,
    close_hours,
    key_values,
    series_id,
    start_of,
    update_spans,
)
from skep.store.database import Store
from skep.store.rows import insert, insert_all, json_text, read

_THINNED = "thinned"

_PUT_MARK = "INSERT INTO watermarks VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET at = max(at, ?2)"
# Rows of an era never overlap, so the last one that begins before the end of a new one is the only one to look at.
_ROW_BEFORE = "SELECT slot + slots FROM probes WHERE target = ? AND era = ? AND slot < ? ORDER BY slot DESC LIMIT 1"
_TARGETS_WITH_PROBES = """
WITH RECURSIVE probed (target) AS (
    SELECT min(target) FROM probes
    UNION ALL SELECT (SELECT min(target) FROM probes WHERE target > probed.target) FROM probed WHERE target IS NOT NULL
)
SELECT target FROM probed WHERE target IS NOT NULL
"""
_LAST_SLOT = "SELECT era, slot + slots - 1 FROM probes WHERE target = ? ORDER BY era DESC, slot DESC LIMIT 1"
_LAST_MADE = "SELECT * FROM probes WHERE target = ? AND outcome <> 'missed' ORDER BY id DESC LIMIT 1"
# A gap that began before the window may reach into it.
_PROBES = """
SELECT * FROM probes WHERE target = ?1 AND due_at >= ?2 AND due_at < ?3
UNION ALL
SELECT * FROM probes WHERE target = ?1 AND slots > 1 AND ended_at >= ?2 AND due_at < ?2
ORDER BY due_at DESC, id DESC LIMIT ?4
"""
# Sums in one pass over the index: a GROUP BY would sort all of them first.
_OCCASIONS = f"""
SELECT {", ".join(f"coalesce(sum(outcome = '{outcome}'), 0) AS {outcome}" for outcome in ProbeOutcome)}
FROM probes WHERE target = ? AND due_at >= ? AND due_at < ? AND slots = 1
"""  # noqa: S608
_GAPS = "SELECT * FROM probes WHERE target = ? AND slots > 1 AND ended_at >= ? AND due_at < ?"
_POINTS = f"""
SELECT at, {{metric}} AS value, busy, probe_id FROM samples
WHERE {KEY_MATCHES} AND at >= ? AND at < ? AND {{metric}} IS NOT NULL AND error_kind IS NULL
ORDER BY at DESC, id DESC LIMIT ?
"""  # noqa: S608
_SPANS = f"""
SELECT * FROM spans WHERE series = ({SERIES_OF})
AND kind = ? AND start >= ? AND start < ? AND count > 0 ORDER BY start
"""  # noqa: S608
_KEYS = "SELECT target, heat, shape, concurrency, metric FROM series WHERE ?1 IS NULL OR target = ?1"
_EVENTS = "SELECT * FROM events WHERE at >= ?1 AND at < ?2 {of} ORDER BY at, id"
_ALERTS = """
SELECT alerts.*, alert_ends.closed_at, alert_ends.because
FROM alerts LEFT JOIN alert_ends ON alert_ends.alert_id = alerts.id
WHERE closed_at IS NULL OR (NOT ?1 AND closed_at >= ?2)
ORDER BY opened_at DESC, id DESC
"""
_CHANGES = """
SELECT changes.*, series.target, series.heat, series.shape, series.concurrency, series.metric
FROM changes JOIN series ON series.id = changes.series
WHERE (?1 IS NULL OR series.target = ?1) AND changes.at >= ?2
ORDER BY changes.at, series.id
"""
_THIN_SOME = f"""
DELETE FROM samples
WHERE id IN (SELECT id FROM samples WHERE {KEY_MATCHES} AND at < ? ORDER BY at LIMIT ?)
"""  # noqa: S608


class SeriesStore:
    """Over an open store. What was appended is final; a slot of a target is covered once or not at all."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.store.close()

    def put_target(self, target: ProbeTarget) -> None:
        """New, changed, or back again after it was removed."""
        with self.store.transaction() as connection:
            document = {name: value for name, value in asdict(target).items() if name != "removed_at"}
            values = (target.name, json_text(document), target.added_at, target.removed_at)
            connection.execute("INSERT OR REPLACE INTO targets VALUES (?, ?, ?, ?)", values)

    def remove_target(self, name: str, at: float) -> None:
        """Its history stays; what is wrong with it is over."""
        self.target(name)
        with self.store.transaction() as connection:
            connection.execute("UPDATE targets SET removed_at = ? WHERE name = ?", (at, name))
        for alert in self.alerts(open_only=True):
            if alert.target == name and alert.id is not None:
                self.close_alert(alert.id, at, "the target was removed")

    def targets(self, *, removed: bool = False) -> list[ProbeTarget]:
        """By name; with `removed` also those that are probed no more."""
        rows = self.store.read("SELECT * FROM targets WHERE ? OR removed_at IS NULL ORDER BY name", removed)
        # What a later skep added to the document is left out, what an earlier one did not know is as usual.
        documents = [json.loads(row["document"]) | {"removed_at": row["removed_at"]} for row in rows]
        return msgspec.convert(documents, list[ProbeTarget])

    def target(self, name: str, *, removed: bool = False) -> ProbeTarget:
        known = {target.name: target for target in self.targets(removed=True)}
        found = known.get(name)
        if found is not None and (removed or found.removed_at is None):
            return found
        if found is not None:
            hint = "its history is kept; `skep monitor add` brings it back"
            raise UserError(f"target `{name}` was removed", hint=hint)
        live = {squeeze(target.name): target.name for target in known.values() if removed or target.removed_at is None}
        hint = "`skep monitor list` shows them" if live else "`skep monitor add` makes one"
        raise UserError(f"there is no target `{name}`", hint=did_you_mean(similar_names(name, live), hint))

    def append_probe(self, probe: Probe, samples: Sequence[ProbeSample] = ()) -> int | None:
        """The probe, its samples, their hours and days, or nothing. None: a slot of it was covered already."""
        with self.store.transaction() as connection:
            end = connection.execute(_ROW_BEFORE, (probe.target, probe.era, probe.slot + probe.slots)).fetchone()
            if end is not None and end[0] > probe.slot:
                return None
            probe_id = insert(connection, "probes", probe, id=None).lastrowid
            of_probe = {"id": None, "probe_id": probe_id, "target": probe.target, "busy": probe.busy}
            insert_all(connection, "samples", samples, **of_probe)
            mark = connection.execute("SELECT at FROM watermarks WHERE name = ?", (_THINNED,)).fetchone()
            update_spans(connection, probe.target, samples, -math.inf if mark is None else mark[0])
        return probe_id

    def last_slots(self) -> dict[str, tuple[int, int]]:
        """By target: its highest era, and the last slot covered in it, be it by a gap."""
        names = [row["target"] for row in self.store.read(_TARGETS_WITH_PROBES)]
        return {name: tuple(self.store.read(_LAST_SLOT, name)[0]) for name in names}

    def latest(self, target: str) -> tuple[Probe, list[ProbeSample]] | None:
        """Return the last probe that was really made."""
        rows = self.store.read(_LAST_MADE, target)
        if not rows:
            return None
        samples = self.store.read("SELECT * FROM samples WHERE probe_id = ? ORDER BY id", rows[0]["id"])
        return read(rows, Probe)[0], read(samples, ProbeSample)

    def probes(self, target: str, since: float, until: float, limit: int | None = None) -> list[Probe]:
        """Newest first, by the time they were due; gaps that reach into the window included."""
        rows = self.store.read(_PROBES, target, since, until, -1 if limit is None else limit)
        return read(rows, Probe)

    def keys(self, target: str | None = None) -> list[SeriesKey]:
        """In order, passive ones included."""
        return sorted(read(self.store.read(_KEYS, target), SeriesKey))

    def points(self, key: SeriesKey, since: float, until: float, *, limit: int | None = None) -> list[SeriesPoint]:
        """Oldest first; the newest `limit` of them. A passive series has a point for each hour: its median."""
        if key.heat is Heat.SEEN:
            hours = self.spans(key, SpanKind.HOUR, since, until)
            first = 0 if limit is None else max(0, len(hours) - limit)
            return [SeriesPoint(hour.start, hour.median) for hour in hours[first:]]
        if key.metric not in RAW_METRICS:
            return []
        values = (*key_values(key), since, until, -1 if limit is None else limit)
        rows = self.store.read(_POINTS.format(metric=key.metric.value), *values)
        return [SeriesPoint(at, value, bool(busy), probe_id) for at, value, busy, probe_id in reversed(rows)]

    def spans(self, key: SeriesKey, kind: SpanKind, since: float, until: float) -> list[SeriesSpan]:
        """Oldest first, those that begin in the window and have figures."""
        values = (*key_values(key), key.metric.value, kind.value, since, until)
        return read(self.store.read(_SPANS, *values), SeriesSpan)

    def coverage(self, target: str, since: float, until: float) -> dict[str, int]:
        """Return how many occasions of the window were probed, failed or missed: each slot of a gap is one."""
        (occasions,) = self.store.read(_OCCASIONS, target, since, until)
        found = dict(occasions)
        for row in self.store.read(_GAPS, target, since, until):
            found[row["outcome"]] += _slots_inside(row, since, until)
        return found

    def append_event(self, event: MonitorEvent) -> int:
        return self._append("events", event, id=None)

    def events(self, since: float, until: float, target: str | None = None) -> list[MonitorEvent]:
        """Oldest first; with a target those of it and those of all."""
        of, values = ("AND (target IS NULL OR target = ?3)", (target,)) if target is not None else ("", ())
        return read(self.store.read(_EVENTS.format(of=of), since, until, *values), MonitorEvent)

    def open_alert(self, alert: Alert) -> int:
        return self._append("alerts", alert, id=None)

    def close_alert(self, alert_id: int, at: float, because: str) -> None:
        """Closing it twice has the effect of closing it once."""
        self._append("alert_ends", None, "ON CONFLICT DO NOTHING", alert_id=alert_id, closed_at=at, because=because)

    def alerts(self, *, open_only: bool = False, since: float | None = None) -> list[Alert]:
        """Newest first; with `since` those that were open at some time from then on."""
        rows = self.store.read(_ALERTS, open_only, -math.inf if since is None else since)
        return read(rows, Alert)

    def append_notice(self, alert_id: int, what: str, at: float, via: str, error: str | None) -> None:
        self._append("notices", alert_id=alert_id, what=what, at=at, via=via, error=error)

    def notices(self, alert_id: int | None) -> list[tuple[str, float, str, str | None]]:
        """What was told (opened or closed), when, through what, and what went wrong; in the order it was tried."""
        rows = self.store.read("SELECT what, at, via, error FROM notices WHERE alert_id = ? ORDER BY id", alert_id)
        return [(row["what"], row["at"], row["via"], row["error"]) for row in rows]

    def set_changes(self, key: SeriesKey, changes: Sequence[SeriesChange]) -> None:
        """In place of those found before. Nothing is written where nothing is new."""
        if list(changes) == [change for change in self.changes(key.target) if change.key == key]:
            return
        with self.store.transaction() as connection:
            series = series_id(connection, key)
            connection.execute("DELETE FROM changes WHERE series = ?", (series,))
            for change in changes:
                earliest, latest = change.between
                insert(connection, "changes", change, series=series, earliest_at=earliest, latest_at=latest)

    def changes(self, target: str | None = None, since: float | None = None) -> list[SeriesChange]:
        """Oldest first."""
        rows = self.store.read(_CHANGES, target, -math.inf if since is None else since)
        return read(
            rows,
            SeriesChange,
            key=lambda row: read([row], SeriesKey)[0],
            between=lambda row: (row["earliest_at"], row["latest_at"]),
        )

    def summarise_gateway(self, until: float) -> int:
        """Close the hours of the gateway's requests that ended two minutes before `until`; how many had any."""
        return close_hours(self.store, until)

    def thin(self, before: float) -> int:
        """Delete the samples of whole days (of UTC) before it; their days and hours stay. How many went."""
        newest = self.store.read("SELECT max(at) FROM samples")[0][0]
        if newest is None:
            return 0
        mark = start_of(min(before, newest + DAY_S), DAY_S)
        with self.store.transaction() as connection:  # first of all: from now on those days are not computed anew
            connection.execute(_PUT_MARK, (_THINNED, mark))
        kinds = self.store.read("SELECT DISTINCT target, heat, shape, concurrency FROM samples")
        return sum(self.store.delete_in_parts("thinning_before", mark, _THIN_SOME, *kind) for kind in kinds)

    def count_samples(self) -> int:
        return int(self.store.read("SELECT count(*) FROM samples")[0][0])

    def _append(self, table: str, record: object = None, clash: str = "", /, **columns: object) -> int:
        with self.store.transaction() as connection:
            return insert(connection, table, record, clash, **columns).lastrowid or 0


def _slots_inside(row: Row, since: float, until: float) -> int:
    """Return how many slots of a gap were due in the window. They lie one interval apart, and slots count intervals."""
    found_s = max(0.0, row["ended_at"] - row["due_at"]) / (row["slots"] - 1)  # the last was due before it was found
    step_s = min(found_s, row["due_at"] / row["slot"]) if row["slot"] > 0 else found_s
    if step_s <= 0:
        return int(row["slots"]) if since <= row["due_at"] < until else 0
    first, end = (min(max((limit - row["due_at"]) / step_s, 0), row["slots"]) for limit in (since, until))
    return int(math.ceil(end) - math.ceil(first))
