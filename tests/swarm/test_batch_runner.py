"""Batches carried out against a gateway that answers at once, and what happens when something is
in the way.
"""

import asyncio
import json
import time

import pytest

from skep.errors import StoreError
from skep.gateway.batch.files import FileStorage, new_file_id
from skep.gateway.batch.runner import BatchRunner
from skep.gateway.batch.scheduler import MOST_OF_KIND, BatchAnswer
from skep.gateway.batch.store import (
    BatchOrder,
    BatchRequest,
    BatchResult,
    BatchStatus,
    BatchStore,
    StoredFile,
)
from skep.store.database import open_store

ENDPOINT = "/v1/chat/completions"


class Sent:
    """One request on its way."""

    def __init__(self, owner):
        self.owner = owner
        self.waiting = True
        self.ended = False
        self.answer = None

    def end(self):
        self.ended = True


class Scripted:
    """A gateway: so many slots, the same answer for all. `silent`: it never answers."""

    def __init__(self, *, slots=3, silent=False, max_open=None, answers=None):
        self.slots = slots
        self.silent = silent
        self.most = max_open
        self.answers = answers  # None: all
        self.sent = []
        self.requests = []
        self.most_waiting = 0

    def complaint_of(self, model):
        return None if model == "m" else f"no {model}"

    def has_room(self, _owner):
        return (
            self.most is None
            or sum(not (request.ended or request.answer) for request in self.requests) < self.most
        )

    async def ready(self):
        pass

    def send(self, owner, endpoint, body, on_end):
        request = Sent(owner)
        number = json.loads(body)["n"]
        self.requests.append(request)
        self.sent.append((owner, endpoint, number))
        if self.silent or (self.answers is not None and len(self.sent) > self.answers):
            request.waiting = sum(not request.waiting for request in self.requests) >= self.slots
        else:
            request.waiting = False
            request.answer = BatchAnswer(200, b"{}")
            asyncio.get_running_loop().call_soon(on_end)
        self.most_waiting = max(
            self.most_waiting, sum(request.waiting for request in self.requests)
        )
        return request


class Bench:
    """A store, a folder, and batches in them."""

    def __init__(self, folder, store):
        self.store = BatchStore(store)
        self.room = FileStorage(folder / "files")
        self.said = []

    def add(self, name, count=5, *, window_s=1000.0, owner="ann"):
        file = new_file_id()
        now = time.time()
        lines = (
            {
                "custom_id": f"c{n}",
                "method": "POST",
                "url": ENDPOINT,
                "body": {"model": "m", "n": n},
            }
            for n in range(count)
        )
        size = self.room.write(file, (json.dumps(line).encode() + b"\n" for line in lines))
        self.store.add_file(StoredFile(file, owner, now, "f", "batch", size))
        self.store.add_batch(BatchOrder(name, owner, now, ENDPOINT, file, "24h", now + window_s))
        return file

    def carry_out(self, make_gateway, *, until=None, store=None):
        """Until every batch has ended, and then the runner is told to leave; or it is cut off at
        some point.
        """

        async def work():
            gateway = make_gateway()
            runner = BatchRunner(self.room, gateway, self.said.append)
            async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
                running = tasks.create_task(runner.run(store or self.store))
                while self.store.unfinished(0.0) if until is None else not until(gateway):
                    await asyncio.sleep(0.005)
                runner.leave() if until is None else running.cancel()
            return gateway

        return asyncio.run(work())

    def told(self, name):
        detail = self.store.batch(name).detail
        ids = (detail.get("output_file_id"), detail.get("error_file_id"))
        lines = [
            self.room.path(file_id).read_bytes().splitlines() if file_id else [] for file_id in ids
        ]
        return [[json.loads(line) for line in line] for line in lines]


@pytest.fixture
def bench(tmp_path):
    with open_store(tmp_path / "skep.sqlite3") as store:
        yield Bench(tmp_path, store)


def test_batches_are_carried_out_with_the_rights_of_their_owners(bench):
    bench.add("batch_1", 20, owner="ann")
    bench.add("batch_2", 20, owner="bob")
    gateway = bench.carry_out(Scripted)
    assert sorted(gateway.sent) == sorted(
        (owner, ENDPOINT, n) for owner in ("ann", "bob") for n in range(20)
    )
    output, errors = bench.told("batch_1")
    assert ([line["custom_id"] for line in output], errors) == ([f"c{n}" for n in range(20)], [])
    assert (bench.store.pending("batch_1"), bench.said) == ([], [])


def test_a_few_wait_for_a_slot_and_a_process_that_ends_in_order_leaves_nothing_begun(bench):
    """What finds no slot waits in the gateway's queue, where others wait too; only what a replica
    has is begun.
    """
    bench.add("batch_1", 20)
    begun = {}

    def under_way(gateway):
        begun.update(bench.store.lost("batch_1"))
        return (len(gateway.sent), len(begun)) == (5, 3)

    gateway = bench.carry_out(lambda: Scripted(slots=3, silent=True), until=under_way)
    assert (gateway.most_waiting, set(begun.values())) == (2, {1})
    assert all(request.ended for request in gateway.requests)  # nobody is left to hear the answers
    assert (len(bench.store.pending("batch_1")), bench.store.lost("batch_1")) == (20, {})


def test_what_the_gateway_does_not_take_stays_here(bench):
    bench.add("batch_1", 20)
    gateway = bench.carry_out(
        lambda: Scripted(silent=True, max_open=2), until=lambda gateway: len(gateway.sent) == 2
    )
    assert len(gateway.sent) == 2


