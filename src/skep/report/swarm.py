"""The report of a swarm's run: one page that needs no other file and no network, and its picture alone.

Pure: takes a story, gives text. The caller writes the file. What a run did not finish, simulate or measure is said on
the page, next to the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skep.report.markup import (
    Markup,
    banner,
    card,
    definitions,
    join,
    optional_section,
    section,
    tag,
    term_list,
    text,
    text_table,
    trusted,
    wide_figure,
)
from skep.report.style import document, mark
from skep.report.swarm_gantt import gantt, gantt_caption, gantt_element
from skep.stats.percentiles import Percentiles
from skep.swarm.records import Attempt, AttemptOutcome, SwarmRunState, TaskEnding, TaskResult
from skep.swarm.summary import Account, SwarmStory, task_seconds
from skep.units import UNKNOWN, fact_list, moment, number, percent, public_name, public_url, seconds, shortened


def headline(account: Account) -> str:
    """ "50 tasks in 70 s"; as much of it as is known."""
    what = _tasks(account.tasks) if account.done == account.tasks else f"{account.done} of {_tasks(account.tasks)}"
    if account.wall_s is None:
        return f"{what} done; no work has begun"
    told = f"{what} in {seconds(account.wall_s)}"
    return f"{told}, simulated" if account.simulated else told


def outcome_words(account: Account) -> str:
    """Return what became of those that are not done."""
    parts = []
    if account.failed:
        parts.append(f"{_tasks(account.failed)} set aside with {'its' if account.failed == 1 else 'their'} error")
    if account.left:
        parts.append(f"{_tasks(account.left)} left")
    if account.retried:
        parts.append(f"{_tasks(account.retried)} tried more than once")
    return ", ".join(parts)


def share(value: float | None) -> str:
    return percent(None if value is None else 100 * value)


def _tasks(many: int) -> str:
    return f"{number(many, digits=0)} task{'' if many == 1 else 's'}"


_MOST_FAILURES = 200
_MOST_SLOW = 15
_MOST_AGENTS = 128
_SLOW_FROM = 5  # tasks: with fewer, the picture says it all


def failure_table(story: SwarmStory) -> Markup | None:
    failed = [one for one in story.results if one.ending is TaskEnding.FAILED]
    if not failed:
        return None
    columns = ("task", "tries", ("kind of error", "left"), ("error", "wide"), ("last answer", "note"))
    shown = failed[:_MOST_FAILURES]
    rows = [
        (
            shortened(one.task, 80),
            number(one.tries, digits=0),
            one.error_kind or UNKNOWN,
            shortened(one.error or UNKNOWN, 400),
            shortened(_one_line(one.answer) or UNKNOWN, 160),
        )
        for one in shown
    ]
    made = text_table("Tasks that were set aside", columns, rows, inner={"kind of error": "code"})
    return join([made, _left_out(len(failed) - len(shown), "set aside")])


def error_table(account: Account) -> Markup | None:
    """Attempts that failed or were rejected, by kind, whether or not another one was done in the end."""
    if not account.errors:
        return None
    rows = [(kind, number(many, digits=0)) for kind, many in account.errors]
    columns = (("kind of error", "left"), "attempts")
    return text_table("Attempts that failed, by kind", columns, rows, inner={"kind of error": "code"})


def slow_table(story: SwarmStory) -> Markup | None:
    """By the time from the first attempt's start to the result, pauses between sessions left out."""
    done = [one for one in story.results if one.ending is TaskEnding.DONE]
    if len(done) < _SLOW_FROM:
        return None
    timed = [(task_seconds(one, story.spans), one) for one in done]
    slowest = sorted(timed, key=lambda one: one[0], reverse=True)[:_MOST_SLOW]
    counted = {one.task: one for one in story.attempts if one.outcome is AttemptOutcome.DONE}
    columns = ("task", "took", "tries", "queued", "first token", "tokens in", "tokens out", ("replica", "left"),
               ("answer", "note"))  # fmt: skip
    return text_table(
        "The slowest tasks", columns, [_slow(one, lasted, counted.get(one.task)) for lasted, one in slowest]
    )


def agent_table(account: Account) -> Markup | None:
    if not account.by_agent:
        return None
    shown = account.by_agent[:_MOST_AGENTS]
    rows = [
        (
            one.agent,
            number(one.tasks, digits=0),
            number(one.attempts, digits=0),
            seconds(one.busy_s),
            share(one.busy_share),
            number(one.output_tokens, digits=0),
        )
        for one in shown
    ]
    made = text_table("By agent", ("agent", "tasks", "attempts", "busy", "of the time", "tokens out"), rows)
    return join([made, _left_out(len(account.by_agent) - len(shown), "agents")])


