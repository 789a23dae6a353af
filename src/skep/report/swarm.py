"""A swarm's run in tables and figures, each described once: for the terminal, the page and JSON;
and its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from markupsafe import Markup
from msgspec import to_builtins
from msgspec.structs import replace

from skep.report.columns import Column, Record, as_count, padded, print_records
from skep.report.liveview import MIDDLING_COLOUR, Line, Page, bar_cells, cleaned
from skep.report.swarm_gantt import gantt_element
from skep.report.terminal import day_and_time
from skep.stats.percentiles import Percentiles
from skep.swarm.ask_split import GoalSplit
from skep.swarm.progress import Lane, SwarmProgress, down_words, speed_words
from skep.swarm.records import (
    Attempt,
    SwarmRun,
    SwarmRunState,
    Task,
    TaskResult,
)
from skep.swarm.summary import Account, SwarmStory
from skep.units import (
    fact_list,
    format_seconds,
    milliseconds,
    number,
    one_line,
    printable,
    public_name,
    seconds,
)

ROWS_SHOWN = 30
_MOST_FAILURES = 200
short = partial(one_line, longest=160)


def _remark(run: SwarmRun) -> str:
    remarks = [short(run.error)]
    if run.sessions > 1:
        remarks.append(f"{run.sessions} sessions")
    if run.simulated:
        remarks.append("simulated")
    return ", ".join(filter(None, remarks))


def _error(attempt: Attempt) -> str:
    if attempt.error_kind:
        return short(f"{attempt.error_kind}: {attempt.error or ''}")
    return ""


RUNS: Sequence[Column[SwarmRun]] = (
    Column("id", "run", lambda run: run.id, right=False),
    Column("created_at", "when", lambda run: run.created_at, day_and_time, rank=3, right=False),
    Column("kind", "kind", lambda run: run.kind, rank=6, right=False),
    Column("state", "state", lambda run: run.state.value, right=False),
    Column("done", "done", lambda run: run.counts.done),
    Column("failed", "failed", lambda run: run.counts.failed),
    Column("left", "left", lambda run: run.counts.left),
    Column("model", "model", lambda run: run.model, rank=4, right=False),
    Column(
        "name", "name", lambda run: run.name, partial(one_line, longest=40), rank=1, right=False
    ),
    Column("url", "url", lambda run: run.url, rank=5, right=False),
    Column("remark", "note", _remark, rank=2, right=False),
)
FAILURES: Sequence[Column[TaskResult]] = (
    Column(
        "id", "failed task", lambda result: result.task, partial(one_line, longest=48), right=False
    ),
    Column("tries", "tries", lambda result: result.tries),
    Column("kind", "kind", lambda result: result.error_kind, right=False),
    Column("message", "error", lambda result: result.error, short, right=False, style="wide"),
)
_LAST_ANSWER = Column[TaskResult](
    "answer", "last answer", lambda result: result.answer, short, right=False, style="note"
)
ATTEMPTS: Sequence[Column[Attempt]] = (
    Column("number", "attempt", lambda attempt: attempt.number),
    Column("why", "why", lambda attempt: attempt.why.value, rank=1, right=False),
    Column("outcome", "outcome", lambda attempt: attempt.outcome.value, right=False),
    Column("replica", "replica", lambda attempt: attempt.replica, rank=2, right=False),
    Column("took_s", "took", lambda attempt: attempt.ended_at - attempt.started_at, seconds),
    Column("queued_ms", "queued", lambda attempt: attempt.queued_ms, milliseconds, rank=3),
    Column("output_tokens", "tokens", lambda attempt: attempt.output_tokens, as_count),
    Column("error", "error", _error, right=False),
)
Figures = list[tuple[str, str]]


def figures(account: Account) -> Figures:
    """Return the account in words. What is not known, and what did not happen, has no line."""
    tasks = f"{account.done} done, {account.failed} failed, {account.left} left of {account.tasks}"
    if account.retried:
        tasks += f"; {account.retried} tried more than once"
    attempts = ""
    if account.wasted:
        attempts = f"{account.attempts}, {account.wasted} of them without a result"
    agents = ""
    if account.agents_mean is not None:
        agents = _at_once(account)
    effective = ""
    if account.effective_tok_s is not None:
        effective = f"{number(account.effective_tok_s)} tok/s"
    lines = [
        ("tasks", tasks),
        ("attempts", attempts),
        ("errors", ", ".join(f"{kind} {count}x" for kind, count in account.errors)),
        ("cut off", cut_off_words(account)),
        ("wall time", _wall_words(account)),
        ("an answer", _spread(account.task_s)),
        ("first token", _spread(account.ttft_s)),
        ("agents", agents),
        ("tokens", _token_words(account)),
        ("effective", effective),
    ]
    return [(title, text) for title, text in lines if text]


def _wall_words(account: Account) -> str:
    parts = []
    if account.wall_s is not None:
        parts.append(seconds(account.wall_s))
    if account.sessions > 1:
        parts.append(f"in {account.sessions} sessions, the time between them not counted")
    if account.down_s:
        parts.append(f"endpoint down for {seconds(account.down_s)}")
    return ", ".join(parts)


def _token_words(account: Account) -> str:
    parts = []
    if account.prompt_tokens is not None:
        parts.append(f"{account.prompt_tokens:,} prompt")
    if account.output_tokens is not None:
        parts.append(f"{account.output_tokens:,} output")
    if account.wasted_output_tokens:
        parts.append(f"{account.wasted_output_tokens:,} more without a result")
    if account.tokens_unknown:
        parts.append(f"{account.tokens_unknown} tasks without a token count")
    return ", ".join(parts)


def cut_off_words(account: Account) -> str:
    if not account.truncated:
        return ""
    if account.truncated == 1:
        answers = "1 answer was"
    else:
        answers = f"{account.truncated} answers were"
    return f"{answers} cut off at the token limit"


def _spread(percentiles: Percentiles | None) -> str:
    if percentiles is None:
        return ""
    return f"median {seconds(percentiles.p50)}, p95 {seconds(percentiles.p95)}"


def _at_once(account: Account) -> str:
    return f"{number(account.agents_mean)} at work on average, at most {account.agents_max}"


def run_lines(story: SwarmStory) -> list[tuple[str, str]]:
    """Return all that is known of a run, each with its title, for the terminal."""
    run = story.run
    simulated = ", simulated" if run.simulated else ""
    lines = [
        ("run", f"{run.id} ({run.state.value}){simulated}"),
        ("from", short(run.name)),
        ("endpoint", f"{run.url}  {story.account.model or ''}".rstrip()),
        ("results", run.config.get("output")),
        *figures(story.account),
    ]
    is_running = run.state is SwarmRunState.RUNNING
    lines.append(("now" if is_running else "ended with", short(run.error)))
    return [(title, text) for title, text in lines if text]


def task_lines(task: Task) -> list[str]:
    """Return what a task asks, line by line.

    A message may be made of parts, some of them pictures.
    """
    lines = [f"task {short(task.id)}"]
    for message in task.messages:
        lines.append(f"  {message.get('role', '?')}:")
        lines += _indented(_content_text(message.get("content")))
    for name, value in to_builtins(task).items():
        if name not in ("id", "messages", "stage"):
            lines.append(f"  {name}: {short(str(value))}")
    return lines


def _content_text(content: Any) -> str:
    """Return the text of a message; of a part that has none, its type."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return str(content)
    parts = [part for part in content if isinstance(part, dict)]
    return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts)


