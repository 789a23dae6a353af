"""`skep swarm ls`, `show`, `trace` and `cancel`: the journal, and its runs, tasks and attempts as tables."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skep.cli.options import existing
from skep.cli.output import day_and_time, note, number, picked, print_json, print_list, print_table
from skep.errors import EngineError, UserError
from skep.files import lock_holder
from skep.paths import user_paths
from skep.store.database import Store
from skep.swarm.journal import as_it_stands, lock_path
from skep.swarm.records import (
    Attempt,
    SwarmRun,
    SwarmRunState,
    Task,
    TaskEnding,
    TaskResult,
    run_options_from_json,
    task_json,
)
from skep.swarm.store import SwarmStore
from skep.swarm.summary import Account, account_json, account_of
from skep.units import format_seconds, parse_seconds, printable

LONGEST_ERROR = 160


def summary_lines(account: Account, output: str | None) -> list[str]:
    """Return the end of a run in a few lines, the next command last."""
    wall = "" if account.wall_s is None else f" in {format_seconds(account.wall_s)}"
    speed = "" if account.effective_tok_s is None else f", {number(account.effective_tok_s)} tok/s"
    retried = f", {account.retried} tried more than once" if account.retried else ""
    simulated = " (simulated)" if account.simulated else ""
    lines = [f"{account.done} of {account.tasks} tasks done{wall}{speed}{retried}{simulated}"]
    if output is not None:
        lines.append(f"results: {output}")
    if account.failed:
        kinds = ", ".join(f"{kind} {count}x" for kind, count in account.errors[:3])
        lines.append(f"{account.failed} set aside" + (f" (errors met: {kinds})" if kinds else ""))
        lines.append(
            f"`skep swarm show {account.run}` says why, `skep swarm run --failed-of {account.run}` tries again"
        )
    elif account.state is SwarmRunState.DONE:
        lines.append(f"`skep swarm show {account.run}` has the account, `skep swarm report {account.run}` the picture")
    return lines


def one_line(text: str | None, most: int = LONGEST_ERROR) -> str:
    """What engines and models write may hold anything."""
    if text is None:
        return ""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


SHOWN_FAILURES = 20
SHOWN_AGENTS = 16


def print_runs(limit: int, *, as_json: bool) -> None:
    columns = "RUN|WHEN|KIND|STATE|>DONE|>SET ASIDE|>LEFT|MODEL|NAME|URL|NOTE"
    none_yet = f"{NONE_YET}; {MAKES_ONE}"
    print_list(stored_runs(limit), columns, _cells, run_document, as_json=as_json, none_yet=none_yet)


def run_document(run: SwarmRun) -> dict[str, Any]:
    counts = {"tasks": run.counts.total, **picked(run.counts, "done failed left")}
    output = run_options_from_json(run.config).output
    return {
        **picked(run, "id kind state created_at ended_at name model url"),
        **counts,
        **picked(run, "sessions simulated"),
        "output": output,
        **picked(run, "skep_version error"),
    }


def _cells(run: SwarmRun) -> list[str]:
    counts = [str(count) for count in (run.counts.done, run.counts.failed, run.counts.left)]
    told = [one_line(run.error), f"{run.sessions} sessions" if run.sessions > 1 else ""]
    remark = ", ".join(filter(None, [*told, "simulated" if run.simulated else ""]))
    names = [run.model or "–", one_line(run.name, 40), run.url]
    return [run.id, day_and_time(run.created_at), run.kind, run.state.value, *counts, *names, remark]


def show_run(name: str, price_kwh: float | None, *, as_json: bool) -> None:
    with opened() as store:
        swarm = SwarmStore(store)
        run = stored_run(swarm, name)
        account = account_of(swarm, run, now=time.time(), price_kwh=price_kwh)
        failures = swarm.results(run.id, ending=TaskEnding.FAILED)
        urls = [str(one.endpoint["url"]) for one in swarm.session_rows(run.id) if "url" in one.endpoint]
    if as_json:
        told = [{"id": r.task, "tries": r.tries, "kind": r.error_kind, "message": r.error} for r in failures]
        print_json({**run_document(run), "account": account_json(account), "failures": told})
        return
    _show_failures(run, failures)
    for title, text in figures(run, account, urls):
        print(f"{title:<10}  {text}")  # noqa: T201
    _show_agents(account)
    _show_replicas(account)
    _say_next(run)


def _show_failures(run: SwarmRun, failures: list[TaskResult]) -> None:
    if not failures:
        return
    rows = [[one_line(r.task, 48), r.tries, r.error_kind, one_line(r.error)] for r in failures]
    print_table("SET ASIDE|>TRIES|KIND|ERROR", rows[:SHOWN_FAILURES])
    if len(rows) > SHOWN_FAILURES:
        note(f"and {len(rows) - SHOWN_FAILURES} more: `skep swarm results {run.id} --failed` has them all")
    print()  # noqa: T201


def figures(run: SwarmRun, account: Account, urls: Sequence[str] = ()) -> list[tuple[str, str]]:
    """What is not known, and what did not happen, has no line."""
    counts = f"{account.done} done, {account.failed} set aside, {account.left} left of {account.tasks}"
    moved = f", at last {urls[-1]}" if urls and not same_place(urls[-1], run.url) else ""
    rows: list[tuple[str, str | None]] = [
        ("run", f"{run.id} ({run.state.value})" + (", simulated" if run.simulated else "")),
        ("tasks", f"{counts}; {account.retried} tried more than once" if account.retried else counts),
        ("from", one_line(run.name)),
        ("endpoint", f"{run.url}{moved}  {account.model or ''}".rstrip()),
        ("results", run_options_from_json(run.config).output),
        ("wall time", _wall(account)),
        ("tokens", _tokens(account)),
        ("effective", None if account.effective_tok_s is None else f"{number(account.effective_tok_s)} tok/s"),
        ("a task", _task_times(account)),
        ("agents", _agents(account)),
        ("errors", ", ".join(f"{kind} {count}x" for kind, count in account.errors) or None),
        ("cut off", f"{account.truncated} answers ended at their token limit" if account.truncated else None),
        ("energy", _energy(account)),
        ("now" if run.state is SwarmRunState.RUNNING else "ended with", one_line(run.error) or None),
    ]
    return [(name, text) for name, text in rows if text]


def same_place(one: str, other: str) -> bool:
    """Whether two addresses are of the same endpoint: a `/v1` at the end and the loopback's name make no difference."""
    return _place(one) == _place(other)


