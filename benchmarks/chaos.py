"""Chaos: engines die, stall and lie, the table and the settings change, clients leave; who got what is counted.

    .venv/bin/python benchmarks/chaos.py [--minutes 3] [--seed N] [--engine fake|embedded] [--json]

Real engine processes behind one real gateway process. Every request is accounted for once on its client's side and held
against the gateway's rows and counters and against the engines' own state. Exit code 1: a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from havoc.maker import Pace
from havoc.run import Effort, Report, as_json, chaos, say

RESULTS = Path(__file__).parent / "results" / "chaos.json"
WARM_S = 8.0


def effort_of(engine: str, minutes: float) -> Effort:
    seconds = minutes * 60
    if engine == "embedded":
        pace = Pace(every_s=(0.5, 4.0), longest_stop_s=15.0, most_seats=3, fewest_seats=1, scale=1.5)
        return Effort(engine, 2, 10, WARM_S, seconds, pace, silence_s=75.0)
    return Effort(engine, 4, 20, WARM_S, seconds, Pace(every_s=(0.1, 1.4), longest_stop_s=15.0, most_seats=5))


def print_report(report: Report) -> None:
    effort = report.effort
    print(
        f"{effort.engines} {effort.engine} engines, {effort.clients} clients, {effort.havoc_s:g} s, seed {report.seed}"
    )
    print(f"{report.requests} requests: " + listed(report.ends))
    print("refused: " + listed(report.refusals))
    print(f"gateway's rows: {listed(report.rows)}; retries {report.retries}")
    print(f"{sum(report.havoc.values())} events: " + listed(report.havoc))
    worst, own = report.worst, report.gateway
    waits = f"{worst['silence_s']} s for a byte, {worst['first_byte_s']} s for the first, {worst['total_s']} s in all"
    print(f"worst wait: {waits}; drained in {own['drained_s']} s")
    for one in report.checks:
        print(f"{'pass' if one.ok else 'FAIL'}  {one.name}" + (f": {one.detail}" if one.detail else ""))


def listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def keep(result: dict[str, Any]) -> None:
    """One result for each engine and seed; the newest stays."""
    known = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    mine = (result["engine"], result["seed"])
    runs = [run for run in known if (run["engine"], run["seed"]) != mine]
    RESULTS.write_text(json.dumps({"runs": [*runs, result]}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="chaos behind skep's gateway, and an account of every request")
    parser.add_argument("--minutes", type=float, default=3.0, help="of havoc")
    parser.add_argument("--seed", type=int, help="of requests and havoc; drawn and printed without it")
    parser.add_argument("--engine", choices=("fake", "embedded"), default="fake")
    parser.add_argument("--workers", type=int, default=1, help="of the gateway")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of the table")
    parser.add_argument("--keep", type=Path, help="keep the gateway's logs and store in this folder")
    args = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        effort = replace(effort_of(args.engine, args.minutes), workers=args.workers)
        report = uvloop.run(chaos(effort, seed, folder, say))
    say("")
    result = as_json(report)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        print_report(report)
    if args.minutes >= 1:
        keep(result)
    return 0 if report.ok else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
