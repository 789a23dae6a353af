"""The account of a run: what it did, how long it took, and what it used.

Every figure is derived from the journal's rows, so it can be had again at any time. Knows no clock: `now` is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from skep.bench.energy import JOULES_PER_KWH
from skep.bench.records import Energy
from skep.report.swarm_story import (
    Account,
    AgentRow,
    Down,
    EnergyAccount,
    Limit,
    ReplicaRow,
    Span,
    SwarmStory,
    task_seconds,
)
from skep.stats.percentiles import Percentiles, median, percentiles
from skep.store.swarm import SwarmStore
from skep.swarm.accounts.times import (
    Fact,
    SessionLike,
    at_once,
    busy_s,
    downs_of,
    limits_of,
    spans_of,
)
from skep.tasks import Attempt, Ending, Outcome, Result, SwarmRun

__all__ = ["Account", "Rows", "SwarmStory", "account_json", "account_of", "story_of"]

_ERRORS = (Outcome.FAILED, Outcome.REJECTED)


@dataclass(frozen=True, slots=True)
class Rows:
    """What the journal has of one run."""

    run: SwarmRun
    sessions: Sequence[SessionLike]
    attempts: Sequence[Attempt]
    results: Sequence[Result]
    facts: Sequence[Fact]
    model: str | None  # the one that answered, where the run names none
    stages: Sequence[tuple[int, int]] = ()


def account_of(swarm: SwarmStore, run: SwarmRun, *, now: float, price_kwh: float | None = None) -> Account:
    """`price_kwh`: of this look at it; else the one that the run was given."""
    return story_of(swarm, run, now=now, price_kwh=price_kwh).account


def story_of(swarm: SwarmStore, run: SwarmRun, *, now: float, price_kwh: float | None = None) -> SwarmStory:
    """The same with all that the page and the picture are made of."""
    return story_from(read_rows(swarm, run), now=now, price_kwh=price_kwh)


def read_rows(swarm: SwarmStore, run: SwarmRun) -> Rows:
    sessions = swarm.session_rows(run.id)
    told = [name for one in sessions if isinstance(name := one.endpoint.get("model"), str)]
    staged = run.kind == "ask"  # only those have stages, and a long list need not be read for nothing
    stages = Counter(task.stage for task in swarm.tasks(run.id)) if staged else {}
    return Rows(
        run=run,
        sessions=sessions,
        attempts=swarm.attempts(run.id),
        results=swarm.results(run.id),
        facts=swarm.facts(run.id),
        model=run.model or (told[-1] if told else None),
        stages=tuple(sorted(stages.items())) if len(stages) > 1 else (),
    )


def story_from(rows: Rows, *, now: float, price_kwh: float | None = None) -> SwarmStory:
    spans = spans_of(rows.sessions, rows.attempts, rows.facts, now=now, finished=rows.run.counts.left == 0)
    downs = downs_of(rows.facts, spans)
    limits: list[Limit] = limits_of(rows.facts, spans)
    price = price_kwh if price_kwh is not None else _price(rows.run.config)
    account = _account(rows, spans, downs, price)
    return SwarmStory(rows.run, account, spans, rows.attempts, rows.results, limits, downs, rows.stages)


def account_json(account: Account) -> dict[str, Any]:
    """As `--json` prints it; docs/json.md has its keys."""
    document: dict[str, Any] = _plain(asdict(account))
    document["errors"] = dict(account.errors)
    return document


def _account(rows: Rows, spans: Sequence[Span], downs: Sequence[Down], price: float | None) -> Account:
    run, attempts = rows.run, rows.attempts
    done = [one for one in rows.results if one.ending is Ending.DONE]
    wasted = [one for one in attempts if one.outcome is not Outcome.DONE]
    wall_s = sum(span.seconds for span in spans) if spans else None
    output = _told(one.output_tokens for one in done)
    times = [task_seconds(one, spans) for one in done]
    return Account(
        run=run.id,
        kind=run.kind,
        name=run.name,
        state=run.state,
        model=rows.model,
        url=run.url,
        simulated=run.simulated,
        tasks=run.counts.total,
        done=run.counts.done,
        failed=run.counts.failed,
        left=run.counts.left,
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
        queued_share=_queued_share(attempts),
        errors=tuple(
            Counter(one.error_kind or str(one.outcome) for one in wasted if one.outcome in _ERRORS).most_common()
        ),
        by_agent=tuple(_agents(attempts, wall_s)),
        by_replica=tuple(_replicas(attempts)),
        energy=_energy(rows, price),
    )


def _ttft(attempts: Iterable[Attempt]) -> Percentiles | None:
    return percentiles(
        [
            max(0.0, one.first_token_at - one.started_at)
            for one in attempts
            if one.outcome is Outcome.DONE and one.first_token_at is not None
        ]
    )


def _queued_share(attempts: Sequence[Attempt]) -> float | None:
    told = [one for one in attempts if one.queued_ms is not None]
    whole = busy_s(told)
    return min(1.0, sum(one.queued_ms or 0.0 for one in told) / 1000 / whole) if whole > 0 else None


def _agents(attempts: Sequence[Attempt], wall_s: float | None) -> Iterable[AgentRow]:
    by_agent: dict[int, list[Attempt]] = {}
    for one in attempts:
        by_agent.setdefault(one.agent, []).append(one)
    for agent, own in sorted(by_agent.items()):
        done = [one for one in own if one.outcome is Outcome.DONE]
        busy = busy_s(own)
        share = min(1.0, busy / wall_s) if wall_s else None
        yield AgentRow(agent, len(done), len(own), busy, share, _told(one.output_tokens for one in done))


def _replicas(attempts: Sequence[Attempt]) -> Iterable[ReplicaRow]:
    by_name: dict[str | None, list[Attempt]] = {}
    for one in attempts:
        by_name.setdefault(one.replica, []).append(one)
    for name in sorted(by_name, key=lambda name: (name is None, name or "")):
        own = by_name[name]
        done = [one for one in own if one.outcome is Outcome.DONE]
        speeds = [speed for one in done if (speed := _decode_tok_s(one)) is not None]
        yield ReplicaRow(
            replica=name,
            tasks=len(done),
            attempts=len(own),
            failed=sum(one.outcome in _ERRORS for one in own),
            output_tokens=_told(one.output_tokens for one in done),
            ttft_s=_ttft(own),
            task_tok_s=median(speeds) if speeds else None,
        )


def _decode_tok_s(attempt: Attempt) -> float | None:
    """Of one request; earlier versions had agents that made several."""
    if attempt.requests != 1 or attempt.first_token_at is None or not attempt.output_tokens:
        return None
    seconds = attempt.ended_at - attempt.first_token_at
    return attempt.output_tokens / seconds if seconds > 0 else None


def _energy(rows: Rows, price: float | None) -> EnergyAccount | None:
    """Over the sessions that measured it; tokens are those of the same sessions."""
    told = [(session, fact) for session, name, _, fact in rows.facts if name == "energy" and "joules" in fact]
    if not told:
        return None
    sessions = {session for session, _ in told}
    counted = [one for one in rows.attempts if one.outcome is Outcome.DONE and one.session in sessions]
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
    kwh = joules / JOULES_PER_KWH
    return EnergyAccount(energy, kwh, None if price is None else kwh * price, price)


def _price(config: Mapping[str, Any]) -> float | None:
    price = config.get("price_kwh")
    return float(price) if isinstance(price, int | float) and not isinstance(price, bool) else None


def _told(values: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case _:
            return value
