"""A swarm's run in tables and figures, each described once: for the terminal, the page and JSON;
and its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup
from msgspec import to_builtins
from msgspec.structs import replace

from skep.report.columns import Column, Record, as_count, padded, print_records
from skep.report.liveview import BETWEEN, Line, Page, bar_cells, cleaned
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
    sessions = f"{run.sessions} sessions" if run.sessions > 1 else ""
    return ", ".join(
        filter(None, (short(run.error), sessions, "simulated" if run.simulated else ""))
    )


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
    counts = (
        f"{account.done} done, {account.failed} failed, {account.left} left of {account.tasks}"
    )
    if account.wall_s is not None:
        wall = [seconds(account.wall_s)]
    else:
        wall = []
    if account.sessions > 1:
        wall.append(f"in {account.sessions} sessions, the time between them not counted")
    if account.down_s:
        wall.append(f"endpoint down for {seconds(account.down_s)}")
    if account.prompt_tokens is not None:
        tokens = [f"{account.prompt_tokens:,} prompt"]
    else:
        tokens = []
    tokens += [f"{account.output_tokens:,} output"] if account.output_tokens is not None else []
    if account.wasted_output_tokens:
        tokens.append(f"{account.wasted_output_tokens:,} more without a result")
    if account.tokens_unknown:
        tokens.append(f"{account.tokens_unknown} tasks without a token count")
    lines = [
        (
            "tasks",
            f"{counts}; {account.retried} tried more than once" if account.retried else counts,
        ),
        (
            "attempts",
            f"{account.attempts}, {account.wasted} of them without a result"
            if account.wasted
            else "",
        ),
        ("errors", ", ".join(f"{kind} {count}x" for kind, count in account.errors)),
        ("cut off", cut_off_words(account)),
        ("wall time", ", ".join(wall)),
        ("an answer", _spread(account.task_s)),
        ("first token", _spread(account.ttft_s)),
        ("agents", "" if account.agents_mean is None else _at_once(account)),
        ("tokens", ", ".join(tokens)),
        (
            "effective",
            "" if account.effective_tok_s is None else f"{number(account.effective_tok_s)} tok/s",
        ),
    ]
    return [(title, text) for title, text in lines if text]


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
    lines = [
        ("run", f"{run.id} ({run.state.value})" + (", simulated" if run.simulated else "")),
        ("from", short(run.name)),
        ("endpoint", f"{run.url}  {story.account.model or ''}".rstrip()),
        ("results", run.config.get("output")),
        *figures(story.account),
        ("now" if run.state is SwarmRunState.RUNNING else "ended with", short(run.error)),
    ]
    return [(title, text) for title, text in lines if text]


def task_lines(task: Task) -> list[str]:
    """Return what a task asks, line by line.

    A message may be made of parts, some of them pictures.
    """
    lines = [f"task {short(task.id)}"]
    for message in task.messages:
        content = message.get("content")
        if isinstance(content, list):
            parts = [
                part.get("text") or f"[{part.get('type')}]"
                for part in content
                if isinstance(part, dict)
            ]
            content = "\n".join(map(str, parts))
        lines += [
            f"  {message.get('role', '?')}:",
            *_indented("" if content is None else str(content)),
        ]
    wants = [
        option
        for option in to_builtins(task).items()
        if option[0] not in ("id", "messages", "stage")
    ]
    return [*lines, *(f"  {name}: {short(str(value))}" for name, value in wants)]


def _indented(text: str) -> list[str]:
    """What a model wrote must not move the cursor."""
    return [f"    {line}" for line in printable(text).splitlines()]


def result_lines(result: TaskResult | None) -> list[str]:
    """Return what came of a task, line by line."""
    if result is None:
        return ["no result yet"]
    if result.error_kind:
        fault = f": {result.error_kind}: {short(result.error)}"
    else:
        fault = ""
    if result.finish_reason == "length":
        cut = ", cut at its token limit"
    else:
        cut = ""
    head = (
        f"{result.ending.value} after {result.tries} "
        f"{'try' if result.tries == 1 else 'tries'}{cut}{fault}"
    )
    return [head, *_indented(result.answer or "")]


def split_lines(split: GoalSplit, *, merge: bool) -> list[str]:
    """Return how a goal was split, line by line."""
    sizes = split.sizes
    if len(split.parts) == 1:
        count = "1 task"
    else:
        count = f"{len(split.parts):,} tasks"
    who = "the model" if split.by_model else "rule"
    lines = [f"{count}, split by {who}" + (f" ({one_line(split.why, 300)})" if split.why else "")]
    for part in split.parts[:ROWS_SHOWN]:
        refs = [piece.ref for piece in part.pieces]
        further = f" and {len(refs) - 1} more" if len(refs) > 1 else ""
        tokens = int(part.chars / sizes.chars_per_token)
        about = f"{refs[0]}{further}, " if refs else ""
        lines.append(
            f"  {one_line(part.id, 40)}: {one_line(part.objective, 70)}; {about}{tokens:,} tokens"
        )
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
    if account.wall_s is None:
        wall = ""
    else:
        wall = f" in {seconds(account.wall_s)}"
    if account.effective_tok_s is None:
        speed = ""
    else:
        speed = f", {number(account.effective_tok_s)} tok/s"
    simulated = " (simulated)" if account.simulated else ""
    if account.truncated:
        cut_off = f"; {cut_off_words(account)}, see --max-tokens"
    else:
        cut_off = ""
    lines = [f"{account.done} of {account.tasks} tasks done{wall}{speed}{simulated}{cut_off}"]
    if output is not None:
        lines.append(f"results: {output}")
    show = f"`skep swarm show {account.run}`"
    if account.failed:
        kinds = ", ".join(f"{kind} {count}x" for kind, count in account.errors[:3])
        lines.append(f"{account.failed} failed" + (f" (errors met: {kinds})" if kinds else ""))
        lines.append(
            f"{show} shows why, `skep swarm run --failed-of {account.run}` runs them again"
        )
    elif account.state is SwarmRunState.DONE:
        lines.append(
            f"{show} shows the summary, `skep swarm report {account.run}` writes a report"
        )
    return lines


def headline(account: Account) -> str:
    """ "50 tasks in 70 s"; as much of it as is known."""
    tasks = f"{as_count(account.tasks)} task{'' if account.tasks == 1 else 's'}"
    if account.done == account.tasks:
        tasks_done = tasks
    else:
        tasks_done = f"{account.done} of {tasks}"
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
BAR = 40
LANE_BAR = 24
LONGEST_TASK = 32


def print_capitals(columns: Sequence[Column[Record]], records: Sequence[Record]) -> None:
    print_records([replace(column, title=column.title.upper()) for column in columns], records)


def frame(
    progress: SwarmProgress, page: Page, title: str, deadline_s: float | None = None
) -> list[Line]:
    """Agents that find no place on the page are counted."""
    lines = [[(title, "bold")], *_totals(progress, page)]
    lines += (
        page.wrapped(down_words(progress, deadline_s), "bold red")
        if progress.down_s is not None
        else []
    )
    news = [
        line for text in progress.last[-NEWS_SHOWN:] for line in page.wrapped(text, BETWEEN)[:2]
    ]
    if page.height is None:
        room = None
    else:
        room = page.height - len(lines) - len(news) - 3
    lanes = sorted(progress.lanes, key=lambda lane: lane.agent)
    if room is None or len(lanes) <= room:
        visible = lanes
    else:
        visible = lanes[: max(0, room - 1)]
    if visible:
        lines += [[], *_lanes(visible, page)]
    if len(visible) < len(lanes):
        lines.append(
            [(f"{len(lanes) - len(visible)} more at work: a taller window shows them", "dim")]
        )
    return [*lines, [], *news] if news else lines


def _totals(progress: SwarmProgress, page: Page) -> list[Line]:
    open_tasks = progress.total - progress.done - progress.failed
    counts = (
        f"{progress.done:,} done, {progress.failed:,} failed, "
        f"{open_tasks:,} left of {progress.total:,}"
    )
    wide = max(10, min(BAR, page.width - len(counts) - 4))
    cells = bar_cells((progress.done, progress.failed, open_tasks), progress.total, wide)
    bar: Line = [("━╳─"[i] * cells[i], ("green", "bold red", "dim")[i]) for i in range(3)]
    if progress.retried:
        retried = f", {progress.retried:,} tried again"
    else:
        retried = ""
    speed = f"{speed_words(progress)}, {progress.output_tokens:,} tokens{retried}"
    if progress.left_s is None:
        eta = ""
    else:
        eta = f", about {format_seconds(progress.left_s)} left"
    why = f": {progress.limit_why}" if progress.limit_why else ""
    return [
        [*bar, (f"  {counts}", "")],
        [("speed   ", "bold"), (speed, "")],
        [("time    ", "bold"), (f"{format_seconds(progress.elapsed_s)} so far{eta}", "")],
        [
            ("agents  ", "bold"),
            (f"{progress.in_flight} at work, {progress.limit} allowed{why}", ""),
        ],
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
