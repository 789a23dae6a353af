"""The tables of a run's page: what was set aside, what was slow, agents, replicas, sessions. Pure.

Ids, errors and answers come from files and models: they are shown as text and nothing else.
"""

from __future__ import annotations

from skep.report.figures import UNKNOWN, moment, number, seconds, shortened
from skep.report.markup import Markup, join, table, tag, text
from skep.report.swarm_story import Account, SwarmStory, task_seconds
from skep.report.swarm_words import share
from skep.tasks import Attempt, Ending, Outcome, Result

_MOST_FAILURES = 200
_MOST_SLOW = 15
_MOST_AGENTS = 128
_SLOW_FROM = 5  # tasks: with fewer, the picture says it all


def failure_table(story: SwarmStory) -> Markup | None:
    failed = [one for one in story.results if one.ending is Ending.FAILED]
    if not failed:
        return None
    head = _head("task", "tries", "kind of error", "error", "last answer")
    rows = [_failure(one) for one in failed[:_MOST_FAILURES]]
    left_out = len(failed) - len(rows)
    return join([table("Tasks that were set aside", [head], rows), _left_out(left_out, "set aside")])


def error_table(account: Account) -> Markup | None:
    """Attempts that failed or were rejected, by kind, whether or not another one was done in the end."""
    if not account.errors:
        return None
    head = _head("kind of error", "attempts")
    rows = [_row(tag("code", text(kind)), _cell(number(many, digits=0))) for kind, many in account.errors]
    return table("Attempts that failed, by kind", [head], rows)


def slow_table(story: SwarmStory) -> Markup | None:
    """By the time from the first attempt's start to the result, pauses between sessions left out."""
    done = [one for one in story.results if one.ending is Ending.DONE]
    if len(done) < _SLOW_FROM:
        return None
    timed = [(task_seconds(one, story.spans), one) for one in done]
    slowest = sorted(timed, key=lambda one: one[0], reverse=True)[:_MOST_SLOW]
    counted = {one.task: one for one in story.attempts if one.outcome is Outcome.DONE}
    head = _head("task", "took", "tries", "queued", "first token", "tokens in", "tokens out", "replica", "answer")
    rows = [_slow(one, lasted, counted.get(one.task)) for lasted, one in slowest]
    return table("The slowest tasks", [head], rows)


def agent_table(account: Account) -> Markup | None:
    if not account.by_agent:
        return None
    head = _head("agent", "tasks", "attempts", "busy", "of the time", "tokens out")
    rows = [
        _row(
            text(str(one.agent)),
            _cell(number(one.tasks, digits=0)),
            _cell(number(one.attempts, digits=0)),
            _cell(seconds(one.busy_s)),
            _cell(share(one.busy_share)),
            _cell(number(one.output_tokens, digits=0)),
        )
        for one in account.by_agent[:_MOST_AGENTS]
    ]
    left_out = len(account.by_agent) - len(rows)
    return join([table("By agent", [head], rows), _left_out(left_out, "agents")])


def replica_table(account: Account) -> Markup | None:
    if not any(one.replica for one in account.by_replica):
        return None
    head = _head("replica", "tasks", "attempts", "failed", "tokens out", "TTFT p50", "TTFT p95", "tok/s of one task")
    rows = [
        _row(
            text(shortened(one.replica or "not told", 80)),
            _cell(number(one.tasks, digits=0)),
            _cell(number(one.attempts, digits=0)),
            _cell(number(one.failed, digits=0), "bad" if one.failed else None),
            _cell(number(one.output_tokens, digits=0)),
            _cell(seconds(one.ttft_s.p50 if one.ttft_s else None)),
            _cell(seconds(one.ttft_s.p95 if one.ttft_s else None)),
            _cell(number(one.task_tok_s)),
        )
        for one in account.by_replica
    ]
    return table("By replica", [head], rows)


def session_table(story: SwarmStory) -> Markup | None:
    """Where there were several, or the only one did not end well."""
    if len(story.spans) < 2 and not any(span.error for span in story.spans):
        return None
    head = _head("session", "began", "worked", "after a pause of", "ended", "why")
    rows = [
        _row(
            text(str(span.session)),
            _cell(moment(span.started_at), "left"),
            _cell(seconds(span.seconds)),
            _cell(seconds(span.before_s)),
            _cell("still at work" if span.alive else span.outcome or "vanished", "left"),
            _cell(shortened(span.error or "", 300), "wide"),
        )
        for span in story.spans
    ]
    return table("Sessions", [head], rows)


def _failure(result: Result) -> Markup:
    return _row(
        text(shortened(result.task, 80)),
        _cell(number(result.tries, digits=0)),
        tag("td", tag("code", text(result.error_kind or UNKNOWN)), class_="left"),
        _cell(shortened(result.error or UNKNOWN, 400), "wide"),
        _cell(shortened(_one_line(result.answer) or UNKNOWN, 160), "note"),
    )


def _slow(result: Result, lasted: float, attempt: Attempt | None) -> Markup:
    queued = attempt.queued_ms / 1000 if attempt and attempt.queued_ms is not None else None
    first = attempt.first_token_at - attempt.started_at if attempt and attempt.first_token_at is not None else None
    return _row(
        text(shortened(result.task, 60)),
        _cell(seconds(lasted)),
        _cell(number(result.tries, digits=0)),
        _cell(seconds(queued)),
        _cell(seconds(first)),
        _cell(number(result.prompt_tokens, digits=0)),
        _cell(number(result.output_tokens, digits=0)),
        _cell(shortened(result.replica or UNKNOWN, 40), "left"),
        _cell(shortened(_one_line(result.answer) or UNKNOWN, 100), "note"),
    )


def _one_line(answer: str | None) -> str:
    return " ".join((answer or "")[:2000].split())


def _head(*names: str) -> Markup:
    return tag("tr", *(tag("th", text(name), scope="col", class_=_HEADS.get(name)) for name in names))


_HEADS = dict.fromkeys(("kind of error", "error", "last answer", "replica", "answer", "began", "ended", "why"), "left")


def _row(name: Markup, *cells: Markup) -> Markup:
    return tag("tr", tag("th", name, scope="row"), *cells)


def _cell(value: str, style: str | None = None) -> Markup:
    return tag("td", text(value), class_=style)


def _left_out(many: int, what: str) -> Markup:
    if many <= 0:
        return join([])
    return tag("p", text(f"{number(many, digits=0)} further {what} are left out here."), class_="below")
