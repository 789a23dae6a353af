"""The report of a tuning: one page that needs no other file and no network, and the parts that the
dashboard shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from markupsafe import Markup

from skep.report import theme
from skep.report.charts import Spec, bars_chart
from skep.report.columns import Column, at, plain_columns, print_records
from skep.report.liveview import Line, Page
from skep.report.svg import picture
from skep.report.sweep_text import interval_text
from skep.report.terminal import day_and_time, note
from skep.store.rows import finite
from skep.tuner import summary
from skep.tuner.power_knob import cheap_limit_words
from skep.tuner.records import (
    METRICS,
    BenchProgress,
    BenchRequest,
    StageDecision,
    TuneEvent,
    TuneStage,
    Tuning,
    value_words,
)
from skep.tuner.setup import PreparedTuning
from skep.tuner.store import TuningRecord, TuningState
from skep.units import (
    UNKNOWN,
    format_seconds,
    known,
    milliseconds,
    number,
    one_line,
    percent,
    printable,
    public_name,
    seconds,
    shortened,
)

Stages = Sequence[TuneStage]
_STYLES = {
    StageDecision.BASELINE: "left",
    StageDecision.ACCEPTED: "left",
    StageDecision.SAME: "left soft",
    StageDecision.UNDECIDED: "left soft",
}


def stage_columns(tuning: Tuning, stages: Stages) -> list[Column[TuneStage]]:
    lost = summary.given_up(stages)

    def decision(stage: TuneStage) -> str:
        return summary.decision_words(stage) + (", died later" if stage.number in lost else "")

    def style(stage: TuneStage) -> str:
        if stage.number in lost:
            return "left bad"
        return _STYLES.get(stage.decision, "left bad")

    return [
        Column("number", "#", lambda stage: stage.number),
        Column(
            "change",
            "Change",
            lambda stage: stage.title,
            partial(shortened, longest=160),
            right=False,
            style="wide",
        ),
        Column("decision", "Decision", decision, right=False, style=style),
        Column("figure", summary.unit_of(tuning), at("figure.estimate"), number),
        Column(
            "figure_interval",
            "95 %",
            lambda stage: stage.figure,
            interval_text,
            rank=1,
            style="soft",
        ),
        Column("ratio", "Over best", lambda stage: stage.ratio, summary.ratio_words),
        Column(
            "ratio_interval",
            "95 %",
            lambda stage: stage.ratio,
            summary.ratio_range,
            rank=1,
            style="soft",
        ),
        Column(
            "predicted_ratio",
            "Predicted",
            lambda stage: stage.predicted,
            _times,
            rank=3,
            style="soft",
        ),
        *_load_columns(tuning, stages),
        Column(
            "why",
            "Why",
            lambda stage: stage.why,
            partial(shortened, longest=400),
            right=False,
            style="wide soft",
        ),
        Column("starts", "Starts", lambda stage: stage.starts, rank=4),
        Column("readings", "Readings", lambda stage: stage.readings, rank=4),
        Column("seconds", "Took", lambda stage: stage.seconds, seconds, rank=4),
    ]


def _load_columns(tuning: Tuning, stages: Stages) -> list[Column[TuneStage]]:
    """Return the columns of what tasks or sessions got beside the figure of the goal."""
    if tuning.aim.sessions is None:
        return [
            Column("tpot_ms", "TPOT p50", lambda stage: stage.tpot_ms, milliseconds, rank=2),
            Column("ttft_ms", "TTFT p50", lambda stage: stage.ttft_ms, milliseconds, rank=2),
        ]
    columns = [
        Column("session_s", "Session p50", at("sessions.session_s"), seconds, rank=2),
        Column("first_p50_ms", "First token p50", at("sessions.first_p50_ms"), milliseconds),
        Column("first_p95_ms", "p95", at("sessions.first_p95_ms"), milliseconds, rank=2),
        Column("hit_rate", "Hits", at("sessions.hit_rate"), _share),
    ]
    if any(stage.sessions is not None and stage.sessions.mean_w for stage in stages):
        columns += [
            Column("mean_w", "W", at("sessions.mean_w"), number),
            Column("turns_per_wh", "Turns/Wh", summary.turns_per_wh, number),
        ]
    return columns


def _note(saved: TuningRecord) -> str:
    remarks = []
    if saved.tuning.simulated:
        remarks.append("SIMULATED")
    if summary.best_of(saved.stages) is None and saved.reason:
        remarks.append(saved.reason)
    return ", ".join([*remarks, *filter(None, saved.presets)])


def _of(find: Callable[[Stages], object], path: str) -> Callable[[TuningRecord], Any]:
    """Return what reads a part of something that is found in the stages."""
    return lambda saved: at(path)(find(saved.stages))


# The figures of a tuning, for `skep tune list` and the dashboard; a terminal shows those with a
# title.
TUNING_COLUMNS: tuple[Column[TuningRecord], ...] = (
    Column("id", "TUNING", lambda saved: saved.id, right=False),
    Column(
        "created_at",
        "WHEN",
        lambda saved: saved.tuning.created_at,
        day_and_time,
        right=False,
        rank=1,
    ),
    Column("state", "STATE", lambda saved: saved.state.value, right=False),
    Column("model", "MODEL", lambda saved: saved.tuning.model, right=False),
    Column("engine", "ENGINE", lambda saved: saved.tuning.engine, right=False, rank=2),
    Column("rig", "ON", lambda saved: saved.tuning.rig, right=False, rank=2),
    Column("goal", "GOAL", lambda saved: str(saved.tuning.aim), right=False),
    Column("shape", "LOAD", lambda saved: saved.tuning.aim.shape, right=False, rank=3),
    *plain_columns(
        "slo=tuning.aim.slo simulated=tuning.simulated measured_s skep_version=tuning.skep_version"
    ),
    Column("stages", "", lambda saved: len(saved.stages)),
    Column("from", "FROM", _of(summary.baseline_of, "figure.estimate"), number),
    Column("to", "TO", _of(summary.best_of, "figure.estimate"), number),
    Column("gain", "TIMES", _of(summary.total_gain, "estimate"), partial(number, digits=2)),
    Column("gain_low", "", _of(summary.total_gain, "low")),
    Column("gain_high", "", _of(summary.total_gain, "high")),
    Column("presets", "", lambda saved: list(saved.presets)),
    Column("note", "NOTE", _note, right=False, rank=1),
)


def _times(ratio: float) -> str:
    if known(ratio):
        return f"{number(ratio, digits=2)}×"
    return UNKNOWN


def _share(value: float) -> str:
    return percent(100 * value)


_TALLEST = 1.6  # of the largest figure: the interval of two repeats may be of any width


def ladder_chart(tuning: Tuning, stages: Stages) -> Spec | None:
    """Draw a bar for each configuration that was the best of its time.

    None where nothing was measured.
    """
    best = summary.best_of(stages)
    lost = summary.given_up(stages)
    rungs = [
        (stage, stage.figure)
        for stage in stages
        if stage.decision in summary.KEPT and stage.figure is not None
    ]
    if not rungs:
        return None
    rows = []
    longest = _TALLEST * max(figure.estimate for _, figure in rungs)
    for stage, figure in rungs:
        low = high = value = figure.estimate
        if known(figure.low) and known(figure.high):
            low = max(0.0, figure.low)
            high = min(figure.high, longest)
        words = [number(value)]
        mark = ""
        colour = theme.STONE
        if stage.decision is StageDecision.ACCEPTED:
            colour = theme.SKY
            if stage.number in lost:
                mark = "died later"
                colour = theme.ROSE
            elif stage is best:
                mark = "best"
                colour = theme.HONEY
            words.append(summary.ratio_words(stage.ratio))
        name = f"{stage.number}. {shortened(printable(stage.title), 48)}"
        label = ", ".join(filter(None, [*words, mark]))
        rows.append(
            {
                "name": name,
                "value": value,
                "low": low,
                "high": high,
                "label": label,
                "colour": colour,
            }
        )
    return bars_chart(rows, summary.unit_of(tuning), row_px=36)


def tuning_page(tuning: Tuning, stages: Stages, *, state: str | None = None) -> str:
    """Return one HTML document. `state`: where the search is not at its end."""
    from skep.report.page import render

    model = public_name(tuning.model)
    return render(
        "tuning_page.html",
        kind="tuning",
        name="tune",
        title=f"{model} (simulated)" if tuning.simulated else model,
        tuning=tuning,
        stages=stages,
        state=state,
        summary=summary,
        body=tuning_main(tuning, stages),
        footer=f"skep {tuning.skep_version} · tuning {tuning.id}",
    )


def tuning_main(tuning: Tuning, stages: Stages) -> Markup:
    """Return everything below the headline, without its frame."""
    from skep.report.page import html_table, render

    best = summary.best_of(stages)
    lost = summary.given_up(stages)
    drawn = ladder_chart(tuning, stages)

    def rungs(caption: str, listed: Sequence[TuneStage]) -> Markup:
        best_places = [
            n
            for n, stage in enumerate(listed)
            if stage.decision is StageDecision.ACCEPTED and stage.number not in lost
        ]
        return html_table(caption, stage_columns(tuning, stages), listed, best_places)

    rejected = [stage for stage in stages if stage.decision not in summary.KEPT]
    return render(
        "tuning_main.html",
        tuning=tuning,
        summary=summary,
        model=public_name(tuning.model),
        best=best,
        interval_text=interval_text,
        metric=METRICS.get(tuning.aim.metric, tuning.aim.metric),
        stages=stages,
        ladder=drawn and picture({**drawn, "width": 860}, summary.headline(tuning, stages)),
        rungs=rungs,
        left=rejected,
        value_words=value_words,
    )


FEWEST_ROWS = 12  # of stages, where the height is not known
STYLES = {
    StageDecision.ACCEPTED: "green",
    StageDecision.BASELINE: "bold",
    StageDecision.FAILED: "red",
    StageDecision.ANSWERS_WORSE: "red",
}


def print_tuning(saved: TuningRecord) -> None:
    """Print the steps of a tuning; failures stand in full below the table, which has no room for
    them.
    """
    tuning = saved.tuning
    stages = saved.stages
    print(f"{_what_is_tuned(tuning)}: {summary.headline(tuning, stages)}")  # noqa: T201
    if stages:
        print_records(stage_columns(tuning, stages), stages)
    for stage in stages:
        if stage.failure is not None:
            print(  # noqa: T201
                f"step {stage.number} {stage.failure.title}: {one_line(str(stage.failure), 600)}"
            )


def _what_is_tuned(tuning: Tuning) -> str:
    words = f"{tuning.model} ({tuning.engine}) on {tuning.rig}"
    if tuning.simulated:
        return f"SIMULATED: {words}"
    return words


@dataclass(slots=True)
class TuneStatus:
    """All that is known of a search at this moment."""

    tuning: Tuning
    spent_s: float = 0.0  # of the budget, requests that ended
    stages: list[TuneStage] = field(default_factory=list)
    request: BenchRequest | None = None
    progress: BenchProgress | None = None

    def take(self, event: TuneEvent) -> None:
        if isinstance(event, BenchProgress):
            self.progress = event
        elif isinstance(event, TuneStage):
            self.stages.append(event)
        elif isinstance(event, BenchRequest):
            self.request = event
            self.progress = None
        else:
            self.request = None
            self.progress = None
            self.spent_s += event.seconds


def status_lines(status: TuneStatus, page: Page, running_s: float) -> list[Line]:
    """Return the page of a search. `running_s`: since the request under way began."""
    tuning = status.tuning
    best = summary.best_of(status.stages)
    figure = None if best is None else best.figure
    unit = summary.unit_of(tuning)
    if figure is None:
        known_best = "nothing yet"
    else:
        known_best = f"{summary.figure_words(figure)} {unit}"
    spent_s = status.spent_s + running_s
    budget = format_seconds(tuning.budget_s)
    time_left = format_seconds(max(0.0, tuning.budget_s - spent_s))
    title = f"{tuning.id}  {tuning.model} on {tuning.rig}"
    if tuning.simulated:
        title += "  SIMULATED"
    lines: list[Line] = [
        [(title, "bold")],
        [("best    ", "bold"), (known_best, "")],
        [
            ("time    ", "bold"),
            (f"{format_seconds(spent_s)} of {budget}, {time_left} left", ""),
        ],
        [("now     ", "bold"), (now_words(status), "")],
        [],
    ]
    if page.height is None:
        room = FEWEST_ROWS
    else:
        room = max(1, page.height - len(lines) - 3)
    for stage in status.stages[-room:]:
        words = shortened(summary.stage_words(stage, unit), page.width - 1)
        lines.append([(words, STYLES.get(stage.decision, ""))])
    return lines


def now_words(status: TuneStatus) -> str:
    if status.request is None:
        return "thinking"
    if (progress := status.progress) is None:
        return status.request.words
    words = f"{status.request.words}: {progress.activity}"
    if progress.reading:
        words += f" {progress.reading}/{progress.readings}"
    if progress.tok_s is not None:
        words += f", {number(progress.tok_s)} tok/s"
    return words


def say_what_begins(ready: PreparedTuning) -> None:
    """Say from where it begins, and what is tried."""
    tuning = ready.tuning
    note(*ready.notes)
    note(f"{_what_is_tuned(tuning)}; goal {summary.goal_words(tuning.aim)}")
    values = (
        f"{knob.name} {value_words(tuning.baseline.get(knob.name))}" for knob in tuning.knobs
    )
    note(f"baseline: {', '.join(values)}")
    if (foreseen := ready.space.predict(tuning.baseline)) is not None:
        note(f"the planner expects {number(foreseen)} {summary.unit_of(tuning)} there")
    note("values to try:")
    for knob in tuning.knobs:
        others = (
            value_words(value) for value in knob.values if value != tuning.baseline.get(knob.name)
        )
        line = f"  {knob.name} {', '.join(others)}"
        if knob.along:
            line += " (only where another change does not fit without it)"
        note(line)
    kind = "of virtual time" if tuning.simulated else "at most"
    note(
        f"budget: {format_seconds(tuning.budget_s)} {kind}; Ctrl-C stops it and keeps the "
        "best so far"
    )
    note(room_words(ready))


def room_words(ready: PreparedTuning) -> str:
    """Return how many changes the budget has room for, by what a start and a reading are expected
    to take.
    """
    budget = ready.search().time_budget
    changes = budget.changes()
    many = f"about {changes} changes" if changes > 1 else "one change"
    look = f"a first look at one takes about {format_seconds(budget.look_s)}"
    return f"room for {many}: {look}, a decision side by side {format_seconds(budget.decision_s)}"


def say_how_far_off(ready: PreparedTuning, saved: TuningRecord) -> None:
    """Say what the planner expected of the baseline beside what was measured."""
    began = summary.baseline_of(saved.stages)
    foreseen = ready.space.predict(saved.tuning.baseline)
    if began is not None and began.figure and foreseen:
        measured = began.figure.estimate
        unit = summary.unit_of(saved.tuning)
        direction = "high" if foreseen > measured else "low"
        off = f"{100 * abs(foreseen / measured - 1):.0f} % too {direction}"
        note(
            f"measured {number(measured)} {unit} at the start; the plan expected "
            f"{number(foreseen)}, {off}"
        )


def document(saved: TuningRecord) -> dict[str, Any]:
    """Return the document of `skep tune show --json` and of the dashboard."""
    stages = saved.stages
    gain = summary.total_gain(saved.stages)
    baseline = summary.baseline_of(stages)
    best = summary.best_of(stages)
    fields: dict[str, Any] = finite(msgspec.to_builtins(saved.tuning))
    aim = fields.pop("aim")
    fields |= {
        "goal": str(saved.tuning.aim),
        **aim,
        "state": saved.state,
        "measured_s": finite(saved.measured_s),
    }
    fields["knobs"] = [
        {name: knob[name] for name in ("name", "title", "values")} for knob in fields["knobs"]
    ]
    return {
        "tuning": {
            name: value
            for name, value in fields.items()
            if name not in ("baseline", "base", "host")
        },
        "baseline": None if baseline is None else _stage_json(baseline),
        "best": None if best is None else _stage_json(best),
        "gain": None if gain is None else finite(msgspec.to_builtins(gain)),
        "stages": [_stage_json(stage) for stage in stages],
        "reason": saved.reason,
        "presets": list(saved.presets),
    }


def _stage_json(stage: TuneStage) -> dict[str, Any]:
    fields: dict[str, Any] = finite(msgspec.to_builtins(stage))
    fields["predicted_ratio"] = fields.pop("predicted")
    derived = {
        "title": stage.title,
        "config": finite(stage.config.as_dict),
        "key": stage.config.key,
    }
    return fields | derived | {"accepted": stage.decision is StageDecision.ACCEPTED}


def say_state(saved: TuningRecord) -> None:
    """Say where a tuning stands: its goal, what was tried, how long it took."""
    tuning = saved.tuning
    state = str(saved.state.value)
    no_decision = "no change was decided yet"
    if saved.state is TuningState.ENDED:
        no_decision = "no change was tried"
        if saved.reason:
            state += f", {saved.reason}"
    decisions = summary.count_decisions(saved.stages) or no_decision
    note(
        f"{tuning.id} ({state}): goal {summary.goal_words(tuning.aim)}; "
        f"{decisions}; {took_words(saved)}"
    )
    if (cheap := cheap_limit_words(saved.stages)) is not None:
        note(cheap)
    if tuning.simulated:
        note(
            "SIMULATED: no model ran; figures and seconds are the planner's with noise, not "
            "measurements"
        )


def took_words(saved: TuningRecord) -> str:
    """Return the time of all its sessions, without what lay between them."""
    if not saved.answers:
        return "nothing is measured yet"
    kind = "virtual time" if saved.tuning.simulated else "measuring"
    return f"{format_seconds(saved.measured_s)} of {kind}"
