"""kill -9 at random moments, again and again: every task has one result, and none is asked after
it was recorded.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

from skep.paths import user_paths
from skep.store.database import open_store
from skep.swarm.records import AttemptOutcome, SwarmRunOptions, SwarmRunState, Task, TaskEnding
from skep.swarm.store import SwarmStore, create_run
from skep.testing.process import FakeEngine

CHILD = Path(__file__).with_name("killed_swarm_run.py")


def check(env, run_id, output, number):
    with open_store(user_paths(env).store) as store:
        swarm = SwarmStore(store)
        run = swarm.run(run_id)
        results = swarm.results(run_id)
        attempts = swarm.attempts(run_id)
    assert run.state is SwarmRunState.DONE
    assert [result.task for result in results] == [f"t{place}" for place in range(number)]
    assert {result.ending for result in results} == {TaskEnding.DONE}
    check_attempts(attempts, results)
    check_lines(output, results)


def check_attempts(attempts, results):
    """Each task is done once, and no attempt begins after its result."""
    recorded = {result.task: result.ended_at for result in results}
    assert all(attempt.started_at <= recorded[attempt.task] for attempt in attempts), (
        "asked after its result"
    )
    done = [attempt.task for attempt in attempts if attempt.outcome is AttemptOutcome.DONE]
    assert len(done) == len(set(done)) == len(results)


def check_lines(output, results):
    """The file has one line for each result, with its answer."""
    lines = [json.loads(line) for line in output.read_bytes().splitlines()]
    answers = sorted((result.task, result.answer) for result in results)
    assert sorted((line["id"], line["answer"]) for line in lines) == answers


def test_a_run_killed_again_and_again_ends_with_one_result_a_task(env, tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    output = tmp_path / "results.jsonl"
    print(f"seed {seed}")
    tasks = [
        Task(f"t{n}", ({"role": "user", "content": f"task {n}"},), max_tokens=10)
        for n in range(60)
    ]
    with FakeEngine(slots=4, token_ms=5) as server:
        with open_store(user_paths(env).store) as store:
            run_id = create_run(
                store, tasks, SwarmRunOptions(output=str(output)), url=server.url, model=None
            )
        argv = [sys.executable, str(CHILD), run_id, str(seed), "0.5"]
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        kills = int(done.stdout)
        request_count = server.state()["requests"]
    check(env, run_id, output, 60)
    assert kills >= 1
    assert request_count <= 60 + 12 * kills, (
        "only what was under way, or on its way to the disk, is asked again"
    )
