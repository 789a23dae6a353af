"""The frozen values of watching over time: targets, probes, samples, series, events, alerts.

`None` means unknown, never zero. Times are unix seconds. A *probe* is one occasion at one target;
it brings *samples*, one for each run of it. A *series* is one figure of one kind of run of one
target over time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from skep.store.rows import JOINED, Count, Figure, StoredAs, finite

PROBES_FLOW = "skep-monitor"  # what a probe calls itself at skep's gateway
# The error kind of a target that answers and has no room: neither a figure nor an outage.
BUSY = "busy"
HOUR_S = 3600.0
DAY_S = 86400.0


class Heat(StrEnum):
    """COLD: the first request after a pause, which is kept too."""

    COLD = "cold"
    HOT = "hot"


class ProbeShape(StrEnum):
    SHORT = "short"
    LONG = "long"


class SeriesMetric(StrEnum):
    TOK_S = "tok_s"  # of one stream, after its first token, on the client's clock
    ENGINE_TOK_S = "engine_tok_s"  # the same as the engine reports it
    EFFECTIVE_TOK_S = "effective_tok_s"  # all output tokens of the run over its wall time
    TTFT_MS = "ttft_ms"

    @property
    def more_is_better(self) -> bool:
        return self is not SeriesMetric.TTFT_MS

    @property
    def unit(self) -> str:
        if self is SeriesMetric.TTFT_MS:
            return "ms"
        return "tok/s"


class SeriesKey(msgspec.Struct, frozen=True, order=True):
    """`str(key)` is its name everywhere: `box/hot/short/c1/tok_s`.

    A target's name has no slash.
    """

    target: str
    heat: Heat
    shape: ProbeShape
    concurrency: int
    metric: SeriesMetric

    @property
    def kind(self) -> str:
        """Return the part that is the same for all targets: `hot/short/c1/tok_s`."""
        return f"{self.heat}/{self.shape}/c{self.concurrency}/{self.metric}"

    def __str__(self) -> str:
        return f"{self.target}/{self.kind}"

    @classmethod
    def parse(cls, name: str) -> SeriesKey:
        """Return the key of this name. Raise ValueError for what is no name of a series."""
        target, heat, shape, streams, metric = name.rsplit("/", 4)
        if not streams.startswith("c") or not streams[1:].isdecimal():
            raise ValueError(name)
        return cls(target, Heat(heat), ProbeShape(shape), int(streams[1:]), SeriesMetric(metric))


class TargetKind(StrEnum):
    REPLICA = "replica"  # an engine of this machine
    GATEWAY = "gateway"  # skep's own
    ENDPOINT = "endpoint"  # somebody else's server, near or far


class ProbeTarget(msgspec.Struct, frozen=True):
    """What is probed, how and how often.

    No key is stored: `key_env` names the variable that holds it.
    """

    name: str
    url: str
    model: str | None = None  # None: the only one it serves
    kind: TargetKind = TargetKind.ENDPOINT
    key_env: str | None = None
    api: str = "openai"  # or "ollama"
    every_s: float = HOUR_S
    prompt_tokens: int = 256
    short_tokens: int = 64  # of output
    long_tokens: int = 512  # 0: no long run
    concurrency: int = 0  # a run with so many streams at once beside the single one; 0: none
    timeout_s: float = 300.0  # of one request
    # Alert when the recent median is so much worse; None: as configured.
    slower_pct: float | None = None
    ttft_ms: float | None = None  # alert when TTFT is over it; None: as configured
    added_at: float = 0.0
    removed_at: float | None = None

    @property
    def jitter_s(self) -> float:
        """Return by how much a probe may come late at most, so that targets do not collide."""
        return 0.1 * self.every_s


class ProbeOutcome(StrEnum):
    DONE = "done"
    FAILED = "failed"  # it was tried: nothing answered, or something that is no answer
    MISSED = "missed"  # it was not tried: sleep, crash, switched off. Never made up later


class Probe(msgspec.Struct, frozen=True):
    """One occasion. `slot` counts a target's intervals since 1970; `era` counts how often the
    clock was set back. A gap of missed occasions is one row: from `slot` to `slot + slots - 1`."""

    target: str
    era: int
    slot: int
    due_at: float
    ended_at: float  # of a missed one: when it was found to be missed
    outcome: ProbeOutcome
    started_at: float | None = None
    slots: int = 1
    # "connect", "timeout", "auth", "not_json", "http", "no_model", "no_usage", ...
    error_kind: str | None = None
    error: str | None = None
    running: Count = None  # requests of others at the target when the probe began
    waiting: Count = None
    model: str | None = None
    versions: Mapping[str, str] = {}  # "driver", "cuda", "engine", "build", "model", "skep"
    host: Mapping[str, Any] = {}  # of a local target: watts, clocks, heat, throttling
    simulated: bool = False
    id: int | None = None  # None: not stored yet

    @property
    def busy(self) -> bool:
        """Return whether others used the target: then no figure of this probe is a regression."""
        return bool(self.running or self.waiting)

    def host_number(self, name: str) -> float | None:
        value = self.host.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return None

    def document(self) -> dict[str, Any]:
        left_out = ("era", "slot", "slots", "due_at", "id")
        fields = {
            name: value
            for name, value in msgspec.to_builtins(self).items()
            if name not in left_out
        }
        return {**fields, "busy": self.busy}


class ProbeSample(msgspec.Struct, frozen=True):
    """One run of a probe.

    With several streams at once, figures of a stream are medians over them.
    """

    at: float  # when it began
    heat: Heat
    shape: ProbeShape
    concurrency: int
    tok_s: Figure = None
    engine_tok_s: Figure = None
    effective_tok_s: Figure = None
    ttft_ms: Figure = None
    prompt_tokens: Count = None
    output_tokens: Count = None
    error_kind: str | None = None  # None: every stream of it succeeded
    error: str | None = None
    id: int | None = None
    probe_id: int | None = None

    def value(self, metric: SeriesMetric) -> float | None:
        figure = getattr(self, str(metric), None)
        return None if figure is None else float(figure)

    def document(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in msgspec.to_builtins(self).items()
            if name not in ("id", "probe_id")
        }


class SeriesPoint(msgspec.Struct, frozen=True):
    """One value of a series."""

    at: float
    value: float
    busy: bool = False
    probe_id: int | None = None


class SpanKind(StrEnum):
    HOUR = "hour"
    DAY = "day"  # of UTC

    @property
    def seconds(self) -> float:
        if self is SpanKind.HOUR:
            return HOUR_S
        return DAY_S


class SeriesSpan(msgspec.Struct, frozen=True):
    """What a series did in an hour or a day, kept up to date as samples come.

    Busy samples are only counted.
    """

    start: float
    count: int
    low: float
    p10: float
    median: float
    p90: float
    high: float
    mean: float
    mad: float
    busy: int = 0  # samples left out


class EventKind(StrEnum):
    NOTE = "note"  # written by a user
    VERSION = "version"  # of driver, engine or model: seen to have changed between two probes
    RESTART = "restart"  # the target began anew
    DOWN = "down"
    UP = "up"
    CLOCK = "clock"  # the machine's clock was set back
    MONITOR = "monitor"  # the loop began, or was away


class MonitorEvent(msgspec.Struct, frozen=True):
    at: float
    kind: EventKind
    text: str
    target: str | None = None  # None: of all
    detail: Mapping[str, Any] = {}  # of a version: {"what": "driver", "from": ..., "to": ...}
    id: int | None = None


class SeriesChange(msgspec.Struct, frozen=True):
    """A series that went from one level to another. `ratio` is after over before."""

    key: Annotated[SeriesKey, JOINED]
    at: float  # of the first sample after it
    between: Annotated[tuple[float, float], JOINED]  # the change lies in here, with 95 %
    before: Annotated[float, StoredAs("median_before")]  # medians
    after: Annotated[float, StoredAs("median_after")]
    ratio_low: float
    ratio_high: float
    count_before: int
    count_after: int
    because: str | None = None  # the event that lies nearest inside `between`, in words

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def worse(self) -> bool:
        return (self.ratio < 1) is self.key.metric.more_is_better

    def document(self) -> dict[str, Any]:
        derived = {
            "series": str(self.key),
            "key": str(self.key),
            "ratio": self.ratio,
            "worse": self.worse,
        }
        return {**msgspec.to_builtins(self), **derived}


class AlertRule(StrEnum):
    DOWN = "down"
    SLOWER = "slower"
    TTFT = "ttft"
    QUALITY = "quality"  # of an earlier skep
    DISK = "disk"
    SHIFT = "shift"  # a change point for the worse


class Alert(msgspec.Struct, frozen=True):
    """Something that is wrong, from when it was found to when it was right again."""

    rule: AlertRule
    target: str | None  # None: of the machine itself
    opened_at: float
    message: str
    value: Figure = None
    limit: Annotated[float | None, StoredAs("limit_value", write=finite)] = None
    closed_at: Annotated[float | None, JOINED] = None  # None: it still is
    closed_because: Annotated[str | None, StoredAs("because", joined=True)] = None
    id: int | None = None
