"""What is written down of an attempt and of a task's end. Pure."""

from __future__ import annotations

from typing import Protocol

from skep.swarm.attempted import Attempted
from skep.tasks import Attempt, Ending, Outcome, Result, Task, Why


class UnderWay(Protocol):
    @property
    def task(self) -> Task: ...
    @property
    def number(self) -> int: ...
    @property
    def agent(self) -> int: ...
    @property
    def why(self) -> Why: ...
    @property
    def started(self) -> float: ...


def attempt_of(
    lease: UnderWay, outcome: Outcome, came: Attempted, *, session: int, epoch: float, now: float
) -> Attempt:
    """`epoch`: added to a time of the steady clock, it gives unix seconds."""
    return Attempt(
        task=lease.task.id,
        session=session,
        number=lease.number,
        agent=lease.agent,
        why=lease.why,
        outcome=outcome,
        started_at=lease.started + epoch,
        ended_at=now + epoch,
        first_token_at=came.first_token_at,
        queued_ms=came.queued_ms,
        prompt_tokens=came.prompt_tokens,
        output_tokens=came.output_tokens,
        decode_ms=came.decode_ms,
        status=came.status,
        error_kind=came.error_kind,
        error=came.error,
        finish_reason=came.finish_reason,
        replica=came.replica,
        answer=None if outcome is Outcome.DONE else came.answer,
    )


def result_of(attempt: Attempt, came: Attempted, *, tries: int, started_at: float) -> Result:
    """Of an attempt that counts."""
    return Result(
        task=attempt.task,
        ending=Ending.DONE,
        answer=came.answer,
        value=came.value,
        error_kind=None,
        error=None,
        tries=tries,
        started_at=started_at,
        ended_at=attempt.ended_at,
        prompt_tokens=came.prompt_tokens,
        output_tokens=came.output_tokens,
        finish_reason=came.finish_reason,
        replica=came.replica,
    )


def failed_result(task: str, last: Attempted, *, tries: int, started_at: float, ended_at: float) -> Result:
    """Of a task that is set aside, with the last thing that went wrong."""
    return Result(
        task=task,
        ending=Ending.FAILED,
        answer=last.answer,
        value=None,
        error_kind=last.error_kind,
        error=last.error,
        tries=tries,
        started_at=started_at,
        ended_at=ended_at,
        prompt_tokens=last.prompt_tokens,
        output_tokens=last.output_tokens,
        finish_reason=last.finish_reason,
        replica=last.replica,
    )
