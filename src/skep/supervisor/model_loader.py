"""Loading and unloading of models: carries out what `eviction` decides.

Knows the replicas of a model by their states, and nothing of how they are started and ended.
"""

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
from skep.supervisor.replica import Replica
from skep.supervisor.replica_set import ReplicaSet
from skep.wire.json_pipe import Message

_now = time.monotonic
ENDED_STARTS = {ReplicaState.READY, ReplicaState.FAILED}  # a start has ended, well or not
# How the gateway is told the state of a model; for the residencies not listed: "unloading".
GATEWAY_STATES = {
    Residency.LOADING: "loading",
    Residency.OUT: "unloaded",
    Residency.GIVEN_UP: "failed",
}


def unknown_model(model: str, models: Iterable[str]) -> UserError:
    names = ", ".join(models) or "none"
    return UserError(f"skep starts no model `{model}` here", hint=f"known: {names}")


@dataclass(eq=False, repr=False)
class ModelLoader:
    """Feeds events into an `Eviction` and carries out its actions.

    `status` asks the gateway, `say` sends it a message, `changed` is called when the replica table
    differs.
    """

    replica_set: ReplicaSet
    tasks: asyncio.TaskGroup
    status: Callable[[], Awaitable[GatewayStatus | None]]
    say: Callable[[LoadFailed], None]
    changed: Callable[[], None]
    # The models that are not loaded, as the gateway was told last.
    unloaded: dict[str, UnloadedModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._eviction = Eviction([])
        self._wakeup = asyncio.Event()
        self._moved = asyncio.Event()  # some model may have another state
        # Replicas that were given up and are about to start again.
        self._restart_pending: set[str] = set()
        self._stopped = False

    def configure(
        self, launches: Iterable[Launch], budget: MemoryBudget, *, begin: bool = False
    ) -> None:
        """Set models and memory budget. `begin`: the replica set starts by itself those that are
        not on demand.
        """
        specs = model_specs(launches, budget.room)
        self._carry_out_and_publish(self._eviction.become(specs, budget, _now()))
        if begin:
            self._eviction.begin(_now())
        else:
            for spec in specs:
                if self._awake(self.replica_set.of_model(spec.model)):
                    self._note_start(self._eviction.states[spec.model])
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

    def unloaded_models(self) -> dict[str, UnloadedModel]:
        """Return, for the gateway, the models that must be loaded before they can answer."""
        models: dict[str, UnloadedModel] = {}
        for model, state in self._eviction.states.items():
            may_be_out = state.comes_and_goes or state.gave_up
            is_out = may_be_out and state.residency is not Residency.IN
            if is_out and not self.replica_set.serves(model):
                models[model] = UnloadedModel(self._gateway_state(state), state.why)
        return models

    def _gateway_state(self, state: ModelState) -> str:
        if state.model in self._eviction.queue:
            return "waiting"
        return GATEWAY_STATES.get(state.residency, "unloading")

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
                self._carry_out_and_publish(
                    self._eviction.take_figures(status.models, asked_at, _now())
                )
            else:
                self._carry_out_and_publish(self._eviction.settle(_now()))

    # Events

    def requested(self, model: str) -> None:
        """Load a model that the gateway has requests for."""
        if not self._stopped and model in self._eviction.states:
            self._carry_out_and_publish(self._eviction.requested(model, _now()))

    def look(self) -> None:
        """Derive the state of each model from its replicas, and act on it; called after every
        change of a replica.
        """
        actions: list[Action] = []
        if not self._stopped:
            for state in list(self._eviction.states.values()):
                actions += self._look_at(state)
        self._carry_out(actions)
        self.unloaded = self.unloaded_models()
        self._wakeup.set()
        self._moved.set()

    def _look_at(self, state: ModelState) -> list[Action]:
        """Return what follows from the states of a model's replicas."""
        model = state.model
        members = self.replica_set.of_model(model)
        states = self._states_of(self._awake(members))
        if state.residency is Residency.DRAINING:
            # A replica that restarted while its model is drained gets no request either.
            self.replica_set.hold(model)
        if state.leaves and members and not states:
            return self._eviction.ended(model, _now())
        if states == {ReplicaState.FAILED}:
            why = next((member.life.why for member in members if member.life.why), None)
            return self._eviction.failed(model, why or "it did not start", _now())
        if state.residency is Residency.LOADING and states and states <= ENDED_STARTS:
            return self._eviction.loaded(model, _now())
        starts_again = states - {ReplicaState.FAILED, ReplicaState.STOPPED}
        if state.residency is Residency.GIVEN_UP and starts_again:
            self._note_start(state)
        return []

    def _note_start(self, state: ModelState) -> None:
        """Note that a reload or the user has started a model, and let it serve."""
        if not state.residency.uses_memory:
            self.replica_set.release(state.model)
            self._eviction.started(state.model, _now())

    def _awake(self, members: Iterable[Replica]) -> list[Replica]:
        return [member for member in members if not self.replica_set.is_dormant(member)]

    def _states_of(self, members: list[Replica]) -> set[ReplicaState]:
        """Return the states of these replicas. A replica about to start again counts as starting,
        though its task has not run yet.
        """
        states = set()
        for member in members:
            name = member.launch.name
            if member.life.state is not ReplicaState.FAILED:
                self._restart_pending.discard(name)
            is_pending = name in self._restart_pending
            states.add(ReplicaState.STARTING if is_pending else member.life.state)
        return states

    # Commands

    async def load(self, model: str, *, wait: bool = False) -> Message:
        state = self._state(model)
        refusals = state.refusals
        self._carry_out_and_publish(self._eviction.requested(model, _now(), by_user=True))
        while wait and state.residency is not Residency.IN and state.refusals == refusals:
            await self._until_moved(state)
        if wait and state.residency is not Residency.IN:
            hint = "`skep logs NAME` shows what its replicas said"
            raise EngineError(f"`{model}` cannot be loaded: {state.why}", hint=hint)
        return self._reply(state)

    async def unload(self, model: str, *, wait: bool = False) -> Message:
        """Unload a model once it is idle."""
        state = self._state(model)
        unloads = state.unloads
        self._carry_out_and_publish(self._eviction.unload(model, _now()))
        while wait and state.residency.uses_memory and state.unloads == unloads:
            await self._until_moved(state)
        return self._reply(state)

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

    def _reply(self, state: ModelState) -> Message:
        is_out = state.residency is Residency.OUT
        return {
            "ok": True,
            "model": state.model,
            "state": self._gateway_state(state) if is_out else state.residency.value,
        }

    def _carry_out_and_publish(self, actions: list[Action]) -> None:
        """Carry the actions out, and publish what they change."""
        self._carry_out(actions)
        if actions or self.unloaded_models() != self.unloaded:
            self.changed()
        self._wakeup.set()

    def _carry_out(self, actions: list[Action]) -> None:
        if not self._stopped:
            for action in actions:
                self._carry_out_one(action)
        self._moved.set()

    def _carry_out_one(self, action: Action) -> None:
        model = action.model
        match action.act:
            case Act.LOAD:
                members = self.replica_set.of_model(model)
                failed = [member for member in members if member.life.state is ReplicaState.FAILED]
                self._restart_pending |= {member.launch.name for member in failed}
                self.replica_set.wake(model)
            case Act.DRAIN:
                self.replica_set.hold(model)
            case Act.UNLOAD:
                self.tasks.create_task(self.replica_set.unload_model(model))
            case Act.REFUSE:
                self.say(LoadFailed(model, action.why, action.retry_after_s))
