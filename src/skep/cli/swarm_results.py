"""`skep swarm results` and `report`: what came of a run, as lines and as a page."""

from __future__ import annotations

import json
import time
from pathlib import Path

from skep.cli.output import note
from skep.cli.results import check_output, write_whole
from skep.cli.swarm_places import check_place, journal, opened
from skep.errors import UserError
from skep.store.swarm import SwarmStore
from skep.swarm.accounts.account import story_of
from skep.swarm.output import result_line
from skep.tasks import Ending


def write_results(name: str, output: Path | None, *, failed: bool, done: bool, as_json: bool) -> None:
    if failed and done:
        raise UserError("--failed and --done exclude each other", hint="leave both out for all results")
    if output is not None:
        check_place(output)
    ending = Ending.FAILED if failed else Ending.DONE if done else None
    with journal() as swarm:
        run = swarm.run(name)
        lines = _lines(swarm, run.id, ending)
    if as_json:
        text = json.dumps([json.loads(line) for line in lines], ensure_ascii=False, indent=2) + "\n"
    else:
        text = "".join(f"{line}\n" for line in lines)
    if output is None:
        print(text, end="")  # noqa: T201
    else:
        write_whole(output, text)
        note(f"{len(lines)} results of {run.id} ({run.state.value}) written to {output}")


def _lines(swarm: SwarmStore, run_id: str, ending: Ending | None) -> list[str]:
    tasks = {task.id: task for task in swarm.tasks(run_id)}
    return [result_line(tasks[one.task], one).rstrip("\n") for one in swarm.results(run_id, ending=ending)]


def write_report(name: str, output: Path, price_kwh: float | None) -> None:
    from skep.report.swarm import gantt, swarm_page

    check_output(output)
    with opened() as store:
        swarm = SwarmStore(store)
        run = swarm.run(name)
        story = story_of(swarm, run, now=time.time(), price_kwh=price_kwh)
    write_whole(output, gantt(story) if output.suffix == ".svg" else swarm_page(story))
    note(f"{run.id} ({run.state.value}) written to {output}")
