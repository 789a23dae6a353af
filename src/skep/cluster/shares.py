"""How many slots of each replica each door may use. Events in, shares out; knows no Ray, no socket, no clock.

A *door* is one gateway with its supervisor. Invariant: what the doors may use of a replica never exceeds its slots. A
share is lowered by telling the door, and counts as lowered only when the door says that it keeps to it and that no more
slots are in use. A door that does not renew for `lease_s` is gone, and its share is free again. One door alone has
everything. A door asks one question at a time and forgets an answer that came too late: what it says it holds is true.

A renewal costs what it changes. Only to aim anew looks at every replica for every door, so that is done where something
has changed, and not again before a rest that grows with their number: with a few of them, less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skep.cluster.dividing import divided, in_turn, spread
from skep.cluster.tally import Tally

LEASE_S = 8.0  # of a door that is not heard; it lets go by itself before that (`skep.cluster.embassy`)
TURN_S = 5.0  # where doors are more than slots, those that have had none for longest get their turn after so long
NEVER = float("-inf")
PACE_S, PACE_DOORS = 5e-6, 8  # `_rest_s`: to aim takes about a tenth of it (docs/scale.md)


@dataclass(frozen=True, slots=True)
class Wants:
    """What a door says when it renews. Raises ValueError where it cannot be meant: no half of it is ever heard.

    Not `whole`: of `busy` and `holds`, only what is not as it said the last time; None where there is none any more.
    """

    busy: Mapping[str, int | None] = field(default_factory=dict)  # slots in use, by replica
    holds: Mapping[str, int | None] = field(default_factory=dict)  # the shares that it keeps to, by replica
    queued: Mapping[str, int] = field(default_factory=dict)  # requests that wait, by model
    whole: bool = True

    def __post_init__(self) -> None:
        counts = [count for said in (self.busy, self.holds) for count in said.values() if count is not None]
        if not all(map(_is_count, (*counts, *self.queued.values()))):
            raise ValueError("a door says counts that are none")


@dataclass(frozen=True, slots=True)
class Answer:
    shares: Mapping[str, int]  # to who said all, all; to others, those that are not what it holds
    doors: int  # that are present, this one among them


@dataclass(slots=True)
class _Door:
    renewed_at: float
    busy: dict[str, int] = field(default_factory=dict)  # as it said; without zeros
    holds: dict[str, int] = field(default_factory=dict)  # as it said
    queued: Mapping[str, int] = field(default_factory=dict)
    may_use: dict[str, int] = field(default_factory=dict)  # at most, by replica: what counts against the slots
    parted: dict[str, int] = field(default_factory=dict)  # that of replicas which went since it spoke: they may return
    recount: set[str] = field(default_factory=set)  # where `may_use` is not what its next word makes of it
    used: dict[str, int] = field(default_factory=dict)  # busy, by model
    targets: dict[str, dict[str, int]] = field(default_factory=dict)  # by model, by replica
    has: dict[str, int] = field(default_factory=dict)  # targets, by model
    got_at: dict[str, float] = field(default_factory=dict)  # by model: when it last had no targets and got some
    spare: dict[str, int] = field(default_factory=dict)  # by model, replicas with more target than busy; or not counted
    unlike: set[str] | None = None  # replicas of which it may hold another share than its target; None: not known

    def said(self, replica: str) -> int:
        """What it may use by its own word."""
        return max(self.holds.get(replica, 0), self.busy.get(replica, 0))

    def target(self, replica: str, model: str) -> int:
        targets = self.targets.get(model)
        return targets.get(replica, 0) if targets else 0


class Shares:
    def __init__(self, lease_s: float = LEASE_S, *, cautious_until: float = 0.0) -> None:
        self.lease_s = lease_s
        self._cautious_until = cautious_until  # doors that were there before may not have spoken yet
        self._slots: dict[str, tuple[str, int]] = {}  # by replica: model and slots
        self._models: dict[str, dict[str, int]] = {}  # by model, by replica: slots
        self._sums: dict[str, int] = {}  # by model: slots
        self._doors: dict[str, _Door] = {}
        self._in_use: dict[str, int] = {}  # by replica: the sum of `may_use`
        self._over: set[str] = set()  # replicas of which more is in use than there is
        self._busy = Tally()
        self._waiting: dict[str, set[str]] = {}  # by model: doors where requests wait
        self._given: dict[str, dict[str, int]] = {}  # by model, by door: what the targets were made of
        self._stale = False  # replicas or doors are others than those that were aimed for
        self._rests_until = 0.0
        self._turned_at: dict[str, float] = {}  # by model

    def __repr__(self) -> str:
        return f"<Shares {len(self._slots)} replicas, {len(self._doors)} doors>"

    @property
    def doors(self) -> tuple[str, ...]:
        return tuple(self._doors)

    @property
    def mark(self) -> int:
        """This moment, for `busy_besides`."""
        return self._busy.mark

    def in_use(self, replica: str) -> int:
        """What all doors together may use of it at this moment."""
        return self._in_use.get(replica, 0)

    def busy_besides(self, name: str, since: int | None = None) -> dict[str, int]:
        """Slots in use at other doors, by replica; or only what may have changed since that mark, zeros included."""
        mine = self._doors[name].busy if name in self._doors else {}
        found = self._busy.sums(since)
        for replica in found.keys() & mine.keys():
            found[replica] -= mine[replica]
        return found if since is not None else {replica: count for replica, count in found.items() if count}

    # Events

    def set_replicas(self, slots: Mapping[str, tuple[str, int]]) -> None:
        """Which there are, each with its model and its slots."""
        for replica in [replica for replica in self._slots if replica not in slots]:
            self.drop(replica)
        for replica, (model, count) in slots.items():
            self.put(replica, model, count)

    def put(self, replica: str, model: str, slots: int) -> None:
        """It is there, or has other slots than before."""
        known = self._slots.get(replica)
        if known == (model, slots):
            return
        if known is not None and known[0] != model:
            self.drop(replica)
            known = None
        self._slots[replica] = (model, slots)
        self._models.setdefault(model, {})[replica] = slots
        self._sums[model] = self._sums.get(model, 0) + slots - (known[1] if known else 0)
        if known is None:
            self._in_use[replica] = 0
            for door in self._doors.values():
                door.used[model] = door.used.get(model, 0) + door.busy.get(replica, 0)
                self._allow(door, replica, max(door.said(replica), door.parted.pop(replica, 0)))
                door.recount.add(replica)
                if door.unlike is not None:
                    door.unlike.add(replica)
        self._weigh(replica)
        self._given.pop(model, None)
        self._stale = True

    def drop(self, replica: str) -> None:
        """It is there no more."""
        if replica not in self._slots:
            return
        model, slots = self._slots.pop(replica)
        self._sums[model] -= slots
        del self._models[model][replica], self._in_use[replica]
        self._over.discard(replica)
        for door in self._doors.values():
            door.parted[replica] = door.may_use.pop(replica, 0)
            door.recount.discard(replica)
            door.used[model] = door.used.get(model, 0) - door.busy.get(replica, 0)
            door.has[model] = door.has.get(model, 0) - door.targets.get(model, {}).pop(replica, 0)
            door.spare.pop(model, None)
            if door.unlike is not None:
                door.unlike.discard(replica)
        self._given.pop(model, None)
        self._stale = True
        if not self._models[model]:
            self._forget_model(model)

    def renew(self, name: str, wants: Wants, now: float) -> Answer:
        """The door is there. What it may use from now on.

        One that was there before this ledger was says what it holds. Others may do so too: until all have had the time
        to, nobody gets more. A door that is not known has to say all.
        """
        self.expire(now)
        door = self._doors.get(name)
        if door is None:
            assert wants.whole, name
            if not self._doors and any(wants.holds.values()):
                self._cautious_until = now + self.lease_s
            door = self._doors[name] = _Door(now)
            self._stale = True
        door.renewed_at = now
        self._hear(name, door, wants)
        if now >= self._rests_until or len(self._doors) == 1:
            self._aim_where_due(now)
        return self._answer(door, now, whole=wants.whole)

    def leave(self, name: str) -> None:
        """It has nothing under way and comes no more."""
        door = self._doors.pop(name, None)
        if door is None:
            return
        for replica in list(door.may_use):
            self._allow(door, replica, 0)
        for replica, count in door.busy.items():
            self._busy.add(replica, -count)
        self._set_queued(name, door, {})
        self._given.clear()  # it may come back without any targets
        self._stale = True

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

    # What a door says

    def _hear(self, name: str, door: _Door, wants: Wants) -> None:
        busy = {replica: count for replica, count in wants.busy.items() if count} if wants.whole else wants.busy
        for replica, count in _changes(door.busy, busy, whole=wants.whole).items():
            self._set_busy(door, replica, count or 0)
        for replica, held in _changes(door.holds, wants.holds, whole=wants.whole).items():
            if held is None:
                door.holds.pop(replica, None)
            else:
                door.holds[replica] = held
            if replica in self._slots:
                door.recount.add(replica)
                if door.unlike is not None:
                    door.unlike.add(replica)
        self._set_queued(name, door, wants.queued)
        for replica in door.recount:
            self._allow(door, replica, door.said(replica))
        door.recount.clear()
        door.parted.clear()

    def _set_busy(self, door: _Door, replica: str, count: int) -> None:
        before = door.busy.pop(replica, 0)
        if count:
            door.busy[replica] = count
        self._busy.add(replica, count - before)
        if replica not in self._slots:
            return
        model, _ = self._slots[replica]
        door.used[model] = door.used.get(model, 0) + count - before
        if model in door.spare:
            target = door.target(replica, model)
            door.spare[model] += (target > count) - (target > before)
        door.recount.add(replica)

    def _set_queued(self, name: str, door: _Door, queued: Mapping[str, int]) -> None:
        if queued == door.queued:
            return
        for model in door.queued:
            self._waiting.get(model, set()).discard(name)
        for model, count in queued.items():
            if count > 0:
                self._waiting.setdefault(model, set()).add(name)
        self._waiting = {model: names for model, names in self._waiting.items() if names}
        door.queued = dict(queued)

    def _allow(self, door: _Door, replica: str, count: int) -> None:
        """The only place that changes `may_use` of a replica that is there, and with it the sum."""
        before = door.may_use.pop(replica, 0)
        if count:
            door.may_use[replica] = count
        if count != before:
            self._in_use[replica] += count - before
            self._weigh(replica)

    def _weigh(self, replica: str) -> None:
        if self._in_use[replica] > self._slots[replica][1]:
            self._over.add(replica)
        else:
            self._over.discard(replica)

    # What it is told

    def _answer(self, door: _Door, now: float, *, whole: bool) -> Answer:
        """Where a door holds its target and no more is in use than there is, its share stays as it is."""
        careful = now < self._cautious_until
        if door.unlike is None:
            door.unlike = self._unlike(door)
        shares = {replica: door.holds.get(replica, 0) for replica in self._slots} if whole else {}
        for replica in door.unlike | self._over:
            (model, slots), holds = self._slots[replica], door.holds.get(replica, 0)
            target, free = door.target(replica, model), slots - self._in_use[replica]
            share = holds if careful else min(target, max(0, holds + free))
            if share != door.holds.get(replica):
                shares[replica] = share
            elif share == target:
                door.unlike.discard(replica)
            if share > door.may_use.get(replica, 0):
                self._allow(door, replica, share)
                door.recount.add(replica)
        return Answer(shares, len(self._doors))

    def _unlike(self, door: _Door) -> set[str]:
        found: set[str] = set()
        holds = door.holds.get
        for model, mine in self._models.items():
            target = door.targets.get(model, {}).get
            found.update([replica for replica in mine if holds(replica) != target(replica, 0)])
        return found

    # Aiming

    def _aim_where_due(self, now: float) -> None:
        """Each model at most once: replicas or doors are others than before, or to aim may help requests that wait."""
        for model in self._models if self._stale else [model for model in self._waiting if model in self._models]:
            waiting = self._waiting.get(model, set())
            without = any(not self._doors[name].has.get(model) for name in waiting)
            scarce = self._sums[model] < len(self._doors)
            turn = scarce and without and now - self._turned_at.get(model, NEVER) >= TURN_S
            if turn:
                self._turned_at[model] = now
            if turn or self._stale or self._may_help(model, waiting, without=without, scarce=scarce):
                self._aim(model, now, self._order(model, waiting, turn=turn) if scarce else ())
        self._stale = False

    def _may_help(self, model: str, waiting: set[str], *, without: bool, scarce: bool) -> bool:
        """Where slots are too few for all, only what some door does not use."""
        if len(self._doors) < 2:
            return False
        return ((without or len(waiting) > 1) and not (without and scarce)) or self._spare(model, waiting)

    def _order(self, model: str, waiting: set[str], *, turn: bool) -> list[str]:
        doors = self._doors
        holders = {name: door.got_at.get(model, NEVER) for name, door in doors.items() if door.has.get(model)}
        without = {name: doors[name].got_at.get(model, NEVER) for name in waiting if name not in holders}
        return in_turn(holders, without, turn=turn)

    def _spare(self, model: str, waiting: set[str]) -> bool:
        """Some door has slots that it does not use, and nobody waits there."""
        for name, door in self._doors.items():
            if name in waiting:
                continue
            if model not in door.spare:
                targets = door.targets.get(model, {})
                door.spare[model] = sum(target > door.busy.get(replica, 0) for replica, target in targets.items())
            if door.spare[model]:
                return True
        return False

    def _aim(self, model: str, now: float, first: Sequence[str]) -> None:
        """Targets over all replicas of the model. `first`: whose turn it is."""
        wanted = {name: door.queued.get(model, 0) + door.used.get(model, 0) for name, door in self._doors.items()}
        mine = self._models[model]
        given = divided(self._sums[model], wanted, first)
        if given == self._given.get(model):
            return
        self._given[model] = given
        rows = spread(mine, given)
        for name, door in self._doors.items():
            had, door.targets[model] = door.has.get(model), rows.get(name, {})
            door.has[model] = sum(door.targets[model].values())
            if door.has[model] and not had:
                door.got_at[model] = now
            door.spare.pop(model, None)
            door.unlike = None
        self._rests_until = max(now, self._rests_until) + _rest_s(len(mine), len(self._doors))

    def _forget_model(self, model: str) -> None:
        del self._models[model], self._sums[model]
        self._turned_at.pop(model, None)
        for door in self._doors.values():
            for by_model in (door.used, door.targets, door.has, door.spare, door.got_at):
                by_model.pop(model, None)


def _rest_s(replicas: int, doors: int) -> float:
    """Until the next aim."""
    return PACE_S * replicas * (PACE_DOORS + doors) if doors > 1 else 0.0


def _is_count(said: object) -> bool:
    return isinstance(said, int) and said >= 0


def _changes(before: Mapping[str, int], said: Mapping[str, int | None], *, whole: bool) -> Mapping[str, int | None]:
    """None: no more."""
    if not whole or said == before:
        return said if not whole else {}
    changed = {name: count for name, count in said.items() if before.get(name) != count}
    return changed | {name: None for name in before if name not in said}
