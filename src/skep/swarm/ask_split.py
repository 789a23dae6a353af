"""Splits a goal over files: by rule, or by the model. A goal without files is split by the model
alone.

By rule, the goal is asked of every piece of every file. What a model plans is checked before
anything runs, and a plan that cannot be carried out is sent back once; after that, or after a
time, the rule stands in for it and says so."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, context_tokens
from skep.errors import UserError
from skep.swarm.answer_check import AnswerChecker
from skep.swarm.attempt import ChatWorker
from skep.swarm.client import SwarmClient
from skep.swarm.records import REJECTED, SwarmRunOptions, Task
from skep.units import format_bytes, format_seconds

Item = TypeVar("Item")
Say = Callable[[str], None]


class FilePiece(msgspec.Struct, frozen=True):
    """Some lines of a file.

    `ref` names them, counted from 1: `docs/a.md:1-80`, or a part of one long line.
    """

    ref: str
    text: str


def pieces_of(file: str, text: str, most_chars: int) -> list[FilePiece]:
    """Cut a text into pieces of at most `most_chars` characters. A blank text has none."""
    # At line feeds alone, as editors and `grep -n` count lines.
    lines = text.removesuffix("\n").split("\n")
    offsets = [0, *accumulate(len(line) + 1 for line in lines)]  # characters before each line
    pieces: list[FilePiece] = []
    begin = 0
    while begin < len(lines):
        end = _cut(lines, offsets, begin, most_chars)
        piece_text = "\n".join(lines[begin:end])
        ref = f"{file}:{begin + 1}-{end}"
        begin = end
        if piece_text.strip() and len(piece_text) > most_chars:  # one line
            parts = [
                piece_text[at : at + most_chars] for at in range(0, len(piece_text), most_chars)
            ]
            pieces += [
                FilePiece(f"{ref} ({number}/{len(parts)})", part)
                for number, part in enumerate(parts, 1)
            ]
        elif piece_text.strip():
            pieces.append(FilePiece(ref, piece_text))
    return pieces


def _cut(lines: list[str], offsets: list[int], begin: int, most_chars: int) -> int:
    """Return the line before which the piece from line `begin` on ends: the last of the best
    borders in the second half of what fits.
    """
    last_border = bisect_right(offsets, offsets[begin] + most_chars + 1) - 1
    if last_border >= len(lines):
        return len(lines)
    first_border = bisect_left(offsets, offsets[begin] + most_chars // 2)
    borders = range(max(begin + 1, first_border), last_border + 1)
    return max(
        borders, key=lambda end: (_rank(lines[end - 1], lines[end]), end), default=begin + 1
    )


def _rank(before: str, line: str) -> int:
    """Rate a cut between two lines, behind a blank one: best before a heading, then before text
    that is not indented.
    """
    if before.strip():
        return 0
    if line.startswith("#"):
        return 3
    if line[:1].strip():
        return 2
    return 1


LARGEST_BYTES = 2 << 20
_LOOK_BYTES = 8 << 10  # a NUL in these first bytes: the file is no text
# Folders whose files a pattern does not name: packages, and what tools keep.
PASSED_BY = frozenset({".git", "node_modules", "__pycache__", "venv", "site-packages"})


class Sources(msgspec.Struct, frozen=True):
    """Texts by their names under the root, in order, and the names that were left out, each with
    its reason.
    """

    texts: Mapping[str, str]
    left_out: tuple[tuple[str, str], ...] = ()


def find_sources(root: Path, patterns: Sequence[str], *, outside: bool = False) -> Sources:
    """Read all files that a pattern names. `**` is any depth of folders; a folder's name stands
    for all that it holds.

    `outside`: a pattern may begin in another folder, as in a shell of the user's own. A link that
    leads out of the folder where its pattern begins is never followed.
    """
    root = root.resolve()
    folders: dict[str, Path] = {}  # of each name: where its pattern begins
    for pattern in patterns:
        folder, rest = _beginning(root, pattern, outside=outside)
        for name in _names(folder, rest):
            shown_name = Path(os.path.relpath(folder / name, root)).as_posix()
            folders.setdefault(shown_name, folder)
    texts: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    for name in sorted(folders):
        try:
            texts[name] = read_text(folders[name], os.path.relpath(root / name, folders[name]))
        except UserError as error:
            left_out.append((name, error.message))
    if not texts:
        quoted_patterns = ", ".join(f"`{pattern}`" for pattern in patterns)
        why = ""
        if left_out:
            name, reason = left_out[0]
            why = f": {name} is {reason}"
        hint = 'patterns are relative to this folder: "src/**/*.py", in quotes'
        raise UserError(f"{quoted_patterns} matches no text file under {root}{why}", hint=hint)
    return Sources(texts, tuple(left_out))


def read_text(root: Path, name: str) -> str:
    """Return the text of a file; UserError says what it is where it is no text under the root."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise UserError("outside of the root")
        if not path.is_file():
            raise UserError("not a regular file")
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"larger than {format_bytes(LARGEST_BYTES)}")
        data = path.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        # RuntimeError: links in a circle; ValueError: a NUL.
        raise UserError(f"not readable ({getattr(error, 'strerror', None) or error})") from None
    if b"\0" in data[:_LOOK_BYTES]:
        raise UserError("not text")
    return (
        data.decode("utf-8-sig", "replace")
        .replace("\r\n", "\n")
        .replace("\r", "\n")
        .replace("\0", "\ufffd")
    )


