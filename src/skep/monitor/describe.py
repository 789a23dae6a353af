"""What a series did, in plain words. Times are in the machine's own zone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    EventKind,
    MonitorEvent,
    Probe,
    ProbeShape,
    ProbeTarget,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
)
from skep.monitor.schedule import format_interval
from skep.stats.percentiles import WindowStats
from skep.units import format_seconds

CAUSES = (EventKind.VERSION, EventKind.NOTE, EventKind.RESTART)  # what may have changed a figure
_NAMES = {
    "cuda": "CUDA",
    "skep": "skep",
    "build": "the engine's build",
    "weights_bytes": "the size of the weights",
}


def moment(at: float) -> str:
    """Return a moment as "Tuesday 3 November 03:00"."""
    local = datetime.fromtimestamp(at).astimezone()
    return f"{local:%A} {local.day} {local:%B %H:%M}"


def clock(at: float) -> str:
    """Return a moment of the last days as "Tuesday 03:00"."""
    return f"{datetime.fromtimestamp(at).astimezone():%A %H:%M}"


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def ago(seconds: float) -> str:
    if seconds < 1:
        return "just now"
    return f"{_rough(seconds)} ago"


def ahead(seconds: float) -> str:
    if seconds < 1:
        return "now"
    return f"in {_rough(seconds)}"


def _rough(seconds: float) -> str:
    return format_seconds(seconds if seconds >= 99.95 else round(seconds)).replace(".0 s", " s")


def percent_interval(low: float, high: float) -> str:
    return f"95 %: {100 * (low - 1):+.1f} .. {100 * (high - 1):+.1f}"


def span_of_time(seconds: float) -> str:
    """Return a length of time as "24 h" or "7 days"."""
    if seconds < 2 * DAY_S:
        return f"{max(1, round(seconds / HOUR_S))} h"
    return f"{round(seconds / DAY_S)} days"


def medians_of(window_s: float) -> str:
    """Return what medians of a window are called: "7-day medians", "24-hour medians"."""
    hours = max(1, round(window_s / HOUR_S))
    if window_s < 2 * DAY_S:
        return f"{hours}-hour medians"
    return f"{round(window_s / DAY_S)}-day medians"


def figure(value: float) -> str:
    return f"{value:.{0 if abs(value) >= 100 else 1}f}"


_SHAPES = {
    ProbeShape.SHORT: "short answer",
    ProbeShape.LONG: "long answer",
}
_METRICS = {
    SeriesMetric.TOK_S: "tok/s",
    SeriesMetric.ENGINE_TOK_S: "tok/s by the engine",
    SeriesMetric.EFFECTIVE_TOK_S: "effective tok/s",
    SeriesMetric.TTFT_MS: "time to first token",
}


def in_words(key: SeriesKey) -> str:
    """Return a series as "hot, short answer, 4 streams: tok/s"; a single stream is not named."""
    if key.concurrency > 1:
        streams = f", {key.concurrency} streams"
    else:
        streams = ""
    return f"{key.heat}, {_SHAPES[key.shape]}{streams}: {_METRICS[key.metric]}"


def cause(
    events: Sequence[MonitorEvent], at: float, between: tuple[float, float], every_s: float
) -> str | None:
    """Return the event nearest to `at`, with what lies within one interval of it, in words; None:
    nothing happened then.
    """
    first = between[0] - every_s
    last = between[1] + every_s
    near = [event for event in events if event.kind in CAUSES and first <= event.at <= last]
    if not near:
        return None
    nearest = min(near, key=lambda event: abs(event.at - at))
    return describe_events([event for event in near if abs(event.at - nearest.at) <= every_s])


def describe_events(events: Sequence[MonitorEvent]) -> str | None:
    """Return events as the words after "when"; None: there is nothing to say."""
    versions, notes, restarts = (
        [_describe_event(event) for event in events if event.kind is kind] for kind in CAUSES
    )
    causes = versions[:3] + notes[:2] or restarts[:1]
    return " and ".join(dict.fromkeys(causes)) or None


def _describe_event(event: MonitorEvent) -> str:
    detail = event.detail
    if event.kind is EventKind.NOTE:
        return f"it was noted: {event.text}"
    if event.kind is EventKind.RESTART:
        return "it restarted"
    if {"what", "from", "to"} <= detail.keys():
        component = str(detail["what"])
        name = _NAMES.get(component, f"the {component.replace('_', ' ')}")
        return f"{name} changed from {detail['from']} to {detail['to']}"
    return event.text


def describe_change(change: SeriesChange) -> str:
    """Return a change as "-4.1 % (95 %: -4.6 .. -3.5) since Tuesday 3 November 03:00, when the
    driver changed from 570 to 580".
    """
    size = f"{percent(change.ratio)} ({percent_interval(change.ratio_low, change.ratio_high)})"
    since = f"{size} since {moment(change.at)}"
    if change.because:
        return f"{since}, when {change.because}"
    return f"{since}; skep knows of no change then"


def describe_level(stats: WindowStats, metric: SeriesMetric) -> str:
    if stats.cv is None:
        variation = ""
    else:
        variation = f", CV {100 * stats.cv:.1f} %"
    reach = f"{figure(stats.low)} .. {figure(stats.high)} {metric.unit}"
    return f"median {figure(stats.median)} {metric.unit}, {reach}{variation}"


def describe_probe(probe: Probe) -> list[str]:
    """Return what was probed, and what to know of its figures."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(probe.versions.items()))
    sentences = [f"{probe.model or 'no model known'}; {versions}"]
    if probe.busy:
        others = f"{probe.running or 0} running, {probe.waiting or 0} waiting"
        sentences.append(f"other requests ran ({others}): this is not a regression")
    if probe.simulated:
        sentences.append("simulated")
    return sentences


