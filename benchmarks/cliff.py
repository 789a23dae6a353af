"""The cliff and its absence: replicas without a gateway, behind nginx and behind skep, at and
beyond their capacity.

    .venv/bin/python benchmarks/cliff.py [--only fake] [--rounds 6]

Two rigs, each measured in one run, all ways in turns, round by round:

- SIMULATED: two fake engines (real processes) that slow down when they hold more than their two
  slots each, as a published dual-RTX-3090 rig does; time shrunk tenfold. Published for nginx
  least_conn: 82, 154, 225, 167 tok/s at C = 1, 2, 4, 8.
- The embedded engine: llama.cpp with SmolLM2-135M on this machine's CPU, two slots.

The verdict on a way is its tok/s at twice and four times the capacity over its tok/s at capacity
in the same round, with a 95 % bootstrap interval over the rounds."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import uvloop
from peers.install import DidNotStart
from peers.start import start_nginx, wait_ready

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.tasks import BenchTask, Sender
from skep.engines.base import Launch
from skep.engines.llamacpp import Embedded
from skep.host.processes import REPORT_FD
from skep.paths import user_paths
from skep.testing.process import FakeEngine, GatewayProcess
from skep.weights.pull import pull
from skep.wire.client import Pool

SCALE = 0.1
MODEL = "smollm2-135m"
PUBLISHED = {1: 81.8, 2: 154.0, 4: 225.4, 8: 167.0}


@dataclass(frozen=True)
class Rig:
    name: str
    capacity: int
    levels: tuple[int, ...]
    tokens: int  # in and out
    batches: int  # tasks of each agent; the embedded rig has so many in all
    scale: float  # of time
    # URLs; several: the client sends to the one with the fewest requests in flight.
    ways: dict[str, list[str]]

    def tasks(self, level: int) -> int:
        return self.batches * (level if self.scale < 1 else 1)


class Target:
    """One or several endpoints; the one with the fewest requests in flight gets the next."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._all = [(endpoint, Pool(endpoint.origin)) for endpoint in endpoints]
        self._in_flight = [0] * len(endpoints)

    async def ask(self, task: BenchTask):
        number = min(range(len(self._all)), key=self._in_flight.__getitem__)
        endpoint, pool = self._all[number]
        self._in_flight[number] += 1
        try:
            sender = Sender(endpoint, pool, 0.0, timeout_s=300)
            return (await sender.ask(task))[0]
        finally:
            self._in_flight[number] -= 1

    async def close(self) -> None:
        for _, pool in self._all:
            await pool.close()


async def batch(target: Target, level: int, rig: Rig, rng: Random) -> tuple[float, float]:
    """(effective tok/s, mean TTFT in s) of `level` agents who share the tasks out among them."""
    left = list(range(rig.tasks(level)))
    began = time.monotonic()

    async def agent(number: int):
        rows = []
        while left:
            words = " ".join(
                rng.choice(("parser", "test", "value", "list", "empty")) for _ in range(rig.tokens)
            )
            task = BenchTask(
                level,
                left.pop(),
                number,
                "implement",
                [{"role": "user", "content": words}],
                rig.tokens,
                True,
            )
            rows.append(await target.ask(task))
        return rows

    rows = [
        row
        for own in await asyncio.gather(*(agent(number) for number in range(level)))
        for row in own
    ]
    assert all(row.ok for row in rows), [row.error for row in rows if not row.ok][:1]
    wall = time.monotonic() - began
    ttft = statistics.mean(row.first_token_s - row.started_s for row in rows)
    return sum(row.output_tokens for row in rows) / wall * rig.scale, ttft / rig.scale


async def run(rig: Rig, rounds: int) -> dict[str, dict[int, list[tuple[float, float]]]]:
    targets = {
        way: Target([await find_endpoint(url, None) for url in urls])
        for way, urls in rig.ways.items()
    }
    results: dict[str, dict[int, list[tuple[float, float]]]] = {way: {} for way in targets}
    rng = Random(7)
    for number in range(rounds):
        for level in rig.levels:
            for way, target in targets.items():
                place = f"{rig.name}: round {number + 1} of {rounds}, C={level}, {way}"
                print(f"\r{place:70}", end="", file=sys.stderr, flush=True)
                results[way].setdefault(level, []).append(await batch(target, level, rig, rng))
    print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    for target in targets.values():
        await target.close()
    return results


def interval(over: list[float]) -> tuple[float, float]:
    rng = Random(1)
    drawn = sorted(statistics.median(rng.choices(over, k=len(over))) for _ in range(4000))
    return drawn[int(0.025 * len(drawn))], drawn[int(0.975 * len(drawn))]


