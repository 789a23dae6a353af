"""Small pictures without axes, drawn as SVG: lines of late values, slots of a replica."""

from __future__ import annotations

from collections.abc import Sequence

from skep.report.markup import Markup, join, tag, text

WIDTH, HEIGHT = 160.0, 36.0
_EDGE = 3.0  # room for the line's own width
MOST_DOTS = 64  # beyond it, slots are a bar


def sparkline(
    values: Sequence[float | None],
    label: str,
    *,
    places: Sequence[float] | None = None,
    gap: float = float("inf"),
    median: float | None = None,
    from_zero: bool = False,
) -> Markup | None:
    """None is a gap, and so is more than `gap` between two places; `median` is a dashed line.

    `places` are positions along the axis, evenly spaced if None.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    low = min([0.0] if from_zero else [*known, *([] if median is None else [median])])
    high = max([*known, *([] if median is None else [median])])
    flat = min(known) == max(known)
    along = list(range(len(values))) if places is None else list(places)
    start, width = along[0], (along[-1] - along[0]) or 1.0

    def x(place: float) -> float:
        return _EDGE + (WIDTH - 2 * _EDGE) * (place - start) / width

    def y(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5 if not from_zero else 0.0
        share = 0.5 if from_zero and flat and value else share  # along the upper edge it would look like a frame
        return HEIGHT - _EDGE - (HEIGHT - 2 * _EDGE) * share

    line: list[str] = []
    drawn: float | None = None  # where the pen is
    for place, value in zip(along, values, strict=True):
        if value is not None:
            pen = "L" if drawn is not None and place - drawn <= gap else "M"
            line.append(f"{pen}{x(place):.1f} {y(value):.1f}")
        drawn = None if value is None else place
    last = max(i for i, value in enumerate(values) if value is not None)
    end = f"M{x(along[last]):.1f} {y(values[last] or 0.0):.1f}h0"
    level = None if median is None else tag("path", d=f"M0 {y(median):.1f}H{WIDTH:g}", class_="level")
    return tag(
        "svg",
        level,
        tag("path", d="".join(line), class_="line"),
        tag("path", d=end, class_="end"),
        class_="spark",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def slot_picture(slots: int, active: int | None, releasing: int | None, most_dots: int = MOST_DOTS) -> Markup:
    """A dot a slot: full, half or hollow. Beyond `most_dots` a bar with the same parts."""
    if active is None:
        return tag("span", text("–"), class_="slots", title="the gateway does not know it")
    busy = min(active, slots)
    going = min(releasing or 0, slots - busy)
    parts = (("busy", busy), ("going", going), ("free", slots - busy - going))
    label = f"{busy} of {slots} slots busy" + (f", {going} releasing" if going else "")
    if slots <= most_dots:
        dots = join(tag("i", class_=f"dot {kind}") for kind, count in parts for _ in range(count))
        return tag("span", dots, class_="slots", role="img", aria_label=label)
    return tag("span", _bar(parts, slots), class_="slots bar", role="img", aria_label=label)


def _bar(parts: Sequence[tuple[str, int]], slots: int) -> Markup:
    cells, at = [], 0.0
    for kind, count in parts:
        width = 100 * count / slots
        if count:
            cells.append(tag("rect", x=f"{at:.2f}", y="0", width=f"{width:.2f}", height="8", class_=kind))
        at += width
    return tag("svg", *cells, viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")
