"""How fast this machine's memory is, by copying a large buffer on every core for a moment."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from skep.units import MIB

BUFFER_BYTES = 128 * MIB  # larger than caches are
MEASURE_S = 0.4
TRIES = 3


def memory_bandwidth_gbs(cores: int, *, seconds: float = MEASURE_S, buffer_bytes: int = BUFFER_BYTES) -> float:
    """10^9 bytes a second, read and written counted; the best of a few tries, as anything else here only slows it.

    The kernel copies out of a file in memory, which lets other threads of this process go on meanwhile.
    """
    source = _file_in_memory(buffer_bytes)
    try:
        return max(_once(source, cores, seconds / TRIES, buffer_bytes) for _ in range(TRIES))
    finally:
        os.close(source)


def _once(source: int, cores: int, seconds: float, size: int) -> float:
    copied = [0] * cores
    buffers = [bytearray(size // 2) for _ in range(cores)]
    for buffer in buffers:
        os.preadv(source, [buffer], 0)  # its pages are there before the clock runs
    began = time.perf_counter()

    def copy(place: int) -> None:
        offset = (place % 2) * (size // 2)
        while time.perf_counter() - began < seconds:
            copied[place] += os.preadv(source, [buffers[place]], offset)

    with ThreadPoolExecutor(cores) as pool:  # Ctrl-C waits for them: what they read is closed after that
        list(pool.map(copy, range(cores)))
    return 2 * sum(copied) / (time.perf_counter() - began) / 1e9


def _file_in_memory(size: int) -> int:
    with suppress(AttributeError, OSError):
        return _filled(os.memfd_create("skep-bandwidth"), size)
    descriptor, path = tempfile.mkstemp()  # read back from the page cache
    os.unlink(path)  # noqa: PTH108
    return _filled(descriptor, size)


def _filled(descriptor: int, size: int) -> int:
    piece = bytes(range(256)) * 4096
    for _ in range(size // len(piece)):
        os.write(descriptor, piece)
    return descriptor
