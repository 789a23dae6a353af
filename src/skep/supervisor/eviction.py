"""Which models are loaded, and who makes room for whom: events in, actions out. Knows no process, no socket, no clock.

    out ──Load──> loading ──> in ──Drain──> draining ──Unload──> leaving ──> out
                     └──failed──────────────────────────────────────^

A model that is wanted waits in line. Idle models give way at once, the one unused longest first; one in use after it
has been loaded for a turn or has paused for long, and then it gets nothing new and finishes what it has: two models in
demand alternate. The line is served in order, so that nobody starves. Pinned models give way to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from skep.engines.base import Launch
from skep.units import format_bytes

UNLISTED = "the cards"  # all of them as one place, where nobody tells which there are
CARDLESS = ("embedded", "fake", "simulated")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model with all its replicas: they come and go together."""

    model: str
    room: Mapping[str, int] = field(default_factory=dict)  # bytes it takes of each resource, as far as known
    unknown: frozenset[str] = frozenset()  # cards of which it takes nobody knows how much
    on_demand: bool = True
    pinned: bool = False
    idle_unload_s: float | None = None

    @property
    def places(self) -> frozenset[str]:
        return self.unknown | self.room.keys()


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What the machine has. A resource that is not named has no bound."""

    room: Mapping[str, int] = field(default_factory=dict)
    max_loaded: int | None = None
    turn_s: float = 30.0  # a busy model stays at least so long
    quiet_s: float = 1.0  # not used since it was loaded, for so long: idle
    pause_s: float = 5.0  # used, and then without a request for so long: idle; agents think between two turns


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What the gateway says of a model."""

    busy: int  # answers under way
    queued: int
    idle_s: float | None  # since the last answer ended; None: it had none


class Residency(Enum):
    OUT = "unloaded"
    LOADING = "loading"
    IN = "loaded"
    DRAINING = "draining"  # gets nothing new, finishes what it has
    LEAVING = "unloading"  # its processes are being ended
    GIVEN_UP = "failed"  # not on demand, and did not start: the user's turn

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
    """It need not go after all."""

    model: str


@dataclass(frozen=True, slots=True)
class UnloadModel:
    model: str


@dataclass(frozen=True, slots=True)
class RefuseModel:
    """Tell those who wait."""

    model: str
    why: str
    retry_after_s: float


Action = LoadModel | DrainModel | ReadmitModel | UnloadModel | RefuseModel


class DrainReason(Enum):
    """Why a model is drained."""

    ROOM = "room"
    IDLE = "idle"
    ASKED = "asked"


def model_specs(launches: Iterable[Launch], house_room: Mapping[str, int]) -> list[ModelSpec]:
    """The replicas that skep starts here, by model. One of unknown size that names no card may use all there are."""
    by_model: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.url is None and launch.place is None:
            by_model.setdefault(launch.model, []).append(launch)
    every_card = frozenset(place for place in house_room if place.startswith("gpu"))
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


FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 10.0, 300.0  # after a load that failed; doubles with each in a row
POLL_SOON_S, POLL_S = 0.25, 1.0