def _beginning(root: Path, pattern: str, *, outside: bool) -> tuple[Path, PurePosixPath]:
    """Return the folder in which a pattern begins, and the pattern from there on."""
    relative = os.path.relpath(pattern, root) if pattern.startswith("/") else pattern
    path = PurePosixPath(relative)
    if ".." not in path.parts:
        return root, path
    if not outside:
        raise UserError(
            f"`{pattern}` leads out of {root}",
            hint="start skep in the folder that the files are in",
        )
    wildcards = (place for place, part in enumerate(path.parts) if set("*?[") & set(part))
    first_wildcard = next(wildcards, len(path.parts))
    if ".." in path.parts[first_wildcard:]:
        raise UserError(
            f"`{pattern}` has `..` behind a `*`", hint="begin the pattern with the folder itself"
        )
    folder = root.joinpath(*path.parts[:first_wildcard]).resolve()
    rest = PurePosixPath(*path.parts[first_wildcard:])
    if folder.is_dir():
        return folder, rest
    return folder.parent, PurePosixPath(folder.name) / rest


def _names(root: Path, pattern: PurePosixPath) -> Iterable[str]:
    """Yield the files that a pattern names, relative to the root: hidden ones only where the
    pattern names hidden ones, those in folders of `PASSED_BY` never.
    """
    if (root / pattern).is_dir():
        pattern = pattern / "**" / "*"
    hidden = any(part.startswith(".") for part in pattern.parts)
    try:
        paths = [path for path in root.glob(str(pattern)) if not path.is_dir()]
    except ValueError as error:  # `**` beside other signs
        raise UserError(f"`{pattern}` is not a pattern: {error}") from None
    for path in paths:
        name = path.relative_to(root)
        is_shown = hidden or not any(part.startswith(".") for part in name.parts)
        if is_shown and str(name).isprintable() and PASSED_BY.isdisjoint(name.parts):
            yield name.as_posix()


CHARS_PER_TOKEN = 3.0  # where nobody counts: code and prose have more
SAMPLE_CHARS = 2_500
LEAST_SAMPLE = 200  # characters, below which nothing can be said
MARGIN = 0.9  # of what fits: other texts have shorter tokens than the sample


async def context_of(client: SwarmClient) -> int | None:
    """Return how many tokens one conversation may have, as skep, vLLM (`max_model_len`) or
    llama.cpp (`/props`) says; None: none of them does.
    """
    return await context_tokens(client.pool, client.endpoint)


