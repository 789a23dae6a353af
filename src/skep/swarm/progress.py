"""How a run stands at one moment, for whoever watches it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from skep.swarm.concurrency import ConcurrencyLimit
from skep.swarm.records import Attempt, Counts, TaskEnding, TaskResult, Why
from skep.swarm.schedule import Start, TaskSchedule


@dataclass(frozen=True, slots=True)
class Lane:
    """One agent at work."""

    agent: int
    task: str
    since_s: float
    reads: int  # events of its answer so far: about as many as its tokens
    number: int  # of the attempt


@dataclass(frozen=True, slots=True)
class SwarmProgress:
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


SHOW_EVERY_S = 0.2
WINDOW_S = 5.0
NEWS = 5


class ProgressTracker:
    def __init__(self, run_id: str, counts: Counts, watch: Callable[[SwarmProgress], None], began: float) -> None:
        self._run_id = run_id
        self._watch = watch
        self._began = began
        self._total, self._done, self._failed = counts.total, counts.done, counts.failed
        self._ended = 0  # of this session
        self._retried = 0
        self._tokens = 0  # of attempts that have ended
        self._news: deque[str] = deque(maxlen=NEWS)
        self._heard: deque[tuple[float, int]] = deque()
        self._shown = float("-inf")

    def say(self, line: str) -> None:
        self._news.append(line)

    def grew(self, tasks: int) -> None:
        self._total += tasks

    def began(self, start: Start) -> None:
        self._retried += start.why is Why.RETRY

    def ended(self, attempt: Attempt, result: TaskResult | None) -> None:
        self._tokens += attempt.output_tokens or 0
        if result is not None:
            self._ended += 1
            self._done += result.ending is TaskEnding.DONE
            self._failed += result.ending is TaskEnding.FAILED

    def heard(self, now: float, total: int) -> None:
        self._heard.append((now, total))
        while now - self._heard[0][0] > WINDOW_S:
            self._heard.popleft()

    def away(self, now: float, since: float, why: str) -> None:
        """Show that the endpoint has not answered for the first time yet."""
        self._show(
            now,
            in_flight=0,
            limit=0,
            limit_why="waiting for the endpoint",
            left_s=None,
            tok_s=None,
            output_tokens=self._tokens,
            down_s=now - since,
            down_why=why,
        )

    def show(
        self,
        schedule: TaskSchedule,
        concurrency: ConcurrencyLimit,
        heard: Mapping[int, int],
        now: float,
        *,
        at_once: bool = False,
    ) -> None:
        if now - self._shown < SHOW_EVERY_S and not at_once:
            return
        self._shown = now
        left = self._total - self._done - self._failed
        outage = schedule.outage
        lanes = [
            Lane(one.agent, one.task.id, now - one.started, heard.get(one.id, 0), one.number)
            for one in schedule.leases.values()
        ]
        self._show(
            now,
            in_flight=len(lanes),
            limit=concurrency.limit,
            limit_why=concurrency.why,
            left_s=(now - self._began) * left / self._ended if self._ended else None,
            tok_s=self._rate(),
            output_tokens=self._tokens + sum(heard.values()),
            lanes=tuple(sorted(lanes, key=lambda lane: lane.agent)),
            down_s=None if outage.since is None else now - outage.since,
            down_why=outage.why if outage.is_away else None,
        )

    def _show(self, now: float, **known: Any) -> None:
        self._watch(
            SwarmProgress(
                run_id=self._run_id,
                total=self._total,
                done=self._done,
                failed=self._failed,
                elapsed_s=now - self._began,
                retried=self._retried,
                last=tuple(self._news),
                **known,
            )
        )

    def _rate(self) -> float | None:
        if len(self._heard) < 2:
            return None
        (first_at, first), (last_at, last) = self._heard[0], self._heard[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None
