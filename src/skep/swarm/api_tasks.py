"""What a caller from Python asks for, made into tasks: a template or a function, items, and a form of answer."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from skep.errors import UserError
from skep.swarm.checking.schemas import check_schema, one_line
from skep.swarm.intake.form import FIELDS, Defaults
from skep.swarm.intake.reading import tasks_of
from skep.swarm.intake.templates import Template, parse_template
from skep.tasks import Task, task_json

Messages = Sequence[Mapping[str, Any]]
Made = str | Messages | Mapping[str, Any] | Task
Prompt = str | Callable[[Any], Made] | Callable[[Any], Awaitable[Made]]
Items = Iterable[Any] | AsyncIterable[Any]


class Form:
    """The form of an answer: a type, a JSON schema, or none: the text."""

    def __init__(self, schema: Any) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        self.schema: Mapping[str, Any] | None = None
        if schema is None:
            return
        if isinstance(schema, Mapping):
            self.schema = dict(schema)
        else:
            self._adapter, self.schema = _adapted(schema)
        check_schema(self.schema)

    @property
    def is_type(self) -> bool:
        return self._adapter is not None

    def value(self, answer: str | None, value: Any) -> Any:
        """What the caller gets of an answer that counted."""
        if self.schema is None:
            return answer or ""
        return value if self._adapter is None else self._adapter.validate_json(json.dumps(value))

    def fault(self, value: Any) -> str | None:
        """What the type demands beyond its schema: validators of a model's own."""
        assert self._adapter is not None
        try:
            self._adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            return one_line(f"{_place(first['loc'])}: {first['msg']}")
        return None


async def listed(items: Items) -> list[Any]:
    """All of them, as a run knows its tasks before it begins; an asynchronous source is read to its end."""
    if isinstance(items, str | bytes | Mapping):
        raise UserError(f"items are a list of things, not {type(items).__name__}", hint="put it into a list")
    if isinstance(items, AsyncIterable):
        return [item async for item in items]
    if not isinstance(items, Iterable):
        raise UserError(f"items are a list of things, not {type(items).__name__}")
    return list(items)


async def asked_tasks(
    prompt: Prompt, items: Sequence[Any], schema: Mapping[str, Any] | None, defaults: Defaults
) -> list[Task]:
    """A task for each item, in order; ids are 1, 2, ... unless the function gives others."""
    if not isinstance(prompt, str) and not callable(prompt):
        raise UserError(f"a template or a function is wanted, not {type(prompt).__name__}")
    maker = parse_template(prompt) if isinstance(prompt, str) else prompt
    made = [await _made(maker, item) for item in items]
    told: Defaults = {**defaults, "schema": schema}
    tasks = tasks_of([_document(one, number) for number, one in enumerate(made, 1)], **told)
    return [
        replace(task, stage=one.stage) if isinstance(one, Task) else task for task, one in zip(tasks, made, strict=True)
    ]


async def _made(prompt: Prompt | Template, item: Any) -> Made:
    if isinstance(prompt, Template):
        values = _values(item)
        missing = prompt.missing(values)
        if missing is not None:
            raise UserError(missing)
        return prompt.fill(values)
    assert callable(prompt)
    made = prompt(item)
    return await made if inspect.isawaitable(made) else made


def _document(made: Made, number: int) -> Mapping[str, Any]:
    if isinstance(made, Task):
        made = {name: value for name, value in task_json(made).items() if name in FIELDS}
    elif isinstance(made, str):
        made = {"prompt": made}
    elif isinstance(made, list | tuple):
        made = {"messages": list(made)}
    elif not isinstance(made, Mapping):
        hint = "it gives a text, a list of messages, a task's fields, or a skep.tasks.Task"
        raise UserError(f"the function gave {type(made).__name__} for item {number}", hint=hint)
    return {"id": number, **{name: value for name, value in made.items() if value is not None}}


def _values(item: Any) -> Mapping[str, Any]:
    """Fields of a mapping, a model or a dataclass; `{}` and `{item}` are the item itself."""
    if isinstance(item, BaseModel):
        item = item.model_dump(mode="json")
    elif is_dataclass(item) and not isinstance(item, type):
        item = asdict(item)
    fields = {str(name): value for name, value in item.items()} if isinstance(item, Mapping) else {}
    return {"": item, "item": item, **fields}


def _adapted(schema: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(schema)
        return adapter, adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
        hint = "give a pydantic model, a dataclass, a TypedDict, or a JSON schema as a dict"
        name = getattr(schema, "__name__", str(schema))
        raise UserError(f"`{name}` is no form of JSON: {one_line(str(error), 160)}", hint=hint) from None


def _place(path: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
