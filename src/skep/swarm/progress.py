"""How a run stands at one moment, for whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """One agent at work."""

    agent: int
    task: str
    since_s: float
    reads: int  # events of its answer so far: about as many as its tokens
    number: int  # of the attempt


@dataclass(frozen=True, slots=True)
class Progress:
    run_id: str
    total: int
    done: int
    failed: int
    in_flight: int
    limit: int  # agents allowed at once now
    limit_why: str
    elapsed_s: float  # of this session
    left_s: float | None
    tok_s: float | None  # over the last seconds
    output_tokens: int  # of this session, answers under way included
    retried: int
    lanes: tuple[Lane, ...] = ()
    down_s: float | None = None  # the endpoint has not answered for so long
    down_why: str | None = None
    last: tuple[str, ...] = ()  # the newest lines of news, newest last