async def chars_per_token(client: SwarmClient, texts: list[str]) -> float:
    """Return how many characters a token has, measured on a sample of the texts by a request for
    one token; else a careful guess.
    """
    chars_each = max(SAMPLE_CHARS // max(len(texts), 1), LEAST_SAMPLE)
    beginnings = [text[:chars_each] for text in texts[: SAMPLE_CHARS // LEAST_SAMPLE]]
    sample = "\n".join(beginnings)[:SAMPLE_CHARS]
    if len(sample) < LEAST_SAMPLE:
        return CHARS_PER_TOKEN
    messages = [{"role": "user", "content": sample}]
    tokens = (await client.ask(messages, fields={"max_tokens": 1}, timeout_s=60.0)).prompt_tokens
    # A count of more than 12 characters a token is not believed.
    if tokens and tokens * 12 >= len(sample):
        return max(0.5, MARGIN * len(sample) / tokens)
    return CHARS_PER_TOKEN


UNKNOWN_CONTEXT = 2_048  # tokens; what skep's embedded engine gives a slot by default
# where the context is unknown
UNKNOWN_CHUNK = 1_000
UNKNOWN_ANSWER = 512
# Tokens, about two paragraphs. An answer gets an eighth of the context, but no less than this;
# of a small context no more than a quarter.
LEAST_ANSWER = 256
MOST_CHUNK = 6_000  # models lose details in more, however large their context is
MOST_ANSWER = 2_048
PROMPT_TOKENS = 350  # of the texts around the material
# tokens of a plan, with room for a model that thinks first
LEAST_PLAN = 256
MOST_PLAN = 4_096
MOST_TASKS = 5_000
MOST_PLANNED = 64  # tasks of a goal without files
TEMPERATURE = 0.2  # the same goal should give about the same answer


class Sizes(msgspec.Struct, frozen=True):
    """What fits into a context: texts are cut by characters, answers are limited by tokens."""

    chunk_chars: int  # of one task's material
    merge_chars: int  # of the answers that are merged at once
    answer_tokens: int
    chars_per_token: float


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
        if not self.pieces:
            messages = messages_of("part_without_files", objective=self.objective)
            return Task(self.id, messages, max_tokens=sizes.answer_tokens, temperature=TEMPERATURE)
        texts = [
            ("file {0}, lines {2}".format(*piece.ref.rpartition(":")), piece.text)
            for piece in self.pieces
        ]
        messages = messages_of("part", objective=self.objective, material=material(texts))
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


def sizes_of(
    context: int | None, per_token: float, *, chunk_tokens: int | None, max_tokens: int | None
) -> Sizes:
    """Return what fits into a context; UserError where nothing would."""
    context_tokens = context or UNKNOWN_CONTEXT
    if context is None:
        default_answer = UNKNOWN_ANSWER
    else:
        default_answer = min(max(context // 8, LEAST_ANSWER), context // 4)
    answer = max_tokens or min(default_answer, MOST_ANSWER)
    room = context_tokens - answer - PROMPT_TOKENS
    if context is None and chunk_tokens is not None:
        # Who asks for larger pieces knows of a larger context.
        room = max(room, chunk_tokens)
    if room < 100:
        hint = "use a smaller --max-tokens"
        raise UserError(
            f"a context of {context_tokens:,} tokens leaves no room beside answers of {answer:,}",
            hint=hint,
        )
    chunk = chunk_tokens or min(room, MOST_CHUNK if context else UNKNOWN_CHUNK)
    if chunk > room:
        hint = f"at most {room:,}, or a smaller --max-tokens"
        raise UserError(
            f"--chunk-tokens {chunk:,} does not fit into a context of {context_tokens:,} tokens",
            hint=hint,
        )
    return Sizes(int(chunk * per_token), int(room * per_token), answer, round(per_token, 3))


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
        context = await context_of(client)
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
    max_tokens = max(LEAST_PLAN, min((context or MOST_PLAN) // 4, MOST_PLAN))
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
        context = await context_of(client)
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
        pieces = [
            piece
            for file in files
            for piece in pieces_of(file, sources.texts[file], sizes.chunk_chars)
        ]
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
        unnamed = f"{len(unnamed_files)} of {len(sources.texts)} files were in no task"
        why = f"{unnamed}; skep gave them their own"
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
    pieces = [
        piece
        for name in names
        for piece in pieces_of(name, sources.texts[name], sizes.chunk_chars)
    ]
    return [GoalPart(piece.ref, goal, (piece,)) for piece in pieces]


def _checked(parts: Sequence[GoalPart]) -> tuple[GoalPart, ...]:
    """Check the number of parts, and make their ids unique."""
    if not parts:
        raise UserError("the files are all empty", hint="name others")
    if len(parts) > MOST_TASKS:
        hint = "name fewer files, or larger pieces with --chunk-tokens"
        raise UserError(
            f"the files make {len(parts):,} tasks, more than {MOST_TASKS:,}", hint=hint
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
