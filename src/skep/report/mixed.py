"""The report of the mixed workload, of one model or of several side by side: one page, and one picture for a README.

Pure: takes records and verdicts, gives text. The sweet spot leads; it was computed, and its reasons have the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from skep.records import Run
from skep.report import theme
from skep.report.charts import Spec, sized
from skep.report.comparison import Series, comparison_banners, legend_chart
from skep.report.figures import fact_list, moment, printable, public_url, shortened
from skep.report.markup import Markup, banner, definitions, join, section, tag, text, trusted, wide_figure
from skep.report.mixed_charts import side_chart, total_chart, ttft_chart
from skep.report.mixed_tables import (
    axes_table,
    degradation_table,
    disagreements,
    pass_table,
    primary_table,
    side_table,
    throughput_table,
    total_table,
    ttft_table,
    turn_table,
    verdict_table,
)
from skep.report.radar import radar_chart
from skep.report.style import document, mark
from skep.report.subjects import Entries, Subject, full_load, subjects_of
from skep.report.svg import chart_figure, picture, standalone
from skep.report.sweep import heading, incomplete, provenance
from skep.verdicts import Advice, Verdict

_FORMS = {
    "published": "Published form: each side task was sent once, together with turn 1.",
    "sustained": "Sustained form: each side task was sent again once it had ended, until the conversation was over.",
}
_CURVES_PX = 115  # of the part that curves are drawn in
_SPREAD = "Upright: fastest to slowest repeat"
_RADAR = "0 at the centre, 1 at the rim, the more the better; what each axis is stands in the table below."


def mixed_page(entries: Entries, verdicts: Mapping[str, Sequence[Verdict]] | None = None) -> str:
    """One HTML document. `verdicts` by run, to name each answer that execution and keywords judge differently."""
    subjects = subjects_of(entries)
    header = tag("header", mark("mixed workload"), tag("h1", text(_heading(subjects))), *_top(subjects))
    main = tag(
        "main",
        _advice(subjects),
        section("pictures", "What side tasks do to a conversation", _legend(subjects), _pictures(subjects)),
        section("axes", "The axes of the radar", axes_table(subjects)),
        section("compared", "Against C = 1", _compared(subjects)),
        section("primary", "Primary task", _each(subjects, primary_table)),
        section("side", "Side tasks, by execution", _each(subjects, side_table)),
        section("throughput", "Throughput", _each(subjects, throughput_table)),
        section("verdicts", "Executed against keywords", _verdicts(subjects, verdicts or {})),
        section("turns", "Every turn", _each(subjects, turn_table)),
        section("where", "What ran where", _where(subjects)),
        section("how", "How this was measured", _terms()),
    )
    ids = " · ".join(f"run {run.id} · fingerprint {run.fingerprint} · skep {run.skep_version}" for run, _ in entries)
    return document(f"{_heading(subjects)}: skep mixed", header, main, tag("footer", text(ids)))


def mixed_picture(entries: Entries) -> str:
    """One SVG document: the radar, degradation against C, and the side tasks at full load."""
    subjects = subjects_of(entries)
    radar = radar_chart(subjects)
    wide = sized(radar, "Radar", "1 at the rim; the more the better", 470, int(radar["height"]) if radar else 300)
    first = sized(ttft_chart(subjects, 105), "TTFT of turn 1", "", 240, 105)
    whole = sized(total_chart(subjects, 105), "Time of the conversation", _SPREAD, 240, 105)
    side = side_chart(subjects, 830)
    below = sized(side, f"Side tasks{_full(subjects)}", "Median time; verdict by execution", 830, _height(side, 80))
    above = {
        "hconcat": [wide, {"vconcat": [first, whole], "spacing": 130, "bounds": "flush"}],
        "spacing": 70,
        "bounds": "flush",
    }
    parts = [above, below] if len(subjects) == 1 else [legend_chart([one.look for one in subjects]), above, below]
    spec = {"title": _title(subjects), "vconcat": parts, "spacing": 34}
    names = ", ".join(one.look.name for one in subjects)
    return standalone(spec, f"Mixed workload of {names}: radar, degradation against C, side tasks at full load")


def _height(chart: Spec | None, otherwise: int) -> int:
    return otherwise if chart is None else int(chart["height"])


def _title(subjects: Sequence[Subject]) -> Spec:
    marks = []
    for word, holds in (("SIMULATED", _simulated), ("INCOMPLETE", _broken_off)):
        letters = [one.look.letter for one in subjects if holds(one)]
        if letters:
            marks.append(word if len(subjects) == 1 else f"{word}: {', '.join(letters)}")
    spots = "; ".join(_spot(one, letter=len(subjects) > 1) for one in subjects)
    when = [moment(subjects[0].run.created_at)] if len(subjects) == 1 else []
    subtitle = [
        [*marks, " · ".join([f"{_form(subjects)} form", *when, f"skep {subjects[0].run.skep_version}"])],
        [spots],
    ]
    lines = [shortened(printable(" · ".join(line)), 130) for line in subtitle]
    warning = {"subtitleColor": theme.ROSE, "subtitleFontWeight": 600} if marks else {}
    return {"text": shortened(_heading(subjects), 80), "subtitle": lines, "fontSize": 18, "offset": 24, **warning}


def _heading(subjects: Sequence[Subject]) -> str:
    if len(subjects) == 1:
        return printable(heading(subjects[0].run))
    names = list(dict.fromkeys(one.summary.model for one in subjects))
    return printable(" / ".join(names)) if len(names) < 3 else f"{len(names)} models beside each other"


def _form(subjects: Sequence[Subject]) -> str:
    return " and ".join(dict.fromkeys(one.summary.form for one in subjects))


def _simulated(one: Subject) -> bool:
    return one.summary.simulated or one.run.simulated


def _broken_off(one: Subject) -> bool:
    return bool(one.summary.incomplete) or incomplete(one.run)


def _top(subjects: Sequence[Subject]) -> list[Markup]:
    """Above the first figure: where and when, in which form, and what is not plain about it."""
    parts = []
    if len(subjects) == 1:
        run = subjects[0].run
        parts.append(tag("p", text(f"{public_url(run.url)} · {moment(run.created_at)}"), class_="where"))
    forms = list(dict.fromkeys(one.summary.form for one in subjects))
    parts += [tag("p", text(_FORMS.get(form, f"Form: {form}.")), class_="where") for form in forms]
    if len(forms) > 1:
        told = "; ".join(f"{one.look.letter} {one.summary.form}" for one in subjects)
        parts.append(banner("differs", "Forms differ", f"The load beside the conversation was not the same: {told}."))
    if len(subjects) > 1:
        parts += comparison_banners([one.look for one in subjects])
        told = "; ".join(f"{one.look.letter}: {one.summary.incomplete}" for one in subjects if one.summary.incomplete)
        return [*parts, *([banner("incomplete", "Cut short", f"{told}.")] if told else [])]
    return [*parts, *_own_banners(subjects[0])]


def _own_banners(one: Subject) -> list[Markup]:
    banners = []
    if _broken_off(one):
        why = [
            one.summary.incomplete,
            f"the run is {one.run.state.value}" if incomplete(one.run) else "",
            one.run.error,
        ]
        told = "; ".join(shortened(part, 300) for part in why if part)
        banners.append(banner("incomplete", "Incomplete", f"{one.run.requests} requests are stored; {told}."))
    if _simulated(one):
        story = "No model ran. The times are a prediction, served in real time over the real protocol."
        banners.append(banner("simulated", "Simulated", story))
    return banners


def _spot(one: Subject, *, letter: bool) -> str:
    advice = one.summary.advice
    said = "no level is recommended" if advice.concurrency is None else f"sweet spot C = {advice.concurrency}"
    name = f" ({advice.level})" if advice.level else ""
    return f"{one.look.letter}: {said}{name}" if letter else f"{said[0].upper()}{said[1:]}{name}"


def _advice(subjects: Sequence[Subject]) -> Markup:
    parts = []
    for one in subjects:
        parts.append(tag("p", text(f"{_spot(one, letter=len(subjects) > 1)}."), class_="lead"))
        parts.append(_reasons(one.summary.advice))
    return join(parts)


def _reasons(advice: Advice) -> Markup:
    if not advice.reasons:
        return Markup("")
    return tag("ul", *(tag("li", text(reason)) for reason in advice.reasons), class_="checks", style="margin-top:12px")


def _full(subjects: Sequence[Subject]) -> str:
    """ " at full load (C = 5)"."""
    found = sorted({level.concurrency for _, level in full_load(subjects) if level is not None})
    return f" at full load (C = {', '.join(map(str, found))})" if found else ""


def _legend(subjects: Sequence[Subject]) -> Markup | None:
    if len(subjects) == 1:
        return None
    looks = [one.look for one in subjects]
    named = (tag("li", _sample(look), tag("b", text(look.letter)), text(look.name)) for look in looks)
    return tag("ol", *named, class_="legend")


def _sample(look: Series) -> Markup:
    """A piece of the model's line; the letter names it in all pictures."""
    dash = f' stroke-dasharray="{" ".join(map(str, look.dash))}"' if look.dash else ""
    return trusted(
        f'<svg viewBox="0 0 52 16" aria-hidden="true"><path d="M2 8h48" fill="none" stroke="{look.colour}" '
        f'stroke-width="3" stroke-linecap="round"{dash}/></svg>'
    )


