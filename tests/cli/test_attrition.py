"""The short form of benchmarks/attrition.py: some hundred tasks, a few kills, nothing lost and
nothing twice.
"""

import secrets
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from attrition import AttritionPlan, differences, run_attrition


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_swarm_and_a_batch_outlive_kills_of_runner_gateway_workers_and_engines(tmp_path):
    plan = AttritionPlan(
        tasks=400, batch=200, kills=8, replicas=3, limit_s=300, seed=secrets.randbelow(1_000_000)
    )
    report = run_attrition(plan, tmp_path, lambda _words: None)
    assert report.failures == [], plan.seed
    assert sum(report.killed.values()) == plan.kills
    assert report.runners == 1 + report.killed["runner"]


def test_the_account_of_the_tasks_sees_what_is_lost_twice_unknown_and_wrong():
    wrong = differences(
        "swarm", {"a": 3, "b": 4, "c": 5}, [("a", 3), ("a", 3), ("b", 9), ("d", 1)]
    )
    assert [line.split(",")[0] for line in wrong] == [
        "swarm: 1 lost",
        "swarm: 1 unknown",
        "swarm: 1 twice",
        "swarm: 2 wrong",
    ]
