"""The shell around `lodging`: hears what is wanted and what runs, and has models loaded and unloaded.

Asks the gateway for figures only while a model waits, drains or may become idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

from skep.engines.base import Launch
from skep.errors import DoesNotFit, EngineError, SkepError, UserError
from skep.supervisor.eviction import (
    Action,
    Admit,
    Drain,
    Figures,
    House,
    Load,
    Lodging,
    Refuse,
    Stay,
    Unload,
    guests_of,
)
from skep.supervisor.lifecycle import State
from skep.supervisor.replica import Replica
from skep.supervisor.replica_set import Crew
from skep.wire.json_pipe import Message

DONE = (State.READY, State.FAILED)
STATES = {Stay.LOADING: "loading", Stay.OUT: "unloaded", Stay.GIVEN_UP: "failed"}  # as the gateway is told
NOT_UNDERSTOOD = (LookupError, TypeError, ValueError, AttributeError)

Futures = dict[str, list[asyncio.Future[None]]]  # by model


class Housing:
    """`status` asks the gateway, `say` tells it something, `changed` is called when the replica table differs."""

    def __init__(
        self,
        crew: Crew,
        tasks: asyncio.TaskGroup,
        *,
        status: Callable[[], Awaitable[Message]],
        say: Callable[[Message], None],
        changed: Callable[[], None],
    ) -> None:
        self._crew = crew
        self._tasks = tasks
        self._status = status
        self._say = say
        self._changed = changed
        self._lodging = Lodging([])
        self._stir = asyncio.Event()
        self._was_out: set[str] = set()  # models that were unloaded once: they come and go like those on demand
        self._waiting: Futures = {}  # users that wait for a model to be loaded
        self._leaving: Futures = {}  # or unloaded
        self._seeing_off: set[asyncio.Task[None]] = set()
        self._on_demand: set[str] = set()
        self._woken: set[str] = set()  # replicas that were given up, are to start again, and have not begun to
        self._told: dict[str, Message] = {}  # what the gateway was told last of those that are not loaded
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Housing {self._lodging!r}>"

    def settle_in(self, launches: Iterable[Launch], house: House, *, begin: bool = False) -> None:
        """These models in this house from now on; `begin`: those that are not on demand are being started."""
        guests = guests_of(launches, house.room)
        self._do(self._lodging.become(guests, house, _now()))
        if begin:
            self._lodging.begin(_now())  # the crew starts them by itself
        for guest in () if begin else guests:
            if not all(self._crew.is_dormant(member) for member in self._crew.of_model(guest.model)):
                self._do(self._lodging.running(guest.model, _now()))
            elif not guest.on_demand and guest.model in self._on_demand:
                self._do(self._lodging.wanted(guest.model, _now(), asked=True))
        self._on_demand = {guest.model for guest in guests if guest.on_demand}
        for futures in (self._waiting, self._leaving):
            for model in futures.keys() - set(self._lodging.models):
                self._resolve(futures, model, EngineError(f"`{model}` is not served any more", hint="see `skep ps`"))
        self.look()
        self._publish()

    def stop(self) -> None:
        """Nothing is loaded or unloaded any more."""
        self._stopped = True
        for task in self._seeing_off:
            task.cancel()

    def pause(self, *, over: bool = False) -> None:
        """Load and unload nothing until it is `over`."""
        self._stopped = not over
        if over:
            self.look()
            self._stir.set()

    @property
    def is_moving(self) -> bool:
        """Some model is being loaded or unloaded."""
        stays = {self._lodging.stay(model) for model in self._lodging.models}
        return not stays.isdisjoint((Stay.LOADING, Stay.DRAINING, Stay.LEAVING))

    def dormant(self) -> dict[str, Message]:
        """For the gateway: the models that have to be loaded before anybody answers."""
        told: dict[str, Message] = {}
        for model in self._lodging.models:
            stay = self._lodging.stay(model)
            given_up = stay is Stay.GIVEN_UP
            if stay is Stay.IN or not (given_up or self._comes_and_goes(model)) or self._crew.serves(model):
                continue
            state = STATES.get(stay, "unloading")
            waits = self._lodging.in_line(model)
            told[model] = {"state": "waiting" if waits else state, "why": self._lodging.why(model)}
        return told

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._stir.clear()
            poll_s = self._lodging.poll_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll_s):
                    await self._stir.wait()
            if self._lodging.poll_s is not None and not self._stopped:
                await self._ask()

    # Events

    def wanted(self, model: str) -> None:
        """A gateway has requests for a model that is not loaded."""
        if self._stopped or model not in self._lodging.models:
            return
        self._do(self._lodging.wanted(model, _now()))

    def look(self) -> None:
        """After every change of a replica, and before it is published: what that means for its model."""
        for model in () if self._stopped else self._lodging.models:
            members = self._crew.of_model(model)
            awake = [member for member in members if not self._crew.is_dormant(member)]
            self._woken -= {member.launch.name for member in awake if member.life.state is not State.FAILED}
            states = [self._state(member) for member in awake]
            stay = self._lodging.stay(model)
            if stay is Stay.DRAINING:
                self._crew.hold(model)  # one that died meanwhile and is back gets nothing either
            if stay in (Stay.DRAINING, Stay.LEAVING) and members and not states:
                self._was_out.add(model)
                self._resolve(self._leaving, model)  # also if it is loaded again in the next moment
                self._do(self._lodging.gone(model, _now()))
            elif stay in (Stay.LOADING, Stay.IN, Stay.DRAINING) and states and set(states) == {State.FAILED}:
                why = next((member.life.why for member in members if member.life.why), None)
                self._was_out.add(model)  # from now on it is told of to the gateway
                self._do(self._lodging.failed(model, why or "it did not start", _now()))
            elif stay is Stay.LOADING and states and all(state in DONE for state in states):
                self._do(self._lodging.loaded(model, _now()))
            elif stay is Stay.GIVEN_UP and any(state not in (State.FAILED, State.STOPPED) for state in states):
                self._crew.hold(model, back=True)
                self._do(self._lodging.running(model, _now()))
        self._tell_users()
        self._told = self.dormant()

    # What users ask for

    async def load(self, model: str, *, wait: bool) -> Message:
        self._known(model)
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if wait:
            self._waiting.setdefault(model, []).append(loaded)
        self._do(self._lodging.wanted(model, _now(), asked=True))
        if wait and self._lodging.stay(model) is not Stay.IN:
            await loaded
        return self._answer(model)

    async def unload(self, model: str, *, wait: bool, drain_s: float | None) -> Message:
        """`drain_s`: after so long, whatever it still serves."""
        self._known(model)
        self._do(self._lodging.unload(model, _now()))
        if self._lodging.stay(model).takes_room:
            left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._leaving.setdefault(model, []).append(left)
            gone = self._tasks.create_task(self._see_off(model, left, drain_s))
            self._seeing_off.add(gone)
            gone.add_done_callback(self._seeing_off.discard)
            if wait:
                await asyncio.wait({gone})
        return self._answer(model)

    async def swap(self, out: str, come: str, *, wait: bool, drain_s: float | None) -> Message:
        """Nothing is unloaded for a model that could not be loaded anyway."""
        self._known(out)
        self._known(come)
        if out == come:
            raise UserError(f"`{out}` cannot be swapped for itself", hint="`skep restart NAME` starts a replica anew")
        never = self._lodging.never(come, without=out)
        if never is not None:
            raise DoesNotFit(never, hint=f"`{out}` stays as it is")
        await self.unload(out, wait=False, drain_s=drain_s)
        try:
            answer = await self.load(come, wait=wait)
        except SkepError as error:
            raise EngineError(error.message, hint=f"`{out}` is unloaded; its next request loads it again") from None
        return {**answer, "out": out}

    # Inside

    def _comes_and_goes(self, model: str) -> bool:
        return model in self._was_out or all(member.launch.on_demand for member in self._crew.of_model(model))

    def _known(self, model: str) -> None:
        if model not in self._lodging.models:
            known = ", ".join(self._lodging.models) or "none"
            raise UserError(f"there is no model `{model}` that skep starts", hint=f"known: {known}")

    def _answer(self, model: str) -> Message:
        stay = self._lodging.stay(model)
        state = "waiting" if stay is Stay.OUT and self._lodging.in_line(model) else stay.value
        return {"ok": True, "model": model, "state": state}

    async def _see_off(self, model: str, gone: asyncio.Future[None], drain_s: float | None) -> None:
        """Returns when it is unloaded, or given up."""
        await asyncio.wait({gone}, timeout=drain_s)
        if not gone.done():
            self._do(self._lodging.hurry(model, _now()))
            await asyncio.wait({gone})

    def _tell_users(self) -> None:
        for model in self._lodging.models:
            if self._lodging.stay(model) is Stay.IN:
                self._resolve(self._waiting, model)
            elif not self._lodging.stay(model).takes_room:
                self._resolve(self._leaving, model)

    def _resolve(self, futures: Futures, model: str, error: EngineError | None = None) -> None:
        for future in futures.pop(model, []):
            if not future.done() and error is not None:
                future.set_exception(error)
            elif not future.done():
                future.set_result(None)

    def _do(self, actions: list[Action]) -> None:
        for action in () if self._stopped else actions:
            match action:
                case Load(model):
                    members = self._crew.of_model(model)
                    self._woken |= {one.launch.name for one in members if one.life.state is State.FAILED}
                    self._crew.wake(model, self._tasks)
                case Drain(model):
                    self._crew.hold(model)
                case Admit(model):
                    self._crew.hold(model, back=True)
                case Unload(model):
                    self._tasks.create_task(self._crew.put_to_sleep(model))
                case Refuse(model, why, retry_after_s):
                    self._refuse(model, why, retry_after_s)
        if actions:
            self._tell_users()
        if actions or self.dormant() != self._told:
            self._publish()
        self._stir.set()

    def _publish(self) -> None:
        self._told = self.dormant()
        self._changed()

    def _state(self, member: Replica) -> State:
        """One that is to start again is not given up any more, though its task has not run since."""
        return State.STARTING if member.launch.name in self._woken else member.life.state

    def _refuse(self, model: str, why: str, retry_after_s: float) -> None:
        self._say({"op": "load_failed", "model": model, "why": why, "retry_after_s": retry_after_s})
        error = EngineError(f"`{model}` cannot be loaded: {why}", hint="`skep logs NAME` shows what its replicas said")
        self._resolve(self._waiting, model, error)

    async def _ask(self) -> None:
        asked_at = _now()
        try:
            status = await self._status()
            figures = figures_of(status)
        except NOT_UNDERSTOOD:  # a gateway of another version: as if it were silent
            status, figures = {}, {}
        now = _now()
        if figures and status.get("complete"):
            self._do(self._lodging.told(figures, asked_at, now))
        else:
            self._do(self._lodging.tick(now))


def figures_of(status: Message) -> dict[str, Figures]:
    """A gateway of another version may tell more."""
    return {
        model: Figures(
            int(said["busy"]), int(said["queued"]), None if said["idle_s"] is None else float(said["idle_s"])
        )
        for model, said in status.get("models", {}).items()
    }


def _now() -> float:
    return time.monotonic()
