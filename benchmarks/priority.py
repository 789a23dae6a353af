"""An interactive agent beside four times as much batch work as fits: how long it waits for its
first token.

    .venv/bin/python benchmarks/priority.py

SIMULATED: the replicas are fake engines (real processes) set up like a published dual-RTX-3090 rig
with two slots each, time shrunk tenfold. 16 batch agents keep the queue full; one interactive
agent asks now and then. Three ways in turns, in one run: first come first served (everybody is
`normal`, one flow), with priorities, with priorities and one slot of each replica kept for
interactive requests. The yardstick of each request is what nobody can avoid: the time from its
arrival to the next end of a batch answer (one freed slot), plus the first token's time on the idle
rig."""

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
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.tasks import BenchTask, Sender
from skep.testing.process import FakeEngine, GatewayProcess
from skep.wire.client import Pool

SCALE = 0.1
CAPACITY = 4
BATCH_AGENTS = 4 * CAPACITY
ASKS = 12  # of the interactive agent, in one round
ROUNDS = 4
TOKENS = 128
WAYS = ("first come", "priority", "reserve 1")


async def ask(endpoint: Endpoint, pool: Pool, tokens: int, headers: dict[str, str]):
    words = [{"role": "user", "content": "word " * TOKENS}]
    task = BenchTask(1, 0, 0, "implement", words, tokens)
    named = replace(endpoint, headers={**endpoint.headers, **headers})
    sender = Sender(named, pool, 0.0, timeout_s=120)
    row, _ = await sender.ask(task)
    assert row.ok, row.error
    return row


async def one_round(url: str, *, ranked: bool) -> dict[str, list[float]]:
    endpoint = await find_endpoint(url, None)
    pool = Pool(endpoint.origin)
    idle = await ask(endpoint, pool, TOKENS // 4, {})
    idle_s = idle.first_token_s - idle.started_s
    stop = asyncio.Event()
    ends: list[float] = []

    async def batch(number: int) -> None:
        if ranked:
            headers = {"x-skep-priority": "batch", "x-skep-agent": f"batch-{number}"}
        else:
            headers = {}
        while not stop.is_set():
            await ask(endpoint, pool, TOKENS, headers)
            ends.append(time.monotonic())

    async with asyncio.TaskGroup() as tasks:
        for number in range(BATCH_AGENTS):
            tasks.create_task(batch(number))
        while len(ends) < 2 * CAPACITY:  # the queue has formed
            await asyncio.sleep(0.02)
        if ranked:
            headers = {"x-skep-priority": "interactive", "x-skep-agent": "person"}
        else:
            headers = {}
        rows = [await ask(endpoint, pool, TOKENS // 4, headers) for _ in range(ASKS)]
        stop.set()
    await pool.close()
    freed = [min(end for end in ends if end > row.started_s) - row.started_s for row in rows]
    return {
        "ttft_s": [(row.first_token_s - row.started_s) / SCALE for row in rows],
        "yardstick_s": [(wait + idle_s) / SCALE for wait in freed],
    }


async def run(urls: dict[str, str]) -> dict[str, list[dict[str, list[float]]]]:
    found: dict[str, list[dict[str, list[float]]]] = {way: [] for way in WAYS}
    for number in range(ROUNDS):
        for way in WAYS:
            print(
                f"\rround {number + 1} of {ROUNDS}, {way:12}", end="", file=sys.stderr, flush=True
            )
            found[way].append(await one_round(urls[way], ranked=way != "first come"))
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return found


def main() -> None:
    options = {"preset": "dual-3090", "time_scale": SCALE}
    place = Path(tempfile.mkdtemp())
    with FakeEngine(**options) as fake_engine, FakeEngine(**options) as other:
        common = {"model": "fake-model", "slots": 2, "confirms": "slots", "simulated": True}
        plain = [
            {"name": f"r{i}", "url": engine.url, **common}
            for i, engine in enumerate((fake_engine, other))
        ]
        with (
            GatewayProcess(place / "plain.log") as door,
            GatewayProcess(place / "kept.log") as gateway_process,
        ):
            door.serve(plain)
            gateway_process.serve([{**replica, "reserve": 1} for replica in plain])
            found = uvloop.run(
                run(
                    {
                        "first come": door.url,
                        "priority": door.url,
                        "reserve 1": gateway_process.url,
                    }
                )
            )
    print(
        f"simulated dual-3090 rig, {CAPACITY} slots, {BATCH_AGENTS} batch agents; {ROUNDS} "
        f"x {ASKS} asks, in turns"
    )
    print(f"{os.cpu_count()} cores; seconds of the rig (times shrunk {1 / SCALE:g}x)")
    print(
        f"{'':12} {'TTFT median':>12} {'rounds':>14} {'p95':>7} {'one freed slot':>15} "
        f"{'TTFT over it':>13}"
    )
    medians = {}
    for way in WAYS:
        waits = sorted(wait for part in found[way] for wait in part["ttft_s"])
        marks = [mark for part in found[way] for mark in part["yardstick_s"]]
        rounds = [statistics.median(part["ttft_s"]) for part in found[way]]
        medians[way] = statistics.median(waits)
        spread = f"({min(rounds):.2f}..{max(rounds):.2f})"
        p95 = waits[int(0.95 * (len(waits) - 1))]
        mark = statistics.median(marks)
        over = f"{sum(waits) / sum(marks):.2f}x"
        print(f"{way:12} {medians[way]:>12.2f} {spread:>14} {p95:>7.2f} {mark:>15.2f} {over:>13}")
    print(f"first come over priority, medians: {medians['first come'] / medians['priority']:.1f}x")
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    document = {"simulated": True, "scale": SCALE, "results": found}
    (folder / "priority.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
