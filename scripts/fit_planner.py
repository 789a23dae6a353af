"""Fit the speed model's constants to published measurements, once with all sources and once without each.

    python scripts/fit_planner.py [--processes 16] [--rounds 4]

Reads tests/data/*_points.csv, writes src/skep/catalog/fitted.toml, prints how far off the model is on sources it was
not fitted on. Needs numpy. Takes minutes on 16 cores, an hour on two.

Residuals are logarithms of predicted over published speed, under a loss that outliers cannot pull (Cauchy). A source
counts by the square root of its rows. Every constant is drawn back to its round default as strongly as `_give` says.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from published_curves import curve_of, tuning_from  # noqa: E402

from skep.planner.constants import Constants  # noqa: E402
from skep.planner.ranking import FEATURES, features  # noqa: E402
from skep.planner.validation import PublishedCase, Unpredictable, case_pool_tokens, predict, read_case, value_of  # noqa: E402  # noqa: E402

NAMES = Constants.names()
START = Constants()
SCALE = 0.22  # residuals beyond it count less and less
STEP = 0.03
LARGE = 10  # rows


def _give(name: str) -> float:
    """How far, in logarithms, a constant may go for the same price."""
    if name.startswith(("bw_", "on_", "mfu_")):
        return 0.22
    if name.startswith(("engine", "accept")):
        return 0.08
    if name == "run_tail":
        return 0.001  # not told apart from the steps by any row: held
    if name in ("routing_skew", "tp_imbalance", "accept_mtp"):
        return 0.04
    if name.startswith(("draft_us", "batch_", "link_bytes", "layer_us_moe_amd")):
        return 0.8
    return 0.5


GIVE = np.array([_give(name) for name in NAMES])


def read() -> tuple[list[PublishedCase], list[tuple[str, ...]], list[tuple[PublishedCase, float, float]]]:
    """The cases, the curve of each, and times to the first token as further evidence: (case, seconds, weight)."""
    cases: list[PublishedCase] = []
    curves: list[tuple[str, ...]] = []
    prompts: list[tuple[PublishedCase, float, float]] = []
    for path in sorted((ROOT / "tests" / "data").glob("*_points.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row, cells in enumerate(csv.DictReader(file), 2):
                try:
                    case = read_case(row, cells)
                    case_pool_tokens(case)
                except Unpredictable:
                    continue
                cases.append(case)
                curves.append(curve_of(cells))
                prompts += _prompt_evidence(case, cells["notes"].lower(), cells["ttft_ms"])
    return cases, curves, prompts


def _prompt_evidence(case: PublishedCase, notes: str, ttft_ms: str) -> list[tuple[PublishedCase, float, float]]:
    def alone(tokens: int) -> PublishedCase:
        return replace(case, load=replace(case.load, input_tokens=tokens, output_tokens=4, concurrency=1, tasks=None))

    found = []
    if told := re.search(r"prompt eval ([\d.]+) tok/s", notes):
        found.append((alone(1024), 1024 / float(told[1]), 0.3))
    if told := re.search(r"prefill ~?([\d,]+)(?: tok/s)?@10k", notes):
        found.append((alone(10_000), 10_000 / float(told[1].replace(",", "")), 0.5))
    load = case.load
    if ttft_ms.strip() and load.concurrency <= 20 and load.input_tokens >= 1000 and not load.cached_share:
        found.append((case, float(ttft_ms.replace(",", "")) / 1000, 0.3))
    return found


CASES, CURVES, PROMPTS = read()
SOURCES = np.array([case.source for case in CASES] + [case.source for case, _, _ in PROMPTS])
ROWS = len(CASES)
COUNTS = Counter(case.source for case in CASES)
WEIGHTS = np.array(
    [1 / math.sqrt(COUNTS[case.source]) for case in CASES]
    + [weight / math.sqrt(COUNTS[case.source]) for case, _, weight in PROMPTS]
)
WEIGHTS *= ROWS / WEIGHTS[:ROWS].sum()


def constants(theta: np.ndarray) -> Constants:
    values = {}
    for name, shift in zip(NAMES, theta, strict=True):
        value = getattr(START, name) * math.exp(shift)
        if name.startswith("accept"):
            value = min(value, 0.97)
        elif name.startswith("bw_") or name in ("run_tail", "routing_skew"):
            value = min(value, 1.0)
        values[name] = float(f"{value:.5g}")
    return Constants(**values)


def residuals(theta: np.ndarray) -> np.ndarray:
    chosen = constants(theta)
    rows = [math.log(value_of(case, predict(case, chosen), chosen) / case.published) for case in CASES]
    rows += [math.log(predict(case, chosen).ttft_s / seconds) for case, seconds, _ in PROMPTS]
    return np.array(rows)


def _shifted(task: tuple[np.ndarray, int]) -> np.ndarray:
    theta, place = task
    moved = theta.copy()
    moved[place] += STEP
    return residuals(moved)


def slopes(theta: np.ndarray, now: np.ndarray, run: Callable[..., Any] = map) -> np.ndarray:
    return np.stack([(there - now) / STEP for there in run(_shifted, [(theta, n) for n in range(len(NAMES))])], axis=1)


def loss(rest: np.ndarray, theta: np.ndarray, mask: np.ndarray) -> float:
    return float((WEIGHTS * mask * np.log1p((rest / SCALE) ** 2)).sum() + (theta**2 / GIVE**2).sum())


def towards(slope: np.ndarray, rest: np.ndarray, theta: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The best constants if the model were straight, outliers weighed down again and again."""
    goal = theta.copy()
    for _ in range(40):
        straight = rest + slope @ (goal - theta)
        weight = WEIGHTS * mask / (1 + (straight / SCALE) ** 2) / SCALE**2
        normal = (slope * weight[:, None]).T @ slope + np.diag(1 / GIVE**2)
        following = np.linalg.solve(normal, -(slope * weight[:, None]).T @ (rest - slope @ theta))
        if np.abs(following - goal).max() < 1e-5:
            break
        goal = following
    return goal


