"""Carries batches out from wherever an earlier process left them. Which ones at once is decided in
`scheduler`.

Their requests are the gateway's own: each comes on no connection, waits in the class `batch`, and
is counted like all others. What is held of answers that are not whole yet is bounded.

One process at a time works on batches: while a gateway is replaced there are two, and a lock of
the kernel, which a killed process cannot keep, says which."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import chain

from skep.errors import EngineError, SkepError, StoreError
from skep.files import hold_lock
from skep.gateway.batch.files import (
    CheckedInput,
    FileStorage,
    LineError,
    body_of,
    check_lines,
    new_file_id,
)
from skep.gateway.batch.scheduler import (
    MOST_ANSWER_BYTES,
    BatchAnswer,
    BatchSchedule,
    choose,
    result_of,
)
from skep.gateway.batch.store import (
    BATCH_FILE_S,
    BatchOrder,
    BatchRequest,
    BatchStatus,
    BatchStore,
    StoredFile,
)
from skep.gateway.proxy import Proxy
from skep.wire.heads import gateway_fields
from skep.wire.server_request import ServerRequest

READY_POLL_S = 0.05


class InternalRequest:
    """One request without a connection: its own carrier, which gathers the answer until it is
    whole or given up.
    """

    def __init__(
        self,
        port: BatchGatewayPort,
        owner: str,
        endpoint: str,
        body: bytes,
        on_end: Callable[[], None],
    ) -> None:
        """Submit the request with the rights of its owner.

        It is HTTP/1.0, whose answers have no chunks to be taken apart again.
        """
        self.owner = owner
        self.answer: BatchAnswer | None = None  # None: not whole yet, or given up
        self.held_bytes = 0
        self._port = port
        self._on_end = on_end
        self._received: list[bytes] = []
        request = ServerRequest(self, b"POST", endpoint.encode(), [], body=body, version="1.0")
        self._request: ServerRequest | None = request  # None: it is over
        port.out.add(self)
        self._exchange = port.proxy.submit_internal(request, owner)

    @property
    def waiting(self) -> bool:
        """Whether no replica has it yet."""
        if self._request is None or self._exchange is None:
            return False
        return not self._exchange.under_way

    def end(self, answer: BatchAnswer | None = None) -> None:
        """Drop what was received and end the call to the replica: in the next turn of the event
        loop, as the exchange may be writing just now. `answer` None: it is given up. Repeats have
        no effect."""
        request = self._request
        self._request = None  # the accounts keep the request for a while
        if request is None:
            return
        self.answer = answer
        self._received = []
        self._port.out.discard(self)

        def hang_up() -> None:
            if request.on_gone is not None:
                request.on_gone()

        asyncio.get_running_loop().call_soon(hang_up)
        self._on_end()

    # The carrier's side

    def send(self, request: ServerRequest, data: bytes) -> None:  # noqa: ARG002
        if self._request is not None:
            self._received.append(data)
            self.held_bytes += len(data)
            self._port.bound(self)

    def finished(self, request: ServerRequest) -> None:  # noqa: ARG002
        if self._request is not None:
            self.end(_parse_answer(b"".join(self._received)))

    def abort(self) -> None:
        self.end(BatchAnswer(None))


class BatchGatewayPort:
    """The gateway, as the batch API sees it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.out: set[InternalRequest] = set()

    def bound(self, call: InternalRequest) -> None:
        """Give up an answer that is too large."""
        if call.held_bytes > MOST_ANSWER_BYTES:
            call.end(BatchAnswer(None, fault="answer_too_large"))

    def complaint_of(self, model: str | None) -> str | None:
        """Return why a request for this model would not be served; None: it would."""
        models = self.proxy.admission.models
        served = ", ".join(models)
        if model is None:
            if len(models) == 1:
                return None
            return f"several models are served here: {served}; name one in the body"
        if self.proxy.admission.knows(model):
            return None
        if any(fnmatchcase(model, alias) for alias in self.proxy.policy.aliases):
            return None
        return f"the model `{model[:80]}` is not served here; known: {served}"

    def has_room(self, owner: str) -> bool:
        """Return whether one more request of this owner may be out: a key can be used beside its
        batches.
        """
        limit = next(
            (key.max_concurrent for key in self.proxy.policy.keys if key.name == owner), None
        )
        if limit is None:
            return True
        out = sum(call.owner == owner for call in self.out)
        return out < max(1, limit - 1)

    def send(
        self, owner: str, endpoint: str, body: bytes, on_end: Callable[[], None]
    ) -> InternalRequest:
        return InternalRequest(self, owner, endpoint, body, on_end)

    async def ready(self) -> None:
        """Wait until it knows what it serves."""
        while not self.proxy.admission.models:
            await asyncio.sleep(READY_POLL_S)


