"""The frozen values of a swarm's work: tasks, attempts, results, runs.

Knows nothing of where they are stored, sent or shown. `None` means unknown, never zero. Times are
unix seconds. A *run* is a list of tasks; a *session* is one process at work on it, and a resumed
run has several; an *attempt* is one time that a task was tried; a *result* is final, one for each
task."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skep.store.rows import Count


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of work that needs nothing but itself."""

    id: str
    messages: tuple[Mapping[str, Any], ...]
    max_tokens: int | None = None  # None: as the endpoint has it
    temperature: float | None = None
    schema: Mapping[str, Any] | None = None  # the answer must be JSON of this form
    # {"kind": "contains", "all": ["x"]}: as `skep.workload.items` has them.
    checker: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = {}  # further fields of the request, sent as they are
    stage: int = 0  # later ones are made of the results of earlier ones


class TaskEnding(StrEnum):
    DONE = "done"
    FAILED = "failed"  # failed after so many tries


class TaskResult(msgspec.Struct, frozen=True):
    """What came of a task. Final: written once, never changed."""

    task: str
    ending: TaskEnding
    answer: str | None  # the text; of one that failed: the last that came, if any
    value: Any  # of a task with a schema: the answer as JSON; else None
    error_kind: str | None
    error: str | None
    tries: int
    started_at: float  # of the first attempt
    ended_at: float
    prompt_tokens: Count  # of the attempt that counted
    output_tokens: Count
    finish_reason: str | None = None
    replica: str | None = None


class Why(StrEnum):
    """Why an attempt was made."""

    FIRST = "first"
    RETRY = "retry"
    # of earlier versions: a second one beside one that took far longer than the others
    STRAGGLER = "straggler"
    RESUMED = "resumed"  # an earlier session ended while it was under way


class AttemptOutcome(StrEnum):
    """What came of an attempt."""

    DONE = "done"
    FAILED = "failed"  # no whole answer came
    REJECTED = "rejected"  # an answer came, and did not pass its check
    SUPERSEDED = "superseded"  # of earlier versions: the other attempt at the same task was first
    CANCELLED = "cancelled"  # the run was stopped meanwhile


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer, whole or not."""

    first_token_at: float | None = None
    queued_ms: float | None = None  # in skep's gateway
    prompt_tokens: Count = None
    output_tokens: Count = None
    decode_ms: float | None = None  # as the engine tells it
    status: Count = None
    error_kind: str | None = None
    error: str | None = None
    finish_reason: str | None = None
    replica: str | None = None
    # Of a stored attempt only if it was rejected; of one that counted, the result has it.
    answer: str | None = None

    def figures(self) -> dict[str, Any]:
        """Return these alone, without the fields of the record that they are a part of."""
        return {name: getattr(self, name) for name in AnswerFigures.__struct_fields__}


REJECTED = "rejected"


class AttemptResult(AnswerFigures, frozen=True, kw_only=True):
    """What came of an attempt. `error_kind` None: an answer that counts; REJECTED: one that does
    not.

    Other kinds are those of a request: connect, closed, cut, timeout, too_long, garbage,
    engine_error, http_500 ..."""

    value: Any = None
    status: int | None = None
    retry_after_s: float | None = None


class Attempt(AnswerFigures, frozen=True):
    task: str
    session: int
    number: int  # from 1, over all sessions
    agent: int  # from 0: which of those that work at once
    why: Why
    outcome: AttemptOutcome
    started_at: float
    ended_at: float
    requests: int = 1  # several only in runs of earlier versions


class Recorded(msgspec.Struct, frozen=True):
    """What an attempt left behind, written at once or not at all.

    `result`: where the task has come to its end.
    """

    attempt: Attempt | None
    result: TaskResult | None = None


class SwarmRunState(StrEnum):
    RUNNING = "running"  # a living process works on it
    STOPPED = "stopped"  # unfinished, and nobody works on it: `skep swarm resume`
    DONE = "done"  # every task has its result
    CANCELLED = "cancelled"  # somebody said so; can be resumed all the same


class Counts(msgspec.Struct, frozen=True):
    total: int
    done: int
    failed: int

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed


class SwarmRun(msgspec.Struct, frozen=True):
    """`config`: what the run was asked for, as JSON; `options` reads it."""

    id: str
    kind: str  # "map" | "ask"
    created_at: float
    name: str  # of the tasks' file, or the goal's beginning
    url: str
    model: str | None  # None: the only one that the endpoint serves
    config: Mapping[str, Any]
    skep_version: str
    simulated: bool | None  # None: nobody has answered yet
    state: SwarmRunState
    counts: Counts
    sessions: int
    ended_at: float | None = None
    error: str | None = None  # why the last session ended, where it did not finish

    @property
    def options(self) -> SwarmRunOptions:
        """Return what the run was asked for; keys of another version are ignored."""
        return msgspec.convert(self.config, SwarmRunOptions)


class SwarmRunOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    # At once, at most; None: as many as the endpoint can use.
    agents: Annotated[int, Meta(ge=1)] | None = None
    tries: Annotated[int, Meta(ge=1)] = 4  # of one task, before it fails
    timeout_s: Annotated[float, Meta(gt=0)] = 600.0  # of one request
    # An endpoint that is down for so long is given up.
    deadline_s: Annotated[float, Meta(gt=0)] = 600.0
    output: str | None = None  # absolute path of the results file
    key_env: str | None = None  # which variable holds the endpoint's key; never the key itself
    priority: str | None = None  # of skep's gateway: interactive, normal, batch
    max_tokens: int | None = None  # for tasks that name none
    ask: Mapping[str, Any] | None = None  # of an `ask` run: goal, plan, root
