"""The report of a quality test under load: one page, and one picture for a README.

Pure: takes records, gives text. What may be claimed leads; what could not be shown is never called "no loss".
"""

from __future__ import annotations

from textwrap import wrap

from skep.records import Run
from skep.report import theme
from skep.report.figures import UNKNOWN, moment, number, percent, printable, public_url, shortened
from skep.report.marks import Spec, sized
from skep.report.markup import Markup, banner, card, join, section, tag, text, trusted, wide_figure
from skep.report.quality_charts import difference_chart, outcome_chart, total_chart, ttft_chart
from skep.report.quality_tables import family_table, latency_table, level_table
from skep.report.quality_words import conclusion, points
from skep.report.style import document, mark
from skep.report.svg import chart_figure, picture, standalone
from skep.report.sweep import heading, incomplete, provenance
from skep.verdicts import Claim, QualitySummary

_CURVES_PX = 110  # of the part that curves are drawn in
_LATENCY = "Median whole, 95th percentile dashed."


def quality_page(run: Run, summary: QualitySummary) -> str:
    """One HTML document that needs no other file and no network."""
    said = conclusion(summary)
    header = tag(
        "header",
        mark("quality under load"),
        tag("h1", text(heading(run))),
        tag("p", text(f"{public_url(run.url)} · {moment(run.created_at)} · bank {summary.bank}"), class_="where"),
        *_banners(run, summary),
        tag("p", text(f"{said[0].upper()}{said[1:]}."), class_="lead"),
    )
    families = family_table(summary)
    main = tag(
        "main",
        _cards(summary),
        section("pictures", "The same items alone and under load", _pictures(summary)),
        section("levels", "Every level against C = 1", level_table(summary), _shown(summary)),
        section("latency", "Latency and outcomes of the same requests", latency_table(summary)),
        section("families", "By family", families) if families else None,
        section("where", "What ran where", provenance(run)),
        section("how", "How this was measured", _terms()),
    )
    footer = tag("footer", text(f"skep {run.skep_version} · run {run.id} · fingerprint {run.fingerprint}"))
    return document(f"{heading(run)}: skep quality", header, main, footer)


def quality_picture(run: Run, summary: QualitySummary) -> str:
    """One SVG document: the difference against C = 1, latency of the same requests, and outcomes."""
    gain = sized(difference_chart(summary), "Passed, against C = 1 on the same items", _bounds(summary), 440, 330)
    first = sized(ttft_chart(summary, 100), "Time to first token", "p50 whole, p95 dashed", 250, 100)
    whole = sized(total_chart(summary, 100), "Time of an answer", "p50 whole, p95 dashed", 250, 100)
    bars = outcome_chart(summary, 830)
    below = sized(bars, "What became of the answers", "", 830, 80 if bars is None else int(bars["height"]))
    above = {
        "hconcat": [gain, {"vconcat": [first, whole], "spacing": 130, "bounds": "flush"}],
        "spacing": 90,
        "bounds": "flush",
    }
    spec = {"title": _title(run, summary), "vconcat": [above, below], "spacing": 34}
    return standalone(spec, f"Quality under load of {run.model} on {summary.bank}: {conclusion(summary)}")


def _title(run: Run, summary: QualitySummary) -> Spec:
    told = (("SIMULATED", _simulated(run, summary)), ("INCOMPLETE", _broken_off(run, summary)))
    marks = [word for word, holds in told if holds]
    first = " · ".join([*marks, f"bank {summary.bank}", f"{summary.items:,} items", moment(run.created_at),
                        f"skep {run.skep_version}"])  # fmt: skip
    warning = {"subtitleColor": theme.ROSE, "subtitleFontWeight": 600} if marks else {}
    lines = [shortened(printable(first), 130), *wrap(conclusion(summary), 125)]
    return {"text": shortened(printable(run.model), 80), "subtitle": lines, "fontSize": 18, "offset": 24, **warning}


def _simulated(run: Run, summary: QualitySummary) -> bool:
    return run.simulated or summary.simulated


def _broken_off(run: Run, summary: QualitySummary) -> bool:
    return incomplete(run) or bool(summary.incomplete)


def _banners(run: Run, summary: QualitySummary) -> list[Markup]:
    banners = []
    if _broken_off(run, summary):
        state = f"the run is {run.state.value}" if incomplete(run) else ""
        told = dict.fromkeys(part for part in (summary.incomplete, state, run.error) if part)
        why = "; ".join(shortened(part, 300) for part in told)
        banners.append(banner("incomplete", "Incomplete", f"{run.requests:,} requests are stored; {why}."))
    if _simulated(run, summary):
        story = "No model ran. Neither times nor answers are those of a real one."
        banners.append(banner("simulated", "Simulated", story))
    return banners


