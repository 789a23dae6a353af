"""Chaos: engines die, stall and lie, the table and the settings change, clients leave; who got
what is counted.

    .venv/bin/python benchmarks/chaos.py [--minutes 3] [--seed N] [--engine fake|embedded] [--json]
    .venv/bin/python benchmarks/chaos.py --only stopped-worker --only hostile-slots
    .venv/bin/python benchmarks/chaos.py --only unread-chat --python OLD/bin/python --python
    NEW/bin/python

The random havoc (`--only random`): real engine processes behind one real gateway process. Every
request is accounted for once on its client's side and held against the gateway's rows and counters
and against the engines' own state.

The scenarios: one thing is done on purpose, and a row says what clients saw. Without `--only` all
are run, after the random havoc. With `--python` they try the skep of that interpreter, one after
the other where several are given, and nothing is kept. Exit code 1: a check failed."""

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
from havoc import file_limits, freezes, hostility, unread
from havoc.maker import Pace
from havoc.run import Effort, Report, as_json, chaos, say
from havoc.scenario import Scenario, ScenarioRow, Stage, print_row, row_as_json

SCENARIOS: dict[str, Scenario] = {
    **freezes.SCENARIOS,
    **file_limits.SCENARIOS,
    **hostility.SCENARIOS,
    **unread.SCENARIOS,
}
RANDOM = "random"
RESULTS = Path(__file__).parent / "results" / "chaos.json"
WARM_S = 8.0


def effort_of(engine: str, minutes: float) -> Effort:
    seconds = minutes * 60
    if engine == "embedded":
        pace = Pace(
            every_s=(0.5, 4.0), longest_stop_s=15.0, most_seats=3, fewest_seats=1, scale=1.5
        )
        return Effort(engine, 2, 10, WARM_S, seconds, pace, silence_s=75.0)
    return Effort(
        engine, 4, 20, WARM_S, seconds, Pace(every_s=(0.1, 1.4), longest_stop_s=15.0, most_seats=5)
    )


def print_report(report: Report) -> None:
    effort = report.effort
    print(
        f"{effort.engines} {effort.engine} engines, {effort.clients} clients, "
        f"{effort.havoc_s:g} s, seed {report.seed}"
    )
    print(f"{report.requests} requests: " + listed(report.ends))
    print("refused: " + listed(report.refusals))
    print(f"gateway's rows: {listed(report.rows)}; retries {report.retries}")
    print(f"{sum(report.havoc.values())} events: " + listed(report.havoc))
    worst = report.worst
    gateway = report.gateway
    waits = (
        f"{worst['silence_s']} s for a byte, {worst['first_byte_s']} s for the first, "
        f"{worst['total_s']} s in all"
    )
    print(f"worst wait: {waits}; drained in {gateway['drained_s']} s")
    for check in report.checks:
        print(
            f"{'pass' if check.ok else 'FAIL'}  {check.name}"
            + (f": {check.detail}" if check.detail else "")
        )


def listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def keep_run(result: dict[str, Any]) -> None:
    """One result of the random havoc for each engine and seed; the newest stays."""
    known = stored_results()
    key = (result["engine"], result["seed"])
    others = [run for run in known["runs"] if (run["engine"], run["seed"]) != key]
    known["runs"] = [*others, result]
    store_results(known)


def keep_rows(rows: list[ScenarioRow]) -> None:
    """One row for each scenario; the newest stays."""
    known = stored_results()
    by_name = {row["name"]: row for row in known["scenarios"]}
    by_name.update((row.name, row_as_json(row)) for row in rows)
    known["scenarios"] = [by_name[name] for name in SCENARIOS if name in by_name]
    store_results(known)


def stored_results() -> dict[str, Any]:
    results: dict[str, Any] = {"runs": [], "scenarios": []}
    if RESULTS.exists():
        results |= json.loads(RESULTS.read_text())
    return results


def store_results(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def random_havoc(args: argparse.Namespace) -> bool:
    """Run it, print it, keep it, and return whether all checks passed."""
    if args.seed is None:
        seed = secrets.randbelow(1_000_000)
    else:
        seed = args.seed
    with contextlib.ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(temporary_folder()))
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
        keep_run(result)
    return report.ok


def run_scenarios(names: list[str], args: argparse.Namespace) -> bool:
    """Run each with every Python, print the rows, keep those of this Python, return whether all
    passed.
    """
    rows: list[ScenarioRow] = []
    for name in names:
        for python in args.python or [sys.executable]:
            if not args.json:
                say(f"{name}: {python}" if args.python else name)
            row = run_scenario(name, str(Path(python).absolute()))
            say("")
            rows.append(row)
            if args.json:
                print(json.dumps({"python": python, **row_as_json(row)}, indent=1), flush=True)
            else:
                print_row(row, f" ({python})" if args.python else "")
    if rows and not args.python:
        keep_rows(rows)
    return all(row.ok for row in rows)


def run_scenario(name: str, python: str) -> ScenarioRow:
    with temporary_folder() as folder:
        stage = Stage(Path(folder), python)
        return uvloop.run(SCENARIOS[name](stage, name))


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="chaos behind skep's gateway, and an account of every request"
    )
    parser.add_argument(
        "--only", action="append", choices=[RANDOM, *SCENARIOS], help="repeatable; default: all"
    )
    parser.add_argument(
        "--python", action="append", help="try the skep of this Python in scenarios; repeatable"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON instead of the table"
    )
    havoc = parser.add_argument_group("random havoc")
    havoc.add_argument("--minutes", type=float, default=3.0, help="of havoc")
    havoc.add_argument(
        "--seed", type=int, help="of requests and havoc; drawn and printed without it"
    )
    havoc.add_argument("--engine", choices=("fake", "embedded"), default="fake")
    havoc.add_argument("--workers", type=int, default=1, help="of the gateway")
    havoc.add_argument(
        "--keep", type=Path, help="keep the gateway's logs and store in this folder"
    )
    return parser.parse_args()


def main() -> int:
    args = read_arguments()
    names = args.only or [RANDOM, *SCENARIOS]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    passed = True
    if RANDOM in names:
        passed = random_havoc(args)
    scenarios = [name for name in names if name != RANDOM]
    if run_scenarios(scenarios, args) and passed:
        return 0
    return 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
