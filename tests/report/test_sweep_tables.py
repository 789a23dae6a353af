"""The tables show every level and every kind of failure, and a dash where nothing is known."""

from __future__ import annotations

import re

from msgspec.structs import replace

from skep.report.page import make_environment
from skep.report.sweep import failed_kinds, level_table


def failure_table(rows):
    return make_environment("skep.report").get_template("levels.html").module.failed(failed_kinds(rows))


def _cells(markup):
    return [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", markup)
    ]


def test_every_level_has_its_row(levels):
    """One row for each level, with all of its figures."""
    rows = _cells(level_table("levels", levels))[2:]
    assert [row[0] for row in rows] == ["1", "4", "8", "16"]
    assert rows[1][:5] == ["4", "48", "0", "127", "121..133 (2 runs)"]
    assert rows[1][5:12] == ["36.2", "18 %", "148", "305", "366", "27.6", "35.9"]
    assert rows[1][12:] == ["36.9", "68.1 s", "2", "31 % of prompt cached"]


def test_header_names_each_column_of_a_row(levels):
    """Groups and names span what the rows hold."""
    table = level_table("levels", levels)
    spans = sum(int(n) for n in re.findall(r'colspan="(\d+)"', table)) + table.count("rowspan")
    assert spans == len(_cells(table)[2])


def test_unknown_values_are_dashes(levels):
    """None is an en dash, never a zero."""
    unknown = replace(
        levels[3],
        effective_tok_s=None,
        effective_low=None,
        effective_high=None,
        task_tok_s=None,
        contention_pct=None,
        ttft_ms=None,
        tpot_ms=None,
        engine_tok_s=None,
    )
    row = _cells(level_table("levels", [unknown]))[2]
    assert row[3:12] == ["–"] * 9
    assert 'class="best"' not in level_table("levels", [unknown])


def test_client_limited_level_is_flagged(levels):
    """The reader sees which row is a lower bound, without colour."""
    notes = [row[-1] for row in _cells(level_table("levels", levels))[2:]]
    assert [note.startswith("client-limited") for note in notes] == [False, False, False, True]


def test_failures_are_counted_by_kind(levels, rows):
    """Each kind of error of a level has a count and its first message."""
    assert _cells(failure_table(rows))[1:] == [
        ["8", "http_503", "1", "the engine said: queue is full"],
        ["8", "timeout", "2", "no byte for 60 s"],
    ]


def test_failed_warm_up_is_named(rows):
    """Level 0 is the warm-up."""
    table = failure_table([replace(rows[0], level=0)])
    assert _cells(table)[1][0] == "warm-up"


def test_columns_without_a_value_are_left_out(levels, told):
    """Energy, intervals and the rest are absent where nobody measured them."""
    assert level_table("requests", [replace(level, cached_prompt_share=None) for level in levels]) is None
    assert level_table("energy", levels) is None
    assert level_table("classes", ()) is None
    names = _cells(level_table("levels", levels))[1]
    assert "plateau" not in names
    assert {"plateau", "95 %", "with TTFT"} <= set(_cells(level_table("levels", told.levels))[1])


def test_energy_has_its_columns_and_reasons(told):
    """Joules per token, watts, and why the clocks were held back."""
    row = _cells(level_table("energy", told.levels))[2]
    assert row == ["1", "1.52", "9,000", "312", "349", "power cap", "NVML energy counter"]


def test_kinds_of_traffic_have_their_rows(told):
    """One for each kind of each level."""
    assert [row[1] for row in _cells(level_table("classes", told.classes))[2:]] == ["interactive", "batch"]


def test_requests_end_by_reason_and_fail_by_kind(told):
    """Counts, not shares: nothing is rounded away."""
    row = _cells(level_table("requests", told.levels))[4]
    assert row[-2:] == ["stop 45, length 3", "timeout 3"]


def test_no_failures_make_no_table(rows):
    """A clean run has no empty section."""
    assert failure_table(rows[3:]) == ""
