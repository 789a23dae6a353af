"""One description of a figure, and the tables made of it."""

from dataclasses import dataclass

from skep.report.columns import (
    Column,
    csv_table,
    documents,
    html_table,
    markdown_table,
    present,
    split_titles,
    table_lines,
)
from skep.units import milliseconds


@dataclass(frozen=True)
class Level:
    name: str
    speed: float | None
    first_ms: float | None = None


COLUMNS = [
    Column[Level]("name", "name", lambda level: level.name, right=False),
    Column[Level]("speed_tok_s", "tok/s", lambda level: level.speed),
    Column[Level]("first_ms", "TTFT", lambda level: level.first_ms, milliseconds, optional=True, rank=1),
]
LEVELS = [Level("a|b", 12.345), Level("c<d", None)]


def test_every_form_has_the_same_figures_and_says_what_is_unknown():
    assert documents(COLUMNS, LEVELS)[1] == {"name": "c<d", "speed_tok_s": None, "first_ms": None}
    assert csv_table(COLUMNS, LEVELS) == "name,speed_tok_s,first_ms\na|b,12.345,\nc<d,,\n"
    assert markdown_table(COLUMNS, LEVELS) == "| name | tok/s |\n| --- | ---: |\n| a\\|b | 12.3 |\n| c&lt;d | – |\n"
    page = html_table("Levels", COLUMNS, LEVELS, best=[0])
    assert "c&lt;d" in page
    assert "<td>12.3</td>" in page
    assert 'class="best"' in page
    assert "TTFT" not in page


def test_an_optional_column_is_there_where_one_record_has_a_value():
    assert [one.key for one in present(COLUMNS, [*LEVELS, Level("e", 1.0, 250.0)])][-1] == "first_ms"


def test_a_table_fits_its_width_the_least_important_columns_go_first():
    titles, right, ranks = split_titles("model|>tok/s|started~1|folder~2")
    rows = [["qwen3.6-27b-awq-on-two-cards", "118", "2026-11-17 09:30", "/srv/models/qwen"]]
    whole = table_lines(titles, rows, right, ranks)
    assert whole[1] == "qwen3.6-27b-awq-on-two-cards    118  2026-11-17 09:30  /srv/models/qwen"
    assert table_lines(titles, rows, right, ranks, 60)[::2] == [
        "model                         tok/s  started",
        "(not shown at this width: folder)",
    ]
    narrow = table_lines(titles, rows, right, ranks, 24)
    assert narrow[1] == "qwen3.6-27b-…ards    118"
    assert narrow[2] == "(not shown at this widt…"


def test_wide_characters_keep_the_columns_in_line():
    lines = table_lines(["name", "n"], [["模型", "1"], ["cafe\u0301", "2"]], [False, True], [0, 0])
    assert lines == ["name  n", "模型  1", "cafe\u0301  2"]
