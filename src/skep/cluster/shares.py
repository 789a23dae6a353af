"""How many slots of each replica each door may use. Events in, shares out; knows no Ray, no socket, no clock.

A *door* is one gateway with its supervisor. Invariant: what the doors may use of a replica never exceeds its slots. A
share is lowered by telling the door, and counts as lowered only when the door says that it keeps to it and that no more
slots are in use. A door that does not renew for `lease_s` is gone, and its share is free again. One door alone has
everything. A door asks one question at a time and forgets an answer that came too late: what it says it holds is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LEASE_S = 8.0  # of a door that is not heard; it lets go by itself before that (`skep.cluster.embassy`)
TURN_S = 5.0  # where doors are more than slots, those that have none get their turn after so long


@dataclass(frozen=True, slots=True)
class Wants:
    """What a door says when it renews."""

    busy: Mapping[str, int] = field(default_factory=dict)  # slots in use, by replica
    holds: Mapping[str, int] = field(default_factory=dict)  # the shares that it keeps to, by replica
    queued: Mapping[str, int] = field(default_factory=dict)  # requests that wait, by model


@dataclass(frozen=True, slots=True)
class Answer:
    shares: Mapping[str, int]
    doors: int  # that are present, this one among them


@dataclass(slots=True)
class _Door:
    renewed_at: float
    wants: Wants = field(default_factory=Wants)
    may_use: dict[str, int] = field(default_factory=dict)  # at most, by replica: what counts against the slots


class Shares:
    def __init__(self, lease_s: float = LEASE_S, *, cautious_until: float = 0.0) -> None:
        self.lease_s = lease_s
        self._cautious_until = cautious_until  # doors that were there before may not have spoken yet
        self._slots: dict[str, tuple[str, int]] = {}  # by replica: model and slots
        self._doors: dict[str, _Door] = {}
        self._targets: dict[str, dict[str, int]] = {}  # by replica, by door
        self._aimed_at: dict[str, float] = {}  # by model

    def __repr__(self) -> str:
        return f"<Shares {len(self._slots)} replicas, {len(self._doors)} doors>"

    @property
    def doors(self) -> tuple[str, ...]:
        return tuple(self._doors)

    def in_use(self, replica: str) -> int:
        """What all doors together may use of it at this moment."""
        return sum(door.may_use.get(replica, 0) for door in self._doors.values())

    # Events

    def set_replicas(self, slots: Mapping[str, tuple[str, int]]) -> None:
        """Which there are, each with its model and its slots."""
        if dict(slots) == self._slots:
            return
        self._slots = dict(slots)
        for door in self._doors.values():
            door.may_use = {name: count for name, count in door.may_use.items() if name in self._slots}
        self._aim(self._slots)

    def renew(self, name: str, wants: Wants, now: float) -> Answer:
        """The door is there. What it may use from now on.

        One that was there before this ledger was says what it holds. Others may do so too: until all have had the time
        to, nobody gets more.
        """
        self.expire(now)
        is_new = name not in self._doors
        if not self._doors and any(wants.holds.values()):
            self._cautious_until = now + self.lease_s
        door = self._doors.setdefault(name, _Door(now))
        door.renewed_at, door.wants = now, wants
        door.may_use = {
            replica: max(wants.holds.get(replica, 0), wants.busy.get(replica, 0)) for replica in self._slots
        }
        if is_new:
            self._aim(self._slots)
        self._relieve(now)
        return self._answer(name, door, now)

    def leave(self, name: str) -> None:
        """It has nothing under way and comes no more."""
        if self._doors.pop(name, None) is not None:
            self._aim(self._slots)

    def expire(self, now: float) -> list[str]:
        """The doors that did not renew in time; their shares are free again."""
        gone = [name for name, door in self._doors.items() if now - door.renewed_at > self.lease_s]
        for name in gone:
            self.leave(name)
        return gone

    def forgive(self, seconds: float) -> None:
        """Nobody could be heard for so long."""
        for door in self._doors.values():
            door.renewed_at += seconds

    # Inside

    def _answer(self, name: str, door: _Door, now: float) -> Answer:
        shares = {}
        careful = now < self._cautious_until
        for replica, (_model, slots) in self._slots.items():
            target, holds = self._targets.get(replica, {}).get(name, 0), door.wants.holds.get(replica, 0)
            free = 0 if careful else slots - self.in_use(replica)
            share = holds if careful else min(target, max(0, holds + free))
            shares[replica] = share
            door.may_use[replica] = max(door.may_use.get(replica, 0), share)
        return Answer(shares, len(self._doors))

    def busy_besides(self, name: str) -> dict[str, int]:
        """Slots in use at other doors, by replica."""
        found: dict[str, int] = {}
        for other, door in self._doors.items():
            for replica, count in door.wants.busy.items() if other != name else ():
                found[replica] = found.get(replica, 0) + count
        return found

    def _relieve(self, now: float) -> None:
        """A door whose requests wait while another one has slots to spare, or all of them: aim anew."""
        short = {model for door in self._doors.values() for model, queued in door.wants.queued.items() if queued > 0}
        if len(self._doors) < 2 or not short:
            return
        by_model: dict[str, list[str]] = {}
        for replica, (model, _) in self._slots.items():
            if model in short:
                by_model.setdefault(model, []).append(replica)
        for model, replicas in by_model.items():
            without = self._without(model, replicas)
            if without and sum(self._slots[replica][1] for replica in replicas) < len(self._doors):
                if now - self._aimed_at.get(model, now - TURN_S) >= TURN_S:
                    self._aim(replicas, now, first=without)
            elif self._spare(model, replicas) or without or self._several_wait(model):
                self._aim(replicas, now)

    def _without(self, model: str, replicas: Iterable[str]) -> tuple[str, ...]:
        """Doors whose requests wait and that have no slot of the model."""
        aimed = list(replicas)
        return tuple(
            name
            for name, door in self._doors.items()
            if door.wants.queued.get(model) and not any(self._targets[replica].get(name) for replica in aimed)
        )

    def _spare(self, model: str, replicas: Iterable[str]) -> bool:
        """Some door has slots that it does not use, and nobody waits there."""
        aimed = list(replicas)
        return any(
            not door.wants.queued.get(model)
            and any(self._targets[replica].get(name, 0) > door.wants.busy.get(replica, 0) for replica in aimed)
            for name, door in self._doors.items()
        )

    def _several_wait(self, model: str) -> bool:
        return sum(bool(door.wants.queued.get(model)) for door in self._doors.values()) > 1

    def _aim(self, replicas: Iterable[str], now: float | None = None, *, first: tuple[str, ...] = ()) -> None:
        """Targets of the models that these replicas serve, over all replicas of each. `first`: whose turn it is."""
        for model in {self._slots[replica][0] for replica in replicas}:
            mine = {replica: slots for replica, (of, slots) in self._slots.items() if of == model}
            wanted = {
                name: door.wants.queued.get(model, 0) + sum(door.wants.busy.get(replica, 0) for replica in mine)
                for name, door in self._doors.items()
            }
            self._targets.update(spread(mine, divided(sum(mine.values()), wanted, first)))
            if now is not None:
                self._aimed_at[model] = now
        self._targets = {replica: targets for replica, targets in self._targets.items() if replica in self._slots}


def divided(slots: int, wanted: Mapping[str, int], first: tuple[str, ...] = ()) -> dict[str, int]:
    """Max-min fair: nobody gets more than it wants while another one lacks; what nobody wants is for all alike."""
    given, left = dict.fromkeys(wanted, 0), slots
    hungry = [name for name in wanted if wanted[name] > 0]
    while left and hungry:
        each = left // len(hungry)
        if not each:
            for name in sorted(hungry, key=lambda name: (name not in first, given[name], name))[:left]:
                given[name] += 1
            left = 0
        for name in hungry if each else ():
            more = min(each, wanted[name] - given[name])
            given[name] += more
            left -= more
        hungry = [name for name in hungry if given[name] < wanted[name]]
    for place, name in enumerate(sorted(given, key=lambda name: (given[name], name))):
        extra = -(-left // (len(given) - place))
        given[name] += extra
        left -= extra
    return given


def spread(slots: Mapping[str, int], given: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Each door's slots over the replicas, in proportion; what does not divide goes to who is furthest behind."""
    total = sum(slots.values())
    behind = dict.fromkeys(given, 0.0)
    found: dict[str, dict[str, int]] = {}
    for replica, count in slots.items():
        for name, amount in given.items():
            behind[name] += count * amount / total
        row = {name: max(0, int(behind[name] + 1e-9)) for name in given}
        while sum(row.values()) > count:
            most = max(row, key=lambda name: (row[name] - behind[name], name))
            row[most] -= 1
        while given and sum(row.values()) < count:
            least = max(row, key=lambda name: (behind[name] - row[name], name))
            row[least] += 1
        for name in given:
            behind[name] -= row[name]
        found[replica] = row
    return found
