"""Dialogues of the fake engine that solve the tasks of the bank `tools`, or fail in a given way."""

import json

from skep.workload.tool_tasks import SIZES, tool_task

SEED = 7


def solving(task):
    """Return a turn for each call on the way to the goal, and a last one with the answer."""
    turns = []
    for step in task.steps:
        call = [step.name, dict(step.arguments)]
        turns.append({"calls": [call]})
    turns.append({"text": task.answer or "Done."})
    return turns


def write_dialogues(path, count, turns_of=solving, *, wrong=None, sizes=tuple(SIZES)):
    """Write the dialogues of so many tasks of each size.

    `turns_of`: returns the turns of a task; `wrong`: a turn that is given instead where answers
    are to be worse.
    """
    with path.open("w") as file:
        for size in sizes:
            for number in range(count):
                task = tool_task(SEED, size, number)
                line = {"goal": task.goal, "turns": turns_of(task)}
                if wrong is not None:
                    line["wrong"] = wrong
                file.write(json.dumps(line))
                file.write("\n")
    return path
