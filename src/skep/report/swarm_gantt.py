"""A run as a picture: a lane for each agent, a bar for each attempt, and how many were allowed at once above them.

Pure: values in, SVG text out. All colours are attributes in the day colours of `theme`, so that `theme.night_rules`
turns them. What happened between two sessions is cut out and marked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from skep.report import theme
from skep.swarm.records import Attempt, AttemptOutcome, Why
from skep.swarm.summary import SessionSpan, SwarmStory
from skep.units import number, printable, seconds, shortened

_GAP_PX = 16.0
_GAPS_SHARE = 0.2  # of the width, at most, for all pauses together
_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)
_STEPS = (
    *_SECONDS,
    *(60 * one for one in (1, 2, 5, 10, 15, 30)),
    *(3600 * one for one in (1, 2, 3, 6, 12, 24, 48, 168)),
)


@dataclass(frozen=True, slots=True)
class GanttSession:
    """One session. `before_s`: of working time, in the sessions before it."""

    span: SessionSpan
    left: float
    right: float
    before_s: float


@dataclass(frozen=True, slots=True)
class GanttAxis:
    pieces: tuple[GanttSession, ...]
    left: float
    right: float
    seconds: float  # of all sessions together

    def x(self, session: int, at: float) -> float | None:
        """None where the session is not drawn, as it lasted no time at all."""
        piece = next((one for one in self.pieces if one.span.session == session), None)
        if piece is None:
            return None
        share = (at - piece.span.started_at) / piece.span.seconds
        return piece.left + min(max(share, 0.0), 1.0) * (piece.right - piece.left)

    def x_of_moment(self, at: float) -> float:
        """Of a moment of whatever session; one in a pause lies at its edge."""
        place = bisect_right([one.span.started_at for one in self.pieces], at) - 1
        found = self.x(self.pieces[max(place, 0)].span.session, at)
        return self.left if found is None else found


def make_gantt_axis(spans: Sequence[SessionSpan], left: float, right: float) -> GanttAxis | None:
    """None where nothing lasted: there is nothing to draw."""
    lasting = [span for span in spans if span.seconds > 0]
    total = sum(span.seconds for span in lasting)
    if not lasting or total <= 0:
        return None
    gaps = len(lasting) - 1
    gap = min(_GAP_PX, _GAPS_SHARE * (right - left) / gaps) if gaps else 0.0
    each = (right - left - gaps * gap) / total
    pieces: list[GanttSession] = []
    x, before = left, 0.0
    for span in lasting:
        wide = span.seconds * each
        pieces.append(GanttSession(span, x, x + wide, before))
        x += wide + gap
        before += span.seconds
    return GanttAxis(tuple(pieces), left, right, total)


def working_ticks(course: GanttAxis, most: int = 10) -> list[tuple[float, str]]:
    """Places along the axis and their labels, counted in working time."""
    step = next((one for one in _STEPS if one * most >= course.seconds), _STEPS[-1] * 4)
    found = []
    for step_number in range(int(course.seconds / step + 1e-9) + 1):
        at = step_number * step
        piece = next((one for one in reversed(course.pieces) if one.before_s <= at + 1e-9), course.pieces[0])
        x = course.x(piece.span.session, piece.span.started_at + at - piece.before_s)
        if x is not None:
            found.append((x, _moment_label(at, step)))
    return found


def _moment_label(at: float, step: float) -> str:
    if step < 1:
        return f"{at:.1f} s"
    if step < 60 and at < 600:
        return f"{at:.0f} s"
    if step < 3600:
        return f"{at / 60:g} min"
    return f"{at / 3600:g} h"


def attempts_in_flight(
    course: GanttAxis, attempts: Sequence[Attempt]
) -> list[tuple[GanttSession, list[tuple[float, int]]]]:
    """For each session how many were under way: (place, so many from there on), one for each pixel at most."""
    found = []
    for piece in course.pieces:
        edges: list[tuple[float, int]] = []
        for one in attempts:
            if one.session == piece.span.session:
                edges += [(one.started_at, 1), (one.ended_at, -1)]
        steps: list[tuple[float, int]] = [(piece.left, 0)]
        many = 0
        for at, step in sorted(edges):
            many += step
            x = course.x(piece.span.session, at) or piece.left
            if x - steps[-1][0] < 1 and len(steps) > 1:
                steps[-1] = (steps[-1][0], many)
            else:
                steps.append((x, many))
        found.append((piece, steps))
    return found


MOST_BARS = 3000  # attempts that get a bar of their own; of more, neighbours are drawn together
_LEAST_PX = 1.6
_TOGETHER_PX = 10.0

WHY_WORDS = {
    Why.RETRY: "tried again",
    Why.STRAGGLER: "a second one beside a slow one",
    Why.RESUMED: "again after a break",
}
OUTCOME_WORDS = {
    AttemptOutcome.DONE: "done",
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.REJECTED: "answer rejected",
    AttemptOutcome.SUPERSEDED: "the other attempt was first",
    AttemptOutcome.CANCELLED: "cancelled",
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


def lane_bars(attempts: Sequence[Attempt], course: GanttAxis, top: float, tall: float, name: str, *, many: bool) -> str:
    """All of one agent, by start. `many`: neighbours that are done share a bar."""
    if not many:
        return "".join(bar(one, course, top, tall, name) for one in attempts)
    parts: list[str] = []
    group: list[Attempt] = []
    for one in attempts:
        if one.outcome is not AttemptOutcome.DONE:
            parts.append(bar(one, course, top, tall, name))
            continue
        if group and (group[-1].session != one.session or _wide(group, course) >= _TOGETHER_PX):
            parts.append(_together(group, course, top, tall))
            group = []
        group.append(one)
    if group:
        parts.append(_together(group, course, top, tall))
    return "".join(parts)


def bar(attempt: Attempt, course: GanttAxis, top: float, tall: float, name: str) -> str:
    left, right = course.x(attempt.session, attempt.started_at), course.x(attempt.session, attempt.ended_at)
    if left is None or right is None:
        return ""
    right = max(right, left + _LEAST_PX)
    body = shape(attempt.outcome, left, right, top, tall, name, _parts(attempt, course, left, right))
    return f"<g><title>{_text(attempt_words(attempt))}</title>{body}{_why(attempt.why, left, top, tall)}</g>"


def shape(
    outcome: AttemptOutcome,
    left: float,
    right: float,
    top: float,
    tall: float,
    name: str,
    inner: tuple[float, float | None],
) -> str:
    """`inner`: where the queue ends, and where the first token came."""
    queue, first = inner
    wide = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{tall:.1f}"'
    middle, half = top + tall / 2, max(min(tall / 2 - 0.5, 4.0), 1.5)
    match outcome:
        case AttemptOutcome.DONE:
            line = f"M{left:.1f} {middle:.1f}H{queue:.1f}" if queue - left > 0.5 else ""
            queued = f'<path d="{line}" stroke="{theme.STONE}" stroke-width="1.6"/>' if line else ""
            begin = queue if first is None else min(max(first, queue), right)
            waiting = _rect(queue, begin, top, tall, theme.PALE) if begin - queue > 0.3 else ""
            return queued + waiting + _rect(begin, max(right, begin + 0.8), top, tall, theme.SKY)
        case AttemptOutcome.FAILED:
            cross = f"M{right - half:.1f} {middle - half:.1f}l{2 * half:.1f} {2 * half:.1f}m0 {-2 * half:.1f}"
            cross += f"l{-2 * half:.1f} {2 * half:.1f}"
            return (
                f'<rect {wide} fill="url(#{name}-f)" stroke="{theme.ROSE}" stroke-width=".8"/>'
                f'<path d="{cross}" stroke="{theme.ROSE}" stroke-width="1.8" fill="none"/>'
            )
        case AttemptOutcome.REJECTED:
            return (
                f'<rect {wide} fill="url(#{name}-r)" stroke="{theme.HONEY}" stroke-width=".8"/>'
                f'<circle cx="{right:.1f}" cy="{middle:.1f}" r="{half:.1f}" fill="{theme.PAPER}" '
                f'stroke="{theme.HONEY}" stroke-width="1.6"/>'
            )
        case AttemptOutcome.SUPERSEDED:
            return f'<rect {wide} fill="none" stroke="{theme.MUTED}" stroke-dasharray="3 2"/>'
        case AttemptOutcome.CANCELLED:
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


def _parts(attempt: Attempt, course: GanttAxis, left: float, right: float) -> tuple[float, float | None]:
    queued = course.x(attempt.session, attempt.started_at + (attempt.queued_ms or 0.0) / 1000)
    first = None if attempt.first_token_at is None else course.x(attempt.session, attempt.first_token_at)
    return min(max(queued or left, left), right), first


def _wide(group: Sequence[Attempt], course: GanttAxis) -> float:
    left, right = course.x(group[0].session, group[0].started_at), course.x(group[-1].session, group[-1].ended_at)
    return 0.0 if left is None or right is None else right - left


def _together(group: Sequence[Attempt], course: GanttAxis, top: float, tall: float) -> str:
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


_WIDTH = 1080
_LEFT, _RIGHT = 62, 1068
_PANEL_WORDS = 290  # wide
_PANEL_TOP, _PANEL_TALL = 26, 76
_LANES_TOP = _PANEL_TOP + _PANEL_TALL + 26
_LANE_PX, _LANE_LEAST_PX, _LANES_PX = 20.0, 5.0, 660.0
_LETTER_PX = 6.5
_LABEL_PX = 13.0  # the least distance of two labels of lanes


def gantt(story: SwarmStory) -> str:
    """An SVG document of its own, with its own background, readable on a page of any colour."""
    inner, height = _drawing(story, 56)
    account = story.account
    name = shortened(printable(account.name or account.run), 80)
    marks = ["SIMULATED"] if account.simulated else []
    marks += [f"{account.left} OF {account.tasks} TASKS LEFT"] if account.left else []
    below = " · ".join([*marks, printable(account.model or ""), f"run {account.run}"]).replace(" ·  · ", " · ")
    colour = theme.ROSE if marks else theme.MUTED
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{_text(picture_words(story))}" '
        f'font-family="{escape(theme.FONT)}">'
        f"<style>{theme.night_rules('svg')}</style>"
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="10" fill="{theme.PAPER}" '
        f'stroke="{theme.GRID}"/>'
        f'<text x="18" y="27" font-size="17" font-weight="600" fill="{theme.INK}">{_text(name)}</text>'
        f'<text x="18" y="45" font-size="12" fill="{colour}">{_text(below)}</text>{inner}</svg>'
    )


def gantt_element(story: SwarmStory) -> str | None:
    """An `<svg>` element that takes the width it is given; None where nothing was tried."""
    if not story.attempts or make_gantt_axis(story.spans, _LEFT, _RIGHT) is None:
        return None
    inner, height = _drawing(story, 0)
    label = _text(picture_words(story))
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">{inner}</svg>'


def picture_words(story: SwarmStory) -> str:
    """For a reader who sees no picture."""
    account = story.account
    lanes = len({one.agent for one in story.attempts})
    told = f"{len(story.attempts)} attempts at {account.tasks} tasks in {lanes} lanes over {seconds(account.wall_s)}"
    return f"{told}; {account.done} done, {account.failed} set aside"


def _drawing(story: SwarmStory, above: float) -> tuple[str, float]:
    course = make_gantt_axis(story.spans, _LEFT, _RIGHT)
    if course is None or not story.attempts:
        words = '<text x="{0}" y="{1}" font-size="14" text-anchor="middle" fill="{2}">nothing was tried yet</text>'
        return words.format(_WIDTH / 2, above + 50, theme.MUTED), above + 90
    lanes: dict[int, list[Attempt]] = {}
    for one in story.attempts:
        lanes.setdefault(one.agent, []).append(one)
    each = min(_LANE_PX, max(_LANE_LEAST_PX, _LANES_PX / len(lanes)))
    bottom = _LANES_TOP + each * len(lanes)
    many = len(story.attempts) > MOST_BARS
    parts = [
        patterns("g"),
        _axis(course, bottom),
        _panel(story, course),
        _downs(story, course, bottom),
        _names(sorted(lanes), each),
        *(
            lane_bars(lanes[agent], course, _LANES_TOP + place * each + 0.14 * each, 0.72 * each, "g", many=many)
            for place, agent in enumerate(sorted(lanes))
        ),
        _pauses(course, bottom),
    ]
    legend, tall = _legend(story, bottom + 44)
    return f'<g transform="translate(0 {above:.0f})">{"".join(parts)}{legend}</g>', above + bottom + 44 + tall


def _axis(course: GanttAxis, bottom: float) -> str:
    parts = []
    free = -1.0
    for x, label in working_ticks(course):
        parts.append(f'<path d="M{x:.1f} {_PANEL_TOP}V{bottom:.1f}" stroke="{theme.GRID}"/>')
        half = len(label) * _LETTER_PX / 2
        place = min(max(x, half), _WIDTH - half)
        if place - half >= free:
            free = place + half + 6
            parts.append(_label(place, bottom + 17, label, "middle"))
    parts.append(f'<path d="M{_LEFT} {bottom:.1f}H{_RIGHT}" stroke="{theme.STONE}"/>')
    return "".join(parts)


def _names(agents: Sequence[int], each: float) -> str:
    """Every lane's number where there is room, else every second, fifth, ..."""
    step = next(one for one in (1, 2, 5, 10, 20, 50, 100, 1000) if one * each >= _LABEL_PX or one == 1000)
    parts = [_label(_LEFT - 8, _LANES_TOP - 6, "agent", "end")]
    for place, agent in enumerate(agents):
        if place % step == 0:
            parts.append(_label(_LEFT - 8, _LANES_TOP + (place + 0.5) * each + 4, str(agent), "end"))
    return "".join(parts)


