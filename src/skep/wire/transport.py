"""How much of what was written to a transport has not left, in this process and in the kernel."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios


def unsent_bytes(transport: asyncio.Transport | None) -> int:
    """Return how many bytes this process still holds."""
    if transport is None:
        return 0
    try:
        return transport.get_write_buffer_size()
    except AttributeError:  # asyncio's TLS transport, between `close` and `connection_lost`
        return 0


def unread_bytes(transport: asyncio.Transport | None) -> int:
    """Return how many bytes in the kernel the client has not taken.

    Megabytes leave this process at once, and then nothing for minutes.
    """
    sock = None
    if transport is not None:
        sock = transport.get_extra_info("socket")
    if not sock:
        return 0
    try:
        count = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)
