"""A run as a picture: a lane for each agent, a bar for each attempt, and how many were allowed at once above them.

Pure: values in, SVG text out. What happened between two sessions is cut out and marked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from skep.report import theme
from skep.report.charts import Sheet, Spec, headed, quantity
from skep.report.svg import picture, standalone
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
_WIDTH = 1080
_LEFT, _RIGHT = 62, 1068
_PANEL_WORDS = 290  # wide
_PANEL_TOP, _PANEL_TALL = 26, 76
_BASE = _PANEL_TOP + _PANEL_TALL
_LANES_TOP = _BASE + 26
_LANE_PX, _LANE_LEAST_PX, _LANES_PX = 20.0, 5.0, 660.0
_LETTER_PX = 6.5
_LABEL_PX = 13.0  # the least distance of two labels of lanes


def gantt(story: SwarmStory) -> str:
    """An SVG document of its own, with its own background, readable on a page of any colour."""
    account = story.account
    marks = ["SIMULATED"] if account.simulated else []
    marks += [f"{account.left} OF {account.tasks} TASKS LEFT"] if account.left else []
    facts = [part for part in (account.model, f"run {account.run}") if part]
    title = headed(account.name or account.run, marks, *facts)
    return standalone({**_drawing(story), "title": title, "padding": 18}, picture_words(story))


def gantt_element(story: SwarmStory) -> str | None:
    """An `<svg>` element that takes the width it is given; None where nothing was tried."""
    if not story.attempts or make_gantt_axis(story.spans, _LEFT, _RIGHT) is None:
        return None
    return picture({**_drawing(story), "padding": 0}, picture_words(story))


def picture_words(story: SwarmStory) -> str:
    """For a reader who sees no picture."""
    account = story.account
    lanes = len({one.agent for one in story.attempts})
    told = f"{len(story.attempts)} attempts at {account.tasks} tasks in {lanes} lanes over {seconds(account.wall_s)}"
    return f"{told}; {account.done} done, {account.failed} set aside"


def _drawing(story: SwarmStory) -> Spec:
    """All places are in pixels."""
    sheet = Sheet()
    course = make_gantt_axis(story.spans, _LEFT, _RIGHT)
    if course is None or not story.attempts:
        sheet.text(_WIDTH / 2, 50, "nothing was tried yet", size=14, align="center")
        return _whole(sheet, 90)
    lanes: dict[int, list[Attempt]] = {}
    for one in story.attempts:
        lanes.setdefault(one.agent, []).append(one)
    each = min(_LANE_PX, max(_LANE_LEAST_PX, _LANES_PX / len(lanes)))
    bottom = _LANES_TOP + each * len(lanes)
    _axis(sheet, course, bottom)
    _downs(sheet, story, course, bottom)
    _names(sheet, sorted(lanes), each)
    _panel(sheet, story, course)
    for place, agent in enumerate(sorted(lanes)):
        top, tall = _LANES_TOP + place * each + 0.14 * each, 0.72 * each
        for group in _groups(lanes[agent], course, many=len(story.attempts) > MOST_BARS):
            _bar(sheet, group, course, top, tall)
    _pauses(sheet, course, bottom)
    return _whole(sheet, _legend(sheet, story, bottom + 44))


def _whole(sheet: Sheet, height: float) -> Spec:
    x = {**quantity("x", None, [0, _WIDTH]), "axis": None}
    y = {**quantity("y", None, [height, 0]), "axis": None}
    return {"width": _WIDTH, "height": height, "layer": [*sheet.ground(x, y), *sheet.marks(x, y)]}


def _groups(attempts: Sequence[Attempt], course: GanttAxis, *, many: bool) -> list[list[Attempt]]:
    """Those of one agent that share a bar: of `many`, neighbours that are done."""
    groups: list[list[Attempt]] = []
    open_group = False
    for one in attempts:
        done = many and one.outcome is AttemptOutcome.DONE
        if done and open_group and groups[-1][-1].session == one.session and _wide(groups[-1], course) < _TOGETHER_PX:
            groups[-1].append(one)
        else:
            groups.append([one])
            open_group = done
    return groups


def _wide(group: Sequence[Attempt], course: GanttAxis) -> float:
    left, right = course.x(group[0].session, group[0].started_at), course.x(group[-1].session, group[-1].ended_at)
    return 0.0 if left is None or right is None else right - left


def _bar(sheet: Sheet, group: Sequence[Attempt], course: GanttAxis, top: float, tall: float) -> None:
    first, last = group[0], group[-1]
    left, right = course.x(first.session, first.started_at), course.x(last.session, last.ended_at)
    if left is None or right is None:
        return
    right = max(right, left + _LEAST_PX)
    if len(group) > 1:
        tip = printable(f"{len(group)} tasks done: {shortened(first.task, 40)} to {shortened(last.task, 40)}")
        sheet.rect(left, max(right - 0.6, left + 0.8), top, top + tall, theme.SKY, tip=tip)
        return
    queued = course.x(first.session, first.started_at + (first.queued_ms or 0.0) / 1000) or left
    token = None if first.first_token_at is None else course.x(first.session, first.first_token_at)
    tip = printable(attempt_words(first))
    _shape(sheet, first.outcome, (left, right), top, tall, tip, (min(max(queued, left), right), token))
    _why(sheet, first.why, left, top, tall)


def _shape(
    sheet: Sheet,
    outcome: AttemptOutcome,
    ends: tuple[float, float],
    top: float,
    tall: float,
    tip: str,
    inner: tuple[float, float | None] = (0.0, None),
) -> None:
    """`inner`: where the queue ends, and where the first token came. Outcomes differ in shape as in colour."""
    (left, right), (queue, first) = ends, inner
    middle, half, foot = top + tall / 2, max(min(tall / 2 - 0.5, 4.0), 1.5), top + tall
    match outcome:
        case AttemptOutcome.DONE:
            if queue - left > 0.5:
                sheet.rule(left, queue, middle, middle, theme.STONE, width=1.6)
            begin = queue if first is None else min(max(first, queue), right)
            if begin - queue > 0.3:
                sheet.rect(queue, begin, top, foot, theme.PALE, tip=tip)
            sheet.rect(begin, max(right, begin + 0.8), top, foot, theme.SKY, tip=tip)
        case AttemptOutcome.FAILED:
            sheet.rect(left, right, top, foot, theme.ROSE, opacity=0.25, stroke=theme.ROSE, tip=tip)
            cross = f"M{-half} {-half}l{2 * half} {2 * half}m0 {-2 * half}l{-2 * half} {2 * half}"
            sheet.symbol(right, middle, cross, theme.ROSE, width=1.8)
        case AttemptOutcome.REJECTED:
            sheet.rect(left, right, top, foot, theme.HONEY, opacity=0.25, stroke=theme.HONEY, tip=tip)
            sheet.symbol(right, middle, "circle", theme.HONEY, width=1.6, size=4 * half**2, fill=theme.PAPER)
        case AttemptOutcome.SUPERSEDED:
            sheet.rect(left, right, top, foot, theme.PAPER, stroke=theme.MUTED, dash=[3, 2], tip=tip)
        case AttemptOutcome.CANCELLED:
            path = f"M{right - left} 0H0v{tall}H{right - left}"
            sheet.symbol(left, top, path, theme.MUTED, fill=theme.PAPER, tip=tip)


def _why(sheet: Sheet, why: Why, left: float, top: float, tall: float) -> None:
    middle, half = top + tall / 2, max(min(tall / 2, 4.0), 1.5)
    match why:
        case Why.RETRY:
            path = f"M0 {-half}l{1.4 * half} {half}l{-1.4 * half} {half}z"
            sheet.symbol(left, middle, path, theme.INK, fill=theme.INK, width=0.5)
        case Why.STRAGGLER:
            sheet.symbol(left + half, middle, "diamond", theme.PLUM, fill=theme.PLUM, width=0.5, size=4 * half**2)
        case Why.RESUMED:
            sheet.rule(left, left, top, top + tall, theme.INK, width=2)


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


def _axis(sheet: Sheet, course: GanttAxis, bottom: float) -> None:
    free = -1.0
    for x, label in working_ticks(course):
        sheet.rect(x - 0.5, x + 0.5, _PANEL_TOP, bottom, theme.GRID)
        half = len(label) * _LETTER_PX / 2
        place = min(max(x, half), _WIDTH - half)
        if place - half >= free:
            free = place + half + 6
            sheet.text(place, bottom + 13, label, align="center")
    sheet.rule(_LEFT, _RIGHT, bottom, bottom, theme.STONE)


def _names(sheet: Sheet, agents: Sequence[int], each: float) -> None:
    """Every lane's number where there is room, else every second, fifth, ..."""
    step = next(one for one in (1, 2, 5, 10, 20, 50, 100, 1000) if one * each >= _LABEL_PX or one == 1000)
    sheet.text(_LEFT - 8, _LANES_TOP - 10, "agent", align="right")
    for place, agent in enumerate(agents):
        if place % step == 0:
            sheet.text(_LEFT - 8, _LANES_TOP + (place + 0.5) * each, str(agent), align="right")


