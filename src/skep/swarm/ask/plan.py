"""A plan of work: the tasks that a goal is split into, and how their answers become one. Pure.

A plan is a document that a person can read and edit. What comes from a file or from a model is checked here before
anything runs: every fault is found, named with its task, and told in one message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skep.errors import UserError
from skep.swarm.ask.chunks import Piece, parse_ref

How = Literal["merge", "concat", "vote"]
MadeBy = Literal["orchestrator", "fallback", "file"]
MOST_TASKS = 5_000
LONGEST_ID = 120
FAULTS_SHOWN = 8
TOOL_KINDS = ("files", "code")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What fits, in characters: tokens are the engine's, texts are ours."""

    chunk_chars: int  # of one task's material
    merge_chars: int  # of the answers that are merged at once
    answer_tokens: int
    chars_per_token: float


@dataclass(frozen=True, slots=True)
class PlanTask:
    id: str
    objective: str
    input: str | None = None
    pieces: tuple[Piece, ...] = ()
    output: str | Mapping[str, Any] | None = None  # a form in words, or a JSON schema
    boundaries: str | None = None
    tools: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """What its answer stands under where answers stand one after the other."""
        if not self.pieces:
            return " ".join(self.objective.split())
        return ", ".join(piece.ref for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Plan:
    goal: str
    tasks: tuple[PlanTask, ...]
    how: How = "merge"
    instruction: str | None = None
    parts: bool = False  # the answers of the tasks stand below the merged one
    made_by: MadeBy = "file"
    why: str | None = None  # of a fallback: what was wrong with the orchestrator's


@dataclass(frozen=True, slots=True)
class Sketch:
    """A task as it was written, its files not yet looked up and cut."""

    id: str
    objective: str
    input: str | None
    files: tuple[str, ...]
    each: bool
    output: str | Mapping[str, Any] | None
    boundaries: str | None
    tools: tuple[str, ...] | None  # None: all that the run allows


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _TaskDocument(_Strict):
    id: str | int | None = None
    objective: str
    input: str | None = None
    files: list[str] = Field(default_factory=list)
    each: bool = False
    output: str | dict[str, Any] | None = None
    boundaries: str | list[str] | None = None
    tools: list[str] | None = None


class _ReduceDocument(_Strict):
    how: How = "merge"
    instruction: str | None = None
    parts: bool = False


class _PlanDocument(_Strict):
    goal: str | None = None
    made_by: str | None = None
    why: str | None = None
    tasks: list[_TaskDocument] = Field(min_length=1, max_length=MOST_TASKS)
    reduce: _ReduceDocument = _ReduceDocument()


# What an orchestrator is asked for. `each`: one task for every file instead of one for all of them.
ORCHESTRATOR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tasks": {
            "type": "array",
            "minItems": 1,
            "maxItems": 64,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "objective": {"type": "string"},
                    "input": {"type": "string"},
                    "files": {"type": "array", "items": {"type": "string"}},
                    "each": {"type": "boolean"},
                    "output": {"type": "string"},
                    "boundaries": {"type": "string"},
                },
                "required": ["id", "objective"],
                "additionalProperties": False,
            },
        },
        "reduce": {
            "type": "object",
            "properties": {
                "how": {"type": "string", "enum": list(get_args(How))},
                "instruction": {"type": "string"},
            },
            "required": ["how"],
            "additionalProperties": False,
        },
    },
    "required": ["tasks", "reduce"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Sketched:
    """A plan whose form is right."""

    goal: str | None
    tasks: tuple[Sketch, ...]
    how: How
    instruction: str | None
    parts: bool
    made_by: str | None
    why: str | None


def sketch_of(document: Any, *, lenient: bool = False) -> Sketched:
    """Form, ids and objectives; UserError with all faults. `lenient`: of a model, unknown fields are left out."""
    if lenient:
        document = _without_unknown(document)
    try:
        told = _PlanDocument.model_validate(document)
    except ValidationError as error:
        raise fault_error([_fault(one) for one in error.errors(include_url=False)]) from None
    tasks = tuple(_sketch(one, number) for number, one in enumerate(told.tasks, 1))
    faults = _faults(tasks)
    if faults:
        raise fault_error(faults)
    reduce = told.reduce
    return Sketched(told.goal, tasks, reduce.how, _text(reduce.instruction), reduce.parts, told.made_by, told.why)


def fault_error(faults: Sequence[str]) -> UserError:
    more = f"; and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
    return UserError(f"the plan cannot be run: {'; '.join(faults[:FAULTS_SHOWN])}{more}", hint="docs/swarm.md: Ask")


def _sketch(told: _TaskDocument, number: int) -> Sketch:
    boundaries = "; ".join(told.boundaries) if isinstance(told.boundaries, list) else told.boundaries
    name = str(number) if told.id is None else str(told.id).strip()
    output = told.output if isinstance(told.output, dict) else _text(told.output)
    tools = None if told.tools is None else tuple(dict.fromkeys(one for one in told.tools if one != "none"))
    given = told.input if told.input and told.input.strip() else None
    files = tuple(dict.fromkeys(told.files))
    return Sketch(name, told.objective.strip(), given, files, told.each, output, _text(boundaries), tools)


def _faults(tasks: Sequence[Sketch]) -> list[str]:
    faults: list[str] = []
    seen: dict[str, int] = {}
    same: dict[tuple[Any, ...], str] = {}
    for number, task in enumerate(tasks, 1):
        name = f"task `{task.id[:40]}`"
        if not task.id or len(task.id) > LONGEST_ID or not task.id.isprintable():
            faults.append(f"task {number} has no usable id (1 to {LONGEST_ID} printable characters)")
        if task.id in seen:
            faults.append(f"tasks {seen[task.id]} and {number} have the same id `{task.id[:40]}`")
        seen.setdefault(task.id, number)
        if not task.objective:
            faults.append(f"{name} has no objective")
        work = (task.objective.casefold(), task.input, task.files, repr(task.output), task.boundaries)
        if work in same:
            faults.append(f"{name} is the same work as task `{same[work][:40]}`")
        same.setdefault(work, task.id)
        faults.extend(f"{name} asks for unknown tools `{one}`" for one in task.tools or () if one not in TOOL_KINDS)
    return faults


def _fault(error: Any) -> str:
    place = [str(part) for part in error["loc"]]
    if place[:1] == ["tasks"] and len(place) > 1:
        place = [f"task {int(place[1]) + 1}", *place[2:]] if place[1].isdigit() else place
    what = "is not known here" if error["type"] == "extra_forbidden" else str(error["msg"])
    return f"{'.'.join(place) or 'it'}: {what[:1].lower()}{what[1:]}"


def _without_unknown(document: Any) -> Any:
    """A model's liberties: a list instead of a plan, a text instead of a task, further fields."""
    if isinstance(document, list):
        document = {"tasks": document}
    if not isinstance(document, dict):
        return document
    told = {name: value for name, value in document.items() if name in ("tasks", "reduce")}
    if isinstance(told.get("tasks"), list):
        told["tasks"] = [_known_task(one) for one in told["tasks"]]
    if isinstance(told.get("reduce"), dict):
        known = _ReduceDocument.model_fields
        told["reduce"] = {name: value for name, value in told["reduce"].items() if name in known}
        if told["reduce"].get("how") not in get_args(How):
            told["reduce"].pop("how", None)
    else:
        told.pop("reduce", None)
    return told


def _known_task(task: Any) -> Any:
    if isinstance(task, str):
        return {"objective": task}
    if not isinstance(task, dict):
        return task
    return {name: value for name, value in task.items() if name in _TaskDocument.model_fields and value is not None}


def _text(text: str | None) -> str | None:
    return text.strip() or None if text else None


def plan_json(plan: Plan) -> dict[str, Any]:
    """As `--plan FILE` reads it back. What has its default is left out."""
    reduce = {"how": plan.how, "instruction": plan.instruction, "parts": plan.parts or None}
    document = {
        "goal": plan.goal,
        "made_by": plan.made_by,
        "why": plan.why,
        "tasks": [_task_json(task) for task in plan.tasks],
        "reduce": {name: value for name, value in reduce.items() if value is not None},
    }
    return {name: value for name, value in document.items() if value is not None}


def _task_json(task: PlanTask) -> dict[str, Any]:
    document = {
        "id": task.id,
        "objective": task.objective,
        "input": task.input,
        "files": [piece.ref for piece in task.pieces] or None,
        "output": task.output,
        "boundaries": task.boundaries,
        "tools": list(task.tools),
    }
    return {name: value for name, value in document.items() if value is not None}


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """Of what `plan_json` gave: nothing is looked up or cut again."""
    told = sketch_of(document)
    tasks = []
    for one in told.tasks:
        pieces = tuple(piece for ref in one.files if (piece := parse_ref(ref)) is not None)
        kept = (one.id, one.objective, one.input, pieces, one.output, one.boundaries, one.tools or ())
        tasks.append(PlanTask(*kept))
    made_by: MadeBy = told.made_by if told.made_by in get_args(MadeBy) else "file"  # type: ignore[assignment]
    return Plan(told.goal or "", tuple(tasks), told.how, told.instruction, told.parts, made_by, told.why)
