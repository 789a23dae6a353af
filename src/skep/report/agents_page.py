"""The page of a run of `skep bench agents`: turns a minute, first token and hits over the sessions
that were held at once, with the cliff marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from skep.bench.agent_figures import AgentLevel, AgentsSummary, SessionCliff, best_level
from skep.report import theme
from skep.report.agents import agent_columns, agent_remarks, cliff_sentence
from skep.report.charts import (
    AGENTS,
    ChartCurve,
    ChartText,
    Marks,
    Spec,
    along,
    curves_chart,
    latency_chart,
)
from skep.report.columns import present
from skep.report.page import html_table
from skep.report.sweep import run_report
from skep.store.records import Request, StoredRun
from skep.units import known, number, percent

SESSIONS = "sessions at once"
_TABLE = (
    "sessions turns_per_min spread session_p50_s session_p95_s ttft_p50_ms ttft_p95_ms "
    "first_ttft_p50_ms hit_rate possible_hit_rate held_warm preemptions output_tok_s "
    "prompt_tok_s sessions_ended sessions_failed failed runs wall_s"
)


def agents_page(run: StoredRun, summary: AgentsSummary, rows: Sequence[Request]) -> str:
    """Return the report of a run whose levels are sessions held at once."""
    levels = summary.levels
    return run_report(
        "agents_page.html",
        run,
        "sessions of agents",
        "agents",
        terms_kind="agents",
        summary=summary,
        best=best_level(levels),
        last=levels[-1] if levels else None,
        cliff_words=cliff_sentence(summary.cliff) if summary.cliff else None,
        checks=agent_remarks(summary),
        turns=turns_chart(levels, summary.cliff),
        first_token=first_token_chart(levels),
        hits=hits_chart(levels, summary.cliff),
        table=_table(levels),
        rows=rows,
    )


def _table(levels: Sequence[AgentLevel]) -> Markup | None:
    if not levels:
        return None
    columns = present(agent_columns(_TABLE), levels)
    best = best_level(levels)
    tinted = [place for place, level in enumerate(levels) if level is best]
    return html_table("All levels", columns, levels, tinted)


def turns_chart(levels: Sequence[AgentLevel], cliff: SessionCliff | None = None) -> Spec | None:
    """Draw turns a minute with the spread of the runs, and the cliff."""
    measured = [level for level in levels if known(level.turns_per_min)]
    curve = ChartCurve(
        [(level.sessions, level.turns_per_min or 0.0) for level in measured],
        theme.HONEY,
        hollow=[level.sessions for level in measured if level.limited],
        ranges={level.sessions: turns_range(level) for level in measured},
        shaded=True,
    )
    spec = curves_chart(
        [curve],
        "turns/min",
        labelled=True,
        room=1.3,
        marks_of=partial(_cliff_marks, cliff),
    )
    return over_sessions(spec)


def turns_range(level: AgentLevel) -> tuple[float, float]:
    """Return the interval of the mean, or the slowest and the fastest run."""
    interval = level.turns_interval
    if interval is not None:
        return interval.low, interval.high
    value = level.turns_per_min or 0.0
    low = value if level.turns_low is None else level.turns_low
    high = value if level.turns_high is None else level.turns_high
    return low, high


def first_token_chart(levels: Sequence[AgentLevel]) -> Spec | None:
    """Draw the time to the first token of later turns: median whole, p95 dashed."""
    timed = [(level.sessions, level.ttft_ms) for level in levels if level.ttft_ms is not None]
    curves = {
        "p50": [(sessions, times.p50) for sessions, times in timed],
        "p95": [(sessions, times.p95) for sessions, times in timed],
    }
    return over_sessions(latency_chart(curves, theme.SKY, 200))


def hits_chart(levels: Sequence[AgentLevel], cliff: SessionCliff | None = None) -> Spec | None:
    """Draw the hits and, above them, the possible hits, in per cent of the prompts' tokens."""
    possible = _rates(levels, lambda level: level.possible_hit_rate)
    hits = _rates(levels, lambda level: level.hit_rate)
    if not hits:
        return None
    curves = [
        ChartCurve(
            possible, theme.STONE, end=f"possible  {percent(possible[-1][1])}", dash=(5, 4)
        ),
        ChartCurve(hits, theme.PLUM, end=f"hits  {percent(hits[-1][1])}"),
    ]
    spec = curves_chart(curves, "%", room=1.2, marks_of=partial(_cliff_marks, cliff))
    return over_sessions(spec)


def _rates(
    levels: Sequence[AgentLevel], rate_of: Callable[[AgentLevel], float | None]
) -> list[tuple[int, float]]:
    rates = [(level.sessions, rate_of(level)) for level in levels]
    return [(sessions, 100 * rate) for sessions, rate in rates if rate is not None]


def _cliff_marks(
    cliff: SessionCliff | None,
    rows: Sequence[Spec],
    top: float,  # noqa: ARG001
) -> Marks:
    """Return the marks of the cliff: its line, the grey up to the level that shows it, a label."""
    if cliff is None:
        return {}, []
    row = {"c": cliff.sessions, "from": cliff.sessions, "to": cliff.beyond}
    label_place: dict[str, Any] = {"align": "left", "dx": 6}  # right of the line
    if along([point["c"] for point in rows])(row) > 0.5:
        label_place = {"align": "right", "dx": -6}
    label = f"cliff: {number(cliff.sessions, digits=0)} sessions"
    text = ChartText(cliff.sessions, 0, label, **label_place, dy=-12)
    return {"turning": [row], "brackets": [row]}, [text]


def over_sessions(spec: Spec | None) -> Spec | None:
    """Say on the x axis that a level is a number of sessions, and return the chart."""
    if spec is not None:
        axis = spec["encoding"]["x"]
        axis["title"] = axis["title"].replace(AGENTS, SESSIONS)
    return spec