def _panel(sheet: Sheet, story: SwarmStory, course: GanttAxis) -> None:
    """How many were under way, and the line of how many were allowed."""
    counted = attempts_in_flight(course, story.attempts)
    allowed = [(one, x) for one in story.limits if (x := course.x(one.session, one.at)) is not None]
    most = max([many for _, steps in counted for _, many in steps] + [one.limit for one, _ in allowed], default=1) or 1
    up = (_PANEL_TALL - 4) / most
    sheet.text(_LEFT, _PANEL_TOP - 13, "agents at once" + (", and how many were allowed" if allowed else ""))
    sheet.text(_LEFT - 8, _BASE - most * up, str(most), align="right")
    sheet.text(_LEFT - 8, _BASE - 3, "0", align="right")
    sheet.rule(_LEFT, _RIGHT, _BASE, _BASE, theme.STONE)
    for piece, steps in counted:
        path = "M0 0" + "".join(f"H{x - piece.left:.1f}V{-many * up:.1f}" for x, many in steps)
        tip = f"at most {max(many for _, many in steps)} at once in session {piece.span.session}"
        whole = f"{path}H{piece.right - piece.left:.1f}V0Z"
        sheet.symbol(piece.left, _BASE, whole, theme.SKY, fill=theme.PALE, tip=tip)
        own = [(one, x) for one, x in allowed if one.session == piece.span.session]
        if own:
            path = "M0 0" + "".join(f"H{x - own[0][1]:.1f}V{(own[0][0].limit - one.limit) * up:.1f}" for one, x in own)
            path += f"H{piece.right - own[0][1]:.1f}"
            sheet.symbol(own[0][1], _BASE - own[0][0].limit * up, path, theme.HONEY, width=2, dash=[6, 3])
        for one, x in own[:200]:
            tip = printable(f"{one.limit} allowed" + (f": {shortened(one.why, 140)}" if one.why else ""))
            sheet.symbol(x, _BASE - one.limit * up, "circle", theme.HONEY, fill=theme.HONEY, size=21, tip=tip)


