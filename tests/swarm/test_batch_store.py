"""Files on disk and the rows of batches: whole or not at all, written once, gone when told."""

import os
import shutil
import tracemalloc

import pytest

from skep.errors import StoreError
from skep.gateway.batch.files import ORPHANED_S, UNFINISHED_S, FileStorage, new_file_id
from skep.gateway.batch.store import (
    BatchOrder,
    BatchRequest,
    BatchResult,
    BatchStatus,
    BatchStore,
    StoredFile,
    UnfinishedBatch,
)
from skep.store.database import open_store


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "skep.sqlite3") as opened:
        batches = BatchStore(opened)
        batches.add_file(StoredFile("file-in", "", 0.0, "f", "batch", 1, expires_at=5.0))
        yield batches


def order(name="batch_1", owner="", at=1.0):
    return BatchOrder(
        name, owner, at, "/v1/chat/completions", "file-in", "24h", at + 86_400, {"a": "b"}
    )


def requests(count):
    return [BatchRequest(index, f"c{index}", index * 10, 10) for index in range(count)]


def result(index, *, ok=True, line=b"x\n", **tokens):
    return BatchResult(index, 2.0, ok=ok, line=line, status=200, **tokens)


def test_a_new_batch_is_validated_then_in_progress(store):
    store.add_batch(order())
    assert store.batch("batch_1").status is BatchStatus.VALIDATING
    assert store.batch("batch_2") is None
    store.validated("batch_1", 2.0, "m", requests(3))
    batch = store.batch("batch_1")
    assert (batch.order, batch.status) == (order(), BatchStatus.IN_PROGRESS)
    assert (batch.detail["model"], batch.detail["total"]) == ("m", 3)
    assert batch.detail["tally"]["completed"] == 0


def test_a_batch_is_cancelled_once_whatever_the_other_process_was_at(store):
    store.add_batch(order())
    store.validated("batch_1", 2.0, "m", requests(3))
    assert store.become("batch_1", BatchStatus.CANCELLING, 3.0)
    assert not store.become("batch_1", BatchStatus.CANCELLING, 4.0)
    assert [(entry.cancelling, entry.ending) for entry in store.unfinished(9.0)] == [(True, True)]
    assert store.become("batch_1", BatchStatus.FINALIZING, 5.0)
    assert store.batch("batch_1").status is BatchStatus.CANCELLING


def test_a_cancelled_batch_is_final(store):
    store.add_batch(order())
    store.validated("batch_1", 2.0, "m", requests(3))
    store.become("batch_1", BatchStatus.CANCELLING, 3.0)
    store.become("batch_1", BatchStatus.CANCELLED, 6.0, ())
    assert store.batch("batch_1").times[BatchStatus.CANCELLING] == 3.0
    assert (store.batch("batch_1").status, store.unfinished(9.0)) == (BatchStatus.CANCELLED, [])
    assert not store.become("batch_1", BatchStatus.COMPLETED, 7.0)


def test_the_first_result_of_a_request_stays(store):
    store.add_batch(order())
    store.validated("batch_1", 2.0, "m", requests(4))
    store.record("batch_1", [result(2, line=b"first\n", output_tokens=3), result(0, ok=False)])
    store.record(
        "batch_1", [result(2, line=b"second\n", output_tokens=9), result(1, line=b"one\n")]
    )
    assert [request.index for request in store.pending("batch_1")] == [3]
    assert list(store.lines("batch_1", ok=True)) == [b"one\n", b"first\n"]
    assert list(store.lines("batch_1", ok=False)) == [b"x\n"]
    tally = store.tally("batch_1")
    assert [tally[name] for name in ("completed", "failed", "output_tokens", "prompt_tokens")] == [
        2,
        1,
        3,
        None,
    ]


def test_an_ended_batch_takes_nothing_more_and_its_rows_go(store):
    store.add_batch(order())
    store.validated("batch_1", 2.0, "m", requests(2))
    store.record("batch_1", [result(0)])
    output = StoredFile("file-out", "", 3.0, "out.jsonl", "batch_output", 2, 99.0)
    tally = {"completed": 1, "failed": 0}
    store.become(
        "batch_1", BatchStatus.EXPIRED, 3.0, [output], tally=tally, output_file_id="file-out"
    )
    # By a process that was late.
    assert not store.become("batch_1", BatchStatus.COMPLETED, 4.0, [output])
    with pytest.raises(StoreError, match="has ended"):
        store.record("batch_1", [result(1)])
    store.forget_ended()
    assert (store.pending("batch_1"), store.tally("batch_1")["completed"]) == ([], 0)
    batch = store.batch("batch_1")
    assert (batch.status, batch.detail["tally"]["completed"]) == (BatchStatus.EXPIRED, 1)
    assert store.file("file-out") == output


