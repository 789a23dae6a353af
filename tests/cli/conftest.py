"""Folders for commands in the process of the test, and hives of fake engines."""

import json
import os
import shutil
from pathlib import Path

import pytest
from fake_programs import SMI
from hive_client import write_hive

from skep.paths import user_paths


@pytest.fixture
def paths(env, monkeypatch, tmp_path):
    """An installation of its own for commands that are called in this process,
    in an empty folder.
    """
    for name in ("XDG_RUNTIME_DIR", "SKEP_API_KEY", "SKEP_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return user_paths(os.environ)


@pytest.fixture
def programs(paths, tmp_path, monkeypatch):
    """The folder with all programs that are found: none but the shell's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{Path(shutil.which('sh')).parent}")
    return folder


@pytest.fixture
def two_3090s(programs):
    program = programs / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)


@pytest.fixture
def configure(tmp_path):
    return lambda *tables, **settings: write_hive(tmp_path, *tables, **settings)


@pytest.fixture
def up(skep):
    """Starts the hive of skep.toml, and gives what it tells when it is ready."""
    return lambda *args, **env: json.loads(
        skep("up", "-d", "--json", *args, check=0, **env).stdout
    )


@pytest.fixture
def reload(skep):
    """Brings the hive to what skep.toml says, and gives what that has changed."""
    return lambda *args: json.loads(skep("reload", "--wait", "--json", *args, check=0).stdout)
