"""A run being written: every request as it ends, what the client and the machine did meanwhile, and how it ended."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from skep import __version__
from skep.bench.endpoint import Endpoint
from skep.catalog.gpus import HostFacts
from skep.host.facts import host_json, lasting_json
from skep.store.database import Store
from skep.store.records import ClientSample, LevelFact, Request, RunState

FLUSH_EVERY_S = 0.5


class Identity(msgspec.Struct, frozen=True):
    """Kind, fingerprint and configuration of a run, known before its first request."""

    kind: str
    fingerprint: str
    config: Mapping[str, Any]


def fingerprint_of(what: Sequence[Any], endpoint: Endpoint, host: HostFacts) -> str:
    """Equal for repeats of `what` on the same model, engine and machine; the endpoint's address may differ."""
    engine = {name: value for name, value in endpoint.engine.items() if name != "model_path"}
    text = json.dumps([*what, endpoint.model, engine, lasting_json(host)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Recording:
    """`async with Recording(...) as recording`: leaving it ends the run, as done or as failed with the reason."""

    def __init__(self, store: Store, endpoint: Endpoint, host: HostFacts, identity: Identity) -> None:
        self.rows: list[Request] = []
        self.facts: list[LevelFact] = []
        self.samples: list[ClientSample] = []
        self.simulated = endpoint.simulated
        self._store = store
        self._unsaved: list[Request] = []
        self._in_hand: list[Request] = []  # being written by a thread
        self._saver: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self.run_id = store.begin_run(
            kind=identity.kind,
            created_at=time.time(),
            model=endpoint.model,
            url=endpoint.url,
            fingerprint=identity.fingerprint,
            config=identity.config,
            host=host_json(host),
            engine=endpoint.engine,
            simulated=endpoint.simulated,
            skep_version=__version__,
        )
        self.origin_s = time.monotonic()

    async def __aenter__(self) -> Self:
        self._saver = asyncio.create_task(self._save_often())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = await self._stop_saving()
        fault = error or failed
        try:
            self.save()
        except Exception as unsaved:
            self._end("failed", str(unsaved))
            raise
        if fault is None:
            self._store.end_run(self.run_id, time.time(), "done")
            return
        inner = fault
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        self._end("failed", RunState.INTERRUPTED.value if isinstance(fault, asyncio.CancelledError) else str(inner))
        if error is None:
            raise fault

    def took(self, row: Request) -> None:
        self.rows.append(row)
        self._unsaved.append(row)

    def sampled(self, sample: ClientSample) -> None:
        self.samples.append(sample)
        self._store.append_client_sample(self.run_id, sample)

    def found(self, fact: LevelFact) -> None:
        self.facts.append(fact)
        self._store.append_level_facts(self.run_id, [fact])

    def save(self) -> None:
        rows, self._unsaved = self._unsaved, []
        self._store.append_requests(self.run_id, rows)

    def check(self) -> None:
        """Raise what keeps rows from being written: a run must not go on unrecorded."""
        if self.broken is not None:
            raise self.broken

    @property
    def broken(self) -> BaseException | None:
        """The error that keeps rows from being written, such as a full disk; None if there is none."""
        saver = self._saver
        return saver.exception() if saver is not None and saver.done() and not saver.cancelled() else None

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            self._in_hand, self._unsaved = self._unsaved, []
            work = asyncio.to_thread(self._store.append_requests, self.run_id, self._in_hand)
            self._writing = asyncio.ensure_future(work)
            await asyncio.shield(self._writing)
            self._in_hand = []

    async def _stop_saving(self) -> BaseException | None:
        """Wait for the thread that writes: after the end of the run its rows would be refused."""
        tasks = [task for task in (self._saver, self._writing) if task is not None]
        if self._saver is not None:
            self._saver.cancel()
        if tasks:
            await asyncio.wait(tasks)
        faults = [task.exception() for task in tasks if not task.cancelled()]
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is not None:  # all of a batch are written or none
            self._unsaved = self._in_hand + self._unsaved
        return fault

    def _end(self, outcome: Any, why: str) -> None:
        """A store that takes no more rows may still take the end; if not, the run stays without one: incomplete."""
        with suppress(Exception):  # the first fault is the one to be told
            self._store.end_run(self.run_id, time.time(), outcome, why)
