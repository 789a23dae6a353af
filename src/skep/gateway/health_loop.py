"""The gateway's clock: deadlines, health checks, and asking engines about slots in release."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from skep.config.gateway_messages import HealthTimes, ReplicaSpec
from skep.gateway.proxy import Proxy
from skep.gateway.replica_table import GatewayReplica
from skep.wire.client import WireFailure
from skep.wire.fetch import HttpResponse, fetch
from skep.wire.prometheus import parse_metrics

TICK_S = 0.25
CONFIRM_EVERY_S = 0.1
CONFIRM_TIMEOUT_S = 5.0

_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")

Ask = Callable[[ReplicaSpec], Coroutine[Any, Any, None]]


class HealthLoop:
    """`run` goes on until cancelled."""

    def __init__(self, proxy: Proxy, times: HealthTimes | None = None) -> None:
        self._proxy = proxy
        self._times = times or HealthTimes()
        self._checked_at: dict[str, float] = {}  # by URL: a new process behind an old name is checked at once
        self._asking: set[tuple[str, str]] = set()

    async def run(self) -> None:
        proxy, admission = self._proxy, self._proxy.admission
        async with asyncio.TaskGroup() as tasks:
            while True:
                now = time.monotonic()
                self._tick(now)
                to_confirm = admission.to_confirm()
                for spec in to_confirm:
                    self._once(tasks, self._ask_busy, spec)
                for replica in admission.replicas():
                    if self._check_is_due(replica, now):
                        self._once(tasks, self._check, replica.spec)
                proxy.something_left.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CONFIRM_EVERY_S if to_confirm else TICK_S):
                        await proxy.something_left.wait()

    def _tick(self, now: float) -> None:
        """What one request does to one of these must not stop the clock for all."""
        proxy = self._proxy
        try:
            for exchange in list(proxy.exchanges.values()):
                if exchange.aloud:
                    exchange.send_keepalive(now)
                if exchange.granted is not None:
                    if exchange.heard_at > exchange.granted_at:
                        proxy.admission.heard(exchange.granted.replica, exchange.heard_at)
                    exchange.check_time(now)
            proxy.retire_unused_pools()
            proxy.accounts.settle()
        except Exception as error:
            print(f"watch.failed why={error!r}", file=sys.stderr)  # noqa: T201 - the gateway's log
        proxy.carry_out(proxy.admission.tick(now))

    def _check_is_due(self, replica: GatewayReplica, now: float) -> bool:
        closed = replica.breaker.state(now) == "closed"
        every_s = self._times.health_every_s if closed else self._times.health_soon_s
        if now - self._checked_at.get(replica.spec.url, float("-inf")) < every_s:
            return False
        if len(self._checked_at) > 4 * len(self._proxy.admission.replicas()):
            self._checked_at.clear()
        self._checked_at[replica.spec.url] = now
        return True

    def _once(self, tasks: asyncio.TaskGroup, ask: Ask, spec: ReplicaSpec) -> None:
        """Not again while the last one is under way."""
        what = (ask.__name__, spec.url)

        async def ask_safely() -> None:
            try:
                await ask(spec)
            except Exception as error:  # whatever one replica says, the clock goes on for the others
                print(f"watch.failed replica={spec.name!r} why={error!r}", file=sys.stderr)  # noqa: T201 - the gateway's log
            finally:
                self._asking.discard(what)

        if what not in self._asking:
            self._asking.add(what)
            tasks.create_task(ask_safely())

    async def _get(self, spec: ReplicaSpec, path: str, timeout_s: float = CONFIRM_TIMEOUT_S) -> HttpResponse | None:
        """None: it does not answer."""
        headers = {"authorization": spec.authorization} if spec.authorization else {}
        try:
            return await fetch(self._proxy.pool(spec), "GET", path, headers=headers, timeout_s=timeout_s)
        except WireFailure:
            return None

    async def _ask_busy(self, spec: ReplicaSpec) -> None:
        asked_at = time.monotonic()
        if (answer := await self._get(spec, "/slots" if spec.confirms == "slots" else "/metrics")) is None:
            return
        busy = count_busy(answer.json()) if spec.confirms == "slots" else count_running(answer.body)
        if busy is not None:
            self._proxy.carry_out(self._proxy.admission.engine_busy(spec, busy, asked_at, time.monotonic()))

    async def engine_metrics(self, spec: ReplicaSpec) -> str:
        """Empty where it tells none."""
        answer = await self._get(spec, "/metrics")
        return answer.body.decode("utf-8", "replace") if answer is not None and answer.status == 200 else ""

    async def _check(self, spec: ReplicaSpec) -> None:
        answer = await self._get(spec, spec.health_path, self._times.health_timeout_s)
        ok = answer is not None and answer.status < 500
        self._proxy.carry_out(self._proxy.admission.checked(spec, ok, time.monotonic()))


def count_busy(slots: Any) -> int | None:
    """llama.cpp's `/slots`: how many are processing. None where the answer is something else."""
    if not isinstance(slots, list):
        return None
    return sum(1 for slot in slots if isinstance(slot, dict) and slot.get("is_processing"))


def count_running(metrics: bytes) -> int | None:
    """vLLM's and SGLang's count of running requests, over all their processes."""
    told = parse_metrics(metrics.decode("utf-8", "replace"))
    found = [told[name] for name in _RUNNING if name in told]
    return round(sum(found)) if found and math.isfinite(sum(found)) else None
