"""Tools about runs of the swarm: dispatch, wait, fetch, cancel, resume, retry, list.

A run belongs to its own process and to the journal, so a client may go away at any moment and ask
again later."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from msgspec.structs import replace
from pydantic import Field

from skep.bench.endpoint import find_endpoint
from skep.errors import EndpointError, UserError
from skep.mcp_server.read_tools import Answer, ServerContext
from skep.store.database import open_store, read_store
from skep.swarm.records import (
    SwarmRun,
    SwarmRunOptions,
    SwarmRunState,
    Task,
    TaskEnding,
    TaskResult,
)
from skep.swarm.store import (
    SwarmStore,
    as_it_stands,
    cancel,
    check_output_free,
    create_run,
    failed_tasks,
    last_error,
    resume_in_background,
)
from skep.swarm.task_file import read_tasks, tasks_of
from skep.units import shortened

LONGEST_WAIT_S = 44.0  # with its answer a call stays below 45 s; clients give up on longer ones
LOOK_S = 0.25
TELL_S = 1.0
FIND_S = 5.0
BEGIN_S = 20.0
MOST_ROWS = 20
MOST_CHARS = 2000

Run = Annotated[str, Field(description="Id of the run, a prefix of it, or `last`.")]
Model = Annotated[
    str | None,
    Field(description="Model name; needed only if several models are served (see capacity)."),
]
Agents = Annotated[
    int | None,
    Field(
        ge=1,
        description="Maximum number of tasks at once (default: as many as the endpoint takes).",
    ),
]
System = Annotated[str | None, Field(description="System message for every task without its own.")]
Schema = Annotated[
    dict[str, Any] | None,
    Field(description="JSON Schema for every answer (a task's own schema has precedence)."),
]
MaxTokens = Annotated[
    int | None, Field(ge=1, description="Maximum length of an answer, in tokens.")
]
Name = Annotated[str, Field(description="Name of the run in swarm_list.", max_length=200)]

SHOWN_FAILURES = 5
ERROR_CHARS = 300
WHOLE_CHARS = 20_000
NEXT_STEPS = {
    "done": "swarm_results returns the answers, page by page; swarm_retry runs failed tasks again",
    "running": "call swarm_wait again; swarm_results returns what is done already",
    "cancelled": "swarm_results returns what is done; swarm_resume runs the tasks that are left",
    "stopped": "no process works on the run; swarm_resume runs the tasks that are left",
}


class RunTools:
    def __init__(self, place: ServerContext, *, longest_wait_s: float = LONGEST_WAIT_S) -> None:
        self._place = place
        self._longest_wait_s = longest_wait_s

    async def swarm_dispatch(
        self,
        tasks: Annotated[
            list[dict[str, Any] | str],
            Field(
                description="Each is a prompt or an object {id?, prompt | messages, system?, "
                "schema?, "
                "max_tokens?, "
                "temperature?, checker?}. With `template`: objects (or strings) that fill "
                "in its fields.",
                min_length=1,
            ),
        ],
        template: Annotated[
            str | None,
            Field(
                description=(
                    "Prompt for all: `Summarise in one line: {text}`; use `{item}` if tasks are "
                    "strings."
                )
            ),
        ] = None,
        system: System = None,
        schema: Schema = None,
        max_tokens: MaxTokens = None,
        model: Model = None,
        agents: Agents = None,
        name: Name = "",
    ) -> Answer:
        """Send many independent tasks to the local model at once, in the background; returns a run
        id immediately. Use it whenever several pieces of work do not depend on each other. Every
        task must be self-contained: the model sees only the prompt of that task. skep retries
        tasks, checks answers against their schema and journals both, so no task is lost. It
        refuses invalid tasks before anything runs. Then call swarm_wait in a loop."""

        given = tasks
        if template is not None:
            given = [{"": task, "item": task} if isinstance(task, str) else task for task in tasks]
        shared = partial(
            tasks_of, template=template, system=system, schema=schema, max_tokens=max_tokens
        )
        return await self._dispatch(
            await asyncio.to_thread(shared, given), model, SwarmRunOptions(agents=agents), name
        )

    async def swarm_dispatch_file(
        self,
        path: Annotated[
            str, Field(description="Absolute path: .jsonl, .csv or plain text, one task per line.")
        ],
        output: Annotated[
            str | None,
            Field(
                description="Absolute path of the results file: one JSON line per finished task."
            ),
        ] = None,
        template: Annotated[
            str | None,
            Field(description="Prompt with {column} of a CSV file or {line} of a text file."),
        ] = None,
        system: System = None,
        schema: Schema = None,
        max_tokens: MaxTokens = None,
        model: Model = None,
        agents: Agents = None,
        name: Name = "",
    ) -> Answer:
        """Like swarm_dispatch, with the tasks in a file on this machine. Prefer it for more than
        about 20 tasks or for long inputs: write the file with a script, and neither tasks nor
        results pass through the conversation. With `output`, skep writes the results there as JSON
        lines with the ids of the tasks."""
        order = SwarmRunOptions(
            agents=agents, output=_absolute("output", output) if output is not None else None
        )

        def read() -> list[Task]:
            task_file = Path(_absolute("path", path))
            if order.output is not None:
                check_output_free(
                    self._place.paths, Path(order.output), task_file, overwrite=False
                )
            return read_tasks(
                task_file, template=template, system=system, schema=schema, max_tokens=max_tokens
            )

        return await self._dispatch(
            await asyncio.to_thread(read), model, order, name or Path(path).name
        )

    async def swarm_wait(
        self,
        run: Run,
        ctx: Context[Any, Any],
        seconds: Annotated[float, Field(description="Maximum time to wait; at most 45.")] = 40.0,
    ) -> Answer:
        """Wait until a run ends or the time is up, whichever is first, and return its state:
        counts, estimated time left, speed, the newest failures. A call never takes longer than 45
        s: call it again while the state is `running`."""
        return await self._wait(run, min(max(0.0, seconds), self._longest_wait_s), ctx)

    def swarm_results(
        self,
        run: Run,
        page: Annotated[int, Field(ge=1)] = 1,
        page_size: Annotated[int, Field(description="At most 20.")] = 10,
        only: Annotated[
            Literal["all", "done", "failed"], Field(description="Which results to return.")
        ] = "all",
        chars_per_answer: Annotated[
            int, Field(description="Cut longer answers; at most 2000.")
        ] = 600,
    ) -> Answer:
        """Return a page of results in the order of the tasks: id, ok, answer (or `value`, for a
        task with a schema), error. If an answer was cut, `cut` is the length of the whole answer;
        swarm_result returns it. Works while the run is in progress."""
        size = min(max(1, page_size), MOST_ROWS)
        max_chars = min(max(1, chars_per_answer), MOST_CHARS)
        ending = None if only == "all" else TaskEnding(only)
        with self._place.runs() as runs:
            stored = runs.run(run)
            results = runs.results(stored.id, offset=(page - 1) * size, limit=size, ending=ending)
        counts = {"done": stored.counts.done, "failed": stored.counts.failed}
        matching = sum(counts.values()) if only == "all" else counts[only]  # on all pages
        return {
            "run": stored.id,
            "state": stored.state.value,
            "results": [_result_row(result, max_chars) for result in results],
            "page": page,
            "pages": -(-matching // size),
            "matching": matching,
            "left": stored.counts.left,
            "next_page": page + 1 if page * size < matching else None,
        }

    def swarm_result(
        self, run: Run, task: Annotated[str, Field(description="Id of the task.")]
    ) -> Answer:
        """Return one whole result: the answer (up to 20,000 characters), tries, tokens, seconds,
        and the error if the task failed."""
        with self._place.runs() as runs:
            stored = runs.run(run)
            stored_task = runs.task(stored.id, task)
            result = runs.result(stored.id, stored_task.id)
        if result is None:
            raise UserError(
                f"task `{stored_task.id}` of run `{stored.id}` has no result yet",
                hint="swarm_wait waits for it",
            )
        fields = ("tries", "prompt_tokens", "output_tokens", "finish_reason", "replica")
        return {
            "run": stored.id,
            **_result_row(result, WHOLE_CHARS),
            **{name: getattr(result, name) for name in fields},
            "seconds": round(result.ended_at - result.started_at, 2),
        }

    async def swarm_cancel(self, run: Run) -> Answer:
        """Stop a run.

        Finished results are kept and can be fetched; swarm_resume continues with the rest.
        """
        stored = await asyncio.to_thread(self._place.run, run)
        if stored.state is not SwarmRunState.DONE:
            await asyncio.to_thread(cancel, self._place.paths, stored.id)
        return await asyncio.to_thread(self._standing, stored.id)

    async def swarm_resume(self, run: Run) -> Answer:
        """Continue a run that was cancelled or whose process died: only tasks without a result are
        run. Failed tasks keep their error; use swarm_retry for them."""
        stored = await asyncio.to_thread(self._place.run, run)
        if stored.state in (SwarmRunState.STOPPED, SwarmRunState.CANCELLED):
            await asyncio.to_thread(self._begin, stored)
        return await asyncio.to_thread(self._standing, stored.id)

    async def swarm_retry(self, run: Run, agents: Agents = None) -> Answer:
        """Dispatch the failed tasks of a run again, as a new run with the same task ids. Use it
        for temporary failures (an endpoint that was down, a timeout). If the prompt or the schema
        was the reason, change it and use swarm_dispatch."""

        def failed() -> tuple[SwarmRun, list[Task]]:
            with self._place.runs() as runs:
                return runs.run(run), failed_tasks(runs, run)

        stored, tasks = await asyncio.to_thread(failed)
        order = replace(stored.options, agents=agents or stored.options.agents, output=None)
        return await self._dispatch(tasks, stored.model, order, f"retry of {stored.id}")

    def swarm_list(self, limit: Annotated[int, Field(ge=1, le=50)] = 10) -> Answer:
        """List the newest runs, including those of other clients and of the command line: id,
        name, state, counts.
        """
        with read_store(self._place.paths.store) as store:
            newest = SwarmStore(store).runs(limit)
        return {"runs": [_progress(as_it_stands(self._place.paths, run)) for run in newest]}

    async def _dispatch(
        self, tasks: list[Task], model: str | None, order: SwarmRunOptions, name: str
    ) -> Answer:
        """Store the tasks and begin their run.

        The endpoint is asked first: what could not be done now is not taken.
        """
        place = self._place
        url = await asyncio.to_thread(place.endpoint_url)
        try:
            endpoint = await find_endpoint(
                url, model or place.model, key=place.key(url), timeout_s=FIND_S
            )
        except EndpointError as error:
            raise EndpointError(
                f"nothing was dispatched: {error.message}", hint=error.hint
            ) from None
        options = replace(order, key_env=place.key_env)

        def begin() -> str:
            with open_store(place.paths.store) as store:
                run_id = create_run(
                    store, tasks, options, url=url, model=endpoint.model, name=name
                )
                run = SwarmStore(store).run(run_id)
            self._begin(run)
            return run_id

        run_id = await asyncio.to_thread(begin)
        slots = endpoint.engine.get("slots")
        counts = [count for count in (slots, order.agents, len(tasks)) if isinstance(count, int)]
        return {
            "run": run_id,
            "tasks": len(tasks),
            "model": endpoint.model,
            "simulated": endpoint.simulated,
            "next": f"call swarm_wait with run `{run_id}` until its state is `done`",
            "at_once": min(counts) if isinstance(slots, int) or order.agents else None,
        }

    def _begin(self, run: SwarmRun) -> None:
        resume_in_background(self._place.paths, run, BEGIN_S, self._place.env)

    async def _wait(self, run: str, seconds: float, ctx: Context[Any, Any]) -> Answer:
        """Wait until the run has ended or the time is up; `ctx` hears of its progress."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        reported = 0.0
        tell_at = loop.time()
        while True:
            stored = await asyncio.to_thread(self._place.run, run)
            now = loop.time()
            counts = stored.counts
            if stored.state is not SwarmRunState.RUNNING or now >= ends:
                return await asyncio.to_thread(self._standing, stored.id)
            if now >= tell_at:
                reported = max(round(reported + 0.001, 3), counts.done + counts.failed)
                tell_at = now + TELL_S
                words = (
                    f"{counts.done} of {counts.total} done, {counts.failed} failed, "
                    f"{counts.left} left"
                )
                await ctx.report_progress(reported, counts.total, words)
            await asyncio.sleep(min(LOOK_S, max(0.0, ends - now)))

    def _standing(self, run: str) -> Answer:
        """Return how a run stands, its speed, some failures, and the next step."""
        stored = self._place.run(run)
        running = stored.state is SwarmRunState.RUNNING
        # None: the process was killed, and nobody knows when.
        until = time.time() if running else stored.ended_at
        answer = _progress(stored)
        answer["next"] = NEXT_STEPS[answer["state"]]
        answer["seconds"] = (
            None if until is None else round(max(0.0, until - stored.created_at), 1)
        )
        if stored.state is SwarmRunState.STOPPED and stored.error is None:
            answer["error"] = last_error(self._place.paths, stored.id)
        with self._place.runs() as runs:
            failed = runs.results(stored.id, ending=TaskEnding.FAILED, limit=SHOWN_FAILURES)
            answer["failures"] = [
                {"task": result.task, "error": _error(result)} for result in failed
            ] or None
            answer |= _speed(runs, stored, until)
            sessions = [
                fact
                for session, _, _, fact in runs.facts(stored.id, "endpoint")
                if session == stored.sessions
            ]
        if running and sessions and not sessions[-1].get("up", True):
            why = f"skep waits for it: {sessions[-1].get('why') or 'no reason is known'}"
            answer |= {
                "left_s": None,
                "error": f"the endpoint does not answer at the moment; {why}",
            }
        return answer


