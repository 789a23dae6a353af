"""Targets side by side: on one axis over time, and each against the first in figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from skep.monitor.history import History, history_of
from skep.monitor.versus import Row, TargetComparison, compare_targets
from skep.records import Judgement
from skep.report import theme
from skep.report.figures import UNKNOWN, number, percent
from skep.report.markup import Markup, banner, join, section, table, tag, text, trusted
from skep.report.series_chart import Picture, legend, series_picture
from skep.report.ticks import when, zone_name
from skep.series import Heat, SeriesKey, Shape
from skep.stats.rolling import WindowStats
from skep.store.database import Store
from skep.store.series import SeriesStore
from skep.web.history_band import with_steps
from skep.web.history_data import chosen_key, first_moment, simulated_share
from skep.web.history_parts import simulated_words, track_of, value_text, window_links
from skep.web.history_query import Asked, in_order, in_words, key_of, series_of
from skep.web.layout import void
from skep.web.site import Site

CSV_COLUMNS = (
    "a", "b", "heat", "shape", "concurrency", "metric", "unit", "median_a", "median_b", "ratio", "ratio_low",
    "ratio_high", "judgement", "low_a", "high_a", "low_b", "high_b", "cv_a", "cv_b", "count_a", "count_b",
)  # fmt: skip
_STYLES = {Judgement.BETTER: "left up", Judgement.WORSE: "left bad"}
_STRIP = 150  # pixels of the picture of two ranges
Stepped = tuple[History, tuple[float, ...]]  # with the moments at which its band begins anew


def pick(asked: Asked, known: Sequence[str], series: Sequence[SeriesKey]) -> Markup:
    """Boxes for targets, the series, and links for the window."""
    boxes = [
        tag(
            "label",
            void("input", type="checkbox", name="target", value=name, checked="" if name in asked.targets else None),
            text(name),
            class_="check",
        )
        for name in known
    ]
    options = [
        tag("option", text(in_words(key)), value=name, selected="" if name == asked.series else None)
        for key in series
        for name in [series_of(key)]
    ]
    chosen = tag("label", text("Series "), tag("select", join(options), name="series")) if options else None
    kept = void("input", type="hidden", name="window", value=asked.window) if asked.window else None
    form = tag("form", *boxes, chosen, kept, tag("button", text("Compare")), method="get", class_="pick")
    return tag("div", form, window_links("/compare", asked), class_="panel picker")


def kinds(store: Store, asked: Asked) -> list[SeriesKey]:
    """Series that every picked target has, as those of the first; where they share none, all of the first."""
    series = SeriesStore(store)
    first = asked.targets[0]
    own = [series_of(key) for key in in_order(series.keys(first), [])]
    others = [{series_of(key) for key in series.keys(name)} for name in asked.targets[1:]]
    shared = [name for name in own if all(name in other for other in others if other)]
    return [key_of(first, name) for name in shared or own]


def parts(site: Site, store: Store, asked: Asked) -> Iterator[Markup]:
    """The pictures first; the figures of each pair as they are worked out."""
    since, histories = _histories(store, asked, _chosen(store, asked))
    shares = {name: simulated_share(store, name, since, asked.until) for name in asked.targets}
    if (said := simulated_words(shares)) is not None:
        yield banner("simulated", "Simulated", said)
    if histories:
        yield _figure(asked, since, histories, "hot")
    cold = _cold(store, histories)
    if cold:
        yield _figure(asked, since, _histories(store, asked, cold)[1], "cold")
    for place, pair in enumerate(pairs(site, store, asked, since)):
        yield _pair(pair, place)
    if len(asked.targets) < 2:
        yield tag("p", text("Pick a second target to compare it with."), class_="below")


def pairs(site: Site, store: Store, asked: Asked, since: float) -> Iterator[TargetComparison]:
    """Every other target against the first."""
    series = SeriesStore(store)
    first, *others = asked.targets
    for other in others:
        found = compare_targets(series, first, other, since, asked.until)
        models = [None if model is None else site.label(model) for model in (found.model_a, found.model_b)]
        yield replace(found, model_a=models[0], model_b=models[1])


def document(site: Site, store: Store, asked: Asked) -> dict[str, Any]:
    since, histories = _histories(store, asked, _chosen(store, asked))
    return {
        "since": since,
        "until": asked.until,
        "targets": [
            {
                "series": str(one.key),
                "unit": one.key.metric.unit,
                "points": [[point.at, point.value, point.busy] for point in one.points],
                "spans": one.spans,
                "band": one.band,
            }
            for one, _ in histories
        ],
        "pairs": [_pair_document(pair) for pair in pairs(site, store, asked, since)] if asked.targets else [],
    }


def _pair_document(pair: TargetComparison) -> dict[str, Any]:
    rows_told = [
        {
            "heat": row.heat.value,
            "shape": row.shape.value,
            "concurrency": row.concurrency,
            "metric": row.metric.value,
            "unit": row.metric.unit,
            "a": row.versus.a,
            "b": row.versus.b,
            "ratio": row.versus.ratio,
            "judgement": row.versus.judgement.value,
            "sentence": row.sentence,
        }
        for row in pair.rows
    ]
    sides = {"a": pair.a, "b": pair.b, "model_a": pair.model_a, "model_b": pair.model_b}
    return {**sides, "same_model": pair.same_model, "rows": rows_told}


def rows(site: Site, store: Store, asked: Asked) -> Iterator[tuple[Any, ...]]:
    since = _since(store, asked, _chosen(store, asked))
    for pair in pairs(site, store, asked, since) if asked.targets else ():
        for row in pair.rows:
            found = row.versus
            ratio = found.ratio
            known = (None, None, None) if ratio is None else (ratio.estimate, ratio.low, ratio.high)
            sides = [found.a, found.b]
            yield (
                pair.a, pair.b, row.heat.value, row.shape.value, row.concurrency, row.metric.value, row.metric.unit,
                *(side and side.median for side in sides), *known, found.judgement.value,
                *(edge for side in sides for edge in ((None, None) if side is None else (side.low, side.high))),
                *(side and side.cv for side in sides), *(side and side.count for side in sides),
            )  # fmt: skip


def _chosen(store: Store, asked: Asked) -> list[SeriesKey]:
    """The same series of each where all have it, else the one that stands for each."""
    series = SeriesStore(store)
    name = asked.series
    if name is None:
        usual = [chosen_key(series, target, None)[0] for target in asked.targets]
        shared = {series_of(key) for key in kinds(store, asked)}
        name = next((series_of(key) for key in usual if key is not None and series_of(key) in shared), None)
        name = name or next((one for one in _speeds(shared)), None)
    found = (chosen_key(series, target, name)[0] for target in asked.targets)
    return [key for key in found if key is not None]


def _speeds(names: set[str]) -> list[str]:
    return sorted(name for name in names if name.startswith("hot/short/c1/") and name.endswith("tok_s"))


def _cold(store: Store, hot: Sequence[Stepped]) -> list[SeriesKey]:
    """The cold series of the same figure, of those targets that have one."""
    series = SeriesStore(store)
    found = []
    for one, _ in hot:
        if one.key.heat is Heat.HOT:
            cold = [key for key in series.keys(one.key.target) if key.heat is Heat.COLD]
            same = [key for key in cold if key.metric is one.key.metric] or [
                key for key in cold if key.metric.unit == one.key.metric.unit
            ]
            found += same[:1]
    return found


def _since(store: Store, asked: Asked, keys: Sequence[SeriesKey]) -> float:
    if asked.since is not None:
        return asked.since
    series = SeriesStore(store)
    return min((first_moment(series, key, asked.until) for key in keys), default=asked.until - 86_400)


def _histories(store: Store, asked: Asked, keys: Sequence[SeriesKey]) -> tuple[float, list[Stepped]]:
    since = _since(store, asked, keys)
    series = SeriesStore(store)
    return since, [with_steps(series, history_of(series, key, since, asked.until)) for key in keys]


def _figure(asked: Asked, since: float, histories: Sequence[Stepped], name: str) -> Markup:
    """Only what is told in the same unit stands on one axis."""
    unit = histories[0][0].key.metric.unit
    drawn_steps = [(one, steps) for one, steps in histories if one.key.metric.unit == unit]
    alike = [one for one, _ in drawn_steps]
    same = {series_of(one.key) for one in alike}
    title = in_words(alike[0].key) if len(same) == 1 else f"{alike[0].key.heat} runs, {unit}"
    drawn = Picture(
        title=title,
        words=f"{', '.join(one.key.target for one in alike)} on one axis.",
        unit=unit,
        since=since,
        until=asked.until,
        tracks=[
            track_of(one, theme.SERIES[place % len(theme.SERIES)], _label(one, len(same)), steps)
            for place, (one, steps) in enumerate(drawn_steps)
        ],
    )
    caption = f"{when(since, now=asked.until)} to {when(asked.until)}, {zone_name(asked.until)}"
    heading = tag("figcaption", tag("strong", text(title)), tag("span", text(caption)))
    if drawn.empty:
        return tag(
            "figure", heading, tag("p", text("nothing was measured in this window"), class_="empty"), class_="wide"
        )
    return tag("figure", heading, series_picture(drawn, f"compare-{name}"), legend(drawn), class_="wide")


def _label(history: History, kinds_drawn: int) -> str:
    return history.key.target if kinds_drawn == 1 else f"{history.key.target} ({in_words(history.key)})"


def _pair(pair: TargetComparison, place: int) -> Markup:
    told_rows = [row for row in pair.rows if row.sentence is not None]
    usual = [
        words
        for row, words in zip(told_rows, pair.sentences, strict=True)
        if row.concurrency <= 1 and row.shape is not Shape.LONG
    ]
    told = tag("ul", *(tag("li", text(one)) for one in usual), class_="told") if usual else None
    title = f"{pair.b} against {pair.a}"
    if not pair.rows:
        return section(f"pair{place}", title, tag("p", text("They have no figure in common yet."), class_="below"))
    names = ("Kind of run", pair.a, pair.b, "Ratio, 95 %", "Ranges", "CV", f"{pair.b} is")  # fmt: skip
    head = tag("tr", *(tag("th", text(name), scope="col") for name in names))
    below = f"Ratio: median of {pair.b} over that of {pair.a}. CV: spread over mean, of {pair.a} and {pair.b}."
    models = {pair.model_a, pair.model_b} - {None}
    if pair.same_model is False:
        below += f" They serve different models: {pair.model_a} and {pair.model_b}."
    elif models:
        below += f" Model: {', '.join(str(model) for model in models)}."
    rows_drawn = [_pair_row(row, pair) for row in pair.rows]
    drawn = tag("div", table(title, [head], rows_drawn), class_="pair")
    return section(f"pair{place}", title, told, drawn, tag("p", text(below), class_="below"))


def _pair_row(row: Row, pair: TargetComparison) -> Markup:
    found, metric = row.versus, row.metric
    ratio = found.ratio
    interval = "" if ratio is None else f"{number(ratio.low, digits=2)} to {number(ratio.high, digits=2)}"
    small = tag("small", text(interval))
    ranges = " / ".join(_range(side, row) for side in (found.a, found.b))
    kind = SeriesKey(pair.a, row.heat, row.shape, row.concurrency, metric)
    return tag(
        "tr",
        tag("th", text(in_words(kind)), scope="row"),
        *(tag("td", text(UNKNOWN if side is None else value_text(metric, side.median))) for side in (found.a, found.b)),
        tag("td", tag("b", text(UNKNOWN if ratio is None else f"{number(ratio.estimate, digits=2)}×")), small),
        tag("td", _ranges(found.a, found.b), tag("small", text(ranges))),
        tag("td", text(" / ".join(_cv(side) for side in (found.a, found.b))), class_="soft"),
        tag("td", text(found.judgement.value), class_=_STYLES.get(found.judgement, "left soft")),
    )  # fmt: skip


def _range(side: WindowStats | None, row: Row) -> str:
    return UNKNOWN if side is None else f"{value_text(row.metric, side.low)} to {value_text(row.metric, side.high)}"


def _cv(side: WindowStats | None) -> str:
    return UNKNOWN if side is None or side.cv is None else percent(100 * side.cv, digits=1)


def _ranges(a: WindowStats | None, b: WindowStats | None) -> Markup:
    """Both on one scale from zero: thin from lowest to highest, thick the middle half, a dot at the median."""
    sides = [(a, theme.SERIES[0]), (b, theme.SERIES[1])]
    most = max((side.high for side, _ in sides if side is not None), default=0.0)
    if most <= 0:
        return text(UNKNOWN)
    parts = []
    for place, (side, colour) in enumerate(sides):
        if side is not None:
            low, p25, middle, p75, high = (
                2 + (_STRIP - 4) * max(one, 0.0) / most
                for one in (side.low, side.p25, side.median, side.p75, side.high)
            )
            y = 5 + 9 * place
            parts.append(
                f'<path d="M{low:.1f} {y}H{high:.1f}" stroke="{colour}" stroke-width="1.4"/>'
                f'<path d="M{p25:.1f} {y}H{max(p75, p25 + 1):.1f}" stroke="{colour}" stroke-width="5"/>'
                f'<circle cx="{middle:.1f}" cy="{y}" r="3" fill="{theme.PAPER}" stroke="{colour}" stroke-width="1.5"/>'
            )
    return trusted(f'<svg class="range" viewBox="0 0 {_STRIP} 19" aria-hidden="true">{"".join(parts)}</svg>')
