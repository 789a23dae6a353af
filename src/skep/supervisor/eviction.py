"""Which models are loaded, and which are evicted: events in, actions out. Knows no process, no
socket, no clock.

    out ──Load──> loading ──> in ──Drain──> draining ──Unload──> leaving ──> out
                     └──failed──────────────────────────────────────^

A requested model waits in a queue, which is served in order, so that none starves. Idle models are
evicted at once, the least recently used first. A busy model is drained after its turn, so that two
models in demand alternate. Pinned models are never evicted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from skep.catalog.engines import kind_of
from skep.config.gateway_messages import ModelUsage
from skep.engines.base import Launch
from skep.units import format_bytes

# A *place* is what models take room of: a card, the system memory, or `MODEL_COUNT`.
ALL_CARDS = "the cards"  # stands for all cards, where they are not known
WHOLE_PLACE_BYTES = 1 << 60  # bytes of a place whose size is not known
MODEL_COUNT = "models"  # a place with room for `max_loaded` models


class ModelSpec(msgspec.Struct, frozen=True):
    """One model with all its replicas, which are loaded and unloaded together."""

    model: str
    room: Mapping[str, int] = {}  # bytes it takes of each place; `WHOLE_PLACE_BYTES`: all of it
    on_demand: bool = True
    pinned: bool = False
    idle_unload_s: float | None = None

    @property
    def needs(self) -> dict[str, int]:
        return {**self.room, MODEL_COUNT: 1}


class MemoryBudget(msgspec.Struct, frozen=True):
    """The memory of the machine."""

    room: Mapping[str, int] = {}
    max_loaded: int | None = None
    turn_s: float = 30.0  # a busy model stays loaded for at least this long
    quiet_s: float = 1.0  # a model that nobody has used since it was loaded is idle after so long
    pause_s: float = 5.0  # one that was used is idle after so long: agents think meanwhile

    def limit(self, place: str) -> float:
        if place == MODEL_COUNT:
            return self.max_loaded or math.inf
        return self.room.get(place, WHOLE_PLACE_BYTES)


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
    """Group the replicas that skep starts here by model."""
    by_model: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.url is None and launch.place is None:
            by_model.setdefault(launch.model, []).append(launch)
    return [_spec_of(model, replicas, machine_room) for model, replicas in by_model.items()]


def _spec_of(model: str, replicas: list[Launch], machine_room: Mapping[str, int]) -> ModelSpec:
    idle_limits = [launch.idle_unload_s for launch in replicas if launch.idle_unload_s is not None]
    return ModelSpec(
        model=model,
        room=_room_of(replicas, machine_room),
        on_demand=all(launch.on_demand for launch in replicas),
        pinned=any(launch.pinned for launch in replicas),
        idle_unload_s=max(idle_limits, default=None),
    )


def _room_of(replicas: list[Launch], machine_room: Mapping[str, int]) -> dict[str, int]:
    """Add up what the replicas take of each place. One of unknown size takes its cards whole."""
    every_card = [place for place in machine_room if place.startswith("gpu")] or [ALL_CARDS]
    room: Counter[str] = Counter()
    for launch in replicas:
        room.update(dict(launch.room))
    for launch in replicas:
        if not launch.room and not kind_of(launch.engine).part_of_skep:
            places = [f"gpu{number}" for number in launch.gpus] or every_card
            room |= Counter(
                {place: machine_room.get(place, WHOLE_PLACE_BYTES) for place in places}
            )
    return dict(room)


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
    refusals: int = 0  # of requests, or of the user's wish to load it
    gave_up: bool = False  # it failed at least once
    figures_at: float = float("-inf")  # when its newest figures were asked for
    busy: int = 0
    queued: int = 0
    idle_since: float = 0.0
    drained_at: float = 0.0
    requested_at: float = 0.0
    user_waits: bool = False  # the user wants it loaded, even if no request waits
    retry_at: float = float("-inf")
    why: str | None = None

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def comes_and_goes(self) -> bool:
        """Whether it is on demand, or was unloaded once and is treated so."""
        return self.spec.on_demand or self.unloads > 0

    @property
    def leaves(self) -> bool:
        return self.residency in (Residency.DRAINING, Residency.LEAVING)

    @property
    def stays(self) -> bool:
        """Whether it is pinned and loaded, or about to be; not where the user unloaded it."""
        will_be_loaded = not (self.comes_and_goes or self.leaves)
        is_loaded = self.residency in (Residency.LOADING, Residency.IN)
        return self.spec.pinned and (will_be_loaded or is_loaded)

    @property
    def goes_when_idle(self) -> bool:
        return (
            self.residency is Residency.IN
            and self.spec.idle_unload_s is not None
            and not self.spec.pinned
        )

    def is_quiet(self, now: float, quiet_s: float) -> bool:
        """Return whether the figures since it was loaded show no use for `quiet_s`."""
        if self.figures_at < self.loaded_at or self.busy or self.queued:
            return False
        return now - self.idle_since >= quiet_s


class Eviction:
    """Decides which models are loaded, drained and unloaded.

    The caller carries out every action returned; a repeated event repeats no action.
    """

    def __init__(self, specs: Iterable[ModelSpec], budget: MemoryBudget | None = None) -> None:
        self._budget = budget or MemoryBudget()
        self.states = {spec.model: ModelState(spec) for spec in specs}
        # Models that wait to be loaded, in the order of their requests.
        self.queue: dict[str, None] = {}

    # State

    @property
    def poll_s(self) -> float | None:
        """Seconds until the gateway's figures are needed again; None: they are not."""
        states = self.states.values()
        if self.queue or any(state.residency is Residency.DRAINING for state in states):
            return POLL_SOON_S
        if any(state.goes_when_idle for state in states):
            return POLL_S
        return None

    def why_never(self, model: str) -> str | None:
        """Return why the model can never fit, and what to change; None: it can."""
        state = self.states[model]
        pinned = [rival for rival in self.states.values() if rival is not state and rival.stays]
        place = next(iter(self._lacking(state, pinned)), None)
        if place is None:
            return None
        names = ", ".join(f"`{rival.model}`" for rival in pinned)
        limit = self._budget.limit(place)
        if place == MODEL_COUNT:
            return (
                f"no more than {limit} models may be loaded, and {names} are pinned; raise "
                "`max_loaded`"
            )
        taken = sum(rival.spec.room.get(place, 0) for rival in pinned)
        need = state.spec.room[place]
        if taken and need >= limit:
            return (
                f"`{model}` takes all of {place}, where {names} is pinned; give `room` if it "
                "takes less"
            )
        if taken:
            advice = f" beside the pinned {names}; unpin them, or take"
        else:
            advice = "; take"
        free = format_bytes(int(limit - taken))
        return (
            f"`{model}` needs {format_bytes(need)} of {place}, which has {free}{advice} "
            "a smaller quantization, context or number of slots"
        )

    # Events

    def become(self, specs: Iterable[ModelSpec], budget: MemoryBudget, now: float) -> list[Action]:
        """Apply the models and limits of a reload. Models that remain keep their state."""
        self._budget = budget
        earlier_states = self.states
        self.states = {}
        for spec in specs:
            state = earlier_states.get(spec.model) or ModelState(spec)
            if state.spec.on_demand and not spec.on_demand and state.residency is Residency.OUT:
                state.user_waits = True
                self.queue[spec.model] = None
            state.spec = spec
            state.retry_at = float("-inf")
            self.states[spec.model] = state
        self.queue = {model: None for model in self.queue if model in self.states}
        return self.settle(now)

    def begin(self, now: float) -> list[Action]:
        """Load the models that are not on demand, without a look at the room: the user vouches
        that they fit together.
        """
        unloaded = [state for state in self.states.values() if state.residency is Residency.OUT]
        return [self._load(state, now) for state in unloaded if not state.spec.on_demand]

    def started(self, model: str, now: float) -> None:
        """Note that a reload has started a model, or the user by the name of a replica."""
        state = self.states.get(model)
        if state is not None and not state.residency.uses_memory:
            self._load(state, now)

    def requested(self, model: str, now: float, *, by_user: bool = False) -> list[Action]:
        """Queue a model that requests or the user wait for."""
        state = self.states.get(model)
        if state is None or state.residency in (Residency.LOADING, Residency.IN):
            return []
        if state.residency is Residency.GIVEN_UP:
            if not by_user:
                return []
            state.residency = Residency.OUT
        state.user_waits |= by_user
        state.requested_at = now
        self.queue[model] = None
        return self.settle(now)

    def unload(self, model: str, now: float) -> list[Action]:
        """Unload on the user's request, pinned or not. A later request loads it again."""
        state = self.states[model]
        if state.user_waits and state.residency is Residency.OUT:
            self.queue.pop(model, None)
        state.user_waits = False
        actions = []
        if state.residency is Residency.LOADING:
            actions = [self._unload(state)]
        elif state.residency is Residency.IN:
            actions = [self._drain(state, now)]
        return [*actions, *self.settle(now)]

    def take_figures(
        self, figures: Mapping[str, ModelUsage], asked_at: float, now: float
    ) -> list[Action]:
        """Take the gateway's figures, asked for at `asked_at`."""
        for model, usage in figures.items():
            state = self.states.get(model)
            if state is None or asked_at < state.figures_at:
                continue
            state.figures_at = asked_at
            state.busy = usage.busy
            state.queued = usage.queued
            if usage.busy or usage.queued:
                state.idle_since = asked_at
                state.used = True
            elif usage.idle_s is not None:
                state.idle_since = max(state.loaded_at, asked_at - usage.idle_s)
                state.used |= asked_at - usage.idle_s > state.loaded_at
            requests_wait = usage.queued or asked_at <= state.requested_at
            if not requests_wait and not state.user_waits:
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
        """Note that all replicas of a model were given up."""
        state = self.states.get(model)
        running = (Residency.LOADING, Residency.IN, Residency.DRAINING)
        if state is None or state.residency not in running:
            return []
        state.gave_up = True
        state.retry_at = now + BACK_OFF_S
        actions = [self._refuse_waiting(state, why, BACK_OFF_S)]
        if state.comes_and_goes:
            actions.append(self._unload(state))
        else:
            state.residency = Residency.GIVEN_UP
        return [*actions, *self.settle(now)]

    def ended(self, model: str, now: float) -> list[Action]:
        """Note that all processes of a model have ended, by an unload or by a reload while it was
        drained.
        """
        state = self.states.get(model)
        if state is None or not state.leaves:
            return []
        state.residency = Residency.OUT
        state.unloads += 1
        return self.settle(now)

    def settle(self, now: float) -> list[Action]:
        """Return the actions that are due by now."""
        actions: list[Action] = []
        blocked: set[str] = set()  # places that an earlier model in the queue needs
        for model in list(self.queue):
            actions += self._serve(self.states[model], blocked, now)
        for state in self.states.values():
            if state.goes_when_idle and state.is_quiet(now, state.spec.idle_unload_s or 0.0):
                actions.append(self._drain(state, now))
            elif state.residency is Residency.DRAINING:
                is_drained = state.figures_at > state.drained_at and not state.busy
                if is_drained:
                    actions.append(self._unload(state))
        return actions

    # Inside

    def _serve(self, state: ModelState, blocked: set[str], now: float) -> list[Action]:
        """Return what to do for a queued model: load it, refuse it, or drain others for it."""
        if state.residency is Residency.OUT and now < state.retry_at and not state.user_waits:
            why = state.why or "an earlier attempt failed"
            return [self._refuse_waiting(state, why, state.retry_at - now)]
        why_never = self.why_never(state.model)
        if why_never is not None:
            return [self._refuse_waiting(state, why_never, BACK_OFF_S)]
        places = {place for place in state.spec.needs if self._budget.limit(place) < math.inf}
        must_wait = state.residency is not Residency.OUT or not blocked.isdisjoint(places)
        present = [rival for rival in self.states.values() if rival.residency.uses_memory]
        if not must_wait and not self._lacking(state, present):
            return [self._load(state, now)]
        blocked |= places
        if must_wait:
            return []
        return [self._drain(victim, now) for victim in self._victims(state, present, now)]

    def _victims(
        self, state: ModelState, present: list[ModelState], now: float
    ) -> list[ModelState]:
        """Return the models to evict so that this one fits; none if that would not suffice."""
        staying = [rival for rival in present if not rival.leaves]
        victims: list[ModelState] = []
        for rival in self._by_use(staying, now):
            in_the_way = any(
                rival.spec.needs.get(place) for place in self._lacking(state, staying)
            )
            if in_the_way and rival.residency is Residency.IN and not rival.spec.pinned:
                victims.append(rival)
                staying.remove(rival)
        if self._lacking(state, staying):
            return []
        return victims

    def _by_use(self, rivals: list[ModelState], now: float) -> list[ModelState]:
        """Return the models that may be evicted: idle ones, the least recently used first, then
        busy ones whose turn is over, the longest loaded first.
        """
        budget = self._budget
        idle = []
        turn_over = []
        for rival in rivals:
            if rival.is_quiet(now, budget.pause_s if rival.used else budget.quiet_s):
                idle.append(rival)
            elif now - rival.loaded_at >= budget.turn_s:
                turn_over.append(rival)
        idle.sort(key=lambda rival: rival.idle_since)
        turn_over.sort(key=lambda rival: rival.loaded_at)
        return [*idle, *turn_over]

    def _lacking(self, state: ModelState, present: Iterable[ModelState]) -> list[str]:
        """Return the places without the room that a model needs beside those present."""
        taken: Counter[str] = Counter()
        for rival in present:
            taken.update(rival.spec.needs)
        return [
            place
            for place, need in state.spec.needs.items()
            if need + taken[place] > self._budget.limit(place)
        ]

    def _load(self, state: ModelState, now: float) -> Action:
        state.residency = Residency.LOADING
        state.user_waits = False
        state.loaded_at = now
        state.idle_since = now
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
        state.user_waits = False
        state.refusals += 1
        self.queue.pop(state.model, None)
        return Action(Act.REFUSE, state.model, why, retry_after_s)