def _pictures(subjects: Sequence[Subject]) -> Markup:
    gaps = sorted({axis.name for one in subjects for axis in one.summary.axes if axis.value is None})
    told = f" Gaps: {', '.join(gaps)} not measured." if gaps else ""
    lines = "One line a model." if len(subjects) > 1 else "With its change against C = 1."
    side = side_chart(subjects)
    caption = "Median time; at the right the verdict by execution, and what keywords say where that differs."
    bars = (
        chart_figure(None, f"Side tasks{_full(subjects)}", caption)
        if side is None
        else wide_figure(trusted(picture(side, "Side tasks at full load")), f"Side tasks{_full(subjects)}", caption)
    )
    return tag(
        "div",
        chart_figure(radar_chart(subjects), "Radar", f"{_RADAR}{told}"),
        tag(
            "div",
            chart_figure(_low(ttft_chart(subjects, _CURVES_PX)), "TTFT of turn 1", lines),
            chart_figure(_low(total_chart(subjects, _CURVES_PX)), "Time of the conversation", f"{_SPREAD}."),
            style="display:grid;gap:16px",
        ),
        bars,
        class_="charts",
    )


def _low(chart: Spec | None) -> Spec | None:
    return None if chart is None else {**chart, "height": _CURVES_PX + 70}


