"""Reads what an engine says of itself, such as at `/metrics` and `/slots`.

An answer has a largest size, and a long one is read in a thread: whatever one server says, the
loop that asked goes on with its other connections. Knows nothing of what the figures mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from skep.wire.client import HttpResponse, Pool, fetch

T = TypeVar("T")

LARGEST_STATE_BYTES = 4 << 20
LONG_STATE_BYTES = 65_536  # what is longer is read in a thread


async def fetch_state(
    pool: Pool,
    path: str,
    parse: Callable[[str], T],
    *,
    headers: Mapping[str, str],
    timeout_s: float,
) -> T | None:
    """Return what `parse` makes of the answer; None for any status but 200. Raises WireFailure."""
    answer = await fetch(
        pool,
        "GET",
        path,
        headers=dict(headers),
        timeout_s=timeout_s,
        most_bytes=LARGEST_STATE_BYTES,
    )
    if answer.status == 200:
        return await parse_state(answer, parse)
    return None


async def parse_state(answer: HttpResponse, parse: Callable[[str], T]) -> T:
    """Return what `parse` makes of an answer; a long one is read in a thread."""
    if len(answer.body) <= LONG_STATE_BYTES:
        return parse(answer.text)
    return await asyncio.to_thread(lambda: parse(answer.text))