def _panel(story: SwarmStory, course: GanttAxis) -> str:
    """How many were under way, and the line of how many were allowed."""
    counted = attempts_in_flight(course, story.attempts)
    allowed = [one.limit for one in story.limits if course.x(one.session, one.at) is not None]
    most = max([many for _, steps in counted for _, many in steps] + allowed, default=1) or 1
    base = _PANEL_TOP + _PANEL_TALL

    def y(many: float) -> float:
        return base - many / most * (_PANEL_TALL - 4)

    parts = [
        _label(_LEFT, _PANEL_TOP - 9, "agents at once" + (", and how many were allowed" if allowed else ""), "start"),
        _label(_LEFT - 8, y(most) + 4, str(most), "end"),
        _label(_LEFT - 8, base + 1, "0", "end"),
        f'<path d="M{_LEFT} {base}H{_RIGHT}" stroke="{theme.STONE}"/>',
    ]
    for piece, steps in counted:
        path = f"M{piece.left:.1f} {base}" + "".join(f"H{x:.1f}V{y(many):.1f}" for x, many in steps)
        told = f"at most {max(many for _, many in steps)} at once in session {piece.span.session}"
        shade = f'<path d="{path}H{piece.right:.1f}V{base}z" fill="{theme.PALE}" stroke="{theme.SKY}"/>'
        parts.append(f"<g><title>{told}</title>{shade}</g>")
        parts.append(_limit_line(story, course, piece.span, y))
    return "".join(parts)


