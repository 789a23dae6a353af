"""A goal carried out: the plan's tasks, the merges that follow from their answers, and the answer in the end.

Everything after the plan follows from the journal alone: who asks again, after a kill, gets the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from skep.swarm.ask.files import Sources
from skep.swarm.ask.plan import Plan, PlanTask, Sizes, plan_from_json, plan_json
from skep.swarm.ask.prompts import agent_messages, merge_messages
from skep.swarm.ask.reducing import Part, grouped, joined, left_out, tidy, vote, why_unused, without_echo
from skep.swarm.ask.work import work_maker
from skep.tasks import Ending, Result, SwarmRun, Task

__all__ = ["Answer", "answer_of", "ask_document", "final_answer", "first_tasks", "next_tasks", "work_maker"]

TEMPERATURE = 0.2  # of agents and merges: the same goal should give about the same answer
NOTES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Answer:
    """`complete`: every task has its result and every merge is done."""

    text: str
    notes: tuple[str, ...]
    complete: bool


@dataclass(slots=True)
class _Reduction:
    """How far the journal has come."""

    parts: list[Part]
    notes: list[str] = field(default_factory=list)
    wanted: list[Task] = field(default_factory=list)  # merges of the next level
    complete: bool = True


def ask_document(
    plan: Plan,
    sizes: Sizes,
    *,
    root: str,
    tools: Sequence[str],
    context_chars: int,
    native_tools: bool | None = None,
    answer: str | None = None,
    orchestrator: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What the run keeps. `answer`: the file it goes to; `orchestrator`: url, model and key_env of who merges."""
    document = {
        "goal": plan.goal,
        "plan": plan_json(plan),
        "sizes": asdict(sizes),
        "root": root,
        "tools": list(tools),
        "context_chars": context_chars,
        "native_tools": native_tools,
        "answer": answer,
    }
    return {**document, "orchestrator": dict(orchestrator)} if orchestrator else document


def first_tasks(plan: Plan, sources: Sources, sizes: Sizes) -> list[Task]:
    """With all that they need: no file is read when the run goes on after a kill."""
    return [
        Task(
            id=one.id,
            messages=tuple(agent_messages(one, sources)),
            max_tokens=sizes.answer_tokens,
            temperature=TEMPERATURE,
            schema=one.output if isinstance(one.output, Mapping) else None,
            tools=one.tools,
        )
        for one in plan.tasks
    ]


def next_tasks(run: SwarmRun, tasks: Sequence[Task], results: Sequence[Result]) -> list[Task]:
    """The merges that can be made now and are not there yet; none: all is done, or something is still under way."""
    known = {task.id for task in tasks}
    return [task for task in _reduce(run, tasks, results).wanted if task.id not in known]


def final_answer(run: SwarmRun, tasks: Sequence[Task], results: Sequence[Result]) -> str:
    """The text, and below it what has to be known of how it was made."""
    answer = answer_of(run, tasks, results)
    if not answer.notes:
        return answer.text
    more = len(answer.notes) - NOTES_SHOWN
    notes = [f"- {note}" for note in answer.notes[:NOTES_SHOWN]] + ([f"- and {more} more"] if more > 0 else [])
    return "\n".join([answer.text, "", "---", "How this was made:", *notes]).lstrip("\n")


def answer_of(run: SwarmRun, tasks: Sequence[Task], results: Sequence[Result]) -> Answer:
    reduced = _reduce(run, tasks, results)
    plan = _plan(run)
    first = _first_parts(plan, tasks, results)[0]
    if plan.how == "vote" and first:
        by_id = {result.task: result for result in results}
        told = vote([(part.text, by_id[part.id].value) for part in first])
        assert told is not None
        note = f"{told.votes} of {told.of} answers say so" + ("; no two agree" if told.votes == 1 < told.of else "")
        return Answer(told.text, (*reduced.notes, note), reduced.complete)
    parts = reduced.parts
    text = parts[0].text if len(parts) == 1 else joined(parts)
    if plan.parts and len(parts) == 1 and parts[0].merged and len(first) > 1:
        text = f"{text}\n\n# The parts\n\n{joined(first)}"
    return Answer(text, tuple(reduced.notes), reduced.complete)


