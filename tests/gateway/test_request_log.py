"""The request log: lines and rows of ended requests, and that nothing which befalls them harms the
gateway.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import threading

import pytest

from skep.gateway.request_log import MAX_TEXT, RequestLog, quoted, request_line
from skep.store.database import gateway_values, open_store
from skep.store.records import GatewayRequest

FIELDS = GatewayRequest.__struct_fields__
ROW = GatewayRequest(
    id="k3xq9a-1",
    arrived_at=1_794_752_553.25,
    path="/v1/chat/completions",
    model="smol",
    priority="normal",
    flow="agent-7",
    replica="r0",
    attempts=1,
    outcome="answered",
    status=200,
    code=None,
    streamed=True,
    queued_s=0.4125,
    first_byte_s=0.18,
    ended_s=3.2041,
    prompt_tokens=20,
    cached_tokens=16,
    output_tokens=100,
    request_bytes=512,
    response_bytes=4096,
    session="0a1b2c3d",
    conversation="4e5f6071",
    turn=2,
    pause_s=1.5,
    tool_call=True,
    cold="changed",
    cold_at=12,
    possible_tokens=18,
)
OF_SESSION = FIELDS[-8:]
NASTY = [
    "two words", 'a"b', ("a\nrequest.done "
"id=forged"), "a\r\x1b[2J\x00\x7f", "a=b", "", "\u2028\u0085", "modèle",
    "\ud83d", "\\",
]  # fmt: skip


def values(**changes) -> tuple:
    unknown = set(changes) - set(FIELDS)
    assert not unknown
    return tuple(
        changes.get(name, value) for name, value in zip(FIELDS, gateway_values(ROW), strict=True)
    )


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
def writer(path, stream):
    request_log = RequestLog(path, stream)
    yield request_log
    request_log.close()


def ids(path) -> list[str]:
    with open_store(path, read_only=True) as store:
        return [row.id for row in reversed(store.gateway_requests())]


def events(stream) -> list[str]:
    return [line for line in stream.getvalue().splitlines() if line.startswith("journal.")]


def test_a_line_tells_all_there_is_to_tell_and_leaves_out_what_is_not_known():
    assert request_line(values()) == (
        "request.done id=k3xq9a-1 at=2026-11-15T14:22:33.250Z path=/v1/chat/completions "
        "model=smol priority=normal"
        " flow=agent-7 replica=r0 attempts=1 outcome=answered status=200 streamed=1"
        " queued_s=0.412 first_byte_s=0.180 ended_s=3.204"
        " prompt_tokens=20 cached_tokens=16 output_tokens=100 request_bytes=512 "
        "response_bytes=4096"
        " session=0a1b2c3d conversation=4e5f6071 turn=2 pause_s=1.500 tool_call=1 cold=changed"
        " cold_at=12 possible_tokens=18\n"
    )
    optional = ("model", "flow", "replica", "status", "queued_s", "first_byte_s")
    unknown = dict.fromkeys((*optional, "prompt_tokens", "cached_tokens", "output_tokens"))
    assert request_line(
        values(
            **unknown,
            **dict.fromkeys(OF_SESSION),
            outcome="refused",
            code="queue_full",
            streamed=False,
        )
    ) == (
        "request.done id=k3xq9a-1 at=2026-11-15T14:22:33.250Z path=/v1/chat/completions "
        "priority=normal"
        " attempts=1 outcome=refused code=queue_full streamed=0 ended_s=3.204 "
        "request_bytes=512 response_bytes=4096\n"
    )


@pytest.mark.parametrize("name", NASTY)
def test_no_name_can_forge_a_line_or_a_field(name):
    """Clients choose the model's name and their own; a log must tell theirs from ours."""
    assert json.loads(quoted(name)) == name
    for field in ("id", "path", "model", "flow", "replica", "code"):
        line = request_line(values(**{field: name}))
        assert line.isascii()
        assert line.removesuffix("\n").isprintable()
        assert line.count("\n") == 1
        assert f" {field}={quoted(name)} " in line


NONSENSE = [
    {field: value}
    for field in ("prompt_tokens", "ended_s", "response_bytes")
    for value in ("7\nrequest.done", [7], {"a": 1})
]
REFUSED = [{"outcome": "exploded"}, {"prompt_tokens": 10**30}, {"ended_s": float("nan")}]


