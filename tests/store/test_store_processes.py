"""Several processes on one file: writers that die, writers at once, readers beside them."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from skep.store.database import open_store
from skep.store.records import RunState
from skep.store.rows import WriterProcess, is_alive, this_process

WRITER = "writer_process.py"


def go_on(process) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_open_a_fresh_file_at_once(path, child):
    """Each finds or makes the schema, whoever comes first; their rows do not get in each other's
    way.
    """
    with (
        child(WRITER, path, 25) as first,
        child(WRITER, path, 25) as second,
        child(WRITER, path, 25) as third,
    ):
        processes = (first, second, third)
        ids = [process.stdout.readline().strip() for process in processes]
        for process in processes:
            go_on(process)
        with open_store(path, read_only=True) as reader:
            count = 0
            while reader.run(ids[0]).requests < 25:
                rows = len(reader.requests(ids[0]))
                assert rows >= count
                count = rows
        for process in processes:
            go_on(process)
            assert process.wait(timeout=30) == 0
    with open_store(path) as store:
        assert sorted(run.id for run in store.runs()) == sorted(ids)
        assert {(run.state, run.requests) for run in store.runs()} == {(RunState.DONE, 25)}


def test_reader_sees_a_run_as_of_one_instant(path, store, begin, a_request):
    """A reader in the middle of its transaction is not disturbed by what is written meanwhile."""
    run_id = begin(store)
    with open_store(path, read_only=True) as reader:
        reader._connection.execute("BEGIN")
        assert reader.requests(run_id) == []
        store.append_requests(run_id, [a_request()])
        assert reader.requests(run_id) == []
        reader._connection.execute("COMMIT")
        assert len(reader.requests(run_id)) == 1


def proc_with(
    folder: Path, *, pid: int, state: str = "S", ticks: int = 500, boot: str = "boot-a"
) -> Path:
    """Make a /proc of one process, whose name is chosen to mislead."""
    (folder / str(pid)).mkdir(parents=True)
    fields = " ".join([state, *(["0"] * 18), str(ticks), "0"])
    (folder / str(pid) / "stat").write_text(f"{pid} (a) Z (b) {fields}\n")
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    return folder


@pytest.mark.parametrize(
    ("changes", "alive"),
    [
        *(
            ({"state": state}, True) for state in "SRDT"
        ),  # asleep, at work, waiting for a disk or stopped
        *(
            (changes, False)
            for changes in (
                {"state": "Z"},
                {"state": "X"},
                {"ticks": 501},
                {"boot": "b"},
                {"pid": 8},
            )
        ),
        ({"ticks": "spoiled"}, False),
    ],
)
def test_the_writer_is_known_by_its_start_and_a_look_alike_is_not_it(tmp_path, changes, alive):
    """Dead, a later process with the same number, after a reboot, no such number, or nothing that
    can be read.
    """
    assert (
        is_alive(WriterProcess(7, 500, "boot-a"), proc_with(tmp_path, **({"pid": 7} | changes)))
        is alive
    )


def test_without_proc_the_number_decides(tmp_path):
    """As on macOS: no start time, no boot.

    Process 1 answers to nobody, or to root; it is there either way.
    """
    me = this_process(tmp_path)
    assert me == WriterProcess(os.getpid(), None, None)
    assert is_alive(me, tmp_path)
    assert is_alive(WriterProcess(1, None, None), tmp_path)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert not is_alive(msgspec.structs.replace(me, pid=child.pid), tmp_path)
