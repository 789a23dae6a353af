"""Fifty tasks: one by one, all at once with asyncio.gather, eight at a time with retries, and by
skep's swarm.

    .venv/bin/python benchmarks/swarm.py [--only one|two|published|planned|trouble|killed] [--tasks
    50] [--rounds N]

All ways in one run, in turns, the same tasks in every round:

- one, two: the embedded engine (llama.cpp, SmolLM2-135M) on this machine's CPU, as one and as two
  replicas
- published: SIMULATED, the speeds of a published 32 GB B70 with Qwen 27B, 50 slots (`--scale 0.1`:
  time shrunk tenfold)
- planned: SIMULATED, what skep's planner expects of the same card, in real time
- trouble: a fake engine that answers 429 above its slots, resets connections, is killed and comes
  back
- killed: one of two embedded replicas is killed in the middle and started anew by skep

`sustained` is the load generator's closed loop with as many streams as there are slots: what the
endpoint can give. The verdict on overhead is effective tok/s of the swarm over that of the same
round, journal and results file included. One by one is measured on a few tasks and scaled, unless
`--full`. p95 and last: seconds until that answer was there."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import uvloop
from fanout import batches, rigs, trouble
from fanout.batches import Batch
from fanout.rigs import Rig

RESULTS = Path(__file__).parent / "results" / "swarm.json"
PARTS = ("one", "two", "published", "planned", "trouble", "killed")
GOAL = 0.97


async def measured(rig: Rig, place: Path, args: argparse.Namespace) -> dict:
    rounds = args.rounds or rig.rounds
    by_hand = functools.partial(batches.swarm, place=place, agents=args.agents)
    ways = {
        "asyncio.gather": batches.naive,
        "8 at a time, 3 tries": batches.fixed,
        "skep swarm": by_hand,
        "sustained": functools.partial(batches.closed_loop, level=rig.slots),
    }
    found: dict[str, list[Batch]] = {way: [] for way in ways}
    say(f"{rig.name}: one by one")
    some = rig.load.make("serial")[: None if args.full else rig.serial_tasks]
    serial = await batches.one_by_one(rig.url, rig.model, some)
    for number in range(rounds):
        if number % 2 == 0:
            order = list(ways)
        else:
            order = list(reversed(ways))
        for way in order:
            say(f"{rig.name}: round {number + 1} of {rounds}, {way}")
            found[way].append(
                await ways[way](rig.url, rig.model, rig.load.make(f"{number}-{way}"))
            )
    say("")
    serial_s = serial.wall_s * rig.load.tasks / len(some) / rig.scale
    report(rig, serial_s, len(some), found)
    return {
        "rig": rig.name,
        "simulated": rig.simulated,
        "scale": rig.scale,
        "slots": rig.slots,
        "load": asdict(rig.load),
        "serial_s": serial_s,
        "serial_tasks": len(some),
        "over_sustained": ratios(found),
        "batches": {way: [asdict(one) for one in some] for way, some in found.items()},
    }


def report(rig: Rig, serial_s: float, sampled: int, found: dict[str, list[Batch]]) -> None:
    load = rig.load
    size = (
        f"{load.tasks} tasks of about {load.prompt_words} tokens in and {load.output_tokens} out"
    )
    print(f"{rig.name}; {size}; medians of {len(found['skep swarm'])} rounds")
    if sampled == load.tasks:
        whole = "all of them"
    else:
        whole = f"scaled from {sampled} tasks"
    print(
        f"{'':24} {'wall s':>9} {'speedup':>8} {'p95 s':>8} {'last s':>8} {'failed':>7} "
        f"{'tok/s':>8}"
    )
    print(f"{'one by one':24} {serial_s:9.1f} {'1.0x':>8} {'':8} {'':8} {'':7} {'':8}  ({whole})")
    for way, some in found.items():
        print(line(way, some, rig.scale, serial_s))
    over = ratios(found)
    kept = f"{statistics.median(over):.3f} ({min(over):.3f}..{max(over):.3f})"
    print(f"  skep swarm over sustained, tok/s: {kept}; goal {GOAL}: {verdict(over)}")
    if rig.note:
        print(f"  {rig.note}")


def line(way: str, batchs: list[Batch], scale: float, serial_s: float | None) -> str:
    def middle(of: Callable[[Batch], float | None]) -> float | None:
        known = [value for one in batchs if (value := of(one)) is not None]
        if known:
            return statistics.median(known) / scale
        return None

    wall = middle(lambda one: one.wall_s)
    p95 = middle(lambda one: one.p95_s)
    last = middle(lambda one: max(one.ends, default=None))
    failed = sum(one.failed for one in batchs)
    complete = failed == 0 and serial_s is not None and wall
    if complete and serial_s is not None and wall:
        speedup = f"{serial_s / wall:.1f}x"
    else:
        speedup = "-"
    tok_s = statistics.median(one.tok_s for one in batchs) * scale
    shown = f"{failed}/{sum(one.tasks for one in batchs)}"
    return (
        f"{way:24} {cell(wall)} {speedup:>8} {cell(p95, 8)} {cell(last, 8)} {shown:>7} "
        f"{tok_s:8.1f}"
    )


def cell(value: float | None, wide: int = 9) -> str:
    return f"{'-' if value is None else f'{value:.1f}':>{wide}}"


def ratios(found: dict[str, list[Batch]]) -> list[float]:
    pairs = zip(found["skep swarm"], found["sustained"], strict=True)
    return [ours.tok_s / theirs.tok_s for ours, theirs in pairs if theirs.tok_s]


def verdict(over: list[float]) -> str:
    if statistics.median(over) >= GOAL:
        return "met"
    return "missed"


async def troubled(place: Path, args: argparse.Namespace) -> dict:
    print(f"SIMULATED endpoint in trouble, 8 slots, {args.tasks} tasks of about 1.1 s")
    return {
        kind: await in_trouble(kind, lambda enter=enter: enter(), trouble.MODEL, place, args)
        for kind, enter in trouble.TROUBLES.items()
    }


async def in_trouble(
    kind: str, enter: Callable, model: str, place: Path, args: argparse.Namespace, load=None
) -> dict:
    """Every way meets the same trouble, each from its own beginning."""
    ways = {
        "asyncio.gather": batches.naive,
        "8 at a time, 3 tries": batches.fixed,
        "skep swarm": functools.partial(batches.swarm, place=place, agents=args.agents),
    }
    print(f"{kind:24} {'wall s':>9} {'':>8} {'p95 s':>8} {'last s':>8} {'failed':>7} {'tok/s':>8}")
    found = {}
    for way, do in ways.items():
        say(f"{kind}: {way}")
        if load:
            tasks = load.make(f"{kind}-{way}")
        else:
            tasks = trouble.troubled_tasks(args.tasks, f"{kind}-{way}")
        async with enter() as url:
            batch = await do(url, model, tasks)
        say("")
        why = ", ".join(f"{many} {error}" for error, many in batch.errors.items())
        if batch.attempts is not None:
            tried = f"{batch.attempts} attempts"
        else:
            tried = ""
        print(
            (
                f"{line(f'  {way}', [batch], 1.0, None)}  "
                f"{'; '.join(part for part in (why, tried) if part)}"
            ),
            flush=True,
        )
        found[way] = asdict(batch)
    return found


async def killed(place: Path, args: argparse.Namespace) -> dict:
    """Each way on a hive of its own: the killed replica has another process afterwards."""

    @contextlib.asynccontextmanager
    async def enter():
        with tempfile.TemporaryDirectory(prefix="swarm-hive-") as folder:
            hive = rigs.embedded(Path(folder), 2, 2, args.tasks)
            rig = await asyncio.to_thread(hive.__enter__)
            try:
                async with trouble.killed(rig) as url:
                    yield url
            finally:
                await asyncio.to_thread(hive.__exit__, None, None, None)

    load = batches.Load(args.tasks, 24, 24)
    kind = "one of two replicas killed"
    print(f"embedded SmolLM2-135M, 2 x 2 slots, {args.tasks} tasks")
    return {kind: await in_trouble(kind, enter, "smollm2-135m", place, args, load)}


def rig_of(part: str, place: Path, args: argparse.Namespace):
    match part:
        case "one":
            return rigs.embedded(place, 1, 4, args.tasks)
        case "two":
            return rigs.embedded(place, 2, 2, args.tasks)
        case "published":
            return rigs.published(place, args.tasks, args.scale)
        case _:
            return rigs.planned(place, args.tasks)


def say(words: str) -> None:
    if sys.stderr.isatty():
        print(
            f"\r{words[:100]:100}" if words else "\r" + " " * 100 + "\r",
            end="",
            file=sys.stderr,
            flush=True,
        )


def keep(part: str, result: dict) -> None:
    """One result for each part; the newest stays."""
    if RESULTS.exists():
        known = json.loads(RESULTS.read_text())
    else:
        known = {}
    RESULTS.write_text(
        json.dumps({**known, "cores": os.cpu_count(), part: result}, indent=1) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--agents", type=int, help="the swarm's limit; default: what the endpoint can use"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of time, on the published rig")
    parser.add_argument(
        "--full",
        action="store_true",
        help="one by one is measured whole (42 minutes where published)",
    )
    parser.add_argument(
        "--no-keep", action="store_true", help="results are printed and not stored"
    )
    args = parser.parse_args()
    # What was started is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"{os.cpu_count()} cores")
    for part in args.only or PARTS:
        with tempfile.TemporaryDirectory(prefix=f"swarm-{part}-") as folder:
            place = Path(folder)
            (place / "journal").mkdir()
            if part in ("trouble", "killed"):
                result = uvloop.run(
                    (troubled if part == "trouble" else killed)(place / "journal", args)
                )
            else:
                with rig_of(part, place, args) as rig:
                    result = uvloop.run(measured(rig, place / "journal", args))
        if not args.no_keep:
            keep(part, result)
        print(flush=True)


if __name__ == "__main__":
    main()
