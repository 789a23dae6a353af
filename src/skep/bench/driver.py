"""Runs one load once: connections ready, the client watched, the engine's counters and the energy read around it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from skep.bench.client_health import LEAST_DELIVERED, ClientHealth, garbage_kept, watch_client
from skep.bench.counters import counted, read_counters
from skep.bench.endpoint import Endpoint
from skep.bench.load_processes import LoadProcesses, Witness
from skep.bench.loads import Load, OnRow
from skep.bench.recording import Recording
from skep.bench.request import Sender, Task
from skep.bench.strands import Span, Strand, carry, dealt
from skep.bench.tokens import delivered
from skep.bench.worker import Job
from skep.store.records import Request
from skep.store.rows import ClientSample, LevelFact
from skep.wire.client import Pool

BUSY = 0.7  # of a core


class Meter(Protocol):
    """What the machine draws. `end` gives the facts since `begin`, or None where nothing was measured."""

    def begin(self) -> None: ...
    def end(self) -> Mapping[str, Any] | None: ...


class Driver:
    def __init__(
        self,
        endpoint: Endpoint,
        recording: Recording,
        *,
        timeout_s: float,
        keep_text: bool,
        most_connections: int,
        processes: int | None = 1,
        meter: Meter | None = None,
        load_processes: LoadProcesses | None = None,
    ) -> None:
        """`processes` None: one, and more for a level at which one was not enough."""
        self.endpoint = endpoint
        self.recording = recording
        self.pool = Pool(endpoint.origin, max_idle=most_connections)
        self.sender = Sender(endpoint, self.pool, recording.origin_s, timeout_s=timeout_s, keep_text=keep_text)
        self._timeout_s = timeout_s
        self._keep_text = keep_text
        self._most_connections = most_connections
        self._load_processes = load_processes or LoadProcesses()
        self._processes = processes or 1
        self._may_grow = processes is None
        self._meter = meter

    async def close(self) -> None:
        await self._load_processes.close()
        await self.pool.close()

    async def run_tasks(
        self,
        level: int,
        repeat: int,
        tasks: Sequence[Task],
        width: int,
        on_row: OnRow,
        offsets: Sequence[float] | None = None,
        until_s: float | None = None,
    ) -> tuple[list[Request], bool]:
        """`width` at once, or each at its offset. The rows, and whether the client was the limit.

        `until_s`: on the run's clock, when no more is begun.
        """
        strand = Strand([*tasks], width, None if offsets is None else [*offsets])
        is_closed = offsets is None
        return await self.run_strands(level, repeat, [strand], on_row, Span(until_s=until_s), is_closed=is_closed)

    async def run_strands(
        self,
        level: int,
        repeat: int,
        strands: Sequence[Strand],
        on_row: OnRow,
        span: Span,
        *,
        is_closed: bool = False,
    ) -> tuple[list[Request], bool]:
        """Traffic that is written down. `is_closed`: its agents have a request all the time."""
        width = sum(strand.width for strand in strands)
        if self._processes > 1:
            spread = self._spread(strands, span)
            return await self._measured(level, repeat, spread, width, on_row, is_closed=is_closed)

        async def load(sender: Sender, took: OnRow) -> None:
            await carry(sender, took, strands, span)

        return await self.run_load(level, repeat, load, width, on_row, is_closed=is_closed)

    async def run_load(
        self, level: int, repeat: int, load: Load, width: int, on_row: OnRow, *, is_closed: bool = True
    ) -> tuple[list[Request], bool]:
        """What cannot be written down, in this process. `is_closed`: `width` are to be in flight all the time."""

        async def here(took: OnRow, draw: _Draw) -> ClientHealth:
            await self.pool.prepare(width)
            with garbage_kept():
                draw.began()
                async with watch_client() as health:
                    await load(self.sender, took)
                draw.ended()
            self.pool.trim()
            return health

        return await self._measured(level, repeat, here, width, on_row, is_closed=is_closed)

    def _spread(self, strands: Sequence[Strand], span: Span) -> _Run:
        jobs = [
            Job(
                self.endpoint,
                hand,
                self.recording.origin_s,
                self._timeout_s,
                self._keep_text,
                span=span,
                most_connections=self._most_connections,
            )
            for hand in dealt(strands, self._processes)
        ]

        async def spread(took: OnRow, draw: _Draw) -> ClientHealth:
            return await self._load_processes.run(jobs, took, draw)

        return spread

    async def _measured(
        self, level: int, repeat: int, run: _Run, width: int, on_row: OnRow, *, is_closed: bool = True
    ) -> tuple[list[Request], bool]:
        rows: list[Request] = []

        def took(row: Request) -> None:
            rows.append(row)
            self.recording.took(row)
            on_row(row)

        before = await read_counters(self.pool, self.endpoint.headers, self.endpoint.model)
        draw = _Draw(self._meter)
        health = await run(took, draw)
        after = await read_counters(self.pool, self.endpoint.headers, self.endpoint.model) if before else {}
        whole = (
            is_closed and rows and all(row.ok for row in rows)
        )  # one refused at once leaves its place empty for a while
        share = delivered(rows, width) if whole else None
        limited = health.limited or (share is not None and share < LEAST_DELIVERED)
        if level:
            self._keep(level, repeat, health, share, limited=limited)
            late = {"late_ms": health.late_ms} if health.late else None
            facts = {"counters": counted(before, after), "energy": draw.drawn, "late": late}
            for name, fact in facts.items():
                if fact:
                    self.recording.found(LevelFact(level, repeat, name, fact))
        if limited and self._may_grow and health.cpu_share > BUSY:  # a machine busy with others is not helped by more
            self._processes = max(self._processes, min(2 * self._processes, os.cpu_count() or 1))
        return rows, limited

    def _keep(self, level: int, repeat: int, health: ClientHealth, share: float | None, *, limited: bool) -> None:
        sample = ClientSample(
            level=level,
            repeat=repeat,
            loop_lag_p99_ms=health.lag_p99_ms,
            loop_lag_max_ms=health.lag_max_ms,
            cpu_share=health.cpu_share,
            client_limited=limited,
            delivered=share,
            processes=self._processes,
        )
        self.recording.save()
        self.recording.sampled(sample)


class _Draw(Witness):
    """A run's energy: of the time in which its requests are under way, not of what is prepared for them."""

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self.drawn: Mapping[str, Any] | None = None

    def began(self) -> None:
        if self._meter is not None:
            self._meter.begin()

    def ended(self) -> None:
        if self._meter is not None:
            self.drawn = self._meter.end()


class _Run(Protocol):
    async def __call__(self, took: OnRow, draw: _Draw) -> ClientHealth: ...
