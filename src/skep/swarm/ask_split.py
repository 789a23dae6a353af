"""Splits a goal over files: by rule, or by the model. A goal without files is split by the model
alone.

By rule, the goal is asked of every piece of every file. What a model plans is checked before
anything runs, and a plan that cannot be carried out is sent back once; after that, or after a
time, the rule stands in for it and says so."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, context_tokens
from skep.errors import UserError
from skep.swarm.answer_check import AnswerChecker
from skep.swarm.ask_files import FilePiece, Sources, pieces_of
from skep.swarm.ask_sizes import CHARS_PER_TOKEN, Sizes, chars_per_token, sizes_of
from skep.swarm.attempt import ChatWorker
from skep.swarm.client import SwarmClient
from skep.swarm.records import REJECTED, SwarmRunOptions, Task
from skep.units import format_seconds

Item = TypeVar("Item")
Say = Callable[[str], None]

# Of a plan, with room for a model that thinks first.
LEAST_PLAN_TOKENS = 256
MOST_PLAN_TOKENS = 4_096
MOST_TASKS = 5_000
MOST_PLANNED_TASKS = 64  # tasks of a goal without files
TEMPERATURE = 0.2  # the same goal should give about the same answer


class GoalPart(msgspec.Struct, frozen=True):
    """One task of the split: an objective, and the pieces of files that it is about; none of a
    goal without files.
    """

    id: str
    objective: str
    pieces: tuple[FilePiece, ...]

    @property
    def chars(self) -> int:
        return len(self.objective) + sum(len(piece.text) for piece in self.pieces)

    def task(self, sizes: Sizes) -> Task:
        """Return a task that holds its material: no file is read again when the run is resumed."""
        texts = [
            ("file {0}, lines {2}".format(*piece.ref.rpartition(":")), piece.text)
            for piece in self.pieces
        ]
        if texts:
            messages = messages_of("part", objective=self.objective, material=material(texts))
        else:
            messages = messages_of("part_without_files", objective=self.objective)
        return Task(self.id, messages, max_tokens=sizes.answer_tokens, temperature=TEMPERATURE)


class GoalSplit(msgspec.Struct, frozen=True):
    """`why`: what was wrong with the model's plan, or what had to be added to it."""

    parts: tuple[GoalPart, ...]
    sizes: Sizes
    by_model: bool
    why: str | None = None


@cache
def _packaged(name: str) -> Any:
    """Return the content of a TOML or JSON file of this package."""
    text = resources.files("skep.swarm").joinpath(name).read_text(encoding="utf-8")
    if name.endswith(".json"):
        return json.loads(text)
    return tomllib.loads(text)


def messages_of(prompt: str, **values: object) -> tuple[dict[str, str], ...]:
    """Return what `ask_prompts.toml` has under that name, filled in."""
    return tuple(
        {"role": role, "content": text.format(**values)}
        for role, text in _packaged("ask_prompts.toml")[prompt].items()
    )


def material(texts: Iterable[tuple[str, str]]) -> str:
    """Return named texts between marks; marks inside a text are replaced by others, so that it
    cannot end early.
    """
    return "\n\n".join(
        f"<<< {_without_marks(name)}\n{_without_marks(text)}\n>>>" for name, text in texts
    )


def _without_marks(text: str) -> str:
    return text.replace("<<<", "‹‹‹").replace(">>>", "›››")


async def split_goal(
    goal: str,
    sources: Sources,
    endpoint: Endpoint | None,
    *,
    by_model: bool,
    chunk_tokens: int | None,
    max_tokens: int | None,
    timeout_s: float,
    say: Say,
) -> GoalSplit:
    """Split a goal by rule or by the model; without an endpoint by rule."""
    if endpoint is None:
        sizes = sizes_of(None, CHARS_PER_TOKEN, chunk_tokens=chunk_tokens, max_tokens=max_tokens)
        return split_by_rule(goal, sources, sizes)
    async with aclosing(SwarmClient(endpoint, timeout_s=timeout_s)) as client:
        context = await context_tokens(client.pool, client.endpoint)
        per_token = await chars_per_token(client, [*sources.texts.values()])
        sizes = sizes_of(context, per_token, chunk_tokens=chunk_tokens, max_tokens=max_tokens)
        if not by_model:
            return split_by_rule(goal, sources, sizes)
        within = format_seconds(timeout_s)
        say(
            f"{endpoint.model} at {endpoint.url} is asked for a plan; after {within} skep "
            "splits by rule"
        )
        return await split_by_model(goal, sources, sizes, client, context, timeout_s, say)


