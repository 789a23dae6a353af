"""The monitor beside a hive: there where something is watched, kept running, gone with skep."""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from supervised import until

from commands import eventually
from forked_processes import alive
from skep.config.gateway_messages import GatewaySetup
from skep.config.settings import CliOverrides, Monitor, Settings
from skep.paths import user_paths
from skep.supervisor.control_commands import answer
from skep.supervisor.main import monitor_argv
from skep.supervisor.monitor_child import MonitorChild
from skep.supervisor.supervisor import Hive, Supervisor
from skep.testing.process import FakeEngine

# Says that it began, and ends with its parent: what the child has to do.
CHILD = """
import os, sys
print("began", flush=True)
descriptor = int(sys.argv[sys.argv.index("--parent-fd") + 1])
if "die" in sys.argv:
    sys.exit(3)
os.read(descriptor, 1)
"""


@asynccontextmanager
async def running(tmp_path, *words, begin=True, code=CHILD, pause_s=0.01):
    """A child whose parent runs, and its log; stopped at the end."""
    log = tmp_path / "monitor.log"
    child = MonitorChild(
        [sys.executable, "-c", code, *words], log, begin=begin, delays_s=(pause_s,)
    )
    yield child, log
    await asyncio.wait_for(child.stop(), 10)


async def begun(log, times):
    """The log is the child's only voice: there is no event to await."""
    await until(lambda: log.exists() and log.read_text().count("began") >= times)


async def test_one_that_dies_is_started_again_until_it_is_stopped(tmp_path):
    async with running(tmp_path, "die") as (child, log):
        await begun(log, 3)
    assert child.pid is None


async def test_nothing_is_started_before_it_is_woken(tmp_path):
    async with running(tmp_path, begin=False) as (child, log):
        for _ in range(3):
            await asyncio.sleep(0)
        assert (child.pid, log.exists()) == (None, False)
        assert child.wake()
        await begun(log, 1)


async def test_what_runs_ends_when_it_is_stopped_and_cannot_be_woken(tmp_path):
    async with running(tmp_path) as (child, log):
        await begun(log, 1)
        pid = child.pid
    assert not alive(pid)
    assert not child.wake()
    assert log.read_text().count("began") == 1


async def test_other_settings_end_what_runs_and_begin_it_anew_at_once(tmp_path):
    """The pause after one that died is not waited for. Without a command line it stays away."""
    words = [sys.executable, "-c", CHILD]
    async with running(tmp_path, pause_s=600.0) as (child, log):
        await begun(log, 1)
        first = child.pid
        await child.become([*words, "other"], begin=False)
        await begun(log, 2)
        second = child.pid
        await child.become([], begin=True)
        assert (alive(first), alive(second), child.wake()) == (False, False, False)
        await child.become(words, begin=True)
        await begun(log, 3)
    assert (log.read_text().count("began"), child.wake()) == (3, False)


def test_settings_decide_whether_there_is_one():
    settings = Settings(overrides=CliOverrides(config="/etc/skep.toml"))
    assert monitor_argv(settings)[1:] == (
        "-m",
        "skep",
        "monitor",
        "run",
        "--config",
        "/etc/skep.toml",
    )
    assert monitor_argv(replace(settings, monitor=Monitor(with_up=False))) == ()


@pytest.mark.parametrize(("argv", "running"), [((), False), (("/bin/true",), True)])
async def test_a_target_added_while_it_runs_wakes_it(tmp_path, argv, running):
    with socket.socket() as listener:
        hive = Hive((), ("/bin/false",), GatewaySetup(), "http://x", tmp_path, monitor_argv=argv)
        supervisor = Supervisor(hive, listener, lambda _s: None)
        response = await answer(supervisor, {"op": "monitor"})
        await supervisor.monitor.stop()
    assert response == {"ok": True, "running": running, "pid": None}


@pytest.mark.slow
def test_it_begins_with_the_first_target_and_ends_however_the_hive_does(skep, env):
    def loop():
        return json.loads(skep("monitor", "status", "--json", check=0).stdout)["loop"]["pid"]

    with FakeEngine(slots=2, token_ms=1) as engine:
        start = f"gateway -d --json --port 0 --upstream {engine.url} --slots 2".split()
        up = json.loads(skep(*start, check=0).stdout)
        log = user_paths(env).logs / "monitor.log"
        assert not log.exists(), "nothing is watched: no process"
        add = ["monitor", "add", "gw", "--short", "8", "--no-long", "--json"]
        added = json.loads(skep(*add, check=0).stdout)
        assert (added["kind"], added["probing"]) == ("gateway", True)
        first = eventually(loop)
        eventually(lambda: "target='gw' outcome=done" in skep("logs", "monitor").stdout)
        assert "already running" in skep("monitor", "run", check=1).stderr
        os.kill(up["pid"], signal.SIGKILL)
        eventually(lambda: not loop())
        skep(*start, check=0)
        second = eventually(loop)
        assert second != first
        os.kill(second, signal.SIGKILL)
        assert eventually(lambda: loop() not in (None, second) and loop())  # it is started again
        skep("down", check=0)
        assert loop() is None
