"""`skep swarm run` and `resume`: from files to a run in the journal, and a run carried out before somebody's eyes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.cli.bench_common import Interrupted, Target, positive_seconds, run_measuring
from skep.cli.output import note, print_json
from skep.cli.results import check_output
from skep.cli.swarm_carry import Stopped, carry_out_here, end_of
from skep.cli.swarm_places import MAKES_ONE, NONE_YET, check_place, free_output, journal, stored_runs
from skep.errors import EndpointError, UserError
from skep.places import user_paths
from skep.store.database import open_store
from skep.store.swarm import SwarmStore
from skep.swarm.intake.reading import read_schema, read_tasks
from skep.swarm.journal import create_run
from skep.swarm.orders import Order, order_from_json
from skep.swarm.output import ResultsFile, complete_output
from skep.tasks import Ending, RunState, SwarmRun, Task, task_json


@dataclass(frozen=True, slots=True)
class Intake:
    """Where the tasks come from, and what those that do not say take."""

    path: str | None
    failed_of: str | None = None
    template: str | None = None
    form: str | None = None
    schema: Path | None = None
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    priority: str | None = None

    def tasks(self) -> list[Task]:
        schema = None if self.schema is None else read_schema(self.schema)
        if self.failed_of is not None:
            return self._failed(schema)
        if self.path is None:
            raise UserError("there are no tasks", hint="name a file of tasks, or `-` for stdin: docs/swarm.md")
        return read_tasks(
            self.path if self.path == "-" else Path(self.path),
            template=self.template,
            form=self.form,
            system=self.system,
            schema=schema,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            priority=self.priority,
        )

    def _failed(self, schema: dict[str, Any] | None) -> list[Task]:
        """As they were, but for what is asked for otherwise this time."""
        given = {"TASKS": self.path, "--template": self.template, "--form": self.form, "--system": self.system}
        if beside := [name for name, value in given.items() if value is not None]:
            raise UserError(f"{beside[0]} does not go with --failed-of", hint="those tasks are in the journal already")
        assert self.failed_of is not None
        with journal() as swarm:
            run = swarm.run(self.failed_of)
            if run.kind != "map":
                raise UserError(f"`{run.id}` is no run of a task file", hint="`skep swarm resume` goes on with it")
            failed = {result.task for result in swarm.results(run.id, ending=Ending.FAILED)}
            tasks = [task for task in swarm.tasks(run.id) if task.id in failed]
        if not tasks:
            raise UserError(f"no task of `{run.id}` was set aside", hint="`skep swarm show` has its account")
        wanted = {"schema": schema, "max_tokens": self.max_tokens, "temperature": self.temperature}
        changed: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        return [replace(task, **changed, priority=self.priority or task.priority) for task in tasks]

    @property
    def name(self) -> str:
        if self.failed_of is not None:
            return f"failed of {self.failed_of}"
        return "stdin" if self.path in (None, "-") else Path(str(self.path)).name


@dataclass(frozen=True, slots=True)
class RunWishes:
    intake: Intake
    target: Target
    output: str | None = None
    overwrite: bool = False
    agents: int | None = None
    tries: int = 4
    timeout: str = "10m"
    deadline: str = "10m"
    stragglers: bool = True
    price_kwh: float | None = None
    report: Path | None = None

    def output_path(self) -> Path | None:
        """None: stdout."""
        intake = self.intake
        if self.output == "-":
            return None
        if self.output is not None:
            return Path(self.output).absolute()
        if intake.path in (None, "-"):
            return None
        source = Path(str(intake.path)).absolute()
        return source.with_name(f"{source.stem or source.name}.results.jsonl")

    def order(self, output: Path | None) -> Order:
        return Order(
            agents=self.agents,
            tries=self.tries,
            timeout_s=positive_seconds(self.timeout, "--timeout", "10m"),
            deadline_s=positive_seconds(self.deadline, "--deadline", "10m"),
            stragglers=self.stragglers,
            output=None if output is None else str(output),
            key_env=self.target.key_env,
            priority=self.intake.priority,
            max_tokens=self.intake.max_tokens,
            price_kwh=self.price_kwh,
        )


def run_tasks(wishes: RunWishes, *, dry_run: bool, as_json: bool) -> int:
    """Everything that can be wrong is found before the first task is sent."""
    if wishes.report is not None:
        check_output(wishes.report)
    paths, output = user_paths(os.environ), wishes.output_path()
    order, key = wishes.order(output), wishes.target.key()
    if as_json and output is None and not dry_run:
        raise UserError("--json and the results would both go to stdout", hint="name a file for the results with -o")
    tasks = wishes.intake.tasks()
    if output is not None:
        source = wishes.intake.path
        free_output(output, None if source in (None, "-") else Path(str(source)), overwrite=wishes.overwrite)
    endpoint = _look(wishes.target)
    if dry_run:
        _show_dry(wishes, tasks, output, endpoint, as_json=as_json)
        return 0
    with open_store(paths.store) as store:
        model = endpoint.model if isinstance(endpoint, Endpoint) else wishes.target.model
        run_id = create_run(store, tasks, order, url=wishes.target.url, model=model, name=wishes.intake.name)
    if output is not None:
        _clear(output, run_id)  # --overwrite: the old lines go when the new run is in the journal, not before
    return carry_out_here(paths, run_id, key=key, report=wishes.report, as_json=as_json, echo=output is None)


def resume_run(
    name: str | None,
    *,
    last: bool,
    output: Path | None,
    url: str | None,
    model: str | None,
    report: Path | None,
    as_json: bool,
) -> int:
    """`output`: another results file than the run's own. `url`, `model`: of an endpoint that has moved."""
    if report is not None:
        check_output(report)
    with journal() as swarm:
        run = _to_resume(swarm, name, last=last)
        order = order_from_json(run.config)
        file = _results_file(run, order, output)
        if last:
            _say_which(run, file)
        if run.state is RunState.DONE:
            _complete(swarm, run, file)
    shown = as_json and run.kind == "map"  # of an `ask`, the answer is what is printed
    if run.state is RunState.DONE:
        end_of(run.id, output=file, report=report, as_json=shown)
        code = 0
    else:
        target = Target(url or run.url, model, order.key_env)
        key = target.key()
        if not last:
            ended = run.counts.done + run.counts.failed
            note(f"{run.id}: {ended} of {run.counts.total} tasks have their result already")
        echo = file is None and run.kind == "map"
        paths = user_paths(os.environ)
        code = carry_out_here(
            paths, run.id, target=target, key=key, output=file, report=report, as_json=shown, echo=echo
        )
    if run.kind == "ask":
        from skep.cli.swarm_asking import give_answer

        give_answer(run.id, as_json=as_json)
    return code


