"""Everything measured as rows: samples with their probe, occasions without any, pages, cells."""

import csv
import io

from monitor_samples import START as NOW

from skep.monitor import status
from skep.monitor.records import HOUR_S, Heat, Probe, ProbeOutcome, ProbeSample, ProbeShape, ProbeTarget
from skep.monitor.status import SAMPLE_COLUMNS, sample_rows, write_csv
from skep.monitor.store import SeriesStore

BOX = ProbeTarget("box", "http://127.0.0.1:1")


def fill(store, count=3, **fields):
    series = SeriesStore(store)
    series.put_target(BOX)
    for number in range(count):
        at = NOW + number * HOUR_S
        probe = Probe("box", 0, number, at, at + 5, ProbeOutcome.DONE, started_at=at, **fields)
        cold = ProbeSample(at, Heat.COLD, ProbeShape.SHORT, 1, tok_s=10.0 + number)
        series.append_probe(probe, [cold, ProbeSample(at + 2, Heat.HOT, ProbeShape.SHORT, 1, tok_s=80.0 + number)])
    return series


def test_every_sample_is_a_row_with_what_its_probe_knew(store):
    fill(store, 2, running=1, versions={"driver": "580"}, model="m", simulated=True)
    rows = list(sample_rows(store))
    assert [row["tok_s"] for row in rows] == [10, 80, 11, 81]
    assert {row["busy"] for row in rows} == {True}
    assert rows[0]["versions"] == {"driver": "580"}
    assert rows[0]["at_utc"] == "2026-10-24T00:00:00.000Z"
    assert set(rows[0]) == set(SAMPLE_COLUMNS)


def test_a_missed_occasion_is_a_row_of_its_own(store):
    series = fill(store, 1)
    gap = Probe("box", 0, 1, NOW + HOUR_S, NOW + 9 * HOUR_S, ProbeOutcome.MISSED, slots=8, error_kind="asleep")
    series.append_probe(gap)
    *_, last = sample_rows(store)
    assert (last["outcome"], last["slots"], last["error_kind"], last["tok_s"]) == ("missed", 8, "asleep", None)


def test_pages_neither_lose_nor_double_a_row(store, monkeypatch):
    fill(store, 7)
    monkeypatch.setattr(status, "PROBES_AT_ONCE", 2)
    assert len(list(sample_rows(store))) == 14
    assert len(list(sample_rows(store, since=NOW + 5 * HOUR_S))) == 4
    assert list(sample_rows(store, target="other")) == []


def test_csv_has_empty_cells_for_what_is_unknown_and_no_formulas(store):
    fill(store, 1, error="=HYPERLINK(1)", model="-m")
    file = io.StringIO()
    assert write_csv(SAMPLE_COLUMNS, sample_rows(store), file) == 2
    first, _ = csv.DictReader(io.StringIO(file.getvalue()))
    assert first["engine_tok_s"] == ""
    assert first["simulated"] == "0"
    assert first["error"] == "'=HYPERLINK(1)"
    assert first["model"] == "'-m"
