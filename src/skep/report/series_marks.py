"""What stands above a picture over time: changes with their size, and numbered flags of what happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from html import escape

from skep.report import theme
from skep.report.figures import number, printable, shortened
from skep.report.series_frame import Frame
from skep.report.ticks import when

_LETTER_PX = 6.4  # of 12 px text, on the safe side


@dataclass(frozen=True, slots=True)
class Shift:
    """A change point. `between` is where it lies with 95 %; `words` is the whole sentence."""

    at: float
    between: tuple[float, float]
    label: str
    words: str
    worse: bool
    levels: tuple[float, float] | None = None  # medians before and after


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that happened. `number` is its place in the table beneath the picture."""

    at: float
    number: int
    words: str


def shift_label(ratio: float) -> str:
    """ "−4.1 %", "+12 %" or "2.3×": what fits above a line."""
    if ratio >= 2:
        return f"{number(ratio, digits=1)}×"
    size = 100 * (ratio - 1)
    return f"{'+' if size > 0 else ''}{number(size, digits=1)} %"


def bracket(shift: Shift, frame: Frame) -> str:
    left, right = (frame.x(min(max(at, frame.since), frame.until)) for at in shift.between)
    if right - left < 2:
        return ""
    colour = theme.ROSE if shift.worse else theme.MOSS
    size = f'y="{frame.top}" width="{right - left:.1f}" height="{frame.bottom - frame.top}"'
    return f'<rect x="{left:.1f}" {size} fill="{colour}" fill-opacity=".1"/>'


def levels(shifts: Sequence[Shift], frame: Frame, measured: tuple[float, float]) -> str:
    """The medians on both sides of each change, as far as was `measured`: a rolling one is late to tell of it."""
    told = sorted((one for one in shifts if frame.since <= one.at <= frame.until), key=lambda one: one.at)
    edges = [measured[0], *(one.at for one in told), measured[1]]
    parts = []
    for place, one in enumerate(told):
        if one.levels is not None:
            colour = theme.ROSE if one.worse else theme.MOSS
            left, middle, right = (frame.x(at) for at in edges[place : place + 3])
            before, after = (frame.y(level) for level in one.levels)
            path = f"M{left:.1f} {before:.1f}H{middle:.1f}M{middle:.1f} {after:.1f}H{right:.1f}"
            parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="1.6" stroke-dasharray="2 3" fill="none"/>')
    return "".join(parts)


def shift_marks(shifts: Sequence[Shift], frame: Frame) -> Iterable[str]:
    """A dashed line with its size on top. One whose label would cover the last one's has only the line."""
    free_from = -1.0
    for shift in sorted(shifts, key=lambda one: one.at):
        if not frame.since <= shift.at <= frame.until:
            continue
        x = frame.x(shift.at)
        colour = theme.ROSE if shift.worse else theme.MOSS
        wide = 12 + 7.2 * len(shift.label)
        left = min(max(x - wide / 2, 1), frame.width - wide - 1)
        line = f'<path d="M{x:.1f} 18V{frame.bottom}" stroke="{colour}" stroke-width="1.6" stroke-dasharray="5 4"/>'
        label = ""
        if left > free_from:
            free_from = left + wide + 2
            label = (
                f'<rect x="{left:.1f}" y="1" width="{wide:.1f}" height="18" rx="9" fill="{colour}"/>'
                f'<text x="{left + wide / 2:.1f}" y="14" font-size="12" font-weight="650" text-anchor="middle" '
                f'fill="{theme.PAPER}">{_text(shift.label)}</text>'
            )
        yield f'<g class="shift"><title>{_text(shift.words)}</title>{line}{label}</g>'


def _grouped(flags: Sequence[Flag], frame: Frame) -> list[list[Flag]]:
    """Those whose signs would cover each other become one."""
    groups: list[list[Flag]] = []
    for flag in sorted(flags, key=lambda one: one.at):
        if groups and frame.x(flag.at) - frame.x(groups[-1][0].at) < _sign(groups[-1])[1] + 2:
            groups[-1].append(flag)
        else:
            groups.append([flag])
    return groups


def _sign(group: Sequence[Flag]) -> tuple[str, int]:
    """What stands on it, and its width."""
    first, last = group[0].number, group[-1].number
    sign = str(first) if first == last else f"{first}–{last}"
    return sign, 10 + 7 * len(sign)


def flag_lines(flags: Sequence[Flag], frame: Frame) -> Iterable[str]:
    places = sorted({round(frame.x(flag.at)) for flag in flags if frame.since <= flag.at <= frame.until})
    lines = "".join(f"M{x} {frame.top - 6}V{frame.bottom}" for x in places[:200])
    return [f'<path d="{lines}" stroke="{theme.PLUM}" stroke-opacity=".45" fill="none"/>'] if lines else []


def flag_marks(flags: Sequence[Flag], frame: Frame, top: float, zone: tzinfo | None) -> Iterable[str]:
    """Numbered as in the table; with their words where there is room up to the next."""
    inside = [flag for flag in flags if frame.since <= flag.at <= frame.until]
    groups = _grouped(inside, frame)
    ends = [*(frame.x(group[0].at) for group in groups[1:]), frame.width]
    for group, end in zip(groups, ends, strict=False):
        sign, wide = _sign(group)
        x = min(frame.x(group[0].at), frame.width - wide - 1)
        told = "; ".join(f"{when(flag.at, zone)}: {flag.words}" for flag in group[:12])
        room = int((end - x - wide - 12) / _LETTER_PX)
        words = shortened(printable(group[0].words), min(room, 42)) if room >= 9 and len(group) == 1 else ""
        beside = (
            f'<text x="{x + wide + 4:.1f}" y="{top + 12}" font-size="12" fill="{theme.MUTED}">{_text(words)}</text>'
        )
        yield (
            f'<g class="event"><title>{_text(told)}</title>'
            f'<path d="M{x:.1f} {top}h{wide}v15h{-wide}z" fill="{theme.PLUM}"/>'
            f'<text x="{x + wide / 2:.1f}" y="{top + 11.5}" font-size="11" font-weight="650" text-anchor="middle" '
            f'fill="{theme.PAPER}">{sign}</text>{beside if words else ""}</g>'
        )


def _text(words: str) -> str:
    return escape(printable(words))
