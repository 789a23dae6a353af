"""Heads that were read before. Peers send the same head again and again, but for the length of the body.

A head is looked up by its own bytes with the digits of its Content-Length cut out, so it means what it meant when the
parser read it. Only heads without any other framing than a Content-Length are kept. Knows bytes; does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

from skep.wire.heads import Headers, HeadMemo

T = TypeVar("T")

HEADS = 512  # kept at most; then all are forgotten
HEAD_BYTES = 4096  # longer ones are not kept
LENGTH_DIGITS = 9

_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?(0|[1-9][0-9]{0,8})\r\n")
_ZERO = ord("0")


class CachedHead(Generic[T]):
    """A head: the bytes before and behind the digits of its Content-Length, and what it is."""

    __slots__ = ("before", "behind", "value")

    def __init__(self, before: bytes, behind: bytes, value: T) -> None:
        self.before = before
        self.behind = behind
        self.value = value


class HeadCache(Generic[T]):
    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], CachedHead[T]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, data: bytes, last: CachedHead[T] | None) -> tuple[CachedHead[T], int, int] | None:
        """What is known of the head that `data` begins with, where the body begins, and how long it is.

        `last` is what this connection's last head was: mostly it comes again.
        """
        if last is not None and data.startswith(last.before):
            at = len(last.before)
            end = data.find(b"\r", at, at + LENGTH_DIGITS + 1)
            if end > at and data.startswith(last.behind, end) and _is_length(digits := data[at:end]):
                return last, end + len(last.behind), int(digits)
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES)
        length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
        if length is None:
            return None
        at, behind = length.span(1)
        known = self._known.get((data[:at], data[behind : end + 4]))
        return None if known is None else (known, end + 4, int(length[1]))

    def keep(self, data: bytes, value: T | None) -> None:
        """The head that `data` begins with was read by the parser and is this. The caller vouches for its framing."""
        if value is None:
            return
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES)
        length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
        if length is None:
            return
        if len(self._known) >= HEADS:
            self._known.clear()
        before, behind = data[: length.start(1)], data[length.end(1) : end + 4]
        self._known[before, behind] = CachedHead(before, behind, value)


def _is_length(digits: bytes) -> bool:
    return digits.isdigit() and (digits[0] != _ZERO or len(digits) == 1)


@dataclass(slots=True)
class RequestHead:
    method: bytes
    target: bytes
    headers: Headers
    memo: HeadMemo


class PartialBody:
    """A body of known length that comes in several reads. `missing` below zero: more came than belongs to it."""

    __slots__ = ("_length", "_parts", "missing")

    def __init__(self, first: memoryview, missing: int) -> None:
        self._parts = [first]
        self._length = len(first) + missing
        self.missing = missing

    @property
    def size(self) -> int:
        """Bytes of the body that are there."""
        return self._length - max(0, self.missing)

    def add(self, data: bytes) -> None:
        self._parts.append(memoryview(data))
        self.missing -= len(data)

    def body(self) -> bytes:
        if self.missing < 0:
            self._parts[-1] = self._parts[-1][: self.missing]
        return b"".join(self._parts)