def _indented(text: str) -> list[str]:
    """Return the lines of a text, without what would move the cursor: a model may have written
    it.
    """
    return [f"    {line}" for line in printable(text).splitlines()]


def result_lines(result: TaskResult | None) -> list[str]:
    """Return what came of a task, line by line."""
    if result is None:
        return ["no result yet"]
    tries = "1 try" if result.tries == 1 else f"{result.tries} tries"
    head = f"{result.ending.value} after {tries}"
    if result.finish_reason == "length":
        head += ", cut at its token limit"
    if result.error_kind:
        head += f": {result.error_kind}: {short(result.error)}"
    return [head, *_indented(result.answer or "")]


def split_lines(split: GoalSplit, *, merge: bool) -> list[str]:
    """Return how a goal was split, line by line."""
    sizes = split.sizes
    count = "1 task" if len(split.parts) == 1 else f"{len(split.parts):,} tasks"
    head = f"{count}, split by {'the model' if split.by_model else 'rule'}"
    if split.why:
        head += f" ({one_line(split.why, 300)})"
    lines = [head]
    for part in split.parts[:ROWS_SHOWN]:
        amount = f"{int(part.chars / sizes.chars_per_token):,} tokens"
        refs = [piece.ref for piece in part.pieces]
        if len(refs) > 1:
            amount = f"{refs[0]} and {len(refs) - 1} more, {amount}"
        elif refs:
            amount = f"{refs[0]}, {amount}"
        lines.append(f"  {one_line(part.id, 40)}: {one_line(part.objective, 70)}; {amount}")
    if len(split.parts) > ROWS_SHOWN:
        lines.append(f"  and {len(split.parts) - ROWS_SHOWN} more")
    prompts = int(sum(part.chars for part in split.parts) / sizes.chars_per_token)
    answers = "merged" if merge else "one after the other"
    max_output_tokens = len(split.parts) * sizes.answer_tokens
    lines.append(
        f"about {prompts:,} prompt tokens and at most {max_output_tokens:,} output tokens; "
        f"the answers: {answers}"
    )
    return lines


