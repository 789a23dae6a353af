"""How true the simulated engine is: `skep bench sweep` on it, beside what the forecast says of the
same load.

    .venv/bin/python benchmarks/simulated.py [--levels 1,4,8] [--rounds 3]

Each rig is started with `skep up --simulate`, gateway and all, and measured by the load generator:
what is lost between the pass that ends and the client that counts is in the figure. Run it on an
idle machine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skep.engines.simulated import SimulatedPlan, plan_from_json
from skep.paths import user_paths
from skep.planner.predict import PredictedOutcome, simulate_load
from skep.planner.setup import PlannedLoad
from skep.supervisor.control import replica_key
from skep.units import parse_int_list

PROMPT_TOKENS = 512
OUTPUT_TOKENS = 128


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    options: dict[str, Any]

    @property
    def argv(self) -> list[str]:
        return [
            self.model,
            *(str(part) for key, value in self.options.items() for part in (f"--{key}", value)),
        ]


CASES = (
    Case(
        "27B, two replicas",
        "qwen3.6-27b",
        {"gpu": "2x rtx-3090", "quant": "awq", "replicas": 2, "slots": 2},
    ),
    Case("27B, TP=2", "qwen3.6-27b", {"gpu": "2x rtx-3090", "quant": "awq", "tp": 2, "slots": 8}),
    Case(
        "35B-A3B",
        "qwen3.6-35b-a3b",
        {"gpu": "2x rtx-5090", "quant": "awq", "replicas": 2, "slots": 4},
    ),
    Case("8B on an H200", "qwen3-8b", {"gpu": "h200", "quant": "awq", "slots": 8}),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=3, help="tasks of each agent")
    parser.add_argument("--only", help="part of a case's name")
    args = parser.parse_args()
    print("SIMULATED: no model runs in any of these figures")
    print(
        f"{'rig':22} {'C':>3} {'forecast tok/s':>15} {'measured':>9} {'apart':>7} "
        f"{'TTFT ms':>15} {'TPOT ms':>15}"
    )
    for case in CASES:
        if not args.only or args.only in case.name:
            for line in lines_of(case, parse_int_list(args.levels, name="--levels"), args.rounds):
                print(line, flush=True)


def lines_of(case: Case, levels: tuple[int, ...], rounds: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            **{f"XDG_{name}_HOME": f"{folder}/{name}" for name in ("CONFIG", "DATA", "STATE")},
        }
        env.pop("XDG_RUNTIME_DIR", None)
        up = json.loads(
            skep(env, folder, "up", *case.argv, "--simulate", "--port", "0", "-d", "--json")
        )
        replicas = [row["url"] for row in up["replicas"]]
        key = replica_key(replicas[0], user_paths(env))
        request = urllib.request.Request(
            f"{replicas[0]}/simulated", headers={"authorization": f"Bearer {key}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # what it was told itself
            plan = plan_from_json(answer.read().decode())
        try:
            return [
                line_of(
                    case,
                    plan,
                    len(replicas),
                    level,
                    measured(env, folder, up["url"], level, rounds),
                )
                for level in levels
            ]
        finally:
            skep(env, folder, "down", "--wait", "0s")


def measured(
    env: dict[str, str], folder: str, url: str, level: int, rounds: int
) -> dict[str, Any]:
    lengths = ["--prompt-tokens", PROMPT_TOKENS, "--max-tokens", OUTPUT_TOKENS, "--fixed-output"]
    often = [
        "--concurrency",
        level,
        "--tasks",
        rounds * level,
        "--runs",
        1,
        "--warm-up",
        "quick",
        "--seed",
        7,
    ]
    summary = json.loads(
        skep(env, folder, "bench", "sweep", "--url", url, *lengths, *often, "--json")
    )
    (found,) = summary["levels"]
    assert found["failed"] == 0
    assert found["output_tokens"] == rounds * level * OUTPUT_TOKENS
    return {**found, "rounds": rounds}


def line_of(
    case: Case, plan: SimulatedPlan, replicas: int, level: int, found: dict[str, Any]
) -> str:
    """The forecast gets the prompts as they were counted, and the gateway's slots: more than those
    wait before it.
    """
    load = PlannedLoad(level, PROMPT_TOKENS, OUTPUT_TOKENS, tasks=found["rounds"] * level)
    predicted_outcome: PredictedOutcome = simulate_load(
        plan.step,
        load,
        slots=plan.slots,
        pool_tokens=plan.pool_tokens,
        chunk_tokens=plan.chunk_tokens,
        replicas=replicas,
    )
    apart = found["effective_tok_s"] / predicted_outcome.effective_tok_s - 1
    ttft = f"{1000 * predicted_outcome.ttft_s:.0f} / {found['ttft_ms']['mean']:.0f}"
    tpot = f"{1000 * predicted_outcome.tpot_s:.2f} / {found['tpot_ms']['mean']:.2f}"
    speeds = f"{predicted_outcome.effective_tok_s:15.1f} {found['effective_tok_s']:9.1f} {100 * apart:+6.1f}%"
    return f"{case.name:22} {level:3} {speeds} {ttft:>15} {tpot:>15}"


def skep(env: dict[str, str], folder: str, *args: object) -> str:
    argv = [sys.executable, "-m", "skep", *map(str, args)]
    done = subprocess.run(
        argv, env=env, cwd=Path(folder), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
