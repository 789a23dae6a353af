"""Fit the speed model's constants to published and own measurements, once with all sources and
once without each.

    python scripts/fit_planner.py [--processes 2] [--rounds 5]

Reads tests/data/*_points.csv; writes src/skep/catalog/fitted.toml and, for each source, the
constants fitted without it (tests/data/fitted_without.json). Needs numpy. Takes five minutes on
two cores.

Residuals are logarithms of predicted over published speed, under a loss that outliers cannot pull
(Cauchy). A source has an error of its own in common to its rows (a random effect): their mean
counts once, however many they are, and what differs between them counts in full. Every constant is
drawn back to its default as strongly as `_give` says."""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from published_curves import calibrated, curve_of, honest_constants  # noqa: E402

from skep.planner.ranking import FEATURES, features  # noqa: E402
from skep.planner.step import Constants  # noqa: E402
from skep.planner.validation import PublishedCase, Unpredictable, predict, read_case  # noqa: E402

NAMES = Constants.names()
START = Constants()
SCALE = 0.22  # residuals beyond it count less and less
COMMON = 0.5  # share of the variance of a source's rows that they have in common
STEP = 0.03
WITHOUT = ROOT / "tests" / "data" / "fitted_without.json"


def _give(name: str) -> float:
    """How far, in logarithms, a constant may go for the same price.

    Four times as far, unseen sources came out worse: by source 22.3 instead of 21.6 %, p90 62
    instead of 59 %."""
    if name.startswith("bw"):
        return 0.02
    return {
        "before_2026": 0.17,
        "draft_us_tp": 0.17,
        "layer_us_eager": 0.05,
        "link_latency": 0.05,
    }.get(name, 0.04 if name.startswith(("mfu", "unpack", "layer_us")) else 0.09)


GIVE = np.array([_give(name) for name in NAMES])


