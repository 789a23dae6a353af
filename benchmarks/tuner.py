"""How well `skep tune` searches: simulated rigs whose best configuration is known, because every
one was looked at.

    .venv/bin/python benchmarks/tuner.py [--only 2x3090-dense] [--runs 10] [--seed 0] [--budget 12]
    [--jobs 2]

Every run has hills of its own: the planner's word times a seeded ruggedness, so that what the
tuner foresees is wrong by up to 20 % for a value of a knob, ladders have several peaks, knobs
interact, and some configurations fail. Readings have 3 % noise, starts 1 %, the machine drifts by
2 %, and one reading in 50 is far off. Nothing is executed: time is virtual. Random search and
Optuna's TPE get the time that the tuner took. TPE needs `pip install optuna`: skep does not."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tuning_contest.contest import WITHIN, Arena, has_optuna, others
from tuning_contest.planned import PlannedRig
from tuning_contest.rigs import RIGS, rig_called

import skep.stats
import skep.tuner

RESULTS = Path(__file__).parent / "results" / "tuner.json"
_COUNTED = ("accepted", "falsely", "not_better")
GOAL_RUNS = 0.9
GOAL_GRID = 0.25
GOAL_FALSE = 0.05


def one_run(name: str, seed: int, budget_h: float | None, with_tpe: bool) -> dict[str, Any]:
    arena = Arena(PlannedRig(rig_called(name)), seed)
    survey = arena.survey
    budget_s = min(GOAL_GRID * survey.grid_s, budget_h * 3600 if budget_h else float("inf"))
    began = time.perf_counter()
    tuned = arena.tune(budget_s)
    thought_s = time.perf_counter() - began
    finds = [tuned.find, *others(arena, tuned.find.seconds, with_tpe=with_tpe)]
    accepted = tuned.acceptances
    return {
        "rig": name,
        "seed": seed,
        "baseline": arena.truth.value(arena.rig.baseline),
        "best": survey.best_figure,
        "best_config": survey.best.as_dict,
        "configurations": survey.configurations,
        "working": survey.working,
        "failing": survey.failing,
        "grid_s": survey.grid_s,
        "thought_s": thought_s,
        "ended": tuned.ended,
        "stages": len(tuned.stages),
        "failed_stages": sum(stage.failure is not None for stage in tuned.stages),
        "accepted": accepted.accepted,
        "falsely": accepted.falsely,
        "not_better": accepted.not_better,
        "worst_loss": accepted.worst_loss,
        "finds": {
            find.contestant: {
                "config": find.config.as_dict,
                "figure": find.figure,
                "regret": arena.regret(find),
                "seconds": find.seconds,
                "starts": find.starts,
            }
            for find in finds
        },
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    accepted, falsely, not_better = (sum(row[key] for row in rows) for key in _COUNTED)
    names = list(rows[0]["finds"])
    return {
        "runs": len(rows),
        "grid_share": statistics.mean(
            row["finds"]["tuner"]["seconds"] / row["grid_s"] for row in rows
        ),
        "hours": statistics.mean(row["finds"]["tuner"]["seconds"] for row in rows) / 3600,
        "accepted": accepted,
        "falsely": falsely,
        "not_better": not_better,
        "false_of_accepted": falsely / accepted if accepted else 0.0,
        "false_of_not_better": falsely / not_better if not_better else 0.0,
        "contestants": {name: _standing([row["finds"][name] for row in rows]) for name in names},
    }


def _standing(finds: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "within": sum(find["regret"] <= WITHIN for find in finds) / len(finds),
        "regret": statistics.mean(find["regret"] for find in finds),
        "worst": max(find["regret"] for find in finds),
    }


def say_rig(name: str, told: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    print(
        f"{name}: {first['configurations']} configurations, "
        f"{statistics.mean(r['working'] for r in rows):.0f} work, "
        f"grid {statistics.mean(r['grid_s'] for r in rows) / 3600:.0f} h; "
        f"{statistics.mean(r['baseline'] for r in rows):.0f} -> "
        f"{statistics.mean(r['best'] for r in rows):.0f} tok/s"
    )
    print(
        f"  tuner: {told['hours']:.1f} h, {told['grid_share']:.2%} of the grid; "
        f"{told['accepted']} accepted, "
        f"{told['falsely']} falsely ({told['false_of_accepted']:.1%} of those accepted, "
        f"{told['false_of_not_better']:.1%} of {told['not_better']} that were not better)"
    )
    for contestant, standing in told["contestants"].items():
        print(
            f"  {contestant:20} within {WITHIN:.0%} of the best: {standing['within']:4.0%}   "
            f"short of it {standing['regret']:6.2%} on average, {standing['worst']:6.2%} at worst"
        )


def say_runs(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        find = row["finds"]["tuner"]
        apart = {
            k: (find["config"][k], v)
            for k, v in row["best_config"].items()
            if find["config"][k] != v
        }
        print(
            f"    seed {row['seed']:3}: {find['regret']:6.2%} short, "
            f"{find['seconds'] / 3600:5.1f} h, "
            f"{find['starts']:4} starts, {row['accepted']}/{row['falsely']} "
            f"accepted/falsely, {row['ended']}; "
            f"apart {apart}"
        )


def judged(told: dict[str, dict[str, Any]]) -> dict[str, Any]:
    accepted, falsely, not_better = (sum(one[key] for one in told.values()) for key in _COUNTED)
    return {
        "within_everywhere": all(
            one["contestants"]["tuner"]["within"] >= GOAL_RUNS for one in told.values()
        ),
        "grid_everywhere": all(one["grid_share"] <= GOAL_GRID for one in told.values()),
        "false_of_accepted": falsely / accepted if accepted else 0.0,
        "false_of_not_better": falsely / not_better if not_better else 0.0,
        "accepted": accepted,
        "falsely": falsely,
        "not_better": not_better,
    }


def main() -> None:
    args = arguments()
    names = [rig.name for rig in RIGS if not args.only or args.only in rig.name]
    with_tpe = has_optuna() and not args.no_tpe
    print("SIMULATED: no model runs in any of these figures")
    if not has_optuna():
        print("Optuna is not installed and does not take part: pip install optuna")
    told: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        seeds = range(args.seed, args.seed + args.runs)
        for name in names:
            first = one_run(name, args.seed, args.budget, with_tpe)  # fills what is kept on disk
            further = [
                pool.submit(one_run, name, seed, args.budget, with_tpe) for seed in seeds[1:]
            ]
            of_rig = [first, *(one.result() for one in further)]
            told[name] = summary(of_rig)
            say_rig(name, told[name], of_rig)
            if args.verbose:
                say_runs(of_rig)
            rows += of_rig
    verdict = judged(told)
    say_verdict(verdict)
    if not args.only:
        RESULTS.parent.mkdir(exist_ok=True)
        how = {"runs": args.runs, "seed": args.seed, "code": code_digest()}
        document = {**how, "verdict": verdict, "rigs": told, "rows": rows}
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def code_digest() -> str:
    """Of what searches and of what it searches, as it was when it ran."""
    folders = (
        Path(skep.tuner.__path__[0]),
        Path(skep.stats.__path__[0]),
        Path(__file__).parent / "tuning_contest",
    )
    digest = hashlib.sha256()
    for source in sorted(path for folder in folders for path in folder.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def say_verdict(verdict: dict[str, Any]) -> None:
    print(
        f"within {WITHIN:.0%} in {GOAL_RUNS:.0%} of the runs on every rig: "
        f"{_met(verdict['within_everywhere'])}"
    )
    print(
        f"at most {GOAL_GRID:.0%} of the grid's time on every rig: "
        f"{_met(verdict['grid_everywhere'])}"
    )
    share = verdict["false_of_accepted"]
    print(
        f"changes that are not better, accepted: {verdict['falsely']} of "
        f"{verdict['accepted']} acceptances "
        f"({share:.1%}), of {verdict['not_better']} such challengers "
        f"({verdict['false_of_not_better']:.1%}); "
        f"goal {GOAL_FALSE:.0%}: " + _met(share <= GOAL_FALSE)
    )


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", help="part of a rig's name: " + ", ".join(rig.name for rig in RIGS)
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--budget", type=float, help="virtual hours of a search; else a quarter of the grid's time"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-tpe", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
