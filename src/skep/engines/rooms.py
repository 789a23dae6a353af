"""What `lodging` is told of models and of the machine, and what it answers, as frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from skep.engines.base import Launch

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