def _place(url: str) -> tuple[str, str, int | None, str]:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return "", url, None, ""
    port = port or {"http": 80, "https": 443}.get(parts.scheme)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return parts.scheme, "127.0.0.1" if host in ("localhost", "::1") else host, port, path


def _wall(account: Account) -> str | None:
    if account.wall_s is None:
        return None
    parts = [format_seconds(account.wall_s)]
    if account.sessions > 1:
        parts.append(f"in {account.sessions} sessions, {format_seconds(account.paused_s)} between them not counted")
    if account.down_s:
        parts.append(f"the endpoint down for {format_seconds(account.down_s)} of it")
    return ", ".join(parts)


def _tokens(account: Account) -> str | None:
    if account.output_tokens is None:
        return None
    read = f"{account.prompt_tokens:,} read, " if account.prompt_tokens is not None else ""
    wasted = f"; {account.wasted_output_tokens:,} more for nothing" if account.wasted_output_tokens else ""
    unknown = f"; {account.tokens_unknown} tasks came without a count" if account.tokens_unknown else ""
    return f"{read}{account.output_tokens:,} written{wasted}{unknown}"


def _task_times(account: Account) -> str | None:
    if account.task_s is None:
        return None
    longest = "" if account.task_max_s is None else f", {format_seconds(account.task_max_s)} the longest"
    first = "" if account.ttft_s is None else f"; first token after {format_seconds(account.ttft_s.p50)}"
    times = f"{format_seconds(account.task_s.p50)} in the middle, {format_seconds(account.task_s.p95)} at 95 %"
    return f"{times}{longest}{first}"


