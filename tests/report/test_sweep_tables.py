"""The tables show every level and every kind of failure, and a dash where nothing is known."""

import re

from msgspec.structs import replace

from skep.report.page import make_environment
from skep.report.sweep import level_table


def failure_table(rows):
    return make_environment("skep.report").get_template("levels.html").module.failed(rows)


def _cells(markup):
    return [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", markup)
    ]


def test_every_level_has_its_row_with_all_of_its_figures(levels):
    """The reader sees which row is a lower bound, without colour; the heads span what the rows
    hold.
    """
    table = level_table("levels", levels)
    rows = _cells(table)[2:]
    assert [row[0] for row in rows] == ["1", "4", "8", "16"]
    assert rows[1] == [
        "4",
        "48",
        "0",
        "127",
        "121..133 (2 runs)",
        "36.2",
        "18 %",
        "148",
        "305",
        "366",
        "27.6",
        "35.9",
        "36.9",
        "68.1 s",
        "2",
        "31 % of prompt cached",
    ]
    assert [row[-1].startswith("client-limited") for row in rows] == [False, False, False, True]
    spans = sum(int(n) for n in re.findall(r'colspan="(\d+)"', table)) + table.count("rowspan")
    assert spans == len(rows[0])


def test_unknown_values_are_dashes(levels):
    """None is an en dash, never a zero."""
    names = (
        "effective_tok_s effective_low effective_high task_tok_s contention_pct ttft_ms tpot_ms "
        "engine_tok_s"
    )
    table = level_table("levels", [replace(levels[3], **dict.fromkeys(names.split()))])
    assert _cells(table)[2][3:12] == ["–"] * 9
    assert 'class="best"' not in table


def test_failures_are_counted_by_kind_with_their_first_message(rows):
    """Level 0 is the warm-up; a clean run has no empty section."""
    assert _cells(failure_table(rows))[1:] == [
        ["8", "http_503", "1", "the engine said: queue is full"],
        ["8", "timeout", "2", "no byte for 60 s"],
    ]
    assert _cells(failure_table([replace(rows[0], level=0)]))[1][0] == "warm-up"
    assert failure_table(rows[3:]) == ""


def test_columns_without_a_value_are_left_out(levels, complete):
    """Energy, intervals and the rest are absent where nobody measured them."""
    assert (
        level_table("requests", [replace(level, cached_prompt_share=None) for level in levels])
        is None
    )
    assert level_table("energy", levels) is None
    names = _cells(level_table("levels", levels))[1]
    assert "plateau" not in names
    assert {"plateau", "95 %"} <= set(_cells(level_table("levels", complete.levels))[1])


def test_energy_and_requests_have_tables_of_their_own(complete):
    """Joules per token and why the clocks were held back; counts, not rounded shares."""
    energy = _cells(level_table("energy", complete.levels))[2]
    assert energy == ["1", "1.52", "9,000", "312", "349", "power cap", "NVML energy counter"]
    assert _cells(level_table("requests", complete.levels))[4][-2:] == [
        "stop 45, length 3",
        "timeout 3",
    ]
