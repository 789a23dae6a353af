"""Chunked transfer coding, where a read holds whole chunks: they can be handed on as they are."""

from __future__ import annotations

SIZE_DIGITS = 8


def payload_of(data: bytes) -> bytes | None:
    """What the chunks carry, if `data` is one or more whole ones and none is the last; else None."""
    parts: list[bytes] = []
    at, total = 0, len(data)
    while at < total:
        line = data.find(b"\r\n", at, at + SIZE_DIGITS + 2)
        if line <= at:
            return None
        digits = data[at:line]
        try:
            size = int(digits, 16)
        except ValueError:
            return None
        at = line + size + 4
        if (
            size == 0
            or at > total
            or not digits.isalnum()
            or digits[1:2] in (b"x", b"X")
            or data[at - 2 : at] != b"\r\n"
        ):
            return None
        if at == total and not parts:
            return data[line + 2 : at - 2]
        parts.append(data[line + 2 : at - 2])
    return b"".join(parts) if parts else None
