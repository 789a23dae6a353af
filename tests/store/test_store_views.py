"""The views that other programs are pointed at, held against the page that describes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/store.md").read_text(encoding="utf-8")
VIEWS = ("v_probes", "v_samples", "v_series_hours", "v_series_days", "v_events", "v_alerts", "v_changes")
VIEWS += ("v_swarm_runs", "v_swarm_tasks", "v_swarm_attempts", "v_tunings", "v_tuning_stages")


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_of_a_view_is_in_the_page(store, view):
    """In the paragraph that begins with its name."""
    (paragraph,) = re.findall(rf"^- [^\n]*`{view}`[^:]*:(.*?)(?=^- |\n\n)", PAGE, re.MULTILINE | re.DOTALL)
    columns = store.read(f"PRAGMA table_info({view})")
    assert columns
    for row in columns:
        assert re.search(rf"\b{row['name']}\b", paragraph), row["name"]


@pytest.mark.parametrize("query", re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))
def test_the_queries_of_the_page_can_be_made(store, query):
    assert store.read(query) == []


def test_duckdb_can_read_every_view(store):
    """It reads their text with a parser of its own, which stumbled over these three."""
    views = store.read("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
    assert {row["name"] for row in views} >= set(VIEWS)
    for row in views:
        assert not re.search(r"count\(\*\)|\bdate\(|[(,\s]at,", row["sql"]), row["name"]
