"""The gateway's journal: lines and rows of ended requests, and that nothing which befalls them harms the gateway."""

from __future__ import annotations

import io
import json
import queue
import threading

import pytest

from skep.gateway.request_log import MAX_TEXT, RequestLog, RequestLogWriter, quoted, request_line
from skep.store.database import open_store
from skep.store.records import GatewayRequest
from skep.store.rows import gateway_values

ROW = GatewayRequest(
    id="k3xq9a-1", arrived_at=1_794_752_553.25, path="/v1/chat/completions", model="smol", priority="normal",
    flow="agent-7", replica="r0", attempts=1, outcome="answered", status=200, code=None, streamed=True, queued_s=0.4125,
    first_byte_s=0.18, ended_s=3.2041, prompt_tokens=20, cached_tokens=16, output_tokens=100, request_bytes=512,
    response_bytes=4096,
)  # fmt: skip
FIELDS = GatewayRequest.__dataclass_fields__
NASTY = [
    "two words", 'a"b', "a\nrequest.done id=forged", "a\r\x1b[2J\x00\x7f", "a=b", "", "\u2028\u0085", "modèle",
    "\ud83d", "\\",
]  # fmt: skip


def values(**changes) -> tuple:
    unknown = set(changes) - set(FIELDS)
    assert not unknown
    return tuple(changes.get(name, value) for name, value in zip(FIELDS, gateway_values(ROW), strict=True))


class Lines:
    """A stream whose writes can be awaited, and held up."""

    def __init__(self) -> None:
        self.writes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.free = threading.Event()
        self.free.set()

    def write(self, text: str) -> None:
        self.free.wait(30)
        self.writes.put(text)

    def flush(self) -> None:
        pass

    def next(self) -> str:
        return self.writes.get(timeout=30)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "skep.sqlite3"


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def ledger(path, stream):
    made = RequestLogWriter(path, stream)
    yield made
    made.close()


def ids(path) -> list[str]:
    with open_store(path, read_only=True) as store:
        return [row.id for row in reversed(store.gateway_requests())]


def events(stream) -> list[str]:
    return [line for line in stream.getvalue().splitlines() if line.startswith("journal.")]


def test_a_line_tells_all_there_is_to_tell():
    assert request_line(values()) == (
        "request.done id=k3xq9a-1 at=2026-11-15T14:22:33.250Z path=/v1/chat/completions model=smol priority=normal"
        " flow=agent-7 replica=r0 attempts=1 outcome=answered status=200 streamed=1"
        " queued_s=0.412 first_byte_s=0.180 ended_s=3.204"
        " prompt_tokens=20 cached_tokens=16 output_tokens=100 request_bytes=512 response_bytes=4096\n"
    )


def test_what_is_not_known_is_left_out():
    optional = ("model", "flow", "replica", "status", "queued_s", "first_byte_s")
    unknown = dict.fromkeys((*optional, "prompt_tokens", "cached_tokens", "output_tokens"))
    assert request_line(values(**unknown, outcome="refused", code="queue_full", streamed=False)) == (
        "request.done id=k3xq9a-1 at=2026-11-15T14:22:33.250Z path=/v1/chat/completions priority=normal"
        " attempts=1 outcome=refused code=queue_full streamed=0 ended_s=3.204 request_bytes=512 response_bytes=4096\n"
    )


@pytest.mark.parametrize("field", ["id", "path", "model", "flow", "replica", "code"])
@pytest.mark.parametrize("name", NASTY)
def test_no_name_can_forge_a_line_or_a_field(field, name):
    """Clients choose the model's name and their own; a log must tell theirs from ours."""
    line = request_line(values(**{field: name}))
    assert line.isascii()
    assert line.removesuffix("\n").isprintable()
    assert line.count("\n") == 1
    assert f" {field}={quoted(name)} " in line
    assert json.loads(quoted(name)) == name


