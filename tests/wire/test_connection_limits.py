"""How many connections are held at once, and how many of them one address: the decision, and a
server that obeys.
"""

import json

import pytest
import uvloop
from wire_server import hang_up, serving, until

from skep.wire.connection_limits import ConnectionEntry, ConnectionLimit, limited_address
from skep.wire.server_request import ServerLimits

START_LOOP = uvloop.run
SERVED, REFUSED, CLOSED = ConnectionEntry
AFTER = b"GET /after HTTP/1.1\r\nhost: a\r\n\r\n"


def entries(limit, *addresses):
    return [limit.enter(address)[0] for address in addresses]


def test_beyond_the_limit_some_are_refused_and_the_others_closed():
    limit = ConnectionLimit(2, per_address=2, spare=1)
    assert entries(limit, None, None) == [SERVED, SERVED]
    assert limit.has_room
    assert entries(limit, None) == [REFUSED]
    assert not limit.has_room
    assert entries(limit, None) == [CLOSED]
    assert limit.refused == {"limit": 2}


def test_a_connection_that_ends_makes_room_for_another_one():
    limit = ConnectionLimit(1, per_address=1, spare=1)
    assert entries(limit, "a", "a") == [SERVED, REFUSED]
    limit.leave(REFUSED, "a")
    assert entries(limit, "a") == [REFUSED]
    limit.leave(SERVED, "a")
    assert entries(limit, "a") == [SERVED]


def test_one_address_cannot_take_every_connection():
    limit = ConnectionLimit(8, per_address=4, spare=8)
    assert entries(limit, *["a"] * 6) == [SERVED] * 4 + [REFUSED] * 2
    assert entries(limit, *"bbbb", "c") == [SERVED] * 4 + [REFUSED]
    assert limit.refused == {"address": 2, "limit": 1}


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("127.0.0.1", 5), None),
        (("127.8.9.1", 5), None),
        (("::1", 5, 0, 0), None),
        (("::ffff:127.0.0.1", 5, 0, 0), None),
        ("", None),
        (None, None),
        (("10.0.0.7", 5), "10.0.0.7"),
        (("::ffff:10.0.0.7", 5, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:0db8:0001:0002"),
        (("2001:db8:1:2::9", 5, 0, 0), "2001:0db8:0001:0002"),
        (("fe80::1%eth0", 5, 0, 2), "fe80:0000:0000:0000"),
    ],
)
def test_what_a_connection_is_counted_under(peer, address):
    """Programs of this machine are not told apart; a network of IPv6 belongs to one client."""
    assert limited_address(peer) == address


async def test_a_server_refuses_an_address_with_too_many_and_serves_others():
    places = iter(["a", "a", "a", "b"])
    async with serving(
        limits=ServerLimits(max_connections=4, linger_s=0.1, sweep_s=0.02),
        address_of=lambda _peer: next(places),
    ) as service:
        held = [await service.connect() for _ in range(2)]
        await until(lambda: len(service.server.open) == 2)
        answer = await service.talk(AFTER)
        reader, writer = await service.connect()
        writer.write(AFTER)
        assert (await reader.readuntil(b"/after ")).startswith(b"HTTP/1.1 200 ")
        for _, client in [*held, (reader, writer)]:
            await hang_up(client)
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], "from your address" in error["message"]) == (
        "too_many_connections",
        True,
    )
    assert service.server.connections.refused == {"address": 1}
