"""Prometheus' text form: counters, gauges and histograms that write it, and what reads it.

Written by hand because every request of the gateway passes here: a label set is one dictionary
lookup, an observation one bisection."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_SETS = 2000  # of one metric: names that clients choose must not fill the memory
OTHER = "other"

Labels = tuple[str, ...]
_Series = tuple[list[int], list[float]]  # counts by bucket, and the sum as the only item

MOST_NAMES = 10_000  # of samples that are read from one text
MOST_LINES = 100_000
MOST_BRACES = 100_000  # of what a server says of its slots, prompts included
# No part can give back what it matched, so that a line that does not fit is left after one look.
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABELS = r'\{(?>(?:[^"}\n]++|"(?>(?:[^"\\\n]++|\\.)*)")*)\}'
_LINE = re.compile(rf"({_NAME})(?:{_LABELS})? ([0-9.eE+-]{{1,64}})(?: [0-9]{{1,64}})?$")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(?=.*\}})| (?=\S))")


class _Values:
    """A metric with one value for each set of labels."""

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Labels = (),
        values: dict[Labels, float] | None = None,
    ) -> None:
        self.name = name
        self.help = help_text
        self.labels = labels
        self._values = {} if values is None else values

    def lines(self) -> Iterable[str]:
        for values, value in self._values.items():
            yield f"{self.name}{_braces(self.labels, values)} {_number(value)}"


class Counter(_Values):
    kind = "counter"

    def add(self, values: Labels, amount: float = 1) -> None:
        if values not in self._values and len(self._values) >= LABEL_SETS:
            values = (OTHER,) * len(values)
        total = self._values.get(values, 0)
        self._values[values] = total + amount

    def by(self, label: str) -> dict[str, float]:
        """Return the values by one label, summed over all others."""
        place = self.labels.index(label)
        sums = dict[str, float]()
        for values, value in self._values.items():
            label_value = values[place]
            sums[label_value] = sums.get(label_value, 0) + value
        return sums


class Histogram:
    kind = "histogram"

    def __init__(self, name: str, help_text: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help_text
        self.labels = labels
        self._bounds = tuple(bounds)
        self._series: dict[Labels, _Series] = {}

    def observe(self, values: Labels, value: float, times: int = 1) -> None:
        series = self._series.get(values)
        if series is None:
            series = self._begin_series(values)
        counts, total = series
        bucket = bisect_left(self._bounds, value)
        counts[bucket] += times
        total[0] += value * times

    def _begin_series(self, values: Labels) -> _Series:
        """Return the series of a set of labels that is new, or that of `OTHER` where there are too
        many.
        """
        if len(self._series) >= LABEL_SETS:
            values = (OTHER,) * len(values)
        bucket_count = len(self._bounds) + 1
        empty_series = ([0] * bucket_count, [0.0])
        return self._series.setdefault(values, empty_series)

    def lines(self) -> Iterable[str]:
        bounds = [_number(bound) for bound in self._bounds]
        bounds.append("+Inf")
        bucket_labels = (*self.labels, "le")
        for values, (counts, (total,)) in self._series.items():
            running = list(accumulate(counts))
            for bound, count in zip(bounds, running, strict=True):
                bucket = _braces(bucket_labels, (*values, bound))
                yield f"{self.name}_bucket{bucket} {count}"
            braces = _braces(self.labels, values)
            yield f"{self.name}_sum{braces} {_number(total)}"
            yield f"{self.name}_count{braces} {running[-1]}"


class Gauge(_Values):
    """A metric whose values are set as they are now: `set_all` replaces every value."""

    kind = "gauge"

    def set(self, values: Labels, value: float | None) -> None:
        """Set a value; an unknown one, None, has no line, never a zero."""
        if value is not None:
            self._values[values] = value

    def set_all(self, values: dict[Labels, float]) -> None:
        self._values = values


Metric = Counter | Histogram | Gauge


def metrics_text(metrics: Iterable[Metric], *, known_only: bool = False) -> bytes:
    """Return the metrics as `GET /metrics` answers them.

    `known_only`: without those of which nothing is known.
    """
    lines = []
    for metric in metrics:
        samples = list(metric.lines())
        if known_only and not samples:
            continue
        if metric.help:
            lines.append(f"# HELP {metric.name} {metric.help}")
        lines += [f"# TYPE {metric.name} {metric.kind}", *samples]
    if lines:
        return ("\n".join(lines) + "\n").encode("utf-8", "replace")
    return b""


class _EngineSlot(msgspec.Struct):
    """One slot of llama.cpp; of its many fields, the one that is asked for."""

    is_processing: bool = False


_SLOTS = msgspec.json.Decoder(list[_EngineSlot])


def count_busy(slots: str) -> int | None:
    """Return how many of llama.cpp's `/slots` are processing, None where the answer is no list of
    them.
    """
    # More would take long, and no other thread gets a turn meanwhile.
    if slots.count("{") > MOST_BRACES:
        return None
    try:
        return sum(1 for slot in _SLOTS.decode(slots) if slot.is_processing)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return None


def parse_metrics(text: str) -> dict[str, float]:
    """Return every sample by its name, summed over its labels; empty where it is no such text."""
    sums: dict[str, float] = {}
    for start, end in islice(_line_spans(text), MOST_LINES):
        sample = _LINE.match(text, start, end)
        if sample is None:
            continue
        name, value = sample.groups()
        if name not in sums and len(sums) >= MOST_NAMES:
            continue
        with suppress(ValueError):
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def _line_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each line begins and ends: one at a time, so that other threads get their turn
    in between.
    """
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield start, end
        start = end + 1


def label_samples(text: str, replica: str) -> str:
    """Return an engine's samples, each with the label `replica` added.

    Descriptions are left out: those of all replicas are the same.
    """
    label = f'replica="{_escaped(replica)}"'
    labelled = []
    for start, end in islice(_line_spans(text), MOST_LINES):
        if start == end or text[start] == "#":
            continue
        sample = _SAMPLE.match(text, start, end)
        if sample is None:
            labelled.append(text[start:end])
            continue
        if sample[0].endswith("{"):
            opened = f"{sample[1]}{{{label},"
        else:
            opened = f"{sample[1]}{{{label}}} "
        labelled.append(opened + text[sample.end() : end])
    return "".join(f"{line}\n" for line in labelled)


def _braces(labels: Labels, values: Labels) -> str:
    if not labels:
        return ""
    pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)]
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "+Inf" if value > 0 else "-Inf"
    if value == int(value):
        return str(int(value))
    return repr(value)