def _cards(summary: QualitySummary) -> Markup:
    first = summary.levels[0].difference if summary.levels else None
    noise = summary.noise
    changed = None if noise is None or not noise.pairs else 100 * (noise.lost + noise.gained) / noise.pairs
    texts = summary.noise_texts_changed
    said = "" if texts is None else f"; {percent(100 * texts)} of the texts"
    held = summary.holds_up_to
    return tag(
        "dl",
        card(
            UNKNOWN if held is None else f"C = {held}",
            "Holds up to",
            "nothing is excluded" if held is None else f"a loss of {points(summary.delta)} excluded",
        ),
        card(percent(None if first is None else 100 * first.base_rate, digits=1), "Passed at C = 1", summary.bank),
        card(percent(changed, digits=1), "Verdicts that change by themselves", f"C = 1 against itself{said}"),
        card(number(summary.items, digits=0), "Items", _asked(summary)),
        class_="cards",
    )


def _asked(summary: QualitySummary) -> str:
    needed = [level.needed_items or 0 for level in summary.levels if (level.needed_items or 0) > summary.items]
    return f"about {max(needed):,} would be needed" if needed else "the same at every level"


def _pictures(summary: QualitySummary) -> Markup:
    marks = "Circle: no worse; square: not shown; triangle: worse."
    bars = outcome_chart(summary)
    title, caption = "What became of the answers", "Everything but passed counts as a failure."
    outcomes = (
        chart_figure(None, title, caption)
        if bars is None
        else wide_figure(trusted(picture(bars, "Outcomes by level")), title, caption)
    )
    chart = difference_chart(summary)
    return tag(
        "div",
        chart_figure(
            None if chart is None else {**chart, "height": 400},
            "Passed, against C = 1 on the same items",
            f"{_bounds(summary)}. {marks}",
        ),
        tag(
            "div",
            chart_figure(_low(ttft_chart(summary, _CURVES_PX)), "Time to first token", _LATENCY),
            chart_figure(_low(total_chart(summary, _CURVES_PX)), "Time of an answer", _LATENCY),
            style="display:grid;gap:16px",
        ),
        outcomes,
        class_="charts",
    )


def _bounds(summary: QualitySummary) -> str:
    noise = "C = 1 against itself was not measured" if summary.noise is None else "grey: C = 1 against itself"
    return f"Upright: one-sided 95 % bounds; {noise}"


def _low(chart: Spec | None) -> Spec | None:
    return None if chart is None else {**chart, "height": _CURVES_PX + 65}


def _shown(summary: QualitySummary) -> Markup | None:
    """What "not shown" means, where a level is."""
    if not any(level.claim is Claim.UNSHOWN for level in summary.levels):
        return None
    told = (
        "“Not shown” says nothing about quality, neither that it was lost nor that it held: with so few items, or so "
        "much that changes by itself, a loss that would matter cannot be told from none."
    )
    return tag("p", text(told), class_="below")


_TERMS = {
    "Paired": """Each item is asked at C = 1 and at C = N, in turns within the same minutes, and its two verdicts are
        held against each other. The difference is the share passed at C = N less the share passed at C = 1.""",
    "Bounds": """One-sided, 95 % each: the true difference lies below the lower bound in at most one of twenty such
        tests, and above the upper one in at most one of twenty.""",
    "No worse": """The lower bound lies above −delta. Only this is a claim that quality holds.""",
    "Worse": "The upper bound lies below zero, and a loss of delta is not excluded: something was lost.",
    "Not shown": """Neither. It is no claim that nothing was lost. More items, more repeats or a larger delta may
        settle it.""",
    "Walk": """Levels are taken upward, and the first that does not hold ends the walk. So all claims together are
        wrong in at most one of twenty tests.""",
    "C = 1 against itself": """The same items alone, twice: what batching, rounding and chance change without any load.
        A difference within it is no finding.""",
    "Lost, gained": "Pairs that passed only at C = 1, and only at C = N.",
    "Outcomes": """Broken code, no answer, code over its limits, answers cut at the token limit, time-outs and errors
        are failures like wrong answers, and are shown apart.""",
    "Latency": "Of the very requests that were judged: quality and speed come from the same answers.",
}


def _terms() -> Markup:
    entries = (tag("div", tag("dt", text(k)), tag("dd", text(" ".join(body.split())))) for k, body in _TERMS.items())
    return tag("dl", join(entries), class_="terms")
