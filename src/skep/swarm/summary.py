"""The account of a run, derived from the journal's rows alone. Knows no clock: `now` is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.metrics import Energy
from skep.bench.summary import JOULES_PER_KWH
from skep.stats.percentiles import Percentiles, median, percentiles
from skep.swarm.records import Attempt, AttemptOutcome, SwarmRun, SwarmRunState, TaskEnding, TaskResult
from skep.swarm.store import SwarmSession, SwarmStore


class SessionSpan(msgspec.Struct, frozen=True):
    """One session, as far as it worked on the tasks. `before_s`: the pause since the session before it."""

    session: int
    started_at: float
    ended_at: float
    before_s: float | None
    outcome: str | None  # None: it still works, or its process vanished
    alive: bool = False
    error: str | None = None

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended_at - self.started_at)


class ReplicaRow(msgspec.Struct, frozen=True):
    """`replica` None: the endpoint did not say who answered."""

    replica: str | None
    tasks: int
    attempts: int
    failed: int  # attempts that failed or were rejected
    output_tokens: int | None
    ttft_s: Percentiles | None
    task_tok_s: float | None  # median over tasks of output tokens over the time from the first token to the end


class EnergyAccount(msgspec.Struct, frozen=True):
    """Of the GPUs alone, over the sessions in which something measured it."""

    energy: Energy
    kwh: float


class Account(msgspec.Struct, frozen=True):
    """One run in figures. Tokens are those that were told: `tokens_unknown` done tasks came without."""

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
    wasted_prompt_tokens: int | None  # of attempts that brought none
    wasted_output_tokens: int | None
    tokens_unknown: int
    truncated: int  # done, and cut at the token limit
    sessions: int
    wall_s: float | None  # of all sessions together; None: none has begun
    paused_s: float  # between the sessions, not counted
    down_s: float  # of the wall time: the endpoint did not answer
    effective_tok_s: float | None  # output tokens of the results over the wall time
    task_s: Percentiles | None  # from the first attempt's start to the result, pauses left out
    task_max_s: float | None
    ttft_s: Percentiles | None
    agents_mean: float | None  # attempts under way at once, over the wall time
    agents_max: int
    queued_share: float | None  # of the agents' time, in the gateway's queue
    errors: tuple[tuple[str, int], ...]  # attempts by kind of error, the most frequent first
    by_replica: tuple[ReplicaRow, ...]
    energy: EnergyAccount | None


class Down(msgspec.Struct, frozen=True):
    """The endpoint did not answer."""

    started_at: float
    ended_at: float
    why: str | None


class AgentLimit(msgspec.Struct, frozen=True):
    """From then on so many agents were allowed at once. `session`: no line joins two of them."""

    session: int
    at: float
    limit: int
    why: str


class SwarmStory(msgspec.Struct, frozen=True):
    """Everything that the page of a run says. `attempts` by start, `results` in the tasks' order."""

    run: SwarmRun
    account: Account
    spans: Sequence[SessionSpan]
    attempts: Sequence[Attempt]
    results: Sequence[TaskResult]
    limits: Sequence[AgentLimit] = ()
    downs: Sequence[Down] = ()
    stages: Sequence[tuple[int, int]] = ()  # (stage, tasks in it), where there are several


def task_seconds(result: TaskResult, spans: Sequence[SessionSpan]) -> float:
    """From the first attempt's start to the result, without the pauses between sessions."""
    begin, end = result.started_at, result.ended_at
    pauses = ((earlier.ended_at, later.started_at) for earlier, later in pairwise(spans))
    paused = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in pauses)
    return max(0.0, end - begin - paused)


Fact = tuple[int, str, float, dict[str, Any]]  # session, name, at, what

READING_S = 0.1  # at most, when many end at the same moment


def spans_of(
    sessions: Sequence[SwarmSession], attempts: Sequence[Attempt], facts: Sequence[Fact], *, now: float, finished: bool
) -> list[SessionSpan]:
    """`finished`: what came after the last attempt is not counted. One that vanished worked until its last row."""
    written: dict[int, float] = {}  # by session, the last thing
    moments = [(one.session, one.ended_at) for one in attempts] + [(session, at) for session, _, at, _ in facts]
    for session, at in moments:
        written[session] = max(written.get(session, 0.0), at)
    last = max((one.ended_at for one in attempts), default=None)
    spans: list[SessionSpan] = []
    for one in sessions:
        end = one.ended_at
        if end is None:
            end = now if one.alive else written.get(one.number, 0.0)
        if finished and last is not None:
            end = min(end, last)
        end = max(end, one.started_at)
        before = max(0.0, one.started_at - spans[-1].ended_at) if spans else None
        spans.append(SessionSpan(one.number, one.started_at, end, before, one.outcome, one.alive, one.error))
    return spans


