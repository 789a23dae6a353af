"""The engines behind one gateway process, and the table of them that the gateway is told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from havoc.asks import KEYS
from havoc.engines import SLOTS, Engine, go_on

from skep.config.keys import digest_of
from skep.testing.process import GatewayProcess

KEY_SPECS: dict[str, dict[str, Any]] = {
    "ant": {"name": "ant", "sha256": digest_of(KEYS["ant"]), "max_concurrent": 6},
    "bee": {"name": "bee", "sha256": digest_of(KEYS["bee"]), "priority": "normal"},
    "cub": {"name": "cub", "sha256": digest_of(KEYS["cub"]), "rate": "8/s"},
}


def calm(scale: float) -> dict[str, Any]:
    """The gateway's settings when nothing happens. `scale`: of its patience with engines."""
    return {
        "limits": {
            "max_queue": 256,
            "max_wait_s": 20.0,
            "attempts": 2,
            "dead_after_s": 6.0,
            "aging_s": 5.0,
        },
        "timeouts": {"first_byte_s": 14.0 * scale, "idle_s": 12.0 * scale, "total_s": 60.0},
        "keys": [],
    }


@dataclass(slots=True)
class Seat:
    """A place in the table. `held`: somebody is doing something to its process."""

    name: str
    engine: Engine
    listed: bool = True
    draining: bool = False
    slots: int = SLOTS
    held: bool = False
    stopped: bool = False


@dataclass(slots=True)
class Inside:
    """The most requests that were seen inside one engine process, and whether it was ever stopped
    or made slow.
    """

    seat: str
    most: int = 0
    disturbed: str = ""


class Hive:
    """Calls of engines block and are made in threads; the gateway's link is written here and read
    in a thread.
    """

    def __init__(
        self, door: GatewayProcess, make_engine: Callable[[], Engine], model: str
    ) -> None:
        self.door = door
        self.seats: dict[str, Seat] = {}
        self.inside: dict[str, Inside] = {}  # by URL: one for each process
        self.settings: dict[str, Any] | None = None
        self._make_engine = make_engine
        self._model = model
        self._made = 0
        self._engines: list[Engine] = []
        self._asking = asyncio.Lock()  # one question on the link at a time: answers carry no names

    @property
    def listed(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.listed]

    async def engine(self, seat: str) -> Engine:
        engine = await asyncio.to_thread(self._make_engine)
        self._engines.append(engine)
        self.inside[engine.url] = Inside(seat)
        return engine

    async def add(self) -> Seat:
        name = f"r{self._made}"
        self._made += 1
        seat = Seat(name, await self.engine(name))
        self.seats[name] = seat
        return seat

    def tell(self) -> None:
        """The gateway's table anew."""
        common = {
            "model": self._model,
            "confirms": "slots",
            "simulated": True,
            "release_bound_s": 30.0,
        }
        specs = [
            {
                "name": seat.name,
                "url": seat.engine.url,
                "slots": seat.slots,
                "draining": seat.draining,
                **common,
            }
            for seat in self.listed
        ]
        self.door.serve(specs, models=[self._model])

    def tell_settings(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.door.send({"op": "settings", **settings})

    async def status(self) -> dict[str, Any]:
        async with self._asking:
            self.door.send({"op": "status", "id": 1})
            answer = await asyncio.to_thread(self.door.read)
            status: dict[str, Any] = answer["status"]
            return status

    def disturb(self, seat: Seat, how: str) -> None:
        known = self.inside[seat.engine.url]
        if how not in known.disturbed:
            known.disturbed = f"{known.disturbed} {how}".strip()

    async def look_inside(self, seat: Seat) -> None:
        known = self.inside[seat.engine.url]
        engine = seat.engine
        if not seat.stopped:
            with contextlib.suppress(Exception):  # it may be dying
                most = await asyncio.to_thread(engine.inside)
                known.most = max(known.most, most)

    async def sample(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            for seat in list(self.seats.values()):
                await self.look_inside(seat)

    async def rest(self, timeout_s: float) -> tuple[bool, dict[str, Any]]:
        """Wait until nothing is queued, under way or in release, and all replicas are up; the last
        status.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status = await self.status()
            calm = (
                not status["queued"]
                and not status["in_flight"]
                and not any(status["busy"].values())
            )
            up = [replica["name"] for replica in status["replicas"] if replica["state"] == "up"]
            if calm and sorted(up) == sorted(seat.name for seat in self.listed):
                return True, status
            if time.monotonic() > deadline:
                return False, status
            await asyncio.sleep(0.1)

    def close(self) -> None:
        for engine in self._engines:
            go_on(engine)
            engine.close()


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(
        int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS")
    )