def read() -> tuple[list[PublishedCase], list[str]]:
    """Return the cases, and which curve each belongs to."""
    cases: list[PublishedCase] = []
    curves: list[str] = []
    for path in sorted((ROOT / "tests" / "data").glob("*_points.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row, cells in enumerate(csv.DictReader(file), 2):
                try:
                    case = read_case(row, cells)
                    predict(case, START)
                except Unpredictable:
                    continue
                cases.append(case)
                curves.append(curve_of(cells))
    return cases, curves


CASES, CURVES = read()
SOURCES = np.array([case.source for case in CASES])
MEMBERS = {source: np.flatnonzero(source == SOURCES) for source in dict.fromkeys(SOURCES)}


def constants(theta: np.ndarray) -> Constants:
    values = {
        name: getattr(START, name) * math.exp(shift)
        for name, shift in zip(NAMES, theta, strict=True)
    }
    capped = {
        name: min(value, 1.0) if name.startswith("bw") else value for name, value in values.items()
    }
    return Constants(**{name: float(f"{value:.4g}") for name, value in capped.items()})


def residuals(theta: np.ndarray) -> np.ndarray:
    chosen = constants(theta)
    return np.array([math.log(predict(case, chosen) / case.published) for case in CASES])


def _shifted(task: tuple[np.ndarray, int]) -> np.ndarray:
    theta, place = task
    moved = theta.copy()
    moved[place] += STEP
    return residuals(moved)


def slopes(theta: np.ndarray, now: np.ndarray, run: Callable[..., Any] = map) -> np.ndarray:
    return np.stack(
        [(there - now) / STEP for there in run(_shifted, [(theta, n) for n in range(len(NAMES))])],
        axis=1,
    )


def apart(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Take a share of each source's mean off its rows, so that what they have in common counts
    once.
    """
    out = values.copy()
    for rows in MEMBERS.values():
        total = weight[rows].sum()
        if total <= 0:
            continue
        keep = math.sqrt((1 - COMMON) / (1 - COMMON + COMMON * total))
        mean = np.tensordot(weight[rows], values[rows], axes=1) / total
        out[rows] = values[rows] - (1 - keep) * mean
    return out


def loss(rest: np.ndarray, theta: np.ndarray, mask: np.ndarray) -> float:
    return float(
        (mask * np.log1p((apart(rest, mask) / SCALE) ** 2)).sum() + (theta**2 / GIVE**2).sum()
    )


def towards(
    slope: np.ndarray, rest: np.ndarray, theta: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """The best constants if the model were straight, outliers weighed down again and again."""
    goal = theta.copy()
    flat = apart(slope, mask)
    level = apart(rest, mask)
    for _ in range(40):
        straight = level + flat @ (goal - theta)
        weight = mask / (1 + (straight / SCALE) ** 2) / SCALE**2
        normal = (flat * weight[:, None]).T @ flat + np.diag(1 / GIVE**2)
        following = np.linalg.solve(normal, -(flat * weight[:, None]).T @ (level - flat @ theta))
        if np.abs(following - goal).max() < 1e-5:
            break
        goal = following
    return goal


def fit(
    theta: np.ndarray, mask: np.ndarray, rounds: int, run: Callable[..., Any] = map
) -> np.ndarray:
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
        gained = now - then
        theta = there
        rest = rest_there
        now = then
        if gained < 0.2:
            break
    return theta


def without(task: tuple[str, np.ndarray, np.ndarray, np.ndarray]) -> tuple[str, np.ndarray]:
    """Fit anew without a source: steps with the slopes of the full fit, the residuals computed
    anew after each.
    """
    source, theta, slope, rest = task
    mask = (source != SOURCES).astype(float)
    for _ in range(4):
        goal = towards(slope, rest, theta, mask)
        moved = np.abs(goal - theta).max()
        theta = goal
        rest = residuals(goal)
        if moved < 0.004:
            break
    return source, theta


def half_widths(rest: np.ndarray, seen: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Of |residual|, the 80 % quantile as exp(coefficients x features), a source counting by the
    root of its rows.

    Features only widen a band: what few have measured is never surer than the rest.
    """
    size = np.log(np.maximum(np.abs(rest), 0.005))
    weight = mask / np.sqrt([len(MEMBERS[source]) for source in SOURCES])
    weight /= weight.sum()
    goal = np.zeros(seen.shape[1])
    goal[0] = np.quantile(size[mask > 0], 0.8)
    for turn in range(6000):
        above = size > seen @ goal
        slope = seen.T @ (np.where(above, -0.8, 0.2) * weight)
        slope[1:] += 0.01 * goal[1:]
        goal -= 0.5 / (1 + turn / 300) * slope
        goal[1:] = np.maximum(goal[1:], 0.0)
    return goal


def describe(label: str, rest: np.ndarray) -> None:
    error = np.abs(np.exp(rest) - 1)
    each = [float(np.median(error[rows])) for rows in MEMBERS.values()]
    own = [rows for source, rows in MEMBERS.items() if source.startswith("skep-h200-vllm")]
    if own:
        mine = float(np.median(error[np.concatenate(own)]))
    else:
        mine = math.nan
    print(
        f"{label}: {len(error)} rows, median {np.median(error):.1%}, p90 "
        f"{np.quantile(error, 0.9):.1%}; "
        f"by source mean {np.mean(each):.1%}, median {np.median(each):.1%}; own vLLM on "
        f"H200 {mine:.1%}",
        flush=True,
    )


def _features(case: PublishedCase) -> tuple[float, ...]:
    return features(case.setup, case.card, case.load.concurrency)


def write(theta: np.ndarray, bands: np.ndarray, tuned: float) -> None:
    full = constants(theta)
    lines = [
        (
            "# Written by scripts/fit_planner.py; docs/accuracy.md says what it is fitted to "
            "and how far off it is."
        ),
        "",
        "[about]",
        f"rows = {len(CASES)}",
        f"sources = {len(MEMBERS)}",
        "",
        "[constants]",
    ]
    lines += [f"{name} = {getattr(full, name)!r}" for name in NAMES]
    lines += [
        "",
        "# logarithm of the half width of the 80 % band: the first is everybody's",
        "[bands]",
    ]
    lines += [f"{name} = {value:.4f}" for name, value in zip(FEATURES, bands, strict=True)]
    lines += [f"calibrated = {tuned:.4f}"]
    (ROOT / "src" / "skep" / "catalog" / "fitted.toml").write_text(
        "\n".join(lines) + "\n", encoding="utf-8"
    )


def write_folds(folds: dict[str, np.ndarray]) -> None:
    others = {
        source: {n: getattr(constants(shift), n) for n in NAMES}
        for source, shift in sorted(folds.items())
    }
    WITHOUT.write_text(json.dumps(others, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    argument_parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    argument_parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    argument_parser.add_argument("--rounds", type=int, default=5)
    argument_parser.add_argument(
        "--quick", action="store_true", help="fit on all sources only; write nothing"
    )
    options = argument_parser.parse_args()
    describe("not fitted", residuals(np.zeros(len(NAMES))))
    with multiprocessing.Pool(options.processes) as pool:
        theta = fit(np.zeros(len(NAMES)), np.ones(len(CASES)), options.rounds, pool.map)
        rest = residuals(theta)
        describe("fitted on all", rest)
        print(
            "; ".join(
                f"{n} {getattr(constants(theta), n):g} (from {getattr(START, n):g})" for n in NAMES
            )
        )
        slope = slopes(theta, rest, pool.map)
        if options.quick:  # an estimate of what is left without each source
            folds = {s: towards(slope, rest, theta, (s != SOURCES).astype(float)) for s in MEMBERS}
            rest = np.concatenate(
                [(rest + slope @ (folds[s] - theta))[rows] for s, rows in MEMBERS.items()]
            )
            rest = rest[np.argsort(np.concatenate(list(MEMBERS.values())))]
            describe("without each source, about", rest)
        else:
            folds = dict(
                pool.map(without, [(s, theta, slope, rest) for s in MEMBERS], chunksize=1)
            )
            chosen = {source: constants(shift) for source, shift in folds.items()}
            rest = np.array([math.log(predict(c, chosen[c.source]) / c.published) for c in CASES])
            describe("each source with constants not fitted on it", rest)
    for source, rows in sorted(MEMBERS.items(), key=lambda one: -len(one[1])):
        own = rest[rows]
        print(
            f"  {len(rows):4d} {source}: median {np.median(np.abs(np.exp(own) - 1)):.1%}, "
            f"leans {np.median(own):+.2f}"
        )
    if options.quick:
        return
    seen = np.array([_features(case) for case in CASES])
    everybody = np.ones(len(CASES))
    bands = half_widths(rest, seen, everybody)
    held = []
    for source, rows in MEMBERS.items():
        other = half_widths(rest, seen, (source != SOURCES).astype(float))
        held.append(float((np.abs(rest[rows]) <= np.exp(seen[rows] @ other)).mean()))
    print(
        f"bands hold {(np.abs(rest) <= np.exp(seen @ bands)).mean():.1%} of the rows; "
        f"fitted without a source, {np.mean(held):.1%} of its rows on average"
    )
    write_folds(folds)
    tuned = list(calibrated(zip(CASES, CURVES, strict=True)))
    after = np.array(
        [math.log(predict(c, honest_constants(c.source), t) / c.published) for c, t in tuned]
    )
    many = np.array([c.load.concurrency > 1 for c, _ in tuned])
    error = np.abs(np.exp(after) - 1)
    print(
        f"calibrated by C=1: {len(tuned)} rows, median {np.median(error):.1%}; {many.sum()} "
        "of C>1, "
        f"median {np.median(error[many]):.1%}, p90 {np.quantile(error[many], 0.9):.1%}"
    )
    wide = np.array([_features(case) for case, _ in tuned]) @ bands
    write(theta, bands, float(np.quantile(np.log(np.maximum(np.abs(after), 0.005)) - wide, 0.8)))


if __name__ == "__main__":
    main()
