"""The swarm from Python, as the command line has it: `await swarm.map("Summarise: {}", texts,
schema=Summary)`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from skep.errors import SkepError, UserError
from skep.paths import Paths, user_paths
from skep.store.database import open_store
from skep.swarm.address import key_here, url_here
from skep.swarm.progress import SwarmProgress
from skep.swarm.records import SwarmRunOptions, Task, TaskEnding, TaskResult
from skep.swarm.runner import carry_out
from skep.swarm.schemas import check_schema, one_line
from skep.swarm.store import SwarmStore, create_run
from skep.swarm.task_file import TaskDefaults, Template, parse_template, tasks_of

# A prompt, messages, or the fields of a task.
TaskContent = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
Prompt = str | Callable[[Any], TaskContent]
Items = Iterable[Any]


class AnswerForm:
    """The form of an answer: a type, a JSON schema, or none: the text."""

    def __init__(self, schema: Any) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        self.schema: Mapping[str, Any] | None = None
        if isinstance(schema, Mapping):
            self.schema = dict(schema)
        elif schema is not None:
            try:
                self._adapter = TypeAdapter(schema)
                self.schema = self._adapter.json_schema()
            except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
                hint = (
                    "give a pydantic model, a dataclass, a TypedDict, or a JSON schema as a dict"
                )
                name = getattr(schema, "__name__", str(schema))
                raise UserError(
                    f"`{name}` has no JSON schema: {one_line(str(error), 160)}", hint=hint
                ) from None
        if self.schema is not None:
            check_schema(self.schema)

    def read(self, value: Any) -> Any:
        """Return the JSON of an answer that counted, as an instance where the form is a type."""
        if self._adapter is None:
            return value
        return self._adapter.validate_json(json.dumps(value))

    def fault(self, value: Any) -> str | None:
        """Return what is wrong with a value beyond the schema: a model's own validators may refuse
        it; None: nothing.
        """
        try:
            self.read(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = "".join(
                f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]
            )
            return one_line(f"${place}: {first['msg']}")
        return None


def listed(items: Items) -> list[Any]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise UserError(
            f"`items` must be a list, not {type(items).__name__}", hint="put it into a list"
        )
    return list(items)


def make_tasks(
    prompt: Prompt, items: Sequence[Any], schema: Mapping[str, Any] | None, defaults: TaskDefaults
) -> list[Task]:
    """Return a task for each item, in order.

    Their ids are 1, 2, ... unless the function gives others.
    """
    if not isinstance(prompt, str) and not callable(prompt):
        raise UserError(f"`prompt` must be a template or a function, not {type(prompt).__name__}")
    if isinstance(prompt, str):
        make: Callable[[Any], Any] = partial(_filled, parse_template(prompt))
    else:
        make = prompt
    task_defaults: TaskDefaults = {**defaults, "schema": schema}
    return tasks_of(
        [_document(make(item), number) for number, item in enumerate(items, 1)], **task_defaults
    )


def _filled(template: Template, item: Any) -> str:
    """Return the template with the fields of a mapping, a model or a dataclass; `{}` and `{item}`
    are the item itself.
    """
    if isinstance(item, BaseModel):
        item = item.model_dump(mode="json")
    elif is_dataclass(item) and not isinstance(item, type):
        item = asdict(item)
    if isinstance(item, Mapping):
        fields = {str(name): value for name, value in item.items()}
    else:
        fields = {}
    values = {"": item, "item": item, **fields}
    if (missing := template.missing(values)) is not None:
        raise UserError(missing)
    return template.fill(values)


def _document(content: TaskContent, number: int) -> Mapping[str, Any]:
    if isinstance(content, str):
        content = {"prompt": content}
    elif isinstance(content, list | tuple):
        content = {"messages": list(content)}
    elif not isinstance(content, Mapping):
        hint = "return a string, a list of messages, or a task's fields"
        raise UserError(
            f"the function returned {type(content).__name__} for item {number}", hint=hint
        )
    return {
        "id": number,
        **{name: value for name, value in content.items() if value is not None},
    }


T = TypeVar("T")
P = ParamSpec("P")


class Options(TypedDict, total=False):
    """What every call takes besides."""

    url: str | None  # of the endpoint; default: SKEP_URL, or the gateway of this machine
    model: str | None  # default: the only one that the endpoint serves
    key: str | None  # of the endpoint; default, for the gateway of this machine: SKEP_API_KEY
    agents: int | None  # at once, at most; default: as many as the endpoint can use
    tries: int  # of one task, before it fails; 4
    timeout_s: float  # of one request; 600
    deadline_s: float  # an endpoint that is down for so long is given up; 600
    max_tokens: int | None  # of one answer
    system: str | None  # the system prompt, of tasks that have none
    temperature: float | None
    priority: str | None  # of skep's gateway: interactive, normal, batch
    journal: bool  # False: none is kept
    resume: str | None  # a run's id or `last`: what has a result there is not done again
    name: str  # by which `skep swarm list` shows it
    watch: Callable[[SwarmProgress], None]  # hears how the run stands, a few times a second


class Failure(msgspec.Struct, frozen=True):
    """Why a task has no value; it stands in the place of that."""

    task: str
    item: Any
    kind: str
    message: str
    tries: int
    answer: str | None = None  # the last that came, if any

    def __str__(self) -> str:
        return f"task {self.task}: {self.message}"


class SwarmError(SkepError):
    """Some tasks have no value.

    `values` has all the others, in order, a `Failure` in the place of each of these.
    """

    def __init__(self, run: str, values: Sequence[Any]) -> None:
        self.run = run
        self.values = list(values)
        self.failures = [value for value in values if isinstance(value, Failure)]
        message = f"{len(self.failures)} of {len(self.values)} tasks failed; {self.failures[0]}"
        super().__init__(message, hint="`error.values` has the others")


async def run_items(
    prompt: Prompt, items: Items, schema: Any, options: Options
) -> tuple[str, list[Any]]:
    """Return the run's id and a value or a `Failure` for each item.

    What ends it early says how to go on.
    """
    form = AnswerForm(schema)
    order = _order(options)
    if not (given := listed(items)):
        return "", []
    defaults: TaskDefaults = {
        "system": options.get("system"),
        "temperature": options.get("temperature"),
    }
    tasks = make_tasks(prompt, given, form.schema, defaults)
    with _places(options) as paths:
        run_id, url = _begun(paths, tasks, order, options)
        try:
            await carry_out(
                paths,
                run_id,
                url=url,
                model=options.get("model"),
                key=options.get("key") or key_here(url, os.environ),
                # a type may demand more than a schema can say: an answer counts when the type
                # takes it
                demand=form.fault,
                watch=options.get("watch") or (lambda _: None),
            )
        except BaseException as error:
            if options.get("journal", True):
                error.add_note(f'what is done is kept: resume="{run_id}" goes on with it')
            raise
        with open_store(paths.store, read_only=True) as store:
            results = {result.task: result for result in SwarmStore(store).results(run_id)}
    return run_id, [
        _value(item, task, results.get(task.id), form)
        for item, task in zip(given, tasks, strict=True)
    ]


def _begun(
    paths: Paths, tasks: Sequence[Task], order: SwarmRunOptions, options: Options
) -> tuple[str, str]:
    """Return the id of a new run, or of the one to resume, whose tasks must be these; and its
    endpoint.
    """
    resume = options.get("resume")
    with open_store(paths.store) as store:
        if resume is None:
            url = options.get("url") or url_here(user_paths(os.environ), os.environ)
            name = options.get("name", "python")
            model = options.get("model")
            run_id = create_run(store, tasks, order, url=url, model=model, name=name)
            return run_id, url
        swarm = SwarmStore(store)
        run = swarm.run(resume)
        if msgspec.to_builtins(swarm.tasks(run.id)) != msgspec.to_builtins(list(tasks)):
            hint = (
                "to go on with it, give the same prompt, items and options; `skep swarm resume` "
                "needs none of them"
            )
            raise UserError(f"run `{run.id}` has other tasks than these", hint=hint)
        return run.id, options.get("url") or run.url


def _value(item: Any, task: Task, result: TaskResult | None, form: AnswerForm) -> Any:
    if result is None:
        return Failure(task.id, item, "unfinished", "the run was stopped before it was done", 0)
    if result.ending is not TaskEnding.DONE:
        kind = result.error_kind or "failed"
        message = result.error or "it failed"
        return Failure(task.id, item, kind, message, result.tries, result.answer)
    if form.schema is None:  # the task may have one of its own, of the function that made it
        if task.schema is None:
            return result.answer or ""
        return result.value
    fault = form.fault(result.value)
    if fault is not None:  # done by a process that did not know the type
        return Failure(task.id, item, "rejected", fault, result.tries, result.answer)
    return form.read(result.value)


def _order(options: Options) -> SwarmRunOptions:
    names = ("agents", "tries", "timeout_s", "deadline_s", "max_tokens", "priority")
    given_options: dict[str, Any] = {
        name: value for name, value in options.items() if name in names and value is not None
    }
    try:
        return msgspec.convert(given_options, SwarmRunOptions)
    except msgspec.ValidationError as error:
        raise UserError(f"these options cannot be: {error}") from None


@contextmanager
def _places(options: Options) -> Iterator[Paths]:
    """Yield the user's folders; without a journal, temporary ones for data and state."""
    paths = user_paths(os.environ)
    if options.get("journal", True):
        yield paths
    elif options.get("resume") is not None:
        raise UserError("there is nothing to resume without a journal")
    else:
        with tempfile.TemporaryDirectory(prefix="skep-swarm-") as temporary_directory:
            yield replace(paths, data=Path(temporary_directory), state=Path(temporary_directory))


