"""The tables of the write-ups: rounded in Markdown, whole in CSV."""

import csv
import io

import pytest
from msgspec.structs import replace

from skep.bench.metrics import SweepSummary
from skep.report import tables


@pytest.fixture
def slow(summary):
    """A quarter as fast at C = 4, not measured at C = 8 and 16."""
    levels = tuple(
        replace(level, effective_tok_s=level.effective_tok_s / 4) for level in summary.levels[:2]
    )
    return replace(summary, levels=levels, client_limited=False)


def _read(table):
    return list(csv.reader(io.StringIO(table.csv())))


def shown(columns, records):
    return [[column.cell(record) for column in columns] for record in records]


def test_effective_columns_have_every_level_of_any(summary, slow):
    """A level that one did not measure is a dash; a level without a success tells why."""
    dead = replace(
        summary.levels[1], effective_tok_s=None, errors=(("http_500", 40), ("timeout", 8))
    )
    runs = [
        ("MoE", summary),
        ("Dense", slow),
        ("x", replace(summary, levels=(summary.levels[0], dead))),
    ]
    columns = tables.effective_columns(runs)
    assert [column.title for column in columns] == ["Config", "C=1", "C=4", "C=8", "C=16"]
    assert shown(columns, runs) == [
        ["MoE", "41.7", "127", "195", "231"],
        ["Dense", "10.4", "31.7", "–", "–"],
        ["x", "41.7", "failed: 40 http_500, 8 timeout", "–", "–"],
    ]


def test_level_rows_have_every_figure(complete, summary):
    """Names carry their units; what is unknown is empty, never zero."""
    header, *rows = _read(tables.level_rows(complete))
    first, *_ = (dict(zip(header, row, strict=True)) for row in rows)
    assert len(rows) == 4
    assert (first["concurrency"], first["client_limited"]) == ("1", "false")
    assert float(first["ttft_p99_ms"]) == complete.levels[0].ttft_ms.p99
    assert float(first["joules_per_token"]) == 1.52
    assert first["finish_reasons"] == "stop=45;length=3"
    bare = dict(zip(header, _read(tables.level_rows(summary))[1], strict=True))
    assert {
        bare[name]
        for name in ("joules", "plateau_tok_s", "queued_p50_ms", "effective_ci95_low_tok_s")
    } == {""}


def test_nothing_measured_still_makes_a_table():
    empty = SweepSummary("x", (), client_limited=False)
    assert len(_read(tables.level_rows(empty))) == 1
    assert shown(tables.effective_columns([("b", empty)]), [("b", empty)]) == [["b"]]
