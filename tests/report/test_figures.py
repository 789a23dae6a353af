"""Numbers read as a person would write them."""

from dataclasses import dataclass
from operator import itemgetter

import pytest

from skep.report.columns import Column, csv_table, documents, markdown_table, present, record_lines
from skep.report.page import html_table
from skep.units import (
    fact_list,
    milliseconds,
    moment,
    number,
    percent,
    printable,
    public_url,
    shortened,
    times,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (0.0, "0.00"),
        (0.417, "0.42"),
        (41.74, "41.7"),
        (231.4, "231"),
        (12345.6, "12,346"),
        (-2.44, "−2.4"),
    ],
)
def test_number_has_three_figures_or_a_dash(value, text):
    """What is unknown or not finite is a dash."""
    assert number(value) == text


def test_signs_and_units_say_nothing_that_is_not_so():
    """−0 % would be read as a gain; "– %" says nothing that "–" does not."""
    assert percent(-0.2) == "0 %"
    assert percent(None) == times(None) == moment(None) == "–"


def test_facts_of_any_shape_become_text():
    """Nested JSON is written out; sizes are in their units; what is empty is unknown."""
    gpus = [{"name": "a", "memory_bytes": 2**30, "power_limit_w": None}, {"name": "b"}]
    facts = {
        "gpus": gpus,
        "features": ["x", "y"],
        "memory_bytes": 2**31,
        "ssl": False,
        "empty": [],
        "t": 0.70,
    }
    assert dict(fact_list({**facts, "none": None})) == {
        "gpus": "name a, memory 1.0 GiB; name b",
        "features": "x, y",
        "memory": "2.0 GiB",
        "ssl": "no",
        "empty": "–",
        "t": "0.7",
        "none": "–",
    }


def test_text_from_elsewhere_is_made_safe_and_short():
    """XML forbids control characters, even escaped; an engine may answer with a whole page of
    HTML.
    """
    assert printable("naïve 模型\u00a0🐝\n\x1b\ud800") == "naïve 模型\u00a0🐝\n��"
    assert shortened("x" * 500, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("http://u:p@h:1/v1", "http://h:1/v1"),
        ("http://h/v1", "http://h/v1"),
        ("http://[broken", "http://[broken"),
    ],
)
def test_url_is_shown_without_its_password(url, public):
    """Even a URL that cannot be parsed is shown rather than lost."""
    assert public_url(url) == public


@dataclass(frozen=True)
class Level:
    name: str
    speed: float | None
    first_ms: float | None = None


COLUMNS = [
    Column[Level]("name", "name", lambda level: level.name, right=False),
    Column[Level]("speed_tok_s", "tok/s", lambda level: level.speed),
    Column[Level](
        "first_ms", "TTFT", lambda level: level.first_ms, milliseconds, optional=True, rank=1
    ),
]
LEVELS = [Level("a|b", 12.345), Level("c<d", None)]


def test_every_form_has_the_same_figures_and_says_what_is_unknown():
    assert documents(COLUMNS, LEVELS)[1] == {"name": "c<d", "speed_tok_s": None, "first_ms": None}
    assert csv_table(COLUMNS, LEVELS) == "name,speed_tok_s,first_ms\na|b,12.345,\nc<d,,\n"
    assert (
        markdown_table(COLUMNS, LEVELS)
        == "| name | tok/s |\n| --- | ---: |\n| a\\|b | 12.3 |\n| c&lt;d | – |\n"
    )
    page = html_table("Levels", COLUMNS, LEVELS, best=[0])
    assert "c&lt;d" in page
    assert "<td>12.3</td>" in page
    assert 'class="best"' in page
    assert "TTFT" not in page


def test_an_optional_column_is_there_where_one_record_has_a_value():
    assert [column.key for column in present(COLUMNS, [*LEVELS, Level("e", 1.0, 250.0)])][
        -1
    ] == "first_ms"


def test_a_table_fits_its_width_the_least_important_columns_go_first():
    looks = {"model": (0, False), "tok/s": (0, True), "started": (1, False), "folder": (2, False)}
    columns = [
        Column(key, key, itemgetter(key), rank=rank, right=right)
        for key, (rank, right) in looks.items()
    ]
    cells = ["qwen3.6-27b-awq-on-two-cards", "118", "2026-11-17 09:30", "/srv/models/qwen"]
    rows = [dict(zip(looks, cells, strict=True))]
    whole = record_lines(columns, rows)
    assert whole[1] == "qwen3.6-27b-awq-on-two-cards    118  2026-11-17 09:30  /srv/models/qwen"
    assert record_lines(columns, rows, 60)[::2] == [
        "model                         tok/s  started",
        "(not shown at this width: folder)",
    ]
    narrow = record_lines(columns, rows, 24)
    assert narrow[1] == "qwen3.6-27b-…ards    118"
    assert narrow[2] == "(not shown at this widt…"


def test_wide_characters_keep_the_columns_in_line():
    columns = [Column("name", "name", itemgetter(0), right=False), Column("n", "n", itemgetter(1))]
    lines = record_lines(columns, [["模型", "1"], ["cafe\u0301", "2"]])
    assert lines == ["name  n", "模型  1", "cafe\u0301  2"]