def _agents(account: Account) -> str | None:
    if account.agents_mean is None:
        return None
    queued = "" if account.queued_share is None else f", {100 * account.queued_share:.0f} % of their time in the queue"
    return f"{account.agents_mean:.1f} at work on average, {account.agents_max} at most{queued}"


def _energy(account: Account) -> str | None:
    if account.energy is None:
        return None
    energy, cost = account.energy.energy, account.energy.cost
    each = "" if energy.joules_per_token is None else f", {energy.joules_per_token:.2f} J a token"
    paid = "" if cost is None else f", costs {cost:.4f} at {account.energy.price_kwh:g} a kWh"
    return f"{account.energy.kwh:.4f} kWh, {energy.mean_w:.0f} W on average{each}{paid} ({energy.source})"


def _show_agents(account: Account) -> None:
    """Those that did least are the ones to look at: where they are too many, the first and the last."""
    agents = account.by_agent
    if not agents:
        return
    half = SHOWN_AGENTS // 2
    shown = agents if len(agents) <= SHOWN_AGENTS else (*agents[:half], *agents[-half:])
    rows = []
    for one in shown:
        busy = None if one.busy_share is None else f"{100 * one.busy_share:.0f} %"
        rows.append([one.agent, one.tasks, one.attempts, busy, number(one.output_tokens, 0)])
    print()  # noqa: T201
    print_table(">AGENT|>TASKS|>ATTEMPTS|>BUSY|>TOKENS", rows)
    if len(shown) < len(agents):
        note(f"{len(agents) - len(shown)} agents between them are left out: --json has them all")


def _show_replicas(account: Account) -> None:
    if all(one.replica is None for one in account.by_replica):
        return
    rows = []
    for one in account.by_replica:
        speeds = [None if one.ttft_s is None else format_seconds(one.ttft_s.p50), number(one.task_tok_s)]
        rows.append([one.replica, one.tasks, one.attempts, one.failed, number(one.output_tokens, 0), *speeds])
    print()  # noqa: T201
    print_table("REPLICA|>TASKS|>ATTEMPTS|>FAILED|>TOKENS|>TTFT|>TOK/S EACH", rows)


def _say_next(run: SwarmRun) -> None:
    if run.state in (SwarmRunState.STOPPED, SwarmRunState.CANCELLED):
        note(f"`skep swarm resume {run.id}` goes on with it")
    elif run.counts.failed:
        note(f"`skep swarm trace {run.id} TASK` tells all about one, `skep swarm run --failed-of {run.id}` tries again")


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


def trace_document(run_id: str, task: Task, result: TaskResult | None, attempts: list[Attempt]) -> dict[str, Any]:
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
    columns = ">ATTEMPT|WHY|OUTCOME|>AGENT|REPLICA|>TOOK|>QUEUED|>FIRST TOKEN|>TOKENS|ERROR"
    if attempts:
        print_table(columns, [_attempt_cells(one) for one in attempts])
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


def ended(result: TaskResult | None) -> list[str]:
    if result is None:
        return ["", "no result yet"]
    fault = f": {result.error_kind}: {one_line(result.error)}" if result.error_kind else ""
    cut = ", cut at its token limit" if result.finish_reason == "length" else ""
    head = f"{result.ending.value} after {result.tries} {'try' if result.tries == 1 else 'tries'}{cut}{fault}"
    return ["", head, *indented(result.answer or "")]


LOOK_S = 0.05
PROC = Path("/proc")


