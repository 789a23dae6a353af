"""The report of a tuning: one page that needs no other file and no network, and the parts that the dashboard shows.

Pure: takes values, gives text. Who stored them and who serves them it does not know. All stages of one tuning were
measured under one shape of load; what was simulated is said above the first figure.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.report import theme
from skep.report.charts import sized
from skep.report.levels import interval_text
from skep.report.markup import (
    Markup,
    banner,
    card,
    definitions,
    join,
    optional_section,
    section,
    tag,
    term_list,
    text,
    trusted,
    wide_figure,
)
from skep.report.style import document, mark
from skep.report.svg import chart_figure, picture, standalone
from skep.report.tuning_curve import curve_chart, curve_table, first_token_chart, ladder_chart
from skep.report.tuning_tables import dead_ends, ladder, settings_table
from skep.tuner.records import METRICS, CurvePoint, StageDecision, TuneStage, Tuning
from skep.tuner.summary import (
    baseline_of,
    best_of,
    count_decisions,
    headline,
    model_words,
    ratio_range,
    ratio_words,
    shape_words,
    total_gain,
    unit_of,
)
from skep.units import UNKNOWN, fact_list, milliseconds, moment, number, printable, seconds, shortened

_STATES = {
    "running": "The tuning goes on; what is shown is what was decided so far.",
    "interrupted": "It was broken off; what was decided stands, and `skep tune resume` takes it up again.",
    "failed": "It ended with an error; what was decided stands.",
}
_TERMS = {
    "Figure": """Of the readings that decided the stage. A reading is one run of the whole load, with prompts that were
        not asked before; both sides of a comparison get the same. What a start needs to warm up is left out.""",
    "95 % interval": "Where the true mean lies with 95 % confidence, by the spread of the readings.",
    "Over the best then": """The stage's figure over that of the best configuration of that moment. Both were measured
        in turns on the same load, so that what drifts over the day drifts for both.""",
    "Gain": """The product of the accepted steps' ratios, their errors taken as independent. The figures of two stages
        were taken at different times, so their quotient may be a little different. What was accepted for looking
        better tends to look a little better than it is: the curve measures both ends once more.""",
    "Accepted": """Shown to be better by a test that may stop early, over at least two starts of the engine, within the
        limits, and answering no worse where the change can alter answers.""",
    "Not distinguishable": "The readings do not tell the two apart. It does not mean that they are equal.",
    "Foreseen": "What the planner expected of the step before it was measured; a dash where it had nothing to say.",
    "TTFT, TPOT": "Medians over requests: time to first token, and time per output token after the first.",
    "Took": "Time that deciding the stage took, the other side's share, starts and warm-up included.",
    "Client-limited": "A reading in which the client was the limit does not count.",
}


def tuning_page(
    tuning: Tuning,
    stages: Sequence[TuneStage],
    curve: Sequence[CurvePoint] = (),
    *,
    state: str | None = None,
) -> str:
    """`state`: where the climb is not at its end."""
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
    """What a reader has to know before the first figure."""
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
    """One SVG document: a bar for each configuration that was the best of its time."""
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
    """Everything below the headline, without its frame."""
    parts = [
        _cards(tuning, stages),
        section("ladder", "The ladder", _ladder_figure(tuning, stages), ladder(tuning, stages)) if stages else None,
        optional_section("dead-ends", "Dead ends", dead_ends(stages)),
        _curve(tuning, stages, curve),
        optional_section("settings", "From the baseline to the best", settings_table(tuning, stages)),
        section("how", "How it was measured", _facts(tuning, stages), term_list(_TERMS)),
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
    climbed = base is not None and best is not None and base is not best
    return tag(
        "dl",
        card(value, f"Best {unit_of(tuning)}", f"95 %: {interval_text(figure)}"),
        card(ratio_words(gain), "Gain over the baseline", _gain_note(tuning, stages)),
        card(
            milliseconds(best.ttft_ms if best else None),
            "TTFT p50 of the best",
            f"baseline {milliseconds(base.ttft_ms)}" if climbed and base else "median over requests",
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
