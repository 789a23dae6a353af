"""From a sketch of a plan to the plan: files looked up and cut to fit, every task able to stand alone.

Also the plan without an orchestrator: the same for the same goal and files, whatever model serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from skep.errors import UserError
from skep.swarm.ask.chunks import Piece
from skep.swarm.ask.files import Sources
from skep.swarm.ask.plan import MOST_TASKS, How, MadeBy, Plan, PlanTask, Sizes, Sketch, Sketched, fault_error
from skep.swarm.checking.answers import check_schema

LEAST_OBJECTIVE = 8  # characters, of one that a model wrote
_ITEM = re.compile(r"^\s{0,8}(?:[-*•]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+(?=\S)", re.MULTILINE)
_QUESTION = re.compile(r"[^.?!\n]+\?")
_LEANS = re.compile(
    r"\b(?:task|step|part)\s*#?\s*\d+\b|\b(?:previous|preceding|earlier|other|next|above)\s+(?:tasks?|steps?|results?|answers?)\b"
    r"|\b(?:results?|outputs?|answers?)\s+(?:of|from)\s+(?:the\s+)?(?:task|step|other|previous)",
    re.IGNORECASE,
)


def expand(
    told: Sketched, goal: str, sources: Sources, sizes: Sizes, tools: Sequence[str], *, planned: bool = False
) -> Plan:
    """Every task fits and finds its files; UserError with all faults.

    `planned`: a model wrote it. Then tasks must not lean on each other, and files that no task has get their own.
    """
    faults: list[str] = []
    tasks: list[PlanTask] = []
    for one in told.tasks:
        try:
            tasks.extend(_expanded(one, sources, sizes, tools, planned=planned))
        except UserError as error:
            faults.append(f"task `{one.id[:40]}`: {error.message}")
    if faults:
        raise fault_error(faults)
    why = told.why
    if planned:
        left = [name for name in sources.names if name not in {piece.file for task in tasks for piece in task.pieces}]
        tasks.extend(_a_task_each(goal, left, sources, sizes, tools))
        why = f"{len(left)} of {len(sources.names)} files were in no task and got their own" if left else None
    if len(tasks) > MOST_TASKS:
        raise UserError(f"{len(tasks):,} tasks, more than {MOST_TASKS:,}", hint="name fewer files, or --chunk-tokens")
    made_by: MadeBy = "orchestrator" if planned or told.made_by == "orchestrator" else "file"
    if told.made_by == "fallback" and not planned:
        made_by = "fallback"
    return Plan(goal, _unique(tasks), told.how, told.instruction, told.parts, made_by, why)


def _expanded(one: Sketch, sources: Sources, sizes: Sizes, tools: Sequence[str], *, planned: bool) -> list[PlanTask]:
    if isinstance(one.output, dict):
        check_schema(one.output)
    if planned:
        _check_stands_alone(one, sources)
    room = sizes.chunk_chars - len(one.input or "")
    if room < 0:
        size, fits = len(one.input or "") / sizes.chars_per_token, sizes.chunk_chars / sizes.chars_per_token
        raise UserError(f"its input has about {size:,.0f} tokens, and {fits:,.0f} fit")
    allowed = tuple(kind for kind in tools if one.tools is None or kind in one.tools)
    if (refused := [kind for kind in one.tools or () if kind not in tools]) and not planned:
        raise UserError(f"it wants the tools `{', '.join(refused)}`, which --tools does not allow")
    bundles: list[tuple[Piece, ...]] = [()]
    if one.files:
        bundles = _bundles(_named(one.files, sources, others=not planned), sources, max(room, 1), each=one.each)
    made = PlanTask(one.id, one.objective, one.input, (), one.output, one.boundaries, allowed)
    names = [one.id] if len(bundles) == 1 else [f"{one.id}/{number}" for number in range(1, len(bundles) + 1)]
    return [_with_pieces(made, name, bundle) for name, bundle in zip(names, bundles, strict=True)]


def _with_pieces(task: PlanTask, name: str, pieces: tuple[Piece, ...]) -> PlanTask:
    return PlanTask(name, task.objective, task.input, pieces, task.output, task.boundaries, task.tools)


def _check_stands_alone(one: Sketch, sources: Sources) -> None:
    if len(one.objective) < LEAST_OBJECTIVE:
        raise UserError(f"its objective `{one.objective}` says too little")
    leans = _LEANS.search(one.objective)
    if leans:
        raise UserError(f"it leans on another task (`{leans[0]}`), and all run at the same time")
    if sources.names and not one.files and not one.input:
        raise UserError("it has neither files nor input")


def _named(files: Iterable[str], sources: Sources, *, others: bool) -> list[str]:
    """Names, names with lines, and patterns over the files that the run has.

    `others`: a person may name files that --files does not; a model that plans may not, or it could read them all.
    """
    found: list[str] = []
    for written in files:
        ref = written.strip().removeprefix("./")
        if ref in sources.names or ref.rpartition(":")[0] in sources.names:
            found.append(ref)
        elif matched := _matching(ref, sources.names):
            found.extend(matched)
        elif not others:
            raise UserError(f"`{ref[:80]}` is none of the files that were given")
        else:
            sources.pieces(ref, 1 << 30)  # a file that --files does not name; else says what is wrong
            found.append(ref)
    return list(dict.fromkeys(found))


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    """By pattern, or by the end of the name where only one ends so."""
    if pattern in ("*", "**", "all"):
        return list(names)
    matched = [name for name in names if fnmatchcase(name, pattern)]
    ending = [name for name in names if name.endswith(f"/{pattern}")]
    return matched or (ending if len(ending) == 1 else [])


def _bundles(refs: Sequence[str], sources: Sources, most_chars: int, *, each: bool) -> list[tuple[Piece, ...]]:
    """As many pieces together as fit, in order; `each`: no two files together."""
    bundles: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    size = 0
    for ref in refs:
        for piece in sources.pieces(ref, most_chars):
            chars = len(sources.piece_text(piece)) + len(piece.ref) + 20
            if current and (each or size + chars > most_chars):
                bundles.append(tuple(current))
                current, size = [], 0
            current.append(piece)
            size += chars
    if current:
        bundles.append(tuple(current))
    if not bundles:
        raise UserError(f"its files are empty: {', '.join(refs)[:200]}")
    return bundles


def _a_task_each(
    objective: str, names: Sequence[str], sources: Sources, sizes: Sizes, tools: Sequence[str]
) -> list[PlanTask]:
    pieces = [piece for name in names for piece in sources.pieces(name, sizes.chunk_chars)]
    return [PlanTask(piece.ref, objective, None, (piece,), tools=tuple(tools)) for piece in pieces]


def _unique(tasks: Sequence[PlanTask]) -> tuple[PlanTask, ...]:
    """Ids that a person can type: the file's own name, where no other file has it too."""
    short = {task.id: str(PurePosixPath(task.id).name) if _is_ref(task) else task.id for task in tasks}
    counts: dict[str, int] = {}
    for name in short.values():
        counts[name] = counts.get(name, 0) + 1
    made: list[PlanTask] = []
    taken: set[str] = set()
    for task in tasks:
        name = short[task.id] if counts[short[task.id]] == 1 else task.id
        while name in taken:
            name += "'"
        taken.add(name)
        made.append(_with_pieces(task, name, task.pieces))
    return tuple(made)