@pytest.mark.parametrize(
    "bad",
    [*(values(id="b", **odd) for odd in (*NONSENSE, *REFUSED)), (), ("a",), (*values(), 1)],
    ids=[*map(str, (*NONSENSE, *REFUSED)), "empty", "short", "long"],
)
def test_a_row_that_the_table_cannot_take_is_counted_and_costs_itself_only(
    writer, path, stream, bad
):
    """An engine may say anything in `usage`; whoever forgets to check it loses that row only."""
    writer.write([values(id="a"), bad, values(id="c")], 0.0)
    writer.write([bad, values(id="e")], 0.0)
    assert ids(path) == ["a", "c", "e"]
    assert writer.unwritten == 2
    (event,) = events(stream)
    assert event.startswith('journal.failed why="a request does not fit')


def test_names_of_a_megabyte_are_cut(writer, path, stream):
    """In the log and in the store alike."""
    writer.write([values(model="m" * 1_000_000, flow="é" * 300, path="/" + "p" * MAX_TEXT)], 0.0)
    with open_store(path, read_only=True) as store:
        (row,) = store.gateway_requests()
    assert (len(row.model), len(row.flow), len(row.path)) == (MAX_TEXT, MAX_TEXT, MAX_TEXT)
    assert row.model.endswith("m…")
    assert len(stream.getvalue()) < 3000


@pytest.mark.parametrize("started", [True, False])
def test_closing_writes_what_is_pending(path, stream, started):
    """However long the thread would have slept, and even if it was never started."""
    log = RequestLog(path, stream, every_s=3600)
    if started:
        log.start()
    for i in range(2500):
        log.add(values(id=f"a-{i}", arrived_at=float(i)))
    assert log.close(30)
    assert log.close(30)
    assert ids(path) == [f"a-{i}" for i in range(2500)]
    assert stream.getvalue().count("\n") == 2500


def test_a_full_buffer_drops_rows_and_counts_them(path, stream):
    """Memory is bounded; the rows that were there first are kept."""
    log = RequestLog(path, stream, every_s=3600, max_pending=10)
    for i in range(15):
        log.add(values(id=f"a-{i}"))
    assert log.dropped == 5
    assert repr(log) == "<RequestLog 10 pending, 5 dropped, 0 not in the store>"
    log.close(30)
    assert ids(path) == [f"a-{i}" for i in range(10)]
    (event,) = events(stream)
    assert "5 requests ended while 10 others waited" in event


def test_a_stream_that_blocks_holds_up_neither_the_gateway_nor_its_end(path):
    """As the pipe of a terminal does that was stopped with Ctrl-S."""
    lines = Lines()
    lines.free.clear()
    log = RequestLog(path, lines, every_s=0.001)
    log.start()
    log.add(values(id="a-0"))
    while log._pending:  # the thread has taken it, and is stuck with it
        pass
    log.add(values(id="a-1"))
    assert log.close(0.01) is False
    lines.free.set()
    assert log.close(30)
    assert ids(path) == ["a-0", "a-1"]


def test_a_store_that_cannot_be_opened_is_told_once_and_tried_again(tmp_path, stream):
    """Lines go on; the way out is named; after the pause the store is there."""
    path = tmp_path / "folder" / "skep.sqlite3"
    path.parent.touch()
    writer = RequestLog(path, stream)
    for now in (0.0, 1.0, 29.0, 31.0):
        writer.write([values(id=f"at-{now}")], now)
    assert writer.unwritten == 4
    (event,) = events(stream)
    assert "cannot be opened" in event
    assert "tried again every 30 s" in event
    path.parent.unlink()
    writer.write([values(id="too-early")], 32.0)
    writer.write([values(id="later")], 62.0)
    assert writer.unwritten == 5
    assert events(stream)[1:] == ["journal.resumed unwritten=5"]
    assert stream.getvalue().count("request.done") == 6
    writer.close()
    assert ids(path) == ["later"]


def test_a_full_disk_is_told_anew_when_it_comes_back(writer, path, stream):
    """Once for each outage, not once for each batch, and not once for ever."""
    writer.write([values(id="a")], 0.0)
    for outage in (100.0, 200.0):
        pages = writer._store._connection.execute("PRAGMA page_count").fetchone()[0]
        writer._store._connection.execute(f"PRAGMA max_page_count = {pages}")
        writer.write([values(id="lost")] * 500, outage)
        writer.write([values(id="lost")] * 500, outage + 1)
        writer.write([values(id=f"after-{outage}")], outage + 50)
    kinds = [event.split(" ", 1)[0] for event in events(stream)]
    assert kinds == ["journal.failed", "journal.resumed"] * 2
    assert "no space left" in events(stream)[0]
    assert writer.unwritten == 2000
    assert ids(path) == ["a", "after-100.0", "after-200.0"]


