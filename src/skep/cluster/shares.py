"""How many slots of each replica each door may use. Events in, shares out; knows no Ray, no socket, no clock.

A *door* is one gateway with its supervisor. Invariant: what the doors may use of a replica never exceeds its slots. A
share is lowered by telling the door, and counts as lowered only when the door says that it keeps to it and that no more
slots are in use. A door that does not renew for `lease_s` is gone, and its share is free again. One door alone has
everything. A door asks one question at a time and forgets an answer that came too late: what it says it holds is true.

A renewal costs what it changes. Only to aim anew looks at every replica for every door, so that is done where something
has changed, and not again before a rest that grows with their number: with a few of them, less than a millisecond.
Replicas that do not serve are divided apart: they help nobody who waits, and come back with their slots divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skep.cluster.dividing import divided, in_turn, seated, spread
from skep.cluster.tally import Tally
from skep.cluster.wants import Wants, changes

LEASE_S = 8.0  # of a door that is not heard; it lets go by itself before that (`skep.cluster.embassy`)
TURN_S = 5.0  # where doors that want some are more than slots, who has had none for longest is next after so long
NEVER = float("-inf")
PACE_S, PACE_DOORS = 5e-6, 8  # `_rest_s`: to aim takes about a tenth of it (docs/scale.md)
Pool = tuple[str, bool]  # replicas that are divided together: their model, and whether they serve


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
    used: dict[Pool, int] = field(default_factory=dict)  # busy, by pool
    usable: dict[Pool, int] = field(default_factory=dict)  # may_use, by pool
    targets: dict[Pool, dict[str, int]] = field(default_factory=dict)  # by pool, by replica
    has: dict[Pool, int] = field(default_factory=dict)  # targets, by pool
    got_at: dict[str, float] = field(default_factory=dict)  # by model: when it last could use none and was given some
    spare: dict[Pool, int] = field(default_factory=dict)  # by pool, replicas with more target than busy; or not counted
    unlike: set[str] | None = None  # replicas of which it may hold another share than its target; None: not known

    def said(self, replica: str) -> int:
        """What it may use by its own word."""
        return max(self.holds.get(replica, 0), self.busy.get(replica, 0))

    def target(self, replica: str, pool: Pool) -> int:
        targets = self.targets.get(pool)
        return targets.get(replica, 0) if targets else 0

    def wants(self, pool: Pool) -> int:
        return (self.queued.get(pool[0], 0) if pool[1] else 0) + self.used.get(pool, 0)


class Shares:
    def __init__(self, lease_s: float = LEASE_S, *, cautious_until: float = 0.0) -> None:
        self.lease_s = lease_s
        self._cautious_until = cautious_until  # doors that were there before may not have spoken yet
        self._slots: dict[str, tuple[Pool, int]] = {}  # by replica
        self._pools: dict[Pool, dict[str, int]] = {}  # by pool, by replica: slots
        self._sums: dict[Pool, int] = {}  # by pool: slots
        self._doors: dict[str, _Door] = {}
        self._in_use: dict[str, int] = {}  # by replica: the sum of `may_use`
        self._over: set[str] = set()  # replicas of which more is in use than there is
        self._busy = Tally()
        self._waiting: dict[str, set[str]] = {}  # by model: doors where requests wait
        self._given: dict[Pool, dict[str, int]] = {}  # by pool, by door: what the targets were made of
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
        """Which there are, each with its model and its slots; all serve."""
        for replica in [replica for replica in self._slots if replica not in slots]:
            self.drop(replica)
        for replica, (model, count) in slots.items():
            self.put(replica, model, count)

    def put(self, replica: str, model: str, slots: int, *, serves: bool = True) -> None:
        """It is there, or is not as it was before."""
        pool, known = (model, serves), self._slots.get(replica)
        if known == (pool, slots):
            return
        if known is not None and known[0] != pool:
            self._take_out(replica)
        before = self._slots.get(replica)
        self._slots[replica] = (pool, slots)
        self._pools.setdefault(pool, {})[replica] = slots
        self._sums[pool] = self._sums.get(pool, 0) + slots - (before[1] if before else 0)
        if before is None:
            self._in_use[replica] = 0
            for door in self._doors.values():
                door.used[pool] = door.used.get(pool, 0) + door.busy.get(replica, 0)
                self._allow(door, replica, max(door.said(replica), door.parted.pop(replica, 0)))
                door.recount.add(replica)
                if door.unlike is not None:
                    door.unlike.add(replica)
        self._weigh(replica)
        self._given.pop(pool, None)
        self._stale = True
        if known is not None:
            self._forget_if_empty(known[0])

    def drop(self, replica: str) -> None:
        """It is there no more."""
        if replica in self._slots:
            self._forget_if_empty(self._take_out(replica))

    def _take_out(self, replica: str) -> Pool:
        pool, slots = self._slots.pop(replica)
        self._sums[pool] -= slots
        del self._pools[pool][replica], self._in_use[replica]
        self._over.discard(replica)
        for door in self._doors.values():
            door.parted[replica] = door.may_use.pop(replica, 0)
            door.recount.discard(replica)
            door.used[pool] = door.used.get(pool, 0) - door.busy.get(replica, 0)
            door.usable[pool] = door.usable.get(pool, 0) - door.parted[replica]
            door.has[pool] = door.has.get(pool, 0) - door.targets.get(pool, {}).pop(replica, 0)
            door.spare.pop(pool, None)
            if door.unlike is not None:
                door.unlike.discard(replica)
        self._given.pop(pool, None)
        self._stale = True
        return pool

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
        for replica, count in changes(door.busy, busy, whole=wants.whole).items():
            self._set_busy(door, replica, count or 0)
        for replica, held in changes(door.holds, wants.holds, whole=wants.whole).items():
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
        pool, _ = self._slots[replica]
        door.used[pool] = door.used.get(pool, 0) + count - before
        if pool in door.spare:
            target = door.target(replica, pool)
            door.spare[pool] += (target > count) - (target > before)
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
        """The only place that changes `may_use` of a replica that is there, and with it the sums."""
        before = door.may_use.pop(replica, 0)
        if count:
            door.may_use[replica] = count
        if count != before:
            pool, _ = self._slots[replica]
            door.usable[pool] = door.usable.get(pool, 0) + count - before
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
            (pool, slots), holds = self._slots[replica], door.holds.get(replica, 0)
            target, free = door.target(replica, pool), slots - self._in_use[replica]
            share = holds if careful else min(target, max(0, holds + free))
            if share != door.holds.get(replica):
                shares[replica] = share
            elif share == target:
                door.unlike.discard(replica)
            if share > door.may_use.get(replica, 0):
                if pool[1] and not door.usable.get(pool):
                    door.got_at[pool[0]] = now
                self._allow(door, replica, share)
                door.recount.add(replica)
        return Answer(shares, len(self._doors))

    def _unlike(self, door: _Door) -> set[str]:
        found: set[str] = set()
        holds = door.holds.get
        for pool, mine in self._pools.items():
            target = door.targets.get(pool, {}).get
            found.update([replica for replica in mine if holds(replica) != target(replica, 0)])
        return found

    # Aiming

    def _aim_where_due(self, now: float) -> None:
        """Each pool at most once: replicas or doors are others than before, or to aim may help requests that wait."""
        asked_for = [(model, True) for model in self._waiting]
        for pool in self._pools if self._stale else [pool for pool in asked_for if pool in self._pools]:
            model, serves = pool
            waiting = self._waiting.get(model, set()) if serves else set()
            without = {name for name in waiting if not self._doors[name].has.get(pool)}
            scarce = self._sums[pool] < sum(door.wants(pool) > 0 for door in self._doors.values())
            starves = scarce and not without.isdisjoint(self._unserved(pool, waiting))
            turn = starves and now - self._turned_at.get(model, NEVER) >= TURN_S
            if turn:
                self._turned_at[model] = now
            if turn or self._stale or self._may_help(pool, waiting, without=bool(without), scarce=scarce):
                self._aim(pool, now, self._order(pool, waiting, turn=turn) if scarce else ())
        self._stale = False

    def _may_help(self, pool: Pool, waiting: set[str], *, without: bool, scarce: bool) -> bool:
        """Where slots are too few for all, only what some door does not use."""
        if len(self._doors) < 2:
            return False
        return ((without or len(waiting) > 1) and not (without and scarce)) or self._spare(pool, waiting)

    def _order(self, pool: Pool, waiting: set[str], *, turn: bool) -> list[str]:
        """Who waits and has targets, but could use nothing yet, is owed: others still use those slots.

        Who still uses one, though it is not to have it any more, is not without: it is not next again already.
        """
        got_at = {name: door.got_at.get(pool[0], NEVER) for name, door in self._doors.items()}
        holders = {name: got_at[name] for name, door in self._doors.items() if door.has.get(pool)}
        unserved = self._unserved(pool, waiting)
        without = {name: got_at[name] for name in unserved - holders.keys()}
        owed = {name: holders.pop(name) for name in unserved & holders.keys()}
        return in_turn(owed, holders, without, turn=turn)

    def _unserved(self, pool: Pool, waiting: set[str]) -> set[str]:
        return {name for name in waiting if not self._doors[name].usable.get(pool)}

    def _spare(self, pool: Pool, waiting: set[str]) -> bool:
        """Some door has slots that it does not use, and nobody waits there."""
        for name, door in self._doors.items():
            if name in waiting:
                continue
            if pool not in door.spare:
                targets = door.targets.get(pool, {})
                door.spare[pool] = sum(target > door.busy.get(replica, 0) for replica, target in targets.items())
            if door.spare[pool]:
                return True
        return False

    def _aim(self, pool: Pool, now: float, first: Sequence[str]) -> None:
        """Targets over all replicas of the pool. `first`: whose turn it is."""
        mine = self._pools[pool]
        given = divided(self._sums[pool], {name: door.wants(pool) for name, door in self._doors.items()}, first)
        if given == self._given.get(pool):
            return
        self._given[pool] = given
        if max(given.values()) > 1:
            rows = spread(mine, given)
        else:
            rows = seated(mine, given, {name: self._place(door, pool) for name, door in self._doors.items()})
        for name, door in self._doors.items():
            door.targets[pool] = rows.get(name, {})
            door.has[pool] = sum(door.targets[pool].values())
            door.spare.pop(pool, None)
            door.unlike = None
        self._rests_until = max(now, self._rests_until) + _rest_s(len(mine), len(self._doors))

    def _place(self, door: _Door, pool: Pool) -> str | None:
        """Where a door has its one slot; or else where it still uses one."""
        targets, may_use = door.targets.get(pool, {}), door.may_use
        found = [(targets.get(one, 0), one in may_use, one) for one in self._pools[pool]]
        has, uses, place = max(found)
        return place if has or uses else None

    def _forget_if_empty(self, pool: Pool) -> None:
        """When a model got its turns is known as long as there is any replica of it."""
        if self._pools[pool]:
            return
        del self._pools[pool], self._sums[pool]
        for door in self._doors.values():
            for by_pool in (door.used, door.usable, door.targets, door.has, door.spare):
                by_pool.pop(pool, None)
        model, serves = pool
        if (model, not serves) not in self._pools:
            for by_model in (self._turned_at, *(door.got_at for door in self._doors.values())):
                by_model.pop(model, None)


def _rest_s(replicas: int, doors: int) -> float:
    """Until the next aim."""
    return PACE_S * replicas * (PACE_DOORS + doors) if doors > 1 else 0.0