def _parse_answer(received: bytes) -> BatchAnswer:
    """Return the answer that the bytes of a whole response hold."""
    head, _, body = received.partition(b"\r\n\r\n")
    fields = dict(re.findall(rb"\r\n(retry-after|x-skep): *([^\r\n]*)", head))
    request_id = gateway_fields(fields.get(b"x-skep")).get("id", "")
    wait = fields.get(b"retry-after", b"")
    return BatchAnswer(
        int(head.split(b" ", 2)[1]), body, request_id, float(wait) if wait.isdigit() else None
    )


BACKLOG = 2  # requests that wait for a slot
SENDING_LOOK_S = 0.2
STORE_AGAIN_S = 0.5


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()


@dataclass(eq=False)
class BatchSender:
    """Sends the requests of one batch as its schedule says, and records their results.

    Nothing new is sent while the store does not take the results: a request without one is sent
    again after a crash."""

    runner: BatchRunner
    order: BatchOrder
    schedule: BatchSchedule

    def __post_init__(self) -> None:
        self._began_at = time.time()
        self.cancelled = False
        self._out: dict[int, InternalRequest] = {}
        died = BatchAnswer(None, fault="gateway_died")
        now = self._began_at
        self._unrecorded = [
            result_of(request, died, _name(), now) for request in self.schedule.set_aside
        ]
        self._recorded: set[int] = set()  # what replicas have, as the store knows it
        self._wake = asyncio.Event()

    @property
    def _halt(self) -> BatchStatus | None:
        """What becomes of the batch before its end: no more is sent.

        IN_PROGRESS: it goes on later, or elsewhere.
        """
        if self.cancelled:
            return BatchStatus.CANCELLED
        if time.time() >= self.order.expires_at:
            return BatchStatus.EXPIRED
        if self.runner.leaving:
            return BatchStatus.IN_PROGRESS
        return None

    async def run(self) -> BatchStatus:
        """Return what becomes of the batch.

        COMPLETED: every request has its result, in the store.
        """
        try:
            while True:
                self._collect()
                await self._send()
                halt = self._halt
                if halt is not None:
                    self._collect()  # answers that came while others were sent
                    self._give_up(only_waiting=halt is BatchStatus.IN_PROGRESS)
                try:
                    await self._record()
                except StoreError as error:
                    self.runner.say(
                        f"{self.order.id}: results are not recorded yet: {error.message}"
                    )
                    await asyncio.sleep(STORE_AGAIN_S)
                status = BatchStatus.COMPLETED if self.schedule.done else halt
                if status is not None and not self._out and not self._unrecorded:
                    return status
                await _wait(self._wake, SENDING_LOOK_S)
        finally:  # an end in order is no death of the gateway
            self._give_up()
            self.schedule.leave()
            with contextlib.suppress(StoreError):
                await self._record()

    async def _record(self) -> None:
        """Store all results so far in one transaction, with what replicas have now."""
        results = self._unrecorded
        under_way = {index for index, call in self._out.items() if not call.waiting}
        if results or under_way != self._recorded:
            await asyncio.to_thread(
                self.runner.store.record, self.order.id, results, under_way, self._began_at
            )
            self._unrecorded = []
            self._recorded = under_way

    def _collect(self) -> None:
        for index, call in list(self._out.items()):
            if call.answer is not None:
                del self._out[index]
                self._answered(index, call.answer)

    def _answered(self, index: int, answer: BatchAnswer) -> None:
        request = self.schedule.out[index]
        if self.schedule.answered(index, answer, time.monotonic()):
            self._unrecorded.append(result_of(request, answer, _name(), time.time()))

    async def _send(self) -> None:
        """Send as many as there is room for, a few at a time: results are recorded in between."""
        for _ in range(BACKLOG - sum(call.waiting for call in self._out.values())):
            if self._halt is not None or not self.runner.gateway.has_room(self.order.owner):
                return
            request = self.schedule.next(time.monotonic())
            if request is None:
                return
            await self._send_one(request)
            self._wake.set()

    async def _send_one(self, request: BatchRequest) -> None:
        order = self.order
        try:
            line = await asyncio.to_thread(
                self.runner.room.read, order.input_file_id, request.start, request.length
            )
            body = body_of(line)
        except (FileNotFoundError, ValueError):
            self._answered(request.index, BatchAnswer(None, fault="input_file_missing"))
            return
        # Asked again: another batch of the same owner may have been quicker.
        if self.runner.gateway.has_room(order.owner):
            self._out[request.index] = self.runner.gateway.send(
                order.owner, order.endpoint, body, self._wake.set
            )
        else:
            self.schedule.take_back(request.index)

    def _give_up(self, *, only_waiting: bool = False) -> None:
        for index, call in list(self._out.items()):
            if call.waiting or not only_waiting:
                call.end()
                self.schedule.take_back(index)
                del self._out[index]