@pytest.mark.parametrize("field", ["prompt_tokens", "ended_s", "response_bytes"])
@pytest.mark.parametrize("value", ["7\nrequest.done", [7], {"a": 1}])
def test_a_row_of_nonsense_is_counted_and_its_neighbours_are_kept(ledger, path, stream, field, value):
    """An engine may say anything in `usage`; whoever forgets to check it loses that row only."""
    ledger.write([values(id="a"), values(id="b", **{field: value}), values(id="c")], 0.0)
    assert ids(path) == ["a", "c"]
    assert ledger.unwritten == 1
    (event,) = events(stream)
    assert event.startswith('journal.failed why="a request does not fit')


@pytest.mark.parametrize("bad", [{"outcome": "exploded"}, {"prompt_tokens": 10**30}, {"ended_s": float("nan")}])
def test_a_row_that_the_table_refuses_costs_itself_only(ledger, path, stream, bad):
    ledger.write([values(id="a"), values(id="b", **bad), values(id="c")], 0.0)
    ledger.write([values(id="d", **bad), values(id="e")], 0.0)
    assert ids(path) == ["a", "c", "e"]
    assert ledger.unwritten == 2
    assert len(events(stream)) == 1


@pytest.mark.parametrize("row", [(), ("a",), (*values(), 1)])
def test_a_tuple_of_another_length_is_refused(ledger, path, row):
    ledger.write([row, values()], 0.0)
    assert ids(path) == [ROW.id]
    assert ledger.unwritten == 1


def test_names_of_a_megabyte_are_cut(ledger, path, stream):
    """In the log and in the store alike."""
    ledger.write([values(model="m" * 1_000_000, flow="é" * 300, path="/" + "p" * MAX_TEXT)], 0.0)
    with open_store(path, read_only=True) as store:
        (row,) = store.gateway_requests()
    assert (len(row.model), len(row.flow), len(row.path)) == (MAX_TEXT, MAX_TEXT, MAX_TEXT)
    assert row.model.endswith("m…")
    assert len(stream.getvalue()) < 3000


def test_a_batch_is_one_write_to_the_log():
    lines = Lines()
    RequestLogWriter(None, lines).write([values(id=f"a-{i}") for i in range(130)], 0.0)
    assert lines.next().count("\n") == 130
    assert lines.writes.empty()


def test_without_a_store_there_are_lines_only(tmp_path):
    lines = Lines()
    with RequestLog(None, lines, every_s=0.01) as journal:
        journal.add(values())
        assert lines.next() == request_line(values())
    assert journal.unwritten == 0
    assert list(tmp_path.iterdir()) == []


def test_rows_are_written_without_being_asked(path):
    """The thread looks by itself; what it said in the log is in the store a moment later, at the latest at the end."""
    lines = Lines()
    with RequestLog(path, lines, every_s=0.01) as journal:
        for i in range(3):
            journal.add(values(id=f"a-{i}"))
            assert f"id=a-{i} " in lines.next()
    assert ids(path) == ["a-0", "a-1", "a-2"]
    assert repr(journal) == "<RequestLog 0 pending, 0 dropped, 0 not in the store>"


@pytest.mark.parametrize("started", [True, False])
def test_closing_writes_what_is_pending(path, stream, started):
    """However long the thread would have slept, and even if it was never started."""
    journal = RequestLog(path, stream, every_s=3600)
    if started:
        journal.start()
    for i in range(2500):
        journal.add(values(id=f"a-{i}", arrived_at=float(i)))
    assert journal.close(30)
    assert journal.close(30)
    assert ids(path) == [f"a-{i}" for i in range(2500)]
    assert stream.getvalue().count("\n") == 2500


def test_a_full_buffer_drops_rows_and_counts_them(path, stream):
    """Memory is bounded; the rows that were there first are kept."""
    journal = RequestLog(path, stream, every_s=3600, max_pending=10)
    for i in range(15):
        journal.add(values(id=f"a-{i}"))
    assert journal.dropped == 5
    assert repr(journal) == "<RequestLog 10 pending, 5 dropped, 0 not in the store>"
    journal.close(30)
    assert ids(path) == [f"a-{i}" for i in range(10)]
    (event,) = events(stream)
    assert "5 requests ended while 10 others waited" in event


