"""What comes after: the tasks that are made of other tasks' results.

They follow from the journal alone, so that a killed run goes on with the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.swarm.work import ChatWork, WorkMaker
from skep.tasks import Result, SwarmRun, Task


def next_tasks(run: SwarmRun, tasks: Sequence[Task], results: Sequence[Result]) -> list[Task]:
    """Asked when every task has its result; none: the run is done."""
    if run.kind != "ask":
        return []
    from skep.swarm.ask import asking  # the orchestrator is not loaded for a plain map

    return list(asking.next_tasks(run, tasks, results))


def usual_work(run: SwarmRun) -> WorkMaker:
    """How this run's tasks are worked at where nobody says otherwise."""
    if run.kind == "ask":
        from skep.swarm.ask import asking

        return asking.work_maker(run)
    return ChatWork
