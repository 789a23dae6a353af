"""One level, request by request: when each was sent, when its first token came and when it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skep.bench.records import LevelSummary
from skep.report import theme
from skep.report.charts import Spec, layer, quantity
from skep.store.records import Request
from skep.units import known

MOST_BARS = 120
_BAR_PX = 13
_LOWEST_PX, _TALLEST_PX = 90, 470


@dataclass(frozen=True, slots=True)
class Timeline:
    """`rows` are those of one run of one level, by start; `left_out` came after the last that is drawn."""

    level: int
    repeat: int
    client_limited: bool
    rows: tuple[Request, ...]
    left_out: int

    @property
    def failed(self) -> int:
        return sum(not row.ok for row in self.rows)


def choose_timeline(levels: Sequence[LevelSummary], rows: Sequence[Request]) -> Timeline | None:
    """The first run of the largest level that the client did not limit, or of the largest where it limited all."""
    stored = {row.level for row in rows}
    candidates = [level for level in levels if level.concurrency in stored]
    if not candidates:
        return None
    level = max(candidates, key=lambda level: (not level.client_limited, level.concurrency))
    kept = {one.repeat for one in level.counted} or {row.repeat for row in rows}
    of_level = [
        row
        for row in rows
        if row.level == level.concurrency and row.repeat in kept and known(row.due_s) and known(row.ended_s)
    ]
    if not of_level:
        return None
    repeat = min(row.repeat for row in of_level)
    batch = sorted((row for row in of_level if row.repeat == repeat), key=lambda row: (row.due_s, row.index))
    drawn = tuple(batch[:MOST_BARS])
    return Timeline(level.concurrency, repeat, level.client_limited, drawn, len(batch) - len(drawn))


def timeline_chart(timeline: Timeline) -> Spec:
    """Return one bar a request, the earliest on top: waiting faint, streaming strong, failed in rose."""
    origin = min(row.due_s for row in timeline.rows)
    bars = [bar for i, row in enumerate(timeline.rows) for bar in _bars(row, i, origin)]
    end = max((bar["to"] for bar in bars), default=0.0) or 1.0
    least = end / 700  # what is too short to see is still there
    for bar in bars:
        bar["to"] = max(bar["to"], bar["from"] + least)
    x = quantity("from", "seconds after the first request", [0, max(bar["to"] for bar in bars)])
    x["axis"] |= {"tickCount": 10, "grid": True}
    y = quantity("y", "requests, by start", [len(timeline.rows), 0])
    y["axis"] = {"labels": False, "grid": False}
    sides = {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"field": "y2"}}
    fill = {"field": "colour", "type": "nominal", "scale": None}
    height = min(max(_BAR_PX * len(timeline.rows), _LOWEST_PX), _TALLEST_PX) + 60
    return {"width": 980, "height": height, "layer": [layer(bars, {"type": "rect"}, **sides, color=fill)]}


def timeline_caption(timeline: Timeline, name: str | None = None) -> str:
    """`name` of the level, where it is no concurrency."""
    of = f"{name or f'C = {timeline.level}'}, run {timeline.repeat + 1}: each bar is one request"
    parts = [f"{of}. Faint: waiting for the first token; strong: streaming"]
    if timeline.failed:
        parts.append(f"; rose: failed ({timeline.failed} of those drawn)")
    parts.append(".")
    if timeline.left_out:
        total = len(timeline.rows) + timeline.left_out
        parts.append(
            f" The first {len(timeline.rows)} of {total} requests are drawn, {timeline.left_out} are left out."
        )
    if timeline.client_limited:
        parts.append(" The client limited every level, this one too.")
    return "".join(parts)


def _bars(row: Request, i: int, origin: float) -> list[Spec]:
    def bar(begin: float, end: float, colour: str) -> Spec:
        times = {"from": round(begin - origin, 4), "to": round(end - origin, 4)}
        return {**times, "y": i + 0.12, "y2": i + 0.88, "colour": colour}

    if not row.ok:
        return [bar(row.due_s, row.ended_s, theme.ROSE)]
    if row.first_token_s is None:
        return [bar(row.due_s, row.ended_s, theme.PALE)]
    last = row.ended_s if row.last_token_s is None else row.last_token_s
    return [bar(row.due_s, row.first_token_s, theme.PALE), bar(row.first_token_s, last, theme.SKY)]
