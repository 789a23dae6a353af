"""The frame of every report page: head, style sheet and mark. A page refers to no other file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from skep.report import theme
from skep.report.markup import Markup, join, tag, text, trusted

# Scripts, fonts and requests are forbidden to the page itself, whatever a model name may hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_MARK = (
    '<svg viewBox="0 0 24 24" aria-hidden="true" fill="none" stroke="{0}" stroke-width="2" stroke-linecap="round">'
    '<path d="M7.5 6.5h9M5.3 11h13.4M4 15.5h16M3.5 20h17M9.5 2.5h5"/>'
    '<circle cx="12" cy="20" r="2.6" fill="{0}" stroke="none"/></svg>'
)


def document(title: str, *body: Markup) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", text(title)),
        tag("link", rel="icon", href="data:,"),
        tag("style", trusted(_style_sheet())),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def mark(what: str) -> Markup:
    return tag("p", trusted(_MARK.format(theme.HONEY)), join([tag("b", text("skep")), text(what)]), class_="mark")


@cache
def _style_sheet() -> str:
    day = _variables("#faf8f5", "#fdf3e3", {})
    night = _variables("#151311", "#302515", theme.NIGHT)
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
    sheet = (files("skep.report") / "style.css").read_text(encoding="utf-8").replace("FONT", theme.FONT)
    return f":root{{{day}}}{dark}\n{sheet}{theme.night_rules('svg')}"


def _variables(ground: str, glow: str, colours: dict[str, str]) -> str:
    named = {
        "ink": theme.INK,
        "muted": theme.MUTED,
        "edge": theme.GRID,
        "paper": theme.PAPER,
        "honey": theme.HONEY,
        "sky": theme.SKY,
        "rose": theme.ROSE,
        "moss": theme.MOSS,
    }
    chosen = "".join(f"--{name}:{colours.get(day, day)};" for name, day in named.items())
    return f"{chosen}--ground:{ground};--glow:{glow}"


TERMS = {
    "Effective tok/s": """Output tokens of all answers of a level over the wall time of that level, all agents
        together. A failed request counts with its time, not with tokens. The range is that of its slowest and fastest
        repeat; the 95 % interval is that of the mean over repeats, given where there are three or more.""",
    "Plateau": """Effective tok/s over that part of a level in which at least 95 % of C were in flight: without the
        tail, in which the last answers run alone.""",
    "Knee, cliff": """The smallest measured C from which on effective tok/s does not grow, and the last before it falls.
        Each lies in a bracket of two measured levels, and is given only where the repeats tell the levels apart.""",
    "Per-task tok/s": """Median over tasks of output tokens over the time from first to last token: the speed that
        one agent sees while its answer streams. With TTFT: over the time from sending to the last token.""",
    "Contention": """1 − per-task tok/s at C over per-task tok/s at C = 1: the share of its solo speed that an agent
        loses to the others.""",
    "Speedup": """Serial wall time (C = 1) over swarm wall time (the largest C), for the same tasks. Not given when a
        request of either failed. By tokens: the ratio of effective tok/s, as answers may differ in length.""",
    "Wall": "From the first request sent to the last answer ended, summed over the repeats of a level.",
    "TTFT, TPOT": """Time to first token, from sending the request or from when it was due; time per output token
        after the first. A gap is the time between two tokens.""",
    "Ideal": "C times the effective tok/s of one agent: what a machine without limits would give.",
    "Engine tok/s": """The engine's own decode speed per stream, median, on the engine's clock. It leaves out
        queue and network.""",
    "Tokens": "Counted by the engine and taken from the usage field of each answer, never by counting chunks.",
    "Timestamps": """Taken by the client on one monotonic clock when bytes arrive, before they are parsed. Warm-up
        requests are left out.""",
    "Client-limited": """The load generator, not the engine, may have set the pace: read such a level as a lower
        bound.""",
}
