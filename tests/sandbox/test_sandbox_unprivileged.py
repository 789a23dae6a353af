"""A sandbox as an ordinary user opens it, beside that user's processes, where the tests run as root."""

import contextlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from sandbox_processes import wait_until

import skep

USER = 12345
TEXT = """
import asyncio, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from skep.errors import UserError
from skep.sandbox.bubblewrap import ScriptEnding, SandboxLimits, SandboxScript
from skep.sandbox.runner import open_sandbox
try:
    sandbox = open_sandbox()
except UserError as error:
    sys.exit(f"{error.message} ({error.hint})")
# An ordinary user has more processes than a script may.
others = [subprocess.Popen(["sleep", "60"]) for _ in range(30)]
HOME = '''
import os
print(os.getuid(), os.listdir('/home') if os.path.exists('/home') else 'no home')
'''
FORKS = '''
import os, time
n = 0
try:
    while os.fork(): n += 1
    time.sleep(60)
except OSError:
    print(n)
'''
async def main():
    limits = SandboxLimits(seconds=4, processes=10, memory_bytes=100 << 20)
    def run(text):
        return sandbox.run(SandboxScript(("-c", text)), limits)
    return await asyncio.gather(
        run(HOME),
        run(FORKS),
        run("x = []\\nwhile True: x.append(bytearray(1 << 20))"),
        run("while True: pass"),
    )
look, forks, memory, time_ = asyncio.run(main())
for other in others:
    other.kill(); other.wait()
asyncio.run(sandbox.close())
assert look.stdout == b"1000 no home\\n", look
assert forks.stdout == b"9\\n", forks
assert memory.ending is ScriptEnding.OUT_OF_MEMORY, memory
assert time_.ending is ScriptEnding.OUT_OF_TIME, time_
print("well", os.getuid())
"""


def system_python():
    """Return a Python that this user can reach: that of the tests may lie in root's home folder."""
    for program in (sys.executable, "/usr/bin/python3"):
        command = [program, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        with contextlib.suppress(OSError):
            if subprocess.run(command, user=USER, group=USER, extra_groups=[]).returncode == 0:
                return program
    return None


@pytest.mark.needs("bwrap")
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_an_ordinary_user_has_the_same_walls():
    program = system_python()
    if program is None:
        pytest.skip(f"no Python {sysconfig.get_python_version()} that user {USER} can start")
    source = str(Path(skep.__file__).parents[1])
    env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    user = {"user": USER, "group": USER, "extra_groups": [], "cwd": "/", "env": env}
    done = subprocess.run(
        [program, "-c", TEXT, source], **user, capture_output=True, text=True, timeout=60
    )
    if "code cannot be run safely here" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout == f"well {USER}\n", done.stderr
    assert wait_until(
        lambda: not [entry for entry in Path("/proc").glob("[0-9]*") if owner(entry) == USER]
    )


def owner(entry):
    try:
        return entry.stat().st_uid
    except OSError:
        return None
