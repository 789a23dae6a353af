"""The pieces of the history page: the form, the pictures and the tables. Values in, markup out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from skep.monitor.describe import describe_change, span_of_time
from skep.monitor.history import SeriesHistory
from skep.monitor.records import Alert, MonitorEvent, SeriesChange, SeriesKey, SeriesMetric
from skep.report import theme
from skep.report.markup import Markup, banner, join, table, tag, text
from skep.report.series_chart import Band, ChangeMark, Flag, Picture, Track, legend, series_picture, shift_label
from skep.report.wall_clock import when, zone_name
from skep.units import UNKNOWN, milliseconds, number, percent
from skep.web.history_data import HostLine, IdleRow, TargetHistory
from skep.web.history_query import ALL, WINDOWS, HistoryQuery, day_text, in_words, series_of
from skep.web.layout import head_row, void

_MOST_ROWS = 300  # of the table behind a picture
_MOST_FLAGS = 60
_KINDS = {"monitor": "skep"}


def pick_form(
    asked: HistoryQuery, targets: Sequence[str], key: SeriesKey | None = None, keys: Sequence[SeriesKey] = ()
) -> Markup:
    """Everything that is chosen goes into the address; links for the usual windows, fields for others."""
    chosen = asked.targets[0] if asked.targets else ""
    options = [_option("", "all targets", chosen), *(_option(name, name, chosen) for name in targets)]
    fields = [_field("Target", "target", options)]
    if key is not None:
        series = [_option(series_of(one), in_words(one), series_of(key)) for one in keys]
        fields.append(_field("Series", "series", series))
    begin = asked.begin[:10] or (day_text(asked.since) if asked.since is not None else "")
    end = asked.end[:10] or day_text(asked.until)
    days = join(
        [
            tag("label", text("From "), void("input", type="date", name="from", value=begin)),
            tag("label", text("to "), void("input", type="date", name="to", value=end)),
            tag("button", text("Show")),
        ]
    )
    kept = void("input", type="hidden", name="window", value=asked.window) if asked.window else None
    pick = tag("form", *fields, kept, tag("noscript", tag("button", text("Show"))), method="get", class_="pick")
    other = tag(
        "details",
        tag("summary", text("Other days")),
        _days_form(asked, days),
        class_="days",
        open=None if asked.window else "",
    )
    return tag("div", pick, window_links("/history", asked), other, class_="panel picker")


def window_links(page: str, asked: HistoryQuery, more: str = "") -> Markup:
    names = [*((name, words) for name, _, words in WINDOWS), (ALL, "all")]
    links = join(
        tag(
            "a",
            text(words),
            href=f"{page}?{'&'.join(part for part in (asked.over(name).query(), more) if part)}",
            aria_current="true" if name == asked.window else None,
        )
        for name, words in names
    )
    return tag("nav", links, class_="windows", aria_label="Window")


def _days_form(asked: HistoryQuery, days: Markup) -> Markup:
    hidden = [void("input", type="hidden", name="target", value=name) for name in asked.targets]
    if asked.series:
        hidden.append(void("input", type="hidden", name="series", value=asked.series))
    return tag("form", *hidden, days, method="get", class_="days")


def history_figure(
    view: TargetHistory,
    history: SeriesHistory,
    name: str,
    *,
    title: str,
    flags: bool = True,
    steps: Sequence[float] = (),
    headed: bool = False,
) -> Markup:
    """The picture of a series, what its marks mean, and its figures as a table. `headed`: the title stands above it."""
    drawn = picture_of(view, history, title, flags=flags, steps=steps)
    zone = zone_name(view.until)
    span = f"{when(view.since, now=view.until)} to {when(view.until, now=view.until)}, {zone}"
    caption = tag("figcaption", tag("span", text(span))) if headed else _caption(title, span)
    if drawn.empty:
        body = tag("p", text("nothing was measured in this window"), class_="empty")
        return tag("figure", caption, body, class_="wide")
    return tag("figure", caption, series_picture(drawn, name), legend(drawn), data_table(history, title), class_="wide")


def picture_of(
    view: TargetHistory, history: SeriesHistory, title: str, *, flags: bool = True, steps: Sequence[float] = ()
) -> Picture:
    events = history.events[-_MOST_FLAGS:] if flags else ()
    first = len(history.events) - len(events) + 1
    return Picture(
        title=title,
        words=" ".join(history.sentences) or title,
        unit=history.key.metric.unit,
        since=view.since,
        until=view.until,
        tracks=[track_of(history, theme.SKY, steps=steps)],
        shifts=[shift_of(change) for change in history.changes],
        flags=[Flag(event.at, first + place, event.text) for place, event in enumerate(events)],
        failed=view.failed,
        missed=view.missed,
        band_words=f"rolling median of {span_of_time(history.band_s)}, with the middle half",
    )


def track_of(history: SeriesHistory, colour: str, name: str | None = None, steps: Sequence[float] = ()) -> Track:
    """Where the window is long there are hours or days instead of points: their middle, from p10 to p90."""
    return Track(name or history.key.target, history.points, band_of(history), colour, steps)


def band_of(history: SeriesHistory) -> Sequence[Band]:
    return history.band or [(span.start, span.median, span.p10, span.p90) for span in history.spans]


def shift_of(change: SeriesChange) -> ChangeMark:
    levels = (change.before, change.after)
    return ChangeMark(change.at, change.between, shift_label(change.ratio), change_words(change), change.worse, levels)


def change_words(change: SeriesChange) -> str:
    return describe_change(change).replace("-", "−")


def data_table(history: SeriesHistory, title: str) -> Markup:
    """For those who read rather than look; the newest rows, and where all are."""
    metric = history.key.metric
    if history.points:
        head = head_row(("When", "Value"), ("When",))
        newest = history.points[: -_MOST_ROWS - 1 : -1]
        rows = [
            _row(
                [
                    when(point.at, now=history.points[-1].at),
                    value_text(metric, point.value) + (" (busy)" if point.busy else ""),
                ]
            )
            for point in newest
        ]
        total = len(history.points)
    else:
        head = head_row(("From", "Median", "p10", "p90", "Lowest", "Highest", "Samples"), ("From",))
        rows = [
            _row(
                [
                    when(span.start, now=history.spans[-1].start),
                    *(value_text(metric, one) for one in (span.median, span.p10, span.p90, span.low, span.high)),
                    str(span.count),
                ]
            )
            for span in history.spans[: -_MOST_ROWS - 1 : -1]
        ]
        total = len(history.spans)
    more = f"The newest {len(rows)} of {total}; the CSV below has all." if total > len(rows) else f"All {total}."
    return tag(
        "details", tag("summary", text("As a table")), tag("p", text(more), class_="below"), table(title, [head], rows)
    )


def stats_table(history: SeriesHistory) -> Markup | None:
    """One row for each of the usual windows, up to now."""
    metric = history.key.metric
    names = ("Last", "Median", "MAD", "CV", "p5", "p25", "p75", "p95", "Lowest", "Highest", "n")
    rows = []
    for name, stats in history.stats.items():
        if stats is None:
            rows.append(_row([name, *([UNKNOWN] * 9), "0"]))
            continue
        figures = (stats.p05, stats.p25, stats.p75, stats.p95, stats.low, stats.high)
        cv = None if stats.cv is None else 100 * stats.cv
        cells = [name, value_text(metric, stats.median), value_text(metric, stats.mad), percent(cv, digits=1)]
        rows.append(_row([*cells, *(value_text(metric, one) for one in figures), number(stats.count, digits=0)]))
    if not rows:
        return None
    below = coverage_words(history.coverage)
    return join(
        [
            table("How it lies and spreads", [head_row(names, ("Last",))], rows),
            tag("p", text(f"{below} MAD: median distance from the median. CV: spread over mean."), class_="below"),
        ]
    )


def coverage_words(coverage: Mapping[str, int]) -> str:
    total = sum(coverage.values())
    if not total:
        return "No probe was due in this window."
    parts = ", ".join(f"{count:,} {name}" for name, count in coverage.items() if count)
    return f"Of {total:,} probes that were due in this window: {parts}."


def changes_table(changes: Iterable[SeriesChange]) -> Markup | None:
    rows = []
    for change in reversed(list(changes)):
        metric = change.key.metric
        span = f"{when(change.between[0])} to {when(change.between[1])}"
        low, high = (number(100 * (edge - 1), digits=1) for edge in (change.ratio_low, change.ratio_high))
        cells = [
            tag("th", text(when(change.at)), scope="row"),
            tag("td", text(shift_label(change.ratio)), class_="bad" if change.worse else "up"),
            tag("td", text(f"{low} to {high} %"), class_="soft"),
            tag("td", text(value_text(metric, change.before))),
            tag("td", text(value_text(metric, change.after))),
            tag("td", text(f"{change.count_before} / {change.count_after}"), class_="soft"),
            tag("td", text(span), class_="soft"),
            tag("td", text(change.because or "nothing that was noted or seen"), class_="wide"),
        ]
        rows.append(tag("tr", *cells))
    if not rows:
        return None
    names = ("When", "Size", "95 %", "Before", "After", "Samples", "It lies between", "What happened then")
    return table("Changes", [head_row(names, ("When", "What happened then"))], rows)


def events_table(events: Sequence[MonitorEvent], around: Mapping[int, str]) -> Markup | None:
    """Numbered as the flags of the picture; of notes and versions also how it was before and after."""
    rows = [
        tag(
            "tr",
            tag("th", text(place), scope="row"),
            tag("td", text(when(event.at)), class_="left"),
            tag("td", text(_KINDS.get(event.kind.value, event.kind.value)), class_="left soft"),
            tag("td", text(event.text), _said(around.get(event.id or 0)), class_="wide"),
            tag("td", text(event.target or "all"), class_="left soft"),
        )
        for place, event in reversed(list(enumerate(events, 1)))
    ]
    names = ("No", "When", "Kind", "What happened", "Target")
    drawn = table("Events", [head_row(names, names)], rows[:_MOST_ROWS]) if rows else None
    return drawn and tag("div", drawn, class_="stacked")


def _said(words: str | None) -> Markup | None:
    return None if words is None else tag("small", text(words))


def alerts_table(alerts: Sequence[Alert]) -> Markup | None:
    names = ("Opened", "Closed", "Rule", "What was wrong", "Why it was closed")
    rows = [_alert_row(alert) for alert in alerts[:_MOST_ROWS]]
    drawn = table("Alerts", [head_row(names, names)], rows) if rows else None
    return drawn and tag("div", drawn, class_="stacked")


def _alert_row(alert: Alert) -> Markup:
    closed = "still open" if alert.closed_at is None else when(alert.closed_at)
    return tag(
        "tr",
        tag("th", text(when(alert.opened_at)), scope="row"),
        tag("td", text(closed), class_="left bad" if alert.closed_at is None else "left"),
        tag("td", text(alert.rule.value), class_="left soft"),
        tag("td", text(alert.message), class_="wide"),
        tag("td", text(alert.closed_because or ""), class_="wide"),
    )


def idle_table(rows: Sequence[IdleRow], metric: SeriesMetric) -> Markup | None:
    if not rows:
        return None
    drawn = [
        _row([one.idle, *(value_text(metric, value) for value in (one.median, one.low, one.high)), str(one.count)])
        for one in rows
    ]
    names = ("Idle before it", "Median", "Lowest", "Highest", "n")
    return table("Cold runs by idle time", [head_row(names, names[:1])], drawn)


def host_figures(view: TargetHistory) -> Markup | None:
    figures = []
    for line in view.host:
        drawn = Picture(
            title=f"{line.name} of the machine",
            words=_host_words(line),
            unit=line.unit,
            since=view.since,
            until=view.until,
            tracks=[Track(line.name, line.points, (), theme.HONEY)],
        )
        name = f"host-{line.unit.strip('°').lower()}"
        caption = _caption(line.name.capitalize(), _host_words(line))
        figures.append(tag("figure", caption, series_picture(drawn, name, size="small")))
    return tag("div", *figures, class_="charts thirds") if figures else None


def simulated_banner(view: TargetHistory) -> Markup | None:
    said = simulated_words({view.target: view.simulated})
    return None if said is None else banner("simulated", "Simulated", said)


def simulated_words(shares: Mapping[str, float]) -> str | None:
    """By target: the share of its probes that no model answered. None: a model answered them all."""
    some = {name: share for name, share in shares.items() if share > 0}
    if not some:
        return None
    if min(shares.values()) >= 1:
        return "No model answered these probes: the figures are a prediction."
    of_whom = [f"{'all' if share >= 1 else percent(100 * share)} of those of {name}" for name, share in some.items()]
    return f"No model answered some of these probes: {', '.join(of_whom)} are a prediction."


def value_text(metric: SeriesMetric, value: float | None) -> str:
    if metric is SeriesMetric.TTFT_MS:
        return milliseconds(value)
    if metric is SeriesMetric.QUALITY:
        return percent(None if value is None else 100 * value)
    return number(value)


def key_title(key: SeriesKey) -> str:
    return f"{key.target}: {in_words(key)}"


def _host_words(line: HostLine) -> str:
    values = [point.value for point in line.points]
    return f"{number(min(values), digits=0)} to {number(max(values), digits=0)} {line.unit} at the time of the probes"


def _caption(title: str, caption: str) -> Markup:
    return tag("figcaption", tag("strong", text(title)), tag("span", text(caption)))


def _option(value: str, words: str, chosen: str) -> Markup:
    return tag("option", text(words), value=value, selected="" if value == chosen else None)


def _field(label: str, name: str, options: Sequence[Markup]) -> Markup:
    return tag("label", text(f"{label} "), tag("select", join(options), name=name))


def _row(cells: Sequence[str]) -> Markup:
    return tag("tr", tag("th", text(cells[0]), scope="row"), *(tag("td", text(cell)) for cell in cells[1:]))
