"""The tables of the write-ups: rounded in Markdown, whole in CSV, and a failed configuration with its diagnosis."""

import csv
import io

import pytest
from msgspec.structs import replace

from skep.bench.metrics import SweepSummary
from skep.report import tables

BROKEN = "SIGBUS while loading weights"


@pytest.fixture
def slow(summary):
    """A quarter as fast at C = 4, not measured at C = 8 and 16."""
    levels = tuple(replace(level, effective_tok_s=level.effective_tok_s / 4) for level in summary.levels[:2])
    return replace(summary, levels=levels, client_limited=False)


@pytest.fixture
def entries(summary, slow):
    return [("MoE", summary), ("Dense", slow), ("Dense PCIe", BROKEN)]


def _read(table):
    return list(csv.reader(io.StringIO(table.csv())))


def shown(table):
    return [[one.cell(record) for one in table.columns] for record in table.records]


def titles(table):
    return [one.title for one in table.columns]


def test_effective_table_has_every_level_of_any(entries, summary):
    """A level that one did not measure is a dash; a failed configuration tells why, a level without a success how."""
    table = tables.effective_table(entries)
    assert titles(table) == ["Config", "C=1", "C=4", "C=8", "C=16"]
    assert shown(table) == [
        ["MoE", "41.7", "127", "195", "231"],
        ["Dense", "10.4", "31.7", "–", "–"],
        ["Dense PCIe", BROKEN, "failed", "failed", "failed"],
    ]
    assert table.notes == ("MoE: the client was the limit at C=16; read it as a lower bound",)
    dead = replace(summary.levels[1], effective_tok_s=None, errors=(("http_500", 40), ("timeout", 8)))
    table = tables.effective_table([("x", replace(summary, levels=(summary.levels[0], dead)))])
    assert shown(table)[0][2] == "failed: 40 http_500, 8 timeout"


def test_contention_table_takes_the_largest_level_of_all(entries):
    """So that its column means the same in each row."""
    table = tables.contention_table(entries)
    assert titles(table) == ["Config", "C=1 per-task", "C=4 per-task", "Contention"]
    assert shown(table)[0] == ["MoE", "44.1 tok/s", "36.2 tok/s", "18 %"]
    assert shown(table)[2][1] == BROKEN


def test_speedup_is_given_in_every_form(told, summary):
    """Where requests failed, the wall times are all; cut answers are counted beneath."""
    table = tables.speedup_table([("new", told), ("broken", replace(summary, speedup=None)), ("dead", BROKEN)])
    assert titles(table)[2] == "Swarm (C=16)"
    assert shown(table)[0] == ["new", "218.3 s", "39.5 s", "5.53x", "4.90x", "3.10x", "3.30x"]
    assert shown(table)[1][3:] == ["–", "–", "–", "–"]
    assert table.notes[0] == "new: 1 serial and 0 swarm answers were cut at the token limit"


def test_advantage_is_over_the_first(entries):
    """At each level; not where one failed, was not measured, or its client was the limit."""
    table = tables.advantage_table([entries[1], entries[0]])
    assert titles(table) == ["C", "Dense eff.", "MoE eff.", "MoE advantage"]
    assert shown(table)[1] == ["4", "31.7 tok/s", "127 tok/s", "4.00x"]
    assert shown(table)[2][3] == "–"
    assert shown(tables.advantage_table([entries[0], entries[0]]))[3][3] == "client-limited"
    assert shown(tables.advantage_table([entries[0], entries[2]]))[0][3] == "failed"


def test_change_over_the_baseline_carries_its_sign(entries):
    assert [row[2] for row in shown(tables.baseline_table(entries, "MoE"))] == ["baseline", "−75 %", "failed"]
    table = tables.baseline_table(entries, "Dense")
    assert [row[2] for row in shown(table)] == ["+300 %", "baseline", "failed"]
    assert titles(table) == ["Config", "C=4 effective", "vs Dense"]


def test_csv_keeps_full_precision_and_markdown_is_for_people(entries, summary):
    """Nothing is rounded for a program, and unknown is empty; numbers are set to the right, notes stand below."""
    header, first, second, failed = _read(tables.effective_table(entries))
    assert header[:2] == ["Config", "C=1 (tok/s)"]
    assert float(first[1]) == summary.levels[0].effective_tok_s
    assert (second[3], failed[1]) == ("", BROKEN)
    lines = tables.effective_table(entries).markdown().splitlines()
    assert (lines[0], lines[3]) == ("### Effective tok/s", "| --- | ---: | ---: | ---: | ---: |")
    assert lines[-1].startswith("- MoE: the client was the limit")


def test_level_rows_have_every_figure(told, summary):
    """Levels first, then kinds of traffic; names carry their units; what is unknown is empty, never zero."""
    header, *rows = _read(tables.level_rows(told))
    first, *_, fifth, _ = (dict(zip(header, row, strict=True)) for row in rows)
    assert len(rows) == 6
    assert (first["concurrency"], first["client_limited"]) == ("1", "false")
    assert float(first["ttft_p99_ms"]) == told.levels[0].ttft_ms.p99
    assert float(first["joules_per_token"]) == 1.52
    assert first["finish_reasons"] == "stop=45;length=3"
    assert fifth["traffic"] == "interactive"
    bare = dict(zip(header, _read(tables.level_rows(summary))[1], strict=True))
    assert {bare[name] for name in ("joules", "plateau_tok_s", "queued_p50_ms", "effective_ci95_low_tok_s")} == {""}


def test_nothing_measured_still_makes_tables():
    """Columns stand, rows tell why."""
    empty = SweepSummary("x", (), None, None, None, client_limited=False)
    assert len(_read(tables.level_rows(empty))) == 1
    assert shown(tables.effective_table([("a", BROKEN), ("b", empty)])) == [["a", BROKEN], ["b", "–"]]
    assert titles(tables.contention_table([("a", BROKEN)]))[2] == "C=N per-task"
    assert shown(tables.speedup_table([])) == []
