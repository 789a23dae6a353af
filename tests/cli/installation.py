"""An installation of its own for commands that are called in the process of the tests."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from fake_programs import SMI

from commands import environment
from skep.paths import user_paths


@contextlib.contextmanager
def installation(folder):
    """Call commands in that empty folder; for a fixture that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_RUNTIME_DIR", "SKEP_API_KEY", "SKEP_URL"):
            patch.delenv(name, raising=False)
        for name, value in environment(folder).items():
            patch.setenv(name, value)
        patch.chdir(folder)
        yield user_paths(os.environ)


@contextlib.contextmanager
def installation_with_programs(folder):
    """Find two RTX 3090, and no program but the shell and those put in `bin`."""
    programs = folder / "bin"
    programs.mkdir()
    write_program(programs / "nvidia-smi", SMI)
    with installation(folder) as paths, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:{Path(shutil.which('sh')).parent}")
        yield paths


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)