def test_a_stream_that_blocks_holds_up_neither_the_gateway_nor_its_end(path):
    """As the pipe of a terminal does that was stopped with Ctrl-S."""
    lines = Lines()
    lines.free.clear()
    journal = RequestLog(path, lines, every_s=0.001)
    journal.start()
    journal.add(values(id="a-0"))
    while journal._pending:  # the thread has taken it, and is stuck with it
        pass
    journal.add(values(id="a-1"))
    assert journal.close(0.01) is False
    lines.free.set()
    assert journal.close(30)
    assert ids(path) == ["a-0", "a-1"]


def test_a_log_on_a_full_disk_costs_lines_only(path):
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - closing it fails too
    ledger = RequestLogWriter(path, full)
    ledger.write([values(id="a")], 0.0)
    ledger.write([values(id="b")], 0.0)
    ledger.close()
    assert ids(path) == ["a", "b"]
    with pytest.raises(OSError):
        full.close()


def test_a_closed_stream_costs_lines_only(path, stream):
    ledger = RequestLogWriter(path, stream)
    stream.close()
    ledger.write([values(id="a")], 0.0)
    ledger.close()
    assert ids(path) == ["a"]


def test_a_store_that_cannot_be_opened_is_told_once_and_tried_again(tmp_path, stream):
    """Lines go on; the way out is named; after the pause the store is there."""
    path = tmp_path / "folder" / "skep.sqlite3"
    path.parent.touch()
    ledger = RequestLogWriter(path, stream, retry_s=30)
    for now in (0.0, 1.0, 29.0, 31.0):
        ledger.write([values(id=f"at-{now}")], now)
    assert ledger.unwritten == 4
    (event,) = events(stream)
    assert "cannot be opened" in event
    assert "tried again every 30 s" in event
    path.parent.unlink()
    ledger.write([values(id="too-early")], 32.0)
    ledger.write([values(id="later")], 62.0)
    assert ledger.unwritten == 5
    assert events(stream)[1:] == ["journal.resumed unwritten=5"]
    assert stream.getvalue().count("request.done") == 6
    ledger.close()
    assert ids(path) == ["later"]


def test_a_damaged_store_is_left_as_it_is(path, stream):
    path.parent.mkdir()
    path.write_bytes(b"\xa5" * 8192)
    ledger = RequestLogWriter(path, stream)
    ledger.write([values()], 0.0)
    ledger.close()
    assert path.read_bytes() == b"\xa5" * 8192
    assert (ledger.unwritten, len(events(stream))) == (1, 1)
    assert "damaged or not a database" in events(stream)[0]


def test_a_full_disk_is_told_anew_when_it_comes_back(ledger, path, stream):
    """Once for each outage, not once for each batch, and not once for ever."""
    ledger.write([values(id="a")], 0.0)
    for outage in (100.0, 200.0):
        pages = ledger._store._connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._store._connection.execute(f"PRAGMA max_page_count = {pages}")
        ledger.write([values(id="lost")] * 500, outage)
        ledger.write([values(id="lost")] * 500, outage + 1)
        ledger.write([values(id=f"after-{outage}")], outage + 50)
    kinds = [event.split(" ", 1)[0] for event in events(stream)]
    assert kinds == ["journal.failed", "journal.resumed"] * 2
    assert "no space left" in events(stream)[0]
    assert ledger.unwritten == 2000
    assert ids(path) == ["a", "after-100.0", "after-200.0"]