def replica_table(account: Account) -> Markup | None:
    if not any(one.replica for one in account.by_replica):
        return None
    columns = ("replica", "tasks", "attempts", "failed", "tokens out", "TTFT p50", "TTFT p95", "tok/s of one task")
    rows = [
        (
            shortened(one.replica or "not told", 80),
            number(one.tasks, digits=0),
            number(one.attempts, digits=0),
            (number(one.failed, digits=0), "bad" if one.failed else None),
            number(one.output_tokens, digits=0),
            seconds(one.ttft_s.p50 if one.ttft_s else None),
            seconds(one.ttft_s.p95 if one.ttft_s else None),
            number(one.task_tok_s),
        )
        for one in account.by_replica
    ]
    return text_table("By replica", columns, rows)


def session_table(story: SwarmStory) -> Markup | None:
    """Where there were several, or the only one did not end well."""
    if len(story.spans) < 2 and not any(span.error for span in story.spans):
        return None
    columns = ("session", ("began", "left"), "worked", "after a pause of", ("ended", "left"), ("why", "wide"))
    rows = [
        (
            span.session,
            moment(span.started_at),
            seconds(span.seconds),
            seconds(span.before_s),
            "still at work" if span.alive else span.outcome or "vanished",
            shortened(span.error or "", 300),
        )
        for span in story.spans
    ]
    return text_table("Sessions", columns, rows)


def _slow(result: TaskResult, lasted: float, attempt: Attempt | None) -> tuple[str, ...]:
    queued = attempt.queued_ms / 1000 if attempt and attempt.queued_ms is not None else None
    first = attempt.first_token_at - attempt.started_at if attempt and attempt.first_token_at is not None else None
    return (
        shortened(result.task, 60),
        seconds(lasted),
        number(result.tries, digits=0),
        seconds(queued),
        seconds(first),
        number(result.prompt_tokens, digits=0),
        number(result.output_tokens, digits=0),
        shortened(result.replica or UNKNOWN, 40),
        shortened(_one_line(result.answer) or UNKNOWN, 100),
    )


def _one_line(answer: str | None) -> str:
    return " ".join((answer or "")[:2000].split())


def _left_out(many: int, what: str) -> Markup:
    if many <= 0:
        return join([])
    return tag("p", text(f"{number(many, digits=0)} further {what} are left out here."), class_="below")


__all__ = ["gantt", "swarm_page"]

_KINDS = {"map": "a list of tasks", "ask": "a goal, split among agents"}
_SHORT_GOAL = 140


def swarm_page(story: SwarmStory) -> str:
    account = story.account
    title = _heading(account)
    header = tag(
        "header",
        mark(_KINDS.get(account.kind, "swarm run")),
        tag("h1", text(title)),
        tag("p", text(_where(story)), class_="where"),
        *_banners(account, story),
        tag("p", text(f"{headline(account)}."), class_="lead"),
    )
    main = tag(
        "main",
        _cards(account),
        optional_section("picture", "Agent by agent", _picture(story)),
        optional_section("failures", "Set aside", failure_table(story)),
        section("figures", "The account", _figures(story)),
        optional_section("errors", "What went wrong on the way", error_table(account)),
        optional_section("slow", "The slowest", slow_table(story)),
        optional_section("replicas", "By replica", replica_table(account)),
        optional_section("agents", "By agent", agent_table(account)),
        optional_section("sessions", "Sessions", session_table(story)),
        section("how", "How each figure was made", term_list("swarm")),
    )
    footer = tag("footer", text(f"skep {story.run.skep_version} · run {account.run}"))
    return document(f"{title}: skep swarm", header, main, footer)


def _heading(account: Account) -> str:
    name = shortened(" ".join(account.name.split()), _SHORT_GOAL) or "Swarm run"
    return f"{name} (simulated)" if account.simulated else name


def _where(story: SwarmStory) -> str:
    model = public_name(story.account.model) if story.account.model else "model not told"
    return f"{model} · {public_url(story.run.url)} · {moment(story.run.created_at)}"


def _banners(account: Account, story: SwarmStory) -> list[Markup]:
    banners = []
    if account.state is not SwarmRunState.DONE:
        why = f" The last session ended with: {shortened(story.run.error, 300)}" if story.run.error else ""
        told = f"This run is {account.state.value}; {account.left} of {account.tasks} tasks have no result.{why}"
        banners.append(banner("incomplete", "Incomplete", told))
    if account.failed:
        told = f"{account.failed} of {account.tasks} tasks were set aside after all their tries; they are listed below."
        banners.append(banner("limited", "Set aside", told))
    if account.simulated:
        told = "No model ran. Speed and answers are a prediction, served in real time over the real protocol."
        banners.append(banner("simulated", "Simulated", told))
    return banners


