"""What Ray itself takes on this machine while nobody asks anything: processor time and memory of
its processes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

KEEPER = "skep.supervisor.process_guard"


def rays() -> list[int]:
    """What this process started, directly or not, but for engines with their guards."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(path.name))
    found = []
    left = parents.get(os.getpid(), [])
    while left:
        pid = left.pop()
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if KEEPER not in command:
            found.append(pid)
            left += parents.get(pid, [])
    return found


def at_rest(seconds: float) -> dict[str, float]:
    pids = rays()
    before = {pid: _cpu_s(pid) for pid in pids}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    used = sum(max(0.0, _cpu_s(pid) - before[pid]) for pid in pids)
    return {
        "processes": len(pids),
        "cores": used / took,
        "memory_mib": sum(map(_pss_mib, pids)),
        "seconds": took,
    }


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)