def fit(theta: np.ndarray, mask: np.ndarray, rounds: int, run: Callable[..., Any] = map) -> np.ndarray:
    rest = residuals(theta)
    now = loss(rest, theta, mask)
    for _ in range(rounds):
        goal = towards(slopes(theta, rest, run), rest, theta, mask)
        for share in (1.0, 0.5, 0.25, 0.1):
            there = theta + share * (goal - theta)
            rest_there = residuals(there)
            then = loss(rest_there, there, mask)
            if then < now:
                break
        else:
            return theta
        gained, theta, rest, now = now - then, there, rest_there, then
        if gained < 0.3:
            break
    return theta


def without(task: tuple[str, np.ndarray, int]) -> tuple[str, np.ndarray]:
    source, theta, rounds = task
    return source, fit(theta, (source != SOURCES).astype(float), rounds)


def without_each(theta: np.ndarray, pool: Any) -> dict[str, np.ndarray]:
    """A small source moves little: one step along the slopes at the full fit. Large ones are fitted anew from there."""
    rest = residuals(theta)
    slope = slopes(theta, rest, pool.map)
    near = {source: towards(slope, rest, theta, (source != SOURCES).astype(float)) for source in COUNTS}
    large = [(source, near[source], 1) for source, count in COUNTS.most_common() if count >= LARGE]
    return {**near, **dict(pool.map(without, large, chunksize=1))}


