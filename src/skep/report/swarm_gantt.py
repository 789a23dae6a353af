"""A run as a picture: a lane for each agent, a bar for each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from markupsafe import Markup

from skep.report.charts import Spec, drawing
from skep.report.svg import picture
from skep.swarm.records import Attempt, AttemptOutcome
from skep.swarm.summary import SessionSpan, SwarmStory
from skep.units import number, printable, seconds, shortened

MOST_BARS = 5000  # attempts; of more there is no picture
_WIDE_PX = 1006
_LANE_PX = 20.0
_LANE_LEAST_PX = 5.0
_LANES_PX = 660.0
OUTCOME_WORDS = {
    AttemptOutcome.DONE: "done",
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.REJECTED: "answer rejected",
    AttemptOutcome.SUPERSEDED: "the other attempt finished first",
    AttemptOutcome.CANCELLED: "cancelled",
}
_QUEUED = "in the gateway's queue"
_WAITING = "waiting for the first token"
_STREAMING = "streaming the answer"
_PARTS = (
    _QUEUED,
    _WAITING,
    _STREAMING,
    *(words for words in OUTCOME_WORDS.values() if words != "done"),
)


class WorkingTime(msgspec.Struct, frozen=True):
    """The axis: seconds of the sessions that lasted, one after the other.

    What lies between them is cut out.
    """

    spans: tuple[SessionSpan, ...]

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)

    def begin(self, span: SessionSpan) -> float:
        return sum(earlier.seconds for earlier in self.spans if earlier.session < span.session)

    def x(self, session: int, at: float) -> float | None:
        """Return the place of a moment; None where its session is not drawn, as it lasted no time
        at all.
        """
        span = next((span for span in self.spans if span.session == session), None)
        if span is None:
            return None
        return self.begin(span) + min(max(at - span.started_at, 0.0), span.seconds)


def working_time(spans: Sequence[SessionSpan]) -> WorkingTime | None:
    """Return the axis; None where nothing lasted, so that there is nothing to draw."""
    lasting = tuple(span for span in spans if span.seconds > 0)
    return WorkingTime(lasting) if lasting else None


def gantt_element(story: SwarmStory) -> Markup | None:
    """Return an `<svg>` element that takes the width it is given; None where nothing was tried."""
    drawn = gantt_spec(story)
    if drawn:
        return picture({**drawn, "padding": 0}, picture_words(story))
    return None


def picture_words(story: SwarmStory) -> str:
    """Return what a reader is told who sees no picture."""
    account = story.account
    lanes = len({attempt.agent for attempt in story.attempts})
    attempts = (
        f"{len(story.attempts)} attempts at {account.tasks} tasks by {lanes} agents in "
        f"{seconds(account.wall_s)}"
    )
    return f"{attempts}; {account.done} done, {account.failed} failed"


def gantt_spec(story: SwarmStory) -> Spec | None:
    """Return each attempt in its agent's lane, over the seconds of work."""
    time = working_time(story.spans)
    if time is None or not 0 < len(story.attempts) <= MOST_BARS:
        return None
    lanes = {attempt.agent for attempt in story.attempts}
    lane_px = min(_LANE_PX, max(_LANE_LEAST_PX, _LANES_PX / len(lanes)))
    bars = [row for attempt in story.attempts for row in _bars(attempt, time)]
    drawn_parts = {row["part"] for row in bars}
    pauses = _pauses(time)
    named_pauses = pauses if len(pauses) < 8 else []
    data = {
        "bars": bars,
        "downs": _downs(story, time),
        "pauses": pauses,
        "named_pauses": named_pauses,
    }
    unit, step_s = _time_unit(time.seconds)
    return drawing(
        "gantt",
        data,
        width=_WIDE_PX,
        height=lane_px * len(lanes),
        seconds=time.seconds,
        step=step_s,
        least_step=step_s if step_s > 1 else 0,
        unit=f"{unit} of work",
        parts=[name for name in _PARTS if name in drawn_parts],
    )


