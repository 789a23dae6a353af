"""Runs and results as the tools answer them: compact, cut where long, with the next step in words.

What is unknown is None here and left out on the wire.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from skep.store.database import Store
from skep.swarm.records import SwarmRun, SwarmRunState, TaskEnding, TaskResult
from skep.swarm.store import SwarmStore
from skep.units import shortened

Answer = dict[str, Any]  # of a tool

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
    store: Store, run: SwarmRun, now: float, at_work: bool, last_words: Callable[[str], str | None], *, whole: bool
) -> Answer:
    """`at_work`: the process that was started for it still runs. `whole`: with the speed and the newest failures."""
    answer = short_progress(run)
    stopped = run.state is SwarmRunState.STOPPED
    if (stopped or run.state is SwarmRunState.CANCELLED) and run.counts.left and at_work:
        answer |= {"state": "starting", "error": None}
    elif stopped and not run.sessions and now - run.created_at < STARTING_S:
        said = last_words(run.id)
        answer |= {"state": "starting"} if said is None else {"error": said}
    elif stopped and run.error is None:
        answer["error"] = last_words(run.id)
    state = answer["state"]
    answer["next"] = _next_step(run, state)
    if not whole:
        return answer
    until = run.ended_at if state in ENDED else now  # None: the process was killed, and nobody knows when
    failed = store.read(_NEWEST_FAILED, run.id, NEWEST_FAILURES)
    answer["seconds"] = None if until is None else round(max(0.0, until - run.created_at), 1)
    answer["failures"] = [
        {"task": name, "error": shortened(error or kind or "", ERROR_CHARS)} for name, error, kind in failed
    ] or None
    answer |= _speed(store, run, until, state)
    told = [fact for session, _, _, fact in SwarmStore(store).facts(run.id, "endpoint") if session == run.sessions]
    if state == "running" and told and not told[-1].get("up", True):
        why = told[-1].get("why") or "no reason is known"
        answer |= {"left_s": None, "error": f"the endpoint does not answer at this moment, and is waited for: {why}"}
    return answer


def short_progress(run: SwarmRun) -> Answer:
    """What the run's row tells, without what to do next: it is one of many."""
    output = run.config.get("output")
    return {
        "run": run.id,
        "state": run.state.value,  # or "starting"
        **{name: getattr(run.counts, name) for name in ("total", "done", "failed", "left")},
        "name": run.name or None,
        "simulated": run.simulated,
        "error": run.error,
        "output": output if isinstance(output, str) else None,
    }


def page_of(run: SwarmRun, results: Sequence[TaskResult], *, page: int, size: int, matching: int, most: int) -> Answer:
    """`matching`: results of the kind that was asked for, on all pages."""
    pages = -(-matching // size)
    return {
        "run": run.id,
        "state": run.state.value,
        "results": [_result_row(one, most) for one in results],
        "page": page,
        "pages": pages,
        "matching": matching,
        "left": run.counts.left,
        "next_page": page + 1 if page < pages else None,
    }


def _result_row(result: TaskResult, most: int) -> Answer:
    """A value that is too long is shown as the beginning of its JSON. `cut`: the characters of the whole answer."""
    ok = result.ending is TaskEnding.DONE
    row: Answer = {"id": result.task, "ok": ok}
    text = result.answer if result.value is None else json.dumps(result.value, ensure_ascii=False)
    if result.value is not None and text is not None and len(text) <= most:
        row["value"] = result.value
    elif text is not None:
        row |= {"answer": shortened(text, most), "cut": len(text) if len(text) > most else None}
    error = shortened(result.error or result.error_kind or "", ERROR_CHARS)
    return {**row, "error": None if ok else error}


def full_result(run_id: str, result: TaskResult, from_char: int) -> Answer:
    """`next_from`: where the rest of a very long answer begins."""
    answer, end = result.answer, from_char + WHOLE_CHARS
    rest = answer is not None and len(answer) > end
    ok = result.ending is TaskEnding.DONE
    told = ("tries", "prompt_tokens", "output_tokens", "finish_reason", "replica")
    return {
        "run": run_id,
        "id": result.task,
        "ok": ok,
        **{name: getattr(result, name) for name in told},
        "seconds": round(result.ended_at - result.started_at, 2),
        "answer": None if answer is None else answer[from_char:end],
        "characters": None if answer is None else len(answer),
        "value": result.value if not rest and not from_char else None,
        "error": None if ok else result.error or result.error_kind,
        "next_from": end if rest else None,
    }


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
    return {
        "tok_s": None if tokens is None else round(tokens / took, 1),
        "left_s": round(run.counts.left * took / settled, 1) if state == "running" else None,  # an estimate
    }


def _next_step(run: SwarmRun, state: str) -> str:
    left = run.counts.left
    retry = "; swarm_retry tries the failed ones again" if run.counts.failed else ""
    steps = {
        "done": f"swarm_results has the answers, page by page{retry}",
        "starting": f"call swarm_wait again; where it stays so, {run.url} does not answer and is waited for",
        "running": "call swarm_wait again; swarm_results has what is done already",
        "cancelled": f"what is done is kept: swarm_results; swarm_resume does the other {left}",
        "stopped": f"nobody works on it any more: swarm_resume does the {left} tasks that are left",
    }
    return steps[state]
