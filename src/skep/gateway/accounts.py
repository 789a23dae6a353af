"""What is kept of each request that ended: metrics here, a line and a row through the journal.

Ended exchanges are put aside and settled a few times a second, so that no client waits for bookkeeping.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from skep.gateway.exchange import Exchange
from skep.gateway.keys import Priority
from skep.gateway.metrics import Labels, Metrics
from skep.gateway.usage import Tokens
from skep.gateway.values import Forward
from skep.wire.server import Incoming

NOWHERE = ""  # the replica of a request that reached none
NORMAL = Priority.NORMAL.label
UNKNOWN_MODEL = "unknown"  # in metrics: names that clients made up are no labels
UNSETTLED = 500  # exchanges put aside at most
STRANGERS = frozenset(("invalid_api_key", "origin_refused", "host_refused"))  # what those are told who may not call

Row = tuple[Any, ...]  # in the order of `records.GatewayRequest`


class Accounts:
    """`knows` tells whether a model's name is served here."""

    def __init__(self, metrics: Metrics, keep: Callable[[Row], None], knows: Callable[[str], bool]) -> None:
        self.metrics = metrics
        self._keep = keep
        self._knows = knows
        self._unsettled: list[tuple[Exchange, float]] = []
        self.last_ended: dict[str, float] = {}  # by model: when its last answer ended

    def retried(self, action: Forward) -> None:
        self.metrics.retries.add((action.replica.model, action.replica.name))

    def ended(self, exchange: Exchange, now: float) -> None:
        self._unsettled.append((exchange, now))
        if len(self._unsettled) > UNSETTLED:
            self.settle()

    def settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, []
        wall = time.time() - time.monotonic()
        for exchange, now in unsettled:
            self._settle(exchange, now, wall)
            exchange.forget()

    def refused(self, request_id: str, request: Incoming, path: str, status: int, code: str) -> None:
        """A request that came no further than the border. Strangers' are counted only: rows would fill the disk."""
        self.metrics.requests.add((UNKNOWN_MODEL, NORMAL, NOWHERE, "refused", str(status), code))
        if code in STRANGERS:
            return
        self._keep((
            request_id, time.time(), path, None, NORMAL, None, None, 0, "refused", status, code, False,
            None, None, 0.0, None, None, None, len(request.body), 0,
        ))  # fmt: skip

    def _settle(self, exchange: Exchange, now: float, wall: float) -> None:
        plan, granted = exchange.plan, exchange.granted
        arrived_at = exchange.arrived_at
        total_s = now - arrived_at
        first_s = exchange.first_at - arrived_at if exchange.first_at is not None else None
        queued_s = granted.queued_s if granted is not None else None
        tokens = exchange.tokens()
        replica = granted.replica.name if granted is not None else None
        model = exchange.model if replica is not None or self._knows(exchange.model) else UNKNOWN_MODEL
        labels = (model, plan.label, replica or NOWHERE)
        metrics = self.metrics
        if replica is not None:
            self.last_ended[model] = now
        metrics.requests.add((*labels, exchange.outcome or "", str(exchange.status or ""), exchange.code or ""))
        if queued_s is not None:
            metrics.queue_wait.observe(labels[:2], queued_s)
            metrics.duration.observe(labels, total_s)
        if first_s is not None:
            metrics.ttft.observe(labels, first_s)
            if exchange.leased:
                self._count_tokens(exchange, tokens, labels, total_s - first_s)
        self._keep((
            exchange.id, wall + arrived_at, plan.path, exchange.model, plan.label, plan.flow or None, replica,
            granted.attempt if granted is not None else 0, exchange.outcome, exchange.status, exchange.code,
            exchange.streamed, queued_s, first_s, total_s, tokens.prompt, tokens.cached, tokens.output,
            exchange.request_bytes, exchange.response_bytes,
        ))  # fmt: skip

    def _count_tokens(self, exchange: Exchange, tokens: Tokens, labels: Labels, decode_s: float) -> None:
        metrics = self.metrics
        if tokens.prompt is not None:
            metrics.prompt_tokens.add(labels, tokens.prompt)
        elif tokens.output is None and exchange.outcome == "answered" and exchange.status == 200:
            metrics.unknown_tokens.add(labels)
        if tokens.output is None:
            metrics.counted_tokens.add(labels, exchange.events)
            return
        metrics.output_tokens.add(labels, tokens.output)
        if tokens.cached is not None:
            metrics.cached_tokens.add(labels, tokens.cached)
        if exchange.streamed and tokens.output > 1 and decode_s > 0:
            metrics.token_rate.observe(labels, (tokens.output - 1) / decode_s)
