"""A swarm run on a terminal: the page of one under way, and stored ones as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from skep.report.columns import Column, padded, print_records
from skep.report.liveview import BETWEEN, Line, Page, bar_cells, cleaned
from skep.report.swarm import AGENTS
from skep.report.terminal import note
from skep.swarm.progress import Lane, SwarmProgress, down_words
from skep.swarm.summary import SwarmStory
from skep.units import format_seconds, number

Record = TypeVar("Record")


SHOWN_FAILURES = 20


SHOWN_AGENTS = 16


def print_capitals(columns: Sequence[Column[Record]], records: Sequence[Record]) -> None:
    print_records([replace(one, title=one.title.upper()) for one in columns], records)


def print_agents(story: SwarmStory) -> None:
    """Those that did least are the ones to look at: where they are too many, the first and the last."""
    agents, half = story.account.by_agent, SHOWN_AGENTS // 2
    shown = agents if len(agents) <= SHOWN_AGENTS else (*agents[:half], *agents[-half:])
    if shown:
        print()  # noqa: T201
        print_capitals(AGENTS, shown)
    if len(shown) < len(agents):
        note(f"{len(agents) - len(shown)} agents between them are left out: --json has them all")


BAR, LANE_BAR, LONGEST_TASK = 40, 24, 32


NEWS_SHOWN = 3


def frame(progress: SwarmProgress, page: Page, title: str, deadline_s: float | None = None) -> list[Line]:
    """Agents that find no place on the page are counted."""
    lines = [[(title, "bold")], *_totals(progress, page)]
    lines += page.wrapped(down_words(progress, deadline_s), "bold red") if progress.down_s is not None else []
    news = [line for text in progress.last[-NEWS_SHOWN:] for line in page.wrapped(text, BETWEEN)[:2]]
    room = None if page.height is None else page.height - len(lines) - len(news) - 3
    lanes = sorted(progress.lanes, key=lambda lane: lane.agent)
    shown = lanes if room is None or len(lanes) <= room else lanes[: max(0, room - 1)]
    if shown:
        lines += [[], *_lanes(shown, page)]
    if len(shown) < len(lanes):
        lines.append([(f"{len(lanes) - len(shown)} more at work: a taller window shows them", "dim")])
    lines += [[], *news] if news else []
    return lines


def _totals(progress: SwarmProgress, page: Page) -> list[Line]:
    left = progress.total - progress.done - progress.failed
    counts = f"{progress.done:,} done, {progress.failed:,} set aside, {left:,} left of {progress.total:,}"
    wide = max(10, min(BAR, page.width - len(counts) - 4))
    cells = bar_cells((progress.done, progress.failed, left), progress.total, wide)
    bar: Line = [("━╳─"[i] * cells[i], ("green", "bold red", "dim")[i]) for i in range(3)]
    retried = f", {progress.retried:,} tried again" if progress.retried else ""
    speed = f"{number(progress.tok_s, digits=1)} tok/s, {progress.output_tokens:,} tokens{retried}"
    eta = "" if progress.left_s is None else f", about {format_seconds(progress.left_s)} left"
    time = f"{format_seconds(progress.elapsed_s)} so far{eta}"
    why = f": {progress.limit_why}" if progress.limit_why else ""
    return [
        [*bar, (f"  {counts}", "")],
        [("speed   ", "bold"), (speed, "")],
        [("time    ", "bold"), (time, "")],
        [("agents  ", "bold"), (f"{progress.in_flight} at work, {progress.limit} allowed{why}", "")],
    ]


def _lanes(lanes: list[Lane], page: Page) -> list[Line]:
    names = min(LONGEST_TASK, max(len(lane.task) for lane in lanes), max(8, page.width - 40))
    longest_s = max(1.0, *(lane.since_s for lane in lanes))
    room = max(4, min(LANE_BAR, page.width - names - 28))
    rows: list[Line] = [[(f"AGENT  {'TASK':<{max(4, names)}}  {'FOR':>11}", "bold")]]
    for lane in lanes:
        bar = "█" * max(1, round(room * lane.since_s / longest_s))
        name = padded(cleaned(lane.task), max(4, names))
        again = f"  try {lane.number}" if lane.number > 1 else ""
        style = "green" if lane.reads else "dim"  # grey until its first token
        rows.append([(f"{lane.agent:>5}  {name}  {format_seconds(lane.since_s):>11}  ", ""), (bar, style), (again, "")])
    return rows
