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
class Guest:
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
class House:
    """What the machine has. A resource that is not named has no bound."""

    room: Mapping[str, int] = field(default_factory=dict)
    max_loaded: int | None = None
    turn_s: float = 30.0  # a busy model stays at least so long
    quiet_s: float = 1.0  # not used since it was loaded, for so long: idle
    pause_s: float = 5.0  # used, and then without a request for so long: idle; agents think between two turns


@dataclass(frozen=True, slots=True)
class Figures:
    """What the gateway says of a model."""

    busy: int  # answers under way
    queued: int
    idle_s: float | None  # since the last answer ended; None: it had none


class Stay(Enum):
    OUT = "unloaded"
    LOADING = "loading"
    IN = "loaded"
    DRAINING = "draining"  # gets nothing new, finishes what it has
    LEAVING = "unloading"  # its processes are being ended
    GIVEN_UP = "failed"  # not on demand, and did not start: the user's turn

    @property
    def takes_room(self) -> bool:
        return self not in (Stay.OUT, Stay.GIVEN_UP)


@dataclass(frozen=True, slots=True)
class Load:
    model: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Send it nothing new."""

    model: str


@dataclass(frozen=True, slots=True)
class Admit:
    """It need not go after all."""

    model: str


@dataclass(frozen=True, slots=True)
class Unload:
    model: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell those who wait."""

    model: str
    why: str
    retry_after_s: float


Action = Load | Drain | Admit | Unload | Refuse


class Reason(Enum):
    """Why a model is drained."""

    ROOM = "room"
    IDLE = "idle"
    ASKED = "asked"


def guests_of(launches: Iterable[Launch], house_room: Mapping[str, int]) -> list[Guest]:
    """The replicas that skep starts here, by model. One of unknown size that names no card may use all there are."""
    by_model: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.url is None and launch.place is None:
            by_model.setdefault(launch.model, []).append(launch)
    every_card = frozenset(place for place in house_room if place.startswith("gpu"))
    return [_guest(model, replicas, every_card) for model, replicas in by_model.items()]


