"""How a run stands at one moment, for whoever watches it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from skep.stats.stream_tokens import TokensPerEvent
from skep.swarm.concurrency import ConcurrencyLimit
from skep.swarm.records import Counts, Recorded, TaskEnding
from skep.swarm.schedule import TaskSchedule
from skep.units import format_seconds, number


class Lane(msgspec.Struct, frozen=True):
    """One agent at work."""

    agent: int
    task: str
    since_s: float
    reads: int  # events of its answer so far: each carries one token or several
    number: int  # of the attempt


class SwarmProgress(msgspec.Struct, frozen=True):
    total: int
    done: int
    failed: int
    limit_why: str
    elapsed_s: float  # of this session
    output_tokens: int  # of this session, answers under way included
    retried: int
    in_flight: int = 0
    limit: int = 0  # agents allowed at once now
    left_s: float | None = None
    tok_s: float | None = None  # over the last seconds
    # No answer has ended: how many tokens an event carries is unknown.
    tok_s_is_floor: bool = False
    lanes: tuple[Lane, ...] = ()
    down_s: float | None = None  # the endpoint has not answered for so long
    down_why: str | None = None
    last: tuple[str, ...] = ()  # the newest lines of news, newest last
    news: int = 0  # lines of news so far


SHOW_EVERY_S = 0.2
WINDOW_S = 5.0
NEWS_LINES = 5


class ProgressTracker:
    """Counts what the runner tells it, and calls `watch` a few times a second."""

    def __init__(
        self, counts: Counts, watch: Callable[[SwarmProgress], None], began: float
    ) -> None:
        self._watch = watch
        self._began = began
        self.total = counts.total
        self._done = counts.done
        self._failed = counts.failed
        self._ended = 0  # of this session
        self.retried = 0
        self._tokens = 0  # of attempts that have ended
        self._news: deque[str] = deque(maxlen=NEWS_LINES)
        self._news_told = 0
        self._heard: deque[tuple[float, int]] = deque()  # times, and events of all answers by then
        self._tokens_per_event = TokensPerEvent()
        self._shown_at = float("-inf")

    def ended(self, record: Recorded) -> None:
        if record.attempt is not None:
            self._tokens += record.attempt.output_tokens or 0
        if (result := record.result) is not None:
            self._ended += 1
            self._done += result.ending is TaskEnding.DONE
            if result.ending is TaskEnding.FAILED:
                self._failed += 1
                self.tell(f"`{result.task}` failed: {result.error}")

    def tell(self, news: str) -> None:
        self._news.append(news)
        self._news_told += 1

    def answered(self, events: int, tokens: int | None) -> None:
        """Learn from an answer that has ended; `tokens`: as its endpoint counted them."""
        self._tokens_per_event.take(events, tokens or 0)

    def heard(self, now: float, events: int) -> None:
        """Take how many events all answers have had so far."""
        self._heard.append((now, events))
        while now - self._heard[0][0] > WINDOW_S:
            self._heard.popleft()

    def away(self, now: float, since: float, why: str) -> None:
        """Show that the endpoint has not answered for the first time yet."""
        self._show(now, limit_why="waiting for the endpoint", down_s=now - since, down_why=why)

    def show(
        self,
        schedule: TaskSchedule,
        limit: ConcurrencyLimit,
        heard: dict[int, int],
        now: float,
        *,
        at_once: bool = False,
    ) -> None:
        if now - self._shown_at < SHOW_EVERY_S and not at_once:
            return
        self._shown_at = now
        unfinished = self.total - self._done - self._failed
        outage = schedule.outage
        lanes = [
            Lane(
                agent=start.agent,
                task=start.task.id,
                since_s=now - start.started,
                reads=heard.get(start.lease, 0),
                number=start.number,
            )
            for start in schedule.leases.values()
        ]
        left_s = None
        if self._ended:
            left_s = (now - self._began) * unfinished / self._ended
        down_s = None
        if outage.is_away and outage.since is not None:
            down_s = now - outage.since
        self._show(
            now,
            in_flight=len(lanes),
            limit=limit.limit,
            limit_why=limit.why,
            left_s=left_s,
            tok_s=self._tok_s(),
            tok_s_is_floor=not self._tokens_per_event.is_known,
            streaming_tokens=round(sum(heard.values()) * self._tokens_per_event.value),
            lanes=tuple(sorted(lanes, key=lambda lane: lane.agent)),
            down_s=down_s,
            down_why=outage.why if outage.is_away else None,
        )

    def _tok_s(self) -> float | None:
        if not self._heard:
            return None
        first_at, first_events = self._heard[0]
        last_at, last_events = self._heard[-1]
        if last_at <= first_at:
            return None
        events_per_s = (last_events - first_events) / (last_at - first_at)
        return events_per_s * self._tokens_per_event.value

    def _show(self, now: float, *, streaming_tokens: int = 0, **fields: Any) -> None:
        progress = SwarmProgress(
            total=self.total,
            done=self._done,
            failed=self._failed,
            elapsed_s=now - self._began,
            output_tokens=self._tokens + streaming_tokens,
            retried=self.retried,
            last=tuple(self._news),
            news=self._news_told,
            **fields,
        )
        self._watch(progress)


# Between two lines: the longer a run takes, the rarer they are.
EVERY_S = 5.0
MOST_S = 60.0


class SwarmProgressLines:
    """Decides which lines to write where nobody watches: how the run stands every few seconds,
    after the newest news.
    """

    def __init__(self, deadline_s: float | None = None) -> None:
        self._deadline_s = deadline_s
        self._due_s = 0.0
        self._news_shown = 0  # news

    def take(self, progress: SwarmProgress) -> list[str]:
        if progress.elapsed_s < self._due_s:
            return []
        self._due_s = progress.elapsed_s + min(MOST_S, max(EVERY_S, progress.elapsed_s / 10))
        fresh = progress.news - self._news_shown
        self._news_shown = progress.news
        lines = list(progress.last[-fresh:]) if fresh else []
        if fresh > len(lines):
            lines.insert(0, f"{fresh - len(lines)} more of this kind: `skep swarm show` has them")
        if progress.down_s is None:
            lines.append(progress_line(progress))
        else:
            lines.append(down_words(progress, self._deadline_s))
        return lines


def progress_line(progress: SwarmProgress) -> str:
    ended = progress.done + progress.failed
    failed = f", {progress.failed} failed" if progress.failed else ""
    speed = ""
    if progress.tok_s is not None:
        speed = f", {speed_words(progress)}"
    eta = ""
    if ended != progress.total and progress.left_s is not None:
        eta = f", about {format_seconds(progress.left_s)} left"
    # There are no more tasks than that.
    agents_usable = min(progress.limit, max(progress.in_flight, progress.total - ended))
    agents = f"{progress.in_flight} of {agents_usable} agents at work"
    return (
        f"{ended}/{progress.total} after {format_seconds(progress.elapsed_s)}{failed}, "
        f"{agents}{speed}{eta}"
    )


def speed_words(progress: SwarmProgress) -> str:
    if progress.tok_s_is_floor and progress.tok_s:
        floor = "at least "
    else:
        floor = ""
    return f"{floor}{number(progress.tok_s, digits=1)} tok/s"


def down_words(progress: SwarmProgress, deadline_s: float | None) -> str:
    assert progress.down_s is not None
    why = f" ({progress.down_why})" if progress.down_why else ""
    end = ""
    if deadline_s is not None:
        end = f"; gives up in {format_seconds(max(0.0, deadline_s - progress.down_s))}"
    if progress.down_s < 1:
        since = "does not answer"
    else:
        since = f"has not answered for {format_seconds(progress.down_s)}"
    return f"the endpoint {since}{why}: asking again{end}"
