"""Merges many answers into one, level by level, as many at a time as fit into a prompt.

The merges follow from the journal alone, so a run that was killed makes the same ones again. Where
a merge cannot be used, its answers are kept one after the other under their headings."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from skep.swarm.ask_sizes import Sizes
from skep.swarm.ask_split import (
    TEMPERATURE,
    GoalSplit,
    free_name,
    material,
    messages_of,
    packed,
)
from skep.swarm.records import SwarmRun, Task, TaskEnding, TaskResult
from skep.units import shortened

WORDS_PER_TOKEN = 0.6  # of English prose, on the careful side
MARKS_CHARS = 24  # that an answer's marks take in a prompt
SLACK_CHARS = 400  # that a merge of short answers may be longer than they
LONGEST_HEADING = 160
NOTES_SHOWN = 12


class PartAnswer(msgspec.Struct, frozen=True):
    """An answer under its heading, or several that stand one after the other with headings of
    their own.
    """

    heading: str
    text: str
    joined: bool = False


@dataclass(slots=True)
class MergedAnswer:
    """How far the journal has come.

    `complete`: every task has its result and every merge is done.
    """

    findings: list[PartAnswer]
    notes: list[str]
    complete: bool = True
    merges: list[Task] = field(default_factory=list)  # merges of the next level

    @property
    def text(self) -> str:
        if len(self.findings) == 1:
            return self.findings[0].text
        return joined(self.findings)

    def with_notes(self) -> str:
        """Return the text, and below it the notes on how it was made."""
        if not self.notes:
            return self.text
        notes = [f"- {note}" for note in self.notes[:NOTES_SHOWN]]
        if len(self.notes) > NOTES_SHOWN:
            notes.append(f"- and {len(self.notes) - NOTES_SHOWN} more")
        return "\n".join([self.text, "", "---", "How this was made:", *notes]).lstrip("\n")


def plan_document(goal: str, split: GoalSplit, *, merge: bool) -> dict[str, Any]:
    """Return the plan as the run stores it and as `--dry-run --json` prints it."""
    return {
        "goal": goal,
        "made_by": "orchestrator" if split.by_model else "rule",
        "why": split.why,
        "tasks": [
            {
                "id": part.id,
                "objective": part.objective,
                "files": [piece.ref for piece in part.pieces],
            }
            for part in split.parts
        ],
        "reduce": {"how": "merge" if merge else "concat"},
    }


def ask_document(
    plan: Mapping[str, Any], sizes: Sizes, answer: str | None = None
) -> dict[str, Any]:
    """Return what the run stores. `answer` is the file that the answer is written to."""
    return {
        "goal": plan["goal"],
        "plan": dict(plan),
        "sizes": msgspec.to_builtins(sizes),
        "answer": answer,
    }


def next_tasks(run: SwarmRun, tasks: Sequence[Task], results: Sequence[TaskResult]) -> list[Task]:
    """Return the merges that can start now; none if all are done or earlier tasks are still under
    way.
    """
    existing_ids = {task.id for task in tasks}
    return [task for task in answer_of(run, results).merges if task.id not in existing_ids]


def answer_of(run: SwarmRun, results: Sequence[TaskResult]) -> MergedAnswer:
    """Return the answer, merged level by level as far as there are results."""
    ask = run.config["ask"]
    plan = ask["plan"]
    sizes = Sizes(**ask["sizes"])
    by_id = {result.task: result for result in results}
    answer = _first(plan, by_id)
    if not answer.complete or plan["reduce"]["how"] != "merge":
        return answer
    taken_ids = {str(task["id"]) for task in plan["tasks"]}
    level = 1
    while len(answer.findings) > 1 and _merge_level(
        answer, plan["goal"], sizes, level, by_id, taken_ids
    ):
        level += 1
    return answer


def _merge_level(
    answer: MergedAnswer,
    goal: str,
    sizes: Sizes,
    level: int,
    by_id: Mapping[str, TaskResult],
    taken_ids: Container[str],
) -> bool:
    """Replace the findings by those of the next level; return whether that could be done."""
    prompt_sizes = [
        len(finding.text) + len(finding.heading) + MARKS_CHARS for finding in answer.findings
    ]
    groups = packed(answer.findings, prompt_sizes, sizes.merge_chars)
    if all(len(group) == 1 for group in groups):
        answer.notes.append(
            "the remaining parts do not fit into one merge: they follow one after the other"
        )
        return False
    named = [
        (free_name(f"merge-{level}-{number}", taken_ids), group)
        for number, group in enumerate(groups, 1)
    ]
    missing = [(name, group) for name, group in named if len(group) > 1 and name not in by_id]
    if missing:
        answer.complete = False
        answer.merges = [_merge_task(name, goal, group, sizes, level) for name, group in missing]
        answer.notes.append(f"{len(missing)} merges are not done yet")
        return False
    answer.findings = [
        _merged(by_id[name], group, answer.notes) if len(group) > 1 else group[0]
        for name, group in named
    ]
    return True


def _first(plan: Mapping[str, Any], by_id: Mapping[str, TaskResult]) -> MergedAnswer:
    """Return the answers of the tasks in the order of the plan, with notes on those that are
    missing or cut.
    """
    answer = MergedAnswer([], [])
    if plan.get("made_by") != "orchestrator" and plan.get("why"):
        answer.notes.append(f"split by rule, not by the model: {plan['why']}")
    tasks = {str(task_plan["id"]): task_plan for task_plan in plan["tasks"]}
    unfinished = 0
    cut = 0
    for name, task in tasks.items():
        result = by_id.get(name)
        if result is None:
            unfinished += 1
            continue
        text = (result.answer or "").strip()
        if result.ending is TaskEnding.DONE and text:
            files = ", ".join(task.get("files") or ())
            heading = files or " ".join(str(task["objective"]).split())
            answer.findings.append(PartAnswer(shortened(heading, LONGEST_HEADING), text))
            cut += result.finish_reason == "length"
        else:
            answer.notes.append(f"`{name}` is missing: {result.error or 'its answer is empty'}")
    if cut:
        cut_answers = "the answer was"
        if len(answer.findings) > 1:
            cut_answers = f"{cut} of {len(answer.findings)} answers were"
        answer.notes.append(f"{cut_answers} cut at the limit of tokens; --max-tokens raises it")
    if unfinished:
        answer.complete = False
        answer.notes.append(f"{unfinished} of {len(tasks)} tasks are not done yet")
    return answer


def _merge_task(
    name: str, goal: str, group: Sequence[PartAnswer], sizes: Sizes, level: int
) -> Task:
    words = int(sizes.answer_tokens * WORDS_PER_TOKEN)
    texts = material((part.heading, part.text) for part in group)
    messages = messages_of("merge", goal=goal, answers=len(group), words=words, material=texts)
    return Task(
        name, messages, max_tokens=sizes.answer_tokens, temperature=TEMPERATURE, stage=level
    )


def _merged(result: TaskResult, group: Sequence[PartAnswer], notes: list[str]) -> PartAnswer:
    """Return the answer of a merge, or its parts one after the other if it cannot be used."""
    heading = shortened(f"{group[0].heading} to {group[-1].heading}", LONGEST_HEADING)
    if (why := why_unused(result, group)) is not None:
        notes.append(
            f"`{result.task}` is not used, {why}: its {len(group)} parts follow one after "
            "the other"
        )
        return PartAnswer(heading, joined(group), joined=True)
    return PartAnswer(heading, (result.answer or "").strip())


def why_unused(result: TaskResult, group: Sequence[PartAnswer]) -> str | None:
    """Return why a merge cannot be used; None if it can."""
    if result.ending is not TaskEnding.DONE:
        return result.error or "it failed"
    text = (result.answer or "").strip()
    if not text:
        return "it is empty"
    if result.finish_reason == "length":
        return "it was cut at its limit"
    whole = sum(len(part.text) for part in group)
    if len(text) > whole + SLACK_CHARS:
        return f"it is longer ({len(text):,} characters) than all its parts together ({whole:,})"
    return None


def joined(findings: Sequence[PartAnswer]) -> str:
    """Join the answers under their headings."""
    return "\n\n".join(
        finding.text if finding.joined else f"## {finding.heading}\n\n{finding.text}"
        for finding in findings
    )
