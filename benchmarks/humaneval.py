"""All of HumanEval's own solutions must pass in the sandbox, and all emptied ones must fail; and
what a verdict costs.

    .venv/bin/python benchmarks/humaneval.py

As many runs at once as there are cores. Stored in results/humaneval.json.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import statistics
import time
from pathlib import Path

from skep.paths import user_paths
from skep.quality.banks import fetch_humaneval, humaneval_items
from skep.quality.judging import AnsweredItem, Judge
from skep.sandbox.runner import open_sandbox
from skep.store.records import Request

FORMS = {
    "canonical solution": lambda task: task["prompt"] + task["canonical_solution"],
    "its body alone": lambda task: task["canonical_solution"],
    "emptied: pass": lambda task: f"{task['prompt']}    pass\n",
    "emptied: prompt only": lambda task: task["prompt"],
}


async def measured(tasks: list[dict[str, str]], items: list) -> list[dict]:
    sandbox = open_sandbox()
    rows = []
    try:
        judge = Judge(sandbox)
        for form, code in FORMS.items():
            answers = [f"```python\n{code(task)}```" for task in tasks]
            answered = [
                AnsweredItem(
                    Request(
                        1, 0, number, "completion", 0.0, 0.0, answer=text, finish_reason="stop"
                    ),
                    item,
                )
                for number, (text, item) in enumerate(zip(answers, items, strict=True))
            ]
            began = time.perf_counter()
            verdicts = await judge.judge(answered)
            wall_s = time.perf_counter() - began
            outcomes: dict[str, int] = {}
            for verdict in verdicts:
                outcomes[verdict.outcome.value] = outcomes.get(verdict.outcome.value, 0) + 1
            each_ms = [1000 * (verdict.seconds or 0) for verdict in verdicts]
            rows.append(
                {
                    "sandbox": sandbox.name,
                    "form": form,
                    "tasks": len(verdicts),
                    "outcomes": outcomes,
                    "wall_s": round(wall_s, 2),
                    "median_ms": round(statistics.median(each_ms), 1),
                    "max_ms": round(max(each_ms), 1),
                }
            )
    finally:
        await sandbox.close()
    return rows


def main() -> None:
    path = fetch_humaneval(user_paths(os.environ).cache)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        tasks = [json.loads(line) for line in lines]
        items = humaneval_items(path)
    rows = asyncio.run(measured(tasks, items))
    cores = len(os.sched_getaffinity(0))
    load = round(os.getloadavg()[0], 1)  # times are worth little on a machine that was busy
    head = (
        f"{'sandbox':12} {'answer':22} {'passed':>7} {'of':>4} {'wall':>8} {'median':>8} "
        f"{'max':>8}"
    )
    print(f"{head}   {cores} at once, load {load}")
    for row in rows:
        passed = row["outcomes"].get("passed", 0)
        goal = (0 if "emptied" in row["form"] else row["tasks"]) == passed
        print(
            f"{row['sandbox']:12} {row['form']:22} {passed:7} {row['tasks']:4} "
            f"{row['wall_s']:6.1f} s "
            f"{row['median_ms']:5.0f} ms {row['max_ms']:5.0f} ms   {'met' if goal else 'MISSED'}"
        )
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "humaneval.json").write_text(
        json.dumps({"at_once": cores, "load_1m": load, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