def verdict(low: float, high: float) -> str:
    if low >= 0.95:
        return "no cliff"
    return "falls" if high < 0.95 else "not resolved"


def report(
    rig: Rig, results: dict[str, dict[int, list[tuple[float, float]]]], rounds: int
) -> None:
    print(
        f"{rig.name}; capacity {rig.capacity}, {rig.tokens} tokens in and out; median of "
        f"{rounds} rounds (min..max)"
    )
    print(f"{'C':>4} " + " ".join(f"{way + ' tok/s':>26} {'TTFT s':>7}" for way in rig.ways))
    for level in rig.levels:
        cells = [f"{level:>4}"]
        for way in rig.ways:
            speeds = [speed for speed, _ in results[way][level]]
            ttft = statistics.median(wait for _, wait in results[way][level])
            shown = f"{statistics.median(speeds):.1f} ({min(speeds):.1f}..{max(speeds):.1f})"
            cells.append(f"{shown:>26} {ttft:>7.2f}")
        print(" ".join(cells))
    for way in rig.ways:
        for times in (2, 4):
            at = [speed for speed, _ in results[way][rig.capacity]]
            beyond = [speed for speed, _ in results[way][times * rig.capacity]]
            over = [b / a for a, b in zip(at, beyond, strict=True)]
            low, high = interval(over)
            shown = f"{statistics.median(over):.3f} ({low:.3f}..{high:.3f})"
            print(f"  {way}: {times}x capacity over capacity {shown}: {verdict(low, high)}")


@contextlib.contextmanager
def fake_rig(place: Path) -> Iterator[Rig]:
    options = {"preset": "dual-3090", "time_scale": SCALE}
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(FakeEngine(**options)) for _ in range(2)]
        door = stack.enter_context(GatewayProcess(place / "gateway.log"))
        common = {"model": "fake-model", "slots": 2, "confirms": "slots", "simulated": True}
        door.serve(
            [{"name": f"r{i}", "url": engine.url, **common} for i, engine in enumerate(engines)]
        )
        ways = {"no gateway": [engine.url for engine in engines]}
        try:
            nginx = start_nginx(place, [engine.port for engine in engines], 2)
            stack.callback(nginx.close)
            wait_ready(
                nginx, place, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}'
            )
            ways["nginx least_conn"] = [f"http://127.0.0.1:{nginx.port}"]
        except DidNotStart as why:
            print(f"nginx did not start: {why}")
        ways["skep"] = [door.url]
        yield Rig("SIMULATED dual-3090 rig", 4, (1, 2, 4, 8, 16), 128, 5, SCALE, ways)


@contextlib.contextmanager
def embedded_rig(place: Path) -> Iterator[Rig]:
    weights = pull(MODEL, cache_dir=user_paths(os.environ).cache).path
    launch = Launch(
        "e", "embedded", MODEL, weights, slots=2, context_tokens=512, threads=os.cpu_count() or 1
    )
    read_fd, write_fd = os.pipe()
    argv = [word.replace(REPORT_FD, str(write_fd)) for word in Embedded().argv(launch)]
    engine = subprocess.Popen(
        argv, pass_fds=[write_fd], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    os.close(write_fd)
    try:
        with os.fdopen(read_fd) as told, GatewayProcess(place / "embedded.log") as door:
            assert select.select([told], [], [], 120)[0], "the engine did not start"
            url = json.loads(told.readline())["url"]
            door.serve(
                [{"name": "r0", "model": MODEL, "url": url, "slots": 2, "confirms": "slots"}]
            )
            yield Rig(
                "embedded llama.cpp, SmolLM2-135M",
                2,
                (1, 2, 4, 8),
                24,
                8,
                1.0,
                {"no gateway": [url], "skep": [door.url]},
            )
    finally:
        engine.kill()
        engine.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("fake", "embedded"))
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp())
    stored = {}
    for name, rig_of in (("fake", fake_rig), ("embedded", embedded_rig)):
        if args.only in (None, name):
            with rig_of(place) as rig:
                results = uvloop.run(run(rig, args.rounds))
            report(rig, results, args.rounds)
            stored[name] = {
                "simulated": name == "fake",
                "scale": rig.scale,
                "capacity": rig.capacity,
                "results": results,
            }
    print(f"{os.cpu_count()} cores; published for the rig behind nginx: {PUBLISHED}")
    if args.only is None:
        folder = Path(__file__).parent / "results"
        folder.mkdir(exist_ok=True)
        (folder / "cliff.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
