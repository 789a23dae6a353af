"""Carries batches out from wherever an earlier process left them. Which ones at once is decided in `sharing`.

One process at a time works on batches: while a gateway is replaced there are two, and a lock of the kernel, which a
killed process cannot keep, says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain

from skep.engines.logfile import held
from skep.errors import EngineError, SkepError
from skep.store.batches import BatchRequest, BatchStore, Status, StoredBatch, StoredFile, UnfinishedBatch
from skep.swarm.batch.course import Course, Tried, Turn, without_answer
from skep.swarm.batch.door import Door
from skep.swarm.batch.files import FileRoom, new_file_id
from skep.swarm.batch.lines import Checked, Fault, check_lines
from skep.swarm.batch.objects import BATCH_FILE_S, fault_document
from skep.swarm.batch.sending import Halt, Sending
from skep.swarm.batch.sharing import MOST_AT_ONCE, UnderWay, choose

LOOK_S = 2.0  # for what another process wrote
LOCK_AGAIN_S = 0.25
REST_S = 10.0  # after something went wrong with a batch that is not its own fault
TIDY_S = 3600.0
_BY_HALT = {Halt.CANCELLED: Status.CANCELLED, Halt.EXPIRED: Status.EXPIRED, None: Status.COMPLETED}


@dataclass(slots=True)
class _Carried:
    """`ends`: it was cancelled or has expired, and nothing of it is sent any more."""

    batch: UnfinishedBatch
    since: float
    ends: bool = False
    gives_way: bool = False
    sending: Sending | None = None  # None: it is being checked or its files are being written

    def halt(self, why: Halt) -> None:
        if self.sending is not None:
            self.sending.halt(why)

    def give_way(self) -> None:
        self.gives_way = True
        self.halt(Halt.LEAVING)

    @property
    def may_go_on(self) -> bool:
        return self.gives_way and self.sending is not None and self.sending.may_resume

    def go_on(self, now: float) -> None:
        assert self.sending is not None
        self.sending.resume()
        self.gives_way, self.since = False, now


class BatchRunner:
    def __init__(self, store: BatchStore, room: FileRoom, door: Door, say: Callable[[str], None]) -> None:
        self._store = store
        self._room = room
        self._door = door
        self._say = say
        self._wake = asyncio.Event()
        self._under_way: dict[str, _Carried] = {}
        self._resting: dict[str, float] = {}
        self._had_turn: dict[str, float] = {}  # when a batch that goes on later gave way
        self._tried: dict[str, dict[int, Tried]] = {}  # of batches that gave way, or are under way
        self._cancelled: set[str] = set()
        self._turn = Turn()
        self._leaving = False
        self._abandoned = False

    def __repr__(self) -> str:
        return f"<BatchRunner {len(self._under_way)} batches{', leaving' if self._leaving else ''}>"

    @property
    def busy(self) -> bool:
        """A batch is being checked, sent or written to its files."""
        return bool(self._under_way)

    def wake(self) -> None:
        """There is a new batch."""
        self._wake.set()

    def abandon(self) -> None:
        """Its store is another one: what it has under way is nobody's any more."""
        self._abandoned = True
        self._wake.set()

    def cancel(self, batch_id: str) -> None:
        self._cancelled.add(batch_id)
        if batch_id in self._under_way:
            self._under_way[batch_id].halt(Halt.CANCELLED)
        self._wake.set()

    def leave(self) -> None:
        """Another process takes over: finish what is out, begin nothing."""
        self._leaving = True
        for carried in self._under_way.values():
            carried.halt(Halt.LEAVING)
        self._wake.set()

    async def run(self) -> None:
        """Until told to leave, and then until nothing is out; or until the store is another one."""
        with contextlib.ExitStack() as stack:
            while not self._leaving and not self._took_lock(stack):
                await self._pause(LOCK_AGAIN_S)
            if self._leaving:
                return
            await self._door.ready()
            async with asyncio.TaskGroup() as tasks:
                carrying = set[asyncio.Task[None]]()
                await self._take_up(tasks, carrying)
                for task in carrying if not self._leaving else ():
                    task.cancel()

    async def _take_up(self, tasks: asyncio.TaskGroup, carrying: set[asyncio.Task[None]]) -> None:
        tidy_at = 0.0
        while not self._leaving and not self._abandoned and not await asyncio.to_thread(lambda: self._store.moved):
            now = time.monotonic()
            try:
                if now >= tidy_at:
                    await asyncio.to_thread(self._tidy)
                    tidy_at = now + TIDY_S
                for batch_id in await asyncio.to_thread(self._store.cancelling) - self._cancelled:
                    self.cancel(batch_id)
                unfinished = await asyncio.to_thread(self._store.unfinished)
                while not self._leaving and (carried := self._next(unfinished, now)) is not None:
                    if carried.batch.id not in self._under_way:
                        self._under_way[carried.batch.id] = carried
                        carrying.add(task := tasks.create_task(self._carry(carried)))
                        task.add_done_callback(carrying.discard)
            except (SkepError, OSError) as error:
                self._say(f"batches cannot be looked up: {error}")
            await self._pause(LOOK_S)

    def _next(self, unfinished: list[UnfinishedBatch], now: float) -> _Carried | None:
        """What ends takes no room from what is sent, and does not wait for it. What is giving way may go on again."""
        idle = [one for one in unfinished if one.id not in self._under_way and self._resting.get(one.id, 0.0) <= now]
        ending = [one for one in idle if one.id in self._cancelled or one.expires_at <= time.time()]
        if ending and sum(one.ends for one in self._under_way.values()) < MOST_AT_ONCE:
            return _Carried(ending[0], now, ends=True)
        under_way = [
            UnderWay(one.batch, one.since, one.sending.waits if one.sending is not None else None)
            for one in self._under_way.values()
            if not one.ends and not one.gives_way
        ]
        leaving = [one.batch for one in self._under_way.values() if one.may_go_on]
        choice = choose([*leaving, *(one for one in idle if one not in ending)], under_way, self._had_turn, now)
        if choice is None:
            return None
        if choice.gives_way is not None:
            self._under_way[choice.gives_way.id].give_way()
            self._had_turn[choice.gives_way.id] = now
        carried = self._under_way.get(choice.begins.id)
        if carried is None:
            return _Carried(choice.begins, now)
        carried.go_on(now)
        return carried

    async def _carry(self, carried: _Carried) -> None:
        """To its end, or as far as it comes: what is in its way may be gone later."""
        batch_id = carried.batch.id
        try:
            if await self._carry_on(carried):
                for of_batches in (self._had_turn, self._tried):
                    of_batches.pop(batch_id, None)
        except Exception as error:  # whatever it is, the other batches go on
            self._say(f"{batch_id} has to wait: {error!r}")
            self._resting[batch_id] = time.monotonic() + REST_S
        finally:
            del self._under_way[batch_id]
            self._wake.set()

    async def _carry_on(self, carried: _Carried) -> bool:
        """Whether it has ended."""
        batch_id = carried.batch.id
        batch = await asyncio.to_thread(self._store.batch, batch_id)
        if batch is None or batch.status.is_final:
            return True
        cancelled = batch_id in self._cancelled or Status.CANCELLING in batch.times
        if Status.IN_PROGRESS not in batch.times and not cancelled:
            await self._check(batch)
            batch = await asyncio.to_thread(self._store.batch, batch_id)
            if batch is None or batch.status.is_final:
                return True
            carried.batch = replace(carried.batch, model=batch.detail.get("model"))
        pending = await asyncio.to_thread(self._store.pending, batch_id)
        lost = await asyncio.to_thread(self._store.lost, batch_id)
        course = Course(pending, lost, self._turn, self._tried.setdefault(batch_id, {}))
        sending = Sending(batch.order, course, store=self._store, room=self._room, door=self._door, say=self._say)
        carried.sending = sending
        if cancelled or batch_id in self._cancelled:
            sending.halt(Halt.CANCELLED)
        if self._leaving:
            sending.halt(Halt.LEAVING)
        why = await sending.run()
        if why is None and Status.IN_PROGRESS not in batch.times:  # it was cancelled before it had any requests
            why = Halt.CANCELLED
        carried.sending = None
        if why is Halt.LEAVING:
            return False
        await asyncio.to_thread(self._finish, batch, course.left(), why)
        self._cancelled.discard(batch_id)
        return True

    async def _check(self, batch: StoredBatch) -> None:
        checked = await asyncio.to_thread(self._read, batch)
        faults = checked.faults
        complaint = self._door.complaint_of(checked.model) if checked.requests else None
        if complaint is not None:
            faults = (Fault("model_not_found", complaint, checked.first, "body.model"), *faults)
        if faults:
            errors = [fault_document(fault) for fault in faults]
            await asyncio.to_thread(self._store.end, batch.id, Status.FAILED, time.time(), (), errors=errors)
        else:
            await asyncio.to_thread(self._store.validated, batch.id, time.time(), checked.model, checked.requests)

    # In threads

    def _read(self, batch: StoredBatch) -> Checked:
        try:
            with self._room.path(batch.order.input_file_id).open("rb") as file:
                return check_lines(file, batch.order.endpoint)
        except FileNotFoundError:
            gone = Fault("input_file_missing", f"the file {batch.order.input_file_id} is gone", param="input_file_id")
            return Checked((), None, (gone,))

    def _finish(self, batch: StoredBatch, left: list[BatchRequest], why: Halt | None) -> None:
        now = time.time()
        if why is not Halt.CANCELLED:
            self._store.become(batch.id, Status.FINALIZING, now)
        code = why.value if why is not None else ""
        never = (
            without_answer(request, code, f"batch_req_{batch.id[6:]}_{request.index}", now).line for request in left
        )
        written = {
            "output_file_id": ("output", self._store.lines(batch.id, ok=True)),
            "error_file_id": ("error", chain(self._store.lines(batch.id, ok=False), never)),
        }
        files: dict[str, StoredFile] = {}
        ended = False
        try:
            for name, (kind, lines) in written.items():
                if (first := next(lines, None)) is not None:
                    files[name] = self._write(batch, kind, chain((first,), lines), now)
            detail = {"tally": asdict(self._store.tally(batch.id)), **{name: file.id for name, file in files.items()}}
            ended = self._store.end(batch.id, _BY_HALT[why], time.time(), [*files.values()], **detail)
        finally:
            for file in files.values() if not ended else ():  # a full disk is not filled further, try by try
                self._room.delete(file.id)
        self._store.forget_ended()

    def _write(self, batch: StoredBatch, kind: str, lines: Iterator[bytes], now: float) -> StoredFile:
        order, file_id = batch.order, new_file_id()
        size = self._room.write(file_id, lines)
        expires_at = now + (order.output_expires_s or BATCH_FILE_S)
        return StoredFile(file_id, order.owner, now, f"{batch.id}_{kind}.jsonl", "batch_output", size, expires_at)

    def _tidy(self) -> None:
        """What expired, and what a killed process left behind."""
        for file_id in self._store.expired_files(time.time()):
            if self._store.delete_file(file_id) is None:
                self._room.delete(file_id)
        self._room.sweep(file.id for file in self._store.files())
        self._store.forget_ended()

    # Inside

    def _took_lock(self, stack: contextlib.ExitStack) -> bool:
        try:
            stack.enter_context(held(self._room.folder / ".lock", "a gateway with batches", "it ends by itself"))
        except EngineError:
            return False
        return True

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()