def _time_unit(lasted_s: float) -> tuple[str, int]:
    """Return the unit of the axis, and its seconds."""
    if lasted_s > 10_800:
        return "hours", 3600
    if lasted_s > 600:
        return "minutes", 60
    return "seconds", 1


def _downs(story: SwarmStory, time: WorkingTime) -> list[Spec]:
    """Return when the endpoint did not answer, each time wide enough to be seen."""
    rows = []
    least_s = 2 * time.seconds / _WIDE_PX
    for down in story.downs:
        begin = time.x(down.session, down.started_at) or 0.0
        end = time.x(down.session, down.ended_at) or 0.0
        tip = f"the endpoint did not answer for {seconds(down.ended_at - down.started_at)}"
        if down.why:
            tip += f": {shortened(down.why, 140)}"
        rows.append({"x": begin, "x2": max(end, begin + least_s), "tip": printable(tip)})
    return rows


def _pauses(time: WorkingTime) -> list[Spec]:
    """Return where two sessions meet, and for how long nobody worked."""
    rows = []
    for earlier, later in pairwise(time.spans):
        paused = seconds(max(0.0, later.started_at - earlier.ended_at))
        how = earlier.outcome or "its process disappeared"
        tip = f"{paused} between session {earlier.session} ({how}) and {later.session}, left out"
        rows.append({"x": time.begin(later), "tip": printable(tip), "label": f"{paused} pause"})
    return rows


def _bars(attempt: Attempt, time: WorkingTime) -> Iterator[Spec]:
    """Yield the parts of a bar, each long enough to be seen.

    Of one that is done, its queue and its wait are apart.
    """
    begin = time.x(attempt.session, attempt.started_at)
    end = time.x(attempt.session, attempt.ended_at)
    if begin is None or end is None:
        return
    pixel_s = time.seconds / _WIDE_PX
    end = max(end, begin + 1.6 * pixel_s)
    parts = [(begin, end, OUTCOME_WORDS[attempt.outcome])]
    if attempt.outcome is AttemptOutcome.DONE:
        dequeued_at = attempt.started_at + (attempt.queued_ms or 0.0) / 1000
        dequeued = time.x(attempt.session, dequeued_at) or begin
        dequeued = min(max(dequeued, begin), end)
        first_token = dequeued
        if attempt.first_token_at is not None:
            first_token = time.x(attempt.session, attempt.first_token_at) or 0.0
            first_token = min(max(first_token, dequeued), end)
        parts = [
            (begin, dequeued, _QUEUED),
            (dequeued, first_token, _WAITING),
            (first_token, max(end, first_token + pixel_s), _STREAMING),
        ]
    tip = printable(attempt_words(attempt))
    for x, x2, part in parts:
        if x2 - x > 0.3 * pixel_s:
            yield {"agent": attempt.agent, "x": x, "x2": x2, "part": part, "tip": tip}


def attempt_words(attempt: Attempt) -> str:
    """Return what one reads when the pointer rests on it."""
    lasted = max(0.0, attempt.ended_at - attempt.started_at)
    parts = [
        f"{shortened(attempt.task, 60)}: {OUTCOME_WORDS[attempt.outcome]} after {seconds(lasted)}"
    ]
    if attempt.number > 1:
        parts.append(f"attempt {attempt.number}, {attempt.why.value}")
    if attempt.queued_ms:
        parts.append(f"queued {seconds(attempt.queued_ms / 1000)}")
    if attempt.first_token_at is not None:
        parts.append(
            f"first token after {seconds(max(0.0, attempt.first_token_at - attempt.started_at))}"
        )
    if attempt.output_tokens is not None:
        parts.append(f"{number(attempt.output_tokens, digits=0)} tokens")
    if attempt.replica:
        parts.append(f"on {shortened(attempt.replica, 40)}")
    if attempt.error_kind or attempt.error:
        parts.append(shortened(" ".join(filter(None, (attempt.error_kind, attempt.error))), 160))
    return " · ".join(parts)
