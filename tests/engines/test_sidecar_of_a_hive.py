"""The monitor beside a hive: there where something is watched, taken up while it runs, gone with it."""

import asyncio
import json
import os
import signal
import socket
import time
from dataclasses import replace

import pytest

from skep.config.settings import CliOverrides, Monitor, Settings
from skep.paths import user_paths
from skep.supervisor.main import monitor_argv
from skep.supervisor.supervisor import Hive, Supervisor
from skep.testing.process import FakeEngine


def test_settings_decide_whether_there_is_one():
    settings = Settings(wishes=CliOverrides(config="/etc/skep.toml"))
    assert monitor_argv(settings)[1:] == ("-m", "skep", "monitor", "run", "--config", "/etc/skep.toml")
    assert monitor_argv(replace(settings, monitor=Monitor(with_up=False))) == ()


@pytest.mark.parametrize(("argv", "running"), [((), False), (("/bin/true",), True)])
def test_a_target_added_while_it_runs_wakes_it(tmp_path, argv, running):
    async def run():
        with socket.socket() as listener:
            hive = Hive((), ("/bin/false",), {}, "http://x", tmp_path / "s", tmp_path, monitor_argv=argv)
            return await Supervisor(hive, listener, lambda _s: None)._control({"op": "monitor"})

    assert asyncio.run(run()) == {"ok": True, "running": running, "pid": None}


def eventually(check, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline, check
        time.sleep(0.05)  # asking another process: there is no event to await
    return found


@pytest.mark.slow
def test_it_begins_with_the_first_target_and_ends_however_the_hive_does(skep, env):
    def loop():
        return json.loads(skep("monitor", "status", "--json", check=0).stdout)["loop"]["pid"]

    with FakeEngine(slots=2, token_ms=1) as engine:
        start = ("gateway", "-d", "--json", "--port", "0", "--upstream", engine.url, "--slots", "2")
        up = json.loads(skep(*start, check=0).stdout)
        assert not (user_paths(env).logs / "monitor.log").exists()  # nothing is watched: no process
        added = json.loads(skep("monitor", "add", "gw", "--short", "8", "--no-long", "--json", check=0).stdout)
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
