"""Which models are loaded, and which are evicted: events in, actions out. Knows no process, no socket, no clock.

    out ──Load──> loading ──> in ──Drain──> draining ──Unload──> leaving ──> out
                     └──failed──────────────────────────────────────^

A wanted model waits in a queue, which is served in order, so that none starves. Idle models are evicted at once, the
least recently used first. A busy one is drained after its turn, so that two models in demand alternate. Pinned models
are never evicted.
"""

from __future__ import annotations

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


class ModelSpec(msgspec.Struct, frozen=True):
    """One model with all its replicas, which are loaded and unloaded together."""

    model: str
    room: Mapping[str, int] = {}  # bytes it takes of each resource, as far as known
    unknown: frozenset[str] = frozenset()  # cards of which it takes an unknown amount
    on_demand: bool = True
    pinned: bool = False
    idle_unload_s: float | None = None

    @property
    def places(self) -> frozenset[str]:
        return self.unknown | self.room.keys()


class MemoryBudget(msgspec.Struct, frozen=True):
    """The memory of the machine. A resource that is not named has no limit."""

    room: Mapping[str, int] = {}
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


class Act(Enum):
    LOAD = "load"
    DRAIN = "drain"  # send it nothing new
    READMIT = "readmit"  # send it requests again: it need not be unloaded
    UNLOAD = "unload"
    REFUSE = "refuse"  # the requests that wait


class Action(msgspec.Struct, frozen=True):
    act: Act
    model: str
    why: str = ""
    retry_after_s: float = 0.0


class DrainReason(Enum):
    ROOM = "room"
    IDLE = "idle"
    ASKED = "asked"


def model_specs(launches: Iterable[Launch], machine_room: Mapping[str, int]) -> list[ModelSpec]:
    """Group the replicas that skep starts here by model. One of unknown size that names no card may use all cards."""
    by_model: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.url is None and launch.place is None:
            by_model.setdefault(launch.model, []).append(launch)
    every_card = {place for place in machine_room if place.startswith("gpu")}
    specs = []
    for model, replicas in by_model.items():
        room: Counter[str] = Counter()
        unknown: set[str] = set()
        for launch in replicas:
            room.update(dict(launch.room))
            if not launch.room:
                unlisted = set() if launch.engine in CARDLESS else {UNLISTED}
                unknown |= {f"gpu{number}" for number in launch.gpus} or every_card or unlisted
        on_demand, pinned = all(launch.on_demand for launch in replicas), any(launch.pinned for launch in replicas)
        idle = [launch.idle_unload_s for launch in replicas if launch.idle_unload_s is not None]
        specs.append(ModelSpec(model, dict(room), frozenset(unknown), on_demand, pinned, max(idle, default=None)))
    return specs


FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 10.0, 300.0  # after a failed load; doubles with each in a row
POLL_SOON_S, POLL_S = 0.25, 1.0