def test_many_batches_of_one_owner_keep_nobody_elses_and_no_cancelled_one_waiting(
    bench,
):
    """One owner's batches once had all the room there is, until one of them ended."""
    for number in range(MOST_OF_KIND + 4):
        bench.add(f"batch_{number}", 1)
    last = f"batch_{MOST_OF_KIND + 3}"

    class Late(Scripted):
        def send(self, *args):
            if len(self.sent) == MOST_OF_KIND - 1:
                bench.add("batch_bob", 3, owner="bob")
                bench.store.become(last, BatchStatus.CANCELLING, time.time())
            return super().send(*args)

    def both(gateway):
        bobs = sum(owner == "bob" for owner, _, _ in gateway.sent)
        return bobs == 3 and bench.store.batch(last).status is BatchStatus.CANCELLED

    bench.carry_out(lambda: Late(slots=100, silent=True), until=both)


def test_cancelled_or_finalizing_batches_and_those_without_a_file_end_unsent(
    bench,
):
    bench.add("cancelled")
    bench.store.become("cancelled", BatchStatus.CANCELLING, time.time())
    bench.add("finalizing", 1)
    bench.store.validated("finalizing", 1.0, "m", [BatchRequest(0, "c0", 0, 1)])
    bench.store.record("finalizing", [BatchResult(0, 2.0, ok=True, line=b'{"custom_id": "c0"}\n')])
    bench.store.become("finalizing", BatchStatus.FINALIZING, 3.0)
    bench.room.delete(bench.add("gone"))
    gateway = bench.carry_out(Scripted)
    assert (bench.store.batch("cancelled").status, bench.told("cancelled")) == (
        BatchStatus.CANCELLED,
        [[], []],
    )
    assert (gateway.sent, bench.told("finalizing")) == ([], [[{"custom_id": "c0"}], []])
    vanished = bench.store.batch("gone")
    assert (vanished.status, vanished.detail["errors"][0]["code"]) == (
        BatchStatus.FAILED,
        "input_file_missing",
    )


@pytest.mark.parametrize(
    ("window_s", "answers", "answered"),
    [(-1.0, None, 0), (1.0, 4, 4)],
    ids=["before", "under way"],
)
def test_what_is_not_done_in_its_window_expires(bench, window_s, answers, answered):
    """Also where it passed while nobody served: then nothing is sent."""
    bench.add("batch_1", 10, window_s=window_s)
    gateway = bench.carry_out(lambda: Scripted(slots=3, answers=answers))
    output, errors = bench.told("batch_1")
    assert (bench.store.batch("batch_1").status, len(output)) == (BatchStatus.EXPIRED, answered)
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert sorted(line["custom_id"] for line in output + errors) == [f"c{n}" for n in range(10)]
    assert bool(gateway.sent) is bool(answered)


def test_a_file_that_goes_meanwhile_ends_what_was_not_sent(bench):
    class Careless(Scripted):
        def send(self, *args):
            if len(self.sent) == 3:
                bench.room.delete(file)
            return super().send(*args)

    file = bench.add("batch_1", 10)
    gateway = bench.carry_out(Careless)
    output, errors = bench.told("batch_1")
    assert [line["custom_id"] for line in output] == [
        f"c{number}" for _, _, number in gateway.sent
    ]
    assert {line["error"]["code"] for line in errors} == {"input_file_missing"}
    assert len(output) + len(errors) == 10


def test_a_disk_that_is_full_at_the_end_is_not_filled_further(bench):
    """The first of the two files is written; what is left of it when the second is not, is
    deleted.
    """

    class Full(FileStorage):
        def write(self, file_id, pieces):
            all_pieces = list(pieces)
            if any(b"batch_expired" in piece for piece in all_pieces):
                raise OSError(28, "No space left on device")
            return super().write(file_id, all_pieces)

    bench.add("batch_1", 3, window_s=1.0)
    room = bench.room
    before = set(bench.room.folder.iterdir())
    bench.room = Full(room.folder)
    bench.carry_out(lambda: Scripted(answers=1), until=lambda _gateway: bench.said)
    assert set(room.folder.iterdir()) - before == {room.folder / ".lock"}
    assert "No space" in bench.said[0]
    bench.room = room
    bench.carry_out(Scripted)
    assert [len(lines) for lines in bench.told("batch_1")] == [1, 2]


def test_a_store_that_is_full_for_a_while_gets_every_result(bench):
    class Full(BatchStore):
        refusals = 1

        def record(self, *args):
            if self.refusals:
                self.refusals -= 1
                raise StoreError("the disk is full")
            super().record(*args)

    bench.add("batch_1", 8)
    gateway = bench.carry_out(Scripted, store=Full(bench.store.database))
    assert (len(gateway.sent), len(bench.told("batch_1")[0])) == (8, 8)
    assert "disk is full" in bench.said[0]


def test_two_processes_do_not_work_on_the_same_batch(bench):
    bench.add("batch_1", 30)

    async def both():
        gateways = [Scripted(), Scripted()]
        runners = [BatchRunner(bench.room, gateway, bench.said.append) for gateway in gateways]
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for runner in runners:
                tasks.create_task(runner.run(bench.store))
            while bench.store.unfinished(0.0):
                await asyncio.sleep(0.005)
            for runner in runners:
                runner.leave()
        return gateways

    gateways = asyncio.run(both())
    assert sorted(len(gateway.sent) for gateway in gateways) == [0, 30]


def test_what_expired_and_what_was_left_behind_is_tidied_away(bench):
    file = bench.add("batch_1", 1)
    bench.carry_out(Scripted)
    old = new_file_id()
    bench.room.write(old, [b"x"])
    bench.store.add_file(StoredFile(old, "", 0.0, "f", "batch", 1, expires_at=1.0))
    bench.carry_out(Scripted, until=lambda _gateway: bench.store.file(old) is None)
    assert not bench.room.path(old).exists()
    assert bench.room.path(file).exists()
