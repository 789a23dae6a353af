"""Logs of replicas elsewhere, in parts: each fits into a message, and together they are what one box shows."""

import io
import json
import socket

import pytest

from skep.cluster.replica_actor import PART_BYTES, TAIL_BYTES, log_part
from skep.wire.json_pipe import JsonPipe

LINE = "INFO [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, härter\n".encode()
LONG = LINE * (2 * TAIL_BYTES // len(LINE))


def all_parts(data, lines):
    """As `skep logs -n` asks for them."""
    file = io.BytesIO(data)
    parts = [log_part(file, None, lines)]
    while parts[-1]["offset"] < parts[0]["size"]:
        parts.append(log_part(file, parts[-1]["offset"], 0))
    return parts


@pytest.mark.parametrize("lines", [0, 3, 20_000, 10_000_000])
def test_the_parts_are_together_the_last_lines_as_of_a_file_here(lines):
    shown = LONG[-TAIL_BYTES:].splitlines(keepends=True)[-lines:] if lines else ()
    parts = all_parts(LONG, lines)
    assert "".join(part["text"] for part in parts) == b"".join(shown).decode(errors="replace")
    assert parts[-1]["offset"] == len(LONG)
    assert (len(parts) > 1) == (lines > 3), "a long one comes in several parts"
    assert all("\ufffd" not in part["text"] for part in parts[1:]), "no letter is cut"


def test_what_came_since_is_told_and_a_log_that_was_begun_anew_from_its_beginning():
    assert log_part(io.BytesIO(b"one\ntwo"), 4, 0) == {"text": "two", "offset": 7, "size": 7}
    assert log_part(io.BytesIO(b"new\n"), 100, 0) == {"text": "new\n", "offset": 4, "size": 4}
    assert log_part(io.BytesIO(b""), None, 9) == {"text": "", "offset": 0, "size": 0}


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
async def test_a_part_fits_into_a_message_whatever_its_bytes(byte):
    """`skep logs NAME -n 100000` killed the envoy: its answer was longer than a link takes."""
    ours, theirs = [await JsonPipe.over(end) for end in socket.socketpair()]
    told = log_part(io.BytesIO(byte * TAIL_BYTES), None, 100_000)
    assert (len(told["text"]), len(json.dumps(told)) > 5 * PART_BYTES) == (PART_BYTES, True)
    theirs.send({"id": 1, **told})
    assert await ours.receive() == {"id": 1, **told}
    for end in (ours, theirs):
        await end.close()
