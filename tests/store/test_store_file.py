"""The file itself: how it is made, upgraded, refused, copied and shrunk."""

import os
import re
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from skep.errors import StoreError, UserError
from skep.store.database import (
    APPLICATION_ID,
    MIGRATIONS,
    Store,
    is_about_a_row,
    is_busy,
    open_store,
)
from skep.store.records import CalibrationRecord
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.workload.items import Checker, Item


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pragma(store, name: str):
    return store.read(f"PRAGMA {name}")[0][0]


def schema(path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT type, name FROM sqlite_master ORDER BY 1, 2").fetchall()
    connection.close()
    return rows


def test_a_file_is_made_for_its_owner_alone_and_its_connection_has_its_settings(
    tmp_path, begin, store
):
    """Prompts and answers are private: folder, file and side files."""
    path = tmp_path / "50% off?mode=memory#é" / "skep.sqlite3"
    with open_store(path) as created:
        begin(created)
        assert (mode(path.parent), mode(path)) == (0o700, 0o600)
        assert mode(path.with_name("skep.sqlite3-wal")) == 0o600
    # Readers do not block the writer, references hold, a locked file is waited for, the schema is
    # the newest.
    pragmas = {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 10_000}
    pragmas |= {"application_id": APPLICATION_ID, "user_version": len(MIGRATIONS)}
    assert {name: pragma(store, name) for name in pragmas} == pragmas


def test_a_file_of_a_newer_skep_or_of_another_program_is_left_as_it_is(path, tmp_path):
    """Steps run in one transaction: the file is upgraded or as it was."""
    connection = sqlite3.connect(tmp_path / "old.sqlite3", isolation_level=None)
    connection.execute("CREATE TABLE runs (id)")
    connection.execute("PRAGMA application_id = 0x534B4550")
    connection.close()
    with pytest.raises(StoreError, match="already exists"):
        open_store(tmp_path / "old.sqlite3")
    assert schema(tmp_path / "old.sqlite3") == [("table", "runs")]
    # It may hold what this one would not understand; a wrong path must not add tables to a
    # browser's history.
    with open_store(path) as store:
        store._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="written by a newer skep \\(schema 99") as caught:
        open_store(path)
    assert "upgrade skep" in caught.value.hint
    other_path = tmp_path / "places.sqlite"
    connection = sqlite3.connect(other_path)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()
    for read_only in (True, False):
        with pytest.raises(StoreError, match="another program"):
            open_store(other_path, read_only=read_only)
    assert schema(other_path) == [("table", "bookmarks")]


@pytest.mark.parametrize("read_only", [True, False])
def test_file_that_is_no_database_is_refused(tmp_path, read_only):
    """It is named, kept, and the way out is told."""
    notes = tmp_path / "notes.txt"
    notes.write_text("dear diary, " * 200)
    with pytest.raises(StoreError, match=r"notes\.txt` is damaged or not a database") as caught:
        open_store(notes, read_only=read_only)
    assert "move" in caught.value.hint
    assert notes.read_text().startswith("dear diary")


def test_damaged_file_is_reported(path, begin, a_request):
    """Pages overwritten from outside surface as StoreError with the path, not as foreign
    exceptions.
    """
    with open_store(path) as store:
        run_id = begin(store)
        store.append_requests(run_id, [a_request(i, prompt="x" * 900) for i in range(50)])
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with pytest.raises(StoreError, match=r"skep\.sqlite3` is damaged"), open_store(path) as store:
        store.requests(run_id)


def test_where_nothing_is_no_reader_makes_a_file_and_where_none_can_be_made_nobody(path, tmp_path):
    """A reader makes no empty database; a blank file may be anybody's, and is left to somebody who
    means to write.
    """
    with pytest.raises(StoreError, match="there is no database at"):
        open_store(path, read_only=True)
    assert not path.exists()
    (tmp_path / "blank.sqlite3").touch()
    with pytest.raises(StoreError, match="must be upgraded"):
        open_store(tmp_path / "blank.sqlite3", read_only=True)
    # A path through a file, a folder, and one that not even the superuser may write to.
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "skep.sqlite3", tmp_path, Path("/proc/skep.sqlite3")):
        if place.is_relative_to("/proc") and not sys.platform.startswith("linux"):
            continue
        with pytest.raises(StoreError, match="cannot be opened") as caught:
            open_store(place)
        assert str(place.parent) in caught.value.hint