def split_by_rule(goal: str, sources: Sources, sizes: Sizes, why: str | None = None) -> GoalSplit:
    """Ask the goal of every piece of every file."""
    return GoalSplit(
        _checked(_part_for_each_piece(goal, sources.texts, sources, sizes)),
        sizes,
        by_model=False,
        why=why,
    )


async def split_by_model(
    goal: str,
    sources: Sources,
    sizes: Sizes,
    client: SwarmClient,
    context: int | None,
    timeout_s: float,
    say: Say,
) -> GoalSplit:
    """Ask for a plan, and once more with what was wrong with it; by rule where none can be used
    within the time.
    """
    plan_request = PlanRequest(
        planner_messages(goal, sources, sizes),
        "ask_plan_schema.json",
        lambda plan: split_of(plan, goal, sources, sizes),
    )
    split, why = await _ask_for_plan(plan_request, client, context, timeout_s, say)
    return split or split_by_rule(goal, sources, sizes, why[:400])


class PlanRequest(msgspec.Struct, frozen=True):
    """What a model is asked for a plan with.

    `split_of` raises UserError for a plan that cannot be carried out.
    """

    messages: tuple[dict[str, str], ...]
    schema: str  # a file of this package
    split_of: Callable[[Any], GoalSplit]


async def _ask_for_plan(
    request: PlanRequest, client: SwarmClient, context: int | None, timeout_s: float, say: Say
) -> tuple[GoalSplit | None, str]:
    """Return the split that the model plans; None, and why, where no plan can be used."""
    max_tokens = max(LEAST_PLAN_TOKENS, min((context or MOST_PLAN_TOKENS) // 4, MOST_PLAN_TOKENS))
    goal_splits: list[GoalSplit] = []

    def fault(plan: Any) -> str | None:
        try:
            goal_splits.append(request.split_of(plan))
        except UserError as error:
            return error.message
        return None

    task = Task("plan", request.messages, max_tokens, 0.0, _packaged(request.schema))
    why = ""
    try:
        async with asyncio.timeout(timeout_s), AnswerChecker(fault) as checker:
            worker = ChatWorker(client, checker, SwarmRunOptions())
            result = await worker.attempt(task, 1, None)
            if result.error_kind == REJECTED:
                why = result.error or ""
                say(f"the model's plan cannot be used ({why[:200]}): asking once more")
                result = await worker.attempt(task, 2, why)
        if result.error_kind is None:
            return goal_splits[-1], ""
        if result.error_kind == REJECTED:
            why = result.error or ""
        else:
            why = f"the model did not answer: {result.error}"
    except TimeoutError:
        why = f"the model gave no plan within {format_seconds(timeout_s)}"
    return None, why


async def plan_goal(
    goal: str,
    endpoint: Endpoint,
    *,
    max_tasks: int,
    max_tokens: int | None,
    timeout_s: float,
    say: Say,
) -> GoalSplit:
    """Split a goal without files into at most `max_tasks` tasks that the model plans; one task
    where no plan can be used.
    """
    async with aclosing(SwarmClient(endpoint, timeout_s=timeout_s)) as client:
        context = await context_tokens(client.pool, client.endpoint)
        sizes = sizes_of(context, CHARS_PER_TOKEN, chunk_tokens=None, max_tokens=max_tokens)
        within = format_seconds(timeout_s)
        say(
            f"{endpoint.model} at {endpoint.url} is asked for a plan; after {within} the "
            "goal is one task"
        )

        def split_of_goal(plan: Any) -> GoalSplit:
            parts = [
                _goal_part(number, planned) for number, planned in enumerate(plan["tasks"], 1)
            ]
            if len(parts) > max_tasks:
                raise UserError(
                    f"the plan has {len(parts)} tasks, and at most {max_tasks} were asked for"
                )
            return GoalSplit(_checked(parts), sizes, by_model=True)

        messages = messages_of("plan_without_files", goal=goal, most=max_tasks)
        plan_request = PlanRequest(messages, "ask_goal_schema.json", split_of_goal)
        split, why = await _ask_for_plan(plan_request, client, context, timeout_s, say)
        return split or GoalSplit((GoalPart("1", goal, ()),), sizes, by_model=False, why=why[:400])


def _goal_part(number: int, planned: Any) -> GoalPart:
    name = _task_id(number, planned)
    return GoalPart(name, _objective(planned, name), ())


def _objective(planned: Any, task: str) -> str:
    objective: str = planned["objective"].strip()
    if not objective:
        raise UserError(f"task `{task}` has no objective")
    return objective


def _task_id(number: int, planned: Any) -> str:
    task_id = str(planned.get("id") or "").strip()[:80]
    if task_id.isprintable() and task_id:
        return task_id
    return str(number)


def planner_messages(goal: str, sources: Sources, sizes: Sizes) -> tuple[dict[str, str], ...]:
    file_lines = (
        f"- {name} ({len(text) / sizes.chars_per_token:.0f})"
        for name, text in sources.texts.items()
    )
    fits = int(sizes.chunk_chars / sizes.chars_per_token)
    return messages_of("plan", goal=goal, files="\n".join(file_lines), fits=fits)


def split_of(plan: Any, goal: str, sources: Sources, sizes: Sizes) -> GoalSplit:
    """Turn a plan that meets the schema into tasks, or raise UserError.

    A file that is in no task gets a task of its own.
    """
    parts: list[GoalPart] = []
    files_in_tasks: set[str] = set()
    for number, planned in enumerate(plan["tasks"], 1):
        name = _task_id(number, planned)
        objective = _objective(planned, name)
        files = _resolve_files(planned["files"], list(sources.texts), name)
        files_in_tasks.update(files)
        pieces = _pieces_of_files(files, sources, sizes)
        chars = [len(piece.text) + len(piece.ref) + 20 for piece in pieces]
        bundles = packed(pieces, chars, 0 if planned.get("each") else sizes.chunk_chars)
        if len(bundles) == 1:
            ids = [name]
        else:
            ids = [f"{name}/{place}" for place in range(1, len(bundles) + 1)]
        parts += [
            GoalPart(id_, objective, tuple(bundle))
            for id_, bundle in zip(ids, bundles, strict=True)
        ]
    unnamed_files = [name for name in sources.texts if name not in files_in_tasks]
    parts += _part_for_each_piece(goal, unnamed_files, sources, sizes)
    why = None
    if unnamed_files:
        why = (
            f"{len(unnamed_files)} of {len(sources.texts)} files were in no task; "
            "skep gave them their own"
        )
    return GoalSplit(_checked(parts), sizes, by_model=True, why=why)


def _resolve_files(files: Sequence[str], names: Sequence[str], task: str) -> list[str]:
    """Resolve names, patterns and unique endings of names.

    Raise UserError for a file that was not given.
    """
    resolved: list[str] = []
    for reference in files:
        ref = reference.strip().removeprefix("./")
        matched = [name for name in names if name == ref or fnmatchcase(name, ref)]
        with_ending = [name for name in names if name.endswith(f"/{ref}")]
        if not matched and len(with_ending) != 1:
            raise UserError(f"task `{task}`: `{ref[:80]}` is not one of the given files")
        resolved += matched or with_ending
    return list(dict.fromkeys(resolved))


def packed(items: Sequence[Item], sizes: Sequence[int], limit: int) -> list[list[Item]]:
    """Group neighbours, as many as fit together. An item that fits with no other stays alone."""
    groups: list[list[Item]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(item)
        room -= size
    return groups


def _part_for_each_piece(
    goal: str, names: Iterable[str], sources: Sources, sizes: Sizes
) -> list[GoalPart]:
    pieces = _pieces_of_files(names, sources, sizes)
    return [GoalPart(piece.ref, goal, (piece,)) for piece in pieces]


def _pieces_of_files(names: Iterable[str], sources: Sources, sizes: Sizes) -> list[FilePiece]:
    return [
        piece
        for name in names
        for piece in pieces_of(name, sources.texts[name], sizes.chunk_chars)
    ]


def _checked(parts: Sequence[GoalPart]) -> tuple[GoalPart, ...]:
    """Check the number of parts, and make their ids unique."""
    if not parts:
        raise UserError("the files are all empty", hint="name others")
    if len(parts) > MOST_TASKS:
        raise UserError(
            f"the files make {len(parts):,} tasks, more than {MOST_TASKS:,}",
            hint="name fewer files, or larger pieces with --chunk-tokens",
        )
    parts_by_id: dict[str, GoalPart] = {}
    for part in parts:
        name = free_name(part.id, parts_by_id)
        parts_by_id[name] = replace(part, id=name)
    return tuple(parts_by_id.values())


def free_name(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "'"
    return name
