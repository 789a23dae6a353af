"""What a series did, in plain words. Knows values and a time zone; `None` as the zone means the machine's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo

from skep.monitor.records import DAY_S, HOUR_S, EventKind, MonitorEvent, Probe, SeriesChange, SeriesMetric, SlowDrift
from skep.stats.percentiles import WindowStats
from skep.stats.versus import Judgement, SeriesComparison
from skep.units import format_seconds

CAUSES = (EventKind.VERSION, EventKind.NOTE, EventKind.RESTART)  # what may have changed a figure
_NAMES = {"cuda": "CUDA", "skep": "skep", "build": "the engine's build", "weights_bytes": "the size of the weights"}
_TIMES = 1.5  # from such a ratio on, times are said instead of per cent


def moment(at: float, zone: tzinfo | None = None) -> str:
    """ "Tuesday 3 November 03:00"."""
    local = datetime.fromtimestamp(at, zone)
    return f"{local:%A} {local.day} {local:%B %H:%M}"


def clock(at: float, zone: tzinfo | None = None) -> str:
    """ "Tuesday 03:00"."""
    return f"{datetime.fromtimestamp(at, zone):%A %H:%M}"


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def ago(seconds: float) -> str:
    return "just now" if seconds < 1 else f"{_rough(seconds)} ago"


def ahead(seconds: float) -> str:
    return "now" if seconds < 1 else f"in {_rough(seconds)}"


def _rough(seconds: float) -> str:
    return format_seconds(seconds if seconds >= 99.95 else round(seconds)).replace(".0 s", " s")


def percent_interval(low: float, high: float, *, sure: int = 95) -> str:
    return f"{sure} %: {100 * (low - 1):+.1f} .. {100 * (high - 1):+.1f}"


def span_of_time(seconds: float) -> str:
    """ "24 h", "7 days"."""
    return f"{max(1, round(seconds / HOUR_S))} h" if seconds < 2 * DAY_S else f"{round(seconds / DAY_S)} days"


def figure(value: float, metric: SeriesMetric) -> str:
    digits = 2 if metric is SeriesMetric.QUALITY else 0 if abs(value) >= 100 else 1
    return f"{value:.{digits}f}"


def cause(events: Sequence[MonitorEvent], at: float, between: tuple[float, float], every_s: float) -> str | None:
    """Return what happened nearest to `at`, with what lies within one interval of it; None: nothing did."""
    first, last = between[0] - every_s, between[1] + every_s
    near = [event for event in events if event.kind in CAUSES and first <= event.at <= last]
    if not near:
        return None
    nearest = min(near, key=lambda event: abs(event.at - at))
    return describe_events([event for event in near if abs(event.at - nearest.at) <= every_s])


def describe_events(events: Sequence[MonitorEvent]) -> str | None:
    """To be read after "when"."""
    versions, notes, restarts = ([_told(event) for event in events if event.kind is kind] for kind in CAUSES)
    found = versions[:3] + notes[:2] or restarts[:1]
    return " and ".join(dict.fromkeys(found)) or None


def _told(event: MonitorEvent) -> str:
    detail = event.detail
    if event.kind is EventKind.NOTE:
        return f"it was noted: {event.text}"
    if event.kind is EventKind.RESTART:
        return "it restarted"
    if {"what", "from", "to"} <= detail.keys():
        what = str(detail["what"])
        name = _NAMES.get(what, f"the {what.replace('_', ' ')}")
        return f"{name} changed from {detail['from']} to {detail['to']}"
    return event.text


def describe_change(change: SeriesChange, zone: tzinfo | None = None) -> str:
    """ "-4.1 % (95 %: -4.6 .. -3.5) since Tuesday 3 November 03:00, when the driver changed from 570 to 580"."""
    size = f"{percent(change.ratio)} ({percent_interval(change.ratio_low, change.ratio_high)})"
    since = f"{size} since {moment(change.at, zone)}"
    if change.because is not None:
        return f"{since}, when {change.because}"
    first, last = change.between
    unknown = "skep knows of no change"
    if last - first > 4 * HOUR_S:
        return f"{since} (95 %: between {clock(first, zone)} and {moment(last, zone)}); {unknown}"
    return f"{since}; {unknown} then"


def describe_drift(drift: SlowDrift, zone: tzinfo | None = None) -> str:
    days = max((drift.last - drift.first) / DAY_S, 1e-9)
    size = f"{percent(drift.ratio)} ({percent_interval(drift.ratio_low, drift.ratio_high)})"
    span = f"from {moment(drift.first, zone)} to {moment(drift.last, zone)}"
    return f"a slow drift of {size} {span}, {100 * (drift.ratio - 1) / days:+.2f} % a day, and no step"


def describe_recent(found: SeriesComparison, late_s: float, before_s: float) -> str | None:
    """Return the late against what was before, with an interval of 99 %; None where they cannot be compared."""
    if found.ratio is None:
        return None
    noise = "unknown" if found.noise is None else f"{100 * found.noise:.1f} %"
    start = f"the last {span_of_time(late_s)} differ by {percent(found.ratio.estimate)}"
    before = f"from the {span_of_time(before_s)} before"
    if found.judgement is Judgement.SAME:
        return f"{start} {before}: inside run-to-run noise (CV {noise})"
    interval = f"({percent_interval(found.ratio.low, found.ratio.high, sure=99)})"
    return f"{start} {interval} {before}: more than run-to-run noise (CV {noise}) explains"


def describe_level(stats: WindowStats, metric: SeriesMetric) -> str:
    steady = "" if stats.cv is None else f", CV {100 * stats.cv:.1f} %"
    unit = f" {metric.unit}" if metric.unit else ""
    reach = f"{figure(stats.low, metric)} .. {figure(stats.high, metric)}{unit}"
    return f"median {figure(stats.median, metric)}{unit}, {reach}{steady}"


def describe_probe(probe: Probe) -> list[str]:
    """Return what was probed, and what to know of its figures."""
    told = [f"{probe.model or 'no model known'}; {', '.join(f'{k} {v}' for k, v in sorted(probe.versions.items()))}"]
    if probe.busy:
        others = f"{probe.running or 0} running, {probe.waiting or 0} waiting"
        told.append(f"other requests ran ({others}): this is not a regression")
    return [*told, *(["simulated"] if probe.simulated else [])]


def describe_coverage(coverage: Mapping[str, int]) -> str | None:
    """None: every probe was made and succeeded, or none was due."""
    total = sum(coverage.values())
    missed, failed = coverage.get("missed", 0), coverage.get("failed", 0)
    parts = [f"{count} {word}" for count, word in ((missed, "missed"), (failed, "failed")) if count]
    return f"of {total} probes, {' and '.join(parts)}" if parts else None


def describe_comparison(
    a: str, b: str, found: SeriesComparison, metric: SeriesMetric, *, same_model: bool | None
) -> str | None:
    """ "local is 2.2x (2.1..2.3) as fast as cloud on the same model; ranges ...; CV 1 % against 31 %"."""
    if found.ratio is None or found.a is None or found.b is None:
        return None
    on = {True: " on the same model", False: " (of different models)", None: ""}[same_model]
    unit = f" {metric.unit}" if metric.unit else ""
    sides = [found.a, found.b]
    ranges = " against ".join(f"{figure(side.low, metric)}..{figure(side.high, metric)}" for side in sides)
    steady = " against ".join("unknown" if side.cv is None else f"{100 * side.cv:.0f} %" for side in sides)
    return f"{_ahead(a, b, found, metric)}{on}; ranges {ranges}{unit}; CV {steady}"


def _ahead(a: str, b: str, found: SeriesComparison, metric: SeriesMetric) -> str:
    """The one that is ahead is named first."""
    assert found.ratio is not None
    more = _MORE.get(metric, ("faster", "as fast as"))
    if found.judgement is Judgement.SAME:
        gap = f"{percent(found.ratio.estimate)}, {percent_interval(found.ratio.low, found.ratio.high)}"
        return f"{b} is not distinguishable from {a} in {_WHAT.get(metric, 'speed')} ({gap})"
    first, second = (b, a) if (found.ratio.estimate > 1) is metric.more_is_better else (a, b)
    low, estimate, high = found.ratio.low, found.ratio.estimate, found.ratio.high
    if estimate < 1:
        low, estimate, high = (1 / max(value, 1e-12) for value in (high, estimate, low))
    if estimate >= _TIMES:
        return f"{first} is {estimate:.1f}x ({low:.1f}..{high:.1f}) {more[1]} {second}"
    low, estimate, high = (100 * (value - 1) for value in (low, estimate, high))
    return f"{first} is {estimate:.1f} % ({low:.1f}..{high:.1f}) {more[0]} than {second}"


_WHAT = {SeriesMetric.TTFT_MS: "time to first token", SeriesMetric.QUALITY: "quality"}
_MORE = {
    SeriesMetric.TTFT_MS: ("quicker to the first token", "as quick to the first token as"),
    SeriesMetric.QUALITY: ("more often right", "as often right as"),
}
