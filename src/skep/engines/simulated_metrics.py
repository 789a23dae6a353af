"""The counters of a simulated engine under vLLM's names, in Prometheus' text form."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
            80.0, 160.0, 640.0)  # fmt: skip
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class Histogram:
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


class Meters:
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
        self.ttft = Histogram(_SECONDS)
        self.between = Histogram(_BETWEEN)
        self.per_token = Histogram(_BETWEEN)
        self.queue = Histogram(_SECONDS)
        self.prefill = Histogram(_SECONDS)
        self.decode = Histogram(_SECONDS)
        self.total = Histogram(_SECONDS)

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

    def _histograms(self) -> dict[str, Histogram]:
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