def end_lines(account: Account, output: str | None) -> list[str]:
    """Return the end of a run in a few lines, the next command last."""
    head = f"{account.done} of {account.tasks} tasks done"
    if account.wall_s is not None:
        head += f" in {seconds(account.wall_s)}"
    if account.effective_tok_s is not None:
        head += f", {number(account.effective_tok_s)} tok/s"
    if account.simulated:
        head += " (simulated)"
    if account.truncated:
        head += f"; {cut_off_words(account)}, see --max-tokens"
    lines = [head]
    if output is not None:
        lines.append(f"results: {output}")
    show = f"`skep swarm show {account.run}`"
    if account.failed:
        failed = f"{account.failed} failed"
        if account.errors:
            kinds = ", ".join(f"{kind} {count}x" for kind, count in account.errors[:3])
            failed += f" (errors met: {kinds})"
        lines.append(failed)
        lines.append(
            f"{show} shows why, `skep swarm run --failed-of {account.run}` runs them again"
        )
    elif account.state is SwarmRunState.DONE:
        lines.append(
            f"{show} shows the summary, `skep swarm report {account.run}` writes a report"
        )
    return lines


def headline(account: Account) -> str:
    """Return "50 tasks in 70 s", or as much of it as is known."""
    tasks_done = "1 task" if account.tasks == 1 else f"{as_count(account.tasks)} tasks"
    if account.done != account.tasks:
        tasks_done = f"{account.done} of {tasks_done}"
    if account.wall_s is None:
        return f"{tasks_done} done; the run has not started"
    title = f"{tasks_done} in {seconds(account.wall_s)}"
    if account.simulated:
        return f"{title}, simulated"
    return title


def run_title(account: Account) -> str:
    title = one_line(account.name, 140) or "Swarm run"
    if account.simulated:
        return f"{title} (simulated)"
    return title


def swarm_page(story: SwarmStory) -> str:
    from skep.report.page import render

    account = story.account
    run = story.run
    return render(
        "swarm_page.html",
        kind="a goal, split over files" if account.kind == "ask" else "a list of tasks",
        name="swarm",
        title=run_title(account),
        model=public_name(account.model) if account.model else "model unknown",
        run=run,
        body=swarm_main(story),
        footer=f"skep {run.skep_version} · run {account.run}",
    )


