"""Is an engine that answers worse under load caught, and one that does not let pass? Twenty seeded
runs of each.

    .venv/bin/python benchmarks/quality_gate.py [--runs 20] [--json]

SIMULATED: the engines are fake ones (real processes, eight slots) with known answers; what is
tried is the whole of `skep bench quality`: asking, judging, pairing, claiming. Both engines are
wrong on the same third of the items at any load, and by chance one answer in a hundred turns from
right to wrong or from wrong to right, as batching alone does. One of them also turns 15 % of its
right answers into wrong ones while more than four requests are inside. Caught: no worse at C=4,
and not so at C=8. Let pass: no worse at C=4 and at C=8. Exit code 1: fewer than 19 of 20."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

import uvloop

from skep.bench.endpoint import find_endpoint
from skep.host.facts import read_host
from skep.quality.judging import Judge
from skep.quality.trial import QualityTrial, TrialPlan
from skep.quality.trial_figures import QualitySummary
from skep.stats.noninferiority import Claim, items_needed
from skep.store.database import open_store
from skep.testing.process import FakeEngine
from skep.workload.items import Checker, Item

RESULTS = Path(__file__).parent / "results" / "quality_gate.json"
RUNS = 20
NEEDED = 0.95
DELTA = 0.03
FLIPS = 0.01
DIFFERING = 2 * FLIPS * (1 - FLIPS)  # of the verdicts of two passes over the same items
POWER = 0.995  # at each of two levels, so that 19 of 20 runs hold in 98 of 100 benchmarks
LEVELS = (1, 4, 8)
ENGINES: dict[str, dict[str, Any]] = {
    "worse above C=4": {"worse_above": "4:0.15"},
    "the same at any C": {},
}
COMMON = {"slots": 8, "flip_share": FLIPS, "wrong_share": 0.33, "token_ms_curve": "1:0,4:1,5:14"}


@dataclass(frozen=True, slots=True)
class Sums:
    """The bank that is asked."""

    name: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What one run said: the claim of each level walked, and the differences in points with their
    bounds.
    """

    seed: int
    claims: dict[int, str]
    points: dict[int, tuple[float, float, float]]  # low, difference, high
    noise: float | None  # share of verdicts that changed by themselves
    requests: int
    wall_s: float

    @property
    def caught(self) -> bool:
        return self.claims.get(4) == Claim.HOLDS.value and self.claims.get(8) in (
            Claim.LOST.value,
            Claim.UNSHOWN.value,
        )

    @property
    def passed(self) -> bool:
        return all(self.claims.get(level) == Claim.HOLDS.value for level in LEVELS if level > 1)


def items_of(count: int) -> tuple[Item, ...]:
    return tuple(
        Item(
            id=f"sum/{n}",
            messages=(
                {
                    "role": "user",
                    "content": f"What is {n} plus {7 * n % 97}? Answer with the number.",
                },
            ),
            checker=Checker("number", {"answer": n + 7 * n % 97}),
            max_tokens=16,
        )
        for n in range(1, count + 1)
    )


