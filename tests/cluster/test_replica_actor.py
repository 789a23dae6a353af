"""A replica actor without Ray: which gateway it belongs to, and its log in parts."""

import io
import socket

import pytest

from skep.cluster.messages import Answer, FromDriver
from skep.cluster.replica_actor import ABANDONED_AFTER_S, OWNED_S, Ownership, own_cards
from skep.supervisor.log_reader import PART_BYTES, TAIL_BYTES, LogPart, log_part
from skep.wire.json_pipe import JsonPipe


def test_only_one_gateway_has_a_replica_until_it_is_silent_for_a_while():
    owner = Ownership()
    assert [owner.claim(name) for name in ("a", "b")] == ["a", "a"]
    for _ in range(2):
        owner.pass_time(OWNED_S - 2)
        assert owner.claim("a") == "a"
    assert owner.claim("b") == "a", "who asks for reports is there"
    owner.pass_time(OWNED_S + 1)
    assert [owner.claim(name) for name in ("b", "a")] == ["b", "b"]


def test_a_replica_that_no_gateway_asks_for_any_more_ends():
    owner = Ownership()
    owner.claim("a")
    assert not owner.pass_time(ABANDONED_AFTER_S - 1)
    owner.claim("a")
    assert not owner.pass_time(ABANDONED_AFTER_S - 1)
    assert owner.pass_time(2.0)


def test_cards_that_have_no_number_are_left_as_ray_shows_them():
    assert own_cards(["0", 3]) == (0, 3)
    assert own_cards(["GPU-8c1f", "1"]) == own_cards(["MIG-GPU-8c1f/1/0"]) == own_cards([]) == ()


# Its log in parts: each fits into a message, and together they are what one machine shows

LINE = "INFO [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, härter\n".encode()
LONG = LINE * (2 * TAIL_BYTES // len(LINE))


def all_parts(data, lines):
    """As `skep logs -n` asks for them."""
    file = io.BytesIO(data)
    parts = [log_part(file, None, lines)]
    while parts[-1].offset < parts[0].size:
        parts.append(log_part(file, parts[-1].offset, 0))
    return parts


@pytest.mark.parametrize("lines", [0, 3, 20_000, 10_000_000])
def test_the_parts_are_together_the_last_lines_as_of_a_file_here(lines):
    if lines:
        expected = LONG[-TAIL_BYTES:].splitlines(keepends=True)[-lines:]
    else:
        expected = ()
    parts = all_parts(LONG, lines)
    assert "".join(part.text for part in parts) == b"".join(expected).decode(errors="replace")
    assert parts[-1].offset == len(LONG)
    assert (len(parts) > 1) == (lines > 3), "a long one comes in several parts"
    assert all("\ufffd" not in part.text for part in parts[1:]), "no letter is cut"


def test_what_came_since_is_told_and_a_log_that_was_begun_anew_from_its_beginning():
    assert log_part(io.BytesIO(b"one\ntwo"), 4, 0) == LogPart("two", 7, 7)
    assert log_part(io.BytesIO(b"new\n"), 100, 0) == LogPart("new\n", 4, 4)
    assert log_part(io.BytesIO(b""), None, 9) == LogPart()


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
async def test_a_part_fits_into_a_message_whatever_its_bytes(byte):
    """`skep logs NAME -n 100000` killed the driver: its answer was longer than a link takes."""
    ours, theirs = [await JsonPipe.over(end, FromDriver) for end in socket.socketpair()]
    part = log_part(io.BytesIO(byte * TAIL_BYTES), None, 100_000)
    assert len(part.text) == PART_BYTES
    theirs.send(Answer(1, log=part))
    assert await ours.receive() == Answer(1, log=part)
    for end in (ours, theirs):
        await end.close()