def test_reader_cannot_write(path, store, begin):
    """Read-only is enforced by SQLite."""
    run_id = begin(store)
    with open_store(path, read_only=True) as reader:
        assert reader.run(run_id).id == run_id
        with pytest.raises(StoreError, match="readonly"):
            reader.end_run(run_id, 1.0, "done")
        assert repr(reader) == f"<Store {path}, read-only>"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_read_only_folder(tmp_path, begin):
    """A writer is told so; a reader of a closed file is served."""
    path = tmp_path / "archive" / "skep.sqlite3"
    with open_store(path) as store:
        run_id = begin(store)
    path.parent.chmod(0o500)
    try:
        with open_store(path, read_only=True) as reader:
            assert reader.run("last").id == run_id
        with pytest.raises(StoreError, match="cannot be opened"):
            open_store(path.with_name("other.sqlite3"))
    finally:
        path.parent.chmod(0o700)


def test_full_disk_is_named(store, begin, a_request):
    """What was stored before stays readable, and the hint says how to make room."""
    run_id = begin(store)
    store._connection.execute(f"PRAGMA max_page_count = {pragma(store, 'page_count') + 2}")
    with pytest.raises(StoreError, match="no space left") as caught:
        store.append_requests(run_id, [a_request(prompt="x" * 50_000)])
    assert "skep store gc" in caught.value.hint
    assert store.run(run_id).requests == 0


def test_locked_file_is_named(path, store, begin):
    """Somebody who holds the write lock past the timeout is reported as such."""
    store._connection.execute("PRAGMA busy_timeout = 1")
    with open_store(path) as second_store:
        second_store._connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another process") as caught:
            begin(store)
        assert is_busy(caught.value)
        assert not is_about_a_row(caught.value)
        second_store._connection.execute("ROLLBACK")
    begin(store)


def test_vacuum_gives_space_back(store, begin, a_request):
    """Deleting frees pages; vacuum frees the disk."""
    run_id = begin(store)
    store.append_requests(run_id, [a_request(i, prompt="x" * 5000) for i in range(300)])
    store.end_run(run_id, 1.0, "done")
    store.delete_runs([run_id])
    before = store.size_bytes()
    store.vacuum()
    assert store.size_bytes() < before / 4


def test_backup_is_one_file_that_opens_and_overwrites_nothing_unasked(
    tmp_path, store, begin, a_request
):
    """A copy taken while the run goes on holds all rows so far and needs no side files."""
    run_id = begin(store)
    store.append_requests(run_id, [a_request()])
    copy = tmp_path / "copy.sqlite3"
    store.backup(copy)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["copy.sqlite3"]
    assert mode(copy) == 0o600
    with open_store(copy) as opened:
        assert opened.requests(run_id) == [a_request()]
    copy.write_text("precious")
    with pytest.raises(UserError, match="exists"):
        store.backup(copy)
    assert copy.read_text() == "precious"
    store.backup(copy, overwrite=True)
    with open_store(copy) as opened:
        assert opened.run("last").id == run_id


def test_backup_that_cannot_be_is_refused(tmp_path, path, store):
    """Onto itself, under open connections; over one in use, whose log would spoil it; into no
    folder at all; and of a damaged file, which is named: the copy is not to blame, and no half of
    it is left."""
    with pytest.raises(UserError, match="the database itself"):
        store.backup(path, overwrite=True)
    with open_store(tmp_path / "used.sqlite3"), pytest.raises(StoreError, match="in use"):
        store.backup(tmp_path / "used.sqlite3", overwrite=True)
    with pytest.raises(StoreError, match=r"nowhere/copy\.sqlite3` cannot be opened"):
        store.backup(tmp_path / "nowhere" / "copy.sqlite3")
    damaged = tmp_path / "damaged.sqlite3"
    damaged.write_bytes(b"\xa5" * 8192)
    complaint = pytest.raises(StoreError, match=r"damaged\.sqlite3` is damaged")
    with Store(sqlite3.connect(damaged), damaged) as broken, complaint:
        broken.backup(tmp_path / "copy.sqlite3")
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.parametrize("replaced", [False, True])
def test_file_deleted_or_replaced_under_its_store_is_noticed(path, store, replaced):
    """SQLite goes on writing into the file that has no name any more."""
    assert not store.moved
    path.unlink()
    if replaced:
        path.touch()
    assert store.moved


