"""Carries out a run in a child that is killed at random moments, until one child gets to the end.

    python killed_swarm_run.py RUN SEED LONGEST_S

Prints how often it was killed. The child is forked, so that it is at work at once, and killed with
SIGKILL."""

import os
import random
import signal
import sys
import time

import uvloop

import skep.swarm.client  # noqa: F401 - loaded once for all children
from skep.paths import user_paths
from skep.swarm.runner import carry_out


def work(run_id: str) -> None:
    """In the child; its exit status says whether it got to the end."""
    try:
        uvloop.run(carry_out(user_paths(os.environ), run_id))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def ended(pid: int, within_s: float) -> int | None:
    """Its exit status; None: it is still at work."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def main(run_id: str, seed: str, longest_s: str) -> int:
    rng = random.Random(seed)
    kills = 0
    while True:
        pid = os.fork()
        if pid == 0:
            work(run_id)
        status = ended(pid, rng.uniform(0.05, float(longest_s)))
        if status is not None:
            print(kills)
            return status
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
