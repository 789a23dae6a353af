"""Runs that are cancelled, closed, or killed from outside, and many at once: no process is left, and
the next run works.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sandbox_processes import descendants, wait_until

import skep
from forked_processes import alive
from skep.errors import SkepError
from skep.sandbox.bubblewrap import SandboxLimits, SandboxScript
from skep.sandbox.runner import open_sandbox

pytestmark = pytest.mark.needs("bwrap")
FOREVER = SandboxScript(("-c", "import time; time.sleep(600)"))
WELL = SandboxScript(("-c", "print('well')"))


def command_of(pid):
    """Return the words that a process was started with; none if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def is_the_script(pid):
    """Not bubblewrap, whose command ends with the script's, and not the launcher's copy of itself
    that sets limits.
    """
    return command_of(pid)[1:3] == list(FOREVER.argv)


async def run_forever(sandbox):
    """Start a script that does not end by itself; return its task, and its processes once it runs."""
    task = asyncio.create_task(sandbox.run(FOREVER, SandboxLimits(seconds=60)))
    while not any(map(is_the_script, inside := descendants(sandbox._launcher.pid))):
        await asyncio.sleep(0.005)
    return task, inside


async def test_a_cancelled_run_is_gone_when_the_cancelling_returns(sandbox):
    task, inside = await run_forever(sandbox)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(alive, inside))
    assert (await sandbox.run(WELL)).stdout == b"well\n"


async def test_cancelling_at_any_moment_leaves_nothing(sandbox):
    """Also before the sandbox is closed: the fixture looks for processes that are left."""
    for number in range(12):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(number * 0.004):
                await sandbox.run(FOREVER, SandboxLimits(seconds=60))
    assert (await sandbox.run(WELL)).ok


async def test_a_killed_launcher_takes_its_scripts_along_and_is_started_anew(sandbox):
    task, inside = await run_forever(sandbox)
    os.kill(sandbox._launcher.pid, signal.SIGKILL)
    with pytest.raises(SkepError, match="was killed"):
        await task
    assert wait_until(lambda: not any(map(alive, inside)))
    assert (await sandbox.run(WELL)).ok


@pytest.fixture
def bwrap_that_leaves_a_process(monkeypatch):
    """A bubblewrap killed while it makes its first process leaves that one waiting for ever, as
    this `sleep` does.
    """
    real = shutil.which("bwrap")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # root's scripts have another uid
        (folder / "bwrap").write_text(
            f'#!/bin/sh\nsleep 600 > {folder}/out 2>&1 &\nexec {real} "$@"\n'
        )
        (folder / "bwrap").chmod(0o755)
        (folder / "out").touch()
        (folder / "out").chmod(0o666)
        monkeypatch.setenv("PATH", name, prepend=":")
        yield


@pytest.mark.usefixtures("opened", "bwrap_that_leaves_a_process")
async def test_what_a_killed_launcher_s_bubblewrap_was_making_is_ended():
    sandbox = open_sandbox()
    task, inside = await run_forever(sandbox)
    assert len(inside) >= 4  # bubblewrap, its first process, the script, and what was left
    os.kill(sandbox._launcher.pid, signal.SIGKILL)
    with pytest.raises(SkepError, match="was killed"):
        await task
    assert wait_until(lambda: not any(map(alive, inside)))
    await sandbox.close()


async def test_a_launcher_that_is_dying_is_started_anew(sandbox):
    """Its socket is closed some time before its end can be seen."""
    assert (await sandbox.run(WELL)).ok
    sandbox._control.shutdown(socket.SHUT_RDWR)
    assert (await sandbox.run(WELL)).ok


@pytest.mark.usefixtures("opened")
async def test_closing_ends_what_runs():
    sandbox = open_sandbox()
    task, inside = await run_forever(sandbox)
    inside.append(sandbox._launcher.pid)
    await sandbox.close()
    with pytest.raises(SkepError):
        await task
    assert wait_until(lambda: not any(map(alive, inside)))
    await sandbox.close()  # twice is as good as once


@pytest.mark.usefixtures("opened")
def test_when_skep_is_killed_everything_ends():
    """skep is killed without a chance to say so. The launcher notices by its socket."""
    text = """
import asyncio, sys
from skep.sandbox.runner import open_sandbox
from skep.sandbox.bubblewrap import SandboxLimits, SandboxScript
sandbox = open_sandbox()
print(sandbox._launcher.pid, flush=True)
script = SandboxScript(("-c", "import time; time.sleep(600)"))
asyncio.run(sandbox.run(script, SandboxLimits(seconds=60)))
"""
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as skep:
        try:
            launcher = int(skep.stdout.readline())
            inside = []

            def is_whole():
                pids = [launcher, *descendants(launcher)]
                # Read twice: one that starts others may be gone by then.
                inside[:] = max(inside, pids, key=len)
                return len(inside) >= 4 or skep.poll() is not None

            wait_until(is_whole, 60.0)
        finally:
            skep.kill()
            errors = skep.communicate()[1].decode()
    assert len(inside) >= 4, errors
    assert wait_until(lambda: not any(map(alive, inside)))


@pytest.mark.usefixtures("opened")
def test_a_slow_bubblewrap_takes_none_of_the_script_s_time(monkeypatch):
    """On a busy machine; a run whose bubblewrap took 5 s used to be given up as one that cannot be
    watched.
    """
    real = shutil.which("bwrap")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # root's scripts have another uid
        (folder / "bwrap").write_text(
            f'#!/bin/sh\n[ -e {folder}/slow ] && sleep 2\nexec {real} "$@"\n'
        )
        (folder / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", name, prepend=":")
        sandbox = open_sandbox()
        (folder / "slow").touch()
        result = asyncio.run(sandbox.run(WELL, SandboxLimits(seconds=1.7)))
        asyncio.run(sandbox.close())
    assert (result.stdout, result.seconds < 1.7) == (b"well\n", True)


def test_skep_may_be_installed_where_temporary_files_are(sandbox, tmp_path):
    """A clone below /tmp could run nothing: root's launcher covered the folder that its own
    modules came from.
    """
    shutil.copytree(
        Path(skep.__file__).parent,
        tmp_path / "src" / "skep",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    code = "from skep.sandbox.runner import open_sandbox; print(open_sandbox().name)"
    env = {"PYTHONPATH": str(tmp_path / "src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == sandbox.name, done.stderr
