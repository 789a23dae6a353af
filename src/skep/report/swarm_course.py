"""Where the moments of a run lie in its picture: sessions side by side, the pauses between them cut out. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from skep.report.swarm_story import Span
from skep.tasks import Attempt

_GAP_PX = 16.0
_GAPS_SHARE = 0.2  # of the width, at most, for all pauses together
_STEPS = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
    604800,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """One session. `before_s`: of working time, in the sessions before it."""

    span: Span
    left: float
    right: float
    before_s: float


@dataclass(frozen=True, slots=True)
class Course:
    pieces: tuple[Piece, ...]
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

    def at_any(self, at: float) -> float:
        """Of a moment of whatever session; one in a pause lies at its edge."""
        place = bisect_right([one.span.started_at for one in self.pieces], at) - 1
        found = self.x(self.pieces[max(place, 0)].span.session, at)
        return self.left if found is None else found


def course_of(spans: Sequence[Span], left: float, right: float) -> Course | None:
    """None where nothing lasted: there is nothing to draw."""
    lasting = [span for span in spans if span.seconds > 0]
    total = sum(span.seconds for span in lasting)
    if not lasting or total <= 0:
        return None
    gaps = len(lasting) - 1
    gap = min(_GAP_PX, _GAPS_SHARE * (right - left) / gaps) if gaps else 0.0
    each = (right - left - gaps * gap) / total
    pieces: list[Piece] = []
    x, before = left, 0.0
    for span in lasting:
        wide = span.seconds * each
        pieces.append(Piece(span, x, x + wide, before))
        x += wide + gap
        before += span.seconds
    return Course(tuple(pieces), left, right, total)


def working_ticks(course: Course, most: int = 10) -> list[tuple[float, str]]:
    """Places along the axis and their labels, counted in working time."""
    step = next((one for one in _STEPS if one * most >= course.seconds), _STEPS[-1] * 4)
    found = []
    for number in range(int(course.seconds / step + 1e-9) + 1):
        at = number * step
        piece = next((one for one in reversed(course.pieces) if one.before_s <= at + 1e-9), course.pieces[0])
        x = course.x(piece.span.session, piece.span.started_at + at - piece.before_s)
        if x is not None:
            found.append((x, _label(at, step)))
    return found


def _label(at: float, step: float) -> str:
    if step < 1:
        return f"{at:.1f} s"
    if step < 60 and at < 600:
        return f"{at:.0f} s"
    if step < 3600:
        return f"{at / 60:g} min"
    return f"{at / 3600:g} h"


def crowd(course: Course, attempts: Sequence[Attempt]) -> list[tuple[Piece, list[tuple[float, int]]]]:
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