def cancel_run(name: str, wait: str, *, as_json: bool) -> None:
    """Told through the journal, where whoever works on it looks every few seconds; a command is woken as well."""
    wait_s = parse_seconds(wait)
    with journal(read_only=False) as swarm:
        run = swarm.run(name)
        lock = lock_path(user_paths(os.environ), run.id)
        if run.state is not SwarmRunState.DONE:
            swarm.set_cancelled(run.id, time.time())
            _await_end(lock, run.id, wait_s)
        ended = swarm.run(run.id)
    counts = f"{ended.counts.done} done, {ended.counts.failed} set aside, {ended.counts.left} left"
    if run.state is SwarmRunState.DONE:
        note(f"{run.id} is finished already: {counts}")
    else:
        note(f"{run.id} is cancelled: {counts}; `skep swarm resume {run.id}` would go on with it")
    if as_json:
        print_json(run_document(ended))


def is_command(pid: int) -> bool:
    """Return whether it is `skep swarm` and nothing else: a Ctrl-C would end an MCP server or a notebook as a whole."""
    try:
        words = [word.rpartition(b"/")[2] for word in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")]
    except OSError:
        return False
    return b"skep" in words and b"swarm" in words[words.index(b"skep") :]


def _await_end(lock: Path, run_id: str, wait_s: float) -> None:
    began, woken = time.monotonic(), False
    while (pid := lock_holder(lock)) is not None:
        if not woken and is_command(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGINT)
        woken = True
        if time.monotonic() - began > wait_s:
            hint = f"it has been told; `kill {pid}` ends it, and what is done is kept all the same"
            raise EngineError(f"process {pid} still works on `{run_id}` after {wait_s:g} s", hint=hint)
        time.sleep(LOOK_S)


NONE_YET = "there are no swarm runs yet"
MAKES_ONE = "`skep swarm run TASKS.jsonl` makes one"


def opened(*, read_only: bool = True) -> Store:
    return existing(NONE_YET, MAKES_ONE, read_only=read_only)


@contextmanager
def journal(*, read_only: bool = True) -> Iterator[SwarmStore]:
    with opened(read_only=read_only) as store:
        yield SwarmStore(store)


def stored_runs(limit: int | None = None) -> list[SwarmRun]:
    """Newest first; none where nothing was ever stored."""
    if not user_paths(os.environ).store.exists():
        return []
    with journal() as swarm:
        return [as_it_stands(user_paths(os.environ), run) for run in swarm.runs(limit)]


def stored_run(swarm: SwarmStore, name: str) -> SwarmRun:
    return as_it_stands(user_paths(os.environ), swarm.run(name))


def free_output(output: Path, source: Path | None, *, overwrite: bool) -> None:
    """Before anything runs: results can be written there, and no others are there already."""
    check_place(output)
    if source is not None and output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"--output `{output}` is the file with the tasks", hint="name another file with -o")
    writers = [run for run in stored_runs() if run_options_from_json(run.config).output == str(output)]
    if busy := next((run for run in writers if run.state is SwarmRunState.RUNNING), None):
        hint = "name another file with -o, or wait for it"
        raise UserError(f"`{busy.id}` is writing to `{output}` at this moment", hint=hint)
    if output.exists() and output.stat().st_size and not overwrite:
        goes_on = next((run for run in writers if run.state is not SwarmRunState.DONE), None)
        first = f"`skep swarm resume {goes_on.id}` goes on with it; " if goes_on else ""
        raise UserError(f"`{output}` is there already", hint=f"{first}name another file with -o, or add --overwrite")


def check_place(output: Path) -> None:
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else "lies in a folder that does not exist"
        raise UserError(f"--output `{output}` {what}", hint="name a file, such as results.jsonl, or `-` for stdout")
    if output.exists() and not output.is_file():
        raise UserError(f"--output `{output}` is no plain file", hint="name a file, or `-` for stdout")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise UserError(f"--output `{output}` cannot be written: no permission", hint="name another file with -o")
