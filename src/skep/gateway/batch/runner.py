"""Carries batches out from wherever an earlier process left them. Which ones at once is decided in `scheduler`.

One process at a time works on batches: while a gateway is replaced there are two, and a lock of the kernel, which a
killed process cannot keep, says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import chain

from msgspec import to_builtins

from skep.errors import EngineError, SkepError, StoreError
from skep.files import hold_lock
from skep.gateway.batch.calls import BatchGatewayPort, InternalRequest
from skep.gateway.batch.files import CheckedInput, FileStorage, LineError, body_of, check_lines, new_file_id
from skep.gateway.batch.scheduler import (
    BatchAnswer,
    BatchSchedule,
    SuspectTurn,
    choose,
    result_of,
    without_answer,
)
from skep.gateway.batch.store import (
    BATCH_FILE_S,
    BatchOrder,
    BatchRequest,
    BatchResult,
    BatchStatus,
    BatchStore,
    RequestStart,
    StoredBatch,
    StoredFile,
)
from skep.units import MIB

BACKLOG = 2  # requests that wait for a slot
UNRECORDED, UNRECORDED_BYTES = 1000, 64 * MIB  # results the store has not taken: beyond that, nothing new is sent
SENDING_LOOK_S = 0.2
CLOCK_S = 60.0  # the window is looked at so often, for clocks are set and machines sleep
STORE_AGAIN_S = 0.5


class Halt(Enum):
    """Why no more is sent."""

    CANCELLED = "batch_cancelled"
    EXPIRED = "batch_expired"
    LEAVING = "leaving"  # it goes on later, or in another process


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


@dataclass(slots=True)
class _SentRequest:
    call: InternalRequest
    task: asyncio.Task[None]
    start: RequestStart | None = None  # None: no replica has it yet


@dataclass(eq=False)
class BatchSender:
    """Sends the requests of one batch as its schedule says, and records what came."""

    order: BatchOrder
    schedule: BatchSchedule
    store: BatchStore
    room: FileStorage
    gateway: BatchGatewayPort
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._halt: Halt | None = None
        self._out: dict[int, _SentRequest] = {}
        self._unrecorded: list[BatchResult] = []
        self._begun: list[RequestStart] = []  # that the store does not know of yet, as the next
        self._over: list[RequestStart] = []
        self._writing = threading.Lock()  # what is removed from the lists is what was written
        self._wake = asyncio.Event()
        self._to_record = asyncio.Event()

    def halt(self, why: Halt) -> None:
        """The first reason stays, but leaving does not: it only means later, or elsewhere."""
        if self._halt in (None, Halt.LEAVING):
            self._halt = why
        self._wake.set()

    async def run(self) -> Halt | None:
        """None: every request has its result, in the store."""
        for request in self.schedule.set_aside:
            self._keep(without_answer(request, "gateway_died", _name(), time.time()))
        try:
            async with asyncio.TaskGroup() as tasks:
                recording = tasks.create_task(self._record())
                await self._send_all(tasks)
                await self._quiet()
                while self._has_news:
                    self._to_record.set()
                    await asyncio.sleep(SENDING_LOOK_S / 10)
                recording.cancel()
        finally:
            self.schedule.leave()
            for sent in self._out.values():
                sent.call.give_up()
            if self._has_news:  # an end in order is no death of the gateway
                with contextlib.suppress(StoreError):
                    await asyncio.to_thread(self._write)
        return None if self.schedule.done else self._halt

    @property
    def _has_news(self) -> bool:
        """For the store."""
        return bool(self._unrecorded or self._begun or self._over)

    async def _send_all(self, tasks: asyncio.TaskGroup) -> None:
        while not self.schedule.done and self._halt is None:
            now = time.monotonic()
            left_s = self.order.expires_at - time.time()
            if left_s <= 0:
                self.halt(Halt.EXPIRED)
                return
            while (call := self._open_call()) is not None:
                if (request := self.schedule.next(now)) is None:
                    call.give_up()
                    break
                self._out[request.index] = _SentRequest(call, tasks.create_task(self._one(request, call)))
            self._wake.clear()
            due_s = self.schedule.due_in_s(now)
            pause_s = min(left_s, max(SENDING_LOOK_S, due_s) if due_s is not None else CLOCK_S)
            if self._note_starts():
                pause_s = min(pause_s, SENDING_LOOK_S)
            await _wait(self._wake, pause_s)

    async def _quiet(self) -> None:
        """What is out ends: by itself when this process is to leave, at once when nobody wants it any more."""
        while self._out and self._halt is Halt.LEAVING:
            for sent in self._out.values():
                if sent.call.waiting:
                    sent.task.cancel()
            self._wake.clear()
            await _wait(self._wake, SENDING_LOOK_S)
        tasks = [sent.task for sent in self._out.values()] if self._halt is not None else []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _open_call(self) -> InternalRequest | None:
        """None: what is out is enough for now."""
        waiting = sum(sent.call.waiting for sent in self._out.values())
        unrecorded_bytes = sum(len(result.line) for result in self._unrecorded)
        if waiting >= BACKLOG or len(self._unrecorded) >= UNRECORDED or unrecorded_bytes >= UNRECORDED_BYTES:
            return None
        return self.gateway.open_call(self.order.owner)

    def _note_starts(self) -> bool:
        """Return whether there are requests that no replica has yet: one may get them at any moment."""
        for index, sent in self._out.items():
            if sent.start is None and not sent.call.waiting:
                sent.start = RequestStart(index, time.time())
                self._begun.append(sent.start)
                self._to_record.set()
        return any(sent.start is None for sent in self._out.values())

    async def _one(self, request: BatchRequest, call: InternalRequest) -> None:
        index = request.index
        try:
            line = await asyncio.to_thread(self.room.read, self.order.input_file_id, request.start, request.length)
            got = call.go(self.order.endpoint, body_of(line))
            self._wake.set()
            answer = await got
        except asyncio.CancelledError:
            self.schedule.take_back(index)
            raise
        except (FileNotFoundError, ValueError):
            answer = BatchAnswer(None, fault="input_file_missing")
        finally:
            call.give_up()
            self._wake.set()
            sent = self._out.pop(index)
            if sent.start is not None:
                self._over.append(sent.start)
        if self.schedule.answered(index, answer, time.monotonic()):
            self._keep(result_of(request, answer, _name(), time.time()))

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
                self.say(f"{self.order.id}: results are not recorded yet: {error.message}")
                await asyncio.sleep(STORE_AGAIN_S)
                self._to_record.set()
            else:
                self._wake.set()

    def _write(self) -> None:
        """In a thread. The lists may grow meanwhile."""
        with self._writing:
            results, begun, over = self._unrecorded[:], self._begun[:], self._over[:]
            self.store.record(self.order.id, results, begun=begun, over=over)
            del self._unrecorded[: len(results)], self._begun[: len(begun)], self._over[: len(over)]


def _name() -> str:
    return f"batch_req_{secrets.token_hex(12)}"


LOOK_S = 2.0  # for what another process wrote
LOCK_AGAIN_S = 0.25
REST_S = 10.0  # after something went wrong with a batch that is not its own fault
TIDY_S = 3600.0
_BY_HALT = {Halt.CANCELLED: BatchStatus.CANCELLED, Halt.EXPIRED: BatchStatus.EXPIRED, None: BatchStatus.COMPLETED}


class BatchRunner:
    def __init__(
        self, store: BatchStore, room: FileStorage, gateway: BatchGatewayPort, say: Callable[[str], None]
    ) -> None:
        self._store, self._room, self._gateway, self._say = store, room, gateway, say
        self._wake = asyncio.Event()
        self._under_way: set[str] = set()
        self._sending: dict[str, BatchSender] = {}  # not while they are checked or their files are written
        self._resting: dict[str, float] = {}
        self._turn = SuspectTurn()
        self._leaving = self._abandoned = False

    @property
    def busy(self) -> bool:
        """A batch is being checked, sent or written to its files."""
        return bool(self._under_way)

    def wake(self) -> None:
        """There is a new batch, or one was cancelled."""
        self._wake.set()

    def abandon(self) -> None:
        """Its store is another one: what it has under way is nobody's any more."""
        self._abandoned = True
        self._wake.set()

    def leave(self) -> None:
        """Another process takes over: finish what is out, begin nothing."""
        self._leaving = True
        for sender in self._sending.values():
            sender.halt(Halt.LEAVING)
        self._wake.set()

    async def run(self) -> None:
        """Until told to leave, and then until nothing is out; or until the store is another one."""
        with contextlib.ExitStack() as stack:
            while not self._leaving and not self._try_lock(stack):
                await self._pause(LOCK_AGAIN_S)
            if self._leaving:
                return
            await self._gateway.ready()
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
                unfinished = await asyncio.to_thread(self._store.unfinished)
                for one in unfinished:
                    if one.cancelling and one.id in self._sending:
                        self._sending[one.id].halt(Halt.CANCELLED)
                rested = [one for one in unfinished if self._resting.get(one.id, 0.0) <= now]
                for batch in choose(rested, self._under_way, time.time()) if not self._leaving else ():
                    self._under_way.add(batch.id)
                    carrying.add(task := tasks.create_task(self._carry(batch.id)))
                    task.add_done_callback(carrying.discard)
            except (SkepError, OSError) as error:
                self._say(f"batches cannot be looked up: {error}")
            await self._pause(LOOK_S)

    async def _carry(self, batch_id: str) -> None:
        """To its end, or as far as it comes: what is in its way may be gone later."""
        try:
            await self._carry_on(batch_id)
        except Exception as error:  # whatever it is, the other batches go on
            self._say(f"{batch_id} has to wait: {error!r}")
            self._resting[batch_id] = time.monotonic() + REST_S
        finally:
            self._sending.pop(batch_id, None)
            self._under_way.discard(batch_id)
            self._wake.set()

    async def _carry_on(self, batch_id: str) -> None:
        batch = await asyncio.to_thread(self._store.batch, batch_id)
        if batch is None or batch.status.is_final:
            return
        if batch.status is BatchStatus.VALIDATING:  # its model is known then: it begins when there is room for it
            await self._check(batch)
            return
        pending = await asyncio.to_thread(self._store.pending, batch_id)
        lost = await asyncio.to_thread(self._store.lost, batch_id)
        schedule = BatchSchedule(pending, lost, self._turn)
        sender = BatchSender(batch.order, schedule, self._store, self._room, self._gateway, self._say)
        if BatchStatus.CANCELLING in batch.times:
            sender.halt(Halt.CANCELLED)
        if self._leaving:
            sender.halt(Halt.LEAVING)
        self._sending[batch_id] = sender
        why = await sender.run()
        del self._sending[batch_id]
        if why is None and BatchStatus.IN_PROGRESS not in batch.times:  # it was cancelled before it had any requests
            why = Halt.CANCELLED
        if why is not Halt.LEAVING:
            await asyncio.to_thread(self._finish, batch, schedule.left(), why)

    async def _check(self, batch: StoredBatch) -> None:
        checked = await asyncio.to_thread(self._read, batch.order)
        faults = checked.faults
        complaint = self._gateway.complaint_of(checked.model) if checked.requests else None
        if complaint is not None:
            faults = (LineError("model_not_found", complaint, "body.model", checked.first), *faults)
        if faults:
            told = [asdict(fault) for fault in faults]
            await asyncio.to_thread(self._store.become, batch.id, BatchStatus.FAILED, time.time(), errors=told)
        else:
            await asyncio.to_thread(self._store.validated, batch.id, time.time(), checked.model, checked.requests)

    # In threads

    def _read(self, order: BatchOrder) -> CheckedInput:
        try:
            with self._room.path(order.input_file_id).open("rb") as file:
                return check_lines(file, order.endpoint)
        except FileNotFoundError:
            gone = LineError("input_file_missing", f"the file {order.input_file_id} is missing", "input_file_id")
            return CheckedInput((), None, (gone,))

    def _finish(self, batch: StoredBatch, left: list[BatchRequest], why: Halt | None) -> None:
        order, now = batch.order, time.time()
        if why is not Halt.CANCELLED:
            self._store.become(batch.id, BatchStatus.FINALIZING, now)
        never = (
            without_answer(one, why.value if why else "", f"batch_req_{batch.id[6:]}_{one.index}", now).line
            for one in left
        )
        written = {
            "output": self._store.lines(batch.id, ok=True),
            "error": chain(self._store.lines(batch.id, ok=False), never),
        }
        files: dict[str, StoredFile] = {}
        ended = False
        try:
            for kind, lines in written.items():
                if (first := next(lines, None)) is None:
                    continue
                file_id, name = new_file_id(), f"{batch.id}_{kind}.jsonl"
                size = self._room.write(file_id, chain((first,), lines))
                expires_at = now + (order.output_expires_s or BATCH_FILE_S)
                file = StoredFile(file_id, order.owner, now, name, "batch_output", size, expires_at)
                files[f"{kind}_file_id"] = file
            detail = {
                "tally": to_builtins(self._store.tally(batch.id)),
                **{name: file.id for name, file in files.items()},
            }
            ended = self._store.become(batch.id, _BY_HALT[why], time.time(), [*files.values()], **detail)
        finally:
            for file in files.values() if not ended else ():  # a full disk is not filled further, try by try
                self._room.delete(file.id)
        self._store.forget_ended()

    def _tidy(self) -> None:
        """What expired, and what a killed process left behind."""
        for file_id in self._store.expired_files(time.time()):
            if self._store.delete_file(file_id) is None:
                self._room.delete(file_id)
        self._room.sweep(file.id for file in self._store.files())
        self._store.forget_ended()

    # Inside

    def _try_lock(self, stack: contextlib.ExitStack) -> bool:
        try:
            stack.enter_context(hold_lock(self._room.folder / ".lock", "a gateway with batches", "it ends by itself"))
        except EngineError:
            return False
        return True

    async def _pause(self, seconds: float) -> None:
        await _wait(self._wake, seconds)
        self._wake.clear()