def test_a_locked_store_is_waited_for(ledger, path, stream):
    """`skep gc` compacts the file and locks it meanwhile: that costs no row."""
    ledger.write([values(id="a")], 0.0)
    ledger._store._connection.execute("PRAGMA busy_timeout = 1")
    with open_store(path) as other:
        other._connection.execute("BEGIN IMMEDIATE")
        ledger.write([values(id="b")], 1.0)
        ledger.write([values(id="c")], 2.0)
        other._connection.execute("ROLLBACK")
    assert ledger.unwritten == 0
    ledger.write([], 3.0)
    assert ids(path) == ["a", "b", "c"]
    assert [event.split(" ", 1)[0] for event in events(stream)] == ["journal.failed", "journal.resumed"]


def test_rows_still_held_at_the_end_are_counted(path, stream):
    ledger = RequestLogWriter(path, stream)
    ledger.write([values(id="a")], 0.0)
    ledger._store._connection.execute("PRAGMA busy_timeout = 1")
    with open_store(path) as other:
        other._connection.execute("BEGIN IMMEDIATE")
        ledger.write([values(id="b")], 1.0)
        ledger.close()
        other._connection.execute("ROLLBACK")
    assert ledger.unwritten == 1


def test_a_store_deleted_meanwhile_is_made_anew(ledger, path, stream):
    """Else rows would go into a file without a name, and nobody would know."""
    ledger.write([values(id="a")], 0.0)
    path.unlink()
    ledger.write([values(id="b")], 1.0)
    assert ids(path) == ["b"]
    assert events(stream) == [f'journal.reopened why="`{path}` was deleted or replaced"']


def test_request_lines_have_a_file_of_their_own_that_is_rotated(path, stream, tmp_path):
    """Three old ones are kept; what happens to the journal itself is still said on the stream."""
    log = tmp_path / "logs" / "requests.log"
    path.parent.touch()
    with RequestLog(path, stream, log_path=log, log_bytes=40_000, every_s=0.001) as journal:
        for i in range(2000):
            journal.add(values(id=f"a-{i}"))
    names = sorted(file.name for file in log.parent.iterdir())
    assert names == ["requests.log", "requests.log.1", "requests.log.2", "requests.log.3"]
    newest_last = "".join((log.parent / name).read_text() for name in reversed(names))
    assert newest_last.endswith(request_line(values(id="a-1999")))
    assert "request.done" not in stream.getvalue()
    assert len(events(stream)) == 1


def test_a_log_file_that_cannot_be_opened_is_told_once_and_tried_again(path, stream, tmp_path):
    log = tmp_path / "logs" / "requests.log"
    log.parent.touch()
    ledger = RequestLogWriter(path, stream, log_path=log)
    ledger.write([values(id="a")], 0.0)
    ledger.write([values(id="b")], 1.0)
    assert len(events(stream)) == 1
    log.parent.unlink()
    ledger.write([values(id="c")], 40.0)
    ledger.close()
    assert log.read_text() == request_line(values(id="c"))
    assert ids(path) == ["a", "b", "c"]


@pytest.mark.parametrize("error", [OSError("full"), ValueError("closed"), RuntimeError("odd")])
def test_whatever_a_stream_raises_the_thread_goes_on(path, error):
    class Broken(Lines):
        def write(self, text: str) -> None:
            super().write(text)
            raise error

    lines = Broken()
    with RequestLog(path, lines, every_s=0.01) as journal:
        for name in ("a", "b"):
            journal.add(values(id=name))
            assert f"id={name} " in lines.next()
    assert ids(path) == ["a", "b"]


def test_a_bug_of_ours_is_told_and_does_not_end_the_thread(path, stream):
    """What nobody thought of costs a batch."""
    pauses = iter([RuntimeError("oops")])

    def pause() -> None:
        for error in pauses:
            raise error

    ledger = RequestLogWriter(path, stream, pause=pause)
    ledger.write([values(id="a")], 0.0)
    ledger.write([values(id="b")], 0.0)
    ledger.close()
    assert ledger.unwritten == 1
    assert ids(path) == ["b"]
    assert events(stream) == ['journal.failed why="RuntimeError(\'oops\')" next="please report it"']
