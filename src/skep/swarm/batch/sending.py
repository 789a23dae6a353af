"""One batch on its way: requests out while there is room, results into the store as they come.

How many are out at once follows from the gateway: whatever finds a free slot goes, and a few more wait in its queue, in
the class `batch`, so that a slot that becomes free is never without work and nobody else is kept waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from enum import Enum

from skep.errors import StoreError
from skep.store.batches import BatchOrder, BatchRequest, BatchResult, BatchStore, Beginning
from skep.swarm.batch.course import Answer, Course, result_of, without_answer
from skep.swarm.batch.door import Door, Errand
from skep.swarm.batch.files import FileRoom
from skep.swarm.batch.lines import body_of
from skep.units import MIB

BACKLOG = 2  # requests that wait for a slot
UNRECORDED, UNRECORDED_BYTES = 1000, 64 * MIB  # results the store has not taken: beyond that, nothing new is sent
LOOK_S = 0.2
CLOCK_S = 60.0  # the window is looked at so often, for clocks are set and machines sleep
STORE_AGAIN_S = 0.5


class Halt(Enum):
    """Why no more is sent."""

    CANCELLED = "batch_cancelled"
    EXPIRED = "batch_expired"
    LEAVING = "leaving"  # it goes on later, or in another process


class Sending:
    def __init__(
        self,
        order: BatchOrder,
        course: Course,
        *,
        store: BatchStore,
        room: FileRoom,
        door: Door,
        say: Callable[[str], None],
    ) -> None:
        self._order = order
        self._course = course
        self._store = store
        self._room = room
        self._door = door
        self._say = say
        self._halt: Halt | None = None
        self._ends = False  # nothing more is sent, whatever is said
        self._errands: dict[int, Errand] = {}
        self._out: dict[int, asyncio.Task[None]] = {}
        self._unrecorded: list[BatchResult] = []
        self._beginnings: dict[int, Beginning] = {}  # of what a replica has
        self._begun: list[Beginning] = []  # that the store does not know of yet, as the next
        self._over: list[Beginning] = []
        self._writing = threading.Lock()  # what is removed from the lists is what was written
        self._wake = asyncio.Event()
        self._to_record = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Sending {self._order.id} {self._course!r}, {len(self._unrecorded)} unrecorded>"

    @property
    def waits(self) -> bool:
        """No replica has a request of it."""
        return all(errand.waiting for errand in self._errands.values())

    def halt(self, why: Halt) -> None:
        """The first reason stays, but leaving gives way: it only means later, or elsewhere."""
        if self._halt in (None, Halt.LEAVING):
            self._halt = why
        self._wake.set()

    @property
    def may_resume(self) -> bool:
        """It is leaving, and something is still out."""
        return self._halt is Halt.LEAVING and not self._ends

    def resume(self) -> None:
        """Go on instead of leaving. Only where it `may_resume`."""
        assert self.may_resume
        self._halt = None
        self._wake.set()

    async def run(self) -> Halt | None:
        """None: every request has its result, in the store."""
        for request in self._course.set_aside:
            self._keep(without_answer(request, "gateway_died", _name(), time.time()))
        try:
            async with asyncio.TaskGroup() as tasks:
                recording = tasks.create_task(self._record())
                while not self._ends:
                    await self._send_all(tasks)
                    await self._quiet()
                    self._ends = self._course.done or self._halt is not None
                while self._unrecorded or self._begun or self._over:
                    self._to_record.set()
                    await asyncio.sleep(LOOK_S / 10)
                recording.cancel()
        finally:
            self._ends = True
            self._course.leave()
            for errand in self._errands.values():
                errand.give_up()
            if self._unrecorded or self._begun or self._over:  # an end in order is no death of the gateway
                with contextlib.suppress(StoreError):
                    await asyncio.to_thread(self._write)
        return None if self._course.done else self._halt

    async def _send_all(self, tasks: asyncio.TaskGroup) -> None:
        while not self._course.done and self._halt is None:
            now = time.monotonic()
            left_s = self._order.expires_at - time.time()
            if left_s <= 0:
                self.halt(Halt.EXPIRED)
                return
            while (errand := self._errand()) is not None:
                if (request := self._course.next(now)) is None:
                    errand.give_up()
                    break
                self._errands[request.index] = errand
                self._out[request.index] = tasks.create_task(self._one(request, errand))
            self._wake.clear()
            due_s = self._course.due_in_s(now)
            pause_s = min(left_s, max(LOOK_S, due_s) if due_s is not None else CLOCK_S)
            if self._note_beginnings():
                pause_s = min(pause_s, LOOK_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _quiet(self) -> None:
        """What is out ends: by itself when this process is to leave, at once when nobody wants it any more."""
        while self._out and self._halt is Halt.LEAVING:
            for index, errand in self._errands.items():
                if errand.waiting:
                    self._out[index].cancel()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
        if self._halt is None:
            return
        for task in self._out.values():
            task.cancel()
        if self._out:
            await asyncio.wait(self._out.values())

    def _errand(self) -> Errand | None:
        """None: what is out is enough for now."""
        waiting = sum(errand.waiting for errand in self._errands.values())
        unrecorded_bytes = sum(len(result.line) for result in self._unrecorded)
        if waiting >= BACKLOG or len(self._unrecorded) >= UNRECORDED or unrecorded_bytes >= UNRECORDED_BYTES:
            return None
        return self._door.errand(self._order.owner)

    def _note_beginnings(self) -> bool:
        """Whether there are requests that no replica has yet: one may get them at any moment."""
        waiting = False
        for index, errand in self._errands.items():
            if errand.waiting:
                waiting = True
            elif index not in self._beginnings:
                beginning = self._beginnings[index] = Beginning(index, time.time())
                self._begun.append(beginning)
                self._to_record.set()
        return waiting

    async def _one(self, request: BatchRequest, errand: Errand) -> None:
        index, answer = request.index, None
        try:
            answer = await self._ask(request, errand)
        except asyncio.CancelledError:
            self._course.take_back(index)
            raise
        except (FileNotFoundError, ValueError):
            self._course.answered(index, Answer(0), time.monotonic())
            self._keep(without_answer(request, "input_file_missing", _name(), time.time()))
        finally:
            errand.give_up()
            self._errands.pop(index, None)
            self._out.pop(index, None)
            self._wake.set()
            beginning = self._beginnings.pop(index, None)
            if beginning is not None:
                self._over.append(beginning)
        if answer is not None and self._course.answered(index, answer, time.monotonic()):
            self._keep(result_of(request, answer, _name(), time.time()))

    async def _ask(self, request: BatchRequest, errand: Errand) -> Answer:
        order = self._order
        line = await asyncio.to_thread(self._room.read, order.input_file_id, request.start, request.length)
        got: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not got.done():
                got.set_result(answer)

        errand.go(order.endpoint, body_of(line), answered)
        self._wake.set()
        return await got

    def _keep(self, result: BatchResult) -> None:
        self._unrecorded.append(result)
        self._to_record.set()

    async def _record(self) -> None:
        """All that came meanwhile in one transaction. A store that is full or busy is asked again."""
        while True:
            await self._to_record.wait()
            self._to_record.clear()
            try:
                await asyncio.to_thread(self._write)
            except StoreError as error:
                self._say(f"{self._order.id}: results wait to be recorded: {error.message}")
                await asyncio.sleep(STORE_AGAIN_S)
                self._to_record.set()
            else:
                self._wake.set()

    def _write(self) -> None:
        """In a thread. The lists may grow meanwhile."""
        with self._writing:
            results, begun, over = self._unrecorded[:], self._begun[:], self._over[:]
            self._store.record(self._order.id, results, begun=begun, over=over)
            del self._unrecorded[: len(results)], self._begun[: len(begun)], self._over[: len(over)]


def _name() -> str:
    return f"batch_req_{secrets.token_hex(12)}"
