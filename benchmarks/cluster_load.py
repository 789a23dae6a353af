"""The same load by processes of this machine and by Ray workers, in turns: do the figures depend on who makes it?

    .venv-ray/bin/python benchmarks/cluster_load.py [--rounds 12] [--streams 32] [--workers 2]

A fake engine (simulated: no model runs) at a fixed pace, a real cluster of as many nodes as workers on this machine.
Each round is one level by the local crowd and the same by the Ray crowd, in changing order. Stated: the ratio Ray over
local of wall time, TTFT and TPOT with its spread over the rounds, and how well the workers' clocks were known.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import uvloop
from ray.cluster_utils import Cluster

from skep.bench.crowd import Crowd
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.local_crowd import LocalCrowd
from skep.bench.metrics import repeat_of, tpot_values, ttft_values
from skep.bench.request import Task
from skep.bench.strands import Strand, dealt
from skep.bench.worker import Job
from skep.cluster.joining import join
from skep.cluster.load import RayCrowd
from skep.testing.process import FakeEngine

RESULT = Path(__file__).parent / "results" / "cluster_load.json"
TOKENS, TOKEN_MS = 64, 10


async def level(crowd: Crowd, endpoint: Endpoint, streams: int, workers: int) -> dict[str, float]:
    tasks = [
        Task(streams, 0, n, "fix", [{"role": "user", "content": f"{n}"}], TOKENS, True) for n in range(4 * streams)
    ]
    origin_s, rows = time.monotonic(), []
    jobs = [Job(endpoint, hand, origin_s, 60.0, False) for hand in dealt([Strand(tasks, streams)], workers)]
    fared = await crowd.run(jobs, rows.append)
    assert len(rows) == len(tasks)
    assert all(row.ok for row in rows)
    figures = repeat_of(0, rows, streams)
    told = (fared.workers or {}).get("workers", [])
    return {
        "wall_s": figures.wall_s,
        "effective_tok_s": figures.effective_tok_s,
        "ttft_p50_ms": statistics.median(ttft_values(rows)),
        "tpot_p50_ms": statistics.median(tpot_values(rows)),
        "cpu_share": fared.health.cpu_share,
        "lag_p99_ms": fared.health.lag_p99_ms,
        "clock_error_ms": max((one["clock_error_ms"] for one in told), default=0.0),
        "clock_ahead_ms": max((abs(one["clock_ahead_s"]) * 1000 for one in told), default=0.0),
    }


async def measure(rounds: int, streams: int, workers: int) -> list[dict[str, dict[str, float]]]:
    found = []
    with FakeEngine(slots=streams, token_ms=TOKEN_MS) as engine:
        endpoint = await find_endpoint(engine.url, None)
        crowds: dict[str, Crowd] = {"local": LocalCrowd(), "ray": RayCrowd(workers)}
        await crowds["ray"].open(endpoint.origin)
        for number in range(rounds + 1):
            order = ["local", "ray"] if number % 2 else ["ray", "local"]
            one = {name: await level(crowds[name], endpoint, streams, workers) for name in order}
            if number:  # the first is to get warm
                found.append(one)
        for crowd in crowds.values():
            await crowd.close()
    return found


def spread(values: list[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return {"median": statistics.median(values), "quarter": low, "three_quarters": high}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("--rounds", 12), ("--streams", 32), ("--workers", 2)):
        options.add_argument(name, type=int, default=default)
    args = options.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(args.workers - 1):
        cluster.add_node(num_cpus=1)
    try:
        join(cluster.address)
        found = uvloop.run(measure(args.rounds, args.streams, args.workers))
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()
    names = ("wall_s", "effective_tok_s", "ttft_p50_ms", "tpot_p50_ms")
    result = {
        "how": f"fake engine (simulated), {TOKEN_MS} ms a token, {TOKENS} tokens; {args.streams} streams, "
        f"{4 * args.streams} requests a level; {args.workers} load processes here, {args.workers} Ray workers on "
        f"as many nodes of this machine; {args.rounds} rounds in changing order; {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f} at the end",
        "ray_over_local": {name: spread([one["ray"][name] / one["local"][name] for one in found]) for name in names},
        **{
            side: {name: spread([one[side][name] for one in found]) for name in found[0][side]}
            for side in ("local", "ray")
        },
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
