"""A tuning on a terminal: the ladder of its stages, the page of a search under way, what is said of its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from skep.report.columns import print_records, table_lines
from skep.report.liveview import Line, Page
from skep.report.terminal import note
from skep.report.tuning import by_concurrency, curve_columns, stage_columns
from skep.tuner.records import BenchProgress, BenchRequest, StageDecision, TuneStage, Tuning, value_words
from skep.tuner.running import RequestFinished, RequestStarted, StageDecided, TuneEvent
from skep.tuner.setup import PreparedTuning, prospect_lines, prospects
from skep.tuner.store import TuningRecord, TuningState, failure_json, tuning_json
from skep.tuner.summary import (
    KEPT,
    best_of,
    count_decisions,
    dead_end_lines,
    failure_lines,
    figure_words,
    given_up,
    goal_words,
    headline,
    unit_of,
)
from skep.units import Interval, format_seconds, number

BAR = 40


FEWEST_ROWS = 12  # of stages, where the height is not known


STYLES = {
    StageDecision.ACCEPTED: "green",
    StageDecision.BASELINE: "bold",
    StageDecision.FAILED: "red",
    StageDecision.ANSWERS_WORSE: "red",
}


def print_tuning(found: TuningRecord) -> None:
    """Print the ladder, the search as bars, the curve."""
    tuning, stages = found.tuning, found.stages
    mark = "SIMULATED: " if tuning.simulated else ""
    print(f"{mark}{tuning.model} ({tuning.engine}) on {tuning.rig}: {headline(tuning, stages)}")  # noqa: T201
    if found.failure is not None:
        print("\n".join(failure_lines("the baseline", found.failure)))  # noqa: T201
    if stages:
        print_records(stage_columns(tuning, stages), stages)
        print("\n".join([*dead_end_lines(stages), "", *progress_lines(stages, unit_of(tuning))]))  # noqa: T201
    if found.points:
        print()  # noqa: T201
        print_records(curve_columns(tuning, stages, found.points), by_concurrency(tuning, found.points))


def progress_lines(stages: Sequence[TuneStage], unit: str) -> list[str]:
    """Draw a bar for each configuration that was the best of its time."""
    kept = [(stage, stage.figure) for stage in stages if stage.decision in KEPT and stage.figure is not None]
    most, lost = max((figure.high for _, figure in kept), default=0.0), given_up(stages)
    lines: list[str] = []
    for stage, figure in kept:
        died = " (died later)" if stage.number in lost else ""
        words = f"{figure_words(figure)} {unit}  {stage.title}{died}"
        lines.append(f"{stage.number:>5}  {_bar(figure, most)}  {words}")
    return lines


def _bar(figure: Interval, most: float) -> str:
    """Solid up to the interval's lower end, then light to its upper end."""
    low, high = round(BAR * max(0.0, figure.low) / most), round(BAR * figure.high / most)
    full = max(1, low)
    return ("█" * full + "░" * max(0, high - full)).ljust(BAR)


@dataclass(slots=True)
class TuneStatus:
    """All that is known of a search at this moment."""

    tuning: Tuning
    spent_s: float = 0.0  # of the budget, requests that ended
    stages: list[TuneStage] = field(default_factory=list)
    request: BenchRequest | None = None
    progress: BenchProgress | None = None

    def take(self, event: TuneEvent) -> None:
        match event:
            case RequestStarted():
                self.request, self.progress = event.request, None
            case BenchProgress():
                self.progress = event
            case RequestFinished():
                self.request, self.progress = None, None
                self.spent_s += event.answer.seconds
            case StageDecided():
                self.stages.append(event.stage)


