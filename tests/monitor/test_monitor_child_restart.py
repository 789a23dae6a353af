"""The loop beside a hive: begun anew with other settings, its log bounded, and what a reload leaves out is told."""

import asyncio
import sys

from skep.supervisor.gateway_child import MonitorChild

CHILD = """
import os, sys
print("began", flush=True)
os.read(int(sys.argv[sys.argv.index("--parent-fd") + 1]), 1)
"""


async def begun(tmp_path, times):
    """The log is the child's only voice: there is no event to await."""
    log = tmp_path / "monitor.log"
    async with asyncio.timeout(20):
        while not log.exists() or log.read_text().count("began") < times:
            await asyncio.sleep(0.01)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_other_settings_end_what_runs_and_begin_it_anew_at_once(tmp_path):
    """The pause after one that died is not waited for. Without a command line it stays away."""

    async def run():
        words = [sys.executable, "-c", CHILD]
        sidecar = MonitorChild(words, tmp_path / "monitor.log", begin=True, delays_s=(600.0,))
        task = asyncio.create_task(sidecar.run())
        await begun(tmp_path, 1)
        first = sidecar.pid
        await sidecar.become([*words, "other"], begin=False)
        await begun(tmp_path, 2)
        assert not alive(first)
        second = sidecar.pid
        await sidecar.become([], begin=True)
        assert not alive(second)
        assert not sidecar.wake()
        await sidecar.become(words, begin=True)
        await begun(tmp_path, 3)
        await sidecar.stop()
        await asyncio.wait_for(task, 10)
        assert (sidecar.starts, sidecar.wake()) == (3, False)

    asyncio.run(run())


def test_its_log_is_rotated(tmp_path):
    chatter = "import sys; sys.stdout.write(('x' * 1023 + chr(10)) * 9000); sys.stdout.flush(); sys.stdin.read()"

    async def run():
        sidecar = MonitorChild([sys.executable, "-c", chatter], tmp_path / "monitor.log", begin=True, delays_s=(600.0,))
        task = asyncio.create_task(sidecar.run())
        async with asyncio.timeout(20):
            while sum(one.stat().st_size for one in tmp_path.iterdir()) < 9000 * 1024:
                await asyncio.sleep(0.01)
        await sidecar.stop()
        await asyncio.wait_for(task, 10)

    asyncio.run(run())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["monitor.log", "monitor.log.1"]
