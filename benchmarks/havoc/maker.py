"""The havoc-maker: at random moments something happens to an engine, to the table or to the
settings.

Each event puts right what it broke before it ends, so that after the last one everything can heal.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from havoc.engines import go_on, stop
from havoc.hive import KEY_SPECS, Hive, Seat, calm

Event = Callable[[], Coroutine[Any, Any, None]]
FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "500"},
    {"kind": "503"},
    {"kind": "429"},
    {"kind": "close-first"},
    {"kind": "close-first", "reset": True},
    {"kind": "close-mid", "after_tokens": 3},
    {"kind": "close-mid", "after_tokens": 12, "reset": True},
    {"kind": "garbage"},
    {"kind": "html"},
    {"kind": "short-body"},
    {"kind": "hang-first"},
    {"kind": "hang-mid", "after_tokens": 5},
    {"kind": "slow-accept", "delay_ms": 700},
    {"kind": "503", "path": "/health"},
    {"kind": "hang-first", "path": "/slots"},
    {"kind": "garbage", "path": "/slots"},
)


@dataclass(frozen=True, slots=True)
class Pace:
    every_s: tuple[float, float]
    longest_stop_s: float
    most_seats: int
    fewest_seats: int = 2
    fewest_events: int = 0  # a short run on a busy machine goes on until so many have happened
    scale: float = 1.0  # of the time that drains, changed settings and the like last


class Maker:
    def __init__(self, hive: Hive, rng: Random, pace: Pace, store: Path) -> None:
        self._hive = hive
        self._store = store
        self._rng = rng
        self._pace = pace
        self._scale = pace.scale
        # An engine that does not say which slots are busy is waited for up to 30 s: nothing for a
        # short run.
        self._faults = [
            fault for fault in FAULTS if pace.scale >= 1 or fault.get("path") != "/slots"
        ]
        self.done: Counter[str] = Counter()
        self.log: list[tuple[float, str, str]] = []
        self._events: list[tuple[str, Event, int]] = [
            ("SIGKILL", self._kill, 3),
            ("SIGSTOP", self._stop, 4),
            ("drain", self._drain, 3),
            ("fewer slots", self._resize, 1),
            ("add", self._add, 2),
            ("remove", self._remove, 2),
            ("rejoin", self._rejoin, 2),
            ("settings", self._settings, 4),
            ("fault", self._fault, 10),
            ("refuse", self._refuse, 2),
            ("crash", self._crash, 1),
            ("store locked", self._lock_store, 2),
        ]

    async def run(self, seconds: float) -> None:
        """Returns when the last event has put right what it broke."""
        rng = self._rng
        until = time.monotonic() + seconds
        names, events, weights = zip(*self._events, strict=True)
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < until or self.done.total() < self._pace.fewest_events:
                await asyncio.sleep(rng.uniform(*self._pace.every_s))
                place = rng.choices(range(len(names)), weights)[0]
                tasks.create_task(events[place]())

    async def heal(self) -> None:
        hive = self._hive
        for seat in list(hive.seats.values()):
            seat.draining = False
            seat.listed = True
            if seat.engine.faulty:
                await asyncio.to_thread(seat.engine.fault, kind="none")
        hive.tell()
        hive.tell_settings(calm(self._scale))

    def _note(self, kind: str, seat: str = "") -> None:
        self.done[kind] += 1
        self.log.append((time.monotonic(), kind, seat))

    async def _while(self, shortest_s: float, longest_s: float) -> None:
        await asyncio.sleep(self._rng.uniform(shortest_s, longest_s) * self._scale)

    @contextlib.contextmanager
    def _seat(self, *, faulty: bool = False):
        """One whose process is left alone otherwise; None: there is none."""
        free = [
            seat
            for seat in self._hive.listed
            if not seat.held and (seat.engine.faulty or not faulty)
        ]
        seat = self._rng.choice(free) if free else None
        if seat is None:
            yield None
            return
        seat.held = True
        try:
            yield seat
        finally:
            seat.held = False

    async def _replace(self, seat: Seat, *, told_at_once: bool) -> None:
        """Its process is gone: a new one on a new port, as a supervisor would do it."""
        if told_at_once:
            seat.listed = False
            self._hive.tell()
        await self._while(0, 1.5)
        seat.engine = await self._hive.engine(seat.name)
        seat.listed = True
        self._hive.tell()

    async def _kill(self) -> None:
        with self._seat() as seat:
            if seat is None:
                return
            self._note("SIGKILL", seat.name)
            await self._hive.look_inside(seat)
            await asyncio.to_thread(seat.engine.kill)
            await self._replace(seat, told_at_once=self._rng.random() < 0.5)

    async def _crash(self) -> None:
        with self._seat(faulty=True) as seat:
            if seat is None:
                return
            self._note("crash", seat.name)
            await self._hive.look_inside(seat)
            await asyncio.to_thread(
                seat.engine.fault, kind="crash", after_tokens=self._rng.randrange(20)
            )
            await self._while(0.5, 2)
            await asyncio.to_thread(seat.engine.kill)
            await self._replace(seat, told_at_once=False)

    async def _stop(self) -> None:
        rng = self._rng
        longest = self._pace.longest_stop_s
        with self._seat() as seat:
            if seat is None:
                return
            self._note("SIGSTOP", seat.name)
            self._hive.disturb(seat, "stopped")
            seat.stopped = True
            stop(seat.engine)
            # Frozen, and taken out of the table with what it has under way.
            if rng.random() < 0.25:
                self._note("remove while stopped", seat.name)
                self._hive.disturb(seat, "rejoined")
                seat.listed = False
                self._hive.tell()
            try:
                await asyncio.sleep(
                    rng.uniform(0.2, longest / 5)
                    if rng.random() < 0.7
                    else rng.uniform(0.2, longest)
                )
            finally:
                go_on(seat.engine)
                seat.stopped = False
                if not seat.listed:
                    seat.listed = True
                    self._hive.tell()

    async def _drain(self) -> None:
        if not self._hive.listed:
            return
        seat = self._rng.choice(self._hive.listed)
        self._note("drain", seat.name)
        seat.draining = True
        self._hive.tell()
        await self._while(0.2, 3)
        seat.draining = False
        self._hive.tell()

    async def _resize(self) -> None:
        if not self._hive.listed:
            return
        seat = self._rng.choice(self._hive.listed)
        self._note("fewer slots", seat.name)
        before = seat.slots
        seat.slots = 1
        self._hive.tell()
        await self._while(0.5, 3)
        seat.slots = before if before > 1 else 2
        self._hive.tell()

    async def _add(self) -> None:
        if len(self._hive.seats) < self._pace.most_seats:
            self._note("add")
            await self._hive.add()
            self._hive.tell()

    async def _remove(self) -> None:
        """With answers under way in it: they go on while it lives, which is not for long."""
        if len(self._hive.listed) <= self._pace.fewest_seats:
            return
        with self._seat() as seat:
            if seat is None:
                return
            self._note("remove", seat.name)
            seat.listed = False
            del self._hive.seats[seat.name]
            self._hive.tell()
            await asyncio.sleep(self._rng.choice((0.0, 0.5, 3.0)) * self._scale)
            await self._hive.look_inside(seat)
            await asyncio.to_thread(seat.engine.close)

    async def _rejoin(self) -> None:
        """Out of the table and in again: the same process, with what it has under way."""
        with self._seat() as seat:
            if seat is None:
                return
            self._note("rejoin", seat.name)
            self._hive.disturb(seat, "rejoined")
            seat.listed = False
            self._hive.tell()
            await asyncio.sleep(self._rng.choice((0.0, 0.01, 0.2, 1.5)))
            seat.listed = True
            self._hive.tell()

    async def _settings(self) -> None:
        rng = self._rng
        self._note("settings")
        limits = {
            "max_queue": rng.choice((3, 10, 256)),
            "max_wait_s": rng.choice((1.0, 5.0, 20.0)),
            "attempts": rng.choice((1, 2, 3)),
            "dead_after_s": rng.choice((2.0, 6.0)),
            "aging_s": rng.choice((0.5, 5.0, 30.0)),
        }
        first_s = rng.choice((4.0, 14.0)) * self._scale
        idle_s = rng.choice((3.0, 12.0)) * self._scale
        timeouts = {"first_byte_s": first_s, "idle_s": idle_s, "total_s": 60.0}
        keys = rng.choice(((), (), ("ant", "bee", "cub"), ("ant", "bee", "cub"), ("ant", "bee")))
        settings = {
            "limits": limits,
            "timeouts": timeouts,
            "keys": [KEY_SPECS[name] for name in keys],
        }
        self._hive.tell_settings(settings)
        await self._while(1, 6)
        if self._hive.settings is settings:
            self._hive.tell_settings(calm(self._scale))

    async def _fault(self) -> None:
        with self._seat(faulty=True) as seat:
            if seat is None:
                return
            fault = {"times": self._rng.choice((1, 1, 2, 4)), **self._rng.choice(self._faults)}
            self._note(f"fault {fault['kind']}{fault.get('path', '')}", seat.name)
            if fault["kind"] == "slow-accept":
                self._hive.disturb(seat, "slow")
            await asyncio.to_thread(seat.engine.fault, **fault)

    async def _lock_store(self) -> None:
        """Somebody else writes for a while: rows have to wait, requests have not."""
        self._note("store locked")
        with contextlib.closing(
            sqlite3.connect(self._store, timeout=0.2, isolation_level=None)
        ) as connection:
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute("BEGIN IMMEDIATE")
            await self._while(0.2, 8)

    async def _refuse(self) -> None:
        with self._seat(faulty=True) as seat:
            if seat is not None:
                self._note("refuse", seat.name)
                for_s = self._rng.uniform(0.2, 3) * self._scale
                await asyncio.to_thread(seat.engine.fault, kind="refuse", for_s=for_s)
                await asyncio.sleep(for_s)
