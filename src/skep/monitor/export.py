"""Everything that was measured as rows for a file: samples with their probe, missed occasions included.
Read in pages, so that a million samples need no memory. Times are told twice: as unix seconds, and in UTC."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from skep.monitor.records import SeriesKey
from skep.monitor.store import SeriesStore
from skep.monitor.targets import all_targets, known_key, known_target
from skep.store.database import Store

PROBES_AT_ONCE = 500
FAR = 1e12  # later than any sample

SAMPLE_COLUMNS = (
    "at", "at_utc", "target", "outcome", "slots", "heat", "shape", "concurrency", "tok_s", "engine_tok_s",
    "effective_tok_s", "ttft_ms", "quality", "prompt_tokens", "output_tokens", "busy", "running", "waiting", "idle_s",
    "model", "error_kind", "error", "simulated", "versions", "host", "probe_id", "era", "slot",
)  # fmt: skip
POINT_COLUMNS = ("at", "at_utc", "series", "value", "unit", "busy", "probe_id")

_PAGE = """
SELECT
    coalesce(samples.at, chosen.started_at, chosen.due_at) AS at, chosen.target, chosen.outcome, chosen.slots,
    samples.heat, samples.shape, samples.concurrency, samples.tok_s, samples.engine_tok_s, samples.effective_tok_s,
    samples.ttft_ms, samples.quality, samples.prompt_tokens, samples.output_tokens, chosen.running, chosen.waiting,
    chosen.idle_s, chosen.model, coalesce(samples.error_kind, chosen.error_kind) AS error_kind,
    coalesce(samples.error, chosen.error) AS error, chosen.simulated, chosen.versions, chosen.host,
    chosen.id AS probe_id, chosen.era, chosen.slot
FROM (
    SELECT * FROM probes WHERE id > ?1 AND ended_at >= ?2 AND (?3 IS NULL OR target = ?3) ORDER BY id LIMIT ?4
) AS chosen LEFT JOIN samples ON samples.probe_id = chosen.id
ORDER BY chosen.id, samples.id
"""

Row = dict[str, Any]


def export_rows(
    series: SeriesStore, target: str | None, key: str | None, since: float | None
) -> tuple[Sequence[str], Iterator[Row]]:
    """Return columns and rows of one series, or of all samples, be it of one target."""
    if key is not None:
        return POINT_COLUMNS, point_rows(series, known_key(series, key), since)
    if target is not None:
        known_target(target, all_targets(series))
    return SAMPLE_COLUMNS, sample_rows(series.store, target=target, since=since)


def sample_rows(store: Store, *, target: str | None = None, since: float | None = None) -> Iterator[Row]:
    """In the order in which they were stored. A probe without samples (missed, failed, thinned) is one row."""
    after = 0
    earliest = float("-inf") if since is None else since
    while page := store.read(_PAGE, after, earliest, target, PROBES_AT_ONCE):
        for row in page:
            told = {name: json.loads(row[name]) for name in ("versions", "host")}
            told |= {"at_utc": utc(row["at"]), "busy": bool(row["running"] or row["waiting"])}
            yield {**dict(row), **told, "simulated": bool(row["simulated"])}
        after = page[-1]["probe_id"]


def point_rows(series: SeriesStore, key: SeriesKey, since: float | None = None) -> Iterator[Row]:
    """One series; what others asked is kept by the hour."""
    common = {"series": str(key), "unit": key.metric.unit}
    for point in series.points(key, 0.0 if since is None else since, FAR):
        yield {**msgspec.to_builtins(point), **common, "at_utc": utc(point.at)}


def write_csv(columns: Sequence[str], rows: Iterable[Row], file: TextIO) -> int:
    """How many. Unknown is an empty cell; what is an object stays JSON."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        writer.writerow([_cell(row.get(column)) for column in columns])
    return count


def write_json(columns: Sequence[str], rows: Iterable[Row], file: TextIO) -> int:
    """One list, a row a line, written as it is read."""
    count = 0
    file.write("[")
    for count, row in enumerate(rows, 1):
        text = json.dumps({column: row.get(column) for column in columns}, ensure_ascii=False)
        file.write(f",\n{text}" if count > 1 else f"\n{text}")
    file.write("\n]\n")
    return count


def utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def harmless(text: str) -> str:
    """A spreadsheet would take some beginnings for a formula: what a server says is not to be run."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _cell(value: object) -> object:
    if value is None or value == {}:
        return ""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return int(value) if isinstance(value, bool) else harmless(value) if isinstance(value, str) else value
