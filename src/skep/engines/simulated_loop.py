"""The passes of a simulated replica, one after the other in real time. `skep.planner.batching` decides what is in them.

Each pass ends at a moment reckoned from the end of the last one, not from when the timer rang: errors do not add up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from skep.planner.batching import BatchPass, Sequence, SimulatedReplica

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
            80.0, 160.0, 640.0)  # fmt: skip
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class SimulatedHistogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str, label: str) -> list[str]:
        running = list(accumulate(self._counts))
        bounds = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        found = [f'{name}_bucket{{{label},le="{le}"}} {count}' for le, count in zip(bounds, running, strict=True)]
        return [*found, f"{name}_sum{{{label}}} {self._sum!r}", f"{name}_count{{{label}}} {running[-1]}"]


class SimulatedMetrics:
    """What has happened since the start. Counters go up as it happens, request figures when a request ends."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.drafts = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0.0
        self.ended = {"stop": 0, "length": 0, "abort": 0}
        self.passes = 0
        self.behind_s = 0.0
        self.ttft = SimulatedHistogram(_SECONDS)
        self.between = SimulatedHistogram(_BETWEEN)
        self.per_token = SimulatedHistogram(_BETWEEN)
        self.queue = SimulatedHistogram(_SECONDS)
        self.prefill = SimulatedHistogram(_SECONDS)
        self.decode = SimulatedHistogram(_SECONDS)
        self.total = SimulatedHistogram(_SECONDS)

    def text(self, model: str, gauges: dict[str, float]) -> bytes:
        """`gauges`: what holds at this moment, by vLLM's name without its prefix."""
        label = f'model_name="{_escaped(model)}",engine="0"'
        lines = [
            "# HELP skep_simulated These figures are a prediction: no model runs here.",
            "# TYPE skep_simulated gauge",
        ]
        lines.append("skep_simulated 1")
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{label}}} {value:g}"]
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
        for name, count in counters.items():
            lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}{{{label}}} {count}"]
        lines.append("# TYPE vllm:request_success_total counter")
        lines += [f'vllm:request_success_total{{{label},finished_reason="{why}"}} {n}' for why, n in self.ended.items()]
        for name, histogram in self._histograms().items():
            lines += [f"# TYPE vllm:{name} histogram", *histogram.lines(f"vllm:{name}", label)]
        lines += ["# TYPE skep_simulated_passes_total counter", f"skep_simulated_passes_total {self.passes}"]
        lines += [
            "# TYPE skep_simulated_behind_seconds_total counter",
            f"skep_simulated_behind_seconds_total {self.behind_s:.6f}",
        ]
        return ("\n".join(lines) + "\n").encode()

    def _histograms(self) -> dict[str, SimulatedHistogram]:
        return {
            "time_to_first_token_seconds": self.ttft,
            "time_per_output_token_seconds": self.between,
            "inter_token_latency_seconds": self.between,
            "request_time_per_output_token_seconds": self.per_token,
            "request_queue_time_seconds": self.queue,
            "request_prefill_time_seconds": self.prefill,
            "request_decode_time_seconds": self.decode,
            "e2e_request_latency_seconds": self.total,
        }


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
        self.meters.ttft.observe(at - work.sent_s)
        self._give(work, 1)

    def _more(self, work: SimulatedRequest, at: float, made: int) -> None:
        count = made - work.made
        if count <= 0:
            return
        self.meters.between.observe((at - work.last_s) / count, count)
        work.last_s = at
        self._give(work, count)

    def _give(self, work: SimulatedRequest, count: int) -> None:
        work.made += count
        self.meters.output_tokens += count
        work.gain(count)

    def _close(self, work: SimulatedRequest, at: float) -> None:
        meters = self.meters
        first, let_in = work.first_s or at, work.let_in_s or at
        meters.queue.observe(let_in - work.sent_s)
        meters.prefill.observe(first - let_in)
        meters.decode.observe(at - first)
        meters.total.observe(at - work.sent_s)
        if work.total > 1:
            meters.per_token.observe((at - first) / (work.total - 1))
        work.end()