def _downs(sheet: Sheet, story: SwarmStory, course: GanttAxis, bottom: float) -> None:
    for one in story.downs:
        left, right = course.x_of_moment(one.started_at), course.x_of_moment(one.ended_at)
        tip = f"the endpoint did not answer for {seconds(one.ended_at - one.started_at)}"
        tip += f": {shortened(one.why, 140)}" if one.why else ""
        sheet.rect(left, max(right, left + 2), _PANEL_TOP, bottom, theme.ROSE, opacity=0.12, tip=printable(tip))
        if right - left > 34:
            sheet.text((left + right) / 2, _LANES_TOP - 10, "down", theme.ROSE, align="center")


def _pauses(sheet: Sheet, course: GanttAxis, bottom: float) -> None:
    """Where two sessions meet: a torn edge, and for how long nobody worked."""
    for earlier, later in pairwise(course.pieces):
        middle, top = (earlier.right + later.left) / 2, _PANEL_TOP - 4
        paused = max(0.0, later.span.started_at - earlier.span.ended_at)
        how = earlier.span.outcome or "its process vanished"
        tip = f"{seconds(paused)} between session {earlier.span.session} ({how}) and {later.span.session}, cut out"
        sheet.rect(earlier.right, later.left, top, bottom + 4, theme.PAPER, tip=printable(tip))
        sheet.symbol(middle, top, "M0 0" + "l3 6l-6 6l3 6" * int((bottom + 4 - top) / 18), theme.STONE, width=1.2)
        if len(course.pieces) <= 8 and middle > _LEFT + _PANEL_WORDS:  # else it would run into the panel's own words
            sheet.text(middle, _PANEL_TOP - 13, f"{seconds(paused)} pause", align="center")


def _legend(sheet: Sheet, story: SwarmStory, top: float) -> float:
    """Of the marks that are drawn, in as many rows as they need; gives where it ends."""
    outcomes = {one.outcome for one in story.attempts}
    whys = {one.why for one in story.attempts}
    done = AttemptOutcome.DONE in outcomes
    others = [one for one in OUTCOME_WORDS if one in outcomes and one is not AttemptOutcome.DONE]
    entries: list[tuple[object, str, bool]] = [
        ("queue", "in the gateway's queue", any(one.queued_ms for one in story.attempts)),
        (theme.PALE, "waiting for the first token", done),
        (theme.SKY, "streaming its answer", done),
        *((one, OUTCOME_WORDS[one], True) for one in others),
        *((why, WHY_WORDS[why], why in whys) for why in WHY_WORDS),
        ("limit", "agents allowed at once", bool(story.limits)),
    ]
    x, y = float(_LEFT), top
    for what, words, there in entries:
        wide = 52 + len(words) * _LETTER_PX
        if not there:
            continue
        if x + wide > _RIGHT and x > _LEFT:
            x, y = float(_LEFT), y + 20
        match what:
            case AttemptOutcome():
                _shape(sheet, what, (x, x + 21), y, 12, words)
            case Why():
                _why(sheet, what, x + 8, y, 12)
            case "queue":
                sheet.rule(x, x + 24, y + 6, y + 6, theme.STONE, width=1.6)
            case "limit":
                sheet.rule(x, x + 24, y + 6, y + 6, theme.HONEY, width=2, dash=[6, 3])
            case colour:
                sheet.rect(x, x + 24, y, y + 12, str(colour))
        sheet.text(x + 32, y + 6, words)
        x += wide
    return y + 26


def gantt_caption(story: SwarmStory) -> str:
    """What is in the picture, in words."""
    account = story.account
    told = "A lane is one agent, a bar one attempt; time runs to the right, in seconds of work."
    if account.paused_s and account.sessions > 1:
        told += f" {seconds(account.paused_s)} between {number(account.sessions, digits=0)} sessions are cut out."
    if len(story.attempts) > MOST_BARS:
        told += f" Of {number(len(story.attempts), digits=0)} attempts, neighbours that are done share a bar."
    return told
