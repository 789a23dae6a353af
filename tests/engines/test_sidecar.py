"""A helper beside the gateway: kept running, gone with skep, no cost where it is not wanted."""

import asyncio
import os
import sys

from skep.supervisor.monitor_child import MonitorChild

# Says that it began, and ends with its parent: what the child of a sidecar has to do.
CHILD = """
import os, sys
print("began", flush=True)
descriptor = int(sys.argv[sys.argv.index("--parent-fd") + 1])
if "die" in sys.argv:
    sys.exit(3)
os.read(descriptor, 1)
"""


def make(tmp_path, *words, begin=True):
    return MonitorChild([sys.executable, "-c", CHILD, *words], tmp_path / "monitor.log", begin=begin, delays_s=(0.01,))


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


def test_one_that_dies_is_started_again_until_it_is_stopped(tmp_path):
    async def run():
        sidecar = make(tmp_path, "die")
        task = asyncio.create_task(sidecar.run())
        await begun(tmp_path, 3)
        await sidecar.stop()
        await asyncio.wait_for(task, 10)
        assert sidecar.starts >= 3
        assert sidecar.pid is None

    asyncio.run(run())


def test_one_that_runs_goes_when_it_is_stopped(tmp_path):
    async def run():
        sidecar = make(tmp_path)
        task = asyncio.create_task(sidecar.run())
        await begun(tmp_path, 1)
        pid = sidecar.pid
        await sidecar.stop()
        task.cancel()
        assert not alive(pid)
        assert not sidecar.wake()
        assert sidecar.starts == 1

    asyncio.run(run())


def test_nothing_is_started_before_somebody_wants_it(tmp_path):
    async def run():
        sidecar = make(tmp_path, begin=False)
        task = asyncio.create_task(sidecar.run())
        for _ in range(3):
            await asyncio.sleep(0)
        assert sidecar.starts == 0
        assert not (tmp_path / "monitor.log").exists()
        assert sidecar.wake()
        await begun(tmp_path, 1)
        await sidecar.stop()
        task.cancel()

    asyncio.run(run())


def test_without_a_command_line_it_never_starts(tmp_path):
    async def run():
        sidecar = MonitorChild([], tmp_path / "monitor.log", begin=True)
        assert not sidecar.wake()
        await sidecar.stop()

    asyncio.run(run())


def test_the_child_ends_when_its_keeper_is_gone_without_a_word(tmp_path):
    """Cancelled, as if killed: nobody sends a signal, the end of the pipe is all that the child hears."""

    async def run():
        sidecar = make(tmp_path)
        task = asyncio.create_task(sidecar.run())
        await begun(tmp_path, 1)
        pid = sidecar.pid
        task.cancel()
        async with asyncio.timeout(10):
            while alive(pid):
                await asyncio.sleep(0.01)
            await sidecar._process.wait()  # collected, before its loop ends

    asyncio.run(run())


def test_its_pipe_is_not_inherited_by_others(tmp_path):
    async def run():
        sidecar = make(tmp_path)
        task = asyncio.create_task(sidecar.run())
        await begun(tmp_path, 1)
        assert sidecar._parent_fd is not None
        assert not os.get_inheritable(sidecar._parent_fd)
        await sidecar.stop()
        task.cancel()

    asyncio.run(run())
