"""A log in parts, each of which fits into one message of a link. Knows a file; knows no replica."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

TAIL_BYTES = 4 << 20  # last lines are looked for in so much of its end, as of a file here
PART_BYTES = 512 << 10  # JSON makes at most six bytes of one, and a link takes 4 MiB


def log_part(file: BinaryIO, offset: int | None, lines: int) -> dict[str, Any]:
    """Of the last lines, or of what came since `offset`, as much as fits; where that ends, and how long the log is.

    A part ends with a line, if one ends in it: no letter is cut. One that is shorter than it was begins anew.
    """
    size = file.seek(0, os.SEEK_END)
    begin = _begin_of(file, size, lines) if offset is None else offset if offset <= size else 0
    file.seek(begin)
    data = file.read(min(PART_BYTES, size - begin))
    if begin + len(data) < size:
        data = data[: data.rfind(b"\n") + 1] or data
    return {"text": data.decode(errors="replace"), "offset": begin + len(data), "size": size}


def _begin_of(file: BinaryIO, size: int, lines: int) -> int:
    file.seek(max(0, size - TAIL_BYTES))
    found = file.read(min(TAIL_BYTES, size)).splitlines(keepends=True)
    return size - sum(map(len, found[-lines:] if lines else ()))