__all__ = ["Failure", "Options", "SwarmError", "map", "map_sync"]


@overload
async def map(  # noqa: A001
    prompt: Prompt, items: Items, *, schema: None = None, **options: Unpack[Options]
) -> list[str]: ...
@overload
async def map(  # noqa: A001
    prompt: Prompt, items: Items, *, schema: type[T], **options: Unpack[Options]
) -> list[T]: ...
@overload
async def map(  # noqa: A001
    prompt: Prompt, items: Items, *, schema: Mapping[str, Any], **options: Unpack[Options]
) -> list[Any]: ...
async def map(  # noqa: A001 - `swarm.map` says what it is
    prompt: Prompt, items: Items, *, schema: Any = None, **options: Unpack[Options]
) -> list[Any]:
    """Return one value for each item, in their order: a text; with a schema, JSON; with a type, an
    instance of it.

    `prompt`: a template (`{}` and `{item}` are the item, `{title}` a field of it), or a function
    that makes a prompt, messages or a task of an item. Tasks that failed for good raise
    `SwarmError` in the end, which has the others' values. `Options` names everything else."""
    run_id, values = await run_items(prompt, items, schema, options)
    if any(isinstance(value, Failure) for value in values):
        raise SwarmError(run_id, values)
    return values


def _in_plain_code(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the same function without `await`, for plain code. Ctrl-C keeps what is done."""

    @wraps(work)
    def finished(*args: P.args, **options: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work(*args, **options))
        raise UserError(
            "a loop runs already", hint="there, as in a notebook: `await swarm.map(...)`"
        )

    return finished


map_sync = _in_plain_code(map)
