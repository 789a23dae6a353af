"""Addresses to listen on: the socket of a server, which port is free, why one cannot be had, and
what takes connections from the socket."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec

from skep.errors import GatewayError, UserError
from skep.paths import HOST, LOOPBACK


def bind(host: str, port: int, *, guarded: bool) -> socket.socket:
    """Return a listening socket. `guarded`: whoever connects must show a key."""
    if host not in LOOPBACK and not guarded:
        hint = (
            "`skep key add NAME` makes a key; or set SKEP_API_KEY to one of your own, or bind "
            "127.0.0.1"
        )
        raise UserError(f"binding `{host}` without an API key would let anybody in", hint=hint)
    listener = socket_for(host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = "choose another one with --port, or --port 0 for any"
            raise GatewayError(f"port {port} on {host} is in use", hint=hint) from None
        why = error.strerror or str(error)
        raise GatewayError(
            f"cannot bind {host}:{port}: {why}", hint="choose another --host or --port"
        ) from None
    listener.listen(1024)
    return listener


def socket_for(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def free_port(host: str = HOST) -> int:
    """Return a port that nobody holds there now, for an engine that cannot report its own."""
    with socket_for(host) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def claim_port(host: str, port: int) -> socket.socket | None:
    """Claim a port until the claim is closed, or its process ends; None: the port is taken.

    An engine may bind it minutes after it was chosen; no other process of skep takes it meanwhile.
    The claim's name is not in the file system but of this network: who has the same addresses sees
    the same claims. Linux only.
    """
    claim = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        claim.bind(f"\0skep-engine:{host}:{port}")
        if refusal_of(host, port) is None:
            return claim
    claim.close()
    return None


def refusal_of(host: str, port: int) -> OSError | None:
    """Return why an engine cannot listen there now; None: it can."""
    with socket_for(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def is_final(error: OSError) -> bool:
    """Return whether it is no address of this machine: no other time and no other port helps."""
    return error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror)


def cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use: choose another one, or 0 for any"
    where = f"{host}, port {port}" if port else host
    return f"cannot listen on {where}: {error.strerror or error}"


ACCEPTED_AT_ONCE = 64  # in a turn of the loop: answers under way do not wait longer
FILES_RETRY_S = 0.1
OUT_OF_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class ConnectionAcceptor:
    """Takes connections from a listening socket while there is room for them.

    The others wait in the kernel.
    """

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket], None],
        has_room: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._take = take
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._stopped = False
        listener.setblocking(False)

    def resume(self) -> None:
        """Accept if there is room; called at the beginning, and when a connection has ended."""
        if not self._reading and not self._stopped and self._has_room():
            self._reading = True
            self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Take no connection from now on. The socket stays open: it belongs to the caller."""
        self._pause()
        self._stopped = True

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._has_room():
                self._pause()
                return
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    self._pause()
                    self._loop.call_later(FILES_RETRY_S, self.resume)
                    return
                continue  # its client left before it was taken
            self._take(client)


class HandedOver(msgspec.Struct, frozen=True):
    """What came through the socket by which another process hands connections over."""

    is_over: bool  # that process has closed it
    # None: the kernel has dropped the connection, since no file is left.
    client: socket.socket | None


def receive_connection(door: socket.socket) -> HandedOver | None:
    """Return what was handed over; None: nothing waits."""
    try:
        message, fds, _, _ = socket.recv_fds(door, 1, 1)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return HandedOver(is_over=True, client=None)
    client = socket.socket(fileno=fds[0]) if fds else None
    return HandedOver(is_over=not message, client=client)
