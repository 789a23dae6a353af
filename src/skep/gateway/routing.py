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
REMEMBERED = 16_384  # conversations
_MASK = (1 << 64) - 1


class Choice(Protocol):
    """What routing reads of a replica."""

    name: str
    seed: int
    slots: int
    prompt_bytes: int  # of the requests under way: work that lies before it

    @property
    def busy(self) -> int: ...


C = TypeVar("C", bound=Choice)


def seed_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def rendezvous(conversation: int, replicas: Sequence[C]) -> C:
    return max(replicas, key=lambda replica: _mix(conversation ^ replica.seed))


def load(replica: Choice) -> tuple[float, int]:
    return replica.busy / replica.slots, replica.prompt_bytes


def least_loaded(replicas: Sequence[C]) -> C:
    """By the share of busy slots, then by the prompts under way, then by free slots."""
    if len(replicas) == 1:
        return replicas[0]
    return min(replicas, key=lambda replica: (*load(replica), replica.busy - replica.slots))


class Homes:
    """Where conversations live. Bounded: the one not heard of longest is forgotten."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._homes: OrderedDict[int, str] = OrderedDict()
        self._remembered = remembered

    def __len__(self) -> int:
        return len(self._homes)

    def choose(self, conversation: int | None, free: Sequence[C], alive: Sequence[C]) -> C:
        """One of `free`, which is not empty; `alive` are all that could have been meant."""
        least = least_loaded(free)
        if conversation is None or len(alive) == 1:
            return least
        name = self._homes.get(conversation)
        if any(replica.name == name for replica in alive):
            home = next((replica for replica in free if replica.name == name), None)
            chosen = least if home is None or clearly_busier(home, least) else home
        else:
            winner = rendezvous(conversation, alive)
            chosen = winner if winner in free and load(winner) == load(least) else least
        self._remember(conversation, chosen.name)
        return chosen

    def _remember(self, conversation: int, name: str) -> None:
        self._homes[conversation] = name
        self._homes.move_to_end(conversation)
        if len(self._homes) > self._remembered:
            self._homes.popitem(last=False)


def clearly_busier(home: Choice, least: Choice) -> bool:
    return home.busy / home.slots - least.busy / least.slots > max(CLEARLY_BUSIER, 1 / home.slots)


def _mix(x: int) -> int:
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return x ^ (x >> 33)
