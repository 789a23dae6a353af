"""Fake engines and gateways as children of a process that has loaded them: no start of Python for each.

They are processes like any other, with files, signals and an end of their own. Only their command line is another's.
"""

import contextlib
import importlib
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.context import get_spawning_popen
from multiprocessing.forkserver import get_inherited_fds
from pathlib import Path

MODULES = ("skep.testing.fake_engine", "skep.gateway.main")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*MODULES])


class PassedFile:
    """A file that goes to the child: there it is the number that it has in the child."""

    def __init__(self, number):
        self._number = number

    def __reduce__(self):
        return inherited_file, (get_spawning_popen().duplicate_for_child(self._number),)


def inherited_file(place):
    return get_inherited_fds()[place]


def run_module(name, words, env, error):
    """In the child: what `python -m NAME WORDS...` does."""
    os.environ.clear()
    os.environ.update(env)
    os.dup2(error, sys.stderr.fileno())
    sys.argv = [name, *map(str, words)]
    sys.exit(importlib.import_module(name).main())


class ForkedProcess(FORKS.Process):
    """As much of `subprocess.Popen` as is used of a fake engine and of a gateway."""

    def __init__(self, argv, *, pass_fds, stderr, env=None, **_files):
        python, _m, name, *words = argv
        assert (python, name in MODULES) == (sys.executable, True)
        numbers = {*map(str, pass_fds)}
        words = [PassedFile(int(word)) if word in numbers else word for word in words]
        args = (name, words, dict(env or os.environ), PassedFile(stderr.fileno()))
        super().__init__(target=run_module, args=args, daemon=True)
        self.start()

    def poll(self):
        return self.exitcode

    def wait(self, timeout=None):
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(self.name, timeout)
        return self.exitcode

    def send_signal(self, number):
        if self.exitcode is None:
            os.kill(self.pid, number)


def alive(pid):
    """A zombie whose parent is not ours to wake counts as gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
