"""Messages between skep's processes: lines that are messages are read, others are passed over, and
nothing raises.
"""

import asyncio
import socket

import msgspec

from fuzz.pieces import split_input, ways_to_cut
from skep.config.gateway_messages import ToGateway
from skep.wire.json_pipe import JsonPipe

WAIT_S = 10.0
SEEDS = [
    (
        b'{"op":"replicas","replicas":[{"name":"a","model":"m","url":"http://x","slots":2}],'
        b'"models":["m"]}\n'
    ),
    b'{"op":"status","id":1}\n{"op":"drain","id":2,"timeout_s":1.5}\n{"op":"exit"}\n',
    b'{"op":"settings","limits":{"max_queue":3},"workers":2}\n',
    b'{"op":"load_failed","model":"m","why":"w","retry_after_s":1}\n',
]
WORDS = [
    b"\n",
    b'{"op":"',
    b'"exit"}\n',
    b'"status"',
    b'"id":',
    b"null",
    b"[",
    b"]",
    b"{",
    b"}",
    b"\xff",
    b"1e999",
    b"\\ud800",
]
_decode = msgspec.json.Decoder(ToGateway, dec_hook=lambda kind, value: kind(value)).decode


async def check(data):
    choice, payload = split_input(data)
    whole = await received([payload])
    assert whole == readable(payload)
    for pieces in ways_to_cut(payload, choice):
        assert await received(pieces) == whole


async def received(pieces):
    ours, theirs = socket.socketpair()
    pipe = await JsonPipe.over(ours, ToGateway)
    messages = []
    with theirs:
        for piece in pieces:
            theirs.send(piece)
            await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        while (message := await pipe.receive()) is not None:
            messages.append(message)
    await pipe.close()
    return messages


def readable(payload):
    """The messages up to the first line that is no JSON, or not whole."""
    messages = []
    for line in payload.split(b"\n")[:-1]:
        try:
            messages.append(_decode(line))
        except msgspec.ValidationError:
            continue
        except (ValueError, RecursionError):
            break
    return messages