def _is_ref(task: PlanTask) -> bool:
    return len(task.pieces) == 1 and task.id == task.pieces[0].ref


def fallback_plan(
    goal: str, sources: Sources, sizes: Sizes, tools: Sequence[str], why: str | None, *, merges: bool = True
) -> Plan:
    """With files: the goal asked of each piece of them. Without: the goal's own items, or the goal as it is.

    `merges`: whether there is a model that can put answers together.
    """
    if sources.names:
        tasks = _a_task_each(goal, sources.names, sources, sizes, tools)
        if not tasks:
            raise UserError("the files are all empty", hint="name others with --files")
        if len(tasks) > MOST_TASKS:
            hint = "name fewer files, or larger pieces with --chunk-tokens"
            raise UserError(f"the files make {len(tasks):,} pieces, more than {MOST_TASKS:,}", hint=hint)
        how: How = "merge" if merges else "concat"
        return Plan(goal, _unique(tasks), how, None, merges and len(tasks) > 1, "fallback", why)
    intro, items = own_items(goal)
    if len(items) < 2:
        return Plan(goal, (PlanTask("1", goal, tools=tuple(tools)),), "concat", None, False, "fallback", why)
    tasks = [PlanTask(str(number), item, intro, tools=tuple(tools)) for number, item in enumerate(items, 1)]
    return Plan(goal, tuple(tasks), "concat", None, False, "fallback", why)


def own_items(goal: str) -> tuple[str | None, list[str]]:
    """What stands before a goal's list, and the items of it; or its questions, where it has several."""
    starts = list(_ITEM.finditer(goal))
    if len(starts) >= 2:
        ends = [match.start() for match in starts[1:]] + [len(goal)]
        items = [" ".join(goal[match.end() : end].split()) for match, end in zip(starts, ends, strict=True)]
        return goal[: starts[0].start()].strip() or None, [item for item in items if item]
    questions = [" ".join(one.split()) for one in _QUESTION.findall(goal)]
    if len(questions) >= 2 and not _QUESTION.sub("", goal).strip():
        return None, questions
    return None, []
