"""Batches through a real gateway process in front of a real fake engine, with the client that
everybody uses.
"""

import json
import re
import shutil
import time
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from api_clients import openai
from skep.config.keys import digest_of
from skep.gateway.batch.scheduler import MOST_LOST, MOST_OF_KIND
from skep.gateway.batch.store import BatchStore
from skep.store.database import open_store
from skep.testing.process import FakeEngine, GatewayProcess
from skep.wire.heads import gateway_fields

SHARERS = ("one", "pages", "wrong", "refused", "faults", "cancel", "person")
TWO_AT_ONCE = ("ann", "bob")
SLOTS = 4
SLOW = 40  # tokens, a millisecond each
ENDED = ("completed", "failed", "expired", "cancelled")


def line(name, tokens=2, **fields):
    body = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": f"say {name}"}],
        "max_tokens": tokens,
    }
    return {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
        **fields,
    }


def jsonl(lines):
    return "".join(
        f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines
    ).encode()


@cache
def base():
    """Making a client takes longer than a whole batch."""
    return openai.OpenAI(base_url="http://x", api_key="none", max_retries=0, timeout=20)


class Client:
    """What a user of batches does, in few words."""

    def __init__(self, gateway, key="none"):
        self.api = base().with_options(base_url=f"{gateway.url}/v1", api_key=key)

    def upload(self, lines):
        return self.api.files.create(file=("tasks.jsonl", jsonl(lines)), purpose="batch")

    def begin(self, lines, window="24h", endpoint="/v1/chat/completions"):
        return self.api.batches.create(
            input_file_id=self.upload(lines).id,
            endpoint=endpoint,
            completion_window=window,
            metadata={"a": "b"},
        )

    def when(self, batch, condition):
        deadline = time.monotonic() + 20
        while not condition(batch):
            assert time.monotonic() < deadline, batch
            time.sleep(0.01)
            batch = self.api.batches.retrieve(batch.id)
        return batch

    def ended(self, batch):
        return self.when(batch, lambda current: current.status in ENDED)

    def lines(self, file_id):
        if file_id:
            return [
                json.loads(splitline)
                for splitline in self.api.files.content(file_id).text.splitlines()
            ]
        return []

    def names(self, batch):
        """Of every request that either file tells of."""
        results = self.lines(batch.output_file_id) + self.lines(batch.error_file_id)
        return sorted(result["custom_id"] for result in results)


def places(folder):
    return {"store": str(folder / "skep.sqlite3"), "files": str(folder / "files")}


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=SLOTS, token_ms=1) as running:
        yield running


@pytest.fixture(scope="module")
def keys():
    """One for each test, so that none sees what another one has."""
    bounds = dict.fromkeys(SHARERS) | dict.fromkeys(TWO_AT_ONCE, 2) | {"solo": 1}
    return [
        {"name": name, "sha256": digest_of(f"k-{name}"), "max_concurrent": limit}
        for name, limit in bounds.items()
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def shared(engine, keys, folder):
    """One gateway for most tests: starting one takes longer than a whole batch."""
    with GatewayProcess(folder / "log", batches=places(folder), keys=keys) as gateway:
        gateway.serve(
            [
                {
                    "name": "r0",
                    "model": "fake-model",
                    "url": engine.url,
                    "slots": SLOTS,
                    "confirms": "slots",
                }
            ]
        )
        yield gateway
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture
def batching(start_gateway, tmp_path):
    """Starts gateways that keep their batches in one folder, in front of an engine."""

    def start(engine, slots=SLOTS, models=(), keys=(), **options):
        gateway = start_gateway(batches={**places(tmp_path / "data"), **options}, keys=list(keys))
        gateway.serve_engines(engine, slots=slots, models=models)
        return gateway

    return start


@dataclass
class CarriedOut:
    """A batch of ten requests that has ended, of which one was wrong for its engine."""

    client: Client
    lines: list
    file: object  # the input file, as its upload was answered
    ordered: object  # the batch, as it was answered when it was made
    batch: object

    @property
    def names(self):
        return [line["custom_id"] for line in self.lines]


@pytest.fixture(scope="module")
def carried_out(shared):
    client = Client(shared, "k-one")
    lines = [line(f"task {i} é") for i in range(10)]
    lines[3]["body"]["max_tokens"] = -1
    file = client.upload(lines)
    ordered = client.api.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"who": "test"},
    )
    return CarriedOut(client, lines, file, ordered, client.ended(ordered))