def _guest(model: str, replicas: list[Launch], every_card: frozenset[str]) -> Guest:
    room: dict[str, int] = {}
    unknown: set[str] = set()
    for launch in replicas:
        for place, need in launch.room:
            room[place] = room.get(place, 0) + need
        if not launch.room:
            unlisted = frozenset() if launch.engine in CARDLESS else frozenset({UNLISTED})
            unknown |= {f"gpu{number}" for number in launch.gpus} or every_card or unlisted
    idle = [launch.idle_unload_s for launch in replicas if launch.idle_unload_s is not None]
    return Guest(
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
class _Lodger:
    guest: Guest
    stay: Stay = Stay.OUT
    loaded_at: float = 0.0
    used: bool = False  # since it was loaded
    was_out: bool = False  # it was unloaded once: it comes and goes like those on demand
    heard_at: float = float("-inf")  # when the newest figures were asked for
    busy: int = 0
    queued: int = 0
    idle_since: float = 0.0
    reason: Reason | None = None
    drained_at: float = 0.0
    wanted_at: float = 0.0
    asked: bool = False  # by the user: wanted also if no request waits
    failures: int = 0
    retry_at: float = float("-inf")
    why: str | None = None

    @property
    def model(self) -> str:
        return self.guest.model

    @property
    def leaves(self) -> bool:
        return self.stay in (Stay.DRAINING, Stay.LEAVING)

    def is_quiet(self, now: float, quiet_s: float) -> bool:
        known = self.heard_at >= self.loaded_at
        return known and not self.busy and not self.queued and now - self.idle_since >= quiet_s


class Lodging:
    """Every method that returns actions expects them to be carried out; repeating an event repeats no action."""

    def __init__(self, guests: Iterable[Guest], house: House | None = None) -> None:
        self._house = house or House()
        self._lodgers = {guest.model: _Lodger(guest) for guest in guests}
        self._line: list[str] = []  # models that wait to be loaded, in the order they were wanted

    def __repr__(self) -> str:
        stays = ", ".join(f"{lodger.model} {lodger.stay.value}" for lodger in self._lodgers.values())
        return f"<Lodging {stays}; in line: {', '.join(self._line) or 'nobody'}>"

    # What stands

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._lodgers)

    def stay(self, model: str) -> Stay:
        return self._lodgers[model].stay

    def why(self, model: str) -> str | None:
        """Why it could not be loaded last time."""
        return self._lodgers[model].why

    def in_line(self, model: str) -> bool:
        return model in self._line

    @property
    def poll_s(self) -> float | None:
        """How soon the gateway's figures are wanted again; None: not at all."""
        lodgers = self._lodgers.values()
        if self._line or any(lodger.stay is Stay.DRAINING for lodger in lodgers):
            return POLL_SOON_S
        return POLL_S if any(_goes_when_idle(lodger) for lodger in lodgers) else None

    def never(self, model: str, *, without: str | None = None) -> str | None:
        """Why there can never be room for it, also after that other one is gone, and what to change."""
        lodger = self._lodgers[model]
        guest, house = lodger.guest, self._house
        fixed = [other for other in self._lodgers.values() if other.model not in (model, without) and _stays(other)]
        names = ", ".join(f"`{other.model}`" for other in fixed)
        for place, need in guest.room.items():
            have = house.room.get(place)
            taken = sum(other.guest.room.get(place, 0) for other in fixed)
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
            if _exclude(guest, other.guest):
                cards = ", ".join(sorted(_unsure(guest, other.guest)))
                return f"`{model}` and the pinned `{other.model}` share {cards}; give `room` for both of them"
        return None

    # Events

    def become(self, guests: Iterable[Guest], house: House, now: float) -> list[Action]:
        """After a reload: other models, other rules. Those that stay keep their state."""
        self._house = house
        before, self._lodgers = self._lodgers, {}
        for guest in guests:
            lodger = before.get(guest.model) or _Lodger(guest)
            lodger.guest, lodger.retry_at = guest, float("-inf")
            self._lodgers[guest.model] = lodger
        self._line = [model for model in self._line if model in self._lodgers]
        return self._settle(now)

    def begin(self, now: float) -> list[Action]:
        """Those that are not on demand, at once: that they fit together is the user's word."""
        comers = [lodger for lodger in self._lodgers.values() if not lodger.guest.on_demand and lodger.stay is Stay.OUT]
        return [self._load(lodger, now) for lodger in comers]

    def running(self, model: str, now: float) -> list[Action]:
        """Somebody else has started it: a reload, or the user by a replica's name."""
        lodger = self._lodgers.get(model)
        if lodger is not None and not lodger.stay.takes_room:
            self._load(lodger, now)
        return []

    def wanted(self, model: str, now: float, *, asked: bool = False) -> list[Action]:
        """Requests wait for it, or the user wants it."""
        lodger = self._lodgers.get(model)
        if lodger is None or lodger.stay in (Stay.LOADING, Stay.IN) or (lodger.stay is Stay.GIVEN_UP and not asked):
            return []
        if lodger.stay is Stay.GIVEN_UP:
            lodger.stay = Stay.OUT
        lodger.asked |= asked
        lodger.wanted_at = now
        if model not in self._line:
            self._line.append(model)
        return self._settle(now)

    def unload(self, model: str, now: float) -> list[Action]:
        """The user wants it gone, pinned or not. Requests that come meanwhile bring it back."""
        lodger = self._lodgers[model]
        if lodger.asked and lodger.stay is Stay.OUT and model in self._line:
            self._line.remove(model)
        lodger.asked = False
        if lodger.stay is Stay.LOADING:
            lodger.stay = Stay.LEAVING
            return [Unload(model), *self._settle(now)]
        if lodger.stay is Stay.IN:
            return [self._drain(lodger, Reason.ASKED, now), *self._settle(now)]
        if lodger.stay is Stay.DRAINING:
            lodger.reason = Reason.ASKED
        return self._settle(now)

    def hurry(self, model: str, now: float) -> list[Action]:
        """Enough waiting: a model that drains is unloaded, whatever it still serves."""
        lodger = self._lodgers.get(model)
        if lodger is None or lodger.stay is not Stay.DRAINING:
            return []
        lodger.stay = Stay.LEAVING
        return [Unload(model), *self._settle(now)]

    def told(self, figures: Mapping[str, Figures], asked_at: float, now: float) -> list[Action]:
        """The gateway's figures, asked for at that time."""
        for model, said in figures.items():
            lodger = self._lodgers.get(model)
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
        lodger = self._lodgers.get(model)
        if lodger is None or lodger.stay is not Stay.LOADING:
            return []
        lodger.stay, lodger.why, lodger.failures, lodger.retry_at = Stay.IN, None, 0, float("-inf")
        lodger.loaded_at, lodger.idle_since, lodger.used = now, now, False
        return self._settle(now)

    def failed(self, model: str, why: str, now: float) -> list[Action]:
        """All its replicas were given up."""
        lodger = self._lodgers.get(model)
        if lodger is None or lodger.stay not in (Stay.LOADING, Stay.IN, Stay.DRAINING):
            return []
        lodger.why = why
        if not lodger.guest.on_demand and not lodger.was_out:
            lodger.stay = Stay.GIVEN_UP
            return [Refuse(model, why, FIRST_BACK_OFF_S), *self._settle(now)]
        lodger.failures += 1
        lodger.stay = Stay.LEAVING
        back_off_s = min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2 ** (lodger.failures - 1))
        lodger.retry_at = now + back_off_s
        if model in self._line:
            self._line.remove(model)
        return [Refuse(model, why, back_off_s), Unload(model), *self._settle(now)]

    def gone(self, model: str, now: float) -> list[Action]:
        """None of its processes is left; by an unload, or by a reload while it drained."""
        lodger = self._lodgers.get(model)
        if lodger is None or lodger.stay not in (Stay.LEAVING, Stay.DRAINING):
            return []
        lodger.stay, lodger.reason, lodger.was_out = Stay.OUT, None, True
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        return self._settle(now)

    # Inside

    def _settle(self, now: float) -> list[Action]:
        actions: list[Action] = []
        needed: set[str] = set()  # those whose going somebody waits for
        blocked: set[str] = set()  # places that are spoken for by somebody earlier in line
        for model in list(self._line):
            actions += self._serve(self._lodgers[model], needed, blocked, now)
        for lodger in self._lodgers.values():
            if _goes_when_idle(lodger) and lodger.is_quiet(now, lodger.guest.idle_unload_s or 0.0):
                actions.append(self._drain(lodger, Reason.IDLE, now))
            elif lodger.stay is Stay.DRAINING:
                actions += self._see_off(lodger, needed)
        return actions

    def _serve(self, lodger: _Lodger, needed: set[str], blocked: set[str], now: float) -> list[Action]:
        """One of the line: loaded, refused, or waiting for others to go."""
        places = lodger.guest.places | ({"count"} if self._house.max_loaded is not None else set())
        if lodger.stay is Stay.OUT and now < lodger.retry_at and not lodger.asked:
            return [self._turn_away(lodger, lodger.why or "it failed before", lodger.retry_at - now)]
        never = self.never(lodger.model)
        if never is not None:
            return [self._turn_away(lodger, never, FIRST_BACK_OFF_S)]
        if lodger.stay is not Stay.OUT or blocked & places:
            blocked |= places
            return []
        present = [other for other in self._lodgers.values() if other.stay.takes_room]
        if self._fits(lodger, present):
            return [self._load(lodger, now)]
        blocked |= places
        needed |= {other.model for other in present if other.stay is Stay.DRAINING}
        left = [other for other in present if not other.leaves]
        victims = self._victims(lodger, left, now)
        needed |= {victim.model for victim in victims}
        return [self._drain(victim, Reason.ROOM, now) for victim in victims]

    def _victims(self, lodger: _Lodger, left: list[_Lodger], now: float) -> list[_Lodger]:
        """Who is to go, so that it fits; nobody if that would not suffice."""
        house = self._house
        quiet = [other for other in left if other.is_quiet(now, house.pause_s if other.used else house.quiet_s)]
        turn_over = [other for other in left if other not in quiet and now - other.loaded_at >= house.turn_s]
        order = [
            *sorted(quiet, key=lambda other: other.idle_since),
            *sorted(turn_over, key=lambda other: other.loaded_at),
        ]
        chosen: list[_Lodger] = []
        for other in order:
            if self._fits(lodger, left):
                break
            if other.stay is Stay.IN and not other.guest.pinned and self._in_the_way(other, lodger, left):
                chosen.append(other)
                left = [one for one in left if one is not other]
        if not self._fits(lodger, left):
            return []
        for other in reversed(chosen[:]):  # what was taken before something larger may not be needed any more
            if self._fits(lodger, [*left, other]):
                left = [*left, other]
                chosen.remove(other)
        return chosen

    def _lacking(self, lodger: _Lodger, present: list[_Lodger]) -> set[str]:
        return {
            place
            for place, need in lodger.guest.room.items()
            if place in self._house.room
            and need + sum(other.guest.room.get(place, 0) for other in present) > self._house.room[place]
        }

    def _crowded(self, present: list[_Lodger]) -> bool:
        return self._house.max_loaded is not None and len(present) >= self._house.max_loaded

    def _fits(self, lodger: _Lodger, present: list[_Lodger]) -> bool:
        excluded = any(_exclude(lodger.guest, other.guest) for other in present)
        return not excluded and not self._crowded(present) and not self._lacking(lodger, present)

    def _in_the_way(self, other: _Lodger, lodger: _Lodger, present: list[_Lodger]) -> bool:
        lacking = any(other.guest.room.get(place) for place in self._lacking(lodger, present))
        return lacking or self._crowded(present) or _exclude(lodger.guest, other.guest)

    def _see_off(self, lodger: _Lodger, needed: set[str]) -> list[Action]:
        """A model that drains: unloaded when nothing is under way, let in again when nobody wants it to go."""
        if lodger.model in needed and lodger.reason is Reason.IDLE:
            lodger.reason = Reason.ROOM
        asked_back = lodger.model in self._line or lodger.queued > 0
        obsolete = (lodger.reason is Reason.ROOM and lodger.model not in needed) or (
            lodger.reason is Reason.IDLE and asked_back
        )
        if obsolete:
            lodger.stay, lodger.reason, lodger.asked = Stay.IN, None, False
            if lodger.model in self._line:
                self._line.remove(lodger.model)
            return [Admit(lodger.model)]
        if lodger.heard_at <= lodger.drained_at or lodger.busy:
            return []
        lodger.stay = Stay.LEAVING
        return [Unload(lodger.model)]

    def _load(self, lodger: _Lodger, now: float) -> Load:
        lodger.stay, lodger.asked, lodger.reason = Stay.LOADING, False, None
        lodger.loaded_at = lodger.idle_since = now
        if lodger.model in self._line:
            self._line.remove(lodger.model)
        return Load(lodger.model)

    def _drain(self, lodger: _Lodger, reason: Reason, now: float) -> Drain:
        lodger.stay, lodger.reason, lodger.drained_at = Stay.DRAINING, reason, now
        return Drain(lodger.model)

    def _turn_away(self, lodger: _Lodger, why: str, retry_after_s: float) -> Refuse:
        lodger.why, lodger.asked = why, False
        self._line.remove(lodger.model)
        return Refuse(lodger.model, why, retry_after_s)


def _stays(lodger: _Lodger) -> bool:
    """Pinned, and there or about to be. What the user has unloaded is neither."""
    if not lodger.guest.pinned:
        return False
    return lodger.stay in (Stay.LOADING, Stay.IN) or not (lodger.guest.on_demand or lodger.leaves or lodger.was_out)


def _goes_when_idle(lodger: _Lodger) -> bool:
    return lodger.stay is Stay.IN and lodger.guest.idle_unload_s is not None and not lodger.guest.pinned


def _unsure(one: Guest, other: Guest) -> frozenset[str]:
    """The cards that both use, and of which nobody knows how much one of them takes."""
    return (one.unknown & other.places) | (other.unknown & one.places)


def _exclude(one: Guest, other: Guest) -> bool:
    """One of unknown size beside another. Those that are both not on demand are together by the user's word."""
    return bool(_unsure(one, other)) and (one.on_demand or other.on_demand)
