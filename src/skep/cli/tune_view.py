"""What is shown while a tuning climbs: the ladder so far and what happens now on a terminal, a line a step elsewhere.

`TuneStatus` knows no clock, terminal or process; `live_view` does.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skep.cli.output import note, number
from skep.cli.swarm_tables import one_line
from skep.cli.top import Line, Screen
from skep.cli.tune_tables import figure_words
from skep.tuner.ports import BenchProgress, BenchRequest, CurveRequest, JudgeRequest, MeasureRequest
from skep.tuner.records import StageDecision, TuneGoal, TuneStage
from skep.tuner.running import OnEvent, RequestFinished, RequestStarted, StageDecided, TuneEvent
from skep.tuner.summary import UNITS, best_of
from skep.units import format_seconds

if TYPE_CHECKING:
    from rich.text import Text

REFRESH_PER_S = 4
SHOWN_STAGES = 12
STYLES = {
    StageDecision.ACCEPTED: "green",
    StageDecision.BASELINE: "bold",
    StageDecision.FAILED: "red",
    StageDecision.ANSWERS_WORSE: "red",
}


@dataclass(slots=True)
class TuneStatus:
    """All that is known of a climb at this moment."""

    title: str
    aim: TuneGoal
    budget_s: float
    spent_s: float = 0.0  # of the budget, errands that ended
    stages: list[TuneStage] = field(default_factory=list)
    errand: BenchRequest | None = None
    progress: BenchProgress | None = None

    @property
    def unit(self) -> str:
        return UNITS[self.aim.metric]

    def lines(self, page: Screen, running_s: float) -> list[Line]:
        """`running_s`: since the errand under way began."""
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
        return [[(page.clean(text), style) for text, style in line] for line in lines]

    def take(self, event: TuneEvent) -> None:
        match event:
            case RequestStarted():
                self.errand, self.progress = event.errand, None
            case BenchProgress():
                self.progress = event
            case RequestFinished():
                self.errand, self.progress = None, None
                self.spent_s += event.answer.seconds
            case StageDecided():
                self.stages.append(event.stage)

    def now_words(self) -> str:
        if self.errand is None:
            return "thinking"
        words, progress = step_words(self.errand), self.progress
        if progress is None:
            return words
        of = f" {progress.reading}/{progress.readings}" if progress.readings else ""
        speed = f", {number(progress.tok_s)} tok/s" if progress.tok_s is not None else ""
        return f"{words}: {progress.what}{of}{speed}"


def step_words(errand: BenchRequest) -> str:
    match errand:
        case MeasureRequest():
            return errand.words or errand.purpose
        case JudgeRequest():
            changes = ", ".join(map(str, errand.challenger.changes_from(errand.incumbent)))
            return f"are the answers as good? {changes}"
        case CurveRequest():
            return f"the curve at C={','.join(map(str, errand.levels))}"


def stage_words(stage: TuneStage, unit: str) -> str:
    """One line: what was decided of which change, by which figures."""
    figure = "" if stage.figure is None else f": {figure_words(stage.figure)} {unit}"
    why = f"; {stage.why}" if stage.why else ""
    what = stage.decision.value if not stage.changes else f"{stage.decision.value}, {stage.title}"
    return f"stage {stage.number} {what}{figure}{why}"


@contextlib.contextmanager
def live_view(standing: TuneStatus, *, brief: bool = False) -> Iterator[OnEvent]:
    """`brief`: stages only, where errands take no time. A terminal that went away is no reason to stop."""
    began = [time.monotonic()]
    lines = not sys.stderr.isatty()

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads on: the work is worth more than the story of it
            note(one_line(text, 600))

    def on_event(event: TuneEvent) -> None:
        standing.take(event)
        if isinstance(event, RequestStarted):
            began[0] = time.monotonic()
            if lines and not brief:
                say(f"{step_words(event.errand)} ...")
        elif isinstance(event, StageDecided) and lines:
            say(stage_words(event.stage, standing.unit))

    if lines:
        yield on_event
        return
    with _picture(lambda page: standing.lines(page, 0.0 if brief else time.monotonic() - began[0])):
        yield on_event


@contextlib.contextmanager
def _picture(lines: Callable[[Screen], list[Line]]) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, highlight=False)

    def drawn() -> Text:
        page = Screen(console.width, max(10, console.height) - 1, console.encoding)
        return Text("\n", no_wrap=True, overflow="crop").join([Text.assemble(*line) for line in lines(page)])

    live = Live(
        get_renderable=drawn, console=console, refresh_per_second=REFRESH_PER_S, transient=True, redirect_stdout=False
    )
    with contextlib.suppress(OSError):
        live.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            live.stop()
