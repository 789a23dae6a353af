"""The shell around `scaling`: asks the gateway what waits, and has the hive grow and shrink within its bounds.

Asks nobody where no model may have more replicas than it began with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from skep.engines.crew import Crew
from skep.engines.lifecycle import State
from skep.engines.member import Member, slots_of
from skep.engines.scaling import Bounds, Scaling
from skep.errors import DoesNotFit, SkepError
from skep.wire.link import Message

LOOK_EVERY_S = 1.0
TRY_AGAIN_S = 30.0  # after a change that could not be
NOT_UNDERSTOOD = (LookupError, TypeError, ValueError, AttributeError)


class Scaler:
    """`figures` are by model; `scale` brings a number about, or raises why not; it is asked only where `possible`."""

    def __init__(
        self,
        crew: Crew,
        *,
        bounds: Callable[[], Mapping[str, Bounds]],
        figures: Callable[[], Awaitable[Mapping[str, Message]]],
        scale: Callable[[str, int], Awaitable[None]],
        possible: Callable[[], bool],
        changed: Callable[[], None],
        look_every_s: float = LOOK_EVERY_S,
        try_again_s: float = TRY_AGAIN_S,
    ) -> None:
        self._crew = crew
        self._bounds = bounds
        self._figures = figures
        self._scale = scale
        self._possible = possible
        self._changed = changed
        self._look_every_s = look_every_s
        self._try_again_s = try_again_s
        self._scalings: dict[str, Scaling] = {}
        self._why: dict[str, str | None] = {}  # why it is not as it should be
        self._not_before: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Scaler {list(self._scalings.values())}>"

    def standing(self, model: str) -> Message:
        """How many there are and may be, and why not more."""
        members, bounds = self._members(model), self._bounds()[model]
        ready = sum(member.life.serving for member in members)
        told = {"model": model, "replicas": len(members), "ready": ready}
        return {**told, "least": bounds.minimum, "most": bounds.maximum, "why": self._why.get(model)}

    async def run(self) -> None:
        """Until cancelled. Whatever goes wrong ends nothing that serves."""
        while True:
            await asyncio.sleep(self._look_every_s)
            try:
                self._become({model: bounds for model, bounds in self._bounds().items() if bounds.scales})
                if self._scalings and self._possible():
                    await self._look()
            except Exception as error:  # a bug of ours
                for model in self._scalings:
                    self._say(model, _unexpected(error))

    # Inside

    def _become(self, bounds: Mapping[str, Bounds]) -> None:
        """What was seen of a model goes on counting, whatever its bounds are now."""
        self._scalings = {model: self._scalings.get(model) or Scaling(bounds[model]) for model in bounds}
        for model, scaling in self._scalings.items():
            scaling.bounds = bounds[model]
        for model in self._why.keys() - bounds.keys():
            self._say(model, None)
            del self._why[model]

    async def _look(self) -> None:
        try:
            figures = await self._figures()
            wanted = {model: self._wanted(model, figures[model]) for model in self._scalings if model in figures}
        except NOT_UNDERSTOOD:  # a gateway of another version
            return
        for model, replicas in wanted.items():
            if replicas is None:
                self._say(model, None)
            elif self._possible() and _now() >= self._not_before.get(model, 0.0):
                await self._try(model, replicas)

    def _wanted(self, model: str, said: Message) -> int | None:
        """Those that were drained or given up do not count: others do their work, as far as there may be others."""
        members = self._members(model)
        counted = [one for one in members if not self._crew.is_drained(one) and one.life.state is not State.FAILED]
        ready = [one for one in counted if one.life.serving and self._crew.state(one) != "draining"]
        others = len(members) - len(counted)
        scaling = self._scalings[model]
        wanted = scaling.look(
            _now(),
            replicas=len(counted),
            ready=len(ready),
            slots=sum(slots_of(member) for member in ready),
            busy=int(said["busy"]),
            queued=int(said["queued"]),
            oldest_wait_s=float(said["wait_s"]),
        )
        total = len(members) if wanted is None else scaling.bounds.clamp(wanted + others)
        return total if total != len(members) else None

    async def _try(self, model: str, replicas: int) -> None:
        """As many as wanted; where they do not fit, half as many more, and so on."""
        have, now = len(self._members(model)), replicas
        refused: str | None = None
        while now != have:
            try:
                await self._scale(model, now)
                self._changed()
                break
            except DoesNotFit as error:
                refused = refused or error.message
                now = have + max(0, now - have) // 2
            except SkepError as error:
                refused = error.message
                break
            except Exception as error:  # a bug of ours, or no process to spare: it may be better later
                refused = _unexpected(error)
                break
        if refused is not None:
            self._not_before[model] = _now() + self._try_again_s
        self._say(model, None if refused is None else f"would be {replicas}: {refused}")

    def _say(self, model: str, why: str | None) -> None:
        if self._why.get(model) != why:
            self._why[model] = why
            self._changed()

    def _members(self, model: str) -> list[Member]:
        return [member for member in self._crew.members if member.model == model and member.kind != "upstream"]


def _unexpected(error: Exception) -> str:
    return f"unexpected {type(error).__name__}: {error}"


def _now() -> float:
    return time.monotonic()
