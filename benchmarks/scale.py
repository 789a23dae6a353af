"""Measure what a decision costs with 1 to 64 replicas, and how evenly it spreads the load.

    .venv/bin/python benchmarks/scale.py [traffic|box|upkeep|memory ...] [--quick]
                                         [--rounds 3] [--against SRC]

SIMULATED: the real `Admission` in virtual time, around replicas whose times come from the planner
(see `scaling`); only what it is asked is timed, in CPU time of the thread, because the machine may
be shared. `calm`: 100 agents per replica want four fifths of the slots. `full`: they want twice
the slots there are, so queues are as long as the slots are many. One answer in a hundred is left
by its client, and keeps its slot for 30 s. Spread: of the replicas' shares of busy slots, at eight
moments of a run. Each cell in a process of its own, and each row stored in `results/scale.json` as
soon as it is measured, beside what is there of other parts. `--against SRC`: the same with the
skep of that folder, in turns with this one; `box` is nothing else. The end of one gateway is
arithmetic: the cost of a request and of a chunk as `benchmarks/gateway.py` measured them."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scale.json"
SIZES = (1, 8, 64)
QUICK_SIZES = (8, 64)
PARTS = ("traffic", "box", "upkeep", "memory")
MOST = 200_000
QUICK_MOST = 20_000
COLUMNS = {
    "median": 9, "runs": 14, "p99": 9, "to first": 10, "decisions/s": 13, "wait p50": 10,
    "p99 s": 8, "max/mean": 10, "Jain": 7, "home": 7, "queued": 10, "decisions": 11,
}  # fmt: skip
Rows = Iterator[tuple[str, Any]]  # the name of a row and what was measured
# of one child; what is cut short is reported as far as it came
LIMIT_S = 600.0
BEFORE_S = 60.0


def child(what: str, *words: object, src: str | None = None) -> dict[str, Any]:
    env = {**os.environ, "PYTHONHASHSEED": "0", **({"PYTHONPATH": src} if src else {})}
    command = [sys.executable, str(HERE / "scale.py"), "--cell", json.dumps([what, *words])]
    print(
        f"\r{what} {words} {'' if src is None else 'against'}".ljust(70),
        end="",
        file=sys.stderr,
        flush=True,
    )
    stdout = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout
    print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    found: dict[str, Any] = json.loads(stdout)
    return found


def traffic(args: argparse.Namespace) -> Rows:
    most = QUICK_MOST if args.quick else MOST
    for kind in ("calm", "full"):
        print(
            f"\n{kind}: CPU us per decision (arrival or end), medians of {args.rounds} runs "
            "(lowest..highest)"
        )
        print(f"{'':26}" + "".join(f"{name:>{wide}}" for name, wide in COLUMNS.items()))
        for src in [None, args.against] if args.against else [None]:
            first = None
            for size in args.sizes:
                seeds, limit_s = (range(1), BEFORE_S) if src else (range(args.rounds), LIMIT_S)
                runs = [
                    child("traffic", size, kind, seed, most, limit_s, src=src) for seed in seeds
                ]
                first = first or middle(runs, "decision_us", "p50")
                print(line(runs, first, "before" if src else ""), flush=True)
                yield f"{kind} {size}{' before' if src else ''}", runs


def line(runs: list[dict[str, Any]], first: float, mark: str) -> str:
    one = runs[0]
    medians = [run["decision_us"]["p50"] for run in runs]
    cost = statistics.median(medians)
    per_s = (
        1e6
        * one["decisions"]
        / one["requests"]
        / statistics.median(run["request_us"] for run in runs)
    )
    name = (
        f"{one['replicas']:,} x {one['streams']:,} "
        f"{mark}{'' if all(run['whole'] for run in runs) else ' cut'}"
    )
    low_high = f"({min(medians):.1f}..{max(medians):.1f})"
    p50 = middle(runs, "wait_s", "p50")
    p99 = middle(runs, "wait_s", "p99")
    most, jain, home = (
        statistics.median(run[key] or 0.0 for run in runs)
        for key in ("max_over_mean", "jain", "home")
    )
    cells = (
        f"{cost:.1f}",
        low_high,
        f"{middle(runs, 'decision_us', 'p99'):.1f}",
        f"{cost / first:.1f}x",
        f"{per_s:,.0f}",
        f"{p50:.2f}",
        f"{p99:.2f}",
        f"{most:.2f}",
        f"{jain:.3f}",
        f"{home:.3f}",
        f"{one['most_queued']:,}",
        f"{sum(run['decisions'] for run in runs):,}",
    )
    return f"{name:26}" + "".join(
        f"{cell:>{wide}}" for cell, wide in zip(cells, COLUMNS.values(), strict=True)
    )


def box(args: argparse.Namespace) -> Rows:
    """Compare the CPU of all decisions of a request on one machine, before and now in turns."""
    if not args.against:
        return
    print(
        "\none box: CPU us of all decisions of a request, before and now in turns, "
        f"{2 * args.rounds + 1} pairs"
    )
    for kind in ("calm", "full"):
        for size in (1, 2, 4, 8):
            pairs = []
            for seed in range(2 * args.rounds + 1):
                if seed % 2:
                    order = [None, args.against]
                else:
                    order = [args.against, None]
                told = {
                    src: child("traffic", size, kind, seed, QUICK_MOST, LIMIT_S, src=src)
                    for src in order
                }
                pairs.append((told[args.against]["request_us"], told[None]["request_us"]))
            ratios = sorted(now / before for before, now in pairs)
            before, now = (statistics.median(pair[place] for pair in pairs) for place in (0, 1))
            yield f"{kind} {size}", pairs
            over = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f})"
            print(
                f"{kind} {size} replicas: before {before:.1f}, now {now:.1f}, ratio {over}",
                flush=True,
            )


def upkeep(args: argparse.Namespace) -> Rows:
    for src in [None, args.against] if args.against else [None]:
        cells = [child("upkeep", size, 200, src=src) for size in args.sizes]
        yield "before" if src else "now", cells
        print(
            "\nCPU us per call beside those of requests, median of 200 (same table: "
            f"5){', before' if src else ''}"
        )
        print(f"{'replicas':20}" + "".join(f"{cell['replicas']:>12,}" for cell in cells))
        for name in cells[0]["us"]:
            print(
                f"{name:20}" + "".join(f"{cell['us'][name]['p50']:12,.1f}" for cell in cells),
                flush=True,
            )


def memory(args: argparse.Namespace) -> Rows:
    found = child("memory", max(args.sizes), 2_000)
    print("\nbytes of Python objects, tracemalloc")
    for name, value in found.items():
        if name.endswith("_bytes"):
            print(f"{name.removesuffix('_bytes').replace('_', ' '):20}{value:10,.0f}")
    yield from found.items()


def end_of_one_gateway(found: dict[str, Any]) -> dict[str, float]:
    """From what one core of the whole gateway did in `benchmarks/gateway.py`."""
    skep = json.loads((HERE / "results" / "gateway.json").read_text())["results"]["skep"]
    streams = skep["streams"]
    chunk_us = 1e6 * streams["cpu_share"]["gateway"] / streams["chunks_per_s"]
    told = {
        "request_us": skep["cpu 2 KB"]["us"],
        "long_request_us": skep["cpu 100 KB"]["us"],
        "chunk_us": chunk_us,
    }
    told["chunks_per_s"] = 1e6 / chunk_us
    requests = (
        f"{told['request_us']:.0f} us a request of 2 KB, {told['long_request_us']:.0f} of 100 KB"
    )
    print(
        f"\none core of one gateway (benchmarks/results/gateway.json): {requests}, "
        f"{chunk_us:.1f} us a chunk"
    )
    for tok_s in (40, 80):
        print(
            f"  ends at about {1e6 / chunk_us / tok_s:,.0f} answers under way of {tok_s} "
            "tok/s each, a chunk a token"
        )
    for key in [key for key in found if key.startswith("calm") and "before" not in key]:
        share = statistics.median(run["request_us"] for run in found[key]) / told["request_us"]
        print(
            f"  deciding is {100 * share:.0f} % of a request of 2 KB with {key.split()[1]} "
            "replicas"
        )
    return told


def middle(runs: list[dict[str, Any]], key: str, which: str) -> float:
    return statistics.median(run[key][which] for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; without any, all of them"
    )
    parser.add_argument("--quick", action="store_true", help="8 and 64 replicas, one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--against", help="a folder that holds another skep, such as an older `src`"
    )
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        from scaling import cells

        what, *words = json.loads(args.cell)
        print(json.dumps(getattr(cells, what)(*words)))
        return
    if unknown := set(args.parts) - set(PARTS):
        parser.error(
            f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}"
        )
    args.sizes = QUICK_SIZES if args.quick else SIZES
    args.rounds = 1 if args.quick else args.rounds
    from scaling.service import Service

    print(
        f"SIMULATED replicas: {Service().words()}; {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    document: dict[str, Any] = (
        {} if args.quick or not RESULTS.exists() else json.loads(RESULTS.read_text())
    )
    document |= {"simulated": True, "cores": os.cpu_count(), "replica": Service().words()}
    for part in args.parts or PARTS:
        for row, measured in globals()[part](args):
            document.setdefault(part, {})[row] = measured
            stamp = {"on": datetime.now(UTC).date().isoformat(), "load": os.getloadavg()[0]}
            document.setdefault("measured", {}).setdefault(part, {})[row] = stamp
            store(document, args)
        if part == "traffic":
            document["one_gateway"] = end_of_one_gateway(document["traffic"])
            store(document, args)


def store(document: dict[str, Any], args: argparse.Namespace) -> None:
    """What `--quick` measures is only printed."""
    if not args.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