def _reduce(run: SwarmRun, tasks: Sequence[Task], results: Sequence[Result]) -> _Reduction:
    """Level by level, as far as there are results."""
    plan, sizes = _plan(run), _sizes(run)
    by_id = {result.task: result for result in results}
    parts, notes = _first_parts(plan, tasks, results)
    reduced = _Reduction(parts, notes, complete=all(task.id in by_id for task in plan.tasks))
    if plan.made_by == "fallback" and plan.why:
        notes.insert(0, f"planned without an orchestrator: {plan.why}")
    if not reduced.complete:
        left = sum(task.id not in by_id for task in plan.tasks)
        notes.append(f"{left} of {len(plan.tasks)} tasks are not done yet")
        return reduced
    if plan.how != "merge":
        return reduced
    taken = {task.id for task in plan.tasks}
    level = 1
    while len(reduced.parts) > 1:
        groups = grouped(reduced.parts, sizes.merge_chars)
        if all(len(group) == 1 for group in groups):
            notes.append("what is left does not fit into one merge: it stands one after the other")
            break
        named = [(_merge_id(level, number, taken), group) for number, group in enumerate(groups, 1)]
        missing = [(name, group) for name, group in named if len(group) > 1 and name not in by_id]
        if missing:
            reduced.complete = False
            reduced.wanted = [_merge_task(name, plan, group, sizes, level) for name, group in missing]
            notes.append(f"{len(missing)} merges are not done yet")
            return reduced
        reduced.parts = [_merged(by_id.get(name), name, group, notes) for name, group in named]
        level += 1
    return reduced


def _first_parts(plan: Plan, tasks: Sequence[Task], results: Sequence[Result]) -> tuple[list[Part], list[str]]:
    """The tasks' answers that say something, in the plan's order, and what is to be told of the others."""
    by_id = {result.task: result for result in results}
    asked = {task.id: _asked(task) for task in tasks}
    parts: list[Part] = []
    notes: list[str] = []
    for task in plan.tasks:
        result = by_id.get(task.id)
        if result is None:
            continue
        text = _said(result, asked.get(task.id, "")) if result.ending is Ending.DONE else ""
        if text:
            parts.append(Part(task.id, _heading(task), text))
        else:
            why = result.error or "its answer is empty"
            notes.append(f"`{task.id}` is missing: {why}")
    cut = [part.id for part in parts if by_id[part.id].finish_reason == "length"]
    if cut:
        some = f"{len(cut)} of {len(parts)} answers were" if len(parts) > 1 else "the answer was"
        notes.append(f"{some} cut at the limit of tokens; --max-tokens raises it")
    return parts, notes


def _asked(task: Task) -> str:
    return "\n".join(str(one.get("content") or "") for one in task.messages)


def _said(result: Result, asked: str) -> str:
    return tidy(without_echo(result.answer or "", asked))


def _heading(task: PlanTask) -> str:
    heading = task.heading
    return heading if len(heading) <= 160 else f"{heading[:159]}…"


def _merge_id(level: int, number: int, taken: set[str]) -> str:
    name = f"merge-{level}-{number}"
    while name in taken:
        name += "'"
    return name


def _merge_task(name: str, plan: Plan, group: Sequence[Part], sizes: Sizes, level: int) -> Task:
    messages = tuple(merge_messages(plan.goal, plan.instruction, group, sizes))
    return Task(name, messages, max_tokens=sizes.answer_tokens, temperature=TEMPERATURE, stage=level)


def _merged(result: Result | None, name: str, group: Sequence[Part], notes: list[str]) -> Part:
    """The merge's answer, or its parts one after the other where it cannot be used."""
    if len(group) == 1:
        return group[0]
    heading = f"{group[0].heading} to {group[-1].heading}"[:160]
    failed = result is None or result.ending is not Ending.DONE
    why = (
        (result.error if result else None) or "it failed"
        if failed
        else why_unused(result.answer, result.finish_reason, group)  # type: ignore[union-attr]
    )
    if why is None and result is not None:
        text = tidy(result.answer or "")
        dropped = left_out(text, group)
        if dropped:
            notes.append(f"`{name}` says nothing of {len(dropped)} of its {len(group)} parts: they stand below it")
            text = f"{text}\n\n{joined(dropped)}"
        return Part(name, heading, text, merged=True)
    notes.append(f"`{name}` is not used, {why}: its {len(group)} parts stand one after the other")
    return Part(name, heading, joined(group), fallback=True)


def _ask(run: SwarmRun) -> Mapping[str, Any]:
    told = run.config.get("ask")
    return told if isinstance(told, Mapping) else {}


def _plan(run: SwarmRun) -> Plan:
    return plan_from_json(_ask(run)["plan"])


def _sizes(run: SwarmRun) -> Sizes:
    return Sizes(**_ask(run)["sizes"])
