"""A session as pictures: the tokens of each request, and how long its client waited."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from skep.report import theme
from skep.report.charts import Spec, drawing
from skep.report.sessions import FIRST_TURN, DrawnTurn
from skep.report.svg import picture
from skep.units import number, seconds

MOST_BARS = 300  # requests, the last ones: of more a bar is thinner than a line
_WIDTH_PX = 1006
_HEIGHT_PX = 240
Parts = list[tuple[str, float | None]]


def tokens_picture(turns: Sequence[DrawnTurn]) -> Markup | None:
    """Return the tokens of each request as bars, with a mark over cold ones; None: no engine told
    them.
    """
    rows: list[Spec] = []
    marks: list[Spec] = []
    for place, turn in enumerate(turns[-MOST_BARS:], _first_number(turns)):
        parts: Parts = [
            ("from the cache", turn.request.cached_tokens),
            ("read anew", turn.fresh_tokens),
            ("answer", turn.request.output_tokens),
        ]
        bars = _bars(place, parts, _tip(place, turn))
        rows += bars
        if turn.request.cold not in (None, FIRST_TURN):
            top = sum(bar["value"] for bar in bars)
            marks.append({"number": place, "value": top})
    colours = [theme.PALE, theme.HONEY, theme.SKY]
    return _drawn(rows, marks, colours, "tokens", "Tokens of each request")


def waits_picture(turns: Sequence[DrawnTurn]) -> Markup | None:
    """Return how long the client of each request waited for its first byte; None: none came."""
    rows: list[Spec] = []
    for place, turn in enumerate(turns[-MOST_BARS:], _first_number(turns)):
        request = turn.request
        if request.first_byte_s is None:
            continue
        queued_s = min(request.queued_s or 0.0, request.first_byte_s)
        parts: Parts = [
            ("in the gateway's queue", queued_s),
            ("until the first byte", request.first_byte_s - queued_s),
        ]
        rows += _bars(place, parts, f"request {place}: first byte after {seconds(sum_of(parts))}")
    colours = [theme.STONE, theme.SKY]
    return _drawn(rows, [], colours, "seconds", "Waits for the first byte")


def sum_of(parts: Parts) -> float:
    return sum(value or 0.0 for _, value in parts)


def _first_number(turns: Sequence[DrawnTurn]) -> int:
    return max(0, len(turns) - MOST_BARS) + 1


def _bars(place: int, parts: Parts, tip: str) -> list[Spec]:
    return [
        {"number": place, "part": part, "place": order, "value": value, "tip": tip}
        for order, (part, value) in enumerate(parts)
        if value is not None
    ]


def _tip(place: int, turn: DrawnTurn) -> str:
    request = turn.request
    words = (
        f"request {place}: {number(request.prompt_tokens, digits=0)} tokens, "
        f"{number(request.cached_tokens, digits=0)} of them from the cache"
    )
    if turn.reason is not None:
        return f"{words}; {turn.reason}"
    return words


def _drawn(
    rows: list[Spec], marks: list[Spec], colours: Sequence[str], unit: str, label: str
) -> Markup | None:
    if not rows:
        return None
    parts = [*dict.fromkeys(row["part"] for row in sorted(rows, key=lambda row: row["place"]))]
    spec = drawing(
        "turns",
        {"bars": rows, "marks": marks},
        width=_WIDTH_PX,
        height=_HEIGHT_PX,
        unit=unit,
        parts=parts,
        colours=[colours[place] for place in sorted({row["place"] for row in rows})],
    )
    return picture({**spec, "padding": 6}, label)
