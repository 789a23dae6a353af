"""What the batch API needs of the gateway it is mounted into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from skep.gateway.batch.scheduler import BatchAnswer
from skep.wire.server_request import ServerRequest


class GatewayCall(Protocol):
    """One request, counted as one of its owner's until its answer comes or it is given up."""

    @property
    def waiting(self) -> bool:
        """No replica has it yet."""

    def go(self, endpoint: str, body: bytes, answered: Callable[[BatchAnswer], None]) -> None:
        """In the class `batch`, with the rights of its owner. `answered` is called once, perhaps at once."""

    def give_up(self) -> None:
        """Nobody wants the answer any more, and none comes. Nothing happens where one has come."""


class GatewayPort(Protocol):
    """The gateway, as the batch API sees it."""

    def owner_of(self, request: ServerRequest) -> str | None:
        """The name of the key it came with; None: no keys are wanted, and everything is everybody's."""

    def complaint_of(self, model: str | None) -> str | None:
        """Why a request for this model would not be served; None: it would."""

    def errand(self, owner: str) -> GatewayCall | None:
        """None: the owner's batches have as many requests out as they may have."""

    async def ready(self) -> None:
        """Until it knows what it serves."""
