"""`skep engine install`: what it says before it begins, and how it ends when it is interrupted."""

import os
import signal
import subprocess
import sys

import pytest
from in_process import call

from skep.engines.discovery import engine_folder


@pytest.fixture
def installing(programs, tmp_path):
    """An installation whose uv has begun, and does not end by itself."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    uv = programs / "uv"
    uv.write_text(f"#!/bin/sh\necho begun > {begun}\nexec sleep 60\n")
    uv.chmod(0o755)
    (programs / "sleep").symlink_to("/bin/sleep")
    command = [sys.executable, "-m", "skep", "engine", "install", "llama-server"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert begun.read_text() == "begun\n"
    yield child
    child.kill()
    child.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_installation_says_that_nothing_is_installed(installing, number):
    """It said "unexpected Abort:" and asked for a report."""
    installing.send_signal(number)
    _, errors = installing.communicate(timeout=20)
    assert installing.returncode == 130
    assert "error: interrupted, nothing installed\n" in errors
    assert "unexpected" not in errors
    assert not engine_folder("llamacpp").exists()


def test_a_dry_run_says_what_would_be_installed_and_that_it_takes_long(programs):
    out = call("engine", "install", "llama-server", "--dry-run", check=0).out
    assert f"goes into {engine_folder('llamacpp')} with pip: takes up to 3 GiB" in out
    assert "compiled on this machine, which takes minutes" in out
    assert not engine_folder("llamacpp").exists()


def test_an_older_release_is_taken_where_the_driver_is_too_old_for_the_newest(two_3090s):
    out = call("engine", "install", "vllm", "--version", "0.19.0", "--dry-run", check=0).out
    assert out.startswith("vllm==0.19.0 goes into ")