def _limit_line(story: SwarmStory, course: GanttAxis, span: SessionSpan, y: Callable[[float], float]) -> str:
    own = [one for one in story.limits if one.session == span.session]
    places = [(course.x(span.session, one.at), one) for one in own]
    drawn = [(x, one) for x, one in places if x is not None]
    if not drawn:
        return ""
    end = course.x(span.session, span.ended_at)
    path = f"M{drawn[0][0]:.1f} {y(drawn[0][1].limit):.1f}"
    path += "".join(f"H{x:.1f}V{y(one.limit):.1f}" for x, one in drawn[1:]) + f"H{end:.1f}"
    look = f'fill="none" stroke="{theme.HONEY}" stroke-width="2" stroke-dasharray="6 3"'
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y(one.limit):.1f}" r="2.6" fill="{theme.HONEY}">'
        f"<title>{_text(f'{one.limit} allowed' + (f': {shortened(one.why, 140)}' if one.why else ''))}</title></circle>"
        for x, one in drawn[:200]
    )
    return f'<path d="{path}" {look}/>{dots}'


def _downs(story: SwarmStory, course: GanttAxis, bottom: float) -> str:
    parts = []
    for one in story.downs:
        left, right = course.x_of_moment(one.started_at), course.x_of_moment(one.ended_at)
        right = max(right, left + 2)
        told = f"the endpoint did not answer for {seconds(one.ended_at - one.started_at)}"
        told += f": {shortened(one.why, 140)}" if one.why else ""
        place = f'x="{left:.1f}" y="{_PANEL_TOP}" width="{right - left:.1f}" height="{bottom - _PANEL_TOP:.1f}"'
        word = _label((left + right) / 2, _PANEL_TOP + 24, "down", "middle", theme.ROSE) if right - left > 34 else ""
        parts.append(
            f'<g><title>{_text(told)}</title><rect {place} fill="{theme.ROSE}" fill-opacity=".08"/>'
            f'<rect {place} fill="url(#g-d)"/>{word}</g>'
        )
    return "".join(parts)