def downs_of(facts: Sequence[Fact], spans: Sequence[SessionSpan]) -> list[Down]:
    """From each word that the endpoint is down to the word that it is back, or to the end of the session."""
    found: list[Down] = []
    for span in spans:
        began: tuple[float, str | None] | None = None
        own = [one for one in facts if one[:2] == (span.session, "endpoint")]
        for _, _, at, fact in sorted(own, key=lambda one: one[2]):
            if not fact.get("up", True):
                began = began or (at, str(fact.get("why") or "") or None)
            elif began is not None:
                found.append(Down(began[0], max(min(at, span.ended_at), began[0]), began[1]))
                began = None
        if began is not None and span.ended_at > began[0]:
            found.append(Down(began[0], span.ended_at, began[1]))
    return found


def at_once(attempts: Sequence[Attempt]) -> int:
    """The most attempts under way at one moment. One sent while an answer that is all here is read is not counted."""
    edges = [(one.started_at, 1) for one in attempts]
    edges += [(one.ended_at - min(READING_S, max(0.0, one.ended_at - one.started_at) / 2), -1) for one in attempts]
    # Sorted, one that ends at the moment when another begins makes room for it.
    return max(accumulate((step for _, step in sorted(edges)), initial=0))


def busy_s(attempts: Iterable[Attempt]) -> float:
    return sum(max(0.0, one.ended_at - one.started_at) for one in attempts)


_ERRORS = (AttemptOutcome.FAILED, AttemptOutcome.REJECTED)


def story_of(swarm: SwarmStore, run: SwarmRun, *, now: float) -> SwarmStory:
    staged = run.kind == "ask"  # only those have stages, and a long list need not be read for nothing
    stages = Counter(task.stage for task in swarm.tasks(run.id)) if staged else {}
    rows = (swarm.session_rows(run.id), swarm.attempts(run.id), swarm.results(run.id), swarm.facts(run.id))
    return story_from(run, *rows, now=now, stages=stages)


def story_from(
    run: SwarmRun,
    sessions: Sequence[SwarmSession],
    attempts: Sequence[Attempt],
    results: Sequence[TaskResult],
    facts: Sequence[Fact],
    *,
    now: float,
    stages: Mapping[int, int] | None = None,
) -> SwarmStory:
    spans = spans_of(sessions, attempts, facts, now=now, finished=run.counts.left == 0)
    downs = downs_of(facts, spans)
    known = {span.session for span in spans}
    limits = [
        AgentLimit(session, at, int(fact["limit"]), str(fact.get("why") or ""))
        for session, name, at, fact in facts
        if name == "limit" and session in known and isinstance(fact.get("limit"), int | float)
    ]
    limits.sort(key=lambda one: (one.session, one.at))
    account = _account(run, spans, downs, attempts, results, facts)
    told = [name for one in sessions if isinstance(name := one.endpoint.get("model"), str)]
    if run.model is None and told:  # the one that answered, where the run names none
        account = replace(account, model=told[-1])
    shown = tuple(sorted(stages.items())) if stages and len(stages) > 1 else ()
    return SwarmStory(run, account, spans, attempts, results, limits, downs, shown)


def run_json(run: SwarmRun) -> dict[str, Any]:
    """Return a run as `--json` prints it."""
    told = msgspec.to_builtins(run)
    told |= {"tasks": run.counts.total, "left": run.counts.left, "output": run.config.get("output"), **told["counts"]}
    names = "id kind state created_at ended_at name model url tasks done failed left sessions simulated output"
    return {name: told[name] for name in (*names.split(), "skep_version", "error")}


def account_json(account: Account) -> dict[str, Any]:
    """Return the document that `--json` prints; `skep schema swarm show` has its keys."""
    return {**msgspec.json.decode(msgspec.json.encode(account)), "errors": dict(account.errors)}


