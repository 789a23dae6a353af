"""The listening socket of a server."""

from __future__ import annotations

import errno
import socket

from skep.errors import GatewayError, UserError
from skep.paths import LOOPBACK


def bind(host: str, port: int, *, guarded: bool) -> socket.socket:
    """Return a listening socket. `guarded`: whoever connects must show a key."""
    if host not in LOOPBACK and not guarded:
        hint = "`skep key add NAME` makes a key; or set SKEP_API_KEY to one of your own, or bind 127.0.0.1"
        raise UserError(f"binding `{host}` without an API key would let anybody in", hint=hint)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = "choose another one with --port, or --port 0 for any"
            raise GatewayError(f"port {port} on {host} is in use", hint=hint) from None
        why = error.strerror or str(error)
        raise GatewayError(f"cannot bind {host}:{port}: {why}", hint="choose another --host or --port") from None
    listener.listen(1024)
    return listener