def write_answers(items: tuple[Item, ...], path: Path) -> None:
    """What the engines know: the right answer, and one that is off by ten."""
    rows = [
        {
            "prompt": item.messages[0]["content"],
            "answer": f"It is {item.checker.values['answer']}.",
            "wrong": f"It is {item.checker.values['answer'] + 10}.",
        }
        for item in items
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


async def one_run(
    options: dict[str, Any], seed: int, items: tuple[Item, ...], folder: Path
) -> Found:
    plan = TrialPlan(concurrency=LEVELS, delta=DELTA, seed=seed, timeout_s=60)
    began = time.perf_counter()
    with FakeEngine(**COMMON, **options, seed=seed, answers=folder / "answers.jsonl") as engine:
        endpoint = await find_endpoint(engine.url, None)
        with open_store(folder / f"{engine.port}.db") as store:
            summary = await QualityTrial(
                plan, Sums("sums", items), endpoint, store, read_host(), Judge(None)
            ).run()
    return found_in(summary, seed, time.perf_counter() - began)


def found_in(summary: QualitySummary, seed: int, wall_s: float) -> Found:
    noise = summary.noise
    passes = 1 + 2 * len(summary.levels)  # C=1 against itself once, and both arms of each level
    return Found(
        seed=seed,
        claims={level.concurrency: level.claim.value for level in summary.levels},
        points={
            level.concurrency: (
                round(100 * level.difference.low, 2),
                round(100 * level.difference.difference, 2),
                round(100 * level.difference.high, 2),
            )
            for level in summary.levels
        },
        noise=None if noise is None else (noise.lost + noise.gained) / noise.pairs,
        requests=passes * summary.items,
        wall_s=round(wall_s, 2),
    )


async def all_runs(runs: int, items: tuple[Item, ...]) -> dict[str, list[Found]]:
    """In turns, so that whatever else the machine does befalls both engines."""
    found: dict[str, list[Found]] = {name: [] for name in ENGINES}
    with tempfile.TemporaryDirectory() as folder:
        write_answers(items, Path(folder) / "answers.jsonl")
        for number in range(1, runs + 1):
            for place, (name, options) in enumerate(ENGINES.items()):
                say(f"run {number} of {runs}, {name}")
                # With one seed for both, up to C=4 they would be the same run twice.
                seed = 1000 * place + number
                found[name].append(await one_run(options, seed, items, Path(folder)))
    say("")
    return found


def say(text: str) -> None:
    print(f"\r{text:60}\r" if text == "" else f"\r{text:60}", end="", file=sys.stderr, flush=True)


def good(name: str, runs: list[Found]) -> int:
    return sum(run.caught if "worse_above" in ENGINES[name] else run.passed for run in runs)


def print_table(found: dict[str, list[Found]], items: int, wall_s: float) -> None:
    print(
        f"simulated engines; {items} items, delta {100 * DELTA:g} points, {100 * FLIPS:g} % "
        f"flips, C={LEVELS}"
    )
    words = [claim.value for claim in Claim]
    print(
        f"{'engine':20} {'C':>3} "
        + " ".join(f"{word:>10}" for word in words)
        + f" {'not walked':>11}  points lost"
    )
    for name, runs in found.items():
        for level in LEVELS[1:]:
            claims = [run.claims.get(level) for run in runs]
            counts = " ".join(f"{claims.count(word):10}" for word in words)
            lost = [-run.points[level][1] for run in runs if level in run.points]
            if lost:
                spread = f"{min(lost):+.1f}..{max(lost):+.1f}"
            else:
                spread = ""
            print(f"{name:20} {level:3} {counts} {claims.count(None):11}  {spread}")
    for name, runs in found.items():
        if "worse_above" in ENGINES[name]:
            verb = "caught"
        else:
            verb = "let pass"
        print(f"{name}: {verb} in {good(name, runs)} of {len(runs)} runs")
    requests = sum(run.requests for runs in found.values() for run in runs)
    print(f"{requests} requests in {wall_s:.0f} s, {os.cpu_count()} cores")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="a fake engine that answers worse under load, and one that does not"
    )
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="of each engine, each with a seed of its own"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON instead of the table"
    )
    args = parser.parse_args()
    count = items_needed(DELTA, discordance=DIFFERING, power=POWER)
    gc.freeze()  # what is loaded by now need not be looked through before each timed part
    began = time.perf_counter()
    found = uvloop.run(all_runs(args.runs, items_of(count)))
    wall_s = time.perf_counter() - began
    document = {
        "simulated": True,
        "items": count,
        "delta": DELTA,
        "flip_share": FLIPS,
        "power": POWER,
        "engines": ENGINES,
        "common": COMMON,
        "wall_s": round(wall_s, 1),
        "good": {name: good(name, runs) for name, runs in found.items()},
        "runs": {name: [asdict(run) for run in runs] for name, runs in found.items()},
    }
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print_table(found, count, wall_s)
    if args.runs >= RUNS:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    if all(good(name, runs) >= ceil(NEEDED * args.runs) for name, runs in found.items()):
        return 0
    return 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
