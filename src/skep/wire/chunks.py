"""Chunked transfer coding, where a read holds whole chunks: they can be handed on as they are."""

from __future__ import annotations

SIZE_DIGITS = 8


def carried_by(data: bytes) -> int:
    """How many bytes of body the chunks carry, if `data` is one or more whole ones and none is the last; else 0."""
    carried, at, total = 0, 0, len(data)
    while at < total:
        line = data.find(b"\r\n", at, at + SIZE_DIGITS + 2)
        digits = data[at:line]
        if line <= at or not digits.isalnum():
            return 0
        try:
            size = int(digits, 16)
        except ValueError:
            return 0
        at = line + size + 4
        if not size or at > total or data[at - 2 : at] != b"\r\n" or digits[1:2] in (b"x", b"X"):
            return 0
        carried += size
    return carried


def unchunked(data: bytes) -> bytes:
    """What they carry. `data` has passed `carried_by`."""
    parts, at = [], 0
    while at < len(data):
        line = data.index(b"\r\n", at)
        size = int(data[at:line], 16)
        parts.append(data[line + 2 : line + 2 + size])
        at = line + size + 4
    return b"".join(parts)
