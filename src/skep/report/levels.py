"""The tables of a sweep: one row for each level, and one for each kind of failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from skep.records import LevelSummary, Request
from skep.report.figures import UNKNOWN, known, number, percent, shortened
from skep.report.markup import Markup, join, section, table, tag, text

_GROUPS = (
    ("Requests", 2),
    ("Effective tok/s", 2),
    ("Per task", 2),
    ("TTFT, ms", 2),
    ("TPOT, ms", 1),
    ("Engine", 1),
    ("Wall", 1),
)
_COLUMNS = ("sent", "failed", "all runs", "low–high", "tok/s", "contention", "p50", "p95", "p50", "tok/s", "s")


def level_table(levels: Sequence[LevelSummary]) -> Markup:
    fastest = max((level.effective_tok_s or 0.0 for level in levels), default=0.0)
    rows = [_level_row(level, best=level.effective_tok_s == fastest) for level in levels]
    return join(
        [
            table("Every level of the sweep", _head(), rows),
            tag(
                "p",
                text("The level with the highest effective tok/s is tinted. – stands for unknown."),
                class_="below",
            ),
        ]
    )


def failure_table(levels: Sequence[LevelSummary], rows: Sequence[Request]) -> Markup | None:
    """Failed requests by kind and level; None when there were none."""
    failed = [row for row in rows if not row.ok]
    counted = Counter(row.level for row in failed)
    untold = {level.concurrency: level.failed - counted[level.concurrency] for level in levels}
    body = [_failure_row(level, kind, failed) for level, kind in sorted({_kind(row) for row in failed})]
    body += [_cells(str(c), "not recorded", str(n), UNKNOWN) for c, n in untold.items() if n > 0]
    if not body:
        return None
    head = tag(
        "tr",
        tag("th", text("C")),
        *(tag("th", text(name), class_="left") for name in ("Kind", "Count", "First message")),
    )
    return section("failures", "Failed requests", table("Failed requests by kind", [head], body))


def _kind(row: Request) -> tuple[int, str]:
    return row.level, str(row.error_kind)


def _failure_row(level: int, kind: str, failed: Sequence[Request]) -> Markup:
    same = [row for row in failed if _kind(row) == (level, kind)]
    message = next((row.error for row in same if row.error), UNKNOWN)
    return _cells(str(level) if level else "warm-up", kind, str(len(same)), shortened(message, 240))


def _cells(level: str, kind: str, count: str, message: str) -> Markup:
    return tag(
        "tr",
        tag("th", text(level), scope="row"),
        tag("td", tag("code", text(kind)), class_="left"),
        tag("td", text(count), class_="left bad"),
        tag("td", text(message), class_="wide"),
    )


def _head() -> list[Markup]:
    groups = [tag("th", text(name), colspan=str(span), scope="colgroup") for name, span in _GROUPS]
    first = tag("th", text("C"), rowspan="2", scope="col")
    last = tag("th", text("Notes"), rowspan="2", scope="col", class_="left")
    names = (tag("th", text(name), scope="col") for name in _COLUMNS)
    return [tag("tr", first, *groups, last, class_="group"), tag("tr", *names)]


def _level_row(level: LevelSummary, *, best: bool) -> Markup:
    ttft, tpot = level.ttft_ms, level.tpot_ms
    return tag(
        "tr",
        tag("th", text(level.concurrency), scope="row"),
        tag("td", text(number(level.requests, digits=0))),
        tag("td", text(number(level.failed, digits=0)), class_="bad" if level.failed else None),
        tag("td", tag("b", text(number(level.effective_tok_s)))),
        tag("td", text(_spread(level)), class_="soft"),
        tag("td", text(number(level.task_tok_s))),
        tag("td", text(percent(level.contention_pct, digits=1))),
        tag("td", text(number(ttft.p50 if ttft else None))),
        tag("td", text(number(ttft.p95 if ttft else None))),
        tag("td", text(number(tpot.p50 if tpot else None))),
        tag("td", text(number(level.engine_tok_s))),
        tag("td", text(number(level.wall_s))),
        tag("td", *_notes(level), class_="note"),
        class_="best" if best else None,
    )


def _spread(level: LevelSummary) -> str:
    if not (known(level.effective_low) and known(level.effective_high)):
        return UNKNOWN
    return f"{number(level.effective_low)}–{number(level.effective_high)}"


def _notes(level: LevelSummary) -> list[Markup]:
    flag = [tag("span", text("client-limited"), class_="flag")] if level.client_limited else []
    notes = []
    if level.truncated:
        notes.append(f"{level.truncated} cut at the token limit")
    if level.cached_prompt_share:
        notes.append(f"{percent(100 * level.cached_prompt_share)} of prompt cached")
    return [*flag, text(", ".join(notes))]
