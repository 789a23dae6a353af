"""A running hive whose engines are ended for somebody who needs the machine, and started again when he has gone.

Whoever asks for the pause holds it by his connection to the control socket: its end, by a kill too, is the end of the
pause. Gateway, port and settings stay; requests are refused meanwhile with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from skep.engines.crew import Crew
from skep.engines.housing import Housing
from skep.engines.lifecycle import State
from skep.engines.sidecar import Sidecar
from skep.errors import EngineError, SkepError
from skep.host.power import gpu_memory_used, still_held
from skep.wire.link import Message

PAUSED = "paused"
TRIES = 20  # a card is given back a moment after its engine has ended
TRY_EVERY_S = 3.0
RETRY_AFTER_S = 5.0  # for those who wait when it begins


class Pausing:
    """`possible` tells whether it may begin; `set_phase` and `say` (to the gateway) are the supervisor's."""

    def __init__(
        self,
        crew: Crew,
        housing: Housing,
        monitor: Sidecar,
        tasks: asyncio.TaskGroup,
        *,
        possible: Callable[[], bool],
        set_phase: Callable[[str], None],
        say: Callable[[Message], None],
    ) -> None:
        self.why: str | None = None  # None: nobody holds a pause
        self._crew = crew
        self._housing = housing
        self._monitor = monitor
        self._tasks = tasks
        self._possible = possible
        self._set_phase = set_phase
        self._say = say
        self._memory: Sequence[tuple[int, int]] | None = None  # of the cards, without our engines
        self._resuming: asyncio.Task[SkepError | None] | None = None

    def __repr__(self) -> str:
        return f"<Pausing {self.why or 'not paused'}>"

    def check(self) -> None:
        """Raise EngineError while it is paused: nothing may be started then."""
        if self.why is not None:
            raise EngineError(f"skep is paused: {self.why}", hint="try again when that has ended, or `skep down`")

    def dormant(self) -> dict[str, Message]:
        """For the gateway: the models that nobody answers for because of the pause."""
        if self.why is None:
            return {}
        silent = [model for model in self._crew.models if not self._crew.serves(model)]
        return {model: {"state": "failed", "why": self.why} for model in silent}

    async def pause(self, message: Message, drain_s: float) -> Message:
        """End all engines, once their answers are finished or after so long."""
        self.check()
        if not self._possible() or self._housing.is_moving:
            hint = "try again when `skep ps` shows nothing on its way"
            raise EngineError("skep cannot pause: it is starting, changing, or loading a model", hint=hint)
        self.why = f"`skep tune --in-place` (pid {message.get('pid')}) has the machine; it is served again afterwards"
        self._set_phase(PAUSED)
        self._housing.pause()
        try:
            await self._monitor.pause()
            await self._crew.pause(drain_s)
            self._memory = await asyncio.to_thread(gpu_memory_used)
        except BaseException:
            self.release()
            raise
        for model in self.dormant():  # those who wait already are told
            self._say({"op": "load_failed", "model": model, "why": self.why, "retry_after_s": RETRY_AFTER_S})
        return {"ok": True, "holds": True}

    def release(self) -> None:
        """Start the engines again, whether or not anybody is there to hear of it."""
        if self.why is not None and self._resuming is None:
            self._resuming = self._tasks.create_task(self._resume())

    async def resume(self) -> Message:
        """Return when all serve again. Raises what keeps one of them from it."""
        self.release()
        if (resuming := self._resuming) is not None:
            await asyncio.wait({resuming})
            if not resuming.cancelled() and (failure := resuming.result()) is not None:
                raise failure
        return {"ok": True}

    def cancel(self) -> None:
        """The hive stops: nothing is started again."""
        self.why = None
        if self._resuming is not None:
            self._resuming.cancel()

    async def _resume(self) -> SkepError | None:
        await self._until_cards_are_clear()
        names = self._crew.resume(self._tasks)
        failure: SkepError | None = None
        for left in reversed(range(TRIES)):
            failure = await self._until_up(names)
            if failure is None or not left:
                break
            await asyncio.sleep(TRY_EVERY_S)
            for member in self._crew.members:
                if member.launch.name in names and member.life.state is State.FAILED:
                    member.restart()
        self.why = self._resuming = None
        self._housing.pause(over=True)
        self._monitor.resume()
        self._set_phase("ready")
        return failure

    async def _until_up(self, names: Sequence[str]) -> SkepError | None:
        try:
            for name in names:
                await self._crew.until_up(name, hint=f"`skep logs {name}` shows more")
        except SkepError as error:
            return error
        return None

    async def _until_cards_are_clear(self) -> None:
        """What ran meanwhile may hold them for a moment."""
        for _ in range(TRIES):
            used = await asyncio.to_thread(gpu_memory_used) if self._memory else None
            if used is None or not still_held(used, self._memory or ()):
                return
            await asyncio.sleep(TRY_EVERY_S)
