"""What skep and the launcher's children say to each other: an order and its blobs one way, an outcome the other.

One message a direction: the length of a JSON head, the head, and the blobs whose lengths the head tells.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from skep.sandbox.base import Ending, Limits, Result, Script

LENGTH = struct.Struct("!I")
Read = Callable[[int], bytes]  # exactly so many bytes


@dataclass(frozen=True, slots=True)
class Order:
    script: Script
    limits: Limits


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run. `failure` says why the script was never started; then there is no result."""

    result: Result | None
    failure: str | None = None


def pack(head: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((LENGTH.pack(len(text)), text, *blobs))


def unpack(read: Read) -> tuple[dict[str, Any], list[bytes]]:
    head = json.loads(read(LENGTH.unpack(read(LENGTH.size))[0]))
    return head, [read(length) for length in head["blobs"]]


def reader(data: bytes) -> Read:
    """Of a message that is here as a whole."""
    place = 0

    def read(count: int) -> bytes:
        nonlocal place
        piece = data[place : place + count]
        if len(piece) < count:
            raise EOFError
        place += count
        return piece

    return read


def pack_order(order: Order) -> bytes:
    script = order.script
    head = {
        "argv": script.argv,
        "names": list(script.files),
        "packages": script.packages,
        "limits": asdict(order.limits),
    }
    return pack(head, [script.stdin, *script.files.values()])


def unpack_order(read: Read) -> Order:
    head, (stdin, *contents) = unpack(read)
    files = dict(zip(head["names"], contents, strict=True))
    script = Script(tuple(head["argv"]), files, stdin, packages=head["packages"])
    return Order(script, Limits(**head["limits"]))


def pack_outcome(outcome: Outcome) -> bytes:
    result = outcome.result
    if result is None:
        return pack({"failure": outcome.failure}, [])
    head = {
        "ending": result.ending.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "seconds": result.seconds,
    }
    return pack(head, [result.stdout, result.stderr])


def unpack_outcome(read: Read) -> Outcome:
    head, blobs = unpack(read)
    if "ending" not in head:
        return Outcome(None, head["failure"])
    stdout, stderr = blobs
    return Outcome(Result(Ending(head["ending"]), head["exit_code"], head["signal"], stdout, stderr, head["seconds"]))
