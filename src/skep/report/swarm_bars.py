"""The bars of a run's picture: one for each attempt, told apart by shape as well as by colour. Pure.

Done: a thin line in the queue, faint while it waits for its first token, strong while it streams. Failed: hatched with
a cross. Rejected: dotted with a ring. Superseded: dashed outline. Cancelled: an outline that is open at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from skep.report import theme
from skep.report.figures import number, printable, seconds, shortened
from skep.report.swarm_course import Course
from skep.tasks import Attempt, Outcome, Why

MOST_BARS = 3000  # attempts that get a bar of their own; of more, neighbours are drawn together
_LEAST_PX = 1.6
_TOGETHER_PX = 10.0

WHY_WORDS = {
    Why.RETRY: "tried again",
    Why.STRAGGLER: "a second one beside a slow one",
    Why.RESUMED: "again after a break",
}
OUTCOME_WORDS = {
    Outcome.DONE: "done",
    Outcome.FAILED: "failed",
    Outcome.REJECTED: "answer rejected",
    Outcome.SUPERSEDED: "the other attempt was first",
    Outcome.CANCELLED: "cancelled",
}


def patterns(name: str) -> str:
    """The fillings that bars refer to by `name`."""
    tile = 'patternUnits="userSpaceOnUse"'
    return (
        f'<defs><pattern id="{name}-f" width="4" height="4" {tile} patternTransform="rotate(45)">'
        f'<path d="M0 0v4" stroke="{theme.ROSE}" stroke-width="2.6"/></pattern>'
        f'<pattern id="{name}-r" width="4" height="4" {tile}>'
        f'<circle cx="2" cy="2" r="1.2" fill="{theme.HONEY}"/></pattern>'
        f'<pattern id="{name}-d" width="8" height="8" {tile} patternTransform="rotate(-45)">'
        f'<path d="M0 0v8" stroke="{theme.ROSE}" stroke-opacity=".4"/></pattern></defs>'
    )


def lane_bars(attempts: Sequence[Attempt], course: Course, top: float, tall: float, name: str, *, many: bool) -> str:
    """All of one agent, by start. `many`: neighbours that are done share a bar."""
    if not many:
        return "".join(bar(one, course, top, tall, name) for one in attempts)
    parts: list[str] = []
    group: list[Attempt] = []
    for one in attempts:
        if one.outcome is not Outcome.DONE:
            parts.append(bar(one, course, top, tall, name))
            continue
        if group and (group[-1].session != one.session or _wide(group, course) >= _TOGETHER_PX):
            parts.append(_together(group, course, top, tall))
            group = []
        group.append(one)
    if group:
        parts.append(_together(group, course, top, tall))
    return "".join(parts)


def bar(attempt: Attempt, course: Course, top: float, tall: float, name: str) -> str:
    left, right = course.x(attempt.session, attempt.started_at), course.x(attempt.session, attempt.ended_at)
    if left is None or right is None:
        return ""
    right = max(right, left + _LEAST_PX)
    body = shape(attempt.outcome, left, right, top, tall, name, _parts(attempt, course, left, right))
    return f"<g><title>{_text(attempt_words(attempt))}</title>{body}{_why(attempt.why, left, top, tall)}</g>"


def shape(
    outcome: Outcome, left: float, right: float, top: float, tall: float, name: str, inner: tuple[float, float | None]
) -> str:
    """`inner`: where the queue ends, and where the first token came."""
    queue, first = inner
    wide = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{tall:.1f}"'
    middle, half = top + tall / 2, max(min(tall / 2 - 0.5, 4.0), 1.5)
    match outcome:
        case Outcome.DONE:
            line = f"M{left:.1f} {middle:.1f}H{queue:.1f}" if queue - left > 0.5 else ""
            queued = f'<path d="{line}" stroke="{theme.STONE}" stroke-width="1.6"/>' if line else ""
            begin = queue if first is None else min(max(first, queue), right)
            waiting = _rect(queue, begin, top, tall, theme.PALE) if begin - queue > 0.3 else ""
            return queued + waiting + _rect(begin, max(right, begin + 0.8), top, tall, theme.SKY)
        case Outcome.FAILED:
            cross = f"M{right - half:.1f} {middle - half:.1f}l{2 * half:.1f} {2 * half:.1f}m0 {-2 * half:.1f}"
            cross += f"l{-2 * half:.1f} {2 * half:.1f}"
            return (
                f'<rect {wide} fill="url(#{name}-f)" stroke="{theme.ROSE}" stroke-width=".8"/>'
                f'<path d="{cross}" stroke="{theme.ROSE}" stroke-width="1.8" fill="none"/>'
            )
        case Outcome.REJECTED:
            return (
                f'<rect {wide} fill="url(#{name}-r)" stroke="{theme.HONEY}" stroke-width=".8"/>'
                f'<circle cx="{right:.1f}" cy="{middle:.1f}" r="{half:.1f}" fill="{theme.PAPER}" '
                f'stroke="{theme.HONEY}" stroke-width="1.6"/>'
            )
        case Outcome.SUPERSEDED:
            return f'<rect {wide} fill="none" stroke="{theme.MUTED}" stroke-dasharray="3 2"/>'
        case Outcome.CANCELLED:
            path = f"M{right:.1f} {top:.1f}H{left:.1f}v{tall:.1f}H{right:.1f}"
            return f'<path d="{path}" fill="none" stroke="{theme.MUTED}"/>'


def attempt_words(attempt: Attempt) -> str:
    """What one reads when the pointer rests on it."""
    lasted = max(0.0, attempt.ended_at - attempt.started_at)
    parts = [f"{shortened(attempt.task, 60)}: {OUTCOME_WORDS[attempt.outcome]} after {seconds(lasted)}"]
    if attempt.why in WHY_WORDS:
        parts.append(f"attempt {attempt.number}, {WHY_WORDS[attempt.why]}")
    if attempt.queued_ms:
        parts.append(f"queued {seconds(attempt.queued_ms / 1000)}")
    if attempt.first_token_at is not None:
        parts.append(f"first token after {seconds(max(0.0, attempt.first_token_at - attempt.started_at))}")
    if attempt.output_tokens is not None:
        parts.append(f"{number(attempt.output_tokens, digits=0)} tokens")
    if attempt.replica:
        parts.append(f"on {shortened(attempt.replica, 40)}")
    if attempt.error_kind or attempt.error:
        parts.append(shortened(" ".join(filter(None, (attempt.error_kind, attempt.error))), 160))
    return " · ".join(parts)


def _why(why: Why, left: float, top: float, tall: float) -> str:
    middle, half = top + tall / 2, max(min(tall / 2, 4.0), 1.5)
    match why:
        case Why.RETRY:
            path = f"M{left:.1f} {middle - half:.1f}l{1.4 * half:.1f} {half:.1f}l{-1.4 * half:.1f} {half:.1f}z"
            return f'<path d="{path}" fill="{theme.INK}"/>'
        case Why.STRAGGLER:
            path = f"M{left:.1f} {middle:.1f}l{half:.1f} {-half:.1f}l{half:.1f} {half:.1f}l{-half:.1f} {half:.1f}z"
            return f'<path d="{path}" fill="{theme.PLUM}"/>'
        case Why.RESUMED:
            return f'<path d="M{left:.1f} {top:.1f}v{tall:.1f}" stroke="{theme.INK}" stroke-width="2"/>'
        case _:
            return ""


def why_sample(why: Why, left: float, top: float, tall: float) -> str:
    return _why(why, left, top, tall)


def _parts(attempt: Attempt, course: Course, left: float, right: float) -> tuple[float, float | None]:
    queued = course.x(attempt.session, attempt.started_at + (attempt.queued_ms or 0.0) / 1000)
    first = None if attempt.first_token_at is None else course.x(attempt.session, attempt.first_token_at)
    return min(max(queued or left, left), right), first


def _wide(group: Sequence[Attempt], course: Course) -> float:
    left, right = course.x(group[0].session, group[0].started_at), course.x(group[-1].session, group[-1].ended_at)
    return 0.0 if left is None or right is None else right - left


def _together(group: Sequence[Attempt], course: Course, top: float, tall: float) -> str:
    if len(group) == 1:
        return bar(group[0], course, top, tall, "")
    left = course.x(group[0].session, group[0].started_at)
    right = course.x(group[-1].session, group[-1].ended_at)
    if left is None or right is None:
        return ""
    told = f"{len(group)} tasks done: {shortened(group[0].task, 40)} to {shortened(group[-1].task, 40)}"
    inner = _rect(left, max(right - 0.6, left + 0.8), top, tall, theme.SKY)
    return f"<g><title>{_text(told)}</title>{inner}</g>"


def _rect(left: float, right: float, top: float, tall: float, colour: str) -> str:
    return f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{tall:.1f}" fill="{colour}"/>'


def _text(words: str) -> str:
    return escape(printable(words))
