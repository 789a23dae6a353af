"""A replica actor without Ray: its reports to the registry, whatever becomes of that, and its log in parts."""

import asyncio
import io
import socket
import threading
from types import SimpleNamespace

import pytest

from skep.cluster.messages import Answer, FromDriver, LogPart
from skep.cluster.replica_actor import PART_BYTES, TAIL_BYTES, HeartbeatSender, log_part, own_cards
from skep.wire.json_pipe import JsonPipe


class Heard:
    """A registry: what it heard; `away` for so many announcements; then it says `end`."""

    def __init__(self, *, away=0, ends_after=None, holds=False):
        self.rows, self.away, self.ends_after, self.holds = [], away, ends_after, holds
        self.announce = SimpleNamespace(remote=self._announce)

    async def _announce(self, name, row, me):
        if self.away:
            self.away -= 1
            raise ConnectionError
        self.rows.append((name, row, me))
        told = {"end": self.ends_after is not None and len(self.rows) >= self.ends_after}
        return told | ({"held": True} if self.holds else {})


async def announced(find, row=lambda: {"state": "ready"}):
    """Run until a registry says that it is over."""
    async with asyncio.timeout(5.0):
        await HeartbeatSender("m-0", row, "me", find, every_s=0.01).run()


async def test_it_announces_itself_with_its_own_handle_until_it_is_told_to_end():
    registry = Heard(ends_after=3)
    await announced(lambda: registry)
    assert registry.rows == [("m-0", {"state": "ready"}, "me")] * 3


async def test_its_handle_is_sent_until_the_registry_has_it_and_again_after_a_word_was_lost():
    """The registry may have been started anew by then."""
    registry = Heard(ends_after=5, holds=True)

    def row():
        registry.away = int(len(registry.rows) == 3 and not lost)
        lost.extend("x" * registry.away)
        return {}

    lost = []
    await announced(lambda: registry, row)
    assert [me for _, _, me in registry.rows] == ["me", None, None, "me", None]


async def test_a_registry_that_missed_a_word_is_tried_again_while_nobody_can_be_looked_up():
    """Without a head a lookup takes a minute. The handle that is known needs no head."""
    registry, head, looks = Heard(away=0, ends_after=3), threading.Event(), []

    def find():
        looks.append(threading.current_thread())
        if len(looks) > 1:
            head.wait(30.0)
            raise TimeoutError
        registry.away = 4  # from now on it misses some
        return registry

    try:
        await announced(find)
        assert len(registry.rows) == 3
        assert len(looks) == 2, "never more than one at a time"
    finally:
        head.set()


async def test_a_registry_made_anew_is_found_beside_the_one_that_is_gone():
    gone, new = Heard(away=10**9), Heard(ends_after=1)
    found = iter([gone, gone, None, new])

    def find():
        registry = next(found)
        if registry is None:
            raise ValueError("no such actor")
        return registry

    await announced(find)
    assert (len(gone.rows), len(new.rows)) == (0, 1)


async def test_a_change_is_told_at_once():
    registry, state = Heard(ends_after=2), {"state": "starting"}
    announcer = HeartbeatSender("m-0", lambda: dict(state), "me", lambda: registry)
    running = asyncio.ensure_future(announcer.run())
    while not registry.rows:
        await asyncio.sleep(0.001)
    state["state"] = "ready"
    announcer.wake()
    async with asyncio.timeout(1.0):  # well before the next one is due
        await running
    assert [row["state"] for _, row, _ in registry.rows] == ["starting", "ready"]


async def test_what_the_registry_answers_is_heard():
    heard = []
    await HeartbeatSender("m-0", dict, "me", lambda: Heard(ends_after=1), heard=heard.append).run()
    assert heard == [{"end": True}]


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
    shown = LONG[-TAIL_BYTES:].splitlines(keepends=True)[-lines:] if lines else ()
    parts = all_parts(LONG, lines)
    assert "".join(part.text for part in parts) == b"".join(shown).decode(errors="replace")
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
    told = log_part(io.BytesIO(byte * TAIL_BYTES), None, 100_000)
    assert len(told.text) == PART_BYTES
    theirs.send(Answer(1, log=told))
    assert await ours.receive() == Answer(1, log=told)
    for end in (ours, theirs):
        await end.close()
