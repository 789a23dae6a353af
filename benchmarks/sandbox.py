"""What a sandbox costs: the same script in a bare interpreter and in bubblewrap.

    .venv/bin/python benchmarks/sandbox.py

Each 40 times, interleaved in one process, so that whatever else the machine does meets both alike;
then as many at once as there are cores. Goal: under 50 ms a run more than the bare interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from skep.sandbox.bubblewrap import SandboxScript
from skep.sandbox.runner import open_sandbox

GOAL_S = 0.05
ROUNDS = 40
CODE = "print(sum(range(1000)))"


async def bare() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CODE,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert (await child.communicate())[0] == b"499500\n"


def inside(sandbox):
    async def run() -> None:
        result = await sandbox.run(SandboxScript(("-c", CODE)))
        assert result.stdout == b"499500\n", result

    return run


async def timed(ways, at_once):
    """Seconds of a round, by way: `at_once` runs together, divided by their number."""
    times = {name: [] for name in ways}
    for number in range(ROUNDS + 2):
        for name, run in ways.items():
            began = time.perf_counter()
            await asyncio.gather(*(run() for _ in range(at_once)))
            if number >= 2:  # the first ones fill the page cache
                times[name].append((time.perf_counter() - began) / at_once)
    return times


async def main() -> None:
    cores = len(os.sched_getaffinity(0))
    sandbox = open_sandbox()
    ways = {"bare python": bare, sandbox.name: inside(sandbox)}
    results = {}
    for at_once in sorted({1, cores}):
        times = await timed(ways, at_once)
        results[str(at_once)] = times
        floor = statistics.median(times["bare python"])
        print(f"{at_once} at once, {ROUNDS} rounds, {cores} cores")
        print(f"{'':32}{'median':>11}{'min':>11}{'max':>11}{'more than bare':>18}")
        for name, values in times.items():
            median = statistics.median(values)
            if name == "bare python":
                more = ""
            else:
                more = f"{(median - floor) * 1000:15.1f} ms"
            print(
                f"  {name:30}{median * 1000:8.1f} ms {min(values) * 1000:7.1f} ms "
                f"{max(values) * 1000:7.1f} ms{more}"
            )
    await sandbox.close()
    alone = results["1"]
    more_s = statistics.median(alone[sandbox.name]) - statistics.median(alone["bare python"])
    print(
        f"goal under {GOAL_S * 1000:.0f} ms a run: "
        f"{'met' if more_s < GOAL_S else 'missed'}, {more_s * 1000:.1f} ms"
    )
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    text = json.dumps(
        {"rounds": ROUNDS, "cores": cores, "seconds by runs at once": results}, indent=1
    )
    (folder / "sandbox.json").write_text(text + "\n")


if __name__ == "__main__":
    asyncio.run(main())
