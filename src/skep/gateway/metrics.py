"""Counters and histograms of the gateway in Prometheus' text form. docs/metrics.md has a heading for each.

Written by hand because every request passes here: a label set is one dictionary lookup, an observation one bisection.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)
LABEL_SETS = 2000  # of one metric: names that clients choose must not fill the memory
OTHER = "other"

Labels = tuple[str, ...]

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?=.*\})| (?=\S))", re.MULTILINE)
_COMMENT = re.compile(r"^(?:#.*)?\n", re.MULTILINE)


class Counter:
    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: Labels) -> None:
        self.name, self.help, self.labels = name, help_text, labels
        self._values: dict[Labels, float] = {}

    def add(self, values: Labels, amount: float = 1) -> None:
        if values not in self._values and len(self._values) >= LABEL_SETS:
            values = (OTHER,) * len(values)
        self._values[values] = self._values.get(values, 0) + amount

    def by(self, label: str) -> dict[str, float]:
        """Summed over all other labels."""
        place, sums = self.labels.index(label), dict[str, float]()
        for values, value in self._values.items():
            sums[values[place]] = sums.get(values[place], 0) + value
        return sums

    def lines(self) -> Iterable[str]:
        for values, value in self._values.items():
            yield f"{self.name}{_braces(self.labels, values)} {_number(value)}"


class Histogram:
    kind = "histogram"

    def __init__(self, name: str, help_text: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.name, self.help, self.labels = name, help_text, labels
        self._bounds = tuple(bounds)
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}  # counts per bucket; [sum]

    def observe(self, values: Labels, value: float) -> None:
        series = self._series.get(values)
        if series is None:
            if len(self._series) >= LABEL_SETS:
                values = (OTHER,) * len(values)
            series = self._series.setdefault(values, ([0] * (len(self._bounds) + 1), [0.0]))
        series[0][bisect_left(self._bounds, value)] += 1
        series[1][0] += value

    def lines(self) -> Iterable[str]:
        bounds = [*(_number(bound) for bound in self._bounds), "+Inf"]
        for values, (counts, (total,)) in self._series.items():
            running = list(accumulate(counts))
            for bound, count in zip(bounds, running, strict=True):
                yield f"{self.name}_bucket{_braces((*self.labels, 'le'), (*values, bound))} {count}"
            braces = _braces(self.labels, values)
            yield f"{self.name}_sum{braces} {_number(total)}"
            yield f"{self.name}_count{braces} {running[-1]}"


class Gauge:
    """Read when asked for: `set_all` replaces every value."""

    kind = "gauge"

    def __init__(self, name: str, help_text: str, labels: Labels) -> None:
        self.name, self.help, self.labels = name, help_text, labels
        self._values: dict[Labels, float] = {}

    def set_all(self, values: dict[Labels, float]) -> None:
        self._values = values

    def lines(self) -> Iterable[str]:
        for values, value in self._values.items():
            yield f"{self.name}{_braces(self.labels, values)} {_number(value)}"


class Metrics:
    def __init__(self) -> None:
        by_class = ("model", "class")
        by_replica = ("model", "class", "replica")
        self.requests = Counter(
            "skep_requests_total", "Requests that ended, by how.", (*by_class, "replica", "outcome", "status", "code")
        )
        self.retries = Counter("skep_retries_total", "Requests sent again, to this replica.", ("model", "replica"))
        self.queue_wait = Histogram("skep_queue_wait_seconds", "Arrival to slot.", by_class, SECONDS)
        self.ttft = Histogram("skep_ttft_seconds", "Arrival to the answer's first body byte.", by_replica, SECONDS)
        self.duration = Histogram("skep_request_seconds", "Arrival to the answer's end.", by_replica, SECONDS)
        self.prompt_tokens = Counter("skep_prompt_tokens_total", "Prompt tokens of answers that said so.", by_replica)
        self.cached_tokens = Counter("skep_cached_tokens_total", "Of these, taken from a prefix cache.", by_replica)
        self.output_tokens = Counter("skep_output_tokens_total", "Output tokens of answers that said so.", by_replica)
        self.counted_tokens = Counter(
            "skep_output_tokens_counted_total", "Stream events of answers that did not say their tokens.", by_replica
        )
        self.token_rate = Histogram(
            "skep_output_tokens_per_second", "Of one streamed answer, after its first byte.", by_replica, RATES
        )
        self.unknown_tokens = Counter("skep_answers_without_usage_total", "Answers that named no tokens.", by_replica)
        self.loads = Counter("skep_model_loads_total", "Models loaded on demand, or not.", ("model", "outcome"))
        self.slots = Gauge("skep_slots", "Sequences a replica decodes at a time.", ("model", "replica"))
        self.busy = Gauge("skep_slots_busy", "Slots taken.", ("model", "replica", "state"))
        self.up = Gauge("skep_replica_up", "1: gets requests; 0: broken or draining.", ("model", "replica", "state"))
        self.queued = Gauge("skep_queue_length", "Requests that wait.", by_class)
        self.connections = Gauge("skep_client_connections", "Open client connections.", ())
        self.lost_rows = Gauge("skep_rows_lost", "Request rows that could not be kept.", ("why",))
        self.build = Gauge("skep_build_info", "1, with the version.", ("version",))

    def all(self) -> tuple[Counter | Histogram | Gauge, ...]:
        return tuple(vars(self).values())

    def text(self) -> bytes:
        lines = []
        for metric in self.all():
            lines.append(f"# HELP {metric.name} {metric.help}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines.extend(metric.lines())
        return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def label_samples(text: str, replica: str) -> str:
    """An engine's samples, each with one label more. Descriptions are left out: those of all replicas are the same."""
    label = f'replica="{_escaped(replica)}"'

    def labelled(sample: re.Match[str]) -> str:
        return f"{sample[1]}{{{label}," if sample[0].endswith("{") else f"{sample[1]}{{{label}}} "

    return _SAMPLE.sub(labelled, _COMMENT.sub("", text if text.endswith("\n") else f"{text}\n"))


def _braces(labels: Labels, values: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
