"""How quickly `skep plan` answers (goal: under 1 s), for rigs and loads of several sizes.

    .venv/bin/python benchmarks/plan.py

Each command 7 times, interleaved, beside `skep --version` in the same run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_S = 1.0
ROUNDS = 7
PLANS = {
    "27B, 2x 3090, 4 agents": ("qwen3.6-27b", "--gpu", "2x rtx-3090"),
    "35B-A3B, 2x 5090, 16 agents": ("qwen3.6-35b-a3b", "--gpu", "2x rtx-5090", "--agents", "16"),
    "31B, 4x 3090, 8 agents": ("gemma-4-31b", "--gpu", "4x rtx-3090", "--agents", "8"),
    "8B, one 4090, 50 agents": ("qwen3-8b", "--gpu", "rtx-4090", "--agents", "50"),
    "27B, 2x 3090 and one 5090": ("qwen3.6-27b", "--gpu", "2x rtx-3090", "--gpu", "rtx-5090"),
    "235B, 8x H100, 32 agents": ("qwen3-235b-a22b", "--gpu", "8x h100-sxm", "--agents", "32"),
}


def main() -> None:
    commands = {
        "skep --version": ("--version",),
        **{name: ("plan", *words) for name, words in PLANS.items()},
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            **{f"XDG_{name}_HOME": folder for name in ("STATE", "DATA", "CONFIG")},
        }
        for round_number in range(ROUNDS + 1):
            for name, words in commands.items():
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "skep", *words],
                    env=env,
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
                if round_number:  # the first one fills the page cache
                    times[name].append(time.perf_counter() - began)
    print(f"{'plan':30} {'median':>8} {'min':>8} {'max':>8}   of {ROUNDS}, {os.cpu_count()} cores")
    for name, values in times.items():
        median, low, high = (1000 * f(values) for f in (statistics.median, min, max))
        if name not in PLANS:
            goal = ""
        else:
            goal = "met" if median < 1000 * GOAL_S else "MISSED"
        print(f"{name:30} {median:5.0f} ms {low:5.0f} ms {high:5.0f} ms   {goal}")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "plan.json").write_text(
        json.dumps({"rounds": ROUNDS, "seconds": times}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
