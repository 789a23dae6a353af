"""A tuning in the terminal: its stages as a table and as bars, the winner's curve, and what happens while it runs.

Values in, lines out: what is stored where it does not know; only `tuning_view` knows a clock and a terminal.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from skep.cli.liveview import Line, Page, can_draw, live_view
from skep.cli.output import note, number, print_table
from skep.cli.swarm_tables import one_line
from skep.tuner.ports import BenchProgress, BenchRequest, CurveRequest, JudgeRequest, MeasureRequest
from skep.tuner.predictions import PREDICTED_KNOBS
from skep.tuner.records import (
    FAILURES,
    ConfigFailure,
    CurvePoint,
    Knob,
    KnobConfig,
    StageDecision,
    TuneGoal,
    TuneStage,
    Tuning,
    value_words,
)
from skep.tuner.running import OnEvent, RequestFinished, RequestStarted, StageDecided, TuneEvent
from skep.tuner.step_text import share_words
from skep.tuner.summary import (
    KEPT,
    UNITS,
    accepted,
    baseline_of,
    best_of,
    decision_words,
    given_up,
    total_gain,
    unit_of,
)
from skep.units import Interval, format_seconds

BAR, WHY_WIDTH, CHANGE_WIDTH = 40, 68, 44
LADDER = ("STAGE", "CHANGE", "FIGURE", "95 %", "RATIO", "95 % OF RATIO", "FORESEEN", "TPOT", "TTFT", "DECISION", "WHY")
_SHOWN = {StageDecision.ACCEPTED: "shown to be better", StageDecision.WORSE: "shown to be worse"}


def headline(tuning: Tuning, stages: Sequence[TuneStage], *, over: bool = True) -> str:
    """From where to where, of what, under which load. `over`: nothing more is to come."""
    mark = "SIMULATED: " if tuning.simulated else ""
    what = f"{mark}{tuning.model} ({tuning.engine}) on {tuning.rig}, {tuning.aim.shape}"
    base, best, unit = baseline_of(stages), best_of(stages), unit_of(tuning)
    if base is None or best is None or base.figure is None or best.figure is None:
        return f"{what}: {'nothing was measured' if over else 'nothing is decided yet'}"
    if best is base:
        so_far = "" if over else " so far"
        return f"{what}: {figure_words(base.figure)} {unit}; no change was shown to be better{so_far}"
    steps, gain = len(accepted(stages)), total_gain(stages)
    plural = "s multiplied" if steps > 1 else ""
    times = "" if gain is None else f", {gain.estimate:.2f} times ({gain.low:.2f} to {gain.high:.2f})"
    search = f"from {figure_number(base.figure.estimate)} to {figure_words(best.figure)} {unit}{times}"
    return f"{what}: {search} by {steps} accepted step{plural}"


def print_ladder(tuning: Tuning, stages: Sequence[TuneStage]) -> None:
    """Print every stage with the reason why it was kept or left."""
    if not stages:
        return
    columns = [unit_of(tuning) if name == "FIGURE" else name for name in LADDER]
    right = [name for name in columns if name not in ("CHANGE", "DECISION", "WHY")]
    print_table(columns, [ladder_cells(stage, stages) for stage in stages], right=right)
    for line in dead_ends(stages):
        print(line)  # noqa: T201


def ladder_cells(stage: TuneStage, stages: Sequence[TuneStage]) -> list[str]:
    foreseen = foreseen_ratio(stage)
    return [
        str(stage.number),
        changes_wrapped(stage, CHANGE_WIDTH),
        "–" if stage.figure is None else figure_number(stage.figure.estimate),
        _figures(stage.figure),
        "–" if stage.ratio is None else f"{stage.ratio.estimate:.3f}",
        _range(stage.ratio, 3),
        "–" if foreseen is None else f"{foreseen:.2f}",
        "–" if stage.tpot_ms is None else f"{stage.tpot_ms:.1f} ms",
        "–" if stage.ttft_ms is None else f"{stage.ttft_ms:,.0f} ms",
        verdict_words(stage, stages),
        wrapped(why_words(stage), WHY_WIDTH),
    ]


def foreseen_ratio(stage: TuneStage) -> float | None:
    """The planner's, where it knows any of the knobs: one that it knows nothing of leaves its figure as it is."""
    return stage.predicted if any(change.knob in PREDICTED_KNOBS for change in stage.changes) else None


def verdict_words(stage: TuneStage, stages: Sequence[TuneStage]) -> str:
    return f"{stage.decision.value}, died later" if stage.number in given_up(stages) else stage.decision.value


