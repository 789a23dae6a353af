"""The account of a run, derived from the journal's rows alone. Knows no clock: `now` is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.stats.percentiles import Percentiles, percentiles
from skep.swarm.records import (
    Attempt,
    AttemptOutcome,
    SwarmRun,
    SwarmRunState,
    TaskEnding,
    TaskResult,
)
from skep.swarm.store import SwarmSession, SwarmStore


class SessionSpan(msgspec.Struct, frozen=True):
    """One session, as far as it worked on the tasks."""

    session: int
    started_at: float
    ended_at: float
    outcome: str | None  # None: it still works, or its process vanished
    alive: bool = False
    error: str | None = None

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended_at - self.started_at)


class Account(msgspec.Struct, frozen=True):
    """One run in figures.

    Tokens are those that the endpoint counted: `tokens_unknown` tasks ended without a count.
    """

    run: str
    kind: str
    name: str
    state: SwarmRunState
    model: str | None
    url: str
    simulated: bool | None
    tasks: int
    done: int
    failed: int
    left: int
    retried: int  # tasks that were tried more than once
    attempts: int
    wasted: int  # attempts that brought no result
    prompt_tokens: int | None  # of the results
    output_tokens: int | None
    wasted_output_tokens: int | None  # of attempts that brought none
    tokens_unknown: int
    truncated: int  # done, and cut at the token limit
    sessions: int
    wall_s: float | None  # of all sessions together; None: none has begun
    down_s: float  # of the wall time: the endpoint did not answer
    effective_tok_s: float | None  # output tokens of the results over the wall time
    task_s: Percentiles | None  # of the attempts that counted
    ttft_s: Percentiles | None
    agents_mean: float | None  # attempts under way at once, over the wall time
    agents_max: int
    errors: tuple[tuple[str, int], ...]  # attempts by kind of error, the most frequent first


class Down(msgspec.Struct, frozen=True):
    """The endpoint did not answer, within one session."""

    session: int
    started_at: float
    ended_at: float
    why: str | None


class SwarmStory(msgspec.Struct, frozen=True):
    """Everything that the page of a run says.

    `attempts` by start, `results` in the tasks' order.
    """

    run: SwarmRun
    account: Account
    spans: Sequence[SessionSpan]
    attempts: Sequence[Attempt]
    results: Sequence[TaskResult]
    downs: Sequence[Down] = ()


Fact = tuple[int, str, float, dict[str, Any]]  # session, name, at, what


def spans_of(
    sessions: Sequence[SwarmSession],
    attempts: Sequence[Attempt],
    facts: Sequence[Fact],
    *,
    now: float,
    finished: bool,
) -> list[SessionSpan]:
    """Return when each session worked on the tasks.

    `finished`: what came after the last attempt is not counted. A session whose process vanished
    worked until its last row.
    """
    last_row_at: dict[int, float] = {}  # by session
    rows = [(attempt.session, attempt.ended_at) for attempt in attempts]
    rows += [(session, at) for session, _, at, _ in facts]
    for number, at in rows:
        last_row_at[number] = max(last_row_at.get(number, 0.0), at)
    last_attempt_at = max((attempt.ended_at for attempt in attempts), default=None)
    spans: list[SessionSpan] = []
    for session in sessions:
        end = session.ended_at
        if end is None:
            end = now if session.alive else last_row_at.get(session.number, 0.0)
        if finished and last_attempt_at is not None:
            end = min(end, last_attempt_at)
        spans.append(
            SessionSpan(
                session=session.number,
                started_at=session.started_at,
                ended_at=max(end, session.started_at),
                outcome=session.outcome,
                alive=session.alive,
                error=session.error,
            )
        )
    return spans


def downs_of(facts: Sequence[Fact], spans: Sequence[SessionSpan]) -> list[Down]:
    """Return the times from each fact that the endpoint is down to the fact that it is back, or to
    the end of the session.
    """
    downs: list[Down] = []
    for span in spans:
        began: tuple[float, str | None] | None = None
        endpoint_facts = [fact for fact in facts if fact[:2] == (span.session, "endpoint")]
        for _, _, at, fact in sorted(endpoint_facts, key=lambda session_fact: session_fact[2]):
            if not fact.get("up", True):
                began = began or (at, str(fact.get("why") or "") or None)
            elif began is not None:
                ended_at = max(min(at, span.ended_at), began[0])
                downs.append(Down(span.session, began[0], ended_at, began[1]))
                began = None
        if began is not None and span.ended_at > began[0]:
            downs.append(Down(span.session, began[0], span.ended_at, began[1]))
    return downs


_ERRORS = (AttemptOutcome.FAILED, AttemptOutcome.REJECTED)


def story_of(swarm: SwarmStore, run: SwarmRun, *, now: float) -> SwarmStory:
    rows = (
        swarm.session_rows(run.id),
        swarm.attempts(run.id),
        swarm.results(run.id),
        swarm.facts(run.id),
    )
    return story_from(run, *rows, now=now)


def story_from(
    run: SwarmRun,
    sessions: Sequence[SwarmSession],
    attempts: Sequence[Attempt],
    results: Sequence[TaskResult],
    facts: Sequence[Fact],
    *,
    now: float,
) -> SwarmStory:
    spans = spans_of(sessions, attempts, facts, now=now, finished=run.counts.left == 0)
    downs = downs_of(facts, spans)
    account = _account(run, spans, downs, attempts, results)
    models = [
        name for session in sessions if isinstance(name := session.endpoint.get("model"), str)
    ]
    if run.model is None and models:  # the one that answered, where the run names none
        account = replace(account, model=models[-1])
    return SwarmStory(run, account, spans, attempts, results, downs)


def run_json(run: SwarmRun) -> dict[str, Any]:
    """Return a run as `--json` prints it."""
    document = msgspec.to_builtins(run)
    document |= {
        "tasks": run.counts.total,
        "left": run.counts.left,
        "output": run.config.get("output"),
        **document["counts"],
    }
    names = (
        "id kind state created_at ended_at name model url tasks done failed left sessions "
        "simulated output"
    )
    return {name: document[name] for name in (*names.split(), "skep_version", "error")}


def account_json(account: Account) -> dict[str, Any]:
    """Return the document that `--json` prints; `skep schema swarm show` has its keys."""
    return {**msgspec.json.decode(msgspec.json.encode(account)), "errors": dict(account.errors)}


def _account(
    run: SwarmRun,
    spans: Sequence[SessionSpan],
    downs: Sequence[Down],
    attempts: Sequence[Attempt],
    results: Sequence[TaskResult],
) -> Account:
    done = [result for result in results if result.ending is TaskEnding.DONE]
    counted = [attempt for attempt in attempts if attempt.outcome is AttemptOutcome.DONE]
    wasted = [attempt for attempt in attempts if attempt.outcome is not AttemptOutcome.DONE]
    wall_s = _wall_s(spans)
    output_tokens = _sum_known(result.output_tokens for result in done)
    effective_tok_s = None
    agents_mean = None
    if wall_s and output_tokens is not None:
        effective_tok_s = output_tokens / wall_s
    if wall_s and attempts:
        agents_mean = sum(map(_seconds_of, attempts)) / wall_s
    return Account(
        run=run.id,
        kind=run.kind,
        name=run.name,
        state=run.state,
        url=run.url,
        model=run.model,
        simulated=run.simulated,
        tasks=run.counts.total,
        done=run.counts.done,
        failed=run.counts.failed,
        left=run.counts.left,
        retried=_count_retried(attempts),
        attempts=len(attempts),
        wasted=len(wasted),
        prompt_tokens=_sum_known(result.prompt_tokens for result in done),
        output_tokens=output_tokens,
        wasted_output_tokens=_sum_known(attempt.output_tokens for attempt in wasted),
        tokens_unknown=sum(result.output_tokens is None for result in done),
        truncated=sum(result.finish_reason == "length" for result in done),
        sessions=len(spans),
        wall_s=wall_s,
        down_s=sum(down.ended_at - down.started_at for down in downs),
        effective_tok_s=effective_tok_s,
        task_s=percentiles(map(_seconds_of, counted)),
        ttft_s=percentiles(_first_token_times(counted)),
        agents_mean=agents_mean,
        agents_max=_count_agents(attempts),
        errors=_count_errors(wasted),
    )


def _wall_s(spans: Sequence[SessionSpan]) -> float | None:
    """Return how long all sessions worked together; None: none has begun."""
    if not spans:
        return None
    return sum(span.seconds for span in spans)


def _count_agents(attempts: Sequence[Attempt]) -> int:
    """Return how many agents there were, which are numbered from 0."""
    return max((attempt.agent + 1 for attempt in attempts), default=0)


def _seconds_of(attempt: Attempt) -> float:
    return max(0.0, attempt.ended_at - attempt.started_at)


def _first_token_times(attempts: Sequence[Attempt]) -> list[float]:
    """Return how long each attempt waited for its first token, where that is known."""
    return [
        max(0.0, attempt.first_token_at - attempt.started_at)
        for attempt in attempts
        if attempt.first_token_at
    ]


def _count_retried(attempts: Sequence[Attempt]) -> int:
    """Return how many tasks were tried more than once."""
    attempts_by_task = Counter(attempt.task for attempt in attempts)
    return sum(count > 1 for count in attempts_by_task.values())


def _count_errors(attempts: Sequence[Attempt]) -> tuple[tuple[str, int], ...]:
    """Return how often each kind of error came, the most frequent first."""
    kinds = Counter(
        attempt.error_kind or str(attempt.outcome)
        for attempt in attempts
        if attempt.outcome in _ERRORS
    )
    return tuple(kinds.most_common())


def _sum_known(values: Iterable[int | None]) -> int | None:
    """Return the sum of those that are known; None where none is."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values else None
