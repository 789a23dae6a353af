"""What a call of the ledger costs as a Ray actor: CPU of its whole process, Ray's threads with it. A Ray of its own.

A post's word with its handle and without, and a renewal at rest; a thousand replicas. Words come in hundreds, renewals
one after the other. On one machine: what a network adds is not in it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.leases import row

REPLICAS, AT_ONCE = 1_000, 100
LAUNCH = {f"key {number}": "a value of some length" for number in range(25)}  # about what a launch has


def calls(seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ray") as home:
        os.environ |= {"HOME": home, "RAY_USAGE_STATS_ENABLED": "0"}  # Ray keeps its token there
        import ray

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=home)
        try:
            return {"ray": ray.__version__, "calls": _measured(ray, seconds)}
        finally:
            ray.shutdown()


def _measured(ray: Any, seconds: float) -> dict[str, Any]:
    from skep.cluster.actors import LedgerActor

    class Told(LedgerActor):
        async def pid(self) -> int:
            return os.getpid()

    ledger = ray.remote(Told).options(max_concurrency=1000).remote("h", 1e9)
    pid = ray.get(ledger.pid.remote())
    rows = [{**row(f"m-{number}", 8), "launch": LAUNCH} for number in range(REPLICAS)]
    for first in range(0, REPLICAS, AT_ONCE):
        ray.get([ledger.announce.remote(said["name"], said, ledger) for said in rows[first : first + AT_ONCE]])
    told = {"models": {"m": {"queued": 0}}, "drained": []}
    whole = ray.get(ledger.renew.remote("d", {}, {}, told))
    marks = [ray.get(ledger.renew.remote("d", {}, whole["shares"], told))["mark"]]

    def words(handle: Any) -> int:
        ray.get([ledger.announce.remote(said["name"], said, handle) for said in rows[:AT_ONCE]])
        return AT_ONCE

    def renewal() -> int:
        marks.append(ray.get(ledger.renew.remote("d", {}, {}, told, since=marks[-1]))["mark"])
        return 1

    kinds: dict[str, Callable[[], int]] = {
        "a renewal at rest": renewal,  # first: a door that is silent has to say all again
        "a word of a post": lambda: words(None), "a word of a post, with its handle": lambda: words(ledger),
    }  # fmt: skip
    return {name: _timed(pid, call, seconds) for name, call in kinds.items()}


def _timed(pid: int, call: Callable[[], int], seconds: float) -> dict[str, float]:
    count, began, until = 0, _cpu_s(pid), time.monotonic() + seconds
    while time.monotonic() < until:
        count += call()
    return {"us": 1e6 * (_cpu_s(pid) - began) / count, "calls": count}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
