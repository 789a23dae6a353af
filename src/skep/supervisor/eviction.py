"""Which models are loaded, and which are evicted: events in, actions out. Knows no process, no socket, no clock.

    out ──Load──> loading ──> in ──Drain──> draining ──Unload──> leaving ──> out
                     └──failed──────────────────────────────────────^

A wanted model waits in a queue, which is served in order, so that none starves. Idle models are evicted at once, the
least recently used first. A busy one is drained after its turn, so that two models in demand alternate. Pinned models
are never evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from skep.config.gateway_messages import ModelUsage
from skep.engines.base import Launch
from skep.units import format_bytes

UNLISTED = "the cards"  # stands for all cards, where they are not known
CARDLESS = ("embedded", "fake", "simulated")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model with all its replicas, which are loaded and unloaded together."""

    model: str
    room: Mapping[str, int] = field(default_factory=dict)  # bytes it takes of each resource, as far as known
    unknown: frozenset[str] = frozenset()  # cards of which it takes an unknown amount
    on_demand: bool = True
    pinned: bool = False
    idle_unload_s: float | None = None

    @property
    def places(self) -> frozenset[str]:
        return self.unknown | self.room.keys()


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory of the machine. A resource that is not named has no limit."""

    room: Mapping[str, int] = field(default_factory=dict)
    max_loaded: int | None = None
    turn_s: float = 30.0  # a busy model stays loaded for at least this long
    quiet_s: float = 1.0  # idle: not used for so long since it was loaded
    pause_s: float = 5.0  # idle: used, then without a request for so long; agents think between two turns


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


@dataclass(frozen=True, slots=True)
class LoadModel:
    model: str


@dataclass(frozen=True, slots=True)
class DrainModel:
    """Send it nothing new."""

    model: str


@dataclass(frozen=True, slots=True)
class ReadmitModel:
    """Send it requests again: it need not be unloaded."""

    model: str


@dataclass(frozen=True, slots=True)
class UnloadModel:
    model: str


@dataclass(frozen=True, slots=True)
class RefuseModel:
    """Refuse the requests that wait."""

    model: str
    why: str
    retry_after_s: float


Action = LoadModel | DrainModel | ReadmitModel | UnloadModel | RefuseModel


class DrainReason(Enum):
    """Why a model is drained."""

    ROOM = "room"
    IDLE = "idle"
    ASKED = "asked"


def model_specs(launches: Iterable[Launch], machine_room: Mapping[str, int]) -> list[ModelSpec]:
    """Group the replicas that skep starts here by model. One of unknown size that names no card may use all cards."""
    by_model: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.url is None and launch.place is None:
            by_model.setdefault(launch.model, []).append(launch)
    every_card = frozenset(place for place in machine_room if place.startswith("gpu"))
    return [_model_spec(model, replicas, every_card) for model, replicas in by_model.items()]


def _model_spec(model: str, replicas: list[Launch], every_card: frozenset[str]) -> ModelSpec:
    room: dict[str, int] = {}
    unknown: set[str] = set()
    for launch in replicas:
        for place, need in launch.room:
            room[place] = room.get(place, 0) + need
        if not launch.room:
            unlisted = frozenset() if launch.engine in CARDLESS else frozenset({UNLISTED})
            unknown |= {f"gpu{number}" for number in launch.gpus} or every_card or unlisted
    idle = [launch.idle_unload_s for launch in replicas if launch.idle_unload_s is not None]
    return ModelSpec(
        model,
        room,
        frozenset(unknown),
        on_demand=all(launch.on_demand for launch in replicas),
        pinned=any(launch.pinned for launch in replicas),
        idle_unload_s=max(idle) if idle else None,
    )


FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 10.0, 300.0  # after a failed load; doubles with each in a row
POLL_SOON_S, POLL_S = 0.25, 1.0


@dataclass(slots=True, eq=False)
class _ModelState:
    spec: ModelSpec
    residency: Residency = Residency.OUT
    loaded_at: float = 0.0
    used: bool = False  # since it was loaded
    was_unloaded: bool = False  # once unloaded, it is treated as on demand
    heard_at: float = float("-inf")  # when its newest figures were asked for
    busy: int = 0
    queued: int = 0
    idle_since: float = 0.0
    reason: DrainReason | None = None
    drained_at: float = 0.0
    wanted_at: float = 0.0
    asked: bool = False  # by the user: wanted even if no request waits
    failures: int = 0
    retry_at: float = float("-inf")
    why: str | None = None

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def leaves(self) -> bool:
        return self.residency in (Residency.DRAINING, Residency.LEAVING)

    def is_quiet(self, now: float, quiet_s: float) -> bool:
        known = self.heard_at >= self.loaded_at
        return known and not self.busy and not self.queued and now - self.idle_since >= quiet_s


class Eviction:
    """The decider. The caller carries out every action returned; a repeated event repeats no action."""

    def __init__(self, specs: Iterable[ModelSpec], budget: MemoryBudget | None = None) -> None:
        self._budget = budget or MemoryBudget()
        self._states = {spec.model: _ModelState(spec) for spec in specs}
        self._line: list[str] = []  # models that wait to be loaded, in the order they were wanted

    def __repr__(self) -> str:
        stays = ", ".join(f"{state.model} {state.residency.value}" for state in self._states.values())
        return f"<Eviction {stays}; queue: {', '.join(self._line) or 'empty'}>"

    # State

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._states)

    def residency(self, model: str) -> Residency:
        return self._states[model].residency

    def residencies(self) -> dict[str, Residency]:
        return {model: state.residency for model, state in self._states.items()}

    def why(self, model: str) -> str | None:
        """Return why the last load failed."""
        return self._states[model].why

    def is_queued(self, model: str) -> bool:
        return model in self._line

    @property
    def poll_s(self) -> float | None:
        """Seconds until the gateway's figures are needed again; None: they are not needed."""
        states = self._states.values()
        if self._line or any(state.residency is Residency.DRAINING for state in states):
            return POLL_SOON_S
        return POLL_S if any(_goes_when_idle(state) for state in states) else None

    def never(self, model: str, *, without: str | None = None) -> str | None:
        """Return why the model can never fit, even once `without` is unloaded, and what to change; None: it can."""
        state = self._states[model]
        spec, budget = state.spec, self._budget
        fixed = [other for other in self._states.values() if other.model not in (model, without) and _stays(other)]
        names = ", ".join(f"`{other.model}`" for other in fixed)
        for place, need in spec.room.items():
            have = budget.room.get(place)
            taken = sum(other.spec.room.get(place, 0) for other in fixed)
            if have is not None and need + taken > have:
                beside = f" beside the pinned {names}" if taken else ""
                advice = "unpin them, or take" if taken else "take"
                return (
                    f"`{model}` needs {format_bytes(need)} of {place}, which has {format_bytes(have - taken)}{beside}; "
                    f"{advice} a smaller quantization, context or number of slots"
                )
        if budget.max_loaded is not None and len(fixed) >= budget.max_loaded:
            return f"no more than {budget.max_loaded} models may be loaded, and {names} are pinned; raise `max_loaded`"
        for other in fixed:
            if _exclude(spec, other.spec):
                cards = ", ".join(sorted(_unsure(spec, other.spec)))
                return f"`{model}` and the pinned `{other.model}` share {cards}; give `room` for both of them"
        return None

    # Events

    def become(self, specs: Iterable[ModelSpec], budget: MemoryBudget, now: float) -> list[Action]:
        """Apply the models and limits of a reload. Models that remain keep their state."""
        self._budget = budget
        before, self._states = self._states, {}
        for spec in specs:
            state = before.get(spec.model) or _ModelState(spec)
            state.spec, state.retry_at = spec, float("-inf")
            self._states[spec.model] = state
        self._line = [model for model in self._line if model in self._states]
        return self._settle(now)

    def begin(self, now: float) -> list[Action]:
        """Load the models that are not on demand at once; the user vouches that they fit together."""
        comers = [
            state for state in self._states.values() if not state.spec.on_demand and state.residency is Residency.OUT
        ]
        return [self._load(state, now) for state in comers]

    def running(self, model: str, now: float) -> list[Action]:
        """Note that a reload, or the user by a replica's name, has started it."""
        state = self._states.get(model)
        if state is not None and not state.residency.uses_memory:
            self._load(state, now)
        return []

    def wanted(self, model: str, now: float, *, asked: bool = False) -> list[Action]:
        """Queue a model that requests wait for, or that the user asked for."""
        state = self._states.get(model)
        if (
            state is None
            or state.residency in (Residency.LOADING, Residency.IN)
            or (state.residency is Residency.GIVEN_UP and not asked)
        ):
            return []
        if state.residency is Residency.GIVEN_UP:
            state.residency = Residency.OUT
        state.asked |= asked
        state.wanted_at = now
        if model not in self._line:
            self._line.append(model)
        return self._settle(now)

    def unload(self, model: str, now: float) -> list[Action]:
        """Unload on the user's request, pinned or not. A later request loads it again."""
        state = self._states[model]
        if state.asked and state.residency is Residency.OUT and model in self._line:
            self._line.remove(model)
        state.asked = False
        if state.residency is Residency.LOADING:
            state.residency = Residency.LEAVING
            return [UnloadModel(model), *self._settle(now)]
        if state.residency is Residency.IN:
            return [self._drain(state, DrainReason.ASKED, now), *self._settle(now)]
        if state.residency is Residency.DRAINING:
            state.reason = DrainReason.ASKED
        return self._settle(now)

    def hurry(self, model: str, now: float) -> list[Action]:
        """Unload a draining model now, whatever it still serves."""
        state = self._states.get(model)
        if state is None or state.residency is not Residency.DRAINING:
            return []
        state.residency = Residency.LEAVING
        return [UnloadModel(model), *self._settle(now)]

    def told(self, figures: Mapping[str, ModelUsage], asked_at: float, now: float) -> list[Action]:
        """Take the gateway's figures, asked for at `asked_at`."""
        for model, said in figures.items():
            state = self._states.get(model)
            if state is None or asked_at < state.heard_at:
                continue
            state.heard_at, state.busy, state.queued = asked_at, said.busy, said.queued
            if said.busy or said.queued:
                state.idle_since = asked_at
                state.used = True
            elif said.idle_s is not None:
                state.idle_since = max(state.loaded_at, asked_at - said.idle_s)
                state.used |= asked_at - said.idle_s > state.loaded_at
            nobody_waits = not said.queued and not state.asked and asked_at > state.wanted_at
            if nobody_waits and model in self._line:
                self._line.remove(model)
        return self._settle(now)

    def loaded(self, model: str, now: float) -> list[Action]:
        state = self._states.get(model)
        if state is None or state.residency is not Residency.LOADING:
            return []
        state.residency, state.why, state.failures, state.retry_at = Residency.IN, None, 0, float("-inf")
        state.loaded_at, state.idle_since, state.used = now, now, False
        return self._settle(now)

    def failed(self, model: str, why: str, now: float) -> list[Action]:
        """Note that all its replicas were given up."""
        state = self._states.get(model)
        if state is None or state.residency not in (Residency.LOADING, Residency.IN, Residency.DRAINING):
            return []
        state.why = why
        if not state.spec.on_demand and not state.was_unloaded:
            state.residency = Residency.GIVEN_UP
            return [RefuseModel(model, why, FIRST_BACK_OFF_S), *self._settle(now)]
        state.failures += 1
        state.residency = Residency.LEAVING
        back_off_s = min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2 ** (state.failures - 1))
        state.retry_at = now + back_off_s
        if model in self._line:
            self._line.remove(model)
        return [RefuseModel(model, why, back_off_s), UnloadModel(model), *self._settle(now)]

    def gone(self, model: str, now: float) -> list[Action]:
        """Note that none of its processes is left: by an unload, or by a reload while it drained."""
        state = self._states.get(model)
        if state is None or state.residency not in (Residency.LEAVING, Residency.DRAINING):
            return []
        state.residency, state.reason, state.was_unloaded = Residency.OUT, None, True
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        return self._settle(now)

    # Inside

    def _settle(self, now: float) -> list[Action]:
        actions: list[Action] = []
        needed: set[str] = set()  # models whose unload a queued model waits for
        blocked: set[str] = set()  # resources that an earlier model in the queue needs
        for model in list(self._line):
            actions += self._serve(self._states[model], needed, blocked, now)
        for state in self._states.values():
            if _goes_when_idle(state) and state.is_quiet(now, state.spec.idle_unload_s or 0.0):
                actions.append(self._drain(state, DrainReason.IDLE, now))
            elif state.residency is Residency.DRAINING:
                actions += self._finish_unload(state, needed)
        return actions

    def _serve(self, state: _ModelState, needed: set[str], blocked: set[str], now: float) -> list[Action]:
        """Load or refuse a queued model, or drain others for it."""
        places = state.spec.places | ({"count"} if self._budget.max_loaded is not None else set())
        if state.residency is Residency.OUT and now < state.retry_at and not state.asked:
            return [self._refuse_waiting(state, state.why or "it failed before", state.retry_at - now)]
        never = self.never(state.model)
        if never is not None:
            return [self._refuse_waiting(state, never, FIRST_BACK_OFF_S)]
        if state.residency is not Residency.OUT or blocked & places:
            blocked |= places
            return []
        present = [other for other in self._states.values() if other.residency.uses_memory]
        if self._fits(state, present):
            return [self._load(state, now)]
        blocked |= places
        needed |= {other.model for other in present if other.residency is Residency.DRAINING}
        left = [other for other in present if not other.leaves]
        victims = self._victims(state, left, now)
        needed |= {victim.model for victim in victims}
        return [self._drain(victim, DrainReason.ROOM, now) for victim in victims]

    def _victims(self, state: _ModelState, left: list[_ModelState], now: float) -> list[_ModelState]:
        """Return the models to evict so that it fits; none if that would not suffice."""
        budget = self._budget
        quiet = [other for other in left if other.is_quiet(now, budget.pause_s if other.used else budget.quiet_s)]
        turn_over = [other for other in left if other not in quiet and now - other.loaded_at >= budget.turn_s]
        order = [
            *sorted(quiet, key=lambda other: other.idle_since),
            *sorted(turn_over, key=lambda other: other.loaded_at),
        ]
        chosen: list[_ModelState] = []
        for other in order:
            if self._fits(state, left):
                break
            if other.residency is Residency.IN and not other.spec.pinned and self._in_the_way(other, state, left):
                chosen.append(other)
                left = [one for one in left if one is not other]
        if not self._fits(state, left):
            return []
        for other in reversed(chosen[:]):  # a small one chosen before a larger one may not be needed
            if self._fits(state, [*left, other]):
                left = [*left, other]
                chosen.remove(other)
        return chosen

    def _lacking(self, state: _ModelState, present: list[_ModelState]) -> set[str]:
        return {
            place
            for place, need in state.spec.room.items()
            if place in self._budget.room
            and need + sum(other.spec.room.get(place, 0) for other in present) > self._budget.room[place]
        }

    def _crowded(self, present: list[_ModelState]) -> bool:
        return self._budget.max_loaded is not None and len(present) >= self._budget.max_loaded

    def _fits(self, state: _ModelState, present: list[_ModelState]) -> bool:
        excluded = any(_exclude(state.spec, other.spec) for other in present)
        return not excluded and not self._crowded(present) and not self._lacking(state, present)

    def _in_the_way(self, other: _ModelState, state: _ModelState, present: list[_ModelState]) -> bool:
        lacking = any(other.spec.room.get(place) for place in self._lacking(state, present))
        return lacking or self._crowded(present) or _exclude(state.spec, other.spec)

    def _finish_unload(self, state: _ModelState, needed: set[str]) -> list[Action]:
        """Unload a draining model when nothing is under way; readmit it when it need not go."""
        if state.model in needed and state.reason is DrainReason.IDLE:
            state.reason = DrainReason.ROOM
        asked_back = state.model in self._line or state.queued > 0
        obsolete = (state.reason is DrainReason.ROOM and state.model not in needed) or (
            state.reason is DrainReason.IDLE and asked_back
        )
        if obsolete:
            state.residency, state.reason, state.asked = Residency.IN, None, False
            if state.model in self._line:
                self._line.remove(state.model)
            return [ReadmitModel(state.model)]
        if state.heard_at <= state.drained_at or state.busy:
            return []
        state.residency = Residency.LEAVING
        return [UnloadModel(state.model)]

    def _load(self, state: _ModelState, now: float) -> LoadModel:
        state.residency, state.asked, state.reason = Residency.LOADING, False, None
        state.loaded_at = state.idle_since = now
        if state.model in self._line:
            self._line.remove(state.model)
        return LoadModel(state.model)

    def _drain(self, state: _ModelState, reason: DrainReason, now: float) -> DrainModel:
        state.residency, state.reason, state.drained_at = Residency.DRAINING, reason, now
        return DrainModel(state.model)

    def _refuse_waiting(self, state: _ModelState, why: str, retry_after_s: float) -> RefuseModel:
        state.why, state.asked = why, False
        self._line.remove(state.model)
        return RefuseModel(state.model, why, retry_after_s)


def _stays(state: _ModelState) -> bool:
    """Return whether it is pinned and loaded, or about to be. One that the user unloaded is neither."""
    if not state.spec.pinned:
        return False
    return state.residency in (Residency.LOADING, Residency.IN) or not (
        state.spec.on_demand or state.leaves or state.was_unloaded
    )


def _goes_when_idle(state: _ModelState) -> bool:
    return state.residency is Residency.IN and state.spec.idle_unload_s is not None and not state.spec.pinned


def _unsure(one: ModelSpec, other: ModelSpec) -> frozenset[str]:
    """Return the cards that both use and of which one takes an unknown amount."""
    return (one.unknown & other.places) | (other.unknown & one.places)


def _exclude(one: ModelSpec, other: ModelSpec) -> bool:
    """Return whether both cannot be loaded together: one has an unknown size, and one is on demand."""
    return bool(_unsure(one, other)) and (one.on_demand or other.on_demand)
