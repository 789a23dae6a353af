"""Loading and unloading of models: carries out what `eviction` decides."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from skep.config.gateway_messages import GatewayStatus, LoadFailed, UnloadedModel
from skep.engines.base import Launch
from skep.errors import EngineError, UserError
from skep.supervisor.eviction import (
    Act,
    Action,
    Eviction,
    MemoryBudget,
    ModelState,
    Residency,
    model_specs,
)
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.replica_set import ReplicaSet
from skep.wire.json_pipe import Message

_now = time.monotonic
DONE = {ReplicaState.READY, ReplicaState.FAILED}
TOLD = {
    Residency.LOADING: "loading",
    Residency.OUT: "unloaded",
    Residency.GIVEN_UP: "failed",
}  # else: "unloading"


def unknown_model(model: str, known: Iterable[str]) -> UserError:
    return UserError(
        f"skep starts no model `{model}` here", hint=f"known: {', '.join(known) or 'none'}"
    )


@dataclass(eq=False, repr=False)
class ModelLoader:
    """`status` asks the gateway, `say` tells it something, `changed` is called when the replica
    table differs.
    """

    replica_set: ReplicaSet
    tasks: asyncio.TaskGroup
    status: Callable[[], Awaitable[GatewayStatus | None]]
    say: Callable[[LoadFailed], None]
    changed: Callable[[], None]
    # What the gateway was last told.
    unloaded: dict[str, UnloadedModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._eviction = Eviction([])
        self._wakeup = asyncio.Event()
        self._moved = asyncio.Event()  # some model, or may have
        # Replicas that were given up and are about to start again.
        self._restart_pending: set[str] = set()
        self._stopped = False

    def configure(
        self, launches: Iterable[Launch], budget: MemoryBudget, *, begin: bool = False
    ) -> None:
        """Set models and memory budget; `begin`: those that are not on demand are being
        started.
        """
        specs = model_specs(launches, budget.room)
        self._do(self._eviction.become(specs, budget, _now()))
        if begin:
            self._eviction.begin(_now())  # the replica set starts them by itself
        for spec in () if begin else specs:
            if not all(
                one.launch.name in self.replica_set.dormant
                for one in self.replica_set.of_model(spec.model)
            ):
                self._eviction.running(spec.model, _now())
        self.changed()

    def pause(self, *, over: bool = False) -> None:
        """Load and unload nothing until it is `over`."""
        self._stopped = not over
        if over:
            self.changed()

    @property
    def is_moving(self) -> bool:
        moving = (Residency.LOADING, Residency.DRAINING, Residency.LEAVING)
        return any(state.residency in moving for state in self._eviction.states.values())

    def dormant(self) -> dict[str, UnloadedModel]:
        """Return, for the gateway, the models that must be loaded before they can answer."""
        told: dict[str, UnloadedModel] = {}
        for model, state in self._eviction.states.items():
            tells = state.residency is not Residency.IN and (state.comes_and_goes or state.gave_up)
            if tells and not self.replica_set.serves(model):
                told[model] = UnloadedModel(self._shown(state), state.why)
        return told

    def _shown(self, state: ModelState) -> str:
        if state.model in self._eviction.queue:
            return "waiting"
        return TOLD.get(state.residency, "unloading")

    async def run(self) -> None:
        """Ask for figures when they are needed, until cancelled."""
        while True:
            self._wakeup.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._eviction.poll_s):
                    await self._wakeup.wait()
            if self._eviction.poll_s is None or self._stopped:
                continue
            asked_at = _now()
            status = await self.status()
            if status is not None and status.models:
                self._do(self._eviction.told(status.models, asked_at, _now()))
            else:
                self._do(self._eviction.settle(_now()))

    # Events

    def wanted(self, model: str) -> None:
        """Load a model that the gateway has requests for."""
        if not self._stopped and model in self._eviction.states:
            self._do(self._eviction.wanted(model, _now()))

    def look(self) -> None:
        """Derive the state of each model from its replicas, and act on it; called after every
        change of a replica.
        """
        actions: list[Action] = []
        for model, state in () if self._stopped else list(self._eviction.states.items()):
            members = self.replica_set.of_model(model)
            awake = [
                member for member in members if member.launch.name not in self.replica_set.dormant
            ]
            self._restart_pending -= {
                one.launch.name for one in awake if one.life.state is not ReplicaState.FAILED
            }
            # one about to start again counts as starting, though its task has not run yet
            found = {
                ReplicaState.STARTING
                if one.launch.name in self._restart_pending
                else one.life.state
                for one in awake
            }
            if state.residency is Residency.DRAINING:
                # A replica that restarted meanwhile gets nothing either.
                self.replica_set.hold(model)
            if state.leaves and members and not found:
                actions += self._eviction.gone(model, _now())
            elif found == {ReplicaState.FAILED}:
                why = next((member.life.why for member in members if member.life.why), None)
                actions += self._eviction.failed(model, why or "it did not start", _now())
            elif state.residency is Residency.LOADING and found and found <= DONE:
                actions += self._eviction.loaded(model, _now())
            elif state.residency is Residency.GIVEN_UP and found - {
                ReplicaState.FAILED,
                ReplicaState.STOPPED,
            }:
                self.replica_set.release(model)
                self._eviction.running(model, _now())
        self._carry_out(actions)
        self.unloaded = self.dormant()
        self._wakeup.set()
        self._moved.set()

    # Commands

    async def load(self, model: str, *, wait: bool = False) -> Message:
        state = self._state(model)
        refusals = state.refusals
        self._do(self._eviction.wanted(model, _now(), asked=True))
        while wait and state.residency is not Residency.IN and state.refusals == refusals:
            await self._until_moved(state)
        if wait and state.residency is not Residency.IN:
            hint = "`skep logs NAME` shows what its replicas said"
            raise EngineError(f"`{model}` cannot be loaded: {state.why}", hint=hint)
        return self._answer(state)

    async def unload(self, model: str, *, wait: bool = False) -> Message:
        """Unload a model once it is idle."""
        state = self._state(model)
        unloads = state.unloads
        self._do(self._eviction.unload(model, _now()))
        while wait and state.residency.uses_memory and state.unloads == unloads:
            await self._until_moved(state)
        return self._answer(state)

    # Inside

    def _state(self, model: str) -> ModelState:
        if model not in self._eviction.states:
            raise unknown_model(model, self._eviction.states)
        return self._eviction.states[model]

    async def _until_moved(self, state: ModelState) -> None:
        """Wait until some model has moved. Raise EngineError if a reload has removed this one."""
        self._moved.clear()
        await self._moved.wait()
        if self._eviction.states.get(state.model) is not state:
            raise EngineError(f"`{state.model}` is not served any more", hint="see `skep ps`")

    def _answer(self, state: ModelState) -> Message:
        out = state.residency is Residency.OUT
        return {
            "ok": True,
            "model": state.model,
            "state": self._shown(state) if out else state.residency.value,
        }

    def _do(self, actions: list[Action]) -> None:
        """Carry the actions out, and publish what they change."""
        self._carry_out(actions)
        if actions or self.dormant() != self.unloaded:
            self.changed()
        self._wakeup.set()

    def _carry_out(self, actions: list[Action]) -> None:
        for action in () if self._stopped else actions:
            model = action.model
            match action.act:
                case Act.LOAD:
                    failed = [
                        one
                        for one in self.replica_set.of_model(model)
                        if one.life.state is ReplicaState.FAILED
                    ]
                    self._restart_pending |= {one.launch.name for one in failed}
                    self.replica_set.wake(model)
                case Act.DRAIN:
                    self.replica_set.hold(model)
                case Act.UNLOAD:
                    self.tasks.create_task(self.replica_set.unload_model(model))
                case Act.REFUSE:
                    self.say(LoadFailed(model, action.why, action.retry_after_s))
        self._moved.set()
