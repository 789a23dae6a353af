"""Files of every schema there ever was, opened by the present one.

A new migration comes with a dump of the schema it makes: `versions/NUMBER.sql`, one finished run
in it and, from 2 on, one gateway request."""

import os
import sqlite3
from pathlib import Path

import pytest

from skep.errors import StoreError
from skep.gateway.batch.store import BatchStore
from skep.store.database import MIGRATIONS, open_store
from skep.store.records import RunState

DUMPS = sorted((file.stem for file in Path(__file__).with_name("versions").glob("*.sql")), key=int)


def schema(path: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()
    connection.close()
    return rows


def test_every_version_has_a_dump():
    """A migration without a dump could not be tried on the file it starts from."""
    assert [int(dump) for dump in DUMPS] == list(range(1, len(MIGRATIONS) + 1))


@pytest.mark.parametrize("dump", DUMPS)
def test_old_file_opens_with_its_run_takes_new_rows_and_is_as_a_fresh_one(
    dump, old_file, tmp_path, a_gateway_request
):
    """Whatever skep wrote it.

    Schema 1 had no place for gateway requests; what 2 wrote is there.
    """
    old = old_file(dump)
    with open_store(old) as store:
        run = store.run("last")
        assert (run.id, run.state, run.requests) == ("20261115-142233-a1b2c3", RunState.DONE, 1)
        (request,) = store.requests(run.id)
        assert (request.output_tokens, request.arrivals_s, request.engine.decode_tok_s) == (
            50,
            (1.0, 2.0),
            50.0,
        )
        assert len(store.client_samples(run.id)) == 1
        before = [row.id for row in store.gateway_requests()]
        assert before == ([] if dump == "1" else ["k3xq9a-1"])
        store.append_gateway_requests([a_gateway_request("new-1", arrived_at=2_000_000_000.0)])
        assert [row.id for row in store.gateway_requests()] == ["new-1", *before]
    open_store(tmp_path / "fresh.sqlite3").close()
    assert schema(old) == schema(tmp_path / "fresh.sqlite3")


OLD_BATCH = (
    (
        "INSERT INTO files (id, owner, created_at, filename, purpose, bytes) VALUES ('file-1', "
        "'', 1.0, 'f', 'batch', 9)"
    ),
    (
        "INSERT INTO batches (id, owner, created_at, endpoint, input_file_id, "
        "completion_window, expires_at)"
        " VALUES ('batch_1', '', 1.0, '/v1/embeddings', 'file-1', '24h', 9e9)"
    ),
    (
        "INSERT INTO batch_events (batch_id, status, at, detail) VALUES ('batch_1', "
        "'in_progress', 2.0, '{\"total\": 2}')"
    ),
    "INSERT INTO batch_requests VALUES ('batch_1', 0, 'a', 0, 5), ('batch_1', 1, 'b', 5, 4)",
    (
        "INSERT INTO batch_results (batch_id, idx, ended_at, ok, line) VALUES ('batch_1', 0, "
        "3.0, 1, x'7b7d')"
    ),
)


@pytest.mark.parametrize("dump", DUMPS[6:])
def test_a_batch_of_an_old_file_goes_on(dump, old_file):
    """Before 9 nothing was noted when a request was begun:
    whatever has no result was never lost.
    """
    path = old_file(dump)
    connection = sqlite3.connect(path)
    for statement in OLD_BATCH:
        connection.execute(statement)
    connection.commit()
    connection.close()
    with open_store(path) as store:
        batches = BatchStore(store)
        assert [request.custom_id for request in batches.pending("batch_1")] == ["b"]
        assert batches.lost("batch_1") == {}
        batches.record("batch_1", under_way=[1], since=4.0)
        assert batches.lost("batch_1") == {1: 1}


def test_what_a_file_notes_as_begun_is_there(old_file):
    with open_store(old_file(DUMPS[8])) as store:
        assert BatchStore(store).lost("batch_0123456789abcdef01234567") == {1: 1}


@pytest.mark.parametrize("dump", DUMPS[:-1])
def test_reader_of_an_old_file_brings_it_along(dump, old_file):
    """`skep runs` only reads, and is what people try first after an upgrade; it once refused its
    own users' files.
    """
    path = old_file(dump)
    with open_store(path, read_only=True) as reader:
        assert reader.run("last").state is RunState.DONE
        assert reader.count_gateway_requests() == (int(dump) >= 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_old_file_that_may_not_be_written_is_refused_to_readers(old_file):
    """Readers would query tables that are not there."""
    path = old_file(DUMPS[0])
    path.chmod(0o400)
    with pytest.raises(StoreError, match="must be upgraded"):
        open_store(path, read_only=True)