def status_lines(status: TuneStatus, page: Page, running_s: float) -> list[Line]:
    """Return the page of a search. `running_s`: since the request under way began."""
    tuning, best = status.tuning, best_of(status.stages)
    figure = None if best is None else best.figure
    spent_s = status.spent_s + running_s
    left = format_seconds(max(0.0, tuning.budget_s - spent_s))
    title = f"{tuning.id}  {tuning.model} on {tuning.rig}{'  SIMULATED' if tuning.simulated else ''}"
    lines: list[Line] = [
        [(title, "bold")],
        [("best    ", "bold"), ("nothing yet" if figure is None else f"{figure_words(figure)} {unit_of(tuning)}", "")],
        [("time    ", "bold"), (f"{format_seconds(spent_s)} of {format_seconds(tuning.budget_s)}, {left} left", "")],
        [("now     ", "bold"), (now_words(status), "")],
        [],
    ]
    room = FEWEST_ROWS if page.height is None else max(1, page.height - len(lines) - 3)
    shown, hidden = status.stages[-room:], len(status.stages) - room
    if hidden > 0:
        lines.append([(f"{hidden} earlier stages", "dim")])
    if shown:
        columns = stage_columns(tuning, status.stages)
        cells = [[column.cell(stage) for column in columns] for stage in shown]
        right, ranks = [column.right for column in columns], [column.rank or 1 for column in columns]
        ranks[:4] = [0] * 4
        head, *rows = table_lines([column.title for column in columns], cells, right, ranks, page.width - 1)
        styles = [STYLES.get(stage.decision, "") for stage in shown]
        lines += [[(head, "bold")], *([(row, style)] for row, style in zip(rows, styles, strict=False))]
    return lines


def now_words(status: TuneStatus) -> str:
    if status.request is None:
        return "thinking"
    progress = status.progress
    if progress is None:
        return status.request.words
    of = f" {progress.reading}/{progress.readings}" if progress.reading else ""
    speed = f", {number(progress.tok_s)} tok/s" if progress.tok_s is not None else ""
    return f"{status.request.words}: {progress.what}{of}{speed}"


def say_what_begins(ready: PreparedTuning) -> None:
    """Say from where it begins, what could be tried, and how long it takes."""
    tuning = ready.tuning
    mark = "SIMULATED: " if tuning.simulated else ""
    note(*ready.notes)
    note(f"{mark}{tuning.model} ({tuning.engine}) on {tuning.rig}; goal {goal_words(tuning.aim)}")
    values = (f"{knob.name} {value_words(tuning.baseline.get(knob.name))}" for knob in tuning.knobs)
    note(f"baseline: {', '.join(values)}")
    foreseen = ready.space.predict(tuning.baseline)
    if foreseen is not None:
        note(f"the planner expects {number(foreseen)} {unit_of(tuning)} of it there")
    found = prospects(ready)
    note(f"{len(found)} changes could come first: time for each, and the gain that the planner foresees")
    note(*(f"  {line}" for line in prospect_lines(found)))
    kind = "of virtual time" if tuning.simulated else "at most"
    note(f"budget: {format_seconds(tuning.budget_s)} {kind}; Ctrl-C stops it and keeps the best so far")


def document(found: TuningRecord) -> dict[str, Any]:
    failure = None if found.failure is None else failure_json(found.failure)
    more = {"failure": failure, "reason": found.reason, "presets": list(found.presets)}
    return {**tuning_json(found), **more}


def say_state(found: TuningRecord) -> None:
    tuning, over = found.tuning, found.state is TuningState.ENDED
    tried = count_decisions(found.stages) or f"no change was {'tried' if over else 'decided yet'}"
    why = f", {found.reason}" if over and found.reason else ""
    note(f"{tuning.id} ({found.state.value}{why}): goal {goal_words(tuning.aim)}; {tried}; {took_words(found)}")
    if tuning.simulated:
        note("SIMULATED: no model ran; figures and seconds are the planner's with noise, not measurements")


def took_words(found: TuningRecord) -> str:
    """Of all its sessions, without what lay between them."""
    if not found.answers:
        return "nothing is measured yet"
    return f"{format_seconds(found.measured_s)} of {'virtual time' if found.tuning.simulated else 'measuring'}"
