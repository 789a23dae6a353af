"""The file itself: how it is made, upgraded, refused, copied and shrunk."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from skep.errors import StoreError, UserError
from skep.store import connection as migrations
from skep.store.connection import is_about_a_row, is_busy
from skep.store.database import Store, open_store


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pragma(store, name: str):
    return store.read(f"PRAGMA {name}")[0][0]


def schema(path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT type, name FROM sqlite_master ORDER BY 1, 2").fetchall()
    connection.close()
    return rows


def test_file_is_made_for_its_owner_alone(path, store, begin):
    """Prompts and answers are private: folder, file and side files."""
    begin(store)
    assert (mode(path.parent), mode(path)) == (0o700, 0o600)
    assert mode(path.with_name("skep.sqlite3-wal")) == 0o600


def test_settings_of_the_connection(store):
    """Readers do not block the writer, references hold, and a locked file is waited for."""
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "application_id")
    assert [pragma(store, name) for name in names] == ["wal", 1, 1, 10_000, migrations.APPLICATION_ID]


def test_blank_file_gets_the_whole_schema(path, store):
    """From nothing to the newest version in one opening."""
    assert pragma(store, "user_version") == len(migrations.MIGRATIONS)
    names = {name for kind, name in schema(path) if kind in ("table", "view")}
    assert {"runs", "run_ends", "requests", "client_samples", "gateway_requests"} <= names
    assert {"v_runs", "v_requests", "v_gateway_requests"} <= names


def test_opening_again_changes_nothing(path, begin):
    """The second opening finds the schema and the rows of the first."""
    with open_store(path) as store:
        run_id = begin(store)
    before = schema(path)
    with open_store(path) as store:
        assert [run.id for run in store.runs()] == [run_id]
    assert schema(path) == before


def test_failed_migration_leaves_the_old_file(path, tmp_path):
    """Steps run in one transaction: the file is upgraded or as it was."""
    connection = sqlite3.connect(tmp_path / "old.sqlite3", isolation_level=None)
    connection.execute("CREATE TABLE runs (id)")
    connection.execute("PRAGMA application_id = 0x534B4550")
    connection.close()
    with pytest.raises(StoreError, match="already exists"):
        open_store(tmp_path / "old.sqlite3")
    assert schema(tmp_path / "old.sqlite3") == [("table", "runs")]


def test_file_of_a_newer_skep_is_refused(path):
    """It may hold what this one would not understand."""
    with open_store(path) as store:
        store._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="written by a newer skep \\(schema 99") as caught:
        open_store(path)
    assert "upgrade skep" in caught.value.hint


def test_database_of_another_program_is_refused(tmp_path):
    """A wrong path must not add tables to somebody's browser history."""
    other = tmp_path / "places.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()
    for read_only in (True, False):
        with pytest.raises(StoreError, match="another program"):
            open_store(other, read_only=read_only)
    assert schema(other) == [("table", "bookmarks")]


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
    """Pages overwritten from outside surface as StoreError with the path, not as foreign exceptions."""
    with open_store(path) as store:
        run_id = begin(store)
        store.append_requests(run_id, [a_request(i, prompt="x" * 900) for i in range(50)])
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with pytest.raises(StoreError, match=r"skep\.sqlite3` is damaged"), open_store(path) as store:
        store.requests(run_id)


def test_reading_where_nothing_is(path):
    """A reader makes no empty database."""
    with pytest.raises(StoreError, match="there is no database at"):
        open_store(path, read_only=True)
    assert not path.exists()


def test_reader_cannot_write(path, store, begin):
    """Read-only is enforced by SQLite."""
    run_id = begin(store)
    with open_store(path, read_only=True) as reader:
        assert reader.run(run_id).id == run_id
        with pytest.raises(StoreError, match="readonly"):
            reader.end_run(run_id, 1.0, "done")
        assert repr(reader) == f"<Store {path}, read-only>"


def test_reader_cannot_upgrade(tmp_path):
    """A blank file may be anybody's: it is left to somebody who means to write."""
    (tmp_path / "blank.sqlite3").touch()
    with pytest.raises(StoreError, match="must be upgraded"):
        open_store(tmp_path / "blank.sqlite3", read_only=True)


