"""The report of a quality test under load: one page, and one picture for a README.

Pure: takes records, gives text. What may be claimed leads; what could not be shown is never called "no loss".
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from skep.quality.records import ArmFigures, LevelQuality, QualitySummary
from skep.quality.words import claim_words, conclusion, points
from skep.report import theme
from skep.report.charts import ChartCurve, Spec, halo, label, layer, line, point, quantity, rule, sized, time_chart
from skep.report.levels import counted
from skep.report.markup import Markup, banner, card, join, section, table, tag, text, trusted, wide_figure
from skep.report.style import document, mark
from skep.report.svg import chart_figure, picture, standalone
from skep.report.sweep import heading, incomplete, provenance
from skep.stats.noninferiority import Claim, PairedDifference
from skep.store.records import StoredRun
from skep.store.verdicts import VerdictOutcome
from skep.units import (
    UNKNOWN,
    known,
    milliseconds,
    moment,
    number,
    percent,
    printable,
    public_url,
    seconds,
    shortened,
)

# Shape beside colour: a filled circle holds, a hollow square is not shown, a filled triangle points down at a loss.
_LOOKS = {
    Claim.HOLDS: (theme.MOSS, "circle", theme.MOSS),
    Claim.UNSHOWN: (theme.HONEY, "square", theme.PAPER),
    Claim.LOST: (theme.ROSE, "triangle-down", theme.ROSE),
}
# Fill, and the colour of a figure on it.
_FILLS = {
    VerdictOutcome.PASSED: (theme.MOSS, theme.PAPER),
    VerdictOutcome.WRONG: (theme.ROSE, theme.PAPER),
    VerdictOutcome.BROKEN: (theme.PLUM, theme.PAPER),
    VerdictOutcome.NO_ANSWER: (theme.STONE, theme.INK),
    VerdictOutcome.EXCEEDED: (theme.HONEY, theme.PAPER),
    VerdictOutcome.TRUNCATED: (theme.PALE, theme.INK),
    VerdictOutcome.TIMED_OUT: (theme.SKY, theme.PAPER),
    VerdictOutcome.FAILED: (theme.INK, theme.PAPER),
}
_MOST_NAMED = 5  # levels whose claims fit beside their points
_BAR, _GAP, _BETWEEN = 22, 5, 16
_NAME_PX, _COUNT_PX = 160, 110
_FIGURE_PX, _NAMED_PX = 38, 118  # the least width of a part with its share, and with its name too
_KEY_PX, _KEY_LINE = 116, 30


def difference_chart(summary: QualitySummary) -> Spec | None:
    """In points, by level, with one-sided bounds; the line at -delta, and C = 1 against itself as a grey band."""
    levels = [level for level in summary.levels if known(level.difference.difference)]
    if not levels:
        return None
    rows = [_difference_row(level) for level in levels]
    delta = -100 * summary.delta
    noise = [] if summary.noise is None else [{"d": 100 * summary.noise.low, "high": 100 * summary.noise.high}]
    ends = [value for row in (*rows, *noise) for value in (row["d"], row["high"], row.get("low", 0.0))]
    low, high = min([0.0, delta, *ends]), max([0.0, *ends])
    room = high - low or 1.0
    y = quantity("d", "points against C = 1", [low - 0.12 * room, high + 0.2 * room])
    y["axis"]["labelExpr"] = "replace(datum.label, '-', '−')"
    x = {
        "field": "c",
        "type": "ordinal",
        "title": "agents at once (C)",
        "sort": None,
        "scale": {"type": "point", "padding": 0.6},
        "axis": {"labelAngle": 0},
    }
    upright = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    edge = [{"d": delta, "label": f"−{100 * summary.delta:g} points: the loss that would matter"}]
    layers = [
        layer(noise, {"type": "rect", "color": theme.STONE, "opacity": 0.22}, y=y, y2={"field": "high"}),
        layer([{"d": 0.0}], rule(theme.STONE, width=1), y=y),
        layer(edge, rule(theme.ROSE, dash=[6, 4]), y=y),
        *halo(edge, label("left", dx=4, dy=11, color=theme.ROSE), x={"value": 0}, y=y),
        layer(rows, {"type": "area", "color": theme.SKY, "opacity": 0.13}, x=x, **upright),
        layer(rows, line(theme.SKY, width=1.5), x=x, y=y),
        layer(rows, rule(theme.SKY, width=2), x=x, **upright),
    ]
    for row, level in zip(rows, levels, strict=True):
        colour, shape, fill = _LOOKS[level.claim]
        layers.append(layer([row], {**point(colour, shape), "fill": fill, "size": 90}, x=x, y=y))
        layers += halo([row], label("left", dx=9), x=x, y=y)
        if len(rows) <= _MOST_NAMED:
            claim = [{**row, "label": level.claim.value}]
            layers += halo(claim, label("center", dy=-12, weight=700, color=colour), x=x, y={**y, "field": "high"})
    return {"layer": layers}


def outcome_chart(summary: QualitySummary, width: int = 980) -> Spec | None:
    """One bar an arm, C = 1 above the level that was held against it; each outcome has its share of it."""
    arms = [arm for level in summary.levels for arm in (level.base, level.load) if arm.requests]
    if not arms:
        return None
    bars: list[Spec] = []
    texts: list[tuple[Spec, Spec]] = []
    y = 2.0
    for level in summary.levels:
        for arm, name in (
            (level.base, f"C = 1 beside C = {level.concurrency}"),
            (level.load, f"C = {level.concurrency}"),
        ):
            middle = y + _BAR / 2
            texts.append(
                ({"x": 0, "y": middle, "label": name}, label("left", weight=400 if arm is level.base else 600))
            )
            _fill_bar(arm, y, width, bars, texts)
            y += _BAR + _GAP
        y += _BETWEEN
    height = _key(arms, y, width, bars, texts)
    frame = {
        "x": {"field": "x", "type": "quantitative", "scale": {"domain": [0, width], "nice": False}, "axis": None},
        "y": {"field": "y", "type": "quantitative", "scale": {"domain": [height, 0], "nice": False}, "axis": None},
    }
    colour = {"field": "colour", "type": "nominal", "scale": None}
    ends = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
    layers = [layer(bars, {"type": "rect", "stroke": theme.PAPER, "strokeWidth": 1}, **frame, **ends, color=colour)]
    layers += [layer([row], mark, text="label", **frame) for row, mark in texts]
    return {"width": width, "height": height, "padding": 2, "layer": layers}


def ttft_chart(summary: QualitySummary, height: int = 200) -> Spec | None:
    arms = _arms(summary)
    return _latency([(arm.concurrency, arm.ttft_p50_ms, arm.ttft_p95_ms) for arm in arms], theme.SKY, height)


def total_chart(summary: QualitySummary, height: int = 200) -> Spec | None:
    arms = [(arm.concurrency, _ms(arm.total_p50_s), _ms(arm.total_p95_s)) for arm in _arms(summary)]
    return _latency(arms, theme.PLUM, height)


def _difference_row(level: LevelQuality) -> Spec:
    found = level.difference
    sign = "+" if found.difference > 0 else ""
    return {
        "c": str(level.concurrency),
        "d": 100 * found.difference,
        "low": 100 * found.low,
        "high": 100 * found.high,
        "label": f"{sign}{number(100 * found.difference, digits=1)}",
    }


def _fill_bar(arm: ArmFigures, y: float, width: int, bars: list[Spec], texts: list[tuple[Spec, Spec]]) -> None:
    """The parts of one bar, with their shares where they are wide enough, and its count behind."""
    room = width - _NAME_PX - _COUNT_PX
    total = sum(count for _, count in arm.outcomes)
    x = float(_NAME_PX)
    for outcome, (fill, ink) in _FILLS.items():
        count = dict(arm.outcomes).get(outcome.value, 0)
        if not count:
            continue
        wide = room * count / total
        bars.append({"x": round(x, 2), "x2": round(x + wide, 2), "y": y, "y2": y + _BAR, "colour": fill})
        share = percent(100 * count / total)
        words = f"{outcome.value} {share}" if wide >= _NAMED_PX else share if wide >= _FIGURE_PX else ""
        if words:
            where = {"x": round(x + wide / 2, 2), "y": y + _BAR / 2, "label": words}
            texts.append((where, label("center", weight=600, color=ink)))
        x += wide
    texts.append(
        ({"x": width - _COUNT_PX, "y": y + _BAR / 2, "label": f"{arm.requests:,} requests"}, label("left", dx=8))
    )


def _key(arms: Sequence[ArmFigures], y: float, width: int, bars: list[Spec], texts: list[tuple[Spec, Spec]]) -> float:
    """A sample of each outcome that occurs, in rows that fit; gives the height that is then taken."""
    seen = {name for arm in arms for name, count in arm.outcomes if count}
    shown = [(outcome, fill) for outcome, (fill, _) in _FILLS.items() if outcome.value in seen]
    in_row = max(1, (width - _NAME_PX) // _KEY_PX)
    for i, (outcome, fill) in enumerate(shown):
        x, top = _NAME_PX + _KEY_PX * (i % in_row), y + _KEY_LINE * (i // in_row)
        bars.append({"x": x, "x2": x + 14, "y": top, "y2": top + 14, "colour": fill})
        texts.append(({"x": x + 14, "y": top + 7, "label": outcome.value}, label("left", dx=6)))
    return y + _KEY_LINE * (1 + (len(shown) - 1) // in_row) - _KEY_LINE + 18


def _arms(summary: QualitySummary) -> list[ArmFigures]:
    """C = 1 as it was beside the first level, then the levels."""
    return [arm for level in summary.levels[:1] for arm in (level.base,)] + [level.load for level in summary.levels]


def _ms(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def _latency(measured: Sequence[tuple[int, float | None, float | None]], colour: str, height: int) -> Spec | None:
    curves = []
    for name, place, dash in (("p50", 1, ()), ("p95", 2, (5, 4))):
        points = [(int(row[0]), value) for row in measured if (value := row[place]) is not None and known(value)]
        if points:
            end = f"{name}  {milliseconds(points[-1][1])}"
            curves.append(ChartCurve(tuple(points), colour, end, dash, hollow=bool(dash)))
    return time_chart(curves, height=height)


_STYLES = {Claim.HOLDS: "wide up", Claim.LOST: "wide bad", Claim.UNSHOWN: "wide"}


def level_table(summary: QualitySummary) -> Markup:
    """One row a level; the first is C = 1 against itself."""
    names = (
        "items", "pairs", "passed at C = 1", "passed at C", "difference", "bounds", "lost", "gained", "texts changed",
        "what may be said",
    )  # fmt: skip
    head = tag(
        "tr",
        *(tag("th", text(name), scope="col", class_="left" if name == names[-1] else None) for name in ("C", *names)),
    )
    rows = []
    if summary.noise is not None:
        words = "the noise floor: what changes by itself"
        rows.append(_row("1 and 1", summary.noise, summary.noise_texts_changed, words, "note"))
    for level in summary.levels:
        said = claim_words(level, summary.delta)
        rows.append(_row(str(level.concurrency), level.difference, level.texts_changed, said, _STYLES[level.claim]))
    stopped = any(level.claim is not Claim.HOLDS for level in summary.levels)
    why = "not walked, as a level below does not hold" if stopped else "not walked: the run ended before"
    for skipped in summary.skipped:
        note = tag("td", text(why), class_="note", colspan=str(len(names)))
        rows.append(tag("tr", tag("th", text(skipped), scope="row"), note))
    return table("Difference against C = 1", [head], rows)


def latency_table(summary: QualitySummary) -> Markup:
    """Of the same requests, arm by arm."""
    names = ("arm", "TTFT p50", "TTFT p95", "total p50", "total p95", "eff. tok/s", "cached", "keywords", "outcomes")
    head = _head("C", *names, left=("arm", "outcomes"))
    rows = []
    for level in summary.levels:
        for arm, name in ((level.base, "C = 1"), (level.load, f"C = {level.concurrency}")):
            cells = (
                milliseconds(arm.ttft_p50_ms),
                milliseconds(arm.ttft_p95_ms),
                seconds(arm.total_p50_s),
                seconds(arm.total_p95_s),
                number(arm.effective_tok_s),
                _share(arm.cached_share),
                _share(arm.keyword_rate),
            )
            rows.append(
                tag(
                    "tr",
                    tag("th", text(level.concurrency), scope="row"),
                    tag("td", text(name), class_="left"),
                    *(tag("td", text(cell)) for cell in cells),
                    tag("td", text(counted(arm.outcomes)), class_="note"),
                )
            )
    return table("Latency and outcomes of the same requests", [head], rows)


def family_table(summary: QualitySummary) -> Markup | None:
    """None where the bank has one family only."""
    if len(summary.by_family) < 2:
        return None
    head = tag(
        "tr", tag("th", text("family"), scope="col"), tag("th", text("items")), tag("th", text("passed at C = 1"))
    )
    rows = [
        tag(
            "tr",
            tag("th", text(family or "unnamed"), scope="row"),
            tag("td", text(f"{items:,}")),
            tag("td", text(percent(100 * rate))),
        )
        for family, items, rate in summary.by_family
    ]
    below = "An item that always passes or never does says little about load: those in between carry the test."
    return join([table("Items by family", [head], rows), tag("p", text(below), class_="below")])


def _head(*names: str, left: Sequence[str] = ()) -> Markup:
    styles = ["left" if name in left else None for name in names]
    return tag("tr", *(tag("th", text(n), scope="col", class_=style) for n, style in zip(names, styles, strict=True)))


def _row(name: str, found: PairedDifference, changed: float | None, words: str, style: str) -> Markup:
    cells = (
        f"{found.items:,}",
        f"{found.pairs:,}",
        percent(100 * found.base_rate, digits=1),
        percent(100 * found.rate, digits=1),
        _signed(found.difference),
        f"{_signed(found.low)} .. {_signed(found.high)}",
        f"{found.lost:,}",
        f"{found.gained:,}",
        _share(changed),
    )
    return tag(
        "tr",
        tag("th", text(name), scope="row"),
        *(tag("td", text(cell)) for cell in cells),
        tag("td", text(words), class_=style),
    )


def _signed(share: float) -> str:
    shown = number(100 * share, digits=1)
    return f"+{shown}" if share > 0 and shown != "0.0" else shown


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else percent(100 * value)


_CURVES_PX = 110  # of the part that curves are drawn in
_LATENCY = "Median whole, 95th percentile dashed."


def quality_page(run: StoredRun, summary: QualitySummary) -> str:
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


def quality_picture(run: StoredRun, summary: QualitySummary) -> str:
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


def _title(run: StoredRun, summary: QualitySummary) -> Spec:
    told = (("SIMULATED", _simulated(run, summary)), ("INCOMPLETE", _broken_off(run, summary)))
    marks = [word for word, holds in told if holds]
    first = " · ".join([*marks, f"bank {summary.bank}", f"{summary.items:,} items", moment(run.created_at),
                        f"skep {run.skep_version}"])  # fmt: skip
    warning = {"subtitleColor": theme.ROSE, "subtitleFontWeight": 600} if marks else {}
    lines = [shortened(printable(first), 130), *wrap(conclusion(summary), 125)]
    return {"text": shortened(printable(run.model), 80), "subtitle": lines, "fontSize": 18, "offset": 24, **warning}


def _simulated(run: StoredRun, summary: QualitySummary) -> bool:
    return run.simulated or summary.simulated


def _broken_off(run: StoredRun, summary: QualitySummary) -> bool:
    return incomplete(run) or bool(summary.incomplete)


def _banners(run: StoredRun, summary: QualitySummary) -> list[Markup]:
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