def _cards(account: Account) -> Markup:
    done = f"{number(account.done, digits=0)} of {number(account.tasks, digits=0)}"
    return tag(
        "dl",
        card(seconds(account.wall_s), "Wall time", _wall_note(account)),
        card(number(account.effective_tok_s), "Effective tok/s", f"{_at_once(account)} at once"),
        card(done, "Tasks done", outcome_words(account) or "each at the first try"),
        class_="cards",
    )


def _wall_note(account: Account) -> str:
    parts = [f"{account.sessions} session{'' if account.sessions == 1 else 's'}"]
    if account.paused_s >= 1 and account.sessions > 1:
        parts.append(f"{seconds(account.paused_s)} of pauses not counted")
    if account.down_s >= 1:
        parts.append(f"{seconds(account.down_s)} of it the endpoint was down")
    return ", ".join(parts)


def _at_once(account: Account) -> str:
    mean = number(account.agents_mean) if account.agents_mean is not None else UNKNOWN
    return f"{mean} agents on average, {account.agents_max} at most"


def _picture(story: SwarmStory) -> Markup | None:
    drawn = gantt_element(story)
    if drawn is None:
        return None
    return wide_figure(trusted(drawn), "Every attempt", gantt_caption(story))


def _figures(story: SwarmStory) -> Markup:
    account = story.account
    groups = [("Work", _work(story)), ("Time", _time(account)), ("Tokens", _tokens(account))]
    energy = _energy(account)
    if energy:
        groups.append(("Energy", energy))
    groups.append(("Asked for", [("run", account.run), *fact_list(_shown(story.run.config))]))
    return tag("div", *(definitions(title, facts) for title, facts in groups), class_="columns")


def _work(story: SwarmStory) -> list[tuple[str, str]]:
    account = story.account
    facts = [
        ("tasks", number(account.tasks, digits=0)),
        ("done", number(account.done, digits=0)),
        ("set aside", number(account.failed, digits=0)),
        ("left", number(account.left, digits=0)),
        ("tried more than once", number(account.retried, digits=0)),
        ("attempts", f"{number(account.attempts, digits=0)}, {number(account.wasted, digits=0)} without a result"),
        ("cut at the limit", f"{number(account.truncated, digits=0)} answers"),
        ("state", account.state.value),
    ]
    if story.stages:
        facts.append(("stages", ", ".join(f"{stage}: {many} tasks" for stage, many in story.stages)))
    return facts


def _time(account: Account) -> list[tuple[str, str]]:
    return [
        ("wall", seconds(account.wall_s)),
        ("a task", f"{_pair(account.task_s)}, {seconds(account.task_max_s)} at most"),
        ("first token", _pair(account.ttft_s)),
        ("agents at once", _at_once(account)),
        ("queued", f"{share(account.queued_share)} of the agents' time"),
        ("endpoint down", seconds(account.down_s)),
        ("pauses", seconds(account.paused_s)),
    ]


def _pair(found: Percentiles | None) -> str:
    return f"{seconds(found.p50)} p50, {seconds(found.p95)} p95" if found else UNKNOWN


def _tokens(account: Account) -> list[tuple[str, str]]:
    facts = [
        ("in", number(account.prompt_tokens, digits=0)),
        ("out", number(account.output_tokens, digits=0)),
        ("out, without a result", number(account.wasted_output_tokens, digits=0)),
        ("effective", f"{number(account.effective_tok_s)} tok/s"),
    ]
    if account.tokens_unknown:
        facts.append(("not told", f"{number(account.tokens_unknown, digits=0)} answers came without their tokens"))
    return facts


def _energy(account: Account) -> list[tuple[str, str]]:
    told = account.energy
    if told is None:
        return []
    energy = told.energy
    facts = [
        ("GPUs", f"{number(energy.joules)} J, {told.kwh:.4g} kWh"),
        ("J per output token", number(energy.joules_per_token)),
        ("power", f"{number(energy.mean_w, digits=0)} W on average, {number(energy.max_w, digits=0)} W at most"),
        ("measured by", energy.source),
    ]
    if energy.throttled:
        facts.append(("throttled", ", ".join(energy.throttled)))
    if told.cost is not None:
        facts.append(("cost", f"{told.cost:.4g} at {told.price_kwh:g}/kWh"))
    return facts


def _shown(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is unset, and without the output's path: a page is made to be passed on."""
    return {key: value for key, value in config.items() if value is not None and key not in ("output", "ask")}