def describe_coverage(coverage: Mapping[str, int]) -> str | None:
    """Return how many probes were missed or failed; None: none was."""
    total = sum(coverage.values())
    missed = coverage.get("missed", 0)
    failed = coverage.get("failed", 0)
    parts = [
        f"{count} {word}" for count, word in ((missed, "missed"), (failed, "failed")) if count
    ]
    if parts:
        return f"of {total} probes, {' and '.join(parts)}"
    return None


def describe_probing(targets: Sequence[ProbeTarget]) -> list[str]:
    """Return how these targets are probed, the schedule of each first. No URL is in it."""
    by_schedule: dict[str, list[str]] = {}
    for target in targets:
        by_schedule.setdefault(_schedule(target), []).append(target.name)
    sentences = [f"{', '.join(names)}: {schedule}" for schedule, names in by_schedule.items()]
    return [*sentences, *_METHOD] if sentences else []


def _schedule(target: ProbeTarget) -> str:
    interval = format_interval(target.every_s)
    late = format_interval(round(target.jitter_s))
    runs = [f"a short answer of {target.short_tokens} tokens"]
    if target.long_tokens:
        runs.append(f"a long one of {target.long_tokens}")
    if target.concurrency:
        runs.append(f"{target.concurrency} short ones at once")
    prompts = f"prompts of about {target.prompt_tokens} tokens"
    return f"a probe every {interval}, up to {late} later; {prompts}; {', '.join(runs)}"


_METHOD = (
    (
        "A probe begins with a cold run, a short answer after the pause, kept as a series of its "
        "own; the hot runs follow."
    ),
    "Every prompt is new, so that no cache has seen it.",
    (
        "tok/s: tokens of one stream after its first one over the time they took, by the "
        "client's clock."
    ),
    "Tokens are counted by the server.",
    "Time to first token: from sending the request, the network included.",
    (
        "A probe that met other requests at the target is busy: shown, and left out of medians, "
        "changes and alerts."
    ),
    "A probe that could not be made is missed, with the reason, and is not made up later.",
    "Intervals are of 95 %, and wider where one hour is like the next.",
)
