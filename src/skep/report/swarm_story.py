"""What is told of a swarm's run: its account, and beside it what the picture is drawn from. Pure values.

`None` means unknown, never zero. Times are unix seconds unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from skep.bench.records import Energy
from skep.stats.percentiles import Percentiles
from skep.tasks import Attempt, Result, RunState, SwarmRun


@dataclass(frozen=True, slots=True)
class Span:
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


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One of those that worked at once."""

    agent: int
    tasks: int  # that it finished
    attempts: int
    busy_s: float
    busy_share: float | None  # of the wall time
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """`replica` None: the endpoint did not say who answered."""

    replica: str | None
    tasks: int
    attempts: int
    failed: int  # attempts that failed or were rejected
    output_tokens: int | None
    ttft_s: Percentiles | None
    task_tok_s: float | None  # median over tasks of output tokens over the time from the first token to the end


@dataclass(frozen=True, slots=True)
class EnergyAccount:
    """Of the GPUs alone, over the sessions in which something measured it."""

    energy: Energy
    kwh: float
    cost: float | None  # in whatever the price is in; None: without a price
    price_kwh: float | None


@dataclass(frozen=True, slots=True)
class Account:
    """One run in figures. Tokens are those that were told: `tokens_unknown` done tasks came without."""

    run: str
    kind: str
    name: str
    state: RunState
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
    by_agent: tuple[AgentRow, ...]
    by_replica: tuple[ReplicaRow, ...]
    energy: EnergyAccount | None


@dataclass(frozen=True, slots=True)
class Down:
    """The endpoint did not answer."""

    started_at: float
    ended_at: float
    why: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """From then on so many agents were allowed at once. `session`: no line joins two of them."""

    session: int
    at: float
    limit: int
    why: str


@dataclass(frozen=True, slots=True)
class SwarmStory:
    """Everything that the page of a run says. `attempts` by start, `results` in the tasks' order."""

    run: SwarmRun
    account: Account
    spans: Sequence[Span]
    attempts: Sequence[Attempt]
    results: Sequence[Result]
    limits: Sequence[Limit] = ()
    downs: Sequence[Down] = ()
    stages: Sequence[tuple[int, int]] = ()  # (stage, tasks in it), where there are several


def paused_between(spans: Sequence[Span], begin: float, end: float) -> float:
    """How much of the time from `begin` to `end` lay between two sessions."""
    paused = 0.0
    for earlier, later in pairwise(spans):
        paused += max(0.0, min(end, later.started_at) - max(begin, earlier.ended_at))
    return paused


def task_seconds(result: Result, spans: Sequence[Span]) -> float:
    """From the first attempt's start to the result, without the pauses between sessions."""
    paused = paused_between(spans, result.started_at, result.ended_at)
    return max(0.0, result.ended_at - result.started_at - paused)
