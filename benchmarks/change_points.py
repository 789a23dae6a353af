"""How often a change is told that is none, and how many of those that are one are found, and after
how long.

    .venv/bin/python benchmarks/change_points.py [--series 1000] [--jobs 2]

Series are hourly probes with a run-to-run variation (CV) of 4 %. The finder is asked as it is in
use: after every single probe. A series without a change counts as a false alarm if any of these
looks tells of one. A shift comes at a random moment of day 2 to 12 (`late`: of the last 2 days)
and is found if a change in its direction is told at any look after it until the end of day 14;
looks are three hours apart there, and so is the delay.

Beside normal noise: `slow` is autocorrelated by 0.3 from value to value, `heavy tails` is
Student's t with 3 degrees of freedom, `daily` adds a wave of 1 % up and down, `outliers` has 2 %
of values at half speed, `missing` lacks a tenth of the values and two whole days.

`--bounds` instead prints the highest figures that noise without a change reaches, from which
CUT_BOUND and STRETCH_BOUND of skep.stats.changepoints were chosen. About five minutes on two free
cores."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path
from random import Random
from statistics import median

from skep.stats import changepoints
from skep.stats.changepoints import FEWEST_VALUES, Split, changes_in_series

CV = 0.04
DAY = 24
DAYS = 14
KINDS = ("normal", "slow", "heavy tails", "daily", "outliers", "missing")
STEP = 3  # hours between looks after a shift


def noise(rng: Random, kind: str, hours: int) -> list[float]:
    """Around 1; of `heavy tails` the deviation is the same 4 %."""
    values = []
    last = rng.gauss(0, 1)
    for _ in range(hours):
        if kind == "heavy tails":
            draw = rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3) / math.sqrt(3)
        elif kind == "slow":
            draw = last = 0.3 * last + math.sqrt(1 - 0.3**2) * rng.gauss(0, 1)
        else:
            draw = rng.gauss(0, 1)
        values.append(max(1 + CV * draw, 0.05))
    if kind == "daily":
        phase = rng.random() * DAY
        values = [
            v * (1 + 0.01 * math.sin(2 * math.pi * (hour + phase) / DAY))
            for hour, v in enumerate(values)
        ]
    if kind == "outliers":
        values = [v / 2 if rng.random() < 0.02 else v for v in values]
    return values


def kept(rng: Random, kind: str, hours: int) -> list[int]:
    """The hours of which there is a value."""
    if kind != "missing":
        return list(range(hours))
    gap = rng.randrange(hours - 2 * DAY)
    return [
        hour for hour in range(hours) if rng.random() >= 0.1 and not gap <= hour < gap + 2 * DAY
    ]


def false_alarm(number: int, kind: str, days: int) -> int | None:
    """At which look the first change is told that is none; None if at none."""
    rng = Random(f"none {kind} {number}")
    hours = kept(rng, kind, DAY * days)
    values = noise(rng, kind, DAY * days)
    seen = [70 * values[hour] for hour in hours]
    return next(
        (
            looks
            for looks in range(FEWEST_VALUES, len(seen) + 1)
            if changes_in_series(seen[:looks])
        ),
        None,
    )


def shifted(number: int, kind: str, size: float, first_day: float, last_day: float) -> dict:
    """The series is told from its first value on as it is lived; looks before the shift are no
    part of this.
    """
    rng = Random(f"shift {kind} {size} {first_day} {number}")
    at = rng.randrange(round(first_day * DAY), round(last_day * DAY))
    hours = kept(rng, kind, DAY * DAYS)
    values = noise(rng, kind, DAY * DAYS)
    seen = [70 * values[hour] * (1 - size if hour >= at else 1) for hour in hours]
    start = sum(hour < at for hour in hours)
    ends = [*range(start + 1, len(seen), STEP), len(seen)]
    end = next(
        (end for end in ends if any(right(split) for split in changes_in_series(seen[:end]))), None
    )
    last = changes_in_series(seen)
    split = min(
        (one for one in last if right(one)), key=lambda one: abs(one.index - start), default=None
    )
    return {
        "delay_h": None if end is None else hours[end - 1] - at,
        "told_at_the_end": len(last),
        "bracket_holds": None if split is None else split.bracket[0] <= start <= split.bracket[1],
        "interval_holds": None
        if split is None
        else split.ratio.low <= 1 - size <= split.ratio.high,
        "off_h": None if split is None else abs(split.index - start),
    }


def right(split: Split) -> bool:
    return split.ratio.estimate < 1


def heights(number: int, kind: str) -> tuple[float, float]:
    """The highest figure of a cut, and of a stretch apart, over all looks, slow noise accounted
    for.
    """
    values = noise(Random(f"height {kind} {number}"), kind, DAY * DAYS)
    cuts = aparts = 0.0
    for looks in range(FEWEST_VALUES, len(values) + 1):
        scale = changepoints._LogScale.of(values[:looks])  # noqa: SLF001
        ys = scale.clipped(0, looks)
        best = changepoints._weighed(ys)  # noqa: SLF001
        stretch = changepoints._apart(ys)  # noqa: SLF001
        if best is not None and best.height > cuts:
            cuts = max(cuts, best.height / scale.slowness([best.cut]))
        if stretch.height > aparts:
            slow = scale.slowness([stretch.begin, stretch.end])
            aparts = max(aparts, stretch.height / slow)
    return cuts, aparts


def quickness() -> dict[str, float]:
    """Milliseconds of processor time for one look at 720 values: the median of 21."""
    rng = Random(7)
    flat = [70 * rng.gauss(1, CV) for _ in range(720)]
    cases = {
        "no change": flat,
        "one change": [v * (1 if i < 300 else 0.95) for i, v in enumerate(flat)],
    }
    cases["nine changes"] = [v * (1 if i // 72 % 2 else 0.9) for i, v in enumerate(flat)]
    found = {}
    for name, values in cases.items():
        laps = []
        for _ in range(22):
            laps.append(time.process_time())
            changes_in_series(values)
        found[name] = round(1000 * median(after - before for before, after in pairwise(laps)), 2)
    return found


def summary(rows: list[dict]) -> dict:
    delays = [row["delay_h"] for row in rows if row["delay_h"] is not None]
    told = [row for row in rows if row["off_h"] is not None]
    return {
        "series": len(rows),
        "found": len(delays) / len(rows),
        "found_at_the_end": len(told) / len(rows),
        "median_delay_h": median(delays) if delays else None,
        "more_than_one_told": sum(row["told_at_the_end"] > 1 for row in rows) / len(rows),
        "median_off_h": median(row["off_h"] for row in told) if told else None,
        "bracket_holds": sum(row["bracket_holds"] for row in told) / len(told) if told else None,
        "interval_holds": sum(row["interval_holds"] for row in told) / len(told) if told else None,
    }


def run(each: Callable[[Callable, range], list], series: int) -> dict:
    stored: dict = {
        "cv": CV,
        "days": DAYS,
        "false_alarms": [],
        "shifts": [],
        "ms_of_720_values": quickness(),
    }
    print("milliseconds for 720 values:", stored["ms_of_720_values"], flush=True)
    print(f"\n{'no change':14}{'days':>6}{'series':>8}{'false alarms':>14}")
    for kind, days, count in [
        *((kind, DAYS, series if kind == "normal" else series // 4) for kind in KINDS),
        ("normal", 30, series // 10),
    ]:
        found = each(partial(false_alarm, kind=kind, days=days), range(count))
        wrong = sum(one is not None for one in found)
        stored["false_alarms"].append(
            {"noise": kind, "days": days, "series": count, "wrong": wrong}
        )
        print(f"{kind:14}{days:>6}{count:>8}{100 * wrong / count:>12.2f} %", flush=True)
    print(
        f"\n{'shift':14}{'size':>6}{'when':>8}{'found':>9}{'delay':>8}{'off':>6}{'bracket':>9}{'interval':>9}{'>1':>7}"
    )
    cases = [("normal", size, 2.0, 12.0) for size in (0.02, 0.03, 0.05, 0.1)]
    cases += [("normal", size, 12.0, 13.96) for size in (0.02, 0.03, 0.05, 0.1)]
    cases += [(kind, 0.03, 2.0, 12.0) for kind in KINDS[1:]]
    for kind, size, first, last in cases:
        if (kind, size, first) == ("normal", 0.03, 2.0):
            count = series // 2
        else:
            count = series // 8
        rows = each(
            partial(shifted, kind=kind, size=size, first_day=first, last_day=last), range(count)
        )
        told = summary(rows)
        stored["shifts"].append(
            {"noise": kind, "size": size, "first_day": first, "last_day": last, **told}
        )
        shares = (told["bracket_holds"], told["interval_holds"], told["more_than_one_told"])
        print(
            f"{kind:14}{100 * size:>4g} "
            f"%{'late' if first > 2 else '':>8}{100 * told['found']:>7.1f} %"
            f"{told['median_delay_h'] or 0:>6g} h{told['median_off_h'] or 0:>4g} h"
            + "".join(f"{100 * (share or 0):>6.0f} %" for share in shares),
            flush=True,
        )
    return stored


def bounds(each: Callable[[Callable, range], list], series: int) -> None:
    for kind in KINDS[:5]:
        found = each(partial(heights, kind=kind), range(series))
        for name, values in zip(("cut", "apart"), zip(*found, strict=True), strict=True):
            ordered = sorted(values)
            told = ", ".join(
                f"{100 * q:g} %: {ordered[int(q * len(ordered))]:.2f}"
                for q in (0.95, 0.98, 0.99, 0.995)
            )
            print(f"{kind:14}{name:8}{told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bounds", action="store_true")
    options = parser.parse_args()
    with Pool(options.jobs) as pool:
        each = partial(pool.map, chunksize=4)
        if options.bounds:
            bounds(each, options.series)
            return
        stored = run(each, options.series)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "change_points.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
