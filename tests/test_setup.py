"""`make test` on a machine with nothing but what the README asks for: what is installed, and what
is left out.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from needed_programs import UNASKED, bare_path

ROOT = Path(__file__).parent.parent
SETUP = ROOT / "scripts" / "setup-system"
INSTALLERS = {"apt", "apt-get", "dnf", "pacman", "sudo", "zypper"}
OF_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}  # a make inside of a make says so
NEEDING = ("tests/quality", "tests/sandbox", "tests/test_contributing.py")


class BareMachine:
    """A PATH without the programs that nothing may need, and in front of it programs of this
    test's own.
    """

    def __init__(self, path, folder):
        self._path = path
        self.log = folder / "log"
        self._programs = folder / "programs"
        self._programs.mkdir()

    def have(self, name, script="exit 0"):
        """Put a program there that logs how it is called."""
        program = self._programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{script}\n')
        program.chmod(0o755)

    def be_root(self, yes):
        self.have("id", f"echo {0 if yes else 1000}")

    def run(self, *argv):
        outside = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
        env = {**outside, "PATH": f"{self._programs}:{self._path}"}
        done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def calls(self, name):
        if self.log.exists():
            lines = self.log.read_text().splitlines()
        else:
            lines = []
        return [line for line in lines if line.startswith(f"{name} ")]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return bare_path(
        os.environ["PATH"], tmp_path_factory.mktemp("links"), UNASKED | INSTALLERS | {"cc"}
    )


@pytest.fixture
def machine(path, tmp_path):
    return BareMachine(path, tmp_path)


def test_a_path_may_name_folders_that_cannot_be_looked_into(tmp_path):
    unreadable = "/" + "x" * 5000  # like another user's folder, it is refused to root, too
    assert bare_path(f"{unreadable}:{tmp_path}", tmp_path / "links") == str(tmp_path)


def test_nothing_is_said_or_installed_where_nothing_is_missing(machine):
    for name in ("apt-get", "bwrap", "cc", "chromium", "curl", "git", "make"):
        machine.have(name)
    done = machine.run(SETUP)
    assert (done.stdout, done.stderr) == ("", "")
    assert machine.calls("apt-get") == []


def test_root_installs_what_is_missing(machine):
    machine.be_root(yes=True)
    machine.have("apt-get")
    machine.have("git")
    machine.run(SETUP, "tests")
    update, install = machine.calls("apt-get")
    assert update.endswith(" update")
    assert install.endswith(" install -y --no-install-recommends bubblewrap curl")


def test_sudo_that_asks_no_password_installs_what_is_missing(machine):
    machine.be_root(yes=False)
    machine.have("apt-get")
    machine.have("sudo", '[ "$1" = -n ] || exit 1\nshift\nexec "$@"')
    machine.run(SETUP, "tests")
    assert machine.calls("apt-get")[-1].endswith(" git bubblewrap curl")


def test_where_sudo_asks_for_a_password_the_command_is_named_instead(machine):
    machine.be_root(yes=False)
    for name in ("apt", "apt-get", "curl", "git"):
        machine.have(name)
    machine.have("sudo", "exit 1")
    done = machine.run(SETUP, "tests")
    assert done.stderr == "not installed: bubblewrap; `sudo apt install bubblewrap` installs it\n"
    assert machine.calls("apt-get") == []


def test_an_installation_that_fails_stops_nothing_and_the_next_is_tried(machine):
    machine.be_root(yes=True)
    machine.have("apt-get", 'case "$*" in *bubblewrap*) exit 100;; esac')
    done = machine.run(SETUP, "tests", "browser")
    assert (
        "not installed: git bubblewrap curl; this system's package manager has it" in done.stderr
    )
    assert machine.calls("apt-get")[-1].endswith(" chromium")


def test_programs_are_installed_from_lists_that_could_not_be_updated(machine):
    """Without a network, or with a repository of others that is gone, apt's update fails."""
    machine.be_root(yes=True)
    machine.have("apt-get", 'case "$*" in *update) exit 100;; esac')
    machine.have("git")
    machine.have("curl")
    done = machine.run(SETUP, "tests")
    assert machine.calls("apt-get")[-1].endswith(" bubblewrap")
    assert "not installed" not in done.stderr


def test_an_installation_can_be_interrupted_from_the_terminal(machine, tmp_path):
    """It ran in a process group of its own, where Ctrl-C did not reach it for up to 400 s."""
    machine.be_root(yes=True)
    machine.have("apt-get", f'cut -d " " -f 5 /proc/$$/stat > {tmp_path}/group')
    machine.run(SETUP, "tests")
    assert int((tmp_path / "group").read_text()) == os.getpgrp()


@pytest.mark.parametrize(
    ("manager", "packages"),
    [
        ("apt", "gcc libc6-dev python3.12-venv"),
        ("dnf", "gcc glibc-devel python3.12"),
        ("zypper", "gcc glibc-devel python3.12"),
        ("pacman", "gcc glibc python"),
    ],
)
def test_packages_are_named_as_the_system_calls_them(machine, tmp_path, manager, packages):
    machine.be_root(yes=False)
    for name in ("make", manager):
        machine.have(name)
    machine.have("python3.12", "exit 1")  # it has no venv
    done = machine.run("env", f"PYTHON={tmp_path}/programs/python3.12", SETUP, "python")
    assert done.stderr.startswith(f"not installed: {packages}; `sudo {manager} ")


def test_root_is_told_a_command_without_sudo(machine):
    machine.be_root(yes=True)
    for name in ("curl", "dnf", "git"):
        machine.have(name)
    done = machine.run(SETUP, "tests")
    assert done.stderr == "not installed: bubblewrap; `dnf install bubblewrap` installs it\n"


def test_a_python_that_is_not_there_has_nothing_installed_for_it(machine, tmp_path):
    for name in ("cc", "make"):
        machine.have(name)
    done = machine.run("env", f"PYTHON={tmp_path}/none", SETUP, "python")
    assert done.stderr == ""


def test_tests_of_missing_programs_are_left_out_and_how_to_install_them_is_said(machine):
    machine.have("apt")
    done = machine.run(
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "needs", *NEEDING
    )
    assert (
        "no program `bwrap` on PATH; install bubblewrap: `sudo apt install bubblewrap`"
        in done.stdout
    )
    assert "no program `git` on PATH; install git: `sudo apt install git`" in done.stdout


@pytest.mark.parametrize("target", ["test", "demo"])
def test_make_sets_up_what_an_environment_needs_first(machine, target, tmp_path):
    done = machine.run("make", "-n", target, f"VENV={tmp_path}/environment")
    assert done.stdout.splitlines()[0] == "scripts/setup-system python"


def test_make_test_sets_up_what_tests_need_before_they_run(machine):
    before, _, after = machine.run("make", "-n", "test").stdout.partition(
        "scripts/setup-system tests\n"
    )
    assert "pytest" not in before
    assert "bin/pytest -n" in after