def _account(
    run: SwarmRun,
    spans: Sequence[SessionSpan],
    downs: Sequence[Down],
    attempts: Sequence[Attempt],
    results: Sequence[TaskResult],
    facts: Sequence[Fact],
) -> Account:
    done = [one for one in results if one.ending is TaskEnding.DONE]
    wasted = [one for one in attempts if one.outcome is not AttemptOutcome.DONE]
    counts, wall_s = run.counts, sum(span.seconds for span in spans) if spans else None
    output = _told(one.output_tokens for one in done)
    times = [task_seconds(one, spans) for one in done]
    errors = [one.error_kind or str(one.outcome) for one in wasted if one.outcome in _ERRORS]
    told = [one for one in attempts if one.queued_ms is not None]
    queued_s, told_s = sum(one.queued_ms or 0.0 for one in told) / 1000, busy_s(told)
    return Account(
        run=run.id,
        **{name: getattr(run, name) for name in ("kind", "name", "state", "url", "model", "simulated")},
        **{name: getattr(counts, name) for name in ("done", "failed", "left")},
        tasks=counts.total,
        retried=sum(many > 1 for many in Counter(one.task for one in attempts).values()),
        attempts=len(attempts),
        wasted=len(wasted),
        prompt_tokens=_told(one.prompt_tokens for one in done),
        output_tokens=output,
        wasted_prompt_tokens=_told(one.prompt_tokens for one in wasted),
        wasted_output_tokens=_told(one.output_tokens for one in wasted),
        tokens_unknown=sum(one.output_tokens is None for one in done),
        truncated=sum(one.finish_reason == "length" for one in done),
        sessions=len(spans),
        wall_s=wall_s,
        paused_s=sum(span.before_s or 0.0 for span in spans),
        down_s=sum(one.ended_at - one.started_at for one in downs),
        effective_tok_s=output / wall_s if output is not None and wall_s else None,
        task_s=percentiles(times),
        task_max_s=max(times, default=None),
        ttft_s=_ttft(attempts),
        agents_mean=busy_s(attempts) / wall_s if wall_s and attempts else None,
        agents_max=at_once(attempts),
        queued_share=min(1.0, queued_s / told_s) if told_s > 0 else None,
        errors=tuple(Counter(errors).most_common()),
        by_replica=tuple(_replicas(attempts)),
        energy=_energy(facts, attempts),
    )


def _ttft(attempts: Iterable[Attempt]) -> Percentiles | None:
    done = [one for one in attempts if one.outcome is AttemptOutcome.DONE]
    return percentiles([max(0.0, one.first_token_at - one.started_at) for one in done if one.first_token_at])


def _replicas(attempts: Sequence[Attempt]) -> Iterable[ReplicaRow]:
    for name in sorted({one.replica for one in attempts}, key=lambda name: (name is None, name or "")):
        own = [one for one in attempts if one.replica == name]
        done = [one for one in own if one.outcome is AttemptOutcome.DONE]
        speeds = [
            one.output_tokens / seconds
            for one in done  # of one request; earlier versions had agents that made several
            if one.requests == 1 and one.first_token_at and one.output_tokens
            if (seconds := one.ended_at - one.first_token_at) > 0
        ]
        failed, output = sum(one.outcome in _ERRORS for one in own), _told(one.output_tokens for one in done)
        yield ReplicaRow(name, len(done), len(own), failed, output, _ttft(own), median(speeds) if speeds else None)


def _energy(facts: Sequence[Fact], attempts: Sequence[Attempt]) -> EnergyAccount | None:
    """Over the sessions that measured it; tokens are those of the same sessions."""
    told = [(session, fact) for session, name, _, fact in facts if name == "energy" and "joules" in fact]
    if not told:
        return None
    sessions = {session for session, _ in told}
    counted = [one for one in attempts if one.outcome is AttemptOutcome.DONE and one.session in sessions]
    tokens = _told(one.output_tokens for one in counted)
    joules = sum(float(fact["joules"]) for _, fact in told)
    seconds = sum(float(fact.get("seconds") or 0.0) for _, fact in told)
    energy = Energy(
        joules=joules,
        seconds=seconds,
        joules_per_token=joules / tokens if tokens else None,
        mean_w=joules / seconds if seconds else 0.0,
        max_w=max(float(fact.get("max_w") or 0.0) for _, fact in told),
        throttled=tuple(sorted({str(why) for _, fact in told for why in fact.get("throttled") or ()})),
        source=str(told[0][1].get("source", "NVML")),
    )
    return EnergyAccount(energy, joules / JOULES_PER_KWH)


def _told(values: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
