"""The gateway's clock: deadlines, health checks, and asking engines about slots in release.

Knows what engines answer about themselves, and nothing of clients."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from skep.catalog.engines import engine_kinds
from skep.config.gateway_messages import HealthTimes, ReplicaSpec
from skep.gateway.proxy import TICK_S, Proxy
from skep.wire.client import WireFailure, fetch
from skep.wire.engine_state import fetch_state
from skep.wire.prometheus import count_busy, label_samples, parse_metrics

T = TypeVar("T")
CONFIRM_EVERY_S = 0.1
CONFIRM_TIMEOUT_S = 5.0


Ask = Callable[[ReplicaSpec], Coroutine[Any, Any, None]]


class HealthLoop:
    """`run` goes on until cancelled."""

    def __init__(self, proxy: Proxy, times: HealthTimes | None = None) -> None:
        self._proxy = proxy
        self._times = times or HealthTimes()
        self._asking: set[tuple[str, str]] = set()
        # URLs and paths whose last answer could not be read.
        self._unreadable: set[tuple[str, str]] = set()

    async def run(self) -> None:
        proxy = self._proxy
        admission = self._proxy.admission
        async with asyncio.TaskGroup() as tasks:
            while True:
                await proxy.tick()
                now = time.monotonic()
                proxy.carry_out(admission.tick(now))
                to_confirm = admission.to_confirm()
                for spec in to_confirm:
                    self._once(tasks, self._ask_busy, spec)
                for replica in admission.replicas():
                    closed = replica.breaker.state(now) == "closed"
                    if closed:
                        every_s = self._times.health_every_s
                    else:
                        every_s = self._times.health_soon_s
                    if now - replica.breaker.checked_at >= every_s:
                        replica.breaker.checked_at = now
                        self._once(tasks, self._check, replica.spec)
                proxy.slots_in_release.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CONFIRM_EVERY_S if to_confirm else TICK_S):
                        await proxy.slots_in_release.wait()

    def _once(self, tasks: asyncio.TaskGroup, ask: Ask, spec: ReplicaSpec) -> None:
        """Ask a replica, but not while the same question to it is under way."""
        question = (ask.__name__, spec.url)

        async def ask_safely() -> None:
            try:
                await ask(spec)
            except Exception as error:  # whatever one replica says, the others are asked on
                print(  # noqa: T201 - the gateway's log
                    f"watch.failed replica={spec.name!r} why={error!r}", file=sys.stderr
                )
            finally:
                self._asking.discard(question)

        if question not in self._asking:
            self._asking.add(question)
            tasks.create_task(ask_safely())

    async def _state(self, spec: ReplicaSpec, path: str, parse: Callable[[str], T]) -> T | None:
        """Return what the replica says of itself there; None: nothing that can be read."""
        pool = self._proxy.pool(spec)
        headers = _headers_for(spec)
        try:
            state = await fetch_state(
                pool, path, parse, headers=headers, timeout_s=CONFIRM_TIMEOUT_S
            )
        except WireFailure as failure:
            self._note_unreadable(spec, path, failure)
            return None
        self._unreadable.discard((spec.url, path))
        return state

    def _note_unreadable(self, spec: ReplicaSpec, path: str, failure: WireFailure) -> None:
        """Write why an answer could not be read to the log: once, until one can be read again."""
        if failure.kind != "protocol" or (spec.url, path) in self._unreadable:
            return
        self._unreadable.add((spec.url, path))
        print(  # noqa: T201 - the gateway's log
            f"state.unreadable replica={spec.name!r} path={path} why={str(failure)!r}",
            file=sys.stderr,
        )

    async def _ask_busy(self, spec: ReplicaSpec) -> None:
        asked_at = time.monotonic()
        if spec.confirms == "slots":
            busy = await self._state(spec, "/slots", count_busy)
        else:
            busy = await self._state(spec, "/metrics", count_running)
        if busy is not None:
            self._proxy.carry_out(
                self._proxy.admission.engine_busy(spec, busy, asked_at, time.monotonic())
            )

    async def engine_metrics(self, spec: ReplicaSpec) -> str:
        """Return the samples of a replica's engine, each with the replica's name; "": none."""
        samples = await self._state(spec, "/metrics", lambda text: label_samples(text, spec.name))
        return samples or ""

    async def _check(self, spec: ReplicaSpec) -> None:
        pool = self._proxy.pool(spec)
        timeout_s = self._times.health_timeout_s
        try:
            answer = await fetch(
                pool, "GET", spec.health_path, headers=_headers_for(spec), timeout_s=timeout_s
            )
            ok = answer.status < 500
        except WireFailure:
            ok = False
        self._proxy.carry_out(self._proxy.admission.checked(spec, ok, time.monotonic()))


def _headers_for(spec: ReplicaSpec) -> dict[str, str]:
    if spec.authorization:
        return {"authorization": spec.authorization}
    return {}


def count_running(metrics: str) -> int | None:
    """Return vLLM's or SGLang's count of running requests, over all their processes."""
    samples = parse_metrics(metrics)
    names = (kind.running_metric for kind in engine_kinds().values())
    counts = [samples[name] for name in names if name in samples]
    if counts and math.isfinite(sum(counts)):
        return round(sum(counts))
    return None
