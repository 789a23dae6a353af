"""Environments and interpreters below /tmp: a script still has a writable /tmp of its own, and
finds its packages.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import skep

pytestmark = pytest.mark.needs("bwrap")
VERSION = f"python3.{sys.version_info.minor}"
SOURCE = str(Path(skep.__file__).parents[1])
OPEN = """
import sys
sys.path.insert(0, sys.argv[1])
from skep.sandbox.bubblewrap import SandboxLimits, SandboxScript
from skep.sandbox.runner import open_sandbox
sandbox = open_sandbox()
result = sandbox.try_out(SandboxScript(("-c", sys.argv[2])), SandboxLimits(seconds=20))
sandbox.close_now()
sys.exit(result.stderr.decode()) if not result.ok else print(result.stdout.decode())
"""
LOOK = """
import json, os, sqlite3, sys
import beside
at_first = os.listdir("/tmp")
open("/tmp/mark", "x").write("x")
open("/dev/shm/mark", "x").write("x")
prefixes = {"prefix": sys.prefix, "base": sys.base_prefix}
print(json.dumps({"at_first": at_first, "beside": beside.__file__, **prefixes}))
"""


@pytest.fixture(params=["/tmp", "/dev/shm"])
def folder(request):
    if not os.access(request.param, os.W_OK):
        pytest.skip(f"{request.param} is not writable here")
    with tempfile.TemporaryDirectory(dir=request.param) as name:
        yield Path(name)


def environment(python, folder):
    """Make an environment with one module in it; return its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    (folder / "lib" / VERSION / "site-packages" / "beside.py").touch()
    return folder / "bin" / "python"


def interpreter(folder):
    """Return a copy of the tests' own; its standard library is linked."""
    (folder / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), folder / "bin" / VERSION)
    (folder / "lib").symlink_to(Path(sys.base_prefix) / "lib")
    return folder / "bin" / VERSION


def look_through(python):
    """Run the script in a sandbox that this interpreter opens."""
    env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python, "-c", OPEN, SOURCE, LOOK]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_environment_among_temporary_files_leaves_them_writable(folder):
    view = look_through(environment(sys.executable, folder / "environment"))
    assert view["at_first"] == []
    assert view["prefix"] == f"/environment{folder}/environment"
    assert view["beside"].startswith(f"{view['prefix']}/lib/")
    assert view["base"] == sys.base_prefix


def test_an_interpreter_among_temporary_files_leaves_them_writable(folder):
    view = look_through(environment(interpreter(folder / "python"), folder / "environment"))
    assert view["at_first"] == []
    assert view["base"] == f"/environment{folder}/python"
