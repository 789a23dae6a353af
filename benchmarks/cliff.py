"""The cliff and its absence: two replicas that slow down when overfilled, with and without skep in front.

    .venv/bin/python benchmarks/cliff.py

SIMULATED: the replicas are fake engines (real processes) set up to behave like a published dual-RTX-3090 rig with
two slots each, time shrunk tenfold. Plain least-connections in the client (what nginx does) and skep's gateway are
measured in turns in one run. Published for least-connections: 82, 154, 225, 167 tok/s at C = 1, 2, 4, 8.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.request import Task, measure
from skep.testing.gateway_process import GatewayProcess
from skep.testing.process import FakeEngine
from skep.wire.client import Pool

SCALE = 0.1
LEVELS = (1, 2, 4, 8, 16)
PER_AGENT = 5  # tasks of each agent, one after the other
ROUNDS = 3
TOKENS = 128
PUBLISHED = {1: 81.8, 2: 154.0, 4: 225.4, 8: 167.0}


class Target:
    """One or several endpoints; the one with the fewest requests in flight gets the next."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._all = [(endpoint, Pool(endpoint.origin)) for endpoint in endpoints]
        self._in_flight = [0] * len(endpoints)

    async def ask(self, task: Task):
        number = min(range(len(self._all)), key=self._in_flight.__getitem__)
        endpoint, pool = self._all[number]
        self._in_flight[number] += 1
        try:
            return await measure(task, endpoint, pool, 0.0, timeout_s=120, keep_text=False)
        finally:
            self._in_flight[number] -= 1

    async def close(self) -> None:
        for _, pool in self._all:
            await pool.close()


async def batch(target: Target, level: int) -> tuple[float, float]:
    """(effective tok/s, mean TTFT in s) of `level` agents with `PER_AGENT` tasks each."""
    words = [{"role": "user", "content": "word " * TOKENS}]
    began = time.monotonic()

    async def agent(number: int):
        return [await target.ask(Task(level, turn, number, "implement", words, TOKENS)) for turn in range(PER_AGENT)]

    rows = [row for own in await asyncio.gather(*(agent(number) for number in range(level))) for row in own]
    assert all(row.ok for row in rows), [row.error for row in rows if not row.ok][:1]
    wall = time.monotonic() - began
    ttft = statistics.mean(row.first_token_s - row.started_s for row in rows)
    return sum(row.output_tokens for row in rows) / wall * SCALE, ttft / SCALE


async def run(direct_urls: list[str], door_url: str) -> dict[str, dict[int, list[tuple[float, float]]]]:
    ways = {
        "least-connections": Target([await find_endpoint(url, None) for url in direct_urls]),
        "skep gateway": Target([await find_endpoint(door_url, None)]),
    }
    results: dict[str, dict[int, list[tuple[float, float]]]] = {way: {} for way in ways}
    for round_number in range(ROUNDS):
        for level in LEVELS:
            for way, target in ways.items():
                print(
                    f"\rround {round_number + 1} of {ROUNDS}, C={level}, {way:20}", end="", file=sys.stderr, flush=True
                )
                results[way].setdefault(level, []).append(await batch(target, level))
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    for target in ways.values():
        await target.close()
    return results


def main() -> None:
    options = {"preset": "dual-3090", "time_scale": SCALE}
    log = Path(tempfile.mkdtemp()) / "gateway.log"
    with FakeEngine(**options) as one, FakeEngine(**options) as other, GatewayProcess(log) as door:
        common = {"model": "fake-model", "slots": 2, "confirms": True, "simulated": True}
        door.serve([{"name": f"r{i}", "url": engine.url, **common} for i, engine in enumerate((one, other))])
        results = uvloop.run(run([one.url, other.url], door.url))
    print(f"simulated dual-3090 rig, capacity 4, times shrunk {1 / SCALE:g}x; median of {ROUNDS} (min..max)")
    print(f"{os.cpu_count()} cores, {PER_AGENT} tasks an agent, {TOKENS} tokens in and out")
    print(f"{'C':>3} {'published':>10} {'least-connections tok/s':>27} {'TTFT s':>7} {'skep tok/s':>27} {'TTFT s':>7}")
    for level in LEVELS:
        cells = [f"{level:>3} {PUBLISHED.get(level, '–'):>10}"]
        for way in results:
            speeds = [speed for speed, _ in results[way][level]]
            ttft = statistics.median(wait for _, wait in results[way][level])
            spread = f"({min(speeds):.1f}..{max(speeds):.1f})"
            cells.append(f"{statistics.median(speeds):>11.1f} {spread:>15} {ttft:>7.2f}")
        print(" ".join(cells))
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / "cliff.json").write_text(
        json.dumps({"simulated": True, "scale": SCALE, "results": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
