"""What the batch API needs of the gateway it is mounted into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from skep.swarm.batch.course import Answer
from skep.wire.incoming import Incoming


class Sent(Protocol):
    """A request on its way."""

    @property
    def waiting(self) -> bool:
        """No replica has it yet."""

    def give_up(self) -> None:
        """Nobody wants the answer any more, and none comes."""


class Door(Protocol):
    """The gateway, as the batch API sees it."""

    def owner_of(self, request: Incoming) -> str | None:
        """The name of the key it came with; None: no keys are wanted, and everything is everybody's."""

    def complaint_of(self, model: str | None) -> str | None:
        """Why a request for this model would not be served; None: it would."""

    def most_at_once(self, owner: str) -> int | None:
        """How many requests of one batch may be out at once; None: as many as there is room for."""

    def send(self, owner: str, endpoint: str, body: bytes, answered: Callable[[Answer], None]) -> Sent:
        """In the class `batch`, with the rights of `owner`. `answered` is called once, perhaps before this returns."""

    async def ready(self) -> None:
        """Until it knows what it serves."""
