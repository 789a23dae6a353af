"""The report of a tuning: one page that needs no other file and no network, and the parts that the dashboard shows.

Pure: takes values, gives text. Who stored them and who serves them it does not know. All stages of one tuning were
measured under one shape of load; what was simulated is said above the first figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from skep.report import theme
from skep.report.charts import ChartCurve, Spec, bars_chart, curves_chart, sized
from skep.report.levels import interval_text
from skep.report.markup import (
    Markup,
    banner,
    card,
    definitions,
    join,
    optional_section,
    section,
    table,
    tag,
    term_list,
    text,
    text_table,
    trusted,
    wide_figure,
)
from skep.report.style import document, mark
from skep.report.svg import chart_figure, picture, standalone
from skep.tuner.records import METRICS, CurvePoint, KnobConfig, StageDecision, TuneStage, Tuning, value_words
from skep.tuner.summary import (
    KEPT,
    after_each,
    baseline_of,
    best_of,
    config_name,
    count_decisions,
    decision_words,
    given_up,
    headline,
    model_words,
    ratio_range,
    ratio_words,
    shape_words,
    total_gain,
    unit_of,
)
from skep.units import UNKNOWN, Interval, fact_list, known, milliseconds, moment, number, printable, seconds, shortened

MOST_OPEN = 12  # attempts that were not kept, up to which nothing is folded away
_LONGEST_WHY = 400
_STYLES = {
    StageDecision.BASELINE: "left",
    StageDecision.ACCEPTED: "left",
    StageDecision.SAME: "left soft",
    StageDecision.UNDECIDED: "left soft",
}
_LEFT = ("Change", "Decision", "Why")


def ladder(tuning: Tuning, stages: Sequence[TuneStage]) -> Markup:
    """Return every attempt in the order in which it was decided. Of many, those that were not kept are folded away."""
    if sum(one.decision not in KEPT for one in stages) <= MOST_OPEN:
        return _rungs("The ladder: every attempt and what became of it", tuning, stages, stages)
    kept = [one for one in stages if one.decision in KEPT]
    steps = _rungs("The ladder: every configuration that was the best of its time", tuning, stages, kept)
    folds = [_fold(tuning, stages, step, left) for step, left in after_each(stages) if left]
    return join([steps, *folds] if kept else folds)


def _fold(tuning: Tuning, stages: Sequence[TuneStage], step: TuneStage | None, left: Sequence[TuneStage]) -> Markup:
    """Return what was tried after a step and not kept. Its id lets a page that is read anew keep it open."""
    number = 0 if step is None else step.number
    after = "before the baseline" if step is None else f"after stage {number}, {shortened(step.title, 80)}"
    said = tag("summary", tag("b", text(f"{len(left)} not kept {after}")), text(f": {count_decisions(left)}"))
    made = _rungs(f"Attempts that were not kept {after}", tuning, stages, left)
    return tag("details", said, made, id=f"after-{number}", class_="attempts")


def _rungs(caption: str, tuning: Tuning, stages: Sequence[TuneStage], shown: Sequence[TuneStage]) -> Markup:
    names = ("#", "Change", "Decision", unit_of(tuning), "95 %", "Over the best then", "95 %", "Foreseen", "TPOT p50",
             "TTFT p50", "Why", "Starts", "Readings", "Took")  # fmt: skip
    head = tag("tr", *(tag("th", text(name), scope="col", class_="left" if name in _LEFT else None) for name in names))
    lost = given_up(stages)
    return table(caption, [head], [_tuning_tables_row(one, lost=one.number in lost) for one in shown])


def settings_table(tuning: Tuning, stages: Sequence[TuneStage]) -> Markup | None:
    """Return each knob in the baseline and in the best configuration."""
    best = best_of(stages)
    if best is None:
        return None
    titles = {knob.name: knob.title for knob in tuning.knobs}
    named = list(dict.fromkeys([*titles, *tuning.baseline.as_dict, *best.config.as_dict]))
    head = tag(
        "tr",
        tag("th", text("Knob"), scope="col"),
        *(tag("th", text(name), scope="col", class_="left") for name in ("What it is", "Baseline", "Best")),
    )
    rows = []
    for name in named:
        before, after = tuning.baseline.get(name), best.config.get(name)
        changed, said = before != after, text(shortened(value_words(after), 80))
        rows.append(
            tag(
                "tr",
                tag("th", text(name), scope="row"),
                tag("td", text(titles.get(name, "")), class_="note"),
                tag("td", text(shortened(value_words(before), 80)), class_="left"),
                tag("td", tag("b", said, text(" (changed)")) if changed else said, class_="left"),
                class_="best" if changed else None,
            )
        )
    return table("Settings of the baseline and of the best", [head], rows)


def dead_ends(stages: Sequence[TuneStage]) -> Markup | None:
    """Return what happened, the line of the log that says so, and what would mend it."""
    columns = ("#", ("Change", "wide"), ("What happened", "wide"), ("Log line", "wide"), ("Remedy", "wide"))
    rows = [
        (
            stage.number,
            shortened(stage.title, 160),
            shortened(f"{decision_words(stage)}: {failure.cause}", 400),
            shortened(failure.evidence, 600) if failure.evidence else UNKNOWN,
            shortened(failure.remedy or UNKNOWN, 400),
        )
        for stage in stages
        if (failure := stage.failure) is not None
    ]
    return text_table("Dead ends", columns, rows, inner={"Log line": "code"}) if rows else None


def _tuning_tables_row(stage: TuneStage, *, lost: bool) -> Markup:
    figure = None if stage.figure is None else stage.figure.estimate
    kept = stage.decision is StageDecision.ACCEPTED and not lost
    style = "left bad" if lost else _STYLES.get(stage.decision, "left bad")
    said = text(decision_words(stage) + (", died later" if lost else ""))
    foreseen = f"{number(stage.predicted, digits=2)}×" if known(stage.predicted) else UNKNOWN
    return tag(
        "tr",
        tag("th", text(stage.number), scope="row"),
        tag("td", text(shortened(stage.title, 160)), class_="wide"),
        tag("td", tag("b", said) if kept else said, class_=style),
        tag("td", tag("b", text(number(figure))) if kept else text(number(figure))),
        tag("td", text(interval_text(stage.figure)), class_="soft"),
        tag("td", text(ratio_words(stage.ratio))),
        tag("td", text(ratio_range(stage.ratio)), class_="soft"),
        tag("td", text(foreseen), class_="soft"),
        tag("td", text(milliseconds(stage.tpot_ms))),
        tag("td", text(milliseconds(stage.ttft_ms))),
        tag("td", _why(stage), class_="wide soft"),
        tag("td", text(stage.starts)),
        tag("td", text(stage.readings)),
        tag("td", text(seconds(stage.seconds))),
        class_="best" if kept else None,
    )


def _why(stage: TuneStage) -> Markup:
    """Of a dead end the short form: its log line and remedy have a table of their own."""
    words = text(shortened(stage.why, _LONGEST_WHY))
    if stage.failure is None:
        return words
    return join([words, text(" "), tag("a", text("log line and remedy"), href="#dead-ends")])


_TALLEST = 1.6  # of the largest figure: the interval of two repeats may be of any width
_LOOKS = (
    (theme.STONE, (6, 4), "square"),
    (theme.HONEY, (), "circle"),
    (theme.SKY, (2, 3), "triangle-up"),
    (theme.PLUM, (9, 3, 2, 3), "diamond"),
)


def ladder_chart(tuning: Tuning, stages: Sequence[TuneStage]) -> Spec | None:
    """Draw a bar for each configuration that was the best of its time. None where nothing was measured."""
    best, lost = best_of(stages), given_up(stages)
    kept = [(one, one.figure) for one in stages if one.decision in KEPT and one.figure is not None]
    rows = [
        _ladder_row(one, figure, best=one is best, lost=one.number in lost)
        for one, figure in kept
        if known(figure.estimate)
    ]
    if not rows:
        return None
    largest = max(row["value"] for row in rows)
    for row in rows:
        row["high"] = min(row["high"], _TALLEST * largest)
    return bars_chart(rows, unit_of(tuning), least=36)


def _ladder_row(stage: TuneStage, figure: Interval, *, best: bool, lost: bool) -> Spec:
    bounded = known(figure.low) and known(figure.high)
    low, high = (max(0.0, figure.low), figure.high) if bounded else (figure.estimate, figure.estimate)
    words, colour = [number(figure.estimate)], theme.STONE
    if stage.decision is StageDecision.ACCEPTED:
        mark, colour = ("died later", theme.ROSE) if lost else ("best", theme.HONEY) if best else ("", theme.SKY)
        words += [ratio_words(stage.ratio), *([mark] if mark else [])]
    name = f"{stage.number}. {shortened(printable(stage.title), 48)}"
    return {"name": name, "value": figure.estimate, "low": low, "high": high, "label": ", ".join(words),
            "colour": colour}  # fmt: skip


def curve_chart(
    tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint], height: int = 270
) -> Spec | None:
    """Return a line for each configuration, named at its end. None where nothing was measured."""
    curves = []
    for look, config in zip(cycle(_LOOKS), _configs(tuning, points), strict=False):
        figures = {one.concurrency: one.figure for one in points if one.config == config}
        found = sorted((c, one) for c, one in figures.items() if one is not None and known(one.estimate))
        ranges = {c: (one.low, one.high) for c, one in found if known(one.low) and known(one.high)}
        colour, dash, shape = look
        end = config_name(config, tuning, stages)
        curves.append(ChartCurve([(c, one.estimate) for c, one in found], colour, end, dash, shape, ranges=ranges))
    return curves_chart(curves, "tok/s", height=height, labelled=True)


def first_token_chart(tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint]) -> Spec | None:
    """Return what the queue costs: TTFT over C, in the looks of the other chart."""
    curves = []
    for look, config in zip(cycle(_LOOKS), _configs(tuning, points), strict=False):
        found = sorted((one.concurrency, one.ttft_ms) for one in points if one.config == config and known(one.ttft_ms))
        measured = [(c, ms) for c, ms in found if ms is not None]
        if measured:
            end = f"{config_name(config, tuning, stages)}  {milliseconds(measured[-1][1])}"
            curves.append(ChartCurve(measured, look[0], end, *look[1:]))
    return curves_chart(curves, "ms", height=270)


def curve_table(tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint]) -> Markup | None:
    """A row for each C; of each configuration its figure, interval, TTFT and TPOT; then the last over the first."""
    configs = _configs(tuning, points)
    if not configs:
        return None
    names = [config_name(config, tuning, stages) for config in configs]
    columns = ("tok/s", "95 %", "TTFT p50", "TPOT p50")
    groups = [tag("th", text(name), colspan=str(len(columns)), scope="colgroup") for name in names]
    pair = len(configs) > 1
    last = tag("th", text(f"{names[-1]} over {names[0]}"), rowspan="2", scope="col") if pair else None
    first = tag("th", text("C"), rowspan="2", scope="col")
    head = [
        tag("tr", first, *groups, last, class_="group"),
        tag("tr", *(tag("th", text(one), scope="col") for _ in configs for one in columns)),
    ]
    rows = [_row(c, configs, points) for c in sorted({one.concurrency for one in points})]
    return table("Effective tok/s over concurrency", head, rows)


def _configs(tuning: Tuning, points: Sequence[CurvePoint]) -> list[KnobConfig]:
    """Return the baseline first, then in the order of the points."""
    met = list(dict.fromkeys(one.config for one in points))
    return sorted(met, key=lambda config: config != tuning.baseline)


def _row(c: int, configs: Sequence[KnobConfig], points: Sequence[CurvePoint]) -> Markup:
    met = {one.config: one for one in points if one.concurrency == c}
    cells = [tag("th", text(c), scope="row")]
    for config in configs:
        one = met.get(config)
        figure = None if one is None else one.figure
        cells += [
            tag("td", text(number(None if figure is None else figure.estimate))),
            tag("td", text(interval_text(figure)), class_="soft"),
            tag("td", text(milliseconds(None if one is None else one.ttft_ms))),
            tag("td", text(milliseconds(None if one is None else one.tpot_ms))),
        ]
    if len(configs) > 1:
        cells.append(tag("td", text(_over(met.get(configs[0]), met.get(configs[-1])))))
    return tag("tr", *cells)


def _over(base: CurvePoint | None, one: CurvePoint | None) -> str:
    if base is None or one is None or base.figure is None or one.figure is None:
        return UNKNOWN
    a, b = base.figure.estimate, one.figure.estimate
    return f"{number(b / a, digits=2)}×" if known(a) and known(b) and a > 0 else UNKNOWN


_STATES = {
    "running": "The tuning goes on; what is shown is what was decided so far.",
    "interrupted": "It was broken off; what was decided stands, and `skep tune resume` takes it up again.",
    "failed": "It ended with an error; what was decided stands.",
}


def tuning_page(
    tuning: Tuning,
    stages: Sequence[TuneStage],
    curve: Sequence[CurvePoint] = (),
    *,
    state: str | None = None,
) -> str:
    """`state`: where the search is not at its end."""
    model = model_words(tuning)
    title = f"{model} (simulated)" if tuning.simulated else model
    header = tag(
        "header",
        mark("tuning"),
        tag("h1", text(title)),
        tag("p", text(f"{tuning.engine} · {tuning.rig} · {moment(tuning.created_at)}"), class_="where"),
        *tuning_banners(tuning, stages, state=state),
        tag("p", text(f"{headline(tuning, stages)}."), class_="lead"),
    )
    footer = tag("footer", text(f"skep {tuning.skep_version} · tuning {tuning.id}"))
    return document(f"{title}: skep tune", header, tag("main", tuning_main(tuning, stages, curve)), footer)


def tuning_banners(tuning: Tuning, stages: Sequence[TuneStage], *, state: str | None = None) -> list[Markup]:
    """Return what a reader has to know before the first figure."""
    told = []
    if state in _STATES:
        told.append(banner("incomplete" if state != "running" else "differs", state, _STATES[state]))
    if tuning.simulated:
        story = "No model ran: the rig is a prediction with noise, tuned in virtual time."
        told.append(banner("simulated", "Simulated", story))
    target, best = tuning.aim.target, best_of(stages)
    if target is not None and best is not None and best.figure is not None and best.figure.estimate < target:
        reached = f"{number(best.figure.estimate)} of {number(target)} {unit_of(tuning)} is what came closest."
        told.append(banner("limited", "Target not reached", reached))
    return told


def ladder_picture(tuning: Tuning, stages: Sequence[TuneStage]) -> str:
    """Return one SVG document: a bar for each configuration that was the best of its time."""
    spec = ladder_chart(tuning, stages)
    said = headline(tuning, stages)
    marks = ["SIMULATED"] if tuning.simulated else []
    below = " · ".join([*marks, model_words(tuning), tuning.engine, tuning.rig, shape_words(tuning)])
    height = 120 if spec is None else spec["height"]
    panel = sized(spec, shortened(printable(said), 96), shortened(printable(below), 130), 480, height)
    if marks:
        panel["title"] |= {"subtitleColor": theme.ROSE}
    return standalone(panel, f"{below}: {said}")


def tuning_main(tuning: Tuning, stages: Sequence[TuneStage], curve: Sequence[CurvePoint] = ()) -> Markup:
    """Return everything below the headline, without its frame."""
    parts = [
        _cards(tuning, stages),
        section("ladder", "The ladder", _ladder_figure(tuning, stages), ladder(tuning, stages)) if stages else None,
        optional_section("dead-ends", "Dead ends", dead_ends(stages)),
        _curve(tuning, stages, curve),
        optional_section("settings", "From the baseline to the best", settings_table(tuning, stages)),
        section("how", "How it was measured", _facts(tuning, stages), term_list("tuning")),
    ]
    return join(part for part in parts if part)


def _ladder_figure(tuning: Tuning, stages: Sequence[TuneStage]) -> Markup | None:
    spec = ladder_chart(tuning, stages)
    if spec is None:
        return None
    title = f"{unit_of(tuning)}: {'simulated, ' if tuning.simulated else ''}{shape_words(tuning)}"
    caption = "A bar for each configuration that was the best of its time; whiskers: 95 % interval."
    return wide_figure(trusted(picture({**spec, "width": 860}, headline(tuning, stages))), title, caption)


def _cards(tuning: Tuning, stages: Sequence[TuneStage]) -> Markup:
    base, best, gain = baseline_of(stages), best_of(stages), total_gain(stages)
    figure = None if best is None else best.figure
    value = number(None if figure is None else figure.estimate)
    tried = sum(one.decision is not StageDecision.BASELINE for one in stages)
    gained = base is not None and best is not None and base is not best
    return tag(
        "dl",
        card(value, f"Best {unit_of(tuning)}", f"95 %: {interval_text(figure)}"),
        card(ratio_words(gain), "Gain over the baseline", _gain_note(tuning, stages)),
        card(
            milliseconds(best.ttft_ms if best else None),
            "TTFT p50 of the best",
            f"baseline {milliseconds(base.ttft_ms)}" if gained and base else "median over requests",
        ),
        card(number(tried, digits=0), "Changes tried", count_decisions(stages) or "none yet"),
        class_="cards",
    )


def _gain_note(tuning: Tuning, stages: Sequence[TuneStage]) -> str:
    gain, base = total_gain(stages), baseline_of(stages)
    if gain is None or base is None or base.figure is None:
        return "nothing was shown to be better"
    return f"95 %: {ratio_range(gain)}; from {number(base.figure.estimate)} {unit_of(tuning)}"


def _curve(tuning: Tuning, stages: Sequence[TuneStage], curve: Sequence[CurvePoint]) -> Markup | None:
    spec = curve_chart(tuning, stages, curve)
    if spec is None:
        return None
    caption = "Upright: 95 % interval of the mean. Both configurations in turns, on the same load."
    drawn = tag(
        "div",
        chart_figure(spec, "Effective tok/s over C", caption),
        chart_figure(first_token_chart(tuning, stages, curve), "Time to first token over C", "Medians over requests."),
        class_="charts",
    )
    return section("curve", "The best against the baseline", drawn, curve_table(tuning, stages, curve))


def _facts(tuning: Tuning, stages: Sequence[TuneStage]) -> Markup:
    aim = tuning.aim
    goal = [
        ("goal", str(aim)),
        ("that is", METRICS.get(aim.metric, aim.metric)),
        ("load", shape_words(tuning)),
        ("limits", aim.slo or "none"),
        ("least context", number(aim.min_context, digits=0) if aim.min_context else "none"),
        ("target", number(aim.target) if aim.target is not None else "as much as there is"),
    ]
    effort = [
        ("budget", seconds(tuning.budget_s)),
        ("spent on stages", f"{seconds(sum(one.seconds for one in stages))}, without what only sorted, and the curve"),
        ("engine starts", number(sum(one.starts for one in stages), digits=0)),
        ("readings", number(sum(one.readings for one in stages), digits=0)),
        ("knobs", ", ".join(knob.name for knob in tuning.knobs) or UNKNOWN),
        ("seed", str(tuning.seed)),
        ("simulated", "yes" if tuning.simulated else "no"),
    ]
    where = [("model", model_words(tuning)), ("engine", tuning.engine), ("machine", tuning.rig),
             ("began", moment(tuning.created_at)), ("tuning", tuning.id), ("skep", tuning.skep_version)]  # fmt: skip
    groups = [("Goal", goal), ("Effort", effort), ("What ran", where)]
    if tuning.host:
        groups.append(("Host", fact_list({name: fact for name, fact in tuning.host.items() if name != "hostname"})))
    return tag("div", *(definitions(title, facts) for title, facts in groups), class_="columns")