def test_path_where_no_file_can_be_made(tmp_path):
    """A path through a file, a folder, and one that not even the superuser may write to."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "skep.sqlite3", tmp_path, Path("/proc/skep.sqlite3")):
        if path.is_relative_to("/proc") and not sys.platform.startswith("linux"):
            continue
        with pytest.raises(StoreError, match="cannot be opened") as caught:
            open_store(path)
        assert str(path.parent) in caught.value.hint


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
    with open_store(path) as other:
        other._connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another process") as caught:
            begin(store)
        assert is_busy(caught.value)
        assert not is_about_a_row(caught.value)
        other._connection.execute("ROLLBACK")
    begin(store)


def test_size_counts_the_side_files(path, store, begin):
    """What the user's disk loses, not what SQLite calls pages."""
    begin(store)
    files = list(path.parent.iterdir())
    assert len(files) == 3
    assert store.size_bytes() == sum(file.stat().st_size for file in files)


def test_vacuum_gives_space_back(store, begin, a_request):
    """Deleting frees pages; vacuum frees the disk."""
    run_id = begin(store)
    store.append_requests(run_id, [a_request(i, prompt="x" * 5000) for i in range(300)])
    store.end_run(run_id, 1.0, "done")
    store.delete_runs([run_id])
    before = store.size_bytes()
    store.vacuum()
    assert store.size_bytes() < before / 4


def test_backup_is_one_file_that_opens(tmp_path, store, begin, a_request):
    """A copy taken while the run goes on holds all rows so far and needs no side files."""
    run_id = begin(store)
    store.append_requests(run_id, [a_request()])
    copy = tmp_path / "copy.sqlite3"
    store.backup(copy)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["copy.sqlite3"]
    assert mode(copy) == 0o600
    with open_store(copy) as opened:
        assert opened.requests(run_id) == [a_request()]


def test_backup_does_not_overwrite_unasked(tmp_path, store, begin):
    """An existing file is only replaced on request, and then at once."""
    copy = tmp_path / "copy.sqlite3"
    copy.write_text("precious")
    with pytest.raises(UserError, match="exists"):
        store.backup(copy)
    assert copy.read_text() == "precious"
    run_id = begin(store)
    store.backup(copy, overwrite=True)
    with open_store(copy) as opened:
        assert opened.run("last").id == run_id


def test_backup_that_cannot_be_is_refused(tmp_path, path, store):
    """Onto itself, under open connections; over one in use, whose log would spoil it; and into no folder at all."""
    with pytest.raises(UserError, match="the database itself"):
        store.backup(path, overwrite=True)
    with open_store(tmp_path / "used.sqlite3"), pytest.raises(StoreError, match="in use"):
        store.backup(tmp_path / "used.sqlite3", overwrite=True)
    with pytest.raises(StoreError, match=r"nowhere/copy\.sqlite3` cannot be opened"):
        store.backup(tmp_path / "nowhere" / "copy.sqlite3")


def test_backup_of_a_damaged_file_names_that_file(tmp_path):
    """The copy is not to blame, and no half of it is left."""
    path = tmp_path / "damaged.sqlite3"
    path.write_bytes(b"\xa5" * 8192)
    with Store(sqlite3.connect(path), path) as store:
        with pytest.raises(StoreError, match=r"damaged\.sqlite3` is damaged"):
            store.backup(tmp_path / "copy.sqlite3")
        assert list(tmp_path.iterdir()) == [path]


def test_odd_characters_in_the_path(tmp_path, begin):
    """A path is a path and not a query string."""
    path = tmp_path / "50% off?mode=memory#é" / "skep.sqlite3"
    with open_store(path) as store:
        begin(store)
    assert path.is_file()


@pytest.mark.parametrize("replaced", [False, True])
def test_file_deleted_or_replaced_under_its_store_is_noticed(path, store, replaced):
    """SQLite goes on writing into the file that has no name any more."""
    assert not store.moved
    path.unlink()
    if replaced:
        path.touch()
    assert store.moved