def test_pages_are_by_age_and_by_owner_and_what_is_unfinished_by_age(store):
    for number, owner in enumerate(["ann", "bob", "ann", "ann"]):
        store.add_batch(order(f"batch_{number}", owner, float(number)))
        store.add_file(StoredFile(f"file-{number}", owner, 0.0, "f", "batch", 1))
    assert [batch.order.id for batch in store.batches(owner="ann", after="batch_3", limit=1)] == [
        "batch_2"
    ]
    assert [file.id for file in store.files(owner="ann", after="file-3")] == ["file-2", "file-0"]
    store.validated("batch_1", 9.0, "m", requests(1))
    assert [batch.id for batch in store.unfinished(9.0)] == [
        f"batch_{number}" for number in range(4)
    ]
    assert store.unfinished(9.0)[1] == UnfinishedBatch("batch_1", "bob", "m")
    assert [entry.ending for entry in store.unfinished(86_401.0)] == [True, True, False, False]


def test_a_file_is_in_use_until_its_batch_has_ended(store):
    assert store.add_batch(order())
    assert (store.expired_files(4.9), store.expired_files(5.0)) == ([], ["file-in"])
    assert (store.delete_file("file-in"), store.file("file-in") is None) == ("batch_1", False)
    assert store.become("batch_1", BatchStatus.FAILED, 2.0, ())
    assert (store.delete_file("file-in"), store.file("file-in")) == (None, None)
    assert not store.add_batch(order("batch_2"))  # it was deleted a moment before


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    room = FileStorage(tmp_path / "files")
    file_id = new_file_id()
    assert room.write(file_id, [b"ab", memoryview(b"cdef")]) == 6
    assert room.read(file_id, 1, 3) == b"bcd"
    assert room.path(file_id).stat().st_mode & 0o077 == 0

    def fails():
        yield b"begun"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        room.write(new_file_id(), fails())
    assert [path.name for path in room.folder.iterdir()] == [file_id]
    room.delete(file_id)
    room.delete(file_id)
    with pytest.raises(AssertionError):
        room.path("../etc/passwd")


def test_what_a_killed_process_left_behind_is_removed_when_it_is_old(tmp_path):
    """A whole file without its row is kept for long:
    the store may have been replaced by mistake.
    """
    room = FileStorage(tmp_path)
    kept_file = new_file_id()
    lost = new_file_id()
    part = f".{new_file_id()}.draft"
    for name in (kept_file, lost, part, "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (1000, 1000))
    for age_s, is_deleted in (
        (UNFINISHED_S, set()),
        (UNFINISHED_S + 1, {part}),
        (ORPHANED_S + 1, {part, lost}),
    ):
        room.sweep({kept_file}, now=1000 + age_s)
        assert {path.name for path in tmp_path.iterdir()} == {
            kept_file,
            lost,
            part,
            "notes.txt",
        } - is_deleted


def test_long_results_are_read_a_few_at_a_time(store):
    """Two hundred answers of many megabytes do not fit in memory."""
    store.add_batch(order())
    store.validated("batch_1", 2.0, "m", requests(40))
    lines = [bytes([65 + index]) * 1_000_000 for index in range(40)]
    for index, line in enumerate(lines):
        store.record("batch_1", [result(index, line=line)])
    tracemalloc.start()
    read = [line[:1] for line in store.lines("batch_1", ok=True)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == [line[:1] for line in lines]
    assert peak < 36_000_000  # two reads of at most 16 MiB


def test_what_was_begun_and_never_ended_is_counted(store):
    """An attempt that ended, with a result or without, is none of them."""
    store.add_batch(order())
    store.validated("batch_1", 2.0, "m", requests(4))
    store.record("batch_1", under_way=[0, 1, 2, 3], since=2.0)
    store.record("batch_1", under_way=[0, 1, 2], since=2.0)
    store.record("batch_1", [result(1)], under_way=[2], since=3.0)
    assert store.lost("batch_1") == {0: 1, 2: 2}
    assert store.become("batch_1", BatchStatus.EXPIRED, 4.0, ())
    store.forget_ended()
    assert store.lost("batch_1") == {}


def test_a_disk_that_is_nearly_full_takes_no_upload(tmp_path):
    room = FileStorage(tmp_path / "files", kept_free_bytes=shutil.disk_usage(tmp_path).free // 2)
    room.require_space(1)
    with pytest.raises(OSError, match="DELETE /v1/files/ID"):
        room.require_space(shutil.disk_usage(tmp_path).free)