def test_a_file_of_the_openai_client_is_stored_as_it_was_uploaded(carried_out):
    file = carried_out.file
    content = jsonl(carried_out.lines)
    assert (file.object, file.purpose, file.filename) == ("file", "batch", "tasks.jsonl")
    assert file.bytes == len(content)
    assert carried_out.client.api.files.content(file.id).content == content


def test_a_new_batch_of_the_openai_client_is_shown_as_ordered(carried_out):
    batch = carried_out.ordered
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"who": "test"})
    assert batch.expires_at == pytest.approx(batch.created_at + 86_400, abs=1)


def test_a_batch_of_the_openai_client_is_carried_out(carried_out):
    batch = carried_out.batch
    counts = batch.request_counts
    assert batch.status == "completed"
    assert (counts.total, counts.completed, counts.failed) == (10, 9, 1)
    assert (batch.model, batch.usage.output_tokens, batch.errors) == ("fake-model", 18, None)
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert all(early <= late for early, late in pairwise(times))


def test_answers_of_a_batch_are_in_its_output_file(carried_out):
    output = carried_out.client.lines(carried_out.batch.output_file_id)
    names = carried_out.names
    assert [line["custom_id"] for line in output] == [*names[:3], *names[4:]]
    for result in output:
        assert result["error"] is None
        assert result["response"]["status_code"] == 200
        assert result["id"].startswith("batch_req_")
        assert result["response"]["request_id"]
    assert output[0]["response"]["body"]["usage"]["completion_tokens"] == 2


def test_a_request_that_its_engine_refuses_is_in_the_file_of_errors(carried_out):
    (error,) = carried_out.client.lines(carried_out.batch.error_file_id)
    assert error["custom_id"] == carried_out.names[3]
    assert (error["response"]["status_code"], error["error"]) == (400, None)


def test_files_of_a_batch_are_listed_until_they_are_deleted_and_the_batch_stays(carried_out):
    client = carried_out.client
    batch = carried_out.batch
    file = carried_out.file
    files = {listed.id: listed for listed in client.api.files.list()}
    assert set(files) == {file.id, batch.output_file_id, batch.error_file_id}
    assert files[batch.output_file_id].purpose == "batch_output"
    assert [listed.id for listed in client.api.files.list(purpose="batch")] == [file.id]
    assert client.api.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.api.files.retrieve(file.id)
    assert client.api.batches.retrieve(batch.id) == batch


def test_pages_of_files_and_batches_follow_each_other(shared):
    client = Client(shared, "k-pages")
    oldest, middle, newest = (client.begin([line("a")]) for _ in range(3))
    # The client turns the pages.
    listed_batches = [batch.id for batch in client.api.batches.list(limit=2)]
    assert listed_batches == [newest.id, middle.id, oldest.id]
    first_page = client.api.batches.list(limit=2)
    assert [batch.id for batch in first_page.data] == [newest.id, middle.id]
    assert first_page.has_more
    listed_files = [file.id for file in client.api.files.list(limit=1, purpose="batch")]
    assert listed_files == [batch.input_file_id for batch in (newest, middle, oldest)]
    for wrong in ({"limit": 0}, {"limit": 101}, {"after": "batch_unknown"}):
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
            client.api.batches.list(**wrong)


WRONG = {  # each fault of a line is in tests/swarm/test_batch_files.py
    "broken JSON": ([line("a"), '{"custom_id": '], "invalid_json_line", 2),
    "an unknown model": (
        [line("a", body={"model": "who"}), line("b", body={"model": "who"})],
        "model_not_found",
        1,
    ),
    "nothing": (["", "  "], "empty_file", None),
}


