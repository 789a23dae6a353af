"""A run as a picture: a lane for each agent, a bar for each attempt, and how many were allowed at once above them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from markupsafe import Markup

from skep.report import theme
from skep.report.charts import MarkSheet, Spec, headed, label, layer, quantity
from skep.report.svg import picture, standalone
from skep.swarm.records import Attempt, AttemptOutcome, Why
from skep.swarm.summary import SessionSpan, SwarmStory
from skep.units import number, printable, seconds, shortened


class WorkingTime(msgspec.Struct, frozen=True):
    """The axis: seconds of the sessions that lasted, one after the other. What lies between them is cut out."""

    spans: tuple[SessionSpan, ...]

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)

    def begin(self, span: SessionSpan) -> float:
        return sum(one.seconds for one in self.spans if one.session < span.session)

    def x(self, session: int, at: float) -> float | None:
        """None where the session is not drawn, as it lasted no time at all."""
        span = next((one for one in self.spans if one.session == session), None)
        return None if span is None else self.begin(span) + min(max(at - span.started_at, 0.0), span.seconds)

    def x_of_moment(self, at: float) -> float:
        """Of a moment of whatever session; one in a pause lies at its edge."""
        place = bisect_right([one.started_at for one in self.spans], at) - 1
        return self.x(self.spans[max(place, 0)].session, at) or 0.0


def working_time(spans: Sequence[SessionSpan]) -> WorkingTime | None:
    """None where nothing lasted: there is nothing to draw."""
    lasting = tuple(span for span in spans if span.seconds > 0)
    return WorkingTime(lasting) if lasting else None


def attempts_in_flight(attempts: Sequence[Attempt], session: int, least_s: float) -> list[tuple[float, int]]:
    """Return how many were under way: (moment, so many from there on), one for every `least_s` at most."""
    edges = [(one.started_at, 1) for one in attempts if one.session == session]
    edges += [(one.ended_at, -1) for one in attempts if one.session == session]
    steps: list[tuple[float, int]] = []
    many = 0
    for at, step in sorted(edges):
        many += step
        if steps and at - steps[-1][0] < least_s:
            steps[-1] = (steps[-1][0], many)
        else:
            steps.append((at, many))
    return steps


MOST_BARS = 3000  # attempts that get a bar of their own; of more, neighbours are drawn together
_LEAST_PX = 1.6
_TOGETHER_PX = 10.0
WHY_WORDS = {
    Why.RETRY: "tried again",
    Why.STRAGGLER: "second attempt beside a slow one",
    Why.RESUMED: "repeated after a pause",
}
OUTCOME_WORDS = {
    AttemptOutcome.DONE: "done",
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.REJECTED: "answer rejected",
    AttemptOutcome.SUPERSEDED: "the other attempt finished first",
    AttemptOutcome.CANCELLED: "cancelled",
}
_WIDE_PX = 1006
_PANEL_WORDS = 290  # wide
_BASE = 76  # where the panel ends
_LANES_TOP = _BASE + 26
_LANE_PX, _LANE_LEAST_PX, _LANES_PX = 20.0, 5.0, 660.0
_LETTER_PX = 6.5
_LABEL_PX = 13.0  # the least distance of two labels of lanes


def gantt(story: SwarmStory) -> str:
    """Return an SVG document of its own, with its own background, readable on a page of any colour."""
    account = story.account
    marks = ["SIMULATED"] if account.simulated else []
    marks += [f"{account.left} OF {account.tasks} TASKS LEFT"] if account.left else []
    title = headed(account.name or account.run, marks, *filter(None, (account.model, f"run {account.run}")))
    nothing = layer([{}], label("center", color=theme.MUTED), text={"value": "no attempt yet"})
    return standalone({**(_drawing(story) or nothing), "title": title, "padding": 18}, picture_words(story))


def gantt_element(story: SwarmStory) -> Markup | None:
    """Return an `<svg>` element that takes the width it is given; None where nothing was tried."""
    drawn = _drawing(story)
    return picture({**drawn, "padding": 0}, picture_words(story)) if drawn else None


def picture_words(story: SwarmStory) -> str:
    """For a reader who sees no picture."""
    account = story.account
    lanes = len({one.agent for one in story.attempts})
    told = f"{len(story.attempts)} attempts at {account.tasks} tasks by {lanes} agents in {seconds(account.wall_s)}"
    return f"{told}; {account.done} done, {account.failed} set aside"


def _drawing(story: SwarmStory) -> Spec | None:
    """Return seconds of work to the right, pixels downward; None where nothing was tried."""
    time = working_time(story.spans)
    if time is None or not story.attempts:
        return None
    sheet, px = MarkSheet(), time.seconds / _WIDE_PX
    lanes: dict[int, list[Attempt]] = {}
    for one in story.attempts:
        lanes.setdefault(one.agent, []).append(one)
    each = min(_LANE_PX, max(_LANE_LEAST_PX, _LANES_PX / len(lanes)))
    bottom = _LANES_TOP + each * len(lanes)
    _downs(sheet, story, time, bottom, px)
    # Every lane's number where there is room, else every second, fifth, ...
    step = next(one for one in (1, 2, 5, 10, 20, 50, 100, 1000) if one * each >= _LABEL_PX or one == 1000)
    sheet.text(-8 * px, _LANES_TOP - 10, "agent", align="right")
    for place, agent in list(enumerate(sorted(lanes)))[::step]:
        sheet.text(-8 * px, _LANES_TOP + (place + 0.5) * each, str(agent), align="right")
    _panel(sheet, story, time, px)
    for place, agent in enumerate(sorted(lanes)):
        top, tall = _LANES_TOP + place * each + 0.14 * each, 0.72 * each
        for group in _groups(lanes[agent], px, many=len(story.attempts) > MOST_BARS):
            _bar(sheet, group, time, px, top, tall)
    _pauses(sheet, time, bottom, px)
    _legend(sheet, story, bottom + 44, px)
    unit, per = ("h", 3600) if time.seconds > 10_800 else ("min", 60) if time.seconds > 600 else ("s", 1)
    words = f"format(datum.value / {per}, ',~r') + ' {unit}'"
    values = [per * value for value in _ticks(time.seconds / per)]
    axis = {"grid": True, "values": values, "labelExpr": words, "labelFontSize": 12}
    x = {**quantity("x", None, [0, time.seconds]), "axis": axis}
    y = {**quantity("y", None, [bottom, 0]), "axis": None}
    layers = [*sheet.ground(x, y), *sheet.marks(x, y)]
    return {"width": _WIDE_PX, "height": bottom, "autosize": {"type": "pad"}, "layer": layers}


def _ticks(total: float) -> list[float]:
    """About ten round numbers up to `total`."""
    size = 10.0 ** math.floor(math.log10(total / 10))
    step = next(size * one for one in (1, 2, 5, 10) if size * one * 10 >= total)
    return [round(step * i, 6) for i in range(int(total / step + 1e-9) + 1)]


def _groups(attempts: Sequence[Attempt], px: float, *, many: bool) -> list[list[Attempt]]:
    """Return those of one agent that share a bar: of `many`, neighbours that are done."""
    groups: list[list[Attempt]] = []
    for one in attempts:
        first = groups[-1][0] if groups else one
        done = many and one.outcome is first.outcome is AttemptOutcome.DONE and one.session == first.session
        if first is not one and done and one.started_at - first.started_at < _TOGETHER_PX * px:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _bar(sheet: MarkSheet, group: Sequence[Attempt], time: WorkingTime, px: float, top: float, tall: float) -> None:
    first, last = group[0], group[-1]
    left, right = time.x(first.session, first.started_at), time.x(last.session, last.ended_at)
    if left is None or right is None:
        return
    right = max(right, left + _LEAST_PX * px)
    if len(group) > 1:
        tip = printable(f"{len(group)} tasks done: {shortened(first.task, 40)} to {shortened(last.task, 40)}")
        sheet.rect(left, max(right - 0.6 * px, left + 0.8 * px), top, top + tall, theme.SKY, tip=tip)
        return
    queued = time.x(first.session, first.started_at + (first.queued_ms or 0.0) / 1000) or left
    token = None if first.first_token_at is None else time.x(first.session, first.first_token_at)
    tip = printable(attempt_words(first))
    _shape(sheet, first.outcome, (left, right, px), top, tall, tip, min(max(queued, left), right), token)
    _why(sheet, first.why, (left, px), top, tall)


def _shape(
    sheet: MarkSheet, outcome: AttemptOutcome, ends: tuple[float, float, float], top: float, tall: float, tip: str,
    queue: float = 0.0, first: float | None = None,
) -> None:  # fmt: skip
    """Outcomes differ in shape as in colour. `ends`: left, right and a pixel; `queue`: where it ends; `first` token."""
    left, right, px = ends
    middle, half, foot = top + tall / 2, max(min(tall / 2 - 0.5, 4.0), 1.5), top + tall
    match outcome:
        case AttemptOutcome.DONE:
            if queue - left > 0.5 * px:
                sheet.rule(left, queue, middle, middle, theme.STONE, width=1.6)
            begin = queue if first is None else min(max(first, queue), right)
            if begin - queue > 0.3 * px:
                sheet.rect(queue, begin, top, foot, theme.PALE, tip=tip)
            sheet.rect(begin, max(right, begin + 0.8 * px), top, foot, theme.SKY, tip=tip)
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
            path = f"M{(right - left) / px} 0H0v{tall}H{(right - left) / px}"
            sheet.symbol(left, top, path, theme.MUTED, fill=theme.PAPER, tip=tip)


def _why(sheet: MarkSheet, why: Why, at: tuple[float, float], top: float, tall: float) -> None:
    (left, px), middle, half = at, top + tall / 2, max(min(tall / 2, 4.0), 1.5)
    match why:
        case Why.RETRY:
            path = f"M0 {-half}l{1.4 * half} {half}l{-1.4 * half} {half}z"
            sheet.symbol(left, middle, path, theme.INK, fill=theme.INK, width=0.5)
        case Why.STRAGGLER:
            sheet.symbol(left + half * px, middle, "diamond", theme.PLUM, fill=theme.PLUM, width=0.5, size=4 * half**2)
        case Why.RESUMED:
            sheet.rule(left, left, top, top + tall, theme.INK, width=2)


def attempt_words(attempt: Attempt) -> str:
    """Return what one reads when the pointer rests on it."""
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


def _panel(sheet: MarkSheet, story: SwarmStory, time: WorkingTime, px: float) -> None:
    """How many were under way, and the line of how many were allowed."""
    counted = {span: attempts_in_flight(story.attempts, span.session, px) for span in time.spans}
    allowed = [(one, x) for one in story.limits if (x := time.x(one.session, one.at)) is not None]
    most = max([many for steps in counted.values() for _, many in steps] + [one.limit for one, _ in allowed] + [1])
    up = (_BASE - 4) / most
    sheet.text(0, -13, "agents at once" + ("; dashed: the limit" if allowed else ""))
    sheet.text(-8 * px, _BASE - most * up, str(most), align="right")
    sheet.text(-8 * px, _BASE - 3, "0", align="right")
    sheet.rule(0, time.seconds, _BASE, _BASE, theme.STONE)
    for span, steps in counted.items():
        begin, end = time.begin(span), time.begin(span) + span.seconds
        places = ((((time.x(span.session, at) or 0.0) - begin) / px, -many * up) for at, many in steps)
        path = "".join(f"H{along:.1f}V{high:.1f}" for along, high in places)
        tip = f"at most {max((many for _, many in steps), default=0)} at once in session {span.session}"
        sheet.symbol(begin, _BASE, f"M0 0{path}H{span.seconds / px:.1f}V0Z", theme.SKY, fill=theme.PALE, tip=tip)
        own = [(one, x) for one, x in allowed if one.session == span.session]
        for (one, x), (then, until) in pairwise([*own, (own[-1][0], end)] if own else []):
            y = _BASE - one.limit * up
            path = f"M0 0H{(until - x) / px:.1f}V{(one.limit - then.limit) * up:.1f}"
            sheet.symbol(x, y, path, theme.HONEY, width=2, dash=[6, 3])
            told = printable(f"{one.limit} allowed" + (f": {shortened(one.why, 140)}" if one.why else ""))
            sheet.symbol(x, y, "circle", theme.HONEY, fill=theme.HONEY, size=21, tip=told)


def _downs(sheet: MarkSheet, story: SwarmStory, time: WorkingTime, bottom: float, px: float) -> None:
    for one in story.downs:
        left, right = time.x_of_moment(one.started_at), time.x_of_moment(one.ended_at)
        tip = f"the endpoint did not answer for {seconds(one.ended_at - one.started_at)}"
        tip += f": {shortened(one.why, 140)}" if one.why else ""
        sheet.rect(left, max(right, left + 2 * px), 0, bottom, theme.ROSE, opacity=0.12, tip=printable(tip))
        if right - left > 34 * px:
            sheet.text((left + right) / 2, _LANES_TOP - 10, "down", theme.ROSE, align="center")


def _pauses(sheet: MarkSheet, time: WorkingTime, bottom: float, px: float) -> None:
    """Where two sessions meet: a torn edge, and for how long nobody worked."""
    for earlier, later in pairwise(time.spans):
        x, paused = time.begin(later), max(0.0, later.started_at - earlier.ended_at)
        how = earlier.outcome or "its process disappeared"
        tip = f"{seconds(paused)} between session {earlier.session} ({how}) and {later.session}, left out"
        sheet.rect(x - 3 * px, x + 3 * px, -4, bottom + 4, theme.PAPER, tip=printable(tip))
        sheet.symbol(x, -4, "M0 0" + "l3 6l-6 6l3 6" * int((bottom + 8) / 18), theme.STONE, width=1.2)
        if len(time.spans) <= 8 and x > _PANEL_WORDS * px:  # else it would run into the panel's own words
            sheet.text(x, -13, f"{seconds(paused)} pause", align="center")


def _legend(sheet: MarkSheet, story: SwarmStory, top: float, px: float) -> None:
    """Of the marks that are drawn, in as many rows as they need."""
    outcomes, whys = {one.outcome for one in story.attempts}, {one.why for one in story.attempts}
    done = AttemptOutcome.DONE in outcomes
    others = [one for one in OUTCOME_WORDS if one in outcomes and one is not AttemptOutcome.DONE]
    entries: list[tuple[AttemptOutcome | Why | str, str, bool]] = [
        (theme.STONE, "in the gateway's queue", any(one.queued_ms for one in story.attempts)),
        (theme.PALE, "waiting for the first token", done),
        (theme.SKY, "streaming the answer", done),
        *((one, OUTCOME_WORDS[one], True) for one in others),
        *((why, WHY_WORDS[why], why in whys) for why in WHY_WORDS),
        (theme.HONEY, "limit of agents at once", bool(story.limits)),
    ]
    x, y = 0.0, top
    for what, words, there in entries:
        if not there:
            continue
        wide = 52 + len(words) * _LETTER_PX
        if x + wide > _WIDE_PX and x:
            x, y = 0.0, y + 20
        left, right = x * px, (x + 24) * px
        if isinstance(what, AttemptOutcome):
            _shape(sheet, what, (left, right - 3 * px, px), y, 12, words)
        elif isinstance(what, Why):
            _why(sheet, what, (left + 8 * px, px), y, 12)
        elif what in (theme.STONE, theme.HONEY):
            sheet.rule(left, right, y + 6, y + 6, what, width=2, dash=[6, 3] if what == theme.HONEY else [])
        else:
            sheet.rect(left, right, y, y + 12, what)
        sheet.text((x + 32) * px, y + 6, words)
        x += wide
