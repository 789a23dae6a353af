"""A sandbox, and the check that no process or mount of it is left."""

import asyncio
from pathlib import Path

import pytest
from sandbox_processes import descendants, wait_until

from skep.sandbox.bubblewrap import SandboxLimits, SandboxScript
from skep.sandbox.runner import open_sandbox


@pytest.fixture(scope="module")
def opened():
    sandbox = open_sandbox()
    yield sandbox
    launcher = sandbox._launcher.pid
    asyncio.run(sandbox.close())
    assert not Path(f"/proc/{launcher}").exists()


def mounts():
    return [
        line.split(" ", 3)[3].split(" - ")[0]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]


@pytest.fixture
def sandbox(opened):
    """Open a sandbox; whatever a test does in it, no process of it and no mount is left."""
    before = mounts()
    yield opened
    launcher = opened._launcher.pid
    assert wait_until(lambda: not descendants(launcher)), descendants(launcher)
    assert mounts() == before


@pytest.fixture
def run(sandbox):
    """Run a program's text as main.py, with low limits."""

    def run(text, *, files=None, stdin=b"", argv=("main.py",), **limits):
        script = SandboxScript(argv, {"main.py": text.encode(), **(files or {})}, stdin)
        return asyncio.run(sandbox.run(script, SandboxLimits(**{"seconds": 5.0, **limits})))

    return run