def test_a_file_that_is_wrong_fails_its_batch_before_a_request_is_sent(shared, engine):
    client = Client(shared, "k-wrong")
    before = engine.state()["requests"]
    begun = {case: client.begin(lines) for case, (lines, _, _) in WRONG.items()}
    for case, batch in begun.items():
        ended = client.ended(batch)
        _, code, number = WRONG[case]
        assert (ended.status, ended.failed_at is not None, ended.output_file_id) == (
            "failed",
            True,
            None,
        ), case
        assert [(error.code, error.line) for error in ended.errors.data] == [(code, number)], case
        assert ended.errors.data[0].message
    assert engine.state()["requests"] == before


NAMES = {
    "../../etc/passwd": "passwd",
    "C:\\x\\y.txt": "y.txt",
    "a\r\nb\x1b[31m": "a__b_[31m",
    "..": "upload",
}


def test_what_cannot_be_asked_for_is_refused_at_once(shared):
    client = Client(shared, "k-refused")
    file = client.upload([line("a")])
    fine = {
        "input_file_id": file.id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    for name, value in {
        "completion_window": "25h",
        "input_file_id": "file-000000000000000000000000",
    }.items():
        with pytest.raises(openai.BadRequestError) as refused:
            client.api.batches.create(**{**fine, name: value})
        assert (refused.value.param, bool(refused.value.body["message"])) == (name, True)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.api.files.create(file=("a.jsonl", b"{}"), purpose="art")
    with pytest.raises(openai.BadRequestError, match="multipart"):
        client.api.post("/files", body={"purpose": "batch"}, cast_to=object)
    for path in ("/files/%00", "/batches/x/y", "/files/file-1/other"):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            client.api.get(path, cast_to=object)
    filenames = [
        client.api.files.create(file=(name, b"x"), purpose="batch").filename for name in NAMES
    ]
    assert filenames == list(NAMES.values()), "the name of a file is plain"


def test_a_batch_outlives_its_gateways(batching, engine):
    """Killed: only what was under way is asked again.

    Replaced: it finishes what it has out, and nothing is.
    """
    first = batching(engine)
    before = engine.state()["requests"]
    batch = Client(first).begin([line(f"c{i}", tokens=10) for i in range(120)])
    Client(first).when(batch, lambda current: current.request_counts.completed >= 10)
    first.process.kill()
    first.process.wait()
    sent = engine.state()["requests"] - before
    second = batching(engine)
    recorded = Client(second).api.batches.retrieve(batch.id)
    # In its slots, waiting, or not yet recorded.
    assert sent - recorded.request_counts.completed <= 2 * SLOTS + 2
    Client(second).when(batch, lambda current: current.request_counts.completed >= 40)
    client = Client(batching(engine))
    assert second.ask(op="drain", hand_over=True, timeout_s=10)["left"] == 0
    batch = client.ended(batch)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == (
        "completed",
        120,
        0,
    )
    assert client.names(batch) == sorted(f"c{i}" for i in range(120))
    assert engine.state()["requests"] - before <= 120 + 2 * SLOTS + 2


def test_a_request_that_is_under_way_whenever_the_gateway_dies_is_set_aside(batching, tmp_path):
    """Each new gateway once began it anew, until its batch expired."""
    with (
        FakeEngine(slots=2, token_ms=100) as engine,
        open_store(tmp_path / "data" / "skep.sqlite3") as opened,
    ):
        store = BatchStore(opened)
        gateway = batching(engine, slots=2)
        batch = Client(gateway).begin(
            [line("killer", 8000), *(line(f"c{i}", 1) for i in range(3))]
        )
        Client(gateway).when(batch, lambda current: current.request_counts.completed == 3)
        assert store.lost(batch.id) == {0: 1}
        for life in range(1, MOST_LOST):  # so it was before
            store.record(batch.id, under_way=[0], since=float(life))
        gateway.process.kill()
        gateway.process.wait()
        client = Client(batching(engine, slots=2))
        batch = client.ended(batch)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == (
            "completed",
            3,
            1,
        )
        (error_line,) = client.lines(batch.error_file_id)
        assert (error_line["custom_id"], error_line["error"]["code"]) == ("killer", "gateway_died")
        assert f"{MOST_LOST} times" in error_line["error"]["message"]


def test_cancelling_keeps_what_is_done_and_names_the_rest(shared, engine):
    client = Client(shared, "k-cancel")
    batch = client.begin([line(f"c{i}", SLOW) for i in range(40)])
    client.when(batch, lambda current: current.request_counts.completed >= 3)
    with pytest.raises(openai.ConflictError, match="cancel that first"):
        client.api.files.delete(batch.input_file_id)
    assert client.api.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = client.ended(batch)
    assert batch.status == "cancelled"
    assert 3 <= batch.request_counts.completed < 40
    assert len(client.lines(batch.output_file_id)) == batch.request_counts.completed
    assert {line["error"]["code"] for line in client.lines(batch.error_file_id)} == {
        "batch_cancelled"
    }
    assert client.names(batch) == sorted(f"c{i}" for i in range(40))
    engine.wait_for(running=0)
    with pytest.raises(openai.ConflictError, match="cancelled"):
        client.api.batches.cancel(batch.id)


@pytest.mark.parametrize(("key", "running", "times"), [("k-person", SLOTS, 1), ("k-solo", 1, 3)])
def test_a_person_does_not_wait_behind_a_batch_also_with_a_key_of_one_request(
    shared, engine, key, running, times
):
    """The whole batch takes forty seconds and more; a person waits for one of the requests that
    have the slots. Each is long enough that a busy machine has them in the engine together.
    """
    client = Client(shared, key)
    batch = client.begin([line(f"c{i}", 5 * SLOW) for i in range(800)])
    for _ in range(times):
        engine.wait_for(running=running)
        answer = client.api.chat.completions.with_raw_response.create(**line("x")["body"])
        assert float(gateway_fields(answer.headers["x-skep"])["queue-ms"]) < 2000
    client.api.batches.cancel(batch.id)
    batch = client.ended(batch)
    assert (batch.status, batch.request_counts.failed) == ("cancelled", 0)


def test_a_batch_waits_for_an_engine_that_is_full_or_lost(shared, engine):
    engine.fault(kind="429", times=2, retry_after_s=0)
    engine.fault(kind="503", times=1, retry_after_s=0)
    engine.fault(kind="close-first", times=3)
    engine.fault(kind="short-body", times=1)
    client = Client(shared, "k-faults")
    batch = client.ended(client.begin([line(f"c{i}") for i in range(12)]))
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == (
        "completed",
        12,
        0,
    )


def test_an_answer_without_an_end_is_given_up_and_frees_its_slot(batching):
    """It once filled the gateway's memory until the kernel killed the process."""
    with FakeEngine(slots=1, token_ms=1) as engine:
        engine.fault(kind="endless")
        gateway = batching(engine, slots=1)
        client = Client(gateway)
        batch = client.ended(client.begin([line(f"c{i}") for i in range(3)]))
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == (
            "completed",
            2,
            1,
        )
        (error_line,) = client.lines(batch.error_file_id)
        assert (error_line["response"], error_line["error"]["code"]) == (None, "answer_too_large")
        assert "64 MiB" in error_line["error"]["message"]
        assert engine.state()["hangups"] == 1
    (peak,) = re.findall(
        r"VmHWM:\s+(\d+) kB", Path(f"/proc/{gateway.process.pid}/status").read_text()
    )
    assert int(peak) < 400_000


def test_batches_for_a_model_that_is_not_there_do_not_block_those_for_another(batching, engine):
    client = Client(batching(engine, models=("fake-model", "asleep")))
    asleep = {"model": "asleep", "messages": []}
    waiting = [client.begin([line("a", body=asleep)]) for _ in range(MOST_OF_KIND + 1)]
    client.when(waiting[-2], lambda current: current.status == "in_progress")
    batch = client.ended(client.begin([line(f"c{i}") for i in range(3)]))
    assert (batch.status, batch.request_counts.completed) == ("completed", 3)
    assert all(
        client.api.batches.retrieve(batch.id).request_counts.failed == 0 for batch in waiting
    )


def test_files_and_batches_are_shown_to_the_key_that_made_them_alone(shared):
    ann = Client(shared, "k-ann")
    bob = Client(shared, "k-bob")
    with pytest.raises(openai.AuthenticationError):
        Client(shared, "k-eve").api.files.list()
    batch = ann.begin([line("a")])
    for look in (bob.api.batches.retrieve, bob.api.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            look(batch.id)
    for look in (bob.api.files.retrieve, bob.api.files.content, bob.api.files.delete):
        with pytest.raises(openai.NotFoundError):
            look(batch.input_file_id)
    with pytest.raises(openai.BadRequestError, match="No such File"):
        bob.api.batches.create(
            input_file_id=batch.input_file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
    assert (list(bob.api.files.list()), list(bob.api.batches.list())) == ([], [])
    ann.ended(batch)


def set_keys(gateway, keys):
    gateway.send({"op": "settings", "keys": keys})
    gateway.ask(op="status")  # it has heard of the keys when it answers this


def test_a_batch_counts_among_the_requests_of_its_key_and_fails_without_it(
    shared, engine, keys, folder
):
    """Of the two requests that the key may have at once, one is left for other things."""
    ann = Client(shared, "k-ann")
    batches = [ann.begin([line(f"c{i}", SLOW) for i in range(40)]) for _ in range(2)]
    for _ in range(3):
        assert engine.state()["running"] <= 1
        ann.api.chat.completions.create(**line("x")["body"])
    batch = ann.when(batches[1], lambda current: current.request_counts.completed >= 2)
    others = [key for key in keys if key["name"] != "ann"]
    set_keys(shared, others)
    with pytest.raises(openai.AuthenticationError):
        ann.api.batches.retrieve(batch.id)
    with open_store(folder / "skep.sqlite3") as store:
        while not BatchStore(store).batch(batch.id).status.is_final:
            time.sleep(0.01)
    set_keys(shared, [*others, {"name": "ann", "sha256": digest_of("k-new")}])
    renewed = Client(shared, "k-new")
    batch = renewed.ended(batch)
    counts = batch.request_counts
    assert (batch.status, counts.completed + counts.failed) == ("completed", 40)
    refused = [result["response"] for result in renewed.lines(batch.error_file_id)]
    assert {
        (response["status_code"], response["body"]["error"]["code"]) for response in refused
    } == {(401, "invalid_api_key")}
    assert renewed.names(batch) == sorted(f"c{i}" for i in range(40))
    shared.send({"op": "settings", "keys": keys})


def test_a_store_that_cannot_be_written_or_is_deleted_is_opened_when_it_can_be(
    batching, engine, tmp_path
):
    """Ordinary requests are served all the while;
    a batch that was in the deleted store is gone.
    """
    folder = tmp_path / "data"
    folder.write_text("in the way")
    client = Client(batching(engine))
    with pytest.raises(openai.InternalServerError, match="cannot be stored now"):
        client.upload([line("a")])
    assert client.api.chat.completions.create(**line("x")["body"]).usage.completion_tokens == 2
    folder.unlink()
    lost = client.begin([line(f"c{i}", SLOW) for i in range(400)])
    engine.wait_for(running=SLOTS)
    shutil.rmtree(folder)
    with pytest.raises(openai.NotFoundError):
        client.api.batches.retrieve(lost.id)
    batch = client.ended(client.begin([line("a")]))
    assert (batch.status, client.names(batch)) == ("completed", ["a"])
    assert [listed.id for listed in client.api.batches.list()] == [batch.id]
    engine.wait_for(running=0)