def _pauses(course: GanttAxis, bottom: float) -> str:
    """Where two sessions meet: a torn edge, and for how long nobody worked."""
    parts = []
    for earlier, later in pairwise(course.pieces):
        left, right = earlier.right, later.left
        paused = max(0.0, later.span.started_at - earlier.span.ended_at)
        how = earlier.span.outcome or "its process vanished"
        told = f"{seconds(paused)} between session {earlier.span.session} ({how}) and {later.span.session}, cut out"
        place = f'x="{left:.1f}" y="{_PANEL_TOP - 4}" width="{right - left:.1f}" height="{bottom - _PANEL_TOP + 8:.1f}"'
        middle = (left + right) / 2
        tear = f"M{middle:.1f} {_PANEL_TOP - 4}" + "l3 6l-6 6l3 6" * int((bottom - _PANEL_TOP + 8) / 18)
        word = ""
        if len(course.pieces) <= 8 and middle > _LEFT + _PANEL_WORDS:  # else it would run into the panel's own words
            word = _label(middle, _PANEL_TOP - 9, f"{seconds(paused)} pause", "middle")
        parts.append(
            f'<g><title>{_text(told)}</title><rect {place} fill="{theme.PAPER}"/>'
            f'<path d="{tear}" fill="none" stroke="{theme.STONE}" stroke-width="1.2"/>{word}</g>'
        )
    return "".join(parts)