def _progress(run: SwarmRun) -> Answer:
    output = run.config.get("output")
    return {
        "run": run.id,
        "state": run.state.value,
        **{name: getattr(run.counts, name) for name in ("total", "done", "failed", "left")},
        "name": run.name or None,
        "simulated": run.simulated,
        "error": run.error,
        "output": output if isinstance(output, str) else None,
    }


def _absolute(name: str, given: str) -> str:
    path = Path(given).expanduser()
    if not path.is_absolute():
        raise UserError(
            f"`{name}` `{given}` is not absolute", hint="give the full path: it starts with `/`"
        )
    return str(path)


def _error(result: TaskResult) -> str:
    return shortened(result.error or result.error_kind or "", ERROR_CHARS)


def _result_row(result: TaskResult, max_chars: int) -> Answer:
    """Return a result; a value that is too long is shown as the beginning of its JSON.

    `cut`: the characters of the whole answer.
    """
    ok = result.ending is TaskEnding.DONE
    row: Answer = {"id": result.task, "ok": ok}
    if result.value is None:
        text = result.answer
    else:
        text = json.dumps(result.value, ensure_ascii=False)
    if result.value is not None and text is not None and len(text) <= max_chars:
        row["value"] = result.value
    elif text is not None:
        row |= {
            "answer": shortened(text, max_chars),
            "cut": len(text) if len(text) > max_chars else None,
        }
    return {**row, "error": None if ok else _error(result)}


def _speed(runs: SwarmStore, run: SwarmRun, until: float | None) -> dict[str, float | None]:
    """Return the speed of the newest session: what a resumed run did before the pause says nothing
    of now.
    """
    sessions = runs.session_rows(run.id)
    if not sessions or until is None:
        return {}
    lasted_s = until - sessions[-1].started_at
    settled, tokens = runs.settled_since(run.id, sessions[-1].started_at)
    if not settled or lasted_s <= 0:
        return {}
    running = run.state is SwarmRunState.RUNNING
    return {
        "tok_s": None if tokens is None else round(tokens / lasted_s, 1),
        "left_s": round(run.counts.left * lasted_s / settled, 1)
        if running
        else None,  # an estimate
    }
