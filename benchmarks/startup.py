"""How quickly the command line answers: `skep --help` (goal: 0.2 s at most), `skep plan` (0.5 s),
`ps`, `runs`.

    .venv/bin/python benchmarks/startup.py

Each command 15 times, interleaved, beside a bare `python -c pass` in the same run.
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

GOALS_S = {"skep --help": 0.2, "skep plan": 0.5}
ROUNDS = 15
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "skep --help": [sys.executable, "-m", "skep", "--help"],
    "skep plan": [sys.executable, "-m", "skep", "plan", "qwen3.6-27b", "--gpu", "2x rtx-3090"],
    "skep bench sweep --help": [sys.executable, "-m", "skep", "bench", "sweep", "--help"],
    "skep ps --json": [sys.executable, "-m", "skep", "ps", "--json"],
    "skep runs": [sys.executable, "-m", "skep", "runs"],
}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            **{f"XDG_{name}_HOME": folder for name in ("STATE", "DATA", "CONFIG")},
        }
        for round_number in range(ROUNDS + 1):
            for name, argv in COMMANDS.items():
                began = time.perf_counter()
                subprocess.run(
                    argv,
                    env=env,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
                if round_number:  # the first one fills the page cache
                    times[name].append(time.perf_counter() - began)
    print(
        f"{'command':26} {'median':>8} {'min':>8} {'max':>8}   of {ROUNDS}, {os.cpu_count()} cores"
    )
    for name, values in times.items():
        median = statistics.median(values)
        low = min(values)
        high = max(values)
        print(f"{name:26} {median * 1000:5.0f} ms {low * 1000:5.0f} ms {high * 1000:5.0f} ms")
    for name, goal_s in GOALS_S.items():
        met = statistics.median(times[name]) <= goal_s
        print(f"goal `{name}` at most {goal_s} s: {'met' if met else 'missed'}")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "startup.json").write_text(
        json.dumps({"rounds": ROUNDS, "seconds": times}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
