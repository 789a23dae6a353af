"""A run as a picture: a lane for each agent, a bar for each attempt, and how many were allowed at once above them.

Pure: values in, SVG text out. All colours are attributes in the day colours of `theme`, so that `theme.night_rules`
turns them. What happened between two sessions is cut out and marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from skep.report import theme
from skep.report.figures import number, printable, seconds, shortened
from skep.report.swarm_bars import MOST_BARS, OUTCOME_WORDS, WHY_WORDS, lane_bars, patterns, shape, why_sample
from skep.report.swarm_course import Course, course_of, crowd, working_ticks
from skep.report.swarm_story import Span, SwarmStory
from skep.tasks import Attempt, Outcome, Why

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
    if not story.attempts or course_of(story.spans, _LEFT, _RIGHT) is None:
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
    course = course_of(story.spans, _LEFT, _RIGHT)
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


def _axis(course: Course, bottom: float) -> str:
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


def _panel(story: SwarmStory, course: Course) -> str:
    """How many were under way, and the line of how many were allowed."""
    counted = crowd(course, story.attempts)
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


def _limit_line(story: SwarmStory, course: Course, span: Span, y: Callable[[float], float]) -> str:
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


def _downs(story: SwarmStory, course: Course, bottom: float) -> str:
    parts = []
    for one in story.downs:
        left, right = course.at_any(one.started_at), course.at_any(one.ended_at)
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


def _pauses(course: Course, bottom: float) -> str:
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
    if Outcome.DONE in outcomes:
        entries.append((f'<rect width="24" height="12" fill="{theme.PALE}"/>', "waiting for the first token"))
        entries.append((f'<rect width="24" height="12" fill="{theme.SKY}"/>', "streaming its answer"))
    others = [one for one in OUTCOME_WORDS if one in outcomes and one is not Outcome.DONE]
    entries += [(shape(one, 0, 21, 0, 12, "g", (0, None)), OUTCOME_WORDS[one]) for one in others]
    entries += [(why_sample(why, 8, 0, 12), WHY_WORDS[why]) for why in Why if why in whys and why in WHY_WORDS]
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
