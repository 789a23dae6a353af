"""`skep swarm trace`: one task from its messages to its answer, with everything that was tried in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from skep.cli.output import number, print_json, print_table
from skep.cli.swarm_places import journal
from skep.cli.swarm_words import one_line
from skep.report.figures import printable
from skep.tasks import Attempt, Result, Task, task_json
from skep.units import format_seconds


def show_trace(name: str, task_id: str, *, as_json: bool) -> None:
    with journal() as swarm:
        run = swarm.run(name)
        task = swarm.task(run.id, task_id)
        result = swarm.result(run.id, task.id)
        attempts = swarm.attempts(run.id, task.id)
    if as_json:
        print_json(trace_document(run.id, task, result, attempts))
        return
    for line in [*asked(task), ""]:
        print(line)  # noqa: T201
    _show_attempts(attempts)
    for line in ended(result):
        print(line)  # noqa: T201


def trace_document(run_id: str, task: Task, result: Result | None, attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "run": run_id,
        "task": task_json(task),
        "result": None if result is None else asdict(result),
        "attempts": [asdict(one) for one in attempts],
    }


def asked(task: Task) -> list[str]:
    lines = [f"task {one_line(task.id)}"]
    for message in task.messages:
        lines += [f"  {message.get('role', '?')}:", *indented(content_text(message))]
    wants = {
        "schema": task.schema,
        "checker": task.checker,
        "max_tokens": task.max_tokens,
        "temperature": task.temperature,
        "priority": task.priority,
        "extra": dict(task.extra) or None,
    }
    return [*lines, *(f"  {name}: {one_line(str(value))}" for name, value in wants.items() if value is not None)]


def content_text(message: Mapping[str, Any]) -> str:
    """A message may be made of parts, some of them pictures."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") or f"[{part.get('type')}]" for part in content if isinstance(part, dict)]
        return "\n".join(map(str, parts))
    return "" if content is None else str(content)


def indented(text: str, by: str = "    ") -> list[str]:
    """What a model wrote must not move the cursor."""
    return [f"{by}{line}" for line in printable(text).splitlines()]


def _show_attempts(attempts: list[Attempt]) -> None:
    columns = ("ATTEMPT", "WHY", "OUTCOME", "AGENT", "REPLICA", "TOOK", "QUEUED", "FIRST TOKEN", "TOKENS", "ERROR")
    right = ("ATTEMPT", "AGENT", "TOOK", "QUEUED", "FIRST TOKEN", "TOKENS")
    if attempts:
        print_table(columns, [_attempt_cells(one) for one in attempts], right=right)
    else:
        print("not tried yet")  # noqa: T201


def _attempt_cells(one: Attempt) -> list[str]:
    status = f"HTTP {one.status} " if one.status not in (None, 200) else ""
    return [
        str(one.number),
        one.why.value,
        one.outcome.value,
        str(one.agent),
        one.replica or "–",
        format_seconds(one.ended_at - one.started_at),
        "–" if one.queued_ms is None else format_seconds(one.queued_ms / 1000),
        "–" if one.first_token_at is None else format_seconds(max(0.0, one.first_token_at - one.started_at)),
        number(one.output_tokens, 0),
        one_line(f"{one.error_kind}: {status}{one.error or ''}") if one.error_kind else "",
    ]


def ended(result: Result | None) -> list[str]:
    if result is None:
        return ["", "no result yet"]
    fault = f": {result.error_kind}: {one_line(result.error)}" if result.error_kind else ""
    cut = ", cut at its token limit" if result.finish_reason == "length" else ""
    head = f"{result.ending.value} after {result.tries} {'try' if result.tries == 1 else 'tries'}{cut}{fault}"
    return ["", head, *indented(result.answer or "")]
