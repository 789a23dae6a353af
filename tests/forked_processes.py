"""Fake engines, gateways and hives as children of a process that has loaded them: no start of
Python for each.

They are processes like any other, with files, signals and an end of their own. Only their command
line is another's."""

import asyncio
import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
import warnings
from multiprocessing.context import get_spawning_popen
from multiprocessing.forkserver import get_inherited_fds
from pathlib import Path

from skep.host.processes import MARK

MODULES = (
    "skep.testing.fake_engine",
    "skep.gateway.main",
    "skep.cli.hive_process",
    "skep.supervisor.process_guard",
)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*MODULES, __name__])


class PassedFile:
    """A file that goes to the child: there it is the number that it has in the child."""

    def __init__(self, number):
        self._number = number

    def __reduce__(self):
        return inherited_file, (get_spawning_popen().duplicate_for_child(self._number),)


def inherited_file(place):
    return get_inherited_fds()[place]


def run_module(name, words, env):
    """In the child: what `python -m NAME WORDS...` does."""
    os.environ.clear()
    os.environ.update(env)
    show_environment(env)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(fd, mode, 1, closefd=False) for fd, mode in enumerate("rww")
    )
    sys.argv = [name, *map(str, words)]
    module = importlib.import_module(name)
    sys.exit(
        module.main() if hasattr(module, "main") else module.run_detached(module.remote_nodes)
    )


def run_forked(name, words, env, files, folder, alone):
    """In a child of the fork server."""
    for place, number in files.items():
        os.dup2(number, place)
    os.chdir(folder)
    if alone:
        os.setsid()
    subprocess.Popen = ForkedChild
    run_module(name, words, env)


class ForkedProcess(FORKS.Process):
    """As much of `subprocess.Popen` as is used of a fake engine, of a gateway and of a hive."""

    def __init__(
        self, argv, *, pass_fds, stderr, stdin=None, stdout=None, env=None, start_new_session=False
    ):
        python, _m, name, *words = argv
        assert (python, name in MODULES) == (sys.executable, True)
        numbers = {*map(str, pass_fds)}
        words = [PassedFile(int(word)) if word in numbers else word for word in words]
        read_fd, write_fd = os.pipe() if stdin == subprocess.PIPE else (None, None)
        files = {0: read_fd, 1: stdout and stdout.fileno(), 2: stderr.fileno()}
        passed = {
            place: PassedFile(number) for place, number in files.items() if number is not None
        }
        args = (name, words, dict(env or os.environ), passed, Path.cwd(), start_new_session)
        super().__init__(target=run_forked, args=args, daemon=True)
        self.start()
        if write_fd is not None:
            os.close(read_fd)
            self.stdin = os.fdopen(write_fd, "wb")

    def poll(self):
        return self.exitcode

    @property
    def returncode(self):
        return self.exitcode

    def wait(self, timeout=None):
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(self.name, timeout)
        return self.exitcode

    def send_signal(self, number):
        if self.exitcode is None:
            os.kill(self.pid, number)


class ForkedChild(subprocess.Popen):
    """What a hive, a guard or a test of replicas starts: it goes on in the child that would have
    become a program.
    """

    def __init__(self, argv, *args, pass_fds=(), env=None, preexec_fn=None, **how):
        if [*argv[:2]] == [sys.executable, "-m"] and argv[2] in MODULES:
            environment = dict(os.environ if env is None else env)
            how["preexec_fn"] = lambda: go_on(
                argv[2:], environment, {0, 1, 2, *pass_fds}, preexec_fn
            )
        super().__init__(
            argv, *args, pass_fds=pass_fds, env=env, **{"preexec_fn": preexec_fn, **how}
        )


def go_on(argv, env, kept_fds, before):
    """In a child that has the files, session and group of a new program: what its start would have
    changed.
    """
    if before is not None:
        before()
    for number in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - kept_fds:
        with contextlib.suppress(OSError):
            os.close(number)
    signal.set_wakeup_fd(-1)
    asyncio._set_running_loop(None)
    warnings.simplefilter("ignore")
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
    code = 1
    try:
        run_module(argv[0], argv[1:], env)
    except SystemExit as ended:
        code = ended.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def show_environment(env):
    """Let /proc tell it, as of a new program: what a guard leaves behind is found by a mark in
    it.
    """
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    first = {MARK: env[MARK], **env} if MARK in env else env
    words = b"\0".join(f"{name}={value}".encode() for name, value in first.items())
    if start:  # the kernel tells it to this user
        ctypes.memmove(start, words[: end - start].ljust(end - start, b"\0"), end - start)


def alive(pid):
    """A zombie whose parent is not ours to wake counts as gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