def why_words(stage: TuneStage) -> str:
    """Say why a stage was kept or left, without its ratio and its log line: both are told elsewhere."""
    if stage.decision is StageDecision.BASELINE:
        return stage.why
    lead = "kept" if stage.decision is StageDecision.ACCEPTED else "left"
    if stage.decision is StageDecision.FAILED:
        return f"{lead}: {decision_words(stage)}"
    reason = stage.why
    if stage.ratio is not None:
        share = share_words(stage.ratio)
        reason = stage.why.removeprefix(share).lstrip(",:; ")
        if stage.why.startswith(f"{share}, ") and stage.decision in _SHOWN:
            reason = f"{_SHOWN[stage.decision]} by {reason}"
    return f"{lead}: {reason}"


def wrapped(text: str, width: int) -> str:
    """Return lines of at most so many letters, nothing cut but words that are longer."""
    return "\n".join(textwrap.wrap(one_line(text, 2000), width, break_on_hyphens=False))


def changes_wrapped(stage: TuneStage, width: int) -> str:
    """A change to a line where they do not fit on one."""
    if len(stage.title) <= width or len(stage.changes) < 2:
        return wrapped(stage.title, width)
    return "\n".join(wrapped(str(change), width) for change in stage.changes)


def dead_ends(stages: Iterable[TuneStage]) -> list[str]:
    """In full, with the engine's own line and what would mend it: a table has no room for them."""
    numbers: dict[ConfigFailure, list[int]] = {}
    for stage in stages:
        if stage.failure is not None:
            numbers.setdefault(stage.failure, []).append(stage.number)
    lines: list[str] = []
    for failure, same in numbers.items():
        lines += failure_lines(f"stage{'s' if len(same) > 1 else ''} {', '.join(map(str, same))}", failure)
    return lines


def failure_lines(which: str, failure: ConfigFailure) -> list[str]:
    lines = [f"{which} {FAILURES.get(failure.kind, failure.kind)}: {one_line(failure.cause, 300)}"]
    if failure.evidence:
        lines.append(f"  it said: {one_line(failure.evidence, 300)}")
    if failure.remedy:
        lines.append(f"  remedy: {one_line(failure.remedy, 300)}")
    return lines


def print_progress(tuning: Tuning, stages: Sequence[TuneStage]) -> None:
    for line in progress_lines(stages, unit_of(tuning)):
        print(line)  # noqa: T201


def progress_lines(stages: Sequence[TuneStage], unit: str) -> list[str]:
    """Draw a bar for each configuration that was the best of its time."""
    kept, lost = [stage for stage in stages if stage.decision in KEPT], given_up(stages)
    most = max((stage.figure.high for stage in kept if stage.figure), default=0.0)
    lines: list[str] = []
    for stage in kept:
        if stage.figure is not None:
            died = " (died later)" if stage.number in lost else ""
            figure = f"{figure_words(stage.figure)} {unit}"
            lines.append(f"{stage.number:>5}  {_bar(stage.figure, most)}  {figure}  {stage.title}{died}")
    return lines


def _bar(figure: Interval, most: float) -> str:
    """Solid up to the interval's lower end, then light to its upper end."""
    low, high = round(BAR * max(0.0, figure.low) / most), round(BAR * figure.high / most)
    full = max(1, low)
    return ("█" * full + "░" * max(0, high - full)).ljust(BAR)


def print_curve(points: Sequence[CurvePoint], baseline: KnobConfig, best: KnobConfig) -> None:
    """Effective tok/s of both over concurrency. Intervals of two runs are wide, and say so."""
    if not points:
        return
    levels = sorted({point.concurrency for point in points})
    alone = baseline == best
    by_place = {(point.concurrency, point.config.key): point for point in points}
    rows = []
    for level in levels:
        first, second = by_place.get((level, baseline.key)), by_place.get((level, best.key))
        rows.append([str(level), *_curve_cells(first), *_curve_cells(second), _times(first, second)])
    columns = ("C", "baseline tok/s", "95 %", "TTFT", "best tok/s", "95 % ", "TTFT ", "TIMES")
    shown = 4 if alone else len(columns)
    print_table(columns[:shown], [row[:shown] for row in rows], right=columns)


def _curve_cells(point: CurvePoint | None) -> list[str]:
    if point is None or point.figure is None:
        return ["–", "–", "–"]
    ttft = "–" if point.ttft_ms is None else f"{point.ttft_ms:,.0f} ms"
    return [figure_number(point.figure.estimate), _figures(point.figure), ttft]


def _times(first: CurvePoint | None, second: CurvePoint | None) -> str:
    if first is None or second is None or first.figure is None or second.figure is None or not first.figure.estimate:
        return "–"
    return f"{second.figure.estimate / first.figure.estimate:.2f}"


def config_words(config: KnobConfig, knobs: Sequence[Knob]) -> str:
    """`slots 4, kv f16, ...`: by the names that --knobs takes."""
    return ", ".join(f"{knob.name} {value_words(config.get(knob.name))}" for knob in knobs)


def differences(baseline: KnobConfig, best: KnobConfig) -> str:
    return ", ".join(map(str, best.changes_from(baseline))) or "nothing"


