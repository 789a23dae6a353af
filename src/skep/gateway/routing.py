"""Which replica gets a request: the least loaded, unless another one holds the conversation and is hardly busier.

The home of a conversation is the replica that served it last. For an unknown one, nothing is lost with the least loaded
replica; of equally loaded ones the winner of a rendezvous hash is taken, so that a gateway that was just started mostly
finds again what its predecessor knew.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol, TypeVar

CLEARLY_BUSIER = 0.2  # of the slots; one slot more is never clearly busier
REMEMBERED = 16_384  # conversations, at least
REMEMBERED_PER_SLOT = 8  # conversations whose agent thinks while others are answered
_MASK = (1 << 64) - 1


class RoutableReplica(Protocol):
    """What routing reads of a replica."""

    name: str
    seed: int
    slots: int
    prompt_bytes: int  # of the requests under way: work that lies before it

    @property
    def busy(self) -> int: ...


C = TypeVar("C", bound=RoutableReplica)


def seed_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def rendezvous(conversation: int, replicas: Sequence[C]) -> C:
    return max(replicas, key=lambda replica: _mix(conversation ^ replica.seed))


def load(replica: RoutableReplica) -> tuple[float, int]:
    return replica.busy / replica.slots, replica.prompt_bytes


def clearly_busier(home: RoutableReplica, share: float) -> bool:
    """Than a share of the slots."""
    return home.busy / home.slots - share > max(CLEARLY_BUSIER, 1 / home.slots)


class ConversationAffinity:
    """Where conversations live. Bounded: the one not heard of longest is forgotten."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._affinity: OrderedDict[int, str] = OrderedDict()
        self.remembered = remembered

    def __len__(self) -> int:
        return len(self._affinity)

    def of(self, conversation: int) -> str | None:
        return self._affinity.get(conversation)

    def remember(self, conversation: int, name: str) -> None:
        self._affinity[conversation] = name
        self._affinity.move_to_end(conversation)
        while len(self._affinity) > self.remembered:
            self._affinity.popitem(last=False)


def _mix(x: int) -> int:
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return x ^ (x >> 33)
