"""A call from Python, carried out: items to tasks, a run in a journal, results to values. Signatures are `api`'s."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar

from skep.errors import SkepError, UserError
from skep.places import Paths, user_paths
from skep.store.database import open_store
from skep.store.swarm import SwarmStore
from skep.swarm.accounts.account import Account, account_of
from skep.swarm.api_tasks import Form, Items, Prompt, asked_tasks, listed
from skep.swarm.checking.answers import Checking
from skep.swarm.here import key_here, url_here
from skep.swarm.intake.form import Defaults
from skep.swarm.journal import create_run
from skep.swarm.line import Line
from skep.swarm.orders import Order
from skep.swarm.progress import Progress
from skep.swarm.running import carry_out
from skep.swarm.work import ChatWork, Work, WorkMaker
from skep.tasks import Ending, Result, RunState, Task, task_json

T = TypeVar("T")


class Options(TypedDict, total=False):
    """What every call takes besides."""

    url: str | None  # of the endpoint; default: SKEP_URL, or the gateway of this machine
    model: str | None  # default: the only one that the endpoint serves
    key: str | None  # of the endpoint; default, for the gateway of this machine: SKEP_API_KEY
    agents: int | None  # at once, at most; default: as many as the endpoint can use
    tries: int  # of one task, before it is set aside; 4
    timeout_s: float  # of one request; 600
    deadline_s: float  # an endpoint that is down for so long is given up; 600
    max_tokens: int | None  # of one answer
    system: str | None  # the system prompt, of tasks that have none
    temperature: float | None
    priority: str | None  # of skep's gateway: interactive, normal, batch
    journal: str | os.PathLike[str] | Literal[False] | None  # a folder of its own; False: none is kept
    resume: str | None  # a run's id or `last`: what has a result there is not done again
    name: str  # by which `skep swarm ls` shows it
    watch: Callable[[Progress], None]  # hears how the run stands, a few times a second


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands in the place of a value that there is none of."""

    task: str
    item: Any
    kind: str
    message: str
    tries: int
    answer: str | None = None  # the last that came, if any

    def __str__(self) -> str:
        return f"task {self.task}: {self.message}"


class SwarmError(SkepError):
    """Some tasks have no value. `values` has all the others, in order, a `Failure` in the place of each of these."""

    def __init__(self, run: str, values: Sequence[Any]) -> None:
        self.run = run
        self.values = list(values)
        self.failures = [one for one in values if isinstance(one, Failure)]
        hint = 'failures="return" gives the others; `error.values` has them too'
        super().__init__(f"{len(self.failures)} of {len(self.values)} tasks failed; {self.failures[0]}", hint=hint)


@dataclass(frozen=True, slots=True)
class Run(Generic[T]):
    """What came of a call. `values` and `results` are in the items' order; a result is None where there is none."""

    id: str
    state: RunState
    values: list[T | Failure]
    results: list[Result | None]
    account: Account

    @property
    def failures(self) -> list[Failure]:
        return [one for one in self.values if isinstance(one, Failure)]


async def carried(prompt: Prompt, items: Items, schema: Any, options: Options) -> Run[Any] | None:
    """None: there are no items. What ends it early says how to go on, if there is something to go on with."""
    form = Form(schema)
    order = _order(options)
    defaults: Defaults = {"system": options.get("system"), "temperature": options.get("temperature")}
    given = await listed(items)
    if not given:
        return None
    tasks = await asked_tasks(prompt, given, form.schema, defaults)
    with _places(options.get("journal"), options.get("resume")) as paths:
        run_id, url, after_cancel = _begun(paths, tasks, order, options)
        try:
            state = await carry_out(
                paths,
                run_id,
                url=url,
                model=options.get("model"),
                after_cancel=after_cancel,
                key=options.get("key") or key_here(url, os.environ),
                work=_work(form),
                watch=options.get("watch", _unwatched),
            )
        except BaseException as error:
            if options.get("journal") is not False:
                error.add_note(f'what is done is kept: resume="{run_id}" goes on with it')
            raise
        return _told(paths, run_id, state, given, tasks, form)