@dataclass(slots=True, eq=False)
class ModelState:
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
        self.states = {spec.model: ModelState(spec) for spec in specs}
        self.queue: dict[str, None] = {}  # models that wait to be loaded, in the order they were wanted

    # State

    @property
    def poll_s(self) -> float | None:
        """Seconds until the gateway's figures are needed again; None: they are not needed."""
        states = self.states.values()
        if self.queue or any(state.residency is Residency.DRAINING for state in states):
            return POLL_SOON_S
        return POLL_S if any(_goes_when_idle(state) for state in states) else None

    def never(self, model: str) -> str | None:
        """Return why the model can never fit, and what to change; None: it can."""
        others = [other for other in self.states.values() if other.model != model and _stays(other)]
        return self._obstacle(self.states[model], others)

    def _obstacle(self, state: ModelState, others: list[ModelState]) -> str | None:
        """Return why the model does not fit beside these, which are said to be pinned; None: it does."""
        model, budget = state.model, self._budget
        names = ", ".join(f"`{other.model}`" for other in others)
        for place in self._lacking(state, others):
            taken = sum(other.spec.room.get(place, 0) for other in others)
            beside, advice = (f" beside the pinned {names}", "unpin them, or take") if taken else ("", "take")
            need, left = format_bytes(state.spec.room[place]), format_bytes(budget.room[place] - taken)
            less = "a smaller quantization, context or number of slots"
            return f"`{model}` needs {need} of {place}, which has {left}{beside}; {advice} {less}"
        if self._crowded(others):
            return f"no more than {budget.max_loaded} models may be loaded, and {names} are pinned; raise `max_loaded`"
        for other in others:
            if _exclude(state.spec, other.spec):
                cards = ", ".join(sorted(_unsure(state.spec, other.spec)))
                return f"`{model}` and the pinned `{other.model}` share {cards}; give `room` for both of them"
        return None

    # Events

    def become(self, specs: Iterable[ModelSpec], budget: MemoryBudget, now: float) -> list[Action]:
        """Apply the models and limits of a reload. Models that remain keep their state."""
        self._budget = budget
        before, self.states = self.states, {}
        for spec in specs:
            state = before.get(spec.model) or ModelState(spec)
            state.spec, state.retry_at = spec, float("-inf")
            self.states[spec.model] = state
        self.queue = {model: None for model in self.queue if model in self.states}
        return self.settle(now)

    def begin(self, now: float) -> list[Action]:
        """Load the models that are not on demand at once; the user vouches that they fit together."""
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
        if state.residency is Residency.LOADING:
            state.residency = Residency.LEAVING
            return [Action(Act.UNLOAD, model), *self.settle(now)]
        if state.residency is Residency.IN:
            return [self._drain(state, DrainReason.ASKED, now), *self.settle(now)]
        if state.residency is Residency.DRAINING:
            state.reason = DrainReason.ASKED
        return self.settle(now)

    def hurry(self, model: str, now: float) -> list[Action]:
        """Unload a draining model now, whatever it still serves."""
        state = self.states.get(model)
        if state is None or state.residency is not Residency.DRAINING:
            return []
        state.residency = Residency.LEAVING
        return [Action(Act.UNLOAD, model), *self.settle(now)]

    def told(self, figures: Mapping[str, ModelUsage], asked_at: float, now: float) -> list[Action]:
        """Take the gateway's figures, asked for at `asked_at`."""
        for model, said in figures.items():
            state = self.states.get(model)
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
            if nobody_waits:
                self.queue.pop(model, None)
        return self.settle(now)

    def loaded(self, model: str, now: float) -> list[Action]:
        state = self.states.get(model)
        if state is None or state.residency is not Residency.LOADING:
            return []
        state.residency, state.why, state.failures, state.retry_at = Residency.IN, None, 0, float("-inf")
        state.loaded_at, state.idle_since, state.used = now, now, False
        return self.settle(now)

    def failed(self, model: str, why: str, now: float) -> list[Action]:
        """Note that all its replicas were given up."""
        state = self.states.get(model)
        if state is None or state.residency not in (Residency.LOADING, Residency.IN, Residency.DRAINING):
            return []
        state.why = why
        if not state.spec.on_demand and not state.was_unloaded:
            state.residency = Residency.GIVEN_UP
            return [Action(Act.REFUSE, model, why, FIRST_BACK_OFF_S), *self.settle(now)]
        state.failures += 1
        state.residency = Residency.LEAVING
        back_off_s = min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2 ** (state.failures - 1))
        state.retry_at = now + back_off_s
        self.queue.pop(model, None)
        return [Action(Act.REFUSE, model, why, back_off_s), Action(Act.UNLOAD, model), *self.settle(now)]

    def gone(self, model: str, now: float) -> list[Action]:
        """Note that none of its processes is left: by an unload, or by a reload while it drained."""
        state = self.states.get(model)
        if state is None or state.residency not in (Residency.LEAVING, Residency.DRAINING):
            return []
        state.residency, state.reason, state.was_unloaded = Residency.OUT, None, True
        return self.settle(now)

    def settle(self, now: float) -> list[Action]:
        """Do what is due by now."""
        actions: list[Action] = []
        needed: set[str] = set()  # models whose unload a queued model waits for
        blocked: set[str] = set()  # resources that an earlier model in the queue needs
        for model in list(self.queue):
            actions += self._serve(self.states[model], needed, blocked, now)
        for state in self.states.values():
            if _goes_when_idle(state) and state.is_quiet(now, state.spec.idle_unload_s or 0.0):
                actions.append(self._drain(state, DrainReason.IDLE, now))
            elif state.residency is Residency.DRAINING:
                actions += self._finish_unload(state, needed)
        return actions

    # Inside

    def _serve(self, state: ModelState, needed: set[str], blocked: set[str], now: float) -> list[Action]:
        """Load or refuse a queued model, or drain others for it."""
        places = state.spec.places | ({"count"} if self._budget.max_loaded is not None else set())
        if state.residency is Residency.OUT and now < state.retry_at and not state.asked:
            return [self._refuse_waiting(state, state.why or "an earlier attempt failed", state.retry_at - now)]
        if (never := self.never(state.model)) is not None:
            return [self._refuse_waiting(state, never, FIRST_BACK_OFF_S)]
        if state.residency is not Residency.OUT or blocked & places:
            blocked |= places
            return []
        present = [other for other in self.states.values() if other.residency.uses_memory]
        if self._obstacle(state, present) is None:
            return [self._load(state, now)]
        blocked |= places
        needed |= {other.model for other in present if other.residency is Residency.DRAINING}
        left = [other for other in present if not other.leaves]
        victims = self._victims(state, left, now)
        needed |= {victim.model for victim in victims}
        return [self._drain(victim, DrainReason.ROOM, now) for victim in victims]

    def _victims(self, state: ModelState, left: list[ModelState], now: float) -> list[ModelState]:
        """Return the models to evict so that it fits; none if that would not suffice."""
        budget = self._budget
        quiet = [other for other in left if other.is_quiet(now, budget.pause_s if other.used else budget.quiet_s)]
        turn_over = [other for other in left if other not in quiet and now - other.loaded_at >= budget.turn_s]
        quiet.sort(key=lambda other: other.idle_since)
        turn_over.sort(key=lambda other: other.loaded_at)
        chosen: list[ModelState] = []
        for other in (*quiet, *turn_over):
            if self._obstacle(state, left) is None:
                break
            takes = any(other.spec.room.get(place) for place in self._lacking(state, left))
            in_the_way = takes or self._crowded(left) or _exclude(state.spec, other.spec)
            if other.residency is Residency.IN and not other.spec.pinned and in_the_way:
                chosen.append(other)
                left = [one for one in left if one is not other]
        if self._obstacle(state, left) is not None:
            return []
        for other in reversed(chosen[:]):  # a small one chosen before a larger one may not be needed
            if self._obstacle(state, [*left, other]) is None:
                left = [*left, other]
                chosen.remove(other)
        return chosen

    def _lacking(self, state: ModelState, present: list[ModelState]) -> list[str]:
        """Return the places that do not have the room it needs."""
        needs, has = state.spec.room, self._budget.room
        taken = {place: sum(other.spec.room.get(place, 0) for other in present) for place in needs}
        return [place for place, need in needs.items() if place in has and need + taken[place] > has[place]]

    def _crowded(self, present: list[ModelState]) -> bool:
        return self._budget.max_loaded is not None and len(present) >= self._budget.max_loaded

    def _finish_unload(self, state: ModelState, needed: set[str]) -> list[Action]:
        """Unload a draining model when nothing is under way; readmit it when it need not go."""
        if state.model in needed and state.reason is DrainReason.IDLE:
            state.reason = DrainReason.ROOM
        asked_back = state.model in self.queue or state.queued > 0
        has_room = state.reason is DrainReason.ROOM and state.model not in needed
        if has_room or (state.reason is DrainReason.IDLE and asked_back):
            state.residency, state.reason, state.asked = Residency.IN, None, False
            self.queue.pop(state.model, None)
            return [Action(Act.READMIT, state.model)]
        if state.heard_at <= state.drained_at or state.busy:
            return []
        state.residency = Residency.LEAVING
        return [Action(Act.UNLOAD, state.model)]

    def _load(self, state: ModelState, now: float) -> Action:
        state.residency, state.asked, state.reason = Residency.LOADING, False, None
        state.loaded_at = state.idle_since = now
        self.queue.pop(state.model, None)
        return Action(Act.LOAD, state.model)

    def _drain(self, state: ModelState, reason: DrainReason, now: float) -> Action:
        state.residency, state.reason, state.drained_at = Residency.DRAINING, reason, now
        return Action(Act.DRAIN, state.model)

    def _refuse_waiting(self, state: ModelState, why: str, retry_after_s: float) -> Action:
        state.why, state.asked = why, False
        self.queue.pop(state.model, None)
        return Action(Act.REFUSE, state.model, why, retry_after_s)


def _stays(state: ModelState) -> bool:
    """Return whether it is pinned and loaded, or about to be. One that the user unloaded is neither."""
    comes = not (state.spec.on_demand or state.leaves or state.was_unloaded)
    return state.spec.pinned and (comes or state.residency in (Residency.LOADING, Residency.IN))


def _goes_when_idle(state: ModelState) -> bool:
    return state.residency is Residency.IN and state.spec.idle_unload_s is not None and not state.spec.pinned


def _unsure(one: ModelSpec, other: ModelSpec) -> frozenset[str]:
    """Return the cards that both use and of which one takes an unknown amount."""
    return (one.unknown & other.places) | (other.unknown & one.places)


def _exclude(one: ModelSpec, other: ModelSpec) -> bool:
    """Return whether both cannot be loaded together: one has an unknown size, and one is on demand."""
    return bool(_unsure(one, other)) and (one.on_demand or other.on_demand)