def _each(subjects: Sequence[Subject], made: Callable[[Subject], Markup]) -> Markup:
    return join(part for one in subjects for part in (_name(subjects, one), made(one)) if part)


def _name(subjects: Sequence[Subject], one: Subject) -> Markup | None:
    return _small(f"{one.look.letter}  {one.look.name}") if len(subjects) > 1 else None


def _small(title: str) -> Markup:
    return tag("h3", text(title), style="margin-top:22px")


def _compared(subjects: Sequence[Subject]) -> Markup:
    """One table for one model; for several, one table a figure."""
    if len(subjects) == 1:
        return degradation_table(subjects[0])
    named = ((ttft_table, "TTFT of turn 1, with its change against C = 1"),
             (total_table, "Time of the conversation, with how many times that of C = 1"),
             (pass_table, "Side tasks passed by execution"))  # fmt: skip
    return join(join([_small(title), made(subjects)]) for made, title in named)


def _verdicts(subjects: Sequence[Subject], verdicts: Mapping[str, Sequence[Verdict]]) -> Markup:
    return _each(
        subjects, lambda one: join([verdict_table(one), disagreements(one, verdicts.get(one.summary.run_id, ()))])
    )


def _where(subjects: Sequence[Subject]) -> Markup:
    if len(subjects) == 1:
        return provenance(subjects[0].run)
    return tag(
        "div",
        *(definitions(f"{one.look.letter}  {one.look.name}", _facts(one.run)) for one in subjects),
        class_="columns",
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    return [
        ("model", run.model),
        ("url", public_url(run.url)),
        ("run", run.id),
        ("state", run.state.value),
        ("began", moment(run.created_at)),
        ("fingerprint", run.fingerprint),
        *fact_list(run.engine),
        *fact_list(run.config),
    ]


_TERMS = {
    "Levels": """P1 is the conversation alone; S1 to S4 are the side tasks beside it. C counts both.""",
    "Executed": """Code is taken out of the answer and run in a sandbox: the application answers requests, written
        tests must pass on right code and fail on wrong code, functions are run on cases. Only what passes all of it
        is a PASS; an answer cut at the token limit, timed out or failed is none.""",
    "Keywords": """What a search of the answer for a few words would have said. Kept for comparison; nothing is
        decided by it.""",
    "In flight": """The share of the conversation's time in which all side tasks of the level ran beside it. Where it
        is small, the level's C was not held. For each turn: how many side requests ran beside it on average.""",
    "Times": """Medians over repeats. TTFT from sending to the first token, reasoning included; tok/s of a turn is
        tokens over the time from first to last token.""",
    "Aggregate tok/s": """Output tokens of all requests of a level over its wall time.""",
    "Time per passed task": """Wall time of a level over the answers that passed: a fast wrong answer makes nothing
        cheaper.""",
    "Reasoning": "Share of the characters that came as reasoning, apart from the answer; it is never judged.",
}


def _terms() -> Markup:
    entries = (tag("div", tag("dt", text(k)), tag("dd", text(" ".join(body.split())))) for k, body in _TERMS.items())
    return tag("dl", join(entries), class_="terms")
