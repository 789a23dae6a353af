"""How many connections a server holds, and how many of them one address. Decides; opens and closes
nothing.

Invariant: connections that are served never exceed `max_served`, those that are refused with a
word never `spare`."""

from __future__ import annotations

import socket
from collections import Counter
from enum import Enum

LOOPBACK_PREFIX = "127."
MAPPED_PREFIX = "::ffff:"  # an IPv4 client of a socket for IPv6
NETWORK_BYTES = 8  # of an IPv6 address: whoever has one has all that begin with these


class ConnectionEntry(Enum):
    SERVED = "served"
    REFUSED = "refused"  # it is answered that there are too many, and closed
    CLOSED = "closed"  # closed without a word: too many are being refused already


class RefusalReason(Enum):
    LIMIT = "limit"  # as many are open as this process holds
    ADDRESS = "address"  # as many are open of this address as one address may hold
    FILES = "files"  # no file was left for it


class ConnectionLimit:
    """Decides on each connection that comes.

    The address None stands for whoever is not limited by address.
    """

    def __init__(self, max_served: int, *, per_address: int, spare: int) -> None:
        self.max_served = max_served
        self.refused = Counter[str]()  # by reason, since the beginning
        self._per_address = per_address
        self._spare = spare
        self._served = 0
        self._refusing = 0  # connections that are being told so
        self._by_address = Counter[str]()  # served ones

    def __repr__(self) -> str:
        served = f"{self._served}/{self.max_served} served"
        return f"<ConnectionLimit {served}, {self._refusing} being refused>"

    @property
    def has_room(self) -> bool:
        """Return whether another connection can be served, or at least told why not."""
        return self._served < self.max_served or self._refusing < self._spare

    def enter(self, address: str | None) -> tuple[ConnectionEntry, RefusalReason | None]:
        reason = self._reason_against(address)
        if reason is None:
            self._served += 1
            if address is not None:
                self._by_address[address] += 1
            return ConnectionEntry.SERVED, None
        self.refused[reason.value] += 1
        if self._refusing >= self._spare:
            return ConnectionEntry.CLOSED, reason
        self._refusing += 1
        return ConnectionEntry.REFUSED, reason

    def leave(self, entry: ConnectionEntry, address: str | None) -> None:
        """Forget a connection that has ended; `entry` is what `enter` returned for it."""
        if entry is ConnectionEntry.REFUSED:
            self._refusing -= 1
        elif entry is ConnectionEntry.SERVED:
            self._served -= 1
            if address is not None:
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]

    def lose(self) -> None:
        """Count a connection for which no file was left."""
        self.refused[RefusalReason.FILES.value] += 1

    def _reason_against(self, address: str | None) -> RefusalReason | None:
        if address is not None and self._by_address[address] >= self._per_address:
            return RefusalReason.ADDRESS
        if self._served >= self.max_served:
            return RefusalReason.LIMIT
        return None


def limited_address(peer: object) -> str | None:
    """Return what a connection of this peer counts as: an IPv4 address, an IPv6 network of 64
    bits.

    `peer` is as `getpeername` returns it. None for this machine itself, whose programs share one
    address, and for a peer that has no address."""
    if not isinstance(peer, tuple):
        return None
    host: str = peer[0].removeprefix(MAPPED_PREFIX)
    if host.startswith(LOOPBACK_PREFIX) or host == "::1":
        return None
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:NETWORK_BYTES].hex(":", 2)
