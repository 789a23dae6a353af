"""Files that another process left in the middle of something: killed while it wrote, or of another
version of skep.
"""

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from skep.errors import StoreError
from skep.store.database import MIGRATIONS, migrate, open_store, version_of
from skep.store.records import RunState

VERSIONS = sorted(int(file.stem) for file in Path(__file__).with_name("versions").glob("*.sql"))
LATER = "20991231-000000-zzzzzz"  # the id of a run after all others
KILLED_WHILE_MIGRATING = """
import os, signal, sqlite3, sys
from skep.store.database import migrate
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("PRAGMA cache_size = 1")  # pages of the change reach the file before its end
connection.execute("BEGIN IMMEDIATE")
migrate(connection)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed_writer(path, child):
    """A file whose writer was killed; the run's id and how many of its rows were acknowledged."""
    with child("writer_process.py", path, -1) as writer:
        run_id = writer.stdout.readline().strip()
        writer.stdin.write("\n")
        writer.stdin.flush()
        acknowledged = 0
        while acknowledged < 50:
            acknowledged = int(writer.stdout.readline()) + 1
        writer.kill()
        acknowledged += len(writer.stdout.read().splitlines())
    assert Path(f"{path}-wal").stat().st_size > 0
    return run_id, acknowledged


def as_old_rows(old, table):
    """The columns of a table as the old process knows them, and its rows."""
    cursor = old.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in cursor.description]
    return names, cursor.fetchall()


def with_id(names, row, run_id):
    """The same row with another id."""
    return tuple({**dict(zip(names, row, strict=True)), "id": run_id}.values())


def insert_as_old(old, table, names, row):
    """What an older skep does: it names the columns that it knows."""
    marks = ", ".join("?" * len(names))
    old.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", row)


@pytest.mark.parametrize("read_only", [True, False])
def test_what_was_acknowledged_before_a_kill_is_there(path, killed_writer, read_only):
    run_id, acknowledged = killed_writer
    with open_store(path, read_only=read_only) as store:
        rows = [row.index for row in store.requests(run_id)]
        assert rows[:acknowledged] == list(range(acknowledged))
        assert store.run(run_id).state is RunState.INCOMPLETE
        assert store.read("PRAGMA integrity_check")[0][0] == "ok"


def test_a_file_goes_on_after_a_kill_and_takes_new_rows(path, killed_writer, begin, a_request):
    with open_store(path) as store:
        fresh = begin(store)
        store.append_requests(fresh, [a_request()])
        store.end_run(fresh, 1.0, "done")
        assert {run.state for run in store.runs()} == {RunState.DONE, RunState.INCOMPLETE}


def test_a_log_without_its_file_s_index_is_read_too(path, killed_writer, tmp_path):
    """As after a copy of the file and its log alone: the index is made anew."""
    run_id, acknowledged = killed_writer
    copy = tmp_path / "copy.sqlite3"
    for end in ("", "-wal"):
        Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    with open_store(copy, read_only=True) as store:
        assert len(store.requests(run_id)) >= acknowledged


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_a_migration_that_was_killed_is_made_again(old_file, version):
    path = old_file(str(version))
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_MIGRATING, str(path)], check=False)
    assert killed.returncode < 0
    with closing(sqlite3.connect(path)) as connection:
        assert version_of(connection) == version
    with open_store(path) as store:
        assert store.run("last").state is RunState.DONE


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_an_older_skep_that_is_still_at_work_goes_on_after_the_upgrade(old_file, version):
    path = old_file(str(version))
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        names, (row, *_) = as_old_rows(old, "runs")
        with open_store(path) as store:
            later = [
                value if name != "id" else "20991231-000000-zzzzzz"
                for name, value in zip(names, row, strict=True)
            ]
            insert_as_old(old, "runs", names, later)
            assert as_old_rows(old, "requests")[1] != []
            assert store.run("last").id == LATER


def test_an_upgrade_waits_for_the_transaction_of_an_older_skep(old_file):
    path = old_file(str(VERSIONS[-2]))
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as old:
        old.execute("PRAGMA journal_mode = WAL")
        names, (row, *_) = as_old_rows(old, "runs")
        old.execute("BEGIN IMMEDIATE")
        later = with_id(names, row, LATER)
        insert_as_old(old, "runs", names, later)
        ending = threading.Timer(0.3, lambda: old.execute("COMMIT"))
        ending.start()
        with open_store(path) as store:
            assert store.run("last").id == LATER
        ending.join()


def newer_file(path):
    """A file as a later skep leaves it: one table more, one version more."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        migrate(connection)
        connection.execute("CREATE TABLE things_of_later (id TEXT)")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        connection.execute("COMMIT")
    return path


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_of_a_newer_skep_is_refused_with_both_versions(tmp_path, read_only):
    path = newer_file(tmp_path / "newer.sqlite3")
    with pytest.raises(StoreError) as caught:
        open_store(path, read_only=read_only)
    newest_version = len(MIGRATIONS)
    versions = f"schema {newest_version + 1}, this one knows {newest_version}"
    assert str(caught.value) == f"`{path}` was written by a newer skep ({versions})"
    assert caught.value.hint == "upgrade skep, or name another file"


def test_a_store_that_is_open_goes_on_while_a_newer_skep_upgrades_the_file(
    path, store, begin, a_request
):
    run_id = begin(store)
    newer_file(path)
    store.append_requests(run_id, [a_request()])
    store.end_run(run_id, 1.0, "done")
    assert store.run(run_id).state is RunState.DONE
