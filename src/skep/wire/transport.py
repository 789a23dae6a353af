"""What asyncio does not say of its transports: how much of what was written has gone where, and why one failed."""

from __future__ import annotations

import asyncio
import fcntl
import ssl
import sys
import termios


def unsent_bytes(transport: asyncio.Transport | None) -> int:
    """Bytes that we still hold."""
    if transport is None:
        return 0
    try:
        return transport.get_write_buffer_size()
    except AttributeError:  # asyncio's TLS transport, between `close` and `connection_lost`
        return 0


def unread_bytes(transport: asyncio.Transport | None) -> int:
    """Bytes in the kernel that the client has not taken: megabytes leave us at once, and then nothing for minutes."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder) if sock else 0
    except OSError:
        return 0


def reason_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if error.errno is not None and error.strerror and not error.strerror.startswith("Connect call failed"):
        return error.strerror
    return "connection refused" if isinstance(error, ConnectionRefusedError) else str(error)