def _begun(paths: Paths, tasks: Sequence[Task], order: Order, options: Options) -> tuple[str, str, int]:
    """The id of a new run, or of the one to go on with, whose tasks must be these; its endpoint; its newest cancel."""
    resume = options.get("resume")
    with open_store(paths.store) as store:
        if resume is None:
            url = options.get("url") or url_here(user_paths(os.environ), os.environ)
            name = options.get("name", "python")
            return create_run(store, tasks, order, url=url, model=options.get("model"), name=name), url, 0
        swarm = SwarmStore(store)
        run = swarm.run(resume)
        if [task_json(task) for task in swarm.tasks(run.id)] != [task_json(task) for task in tasks]:
            hint = "to go on with it, give the same prompt, items and options; `skep swarm resume` needs none of them"
            raise UserError(f"the tasks of `{run.id}` are others than these", hint=hint)
        return run.id, options.get("url") or run.url, swarm.newest_cancel(run.id)


def _told(
    paths: Paths, run_id: str, state: RunState, items: Sequence[Any], tasks: Sequence[Task], form: Form
) -> Run[Any]:
    with open_store(paths.store, read_only=True) as store:
        swarm = SwarmStore(store)
        found = {result.task: result for result in swarm.results(run_id)}
        account = account_of(swarm, swarm.run(run_id), now=time.time())
    results = [found.get(task.id) for task in tasks]
    values = [_value(*one, form) for one in zip(items, tasks, results, strict=True)]
    return Run(run_id, state, values, results, account)


def _value(item: Any, task: Task, result: Result | None, form: Form) -> Any:
    if result is None:
        return Failure(task.id, item, "unfinished", "the run was stopped before it was done", 0)
    if result.ending is not Ending.DONE:
        kind, message = result.error_kind or "failed", result.error or "it failed"
        return Failure(task.id, item, kind, message, result.tries, result.answer)
    if form.schema is None and task.schema is not None:  # the function's own, for this task
        return result.value
    fault = form.fault(result.value) if form.is_type else None
    if fault is not None:  # done by a process that did not know the type
        return Failure(task.id, item, "rejected", fault, result.tries, result.answer)
    return form.value(result.answer, result.value)


def _order(options: Options) -> Order:
    for name in ("agents", "tries"):
        value = options.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UserError(f"`{name}` must be a whole number from 1 on, not {value!r}")
    for name in ("timeout_s", "deadline_s"):
        value = options.get(name)
        if value is not None and (not isinstance(value, int | float) or not value > 0):
            raise UserError(f"`{name}` must be a number of seconds above 0, not {value!r}")
    names = ("agents", "tries", "timeout_s", "deadline_s", "max_tokens", "priority")
    return Order(**{name: options[name] for name in names if options.get(name) is not None})  # type: ignore[literal-required]


def _work(form: Form) -> WorkMaker | None:
    """A type may demand more than a schema can say: an answer counts when the type takes it."""
    if not form.is_type:
        return None

    def make(line: Line, checking: Checking, order: Order) -> Work:
        checking.require(form.fault)
        return ChatWork(line, checking, order)

    return make


@contextmanager
def _places(journal: str | os.PathLike[str] | Literal[False] | None, resume: str | None) -> Iterator[Paths]:
    """The user's own; a folder's; or one that is gone afterwards."""
    paths = user_paths(os.environ)
    if journal is None:
        yield paths
    elif journal is False:
        if resume is not None:
            raise UserError("there is nothing to resume without a journal")
        with tempfile.TemporaryDirectory(prefix="skep-swarm-") as folder:
            yield replace(paths, data=Path(folder), state=Path(folder))
    else:
        folder_of_its_own = Path(journal).absolute()
        if folder_of_its_own.exists() and not folder_of_its_own.is_dir():
            raise UserError(f"`{journal}` is a file; a journal is a folder")
        folder_of_its_own.mkdir(parents=True, exist_ok=True)
        yield replace(paths, data=folder_of_its_own, state=folder_of_its_own)


def _unwatched(_progress: Progress) -> None:
    pass