def _name() -> str:
    return f"batch_req_{secrets.token_hex(12)}"


LOOK_S = 2.0  # for what another process wrote
LOCK_AGAIN_S = 0.25
REST_S = 10.0  # after something went wrong with a batch that is not its own fault
TIDY_S = 3600.0


class BatchRunner:
    store: BatchStore

    def __init__(
        self, room: FileStorage, gateway: BatchGatewayPort, say: Callable[[str], None]
    ) -> None:
        self.room = room
        self.gateway = gateway
        self.say = say
        # There is a new batch, or one was cancelled, or the store is another one.
        self.wake = asyncio.Event()
        self.leaving = False
        # By id; None: the batch is being checked, or written to its files.
        self._under_way: dict[str, BatchSender | None] = {}
        self._resting: dict[str, float] = {}
        self._turn: set[BatchSchedule] = set()

    @property
    def busy(self) -> bool:
        """Whether a batch is being checked, sent or written to its files."""
        return bool(self._under_way)

    def leave(self) -> None:
        """Finish what is out and begin nothing: another process takes over."""
        self.leaving = True
        self.wake.set()

    async def run(self, store: BatchStore) -> None:
        """Carry out batches until `leave`, and then until nothing is out; or until the store is
        another one.
        """
        self.store = store
        while not self.leaving:
            try:
                with hold_lock(
                    self.room.folder / ".lock", "a gateway with batches", "it ends by itself"
                ):
                    await self.gateway.ready()
                    async with asyncio.TaskGroup() as tasks:
                        await self._take_up(tasks)
                    return
            except EngineError:
                await _wait(self.wake, LOCK_AGAIN_S)

    async def _take_up(self, tasks: asyncio.TaskGroup) -> None:
        tidy_at = 0.0
        carrying = set[asyncio.Task[None]]()
        while not self.leaving and not await asyncio.to_thread(lambda: self.store.database.moved):
            now = time.monotonic()
            try:
                if now >= tidy_at:
                    await asyncio.to_thread(self._tidy)
                    tidy_at = now + TIDY_S
                unfinished = await asyncio.to_thread(self.store.unfinished, time.time())
                for batch in unfinished:
                    if batch.cancelling and (sender := self._under_way.get(batch.id)) is not None:
                        sender.cancelled = True
                rested = [batch for batch in unfinished if self._resting.get(batch.id, 0.0) <= now]
                if not self.leaving:
                    for batch in choose(rested, self._under_way):
                        self._under_way[batch.id] = None
                        task = tasks.create_task(self._carry(batch.id))
                        carrying.add(task)
                        task.add_done_callback(carrying.discard)
            except (SkepError, OSError) as error:
                self.say(f"batches cannot be looked up: {error}")
            await _wait(self.wake, LOOK_S)
        if not self.leaving:  # the store is another one: what is under way belongs to none
            for task in carrying:
                task.cancel()

    async def _carry(self, batch_id: str) -> None:
        """Carry a batch out to its end, or as far as it comes: it is tried again later."""
        try:
            await self._carry_on(batch_id)
        except Exception as error:  # whatever it is, the other batches go on
            self.say(f"{batch_id} has to wait: {error!r}")
            self._resting[batch_id] = time.monotonic() + REST_S
        finally:
            del self._under_way[batch_id]
            self.wake.set()

    async def _carry_on(self, batch_id: str) -> None:
        batch = await asyncio.to_thread(self.store.batch, batch_id)
        if batch is None or batch.status.is_final:
            return
        if batch.status is BatchStatus.VALIDATING:
            # Its model is known then: it begins when there is room for it.
            await asyncio.to_thread(self._check, batch.order)
            return
        pending, lost = await asyncio.to_thread(
            lambda: (self.store.pending(batch_id), self.store.lost(batch_id))
        )
        schedule = BatchSchedule(pending, lost, self._turn)
        sender = BatchSender(self, batch.order, schedule)
        sender.cancelled = BatchStatus.CANCELLING in batch.times
        self._under_way[batch_id] = sender
        status = await sender.run()
        if BatchStatus.IN_PROGRESS not in batch.times:
            status = BatchStatus.CANCELLED  # before it had any requests
        if status is not BatchStatus.IN_PROGRESS:
            await asyncio.to_thread(self._finish, batch.order, schedule.remaining(), status)

    # In threads

    def _check(self, order: BatchOrder) -> None:
        try:
            with self.room.path(order.input_file_id).open("rb") as file:
                checked = check_lines(file, order.endpoint, self.gateway.complaint_of)
        except FileNotFoundError:
            line_error = LineError(
                "input_file_missing", f"the file {order.input_file_id} is missing", "input_file_id"
            )
            checked = CheckedInput((), None, (line_error,))
        if checked.faults:
            errors = [asdict(fault) for fault in checked.faults]
            self.store.become(order.id, BatchStatus.FAILED, time.time(), errors=errors)
        else:
            self.store.validated(order.id, time.time(), checked.model, checked.requests)

    def _finish(
        self, order: BatchOrder, unanswered: list[BatchRequest], status: BatchStatus
    ) -> None:
        """Write the files of answers and of errors, and end the batch with this status."""
        now = time.time()
        if status is not BatchStatus.CANCELLED:
            self.store.become(order.id, BatchStatus.FINALIZING, now)
        never_sent = (
            result_of(
                request,
                BatchAnswer(None, fault=f"batch_{status}"),
                f"batch_req_{order.id.removeprefix('batch_')}_{request.index}",
                now,
            ).line
            for request in unanswered
        )
        lines_of_kind = {
            "output": self.store.lines(order.id, ok=True),
            "error": chain(self.store.lines(order.id, ok=False), never_sent),
        }
        files: dict[str, StoredFile] = {}
        ended = False
        try:
            for kind, lines in lines_of_kind.items():
                first_line = next(lines, None)
                if first_line is not None:
                    content = chain((first_line,), lines)
                    files[f"{kind}_file_id"] = self._write_output(order, kind, content, now)
            ids = {name: file.id for name, file in files.items()}
            ended = self.store.become(
                order.id,
                status,
                time.time(),
                [*files.values()],
                tally=self.store.tally(order.id),
                **ids,
            )
        finally:
            if not ended:  # a full disk is not filled further, try by try
                for file in files.values():
                    self.room.delete(file.id)
        self.store.forget_ended()

    def _write_output(
        self, order: BatchOrder, kind: str, lines: Iterable[bytes], now: float
    ) -> StoredFile:
        """Write one of the files of a batch that ends."""
        file_id = new_file_id()
        size = self.room.write(file_id, lines)
        return StoredFile(
            id=file_id,
            owner=order.owner,
            created_at=now,
            filename=f"{order.id}_{kind}.jsonl",
            purpose="batch_output",
            bytes=size,
            expires_at=now + BATCH_FILE_S,
        )

    def _tidy(self) -> None:
        """Delete what expired, and what a killed process left behind."""
        for file_id in self.store.expired_files(time.time()):
            if self.store.delete_file(file_id) is None:
                self.room.delete(file_id)
        self.room.sweep(file.id for file in self.store.files())
        self.store.forget_ended()