def aim_words(aim: TuneGoal) -> str:
    limits = f", within {aim.slo}" if aim.slo else ""
    context = f", context of {aim.min_context} at least" if aim.min_context else ""
    return f"{aim} ({aim.shape}{limits}{context})"


def figure_words(figure: Interval) -> str:
    digits = _digits(figure.estimate)
    low, high = (number(max(0.0, value), digits) for value in (figure.low, figure.high))
    return f"{figure_number(figure.estimate)} ({low} to {high})"


def figure_number(value: float) -> str:
    """With as many digits as tell it from its neighbours: tokens a joule are mostly below one."""
    return number(value, _digits(value))


def _digits(value: float) -> int:
    return 1 if value >= 10 else 2 if value >= 1 else 3


def _figures(interval: Interval | None) -> str:
    return _range(interval, 1 if interval is None else _digits(interval.estimate))


def _range(interval: Interval | None, digits: int) -> str:
    """Of what cannot be below zero, whatever two runs make of it."""
    return "–" if interval is None else f"{max(0.0, interval.low):,.{digits}f}..{interval.high:,.{digits}f}"


SHOWN_STAGES = 12
STYLES = {
    StageDecision.ACCEPTED: "green",
    StageDecision.BASELINE: "bold",
    StageDecision.FAILED: "red",
    StageDecision.ANSWERS_WORSE: "red",
}


@dataclass(slots=True)
class TuneStatus:
    """All that is known of a search at this moment."""

    title: str
    aim: TuneGoal
    budget_s: float
    spent_s: float = 0.0  # of the budget, requests that ended
    stages: list[TuneStage] = field(default_factory=list)
    request: BenchRequest | None = None
    progress: BenchProgress | None = None

    @property
    def unit(self) -> str:
        return UNITS[self.aim.metric]

    def lines(self, page: Page, running_s: float) -> list[Line]:
        """`running_s`: since the request under way began."""
        best = best_of(self.stages)
        found = "nothing yet" if best is None or best.figure is None else f"{figure_words(best.figure)} {self.unit}"
        left = max(0.0, self.budget_s - self.spent_s - running_s)
        budget = f"{format_seconds(self.spent_s + running_s)} of {format_seconds(self.budget_s)}"
        lines: list[Line] = [
            [(self.title, "bold")],
            [("best    ", "bold"), (found, "")],
            [("time    ", "bold"), (f"{budget}, {format_seconds(left)} left at most", "")],
            [("now     ", "bold"), (self.now_words(), "")],
            [],
        ]
        room = SHOWN_STAGES if page.height is None else max(1, page.height - len(lines) - 1)
        hidden = len(self.stages) - room
        if hidden > 0:
            lines.append([(f"{hidden} earlier stages", "dim")])
        for stage in self.stages[-room:]:
            text = one_line(stage_words(stage, self.unit), max(20, page.width - 1))
            lines.append([(text, STYLES.get(stage.decision, ""))])
        return lines

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

    def now_words(self) -> str:
        if self.request is None:
            return "thinking"
        words, progress = step_words(self.request), self.progress
        if progress is None:
            return words
        of = f" {progress.reading}/{progress.readings}" if progress.readings else ""
        speed = f", {number(progress.tok_s)} tok/s" if progress.tok_s is not None else ""
        return f"{words}: {progress.what}{of}{speed}"


def step_words(request: BenchRequest) -> str:
    match request:
        case MeasureRequest():
            return request.words or request.purpose
        case JudgeRequest():
            changes = ", ".join(map(str, request.challenger.changes_from(request.incumbent)))
            return f"are the answers as good? {changes}"
        case CurveRequest():
            return f"the curve at C={','.join(map(str, request.levels))}"


def stage_words(stage: TuneStage, unit: str) -> str:
    """Return one line: what was decided of which change, by which figures."""
    figure = "" if stage.figure is None else f": {figure_words(stage.figure)} {unit}"
    why = f"; {stage.why}" if stage.why else ""
    what = stage.decision.value if not stage.changes else f"{stage.decision.value}, {stage.title}"
    return f"stage {stage.number} {what}{figure}{why}"


@contextlib.contextmanager
def tuning_view(standing: TuneStatus, *, brief: bool = False) -> Iterator[OnEvent]:
    """`brief`: stages only, where requests take no time. A terminal that went away is no reason to stop."""
    began = [time.monotonic()]
    lines = not can_draw(sys.stderr)

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads on: the work is worth more than the story of it
            note(one_line(text, 600))

    def on_event(event: TuneEvent) -> None:
        standing.take(event)
        if isinstance(event, RequestStarted):
            began[0] = time.monotonic()
            if lines and not brief:
                say(f"{step_words(event.request)} ...")
        elif isinstance(event, StageDecided) and lines:
            say(stage_words(event.stage, standing.unit))

    if lines:
        yield on_event
        return
    with live_view(lambda page: standing.lines(page, 0.0 if brief else time.monotonic() - began[0])):
        yield on_event