def _legend(story: SwarmStory, top: float) -> tuple[str, float]:
    """Of the marks that are drawn, in as many rows as they need; and how tall it is."""
    outcomes = {one.outcome for one in story.attempts}
    whys = {one.why for one in story.attempts}
    queued = any(one.queued_ms for one in story.attempts)
    entries: list[tuple[str, str]] = []
    if queued:
        entries.append((f'<path d="M0 6H24" stroke="{theme.STONE}" stroke-width="1.6"/>', "in the gateway's queue"))
    if AttemptOutcome.DONE in outcomes:
        entries.append((f'<rect width="24" height="12" fill="{theme.PALE}"/>', "waiting for the first token"))
        entries.append((f'<rect width="24" height="12" fill="{theme.SKY}"/>', "streaming its answer"))
    others = [one for one in OUTCOME_WORDS if one in outcomes and one is not AttemptOutcome.DONE]
    entries += [(shape(one, 0, 21, 0, 12, "g", (0, None)), OUTCOME_WORDS[one]) for one in others]
    entries += [(_why(why, 8, 0, 12), WHY_WORDS[why]) for why in Why if why in whys and why in WHY_WORDS]
    if story.limits:
        line = f'<path d="M0 6H24" stroke="{theme.HONEY}" stroke-width="2" stroke-dasharray="6 3"/>'
        entries.append((line, "agents allowed at once"))
    parts = []
    x, y = float(_LEFT), top
    for drawn, words in entries:
        wide = 32 + len(words) * _LETTER_PX + 20
        if x + wide > _RIGHT and x > _LEFT:
            x, y = float(_LEFT), y + 20
        parts.append(f'<g transform="translate({x:.0f} {y:.0f})">{drawn}{_label(32, 10, words, "start")}</g>')
        x += wide
    return "".join(parts), y - top + 26


def gantt_caption(story: SwarmStory) -> str:
    """What is in the picture, in words."""
    account = story.account
    told = "A lane is one agent, a bar one attempt; time runs to the right, in seconds of work."
    if account.paused_s and account.sessions > 1:
        told += f" {seconds(account.paused_s)} between {number(account.sessions, digits=0)} sessions are cut out."
    if len(story.attempts) > MOST_BARS:
        told += f" Of {number(len(story.attempts), digits=0)} attempts, neighbours that are done share a bar."
    return told


def _label(x: float, y: float, words: str, anchor: str, colour: str = theme.MUTED) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{colour}">{_text(words)}</text>'


def _text(words: str) -> str:
    return escape(printable(words))
