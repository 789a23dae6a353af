"""The passes of a simulated replica, one after the other in real time. `skep.planner.predict` decides what is in them.

Each pass ends at a moment reckoned from the end of the last one, not from when the timer rang: errors do not add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from skep.planner.predict import BatchPass, Sequence, SimulatedReplica
from skep.wire.prometheus import Counter, Gauge, Histogram, Labels, Metric, metrics_text

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
            80.0, 160.0, 640.0)  # fmt: skip
_OF_MODEL = ("model_name", "engine")
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class SimulatedMetrics:
    """What has happened since the start. Counters go up as it happens, request figures when a request ends."""

    def __init__(self, model: str = "") -> None:
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.drafts = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0.0
        self.ended = {"stop": 0, "length": 0, "abort": 0}
        self.passes = 0
        self.behind_s = 0.0
        self.labels = (model, "0")
        self.ttft = self._histogram("time_to_first_token_seconds", _SECONDS)
        self.between = self._histogram("time_per_output_token_seconds", _BETWEEN)
        self.per_token = self._histogram("request_time_per_output_token_seconds", _BETWEEN)
        self.queue = self._histogram("request_queue_time_seconds", _SECONDS)
        self.prefill = self._histogram("request_prefill_time_seconds", _SECONDS)
        self.decode = self._histogram("request_decode_time_seconds", _SECONDS)
        self.total = self._histogram("e2e_request_latency_seconds", _SECONDS)

    def observe(self, histogram: Histogram, value: float, times: int = 1) -> None:
        histogram.observe(self.labels, value, times)

    def text(self, gauges: dict[str, float]) -> bytes:
        """`gauges`: what holds at this moment, by vLLM's name without its prefix."""
        counters = {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.output_tokens,
            "num_preemptions_total": 0,
            "prefix_cache_queries_total": 0,
            "prefix_cache_hits_total": 0,
        }
        if self.drafts:
            counters["spec_decode_num_drafts_total"] = self.drafts
            counters["spec_decode_num_draft_tokens_total"] = self.drafted_tokens
            counters["spec_decode_num_accepted_tokens_total"] = round(self.accepted_tokens)
        ended: dict[Labels, float] = {(*self.labels, why): count for why, count in self.ended.items()}
        found: list[Metric] = [
            Gauge("skep_simulated", "These figures are a prediction: no model runs here.", (), {(): 1}),
            *(Gauge(f"vllm:{name}", "", _OF_MODEL, {self.labels: value}) for name, value in gauges.items()),
            *(Counter(f"vllm:{name}", "", _OF_MODEL, {self.labels: count}) for name, count in counters.items()),
            Counter("vllm:request_success_total", "", (*_OF_MODEL, "finished_reason"), ended),
            *(self.ttft, self.between, self.between.renamed("vllm:inter_token_latency_seconds"), self.per_token),
            *(self.queue, self.prefill, self.decode, self.total),
            Counter("skep_simulated_passes_total", "", (), {(): self.passes}),
            Counter("skep_simulated_behind_seconds_total", "", (), {(): round(self.behind_s, 6)}),
        ]
        return metrics_text(found)

    def _histogram(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        found = Histogram(f"vllm:{name}", "", _OF_MODEL, bounds)
        found.observe(self.labels, 0.0, times=0)  # it is there from the beginning, as vLLM's is
        return found


TOO_LATE_S = 0.5  # behind by more, the time is lost and not made up: the machine slept, or is too slow for this rig


class Timer(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> object: ...


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request inside. `gain` is called with tokens that have come, `end` once after the last of them."""

    sequence: Sequence
    total: int
    gain: Callable[[int], None]
    end: Callable[[], None]
    sent_s: float
    let_in_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0
    made: int = 0
    base: float = 0.0  # the clockwork's count when its first token came


class SimulatedLoop:
    """All times are the loop's, or those the passes should have ended at."""

    def __init__(self, replica: SimulatedReplica, meters: SimulatedMetrics, loop: Timer) -> None:
        self.replica = replica
        self.meters = meters
        self._loop = loop
        self._timer: object | None = None  # None: nothing to do
        self._works: dict[int, SimulatedRequest] = {}
        self._decoding: dict[int, SimulatedRequest] = {}
        self._gained = 0.0
        self._numbers = 0

    def __repr__(self) -> str:
        replica = self.replica
        return f"<SimulatedLoop {replica.running}/{replica.slots} running, {len(replica.waiting)} waiting>"

    def submit(self, prompt: int, total: int, gain: Callable[[int], None], end: Callable[[], None]) -> SimulatedRequest:
        self._numbers += 1
        sequence = Sequence(self._numbers, float(prompt), float(total))
        work = SimulatedRequest(sequence, total, gain, end, self._loop.time())
        self._works[sequence.id] = work
        self.replica.submit(sequence)
        if self._timer is None:
            self._begin(self._loop.time())
        return work

    def cancel(self, work: SimulatedRequest) -> None:
        """The client left: its slot is free for the next pass. One that has ended is ignored."""
        if self._works.pop(work.sequence.id, None) is None:
            return
        self._decoding.pop(work.sequence.id, None)
        self.replica.cancel(work.sequence)
        self.meters.ended["abort"] += 1

    def _begin(self, at: float) -> None:
        following = self.replica.next_pass(at_most=1)
        if following is None:
            self._timer = None
            return
        for sequence, _ in following.pieces:
            work = self._works[sequence.id]
            if work.let_in_s is None:
                work.let_in_s = at
        ends = at + following.seconds
        self._timer = self._loop.call_at(ends, self._finish, following, ends)

    def _finish(self, done: BatchPass, at: float) -> None:
        progress = self.replica.finish(done)
        self._count(done)
        now = self._loop.time()
        if now - at > TOO_LATE_S:
            self.meters.behind_s += now - at
            at = now
        decoding = tuple(self._decoding.values())
        for sequence in progress.started:
            work = self._works[sequence.id]
            work.base = self._gained
            self._decoding[sequence.id] = work
        ended = [self._works.pop(sequence.id) for sequence in progress.ended if sequence.id in self._works]
        for work in ended:
            self._decoding.pop(work.sequence.id, None)
        self._begin(at)  # the next pass does not wait for the writing
        last = {work.sequence.id: work for work in ended}
        for sequence in progress.started:
            started = self._works.get(sequence.id) or last.get(sequence.id)
            if started is not None:  # its client may have left while the others were written to
                self._first(started, at)
        for work in decoding:
            if work.sequence.id in last:
                self._more(work, at, work.total)
            elif work.sequence.id in self._works:
                self._more(work, at, min(work.total, 1 + int(self._gained - work.base + 1e-6)))
        for work in ended:
            self._close(work, at)

    def _count(self, done: BatchPass) -> None:
        meters = self.meters
        meters.passes += 1
        if not done.decoding:
            return
        self._gained += done.tokens_each * done.steps
        depth = self.replica.step.depth
        if depth:
            meters.drafts += done.decoding
            meters.drafted_tokens += depth * done.decoding
            meters.accepted_tokens += (done.tokens_each - 1.0) * done.decoding

    def _first(self, work: SimulatedRequest, at: float) -> None:
        work.first_s = work.last_s = at
        self.meters.prompt_tokens += round(work.sequence.prompt)
        self.meters.observe(self.meters.ttft, at - work.sent_s)
        self._give(work, 1)

    def _more(self, work: SimulatedRequest, at: float, made: int) -> None:
        count = made - work.made
        if count <= 0:
            return
        self.meters.observe(self.meters.between, (at - work.last_s) / count, count)
        work.last_s = at
        self._give(work, count)

    def _give(self, work: SimulatedRequest, count: int) -> None:
        work.made += count
        self.meters.output_tokens += count
        work.gain(count)

    def _close(self, work: SimulatedRequest, at: float) -> None:
        meters = self.meters
        first, let_in = work.first_s or at, work.let_in_s or at
        meters.observe(meters.queue, let_in - work.sent_s)
        meters.observe(meters.prefill, first - let_in)
        meters.observe(meters.decode, at - first)
        meters.observe(meters.total, at - work.sent_s)
        if work.total > 1:
            meters.observe(meters.per_token, (at - first) / (work.total - 1))
        work.end()