@dataclass(slots=True, eq=False)
class _ModelState:
    spec: ModelSpec
    residency: Residency = Residency.OUT
    loaded_at: float = 0.0
    used: bool = False  # since it was loaded
    was_unloaded: bool = False  # it was unloaded once: it comes and goes like those on demand
    heard_at: float = float("-inf")  # when the newest figures were asked for
    busy: int = 0
    queued: int = 0
    idle_since: float = 0.0
    reason: DrainReason | None = None
    drained_at: float = 0.0
    wanted_at: float = 0.0
    asked: bool = False  # by the user: wanted also if no request waits
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
    """Every method that returns actions expects them to be carried out; repeating an event repeats no action."""

    def __init__(self, guests: Iterable[ModelSpec], house: MemoryBudget | None = None) -> None:
        self._house = house or MemoryBudget()
        self._states = {guest.model: _ModelState(guest) for guest in guests}
        self._line: list[str] = []  # models that wait to be loaded, in the order they were wanted

    def __repr__(self) -> str:
        stays = ", ".join(f"{lodger.model} {lodger.residency.value}" for lodger in self._states.values())
        return f"<Eviction {stays}; in line: {', '.join(self._line) or 'nobody'}>"

    # What stands

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._states)

    def residency(self, model: str) -> Residency:
        return self._states[model].residency

    def why(self, model: str) -> str | None:
        """Why it could not be loaded last time."""
        return self._states[model].why

    def is_queued(self, model: str) -> bool:
        return model in self._line

    @property
    def poll_s(self) -> float | None:
        """How soon the gateway's figures are wanted again; None: not at all."""
        lodgers = self._states.values()
        if self._line or any(lodger.residency is Residency.DRAINING for lodger in lodgers):
            return POLL_SOON_S
        return POLL_S if any(_goes_when_idle(lodger) for lodger in lodgers) else None

    def never(self, model: str, *, without: str | None = None) -> str | None:
        """Why there can never be room for it, also after that other one is gone, and what to change."""
        lodger = self._states[model]
        guest, house = lodger.spec, self._house
        fixed = [other for other in self._states.values() if other.model not in (model, without) and _stays(other)]
        names = ", ".join(f"`{other.model}`" for other in fixed)
        for place, need in guest.room.items():
            have = house.room.get(place)
            taken = sum(other.spec.room.get(place, 0) for other in fixed)
            if have is not None and need + taken > have:
                beside = f" beside the pinned {names}" if taken else ""
                advice = "unpin them, or take" if taken else "take"
                return (
                    f"`{model}` needs {format_bytes(need)} of {place}, which has {format_bytes(have - taken)}{beside}; "
                    f"{advice} a smaller quantization, context or number of slots"
                )
        if house.max_loaded is not None and len(fixed) >= house.max_loaded:
            return f"no more than {house.max_loaded} models may be loaded, and {names} are pinned; raise `max_loaded`"
        for other in fixed:
            if _exclude(guest, other.spec):
                cards = ", ".join(sorted(_unsure(guest, other.spec)))
                return f"`{model}` and the pinned `{other.model}` share {cards}; give `room` for both of them"
        return None

    # Events

    def become(self, guests: Iterable[ModelSpec], house: MemoryBudget, now: float) -> list[Action]:
        """After a reload: other models, other rules. Those that stay keep their state."""
        self._house = house
        before, self._states = self._states, {}
        for guest in guests:
            lodger = before.get(guest.model) or _ModelState(guest)
            lodger.spec, lodger.retry_at = guest, float("-inf")
            self._states[guest.model] = lodger
        self._line = [model for model in self._line if model in self._states]
        return self._settle(now)

    def begin(self, now: float) -> list[Action]:
        """Those that are not on demand, at once: that they fit together is the user's word."""
        comers = [
            lodger
            for lodger in self._states.values()
            if not lodger.spec.on_demand and lodger.residency is Residency.OUT
        ]
        return [self._load(lodger, now) for lodger in comers]

    def running(self, model: str, now: float) -> list[Action]:
        """Somebody else has started it: a reload, or the user by a replica's name."""
        lodger = self._states.get(model)
        if lodger is not None and not lodger.residency.uses_memory:
            self._load(lodger, now)
        return []

    def wanted(self, model: str, now: float, *, asked: bool = False) -> list[Action]:
        """Requests wait for it, or the user wants it."""
        lodger = self._states.get(model)
        if (
            lodger is None
            or lodger.residency in (Residency.LOADING, Residency.IN)
            or (lodger.residency is Residency.GIVEN_UP and not asked)
        ):
            return []
        if lodger.residency is Residency.GIVEN_UP:
            lodger.residency = Residency.OUT
        lodger.asked |= asked
        lodger.wanted_at = now
        if model not in self._line:
            self._line.append(model)
        return self._settle(now)

    def unload(self, model: str, now: float) -> list[Action]:
        """The user wants it gone, pinned or not. Requests that come meanwhile bring it back."""
        lodger = self._states[model]
        if lodger.asked and lodger.residency is Residency.OUT and model in self._line:
            self._line.remove(model)
        lodger.asked = False
        if lodger.residency is Residency.LOADING:
            lodger.residency = Residency.LEAVING
            return [UnloadModel(model), *self._settle(now)]
        if lodger.residency is Residency.IN:
            return [self._drain(lodger, DrainReason.ASKED, now), *self._settle(now)]
        if lodger.residency is Residency.DRAINING:
            lodger.reason = DrainReason.ASKED
        return self._settle(now)

    def hurry(self, model: str, now: float) -> list[Action]:
        """Enough waiting: a model that drains is unloaded, whatever it still serves."""
        lodger = self._states.get(model)
        if lodger is None or lodger.residency is not Residency.DRAINING:
            return []
        lodger.residency = Residency.LEAVING
        return [UnloadModel(model), *self._settle(now)]

    def told(self, figures: Mapping[str, ModelUsage], asked_at: float, now: float) -> list[Action]:
        """The gateway's figures, asked for at that time."""
        for model, said in figures.items():
            lodger = self._states.get(model)
            if lodger is None or asked_at < lodger.heard_at:
                continue
            lodger.heard_at, lodger.busy, lodger.queued = asked_at, said.busy, said.queued
            if said.busy or said.queued:
                lodger.idle_since = asked_at
                lodger.used = True
            elif said.idle_s is not None:
                lodger.idle_since = max(lodger.loaded_at, asked_at - said.idle_s)
                lodger.used |= asked_at - said.idle_s > lodger.loaded_at
            nobody_waits = not said.queued and not lodger.asked and asked_at > lodger.wanted_at
            if nobody_waits and model in self._line:
                self._line.remove(model)
        return self._settle(now)

    def loaded(self, model: str, now: float) -> list[Action]:
        lodger = self._states.get(model)
        if lodger is None or lodger.residency is not Residency.LOADING:
            return []
        lodger.residency, lodger.why, lodger.failures, lodger.retry_at = Residency.IN, None, 0, float("-inf")
        lodger.loaded_at, lodger.idle_since, lodger.used = now, now, False
        return self._settle(now)

    def failed(self, model: str, why: str, now: float) -> list[Action]:
        """All its replicas were given up."""
        lodger = self._states.get(model)
        if lodger is None or lodger.residency not in (Residency.LOADING, Residency.IN, Residency.DRAINING):
            return []
        lodger.why = why
        if not lodger.spec.on_demand and not lodger.was_unloaded:
            lodger.residency = Residency.GIVEN_UP
            return [RefuseModel(model, why, FIRST_BACK_OFF_S), *self._settle(now)]
        lodger.failures += 1
        lodger.residency = Residency.LEAVING
        back_off_s = min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2 ** (lodger.failures - 1))
        lodger.retry_at = now + back_off_s
        if model in self._line:
            self._line.remove(model)
        return [RefuseModel(model, why, back_off_s), UnloadModel(model), *self._settle(now)]

    def gone(self, model: str, now: float) -> list[Action]:
        """None of its processes is left; by an unload, or by a reload while it drained."""
        lodger = self._states.get(model)
        if lodger is None or lodger.residency not in (Residency.LEAVING, Residency.DRAINING):
            return []
        lodger.residency, lodger.reason, lodger.was_unloaded = Residency.OUT, None, True
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        return self._settle(now)

    # Inside

    def _settle(self, now: float) -> list[Action]:
        actions: list[Action] = []
        needed: set[str] = set()  # those whose going somebody waits for
        blocked: set[str] = set()  # places that are spoken for by somebody earlier in line
        for model in list(self._line):
            actions += self._serve(self._states[model], needed, blocked, now)
        for lodger in self._states.values():
            if _goes_when_idle(lodger) and lodger.is_quiet(now, lodger.spec.idle_unload_s or 0.0):
                actions.append(self._drain(lodger, DrainReason.IDLE, now))
            elif lodger.residency is Residency.DRAINING:
                actions += self._finish_unload(lodger, needed)
        return actions

    def _serve(self, lodger: _ModelState, needed: set[str], blocked: set[str], now: float) -> list[Action]:
        """One of the line: loaded, refused, or waiting for others to go."""
        places = lodger.spec.places | ({"count"} if self._house.max_loaded is not None else set())
        if lodger.residency is Residency.OUT and now < lodger.retry_at and not lodger.asked:
            return [self._refuse_waiting(lodger, lodger.why or "it failed before", lodger.retry_at - now)]
        never = self.never(lodger.model)
        if never is not None:
            return [self._refuse_waiting(lodger, never, FIRST_BACK_OFF_S)]
        if lodger.residency is not Residency.OUT or blocked & places:
            blocked |= places
            return []
        present = [other for other in self._states.values() if other.residency.uses_memory]
        if self._fits(lodger, present):
            return [self._load(lodger, now)]
        blocked |= places
        needed |= {other.model for other in present if other.residency is Residency.DRAINING}
        left = [other for other in present if not other.leaves]
        victims = self._victims(lodger, left, now)
        needed |= {victim.model for victim in victims}
        return [self._drain(victim, DrainReason.ROOM, now) for victim in victims]

    def _victims(self, lodger: _ModelState, left: list[_ModelState], now: float) -> list[_ModelState]:
        """Who is to go, so that it fits; nobody if that would not suffice."""
        house = self._house
        quiet = [other for other in left if other.is_quiet(now, house.pause_s if other.used else house.quiet_s)]
        turn_over = [other for other in left if other not in quiet and now - other.loaded_at >= house.turn_s]
        order = [
            *sorted(quiet, key=lambda other: other.idle_since),
            *sorted(turn_over, key=lambda other: other.loaded_at),
        ]
        chosen: list[_ModelState] = []
        for other in order:
            if self._fits(lodger, left):
                break
            if other.residency is Residency.IN and not other.spec.pinned and self._in_the_way(other, lodger, left):
                chosen.append(other)
                left = [one for one in left if one is not other]
        if not self._fits(lodger, left):
            return []
        for other in reversed(chosen[:]):  # what was taken before something larger may not be needed any more
            if self._fits(lodger, [*left, other]):
                left = [*left, other]
                chosen.remove(other)
        return chosen

    def _lacking(self, lodger: _ModelState, present: list[_ModelState]) -> set[str]:
        return {
            place
            for place, need in lodger.spec.room.items()
            if place in self._house.room
            and need + sum(other.spec.room.get(place, 0) for other in present) > self._house.room[place]
        }

    def _crowded(self, present: list[_ModelState]) -> bool:
        return self._house.max_loaded is not None and len(present) >= self._house.max_loaded

    def _fits(self, lodger: _ModelState, present: list[_ModelState]) -> bool:
        excluded = any(_exclude(lodger.spec, other.spec) for other in present)
        return not excluded and not self._crowded(present) and not self._lacking(lodger, present)

    def _in_the_way(self, other: _ModelState, lodger: _ModelState, present: list[_ModelState]) -> bool:
        lacking = any(other.spec.room.get(place) for place in self._lacking(lodger, present))
        return lacking or self._crowded(present) or _exclude(lodger.spec, other.spec)

    def _finish_unload(self, lodger: _ModelState, needed: set[str]) -> list[Action]:
        """A model that drains: unloaded when nothing is under way, let in again when nobody wants it to go."""
        if lodger.model in needed and lodger.reason is DrainReason.IDLE:
            lodger.reason = DrainReason.ROOM
        asked_back = lodger.model in self._line or lodger.queued > 0
        obsolete = (lodger.reason is DrainReason.ROOM and lodger.model not in needed) or (
            lodger.reason is DrainReason.IDLE and asked_back
        )
        if obsolete:
            lodger.residency, lodger.reason, lodger.asked = Residency.IN, None, False
            if lodger.model in self._line:
                self._line.remove(lodger.model)
            return [ReadmitModel(lodger.model)]
        if lodger.heard_at <= lodger.drained_at or lodger.busy:
            return []
        lodger.residency = Residency.LEAVING
        return [UnloadModel(lodger.model)]

    def _load(self, lodger: _ModelState, now: float) -> LoadModel:
        lodger.residency, lodger.asked, lodger.reason = Residency.LOADING, False, None
        lodger.loaded_at = lodger.idle_since = now
        if lodger.model in self._line:
            self._line.remove(lodger.model)
        return LoadModel(lodger.model)

    def _drain(self, lodger: _ModelState, reason: DrainReason, now: float) -> DrainModel:
        lodger.residency, lodger.reason, lodger.drained_at = Residency.DRAINING, reason, now
        return DrainModel(lodger.model)

    def _refuse_waiting(self, lodger: _ModelState, why: str, retry_after_s: float) -> RefuseModel:
        lodger.why, lodger.asked = why, False
        self._line.remove(lodger.model)
        return RefuseModel(lodger.model, why, retry_after_s)


def _stays(lodger: _ModelState) -> bool:
    """Pinned, and there or about to be. What the user has unloaded is neither."""
    if not lodger.spec.pinned:
        return False
    return lodger.residency in (Residency.LOADING, Residency.IN) or not (
        lodger.spec.on_demand or lodger.leaves or lodger.was_unloaded
    )


def _goes_when_idle(lodger: _ModelState) -> bool:
    return lodger.residency is Residency.IN and lodger.spec.idle_unload_s is not None and not lodger.spec.pinned


def _unsure(one: ModelSpec, other: ModelSpec) -> frozenset[str]:
    """The cards that both use, and of which nobody knows how much one of them takes."""
    return (one.unknown & other.places) | (other.unknown & one.places)


def _exclude(one: ModelSpec, other: ModelSpec) -> bool:
    """One of unknown size beside another. Those that are both not on demand are together by the user's word."""
    return bool(_unsure(one, other)) and (one.on_demand or other.on_demand)
