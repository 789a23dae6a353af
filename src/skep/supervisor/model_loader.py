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
from skep.supervisor.eviction import Act, Action, Eviction, MemoryBudget, Residency, model_specs
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.replica_set import ReplicaSet
from skep.wire.json_pipe import Message

_now = time.monotonic
DONE = {ReplicaState.READY, ReplicaState.FAILED}
TOLD = {Residency.LOADING: "loading", Residency.OUT: "unloaded", Residency.GIVEN_UP: "failed"}  # else: "unloading"

Futures = dict[str, list[asyncio.Future[None]]]  # by model


def unknown_model(model: str, known: Iterable[str]) -> UserError:
    return UserError(f"skep starts no model `{model}` here", hint=f"known: {', '.join(known) or 'none'}")


@dataclass(eq=False, repr=False)
class ModelLoader:
    """`status` asks the gateway, `say` tells it something, `changed` is called when the replica table differs."""

    replica_set: ReplicaSet
    tasks: asyncio.TaskGroup
    status: Callable[[], Awaitable[GatewayStatus | None]]
    say: Callable[[LoadFailed], None]
    changed: Callable[[], None]
    unloaded: dict[str, UnloadedModel] = field(default_factory=dict)  # what the gateway was last told

    def __post_init__(self) -> None:
        self._eviction = Eviction([])
        self._wakeup = asyncio.Event()
        self._ever_unloaded: set[str] = set()  # treated as on demand from then on
        self._waiting: Futures = {}  # callers that wait for a model to be loaded
        self._leaving: Futures = {}  # or unloaded
        self._on_demand: set[str] = set()
        self._restart_pending: set[str] = set()  # replicas that were given up and are about to start again
        self._stopped = False

    def configure(self, launches: Iterable[Launch], budget: MemoryBudget, *, begin: bool = False) -> None:
        """Set models and memory budget; `begin`: those that are not on demand are being started."""
        specs = model_specs(launches, budget.room)
        self._do(self._eviction.become(specs, budget, _now()))
        if begin:
            self._eviction.begin(_now())  # the replica set starts them by itself
        for spec in () if begin else specs:
            if not all(one.launch.name in self.replica_set.dormant for one in self.replica_set.of_model(spec.model)):
                self._eviction.running(spec.model, _now())
            elif not spec.on_demand and spec.model in self._on_demand:
                self._do(self._eviction.wanted(spec.model, _now(), asked=True))
        self._on_demand = {spec.model for spec in specs if spec.on_demand}
        for futures in (self._waiting, self._leaving):
            for model in futures.keys() - self._eviction.states.keys():
                self._resolve(futures, model, EngineError(f"`{model}` is not served any more", hint="see `skep ps`"))
        self.changed()

    def stop(self) -> None:
        """Load and unload nothing any more."""
        self._stopped = True
        for model in list(self._leaving):
            self._resolve(self._leaving, model)

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
            given_up = state.residency is Residency.GIVEN_UP
            tells = state.residency is not Residency.IN and (given_up or model in self._ever_unloaded | self._on_demand)
            if tells and not self.replica_set.serves(model):
                shown = "waiting" if model in self._eviction.queue else TOLD.get(state.residency, "unloading")
                told[model] = UnloadedModel(shown, state.why)
        return told

    async def run(self) -> None:
        """Ask for figures when they are needed, until cancelled."""
        while True:
            self._wakeup.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._eviction.poll_s):
                    await self._wakeup.wait()
            if self._eviction.poll_s is None or self._stopped:
                continue
            asked_at, status = _now(), await self.status()
            if status is not None and status.models and status.complete:
                self._do(self._eviction.told(status.models, asked_at, _now()))
            else:
                self._do(self._eviction.settle(_now()))

    # Events

    def wanted(self, model: str) -> None:
        """Load a model that the gateway has requests for."""
        if not self._stopped and model in self._eviction.states:
            self._do(self._eviction.wanted(model, _now()))

    def look(self) -> None:
        """Derive the state of each model from its replicas, and act on it; called after every change of a replica."""
        actions: list[Action] = []
        residencies = {model: state.residency for model, state in self._eviction.states.items()}
        for model, residency in () if self._stopped else residencies.items():
            members = self.replica_set.of_model(model)
            awake = [member for member in members if member.launch.name not in self.replica_set.dormant]
            self._restart_pending -= {one.launch.name for one in awake if one.life.state is not ReplicaState.FAILED}
            states = {  # one about to start again counts as starting, though its task has not run yet
                ReplicaState.STARTING if one.launch.name in self._restart_pending else one.life.state for one in awake
            }
            if residency is Residency.DRAINING:
                self.replica_set.hold(model)  # a replica that restarted meanwhile gets nothing either
            if residency in (Residency.DRAINING, Residency.LEAVING) and members and not states:
                self._ever_unloaded.add(model)
                self._resolve(self._leaving, model)  # even if it is loaded again at once
                actions += self._eviction.gone(model, _now())
            elif states == {ReplicaState.FAILED}:
                why = next((member.life.why for member in members if member.life.why), None)
                self._ever_unloaded.add(model)  # the gateway is told about it from now on
                actions += self._eviction.failed(model, why or "it did not start", _now())
            elif residency is Residency.LOADING and states and states <= DONE:
                actions += self._eviction.loaded(model, _now())
            elif residency is Residency.GIVEN_UP and states - {ReplicaState.FAILED, ReplicaState.STOPPED}:
                self.replica_set.hold(model, back=True)
                self._eviction.running(model, _now())
        self._carry_out(actions)
        for model, state in self._eviction.states.items():
            if state.residency is Residency.IN:
                self._resolve(self._waiting, model)
            elif not state.residency.uses_memory:
                self._resolve(self._leaving, model)
        self.unloaded = self.dormant()
        self._wakeup.set()

    # Commands

    async def load(self, model: str, *, wait: bool = False) -> Message:
        self._known(model)
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if wait:
            self._waiting.setdefault(model, []).append(loaded)
        self._do(self._eviction.wanted(model, _now(), asked=True))
        if wait and self._eviction.states[model].residency is not Residency.IN:
            await loaded
        return self._answer(model)

    async def unload(self, model: str, *, wait: bool = False, drain_s: float | None = None) -> Message:
        """Unload a model once it is idle, or after `drain_s`."""
        self._known(model)
        self._do(self._eviction.unload(model, _now()))
        if self._eviction.states[model].residency.uses_memory:
            left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._leaving.setdefault(model, []).append(left)
            gone = self.tasks.create_task(self._finish_unload(model, left, drain_s))
            if wait:
                await asyncio.wait({gone})
        return self._answer(model)

    # Inside

    def _known(self, model: str) -> None:
        if model not in self._eviction.states:
            raise unknown_model(model, self._eviction.states)

    def _answer(self, model: str) -> Message:
        self._known(model)  # a reload may have removed it meanwhile
        residency = self._eviction.states[model].residency
        state = "waiting" if residency is Residency.OUT and model in self._eviction.queue else residency.value
        return {"ok": True, "model": model, "state": state}

    async def _finish_unload(self, model: str, gone: asyncio.Future[None], drain_s: float | None) -> None:
        """Return when it is unloaded or given up."""
        await asyncio.wait({gone}, timeout=drain_s)
        if not gone.done():
            self._do(self._eviction.hurry(model, _now()))
            await asyncio.wait({gone})

    def _resolve(self, futures: Futures, model: str, error: EngineError | None = None) -> None:
        for future in futures.pop(model, []):
            if not future.done() and error is not None:
                future.set_exception(error)
            elif not future.done():
                future.set_result(None)

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
                    failed = [one for one in self.replica_set.of_model(model) if one.life.state is ReplicaState.FAILED]
                    self._restart_pending |= {one.launch.name for one in failed}
                    self.replica_set.wake(model)
                case Act.DRAIN:
                    self.replica_set.hold(model)
                case Act.READMIT:
                    self.replica_set.hold(model, back=True)
                case Act.UNLOAD:
                    self.tasks.create_task(self.replica_set.unload_model(model))
                case Act.REFUSE:
                    self.say(LoadFailed(model, action.why, action.retry_after_s))
                    hint = "`skep logs NAME` shows what its replicas said"
                    error = EngineError(f"`{model}` cannot be loaded: {action.why}", hint=hint)
                    self._resolve(self._waiting, model, error)