@contextlib.contextmanager
def locked(writer, path):
    """The store, by another process; it is not waited for."""
    writer._store._connection.execute("PRAGMA busy_timeout = 1")
    with open_store(path) as store:
        store._connection.execute("BEGIN IMMEDIATE")
        yield
        store._connection.execute("ROLLBACK")


def test_a_locked_store_is_waited_for_and_rows_still_held_at_the_end_are_counted(
    writer, path, stream
):
    """`skep store gc` compacts the file and locks it meanwhile: that costs no row."""
    writer.write([values(id="a")], 0.0)
    with locked(writer, path):
        writer.write([values(id="b")], 1.0)
        writer.write([values(id="c")], 2.0)
    assert writer.unwritten == 0
    writer.write([], 3.0)
    assert ids(path) == ["a", "b", "c"]
    assert [event.split(" ", 1)[0] for event in events(stream)] == [
        "journal.failed",
        "journal.resumed",
    ]
    with locked(writer, path):
        writer.write([values(id="d")], 4.0)
        writer.close()
    assert writer.unwritten == 1


def test_a_store_deleted_meanwhile_is_made_anew(writer, path, stream):
    """Else rows would go into a file without a name, and nobody would know."""
    writer.write([values(id="a")], 0.0)
    path.unlink()
    writer.write([values(id="b")], 1.0)
    assert ids(path) == ["b"]
    assert events(stream) == [f'journal.reopened why="`{path}` was deleted or replaced"']


def test_request_lines_have_a_file_of_their_own_that_is_rotated(path, stream, tmp_path):
    """Three old ones are kept; what happens to the log itself is still said on the stream."""
    file = tmp_path / "logs" / "requests.log"
    path.parent.touch()
    with contextlib.closing(
        RequestLog(path, stream, log_path=file, log_bytes=40_000, every_s=0.001).start()
    ) as log:
        for i in range(2000):
            log.add(values(id=f"a-{i}"))
    names = sorted(path.name for path in file.parent.iterdir())
    assert names == ["requests.log", "requests.log.1", "requests.log.2", "requests.log.3"]
    newest_last = "".join((file.parent / name).read_text() for name in reversed(names))
    assert newest_last.endswith(request_line(values(id="a-1999")))
    assert "request.done" not in stream.getvalue()
    assert len(events(stream)) == 1


def test_a_log_file_that_cannot_be_opened_is_told_once_and_tried_again(path, stream, tmp_path):
    log = tmp_path / "logs" / "requests.log"
    log.parent.touch()
    writer = RequestLog(path, stream, log_path=log)
    writer.write([values(id="a")], 0.0)
    writer.write([values(id="b")], 1.0)
    assert len(events(stream)) == 1
    log.parent.unlink()
    writer.write([values(id="c")], 40.0)
    writer.close()
    assert log.read_text() == request_line(values(id="c"))
    assert ids(path) == ["a", "b", "c"]


def test_rows_are_written_without_being_asked_whatever_a_stream_raises(path):
    """The thread looks by itself; what it said in the log is in the store at the latest at the
    end.
    """
    errors = iter([OSError("full"), ValueError("closed"), RuntimeError("odd")])

    class Broken(Lines):
        def write(self, text: str) -> None:
            super().write(text)
            raise next(errors)

    lines = Broken()
    with contextlib.closing(RequestLog(path, lines, every_s=0.01).start()) as log:
        for name in ("a", "b", "c"):
            log.add(values(id=name))
            assert f"id={name} " in lines.next()
    assert ids(path) == ["a", "b", "c"]


def test_a_bug_of_ours_is_told_and_does_not_end_the_thread(path, stream):
    """What nobody thought of costs a batch."""
    bugs = iter([RuntimeError("oops")])

    class Odd(RequestLog):
        def _pause(self) -> None:
            for error in bugs:
                raise error

    writer = Odd(path, stream)
    writer.write([values(id="a")], 0.0)
    writer.write([values(id="b")], 0.0)
    writer.close()
    assert writer.unwritten == 1
    assert ids(path) == ["b"]
    assert events(stream) == [
        'journal.failed why="RuntimeError(\'oops\')" next="please report it"'
    ]
