"""Swarm runs as they are stored, for pages to be looked at."""

from skep.swarm.records import Attempt, AttemptOutcome, Recorded, Task, TaskEnding, TaskResult, Why
from skep.swarm.store import SwarmStore

BEGAN = 1_794_000_000.0
ERROR = "<b>the engine</b> is out of memory"


def put_swarm_run(store, name, *, done=2, failed=1, left=0, outcome="done", url="http://10.1.2.3:8000", **config):
    """One agent, a second a task, one after the other; what failed was rejected before."""
    swarm, total = SwarmStore(store), done + failed + left
    tasks = [Task(id=f"task-{n}", messages=({"role": "user", "content": "hi"},)) for n in range(total)]
    told = {"name": name, "url": url, "model": "qwen3-8b", "skep_version": "0.1"}
    run = swarm.begin(created_at=BEGAN, config=config, tasks=tasks, **told)
    session = swarm.open_session(run, at=BEGAN, agents=1, endpoint={}, simulated=False)
    rows = []
    for n in range(done + failed):
        good, at = n < done, {"started_at": BEGAN + n, "ended_at": BEGAN + n + 1}
        error = {"error_kind": None, "error": None} if good else {"error_kind": "http", "error": ERROR}
        ended = AttemptOutcome.DONE if good else AttemptOutcome.FAILED
        if not good:
            rejected = Attempt(f"task-{n}", session, 1, 0, Why.FIRST, AttemptOutcome.REJECTED, **at)
            rows.append(Recorded(rejected, None))
        tried = Attempt(
            f"task-{n}", session, 1 if good else 2, 0, Why.FIRST if good else Why.RETRY, ended, **at, **error
        )
        ending, none = TaskEnding.DONE if good else TaskEnding.FAILED, {"prompt_tokens": 5, "output_tokens": 9}
        answer, tries = ("fine", 1) if good else ("half\x1b[31m", 2)
        result = TaskResult(f"task-{n}", ending, answer, None, tries=tries, **at, **error, **none)
        rows.append(Recorded(tried, result))
    swarm.record(run, rows)
    swarm.close_session(run, session, at=BEGAN + done + failed, outcome=outcome)
    return run