def _clear(output: Path, run_id: str) -> None:
    file = ResultsFile(output, run_id)
    try:
        file.clear()
    finally:
        file.close()


def _results_file(run: SwarmRun, order: Order, wanted: Path | None) -> Path | None:
    """None: stdout, or the answer of an `ask`, which has a place of its own."""
    if wanted is None:
        return None if order.output is None else Path(order.output)
    if run.kind == "ask":
        raise UserError(f"-o does not go with `{run.id}`: `skep swarm ask` was told where its answer goes")
    if str(wanted) == "-":
        raise UserError("resume writes results to a file", hint=f"`skep swarm results {run.id}` prints them")
    check_place(wanted)
    return wanted.absolute()


def _say_which(run: SwarmRun, file: Path | None) -> None:
    made = datetime.fromtimestamp(run.created_at).astimezone().strftime("%Y-%m-%d %H:%M")
    left = f"{run.counts.left} of {run.counts.total} tasks left"
    note(f"--last is {run.id} of {made}, {run.name}: {left}" + (f", results in {file}" if file is not None else ""))


def _complete(swarm: SwarmStore, run: SwarmRun, file: Path | None) -> None:
    note(f"{run.id} is finished already: every task has its result")
    if file is not None and (added := complete_output(swarm, run.id, file)):
        note(f"{added} missing lines were written to {file}")


def _to_resume(swarm: SwarmStore, name: str | None, *, last: bool) -> SwarmRun:
    """The newest that nobody works on; where there is none, the newest says why not."""
    if name is not None and last:
        raise UserError(f"`{name}` and --last name two runs", hint="leave one of them out")
    if name is not None:
        return swarm.run(name)
    runs = stored_runs()
    if not runs:
        raise UserError(NONE_YET, hint=MAKES_ONE)
    open_ones = [run for run in runs if run.state in (RunState.STOPPED, RunState.CANCELLED)]
    if not last:
        some = ", ".join(f"`{run.id}`" for run in open_ones[:3]) or "none at the moment"
        raise UserError("no run was named", hint=f"--last takes the newest; unfinished are: {some}")
    return (open_ones or runs)[0]


def _look(target: Target) -> Endpoint | EndpointError:
    """One that is down will be waited for; one that answers and does not serve the model is an error now."""
    try:
        return run_measuring(target.find)
    except Interrupted:
        raise Stopped("stopped before anything was sent") from None
    except EndpointError as error:
        return error


def _show_dry(
    wishes: RunWishes, tasks: list[Task], output: Path | None, found: Endpoint | EndpointError, *, as_json: bool
) -> None:
    document = {
        "tasks": len(tasks),
        "first": task_json(tasks[0]) if tasks else None,
        "output": None if output is None else str(output),
        "url": wishes.target.url,
        "model": found.model if isinstance(found, Endpoint) else wishes.target.model,
        "endpoint": dict(found.engine) if isinstance(found, Endpoint) else None,
        "error": None if isinstance(found, Endpoint) else found.message,
    }
    if as_json:
        print_json(document)
        return
    note(f"{len(tasks)} tasks would go to {wishes.target.url}, their results to {output or 'stdout'}; nothing was sent")
    if isinstance(found, Endpoint):
        slots = found.engine.get("slots")
        note(f"it serves {found.model}" + (f" with {slots} slots" if slots is not None else ", and tells no slots"))
    else:
        note(f"it does not answer at this moment: {found.message}")
    note("the first task:")
    print_json(document["first"])
