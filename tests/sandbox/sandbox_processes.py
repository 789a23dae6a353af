"""Functions that look at processes from outside."""

import time
from pathlib import Path


def descendants(pid):
    """Return the descendants of a process, zombies included."""
    pids = []
    try:
        words = [
            word
            for task in Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()
        ]
    except OSError:  # it has ended meanwhile
        return []
    for child in map(int, words):
        pids += [child, *descendants(child)]
    return pids


def wait_until(happens, seconds=30.0):
    """Wait until a condition holds: the end of another process has no event here."""
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.002)
    return happens()
