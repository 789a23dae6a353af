"""Counters and histograms of the gateway. docs/metrics.md has a heading for each."""

from __future__ import annotations

from skep.wire.prometheus import Counter, Gauge, Histogram, Metric, metrics_text

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)


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

    def all(self) -> tuple[Metric, ...]:
        return tuple(vars(self).values())

    def text(self) -> bytes:
        return metrics_text(self.all())