def half_widths(rest: np.ndarray, seen: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Of |residual|, the 80 % quantile as exp(coefficients x features): pinball loss, by steps along the slope."""
    size = np.log(np.maximum(np.abs(rest[where]), 0.005))
    goal = np.zeros(seen.shape[1])
    goal[0] = np.quantile(size, 0.8)
    rate = 0.5
    for turn in range(6000):
        above = size > seen[where] @ goal
        slope = seen[where].T @ (np.where(above, -0.8, 0.2)) / len(size)
        slope[1:] += 0.004 * goal[1:]
        goal -= rate / (1 + turn / 300) * slope
    return goal


def describe(label: str, rest: np.ndarray) -> None:
    error = np.abs(np.exp(rest) - 1)
    alone = np.array([case.load.concurrency == 1 for case in CASES])
    print(
        f"{label}: {len(error)} rows, median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%}, "
        f"C=1 {np.median(error[alone]):.1%}, C>1 {np.median(error[~alone]):.1%}",
        flush=True,
    )


def calibrated(chosen: dict[str, Constants]) -> tuple[np.ndarray, np.ndarray]:
    firsts: dict[tuple[str, ...], PublishedCase] = {}
    for case, curve in zip(CASES, CURVES, strict=True):
        if case.load.concurrency == 1:
            firsts.setdefault(curve, case)
    rest, seen = [], []
    for case, curve in zip(CASES, CURVES, strict=True):
        first = firsts.get(curve)
        if first is None or first is case:
            continue
        used = chosen[case.source]
        rest.append(math.log(value_of(case, predict(case, used, tuning_from(first, used)), used) / case.published))
        seen.append(_features(case))
    return np.array(rest), np.array(seen)


def _features(case: PublishedCase) -> tuple[float, ...]:
    return features(case.setup, case.card, case.load.concurrency)


def write(theta: np.ndarray, folds: dict[str, np.ndarray], bands: np.ndarray, tuned: float) -> None:
    full = constants(theta)
    lines = [
        "# Written by scripts/fit_planner.py; docs/accuracy.md says what it is fitted to and how far off it is.",
        "", "[about]", f"rows = {ROWS}", f"sources = {len(COUNTS)}", "", "[constants]",
    ]  # fmt: skip
    lines += [f"{name} = {getattr(full, name)!r}" for name in NAMES]
    lines += ["", "# logarithm of the half width of the 80 % band: the first is everybody's", "[bands]"]
    lines += [f"{name} = {value:.4f}" for name, value in zip(FEATURES, bands, strict=True)]
    lines += [f"calibrated = {tuned:.4f}"]
    for source, shift in sorted(folds.items()):
        other = constants(shift)
        lines += ["", f'[without."{source}"]']
        lines += [f"{n} = {getattr(other, n)!r}" for n in NAMES if getattr(other, n) != getattr(full, n)]
    (ROOT / "src" / "skep" / "catalog" / "fitted.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    asked.add_argument("--rounds", type=int, default=5)
    options = asked.parse_args()
    with multiprocessing.Pool(options.processes) as pool:
        everything = np.ones(len(SOURCES))
        theta = fit(np.zeros(len(NAMES)), everything, options.rounds, pool.map)
        describe("fitted on all", residuals(theta)[:ROWS])
        folds = without_each(theta, pool)
    chosen = {source: constants(shift) for source, shift in folds.items()}
    rest = np.array(
        [math.log(value_of(c, predict(c, chosen[c.source]), chosen[c.source]) / c.published) for c in CASES]
    )
    describe("each source with constants not fitted on it", rest)
    for source, count in COUNTS.most_common():
        own = rest[SOURCES[:ROWS] == source]
        print(f"  {count:4d} {source}: median {np.median(np.abs(np.exp(own) - 1)):.1%}, leans {np.median(own):+.2f}")
    seen = np.array([_features(case) for case in CASES])
    bands = half_widths(rest, seen, np.ones(ROWS, dtype=bool))
    held = np.abs(rest) <= np.exp(seen @ bands)
    print(f"bands hold {held.mean():.1%}")
    crossed = []
    for source in COUNTS:
        mine = SOURCES[:ROWS] == source
        crossed += list(np.abs(rest[mine]) <= np.exp(seen[mine] @ half_widths(rest, seen, ~mine)))
    print(f"bands fitted without the source hold {np.mean(crossed):.1%}")
    tuned_rest, tuned_seen = calibrated(chosen)
    describe_tuned = np.abs(np.exp(tuned_rest) - 1)
    print(f"calibrated by C=1: {len(tuned_rest)} rows, median {np.median(describe_tuned):.1%}, "
          f"p90 {np.quantile(describe_tuned, 0.9):.1%}")  # fmt: skip
    ratio = np.log(np.maximum(np.abs(tuned_rest), 0.005)) - tuned_seen @ bands
    write(theta, folds, bands, float(np.quantile(ratio, 0.8)))
    for name in NAMES:
        print(f"{name} {getattr(constants(theta), name):g} (from {getattr(START, name):g})", end="; ")
    np.save(ROOT / ".fit_rest.npy", rest)


if __name__ == "__main__":
    main()
