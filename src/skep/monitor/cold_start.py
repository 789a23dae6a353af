"""What the first request after a pause costs at a target: its cold runs against its hot ones."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from skep.monitor.describe import figure, medians_of
from skep.monitor.history import compare_keys, interval_of
from skep.monitor.records import Heat, ProbeShape, SeriesKey, SeriesMetric
from skep.monitor.schedule import format_interval
from skep.monitor.store import SeriesStore
from skep.stats.versus import Judgement
from skep.units import milliseconds

REPORTED_SLOWDOWN = 1.25  # so many times slower, and it is reported unasked


class ColdStart(msgspec.Struct, frozen=True):
    """Medians of short answers. The speeds are None where one of them is not known."""

    target: str
    every_s: float
    window_s: float
    cold_ttft_ms: float
    hot_ttft_ms: float
    is_slower: bool  # beyond what the runs differ by themselves, in one of the two
    cold_tok_s: float | None = None
    hot_tok_s: float | None = None

    @property
    def matters(self) -> bool:
        factors = [self.cold_ttft_ms / self.hot_ttft_ms]
        if self.hot_tok_s and self.cold_tok_s:
            factors.append(self.hot_tok_s / self.cold_tok_s)
        return self.is_slower and max(factors) >= REPORTED_SLOWDOWN

    @property
    def sentence(self) -> str:
        figures = f"first token after {milliseconds(self.cold_ttft_ms)}"
        if self.is_slower:
            figures += f" instead of {milliseconds(self.hot_ttft_ms)}"
        if self.cold_tok_s is not None and self.hot_tok_s is not None:
            figures += f", {figure(self.cold_tok_s)} tok/s"
            if self.is_slower:
                figures += f" instead of {figure(self.hot_tok_s)}"
        if not self.is_slower:
            figures += ", not to be told apart from hot runs"
        pause = f"{self.target} after a pause (probed every {format_interval(self.every_s)})"
        return f"{pause}: {figures} ({medians_of(self.window_s)})"

    def document(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self), "matters": self.matters, "sentence": self.sentence}


def cold_start_of(
    series: SeriesStore, target: str, since: float, until: float
) -> ColdStart | None:
    """Return the cost of a pause; None: there are too few cold or hot runs in the window."""
    hot = SeriesKey(target, Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TTFT_MS)
    cold = replace(hot, heat=Heat.COLD)
    first_token = compare_keys(series, hot, cold, since, until)
    if first_token.ratio is None or first_token.a is None or first_token.b is None:
        return None
    hot_speed = replace(hot, metric=SeriesMetric.TOK_S)
    speed = compare_keys(series, hot_speed, replace(hot_speed, heat=Heat.COLD), since, until)
    return ColdStart(
        target=target,
        every_s=interval_of(series, target),
        window_s=until - since,
        cold_ttft_ms=first_token.b.median,
        hot_ttft_ms=first_token.a.median,
        is_slower=Judgement.WORSE in (first_token.judgement, speed.judgement),
        cold_tok_s=None if speed.b is None else speed.b.median,
        hot_tok_s=None if speed.a is None else speed.a.median,
    )
