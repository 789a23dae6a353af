"""Which models are loaded, and which are evicted: events in, actions out. Knows no process, no
socket, no clock.

    out ──Load──> loading ──> in ──Drain──> draining ──Unload──> leaving ──> out
                     └──failed──────────────────────────────────────^

A wanted model waits in a queue, which is served in order, so that none starves. Idle models are
evicted at once, the least recently used first. A busy one is drained after its turn, so that two
models in demand alternate. Pinned models are never evicted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from skep.config.gateway_messages import ModelUsage
from skep.engines.base import Launch
from skep.units import format_bytes

UNLISTED = "the cards"  # stands for all cards, where they are not known
CARDLESS = ("embedded", "fake", "simulated")
WHOLE = 1 << 60  # bytes of a place whose size is not known
COUNT = "models"  # a place that each model takes once: `max_loaded`


class ModelSpec(msgspec.Struct, frozen=True):
    """One model with all its replicas, which are loaded and unloaded together."""

    model: str
    room: Mapping[str, int] = {}  # bytes it takes of each place; of unknown size: the whole place
    on_demand: bool = True
    pinned: bool = False
    idle_unload_s: float | None = None

    @property
    def needs(self) -> dict[str, int]:
        return {**self.room, COUNT: 1}


class MemoryBudget(msgspec.Struct, frozen=True):
    """The memory of the machine."""

    room: Mapping[str, int] = {}
    max_loaded: int | None = None
    turn_s: float = 30.0  # a busy model stays loaded for at least this long
    quiet_s: float = 1.0  # idle: not used for so long since it was loaded
    pause_s: float = (
        5.0  # idle: used, then without a request for so long; agents think between two turns
    )

    def limit(self, place: str) -> float:
        if place == COUNT:
            return self.max_loaded or math.inf
        return self.room.get(place, WHOLE)


class Residency(Enum):
    OUT = "unloaded"
    LOADING = "loading"
    IN = "loaded"
    DRAINING = "draining"  # gets nothing new, finishes what it has
    LEAVING = "unloading"  # its processes are being ended
    GIVEN_UP = "failed"  # not on demand, and did not start: only the user starts it again

    @property
    def uses_memory(self) -> bool:
        return self not in (Residency.OUT, Residency.GIVEN_UP)


class Act(Enum):
    LOAD = "load"
    DRAIN = "drain"  # send it nothing new
    UNLOAD = "unload"
    REFUSE = "refuse"  # the requests that wait


class Action(msgspec.Struct, frozen=True):
    act: Act
    model: str
    why: str = ""
    retry_after_s: float = 0.0


def model_specs(launches: Iterable[Launch], machine_room: Mapping[str, int]) -> list[ModelSpec]:
    """Group the replicas that skep starts here by model.

    One of unknown size takes its cards whole.
    """
    by_model: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.url is None and launch.place is None:
            by_model.setdefault(launch.model, []).append(launch)
    every_card = [place for place in machine_room if place.startswith("gpu")] or [UNLISTED]
    specs = []
    for model, replicas in by_model.items():
        room: Counter[str] = Counter()
        for launch in replicas:
            room.update(dict(launch.room))
        for launch in replicas:
            if not launch.room and launch.engine not in CARDLESS:
                places = [f"gpu{number}" for number in launch.gpus] or every_card
                room |= Counter({place: machine_room.get(place, WHOLE) for place in places})
        on_demand = all(launch.on_demand for launch in replicas)
        pinned = any(launch.pinned for launch in replicas)
        idle = [launch.idle_unload_s for launch in replicas if launch.idle_unload_s is not None]
        specs.append(ModelSpec(model, dict(room), on_demand, pinned, max(idle, default=None)))
    return specs


BACK_OFF_S = 30.0  # after a failed load
POLL_SOON_S = 0.25
POLL_S = 1.0


@dataclass(slots=True, eq=False)
class ModelState:
    spec: ModelSpec
    residency: Residency = Residency.OUT
    loaded_at: float = 0.0
    used: bool = False  # since it was loaded
    unloads: int = 0
    refusals: int = 0  # of requests, or of the user
    gave_up: bool = False  # once
    heard_at: float = float("-inf")  # when its newest figures were asked for
    busy: int = 0
    queued: int = 0
    idle_since: float = 0.0
    drained_at: float = 0.0
    wanted_at: float = 0.0
    asked: bool = False  # by the user: wanted even if no request waits
    retry_at: float = float("-inf")
    why: str | None = None

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def comes_and_goes(self) -> bool:
        """It is on demand, or treated so once it was unloaded."""
        return self.spec.on_demand or self.unloads > 0

    @property
    def leaves(self) -> bool:
        return self.residency in (Residency.DRAINING, Residency.LEAVING)

    @property
    def stays(self) -> bool:
        """It is pinned and loaded, or about to be. One that the user unloaded is neither."""
        comes = not (self.comes_and_goes or self.leaves)
        return self.spec.pinned and (comes or self.residency in (Residency.LOADING, Residency.IN))

    @property
    def goes_when_idle(self) -> bool:
        return (
            self.residency is Residency.IN
            and self.spec.idle_unload_s is not None
            and not self.spec.pinned
        )

    def is_quiet(self, now: float, quiet_s: float) -> bool:
        known = self.heard_at >= self.loaded_at
        return known and not self.busy and not self.queued and now - self.idle_since >= quiet_s


class Eviction:
    """The decider.

    The caller carries out every action returned; a repeated event repeats no action.
    """

    def __init__(self, specs: Iterable[ModelSpec], budget: MemoryBudget | None = None) -> None:
        self._budget = budget or MemoryBudget()
        self.states = {spec.model: ModelState(spec) for spec in specs}
        self.queue: dict[
            str, None
        ] = {}  # models that wait to be loaded, in the order they were wanted

    # State

    @property
    def poll_s(self) -> float | None:
        """Seconds until the gateway's figures are needed again; None: they are not needed."""
        states = self.states.values()
        if self.queue or any(state.residency is Residency.DRAINING for state in states):
            return POLL_SOON_S
        if any(state.goes_when_idle for state in states):
            return POLL_S
        return None

    def never(self, model: str) -> str | None:
        """Return why the model can never fit, and what to change; None: it can."""
        state = self.states[model]
        pinned = [other for other in self.states.values() if other is not state and other.stays]
        place = next(iter(self._lacking(state, pinned)), None)
        if place is None:
            return None
        names = ", ".join(f"`{other.model}`" for other in pinned)
        limit = self._budget.limit(place)
        if place == COUNT:
            return (
                f"no more than {limit} models may be loaded, and {names} are pinned; raise "
                "`max_loaded`"
            )
        taken = sum(other.spec.room.get(place, 0) for other in pinned)
        need = state.spec.room[place]
        if taken and need >= limit:
            return (
                f"`{model}` takes all of {place}, where {names} is pinned; give `room` if it "
                "takes less"
            )
        if taken:
            beside = f" beside the pinned {names}; unpin them, or take"
        else:
            beside = "; take"
        left = format_bytes(int(limit - taken))
        less = "a smaller quantization, context or number of slots"
        return f"`{model}` needs {format_bytes(need)} of {place}, which has {left}{beside} {less}"

    # Events

    def become(self, specs: Iterable[ModelSpec], budget: MemoryBudget, now: float) -> list[Action]:
        """Apply the models and limits of a reload. Models that remain keep their state."""
        self._budget = budget
        before = self.states
        self.states = {}
        for spec in specs:
            state = before.get(spec.model) or ModelState(spec)
            if state.spec.on_demand and not spec.on_demand and state.residency is Residency.OUT:
                state.asked = True
                self.queue[spec.model] = None
            state.spec = spec
            state.retry_at = float("-inf")
            self.states[spec.model] = state
        self.queue = {model: None for model in self.queue if model in self.states}
        return self.settle(now)

    def begin(self, now: float) -> list[Action]:
        """Load the models that are not on demand at once;
        the user vouches that they fit together.
        """
        out = [state for state in self.states.values() if state.residency is Residency.OUT]
        return [self._load(state, now) for state in out if not state.spec.on_demand]

    def running(self, model: str, now: float) -> None:
        """Note that a reload, or the user by a replica's name, has started it."""
        state = self.states.get(model)
        if state is not None and not state.residency.uses_memory:
            self._load(state, now)

    def wanted(self, model: str, now: float, *, asked: bool = False) -> list[Action]:
        """Queue a model that requests wait for, or that the user asked for."""
        state = self.states.get(model)
        if state is None or state.residency in (Residency.LOADING, Residency.IN):
            return []
        if state.residency is Residency.GIVEN_UP:
            if not asked:
                return []
            state.residency = Residency.OUT
        state.asked |= asked
        state.wanted_at = now
        self.queue[model] = None
        return self.settle(now)

    def unload(self, model: str, now: float) -> list[Action]:
        """Unload on the user's request, pinned or not. A later request loads it again."""
        state = self.states[model]
        if state.asked and state.residency is Residency.OUT:
            self.queue.pop(model, None)
        state.asked = False
        actions = []
        if state.residency is Residency.LOADING:
            actions = [self._unload(state)]
        elif state.residency is Residency.IN:
            actions = [self._drain(state, now)]
        return [*actions, *self.settle(now)]

    def told(self, figures: Mapping[str, ModelUsage], asked_at: float, now: float) -> list[Action]:
        """Take the gateway's figures, asked for at `asked_at`."""
        for model, said in figures.items():
            state = self.states.get(model)
            if state is None or asked_at < state.heard_at:
                continue
            state.heard_at = asked_at
            state.busy = said.busy
            state.queued = said.queued
            if said.busy or said.queued:
                state.idle_since = asked_at
                state.used = True
            elif said.idle_s is not None:
                state.idle_since = max(state.loaded_at, asked_at - said.idle_s)
                state.used |= asked_at - said.idle_s > state.loaded_at
            nobody_waits = not said.queued and not state.asked and asked_at > state.wanted_at
            if nobody_waits:
                self.queue.pop(model, None)
        return self.settle(now)

    def loaded(self, model: str, now: float) -> list[Action]:
        state = self.states.get(model)
        if state is None or state.residency is not Residency.LOADING:
            return []
        state.residency = Residency.IN
        state.why = None
        state.retry_at = float("-inf")
        state.loaded_at = now
        state.idle_since = now
        state.used = False
        return self.settle(now)

    def failed(self, model: str, why: str, now: float) -> list[Action]:
        """Note that all its replicas were given up."""
        state = self.states.get(model)
        if state is None or state.residency not in (
            Residency.LOADING,
            Residency.IN,
            Residency.DRAINING,
        ):
            return []
        state.gave_up = True
        state.retry_at = now + BACK_OFF_S
        actions = [self._refuse_waiting(state, why, BACK_OFF_S)]
        if state.comes_and_goes:
            actions.append(self._unload(state))
        else:
            state.residency = Residency.GIVEN_UP
        return [*actions, *self.settle(now)]

    def gone(self, model: str, now: float) -> list[Action]:
        """Note that none of its processes is left:
        by an unload, or by a reload while it drained.
        """
        state = self.states.get(model)
        if state is None or not state.leaves:
            return []
        state.residency = Residency.OUT
        state.unloads += 1
        return self.settle(now)

    def settle(self, now: float) -> list[Action]:
        """Do what is due by now."""
        actions: list[Action] = []
        blocked: set[str] = set()  # places that an earlier model in the queue needs
        for model in list(self.queue):
            actions += self._serve(self.states[model], blocked, now)
        for state in self.states.values():
            if state.goes_when_idle and state.is_quiet(now, state.spec.idle_unload_s or 0.0):
                actions.append(self._drain(state, now))
            elif (
                state.residency is Residency.DRAINING
                and state.heard_at > state.drained_at
                and not state.busy
            ):
                actions.append(self._unload(state))
        return actions

    # Inside

    def _serve(self, state: ModelState, blocked: set[str], now: float) -> list[Action]:
        """Load or refuse a queued model, or drain others for it."""
        if state.residency is Residency.OUT and now < state.retry_at and not state.asked:
            return [
                self._refuse_waiting(
                    state, state.why or "an earlier attempt failed", state.retry_at - now
                )
            ]
        if (never := self.never(state.model)) is not None:
            return [self._refuse_waiting(state, never, BACK_OFF_S)]
        places = {place for place in state.spec.needs if self._budget.limit(place) < math.inf}
        waits = state.residency is not Residency.OUT or not blocked.isdisjoint(places)
        present = [state for state in self.states.values() if state.residency.uses_memory]
        if not waits and not self._lacking(state, present):
            return [self._load(state, now)]
        blocked |= places
        left = [other for other in present if not other.leaves]
        if waits:
            return []
        return [self._drain(victim, now) for victim in self._victims(state, left, now)]

    def _victims(self, state: ModelState, left: list[ModelState], now: float) -> list[ModelState]:
        """Return the models to evict so that it fits; none if that would not suffice."""
        budget = self._budget
        quiet = [
            other
            for other in left
            if other.is_quiet(now, budget.pause_s if other.used else budget.quiet_s)
        ]
        turn_over = [
            other
            for other in left
            if other not in quiet and now - other.loaded_at >= budget.turn_s
        ]
        quiet.sort(key=lambda other: other.idle_since)
        turn_over.sort(key=lambda other: other.loaded_at)
        chosen: list[ModelState] = []
        for other in (*quiet, *turn_over):
            takes = any(other.spec.needs.get(place) for place in self._lacking(state, left))
            if takes and other.residency is Residency.IN and not other.spec.pinned:
                chosen.append(other)
                left = [one for one in left if one is not other]
        if self._lacking(state, left):
            return []
        return chosen

    def _lacking(self, state: ModelState, present: Iterable[ModelState]) -> list[str]:
        """Return the places that do not have the room it needs beside these."""
        taken: Counter[str] = Counter()
        for other in present:
            taken.update(other.spec.needs)
        return [
            place
            for place, need in state.spec.needs.items()
            if need + taken[place] > self._budget.limit(place)
        ]

    def _load(self, state: ModelState, now: float) -> Action:
        state.residency = Residency.LOADING
        state.asked = False
        state.loaded_at = state.idle_since = now
        self.queue.pop(state.model, None)
        return Action(Act.LOAD, state.model)

    def _drain(self, state: ModelState, now: float) -> Action:
        state.residency = Residency.DRAINING
        state.drained_at = now
        return Action(Act.DRAIN, state.model)

    def _unload(self, state: ModelState) -> Action:
        state.residency = Residency.LEAVING
        return Action(Act.UNLOAD, state.model)

    def _refuse_waiting(self, state: ModelState, why: str, retry_after_s: float) -> Action:
        state.why = why
        state.asked = False
        state.refusals += 1
        self.queue.pop(state.model, None)
        return Action(Act.REFUSE, state.model, why, retry_after_s)