def swarm_main(story: SwarmStory) -> Markup:
    """Return everything below the title, without its frame."""
    from skep.report.page import render

    account = story.account
    run = story.run
    hidden = ("output", "ask")  # a page is made to be passed on
    settings = {
        key: value for key, value in run.config.items() if value is not None and key not in hidden
    }
    return render(
        "swarm_main.html",
        story=story,
        headline=headline(account),
        wall_note="one session" if account.sessions < 2 else f"in {account.sessions} sessions",
        at_once=_at_once(account),
        drawn=gantt_element(story),
        failures=(*FAILURES, _LAST_ANSWER),
        most=_MOST_FAILURES,
        one_line=one_line,
        groups=[
            ("Account", figures(account)),
            ("Asked for", [("run", run.id), *fact_list(settings)]),
        ],
    )


SHOWN_FAILURES = 20
NEWS_SHOWN = 3
MOST_BAR_CHARS = 40
LANE_BAR = 24
LONGEST_TASK = 32


def print_capitals(columns: Sequence[Column[Record]], records: Sequence[Record]) -> None:
    print_records([replace(column, title=column.title.upper()) for column in columns], records)


def frame(
    progress: SwarmProgress, page: Page, title: str, deadline_s: float | None = None
) -> list[Line]:
    """Return the view of a running swarm. Agents that find no place on the page are counted."""
    lines = [[(title, "bold")], *_totals(progress, page)]
    if progress.down_s is not None:
        lines += page.wrapped(down_words(progress, deadline_s), "bold red")
    news = [
        line
        for text in progress.last[-NEWS_SHOWN:]
        for line in page.wrapped(text, MIDDLING_COLOUR)[:2]
    ]
    lanes = sorted(progress.lanes, key=lambda lane: lane.agent)
    visible = lanes
    if page.height is not None:
        room = page.height - len(lines) - len(news) - 3
        if len(lanes) > room:
            visible = lanes[: max(0, room - 1)]
    if visible:
        lines += [[], *_lanes(visible, page)]
    if len(visible) < len(lanes):
        lines.append(
            [(f"{len(lanes) - len(visible)} more at work: a taller window shows them", "dim")]
        )
    if news:
        lines += [[], *news]
    return lines


def _totals(progress: SwarmProgress, page: Page) -> list[Line]:
    open_tasks = progress.total - progress.done - progress.failed
    counts = (
        f"{progress.done:,} done, {progress.failed:,} failed, "
        f"{open_tasks:,} left of {progress.total:,}"
    )
    wide = max(10, min(MOST_BAR_CHARS, page.width - len(counts) - 4))
    cells = bar_cells((progress.done, progress.failed, open_tasks), progress.total, wide)
    looks = (("━", "green"), ("╳", "bold red"), ("─", "dim"))
    bar = [(sign * count, style) for (sign, style), count in zip(looks, cells, strict=True)]
    speed = f"{speed_words(progress)}, {progress.output_tokens:,} tokens"
    if progress.retried:
        speed += f", {progress.retried:,} tried again"
    time = f"{format_seconds(progress.elapsed_s)} so far"
    if progress.left_s is not None:
        time += f", about {format_seconds(progress.left_s)} left"
    agents = f"{progress.in_flight} at work, {progress.limit} allowed"
    if progress.limit_why:
        agents += f": {progress.limit_why}"
    return [
        [*bar, (f"  {counts}", "")],
        [("speed   ", "bold"), (speed, "")],
        [("time    ", "bold"), (time, "")],
        [("agents  ", "bold"), (agents, "")],
    ]


def _lanes(lanes: list[Lane], page: Page) -> list[Line]:
    names = min(LONGEST_TASK, max(len(lane.task) for lane in lanes), max(8, page.width - 40))
    longest_s = max(1.0, *(lane.since_s for lane in lanes))
    room = max(4, min(LANE_BAR, page.width - names - 28))
    rows: list[Line] = [[(f"AGENT  {'TASK':<{max(4, names)}}  {'FOR':>11}", "bold")]]
    for lane in lanes:
        bar = "█" * max(1, round(room * lane.since_s / longest_s))
        name = padded(cleaned(lane.task), max(4, names))
        again = f"  try {lane.number}" if lane.number > 1 else ""
        style = "green" if lane.reads else "dim"  # grey until its first token
        rows.append(
            [
                (f"{lane.agent:>5}  {name}  {format_seconds(lane.since_s):>11}  ", ""),
                (bar, style),
                (again, ""),
            ]
        )
    return rows
