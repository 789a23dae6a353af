"""Runs and results as the tools show them: compact, cut where long, with the next step in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from skep.mcp_server.schemas import FullResult, ResultPage, ResultRow, RunProgress, TaskFailure
from skep.store.database import Store
from skep.swarm.records import SwarmRun, SwarmRunState, TaskEnding, TaskResult
from skep.swarm.store import SwarmStore
from skep.units import shortened

ENDED = ("done", "stopped", "cancelled")
NEWEST_FAILURES = 5
ERROR_CHARS = 300
WHOLE_CHARS = 20_000
STARTING_S = 20.0  # until the process of a new run has said that it is there
# A run may have thousands of answers, and is asked after every minute: they are counted where they lie.
_SETTLED = "SELECT count(*), sum(output_tokens) FROM swarm_results WHERE run_id = ? AND ended_at >= ?"
_NEWEST_FAILED = """
SELECT swarm_tasks.id, error, error_kind
FROM swarm_results JOIN swarm_tasks ON swarm_tasks.key = swarm_results.task
WHERE swarm_results.run_id = ? AND ending = 'failed' ORDER BY ended_at DESC LIMIT ?
"""


def run_progress(
    store: Store,
    run: SwarmRun,
    now: float,
    at_work: bool,
    last_words: Callable[[str], str | None],
    *,
    whole: bool,
) -> RunProgress:
    """`at_work`: the process that was started for it still runs."""
    standing = short_progress(run).model_copy(update={"next": _next(run, run.state.value)})
    if run.state in (SwarmRunState.STOPPED, SwarmRunState.CANCELLED) and run.counts.left and at_work:
        standing = standing.model_copy(update={"state": "starting", "next": _next(run, "starting"), "error": None})
    elif run.state is SwarmRunState.STOPPED and not run.sessions and now - run.created_at < STARTING_S:
        if (said := last_words(run.id)) is None:
            standing = standing.model_copy(update={"state": "starting", "next": _next(run, "starting")})
        else:
            standing = standing.model_copy(update={"error": said})
    elif run.state is SwarmRunState.STOPPED and run.error is None:
        standing = standing.model_copy(update={"error": last_words(run.id)})
    if not whole:
        return standing
    until = run.ended_at if standing.state in ENDED else now  # None: the process was killed, and nobody knows when
    update: dict[str, Any] = {
        "seconds": round(max(0.0, until - run.created_at), 1) if until is not None else None,
        "failures": tuple(
            TaskFailure(task=row["id"], error=shortened(row["error"] or row["error_kind"] or "", ERROR_CHARS))
            for row in store.read(_NEWEST_FAILED, run.id, NEWEST_FAILURES)
        )
        or None,
        **_speed(store, run, until, standing.state),
    }
    if standing.state == "running" and (why := _away(store, run)) is not None:
        update["left_s"] = None
        update["error"] = f"the endpoint does not answer at this moment, and is waited for: {why}"
    return standing.model_copy(update=update)


def short_progress(run: SwarmRun) -> RunProgress:
    """What the run's row tells, without what to do next: it is one of many."""
    output = run.config.get("output")
    return RunProgress(
        run=run.id,
        state=run.state.value,
        **{name: getattr(run.counts, name) for name in ("total", "done", "failed", "left")},
        name=run.name or None,
        simulated=run.simulated,
        error=run.error,
        output=output if isinstance(output, str) else None,
    )


def page_of(
    run: SwarmRun, results: Sequence[TaskResult], *, page: int, size: int, matching: int, most: int
) -> ResultPage:
    pages = -(-matching // size)
    return ResultPage(
        run=run.id,
        state=run.state.value,
        results=tuple(row_of(one, most) for one in results),
        page=page,
        pages=pages,
        matching=matching,
        left=run.counts.left,
        next_page=page + 1 if page < pages else None,
    )


def row_of(result: TaskResult, most: int) -> ResultRow:
    """A value that is too long is shown as the beginning of its JSON."""
    ok = result.ending is TaskEnding.DONE
    error = None if ok else shortened(result.error or result.error_kind or "", ERROR_CHARS)
    if result.value is not None:
        text = json.dumps(result.value, ensure_ascii=False)
        if len(text) <= most:
            return ResultRow(id=result.task, ok=ok, value=result.value, error=error)
    else:
        text = result.answer or ""
    whole = len(text) if len(text) > most else None
    answer = shortened(text, most) if result.answer is not None or result.value is not None else None
    return ResultRow(id=result.task, ok=ok, answer=answer, error=error, cut=whole)


def full_result(run_id: str, result: TaskResult, from_char: int) -> FullResult:
    answer = result.answer
    part = answer[from_char : from_char + WHOLE_CHARS] if answer is not None else None
    rest = answer is not None and len(answer) > from_char + WHOLE_CHARS
    ok = result.ending is TaskEnding.DONE
    told = ("tries", "prompt_tokens", "output_tokens", "finish_reason", "replica")
    return FullResult(
        run=run_id,
        id=result.task,
        ok=ok,
        **{name: getattr(result, name) for name in told},
        seconds=round(result.ended_at - result.started_at, 2),
        answer=part,
        characters=len(answer) if answer is not None else None,
        value=result.value if not rest and not from_char else None,
        error=None if ok else result.error or result.error_kind,
        next_from=from_char + WHOLE_CHARS if rest else None,
    )


def _speed(store: Store, run: SwarmRun, until: float | None, state: str) -> dict[str, float | None]:
    """Over the newest session: what a resumed run did before the pause says nothing of now."""
    sessions = SwarmStore(store).session_rows(run.id)
    if not sessions or until is None or state == "starting":
        return {}
    began = sessions[-1].started_at
    ((settled, tokens),) = store.read(_SETTLED, run.id, began)
    took = until - began
    if not settled or took <= 0:
        return {}
    left_s = run.counts.left * took / settled if state == "running" else None
    return {
        "tok_s": round(tokens / took, 1) if tokens is not None else None,
        "left_s": round(left_s, 1) if left_s is not None else None,
    }


def _away(store: Store, run: SwarmRun) -> str | None:
    """Why the endpoint is away; None where it is there."""
    told = [fact for session, _, _, fact in SwarmStore(store).facts(run.id, "endpoint") if session == run.sessions]
    return str(told[-1].get("why") or "no reason is known") if told and not told[-1].get("up", True) else None


def _next(run: SwarmRun, state: str) -> str:
    retry = "; swarm_retry tries the failed ones again" if run.counts.failed else ""
    match state:
        case "done":
            return f"swarm_results has the answers, page by page{retry}"
        case "starting":
            return f"call swarm_wait again; where it stays so, {run.url} does not answer and is waited for"
        case "running":
            return "call swarm_wait again; swarm_results has what is done already"
        case "cancelled":
            return f"what is done is kept: swarm_results; swarm_resume does the other {run.counts.left}"
        case _:
            return f"nobody works on it any more: swarm_resume does the {run.counts.left} tasks that are left"