PAGE = (Path(__file__).parents[2] / "docs/watch.md").read_text(encoding="utf-8")
VIEWS = (
    "v_probes",
    "v_samples",
    "v_series_hours",
    "v_series_days",
    "v_events",
    "v_alerts",
    "v_changes",
)
VIEWS += ("v_swarm_runs", "v_swarm_tasks", "v_swarm_attempts", "v_tunings", "v_tuning_stages")


def test_every_view_is_named_in_the_page_and_duckdb_can_read_it(store):
    """tests/surface/views.txt has their columns.

    DuckDB's own parser of their text stumbled over these three.
    """
    views = {
        row["name"]: row["sql"]
        for row in store.read("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
    }
    assert set(views) >= set(VIEWS)
    assert [view for view in views if f"`{view}`" not in PAGE] == []
    for view, text in views.items():
        assert not re.search(r"count\(\*\)|\bdate\(|[(,\s]at,", text), view


@pytest.mark.parametrize("query", re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))
def test_the_queries_of_the_page_can_be_made(store, query):
    assert store.read(query) == []


NOW = 1_794_752_553.25


def calibration(name="c-1", **changes):
    values = {
        "created_at": NOW, "host": "h0", "model": "qwen3-8b", "engine": "vllm", "quant": "awq",
        "layout": "TP=1", "rig": "rtx-3090", "simulated": False, "decode": 1.2, "batch": 0.9,
        "prompt": 1.5, "document": {"runs": ["a", "b"], "deep": {"x": [1, 2.5, None]}},
        "skep_version": "0.1.0",
    }  # fmt: skip
    return CalibrationRecord(id=name, **values | changes)


def test_calibrations_come_newest_first_those_of_one_host_or_all(store):
    """Of two at the same time the later row is newer; an id is taken once."""
    for name, host in (("c-1", "here"), ("c-2", "there"), ("c-3", "here")):
        store.append_calibration(calibration(name, host=host))
    assert [row.id for row in store.calibrations()] == ["c-3", "c-2", "c-1"]
    assert [row.id for row in store.calibrations("here")] == ["c-3", "c-1"]
    assert store.calibrations("nowhere") == []
    with pytest.raises(StoreError, match="does not take this row"):
        store.append_calibration(calibration())


def test_a_calibration_outlives_its_runs_is_read_by_people_and_goes_by_its_name(store, begin):
    """It has the figures of its own; `skep store gc` must not take away what plans rest on."""
    run_id = begin(store)
    store.end_run(run_id, NOW, "done")
    store.append_calibration(calibration(document={"runs": [run_id]}))
    assert store.delete_runs([run_id]) == 1
    query = (
        "SELECT calibration_id, measured_utc, step_factor, further_sequences_factor FROM "
        "v_calibrations"
    )
    assert [tuple(row) for row in store.read(query)] == [("c-1", "2026-11-15 14:22:33", 1.2, 0.9)]
    assert (store.delete_calibrations(["c-1", "unknown"]), store.calibrations()) == (1, [])


def test_the_file_of_schema_4_has_its_calibration(old_file):
    with open_store(old_file("4")) as store:
        (row,) = store.calibrations()
        assert (row.id, row.decode, row.document) == (
            "20261115-143000-c0ffee",
            1.25,
            {"fitted": {"decode": 1.25}},
        )


SAID = ({"role": "user", "content": "7 + 5 = ? ½ \ud83d"},)
ITEM = Item(
    "drills/add/7",
    SAID,
    Checker("number", {"answer": 12}),
    max_tokens=16,
    family="add",
    difficulty=1,
)
VERDICT = Verdict(
    4, 1, 7, ITEM.id, VerdictOutcome.WRONG, detail="11 instead of 12", checker="number/1"
)


def test_a_request_has_one_verdict_until_its_run_ends_or_is_deleted(store, begin):
    """A second opinion is a replay, not a row; what a finished run says is final."""
    run_id = begin(store, kind="quality")
    store.append_items(run_id, [ITEM])
    store.append_verdicts(run_id, [VERDICT])
    assert (store.items(run_id), store.verdicts(run_id)) == ([ITEM], [VERDICT])
    with pytest.raises(StoreError, match="does not take this row"):
        store.append_verdicts(run_id, [VERDICT])
    store.end_run(run_id, 1_794_752_600.0, "done")
    with pytest.raises(StoreError, match="has ended"):
        store.append_verdicts(run_id, [VERDICT])
    assert store.delete_runs([run_id]) == 1
    assert (store.items(run_id), store.verdicts(run_id)) == ([], [])
