"""A process at work on a swarm's run: `swarm_process.py DATABASE RUN [backwards]`.

Opens a session, sees what has no result, says a line and waits for one on standard input; then
records what it saw, three at a time, and says the ids that were written now.
"""

import sys
import time
from pathlib import Path

from skep.store.database import open_store
from skep.swarm.records import Attempt, AttemptOutcome, TaskEnding, TaskResult, Why
from skep.swarm.store import Recorded, SwarmStore


def main(path: Path, run_id: str, *, backwards: bool) -> None:
    with open_store(path) as store:
        swarm = SwarmStore(store)
        session = swarm.open_session(run_id, at=time.time(), agents=None, endpoint={}, simulated=True)
        names = [task.id for task in swarm.pending(run_id)]
        print(session, flush=True)
        sys.stdin.readline()
        names = names[::-1] if backwards else names
        for start in range(0, len(names), 3):
            rows = [recorded(name, session) for name in names[start : start + 3]]
            for result in swarm.record(run_id, rows):
                print(result.task, flush=True)
        swarm.close_session(run_id, session, at=time.time(), outcome="done")


def recorded(name: str, session: int) -> Recorded:
    now = time.time()
    attempt = Attempt(name, session, 1, 0, Why.FIRST, AttemptOutcome.DONE, now, now)
    return Recorded(attempt, TaskResult(name, TaskEnding.DONE, "yes", None, None, None, 1, now, now, None, None))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], backwards="backwards" in sys.argv)
