"""The embedded engine as a process of its own, with the smallest model of the catalogue."""

import json
import os
import select
import subprocess
from contextlib import contextmanager
from functools import cache

from skep.engines.llamacpp import Embedded
from skep.host.processes import REPORT_FD
from skep.paths import user_paths
from skep.weights.pull import installed, pull

MODEL = "smollm2-135m"


@cache
def weights():
    """The user's own copy, fetched once."""
    folder = user_paths(os.environ).cache
    return installed(MODEL, folder) or pull(MODEL, cache_dir=folder).path


def argv_of(launch, report_fd):
    return [part if part != REPORT_FD else str(report_fd) for part in Embedded().argv(launch)]


@contextmanager
def serving(launch):
    """Start the engine; its address. It is told to end, and must."""
    read_fd, write_fd = os.pipe()
    env = {**os.environ, **Embedded().environment(launch)}
    with subprocess.Popen(
        argv_of(launch, write_fd), env=env, pass_fds=[write_fd], stderr=subprocess.DEVNULL
    ) as process:
        os.close(write_fd)
        try:
            with os.fdopen(read_fd) as report:
                assert select.select([report], [], [], 60)[0], "the engine did not start"
                yield json.loads(report.readline())["url"]
        finally:
            process.terminate()  # else a failed assertion would wait for it for ever
        assert process.wait(20) == 0
