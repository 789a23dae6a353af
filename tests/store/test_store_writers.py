"""Who wrote a run and whether it still lives, on a real and on a made-up /proc."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skep.store.writer_process import WriterProcess, is_alive, this_process

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def proc_with(folder: Path, *, pid: int, state: str = "S", ticks: int = 500, boot: str = "boot-a") -> Path:
    """A /proc of one process, whose name is chosen to mislead."""
    (folder / str(pid)).mkdir(parents=True)
    fields = " ".join([state, *(["0"] * 18), str(ticks), "0"])
    (folder / str(pid) / "stat").write_text(f"{pid} (a) Z (b) {fields}\n")
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    return folder


def test_this_process_is_alive():
    """Whoever asks is there."""
    assert is_alive(this_process())


@linux
def test_this_process_is_known_by_more_than_its_number():
    """Start time and boot come from the kernel."""
    writer = this_process()
    assert writer.pid == os.getpid()
    assert writer.start_ticks
    assert writer.boot_id


@pytest.mark.parametrize("state", ["S", "R", "D", "T"])
def test_process_with_the_same_start_is_alive(tmp_path, state):
    """Asleep, at work, waiting for a disk or stopped: all may go on."""
    assert is_alive(WriterProcess(7, 500, "boot-a"), proc_with(tmp_path, pid=7, state=state))


@pytest.mark.parametrize("changes", [{"state": "Z"}, {"state": "X"}, {"ticks": 501}, {"boot": "boot-b"}, {"pid": 8}])
def test_look_alike_is_not_the_writer(tmp_path, changes):
    """Dead, a later process with the same number, after a reboot, or no such number."""
    assert not is_alive(WriterProcess(7, 500, "boot-a"), proc_with(tmp_path, **({"pid": 7} | changes)))


def test_spoiled_stat_is_no_proof_of_life(tmp_path):
    """A line that cannot be read does not match."""
    proc = proc_with(tmp_path, pid=7)
    (proc / "7/stat").write_text("7 (x) S 1")
    assert not is_alive(WriterProcess(7, 500, "boot-a"), proc)


def test_without_proc_the_number_decides(tmp_path):
    """As on macOS: no start time, no boot."""
    me = this_process(tmp_path)
    assert me == WriterProcess(os.getpid(), None, None)
    assert is_alive(me, tmp_path)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert not is_alive(dataclasses.replace(me, pid=child.pid), tmp_path)


def test_process_of_another_user_is_alive(tmp_path):
    """Process 1 answers to nobody, or to root; it is there either way."""
    assert is_alive(WriterProcess(1, None, None), tmp_path)
