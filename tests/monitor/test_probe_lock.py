"""One probe at a time on a machine, over processes; and what the loop does when its file is taken away."""

import asyncio
import contextlib
import subprocess
import sys

import pytest

from skep.errors import StoreError
from skep.monitor.loop import Loop, probe_by_hand, probe_turn
from skep.monitor.records import ProbeOutcome, ProbeTarget
from skep.monitor.store import SeriesStore
from skep.store.database import open_store
from skep.testing.process import FakeEngine

HOLDER = """
import asyncio, sys
from pathlib import Path
from skep.monitor.loop import probe_turn
async def hold():
    async with probe_turn(Path(sys.argv[1]), "here", lambda: None):
        print("held", flush=True)
        await asyncio.sleep(600)
asyncio.run(hold())
"""


def test_nobody_is_waited_for_without_need(tmp_path):
    """Neither another machine, nor one that never ends (a probe by hand stopped with Ctrl-Z), nor without a folder."""
    (tmp_path / "file").write_text("")

    async def run():
        async with (
            probe_turn(tmp_path, "here", pytest.fail),
            probe_turn(tmp_path, "there", pytest.fail),
            probe_turn(tmp_path, "here", lambda: None, 0.05),
            probe_turn(tmp_path / "file" / "folder", "here", pytest.fail),
        ):
            return True

    assert asyncio.run(run())


def test_a_lock_ends_with_its_holder_and_can_be_waited_for_in_vain(tmp_path):
    """The holder is killed: nobody gives it back but the kernel. Who breaks off its wait has none."""

    async def run():
        waiting = asyncio.Event()
        words = (sys.executable, "-c", HOLDER, str(tmp_path))
        child = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        try:
            assert await child.stdout.readline() == b"held\n"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), probe_turn(tmp_path, "here", waiting.set):
                    pytest.fail("two at once")
            child.kill()
            async with asyncio.timeout(10), probe_turn(tmp_path, "here", lambda: None):
                return waiting.is_set()
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    assert asyncio.run(run())


def test_a_probe_by_hand_waits_for_the_one_under_way(tmp_path, series):
    """Both would have been busy with each other."""

    async def run(engine):
        box = ProbeTarget("box", engine.url, short_tokens=8, long_tokens=0)
        series.put_target(box)
        said = []
        folder = tmp_path / "probing"
        async with probe_turn(folder, "here", pytest.fail):
            task = asyncio.ensure_future(
                probe_by_hand(series, box, {}, turns=folder, waits=lambda: said.append("waits"))
            )
            while not said:
                await asyncio.sleep(0)
        probe, _ = await asyncio.wait_for(task, 20)
        return said, probe

    with FakeEngine(slots=2, token_ms=1) as engine:
        said, probe = asyncio.run(run(engine))
    assert (said, probe.outcome, probe.busy) == (["waits"], ProbeOutcome.DONE, False)


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_store_that_is_taken_away_ends_the_loop_in_one_line(tmp_path, how):
    """What it would write from then on into the old file nobody would ever find."""
    path = tmp_path / "store.sqlite3"

    async def run(store):
        loop = Loop(SeriesStore(store), pytest.fail, say=lambda _line: None, poll_s=0.01)
        watching = asyncio.ensure_future(loop.run())
        await asyncio.sleep(0.03)
        path.unlink()
        if how == "replaced":
            path.write_bytes(b"")
        await asyncio.wait_for(watching, 10)

    with open_store(path) as store, pytest.raises(StoreError, match="deleted or replaced"):
        asyncio.run(run(store))
