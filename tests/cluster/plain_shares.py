"""The rules of shares as one would first write them: every door and every replica is looked at, every time.

A pool is a model and whether these replicas of it serve. Slow, and meant to be read.
`test_quick_shares` holds the real ones to it.
"""

from skep.cluster.dividing import divided, in_turn, seated
from skep.cluster.shares import LEASE_S, NEVER, TURN_S


class PlainDoor:
    def __init__(self):
        self.renewed_at = 0.0
        self.busy, self.holds, self.queued, self.may_use, self.got_at = {}, {}, {}, {}, {}

    def said(self, replica):
        return max(self.holds.get(replica, 0), self.busy.get(replica, 0))


class PlainShares:
    def __init__(self, cautious_until=0.0):
        self.cautious_until = cautious_until
        self.slots, self.doors, self.targets, self.turned_at = {}, {}, {}, {}
        self.stale = False

    def in_use(self, replica):
        return sum(door.may_use.get(replica, 0) for door in self.doors.values())

    def busy_besides(self, name):
        others = [door.busy for other, door in self.doors.items() if other != name]
        sums = {replica: sum(busy.get(replica, 0) for busy in others) for busy in others for replica in busy}
        return {replica: count for replica, count in sums.items() if count}

    def set_replicas(self, slots):
        if slots == self.slots:
            return
        before, self.slots, self.stale = self.slots, dict(slots), True
        same = {name for name in before if name in slots and before[name][0] == slots[name][0]}
        self.targets = {name: row for name, row in self.targets.items() if name in same}
        for door in self.doors.values():
            door.may_use = {name: door.said(name) for name in slots} | door.may_use  # also of one that went
        for model in {model for (model, _), _ in before.values()} - {model for model, _ in self.pools()}:
            for by_model in (self.turned_at, *(door.got_at for door in self.doors.values())):
                by_model.pop(model, None)

    def pools(self):
        return {pool for pool, _ in self.slots.values()}

    def leave(self, name):
        self.stale |= self.doors.pop(name, None) is not None
        for row in self.targets.values():
            row.pop(name, None)

    def expire(self, now):
        for name in [name for name, door in self.doors.items() if now - door.renewed_at > LEASE_S]:
            self.leave(name)

    def renew(self, name, busy, holds, queued, now):
        self.expire(now)
        self.stale |= name not in self.doors
        if not self.doors and any(holds.values()):
            self.cautious_until = now + LEASE_S
        door = self.doors.setdefault(name, PlainDoor())
        door.renewed_at, door.busy, door.holds, door.queued = now, dict(busy), dict(holds), dict(queued)
        door.may_use = {replica: door.said(replica) for replica in self.slots}
        for pool in self.pools():
            self.aim_where_due(pool, now)
        self.stale = False
        return {replica: self.share(replica, name, door, now) for replica in self.slots}

    def share(self, replica, name, door, now):
        held = door.holds.get(replica, 0)
        if now < self.cautious_until:
            return held
        free = self.slots[replica][1] - self.in_use(replica)
        share = min(self.targets[replica].get(name, 0), max(0, held + free))
        model, serves = pool = self.slots[replica][0]
        if serves and share and not self.usable(name, pool):
            door.got_at[model] = now
        door.may_use[replica] = max(door.may_use[replica], share)
        return share

    def aim_where_due(self, pool, now):
        (model, serves), mine, few = pool, self.of(pool), len(self.doors) < 2
        waiting = [name for name, door in self.doors.items() if serves and door.queued.get(model)]
        without = [name for name in waiting if not self.has(name, mine)]
        unserved = [name for name in waiting if not self.usable(name, pool)]
        spare = any(
            self.target(replica, name) > door.busy.get(replica, 0)
            for name, door in self.doors.items()
            for replica in mine
            if name not in waiting
        )
        scarce = sum(mine.values()) < sum(self.wants(name, pool) > 0 for name in self.doors)
        starving = [name for name in unserved if name in without]
        turn = scarce and starving and now - self.turned_at.get(model, NEVER) >= TURN_S
        if turn:
            self.turned_at[model] = now
        if scarce and without:
            helps = spare and not few
        else:
            helps = waiting and not few and (spare or without or len(waiting) > 1)
        if turn or helps or self.stale:
            got = {name: door.got_at.get(model, NEVER) for name, door in self.doors.items()}
            owed = {name: got[name] for name in unserved if name not in without}
            holders = {name: got[name] for name in self.doors if self.has(name, mine) and name not in owed}
            lack = {name: got[name] for name in starving}
            self.aim(pool, in_turn(owed, holders, lack, turn=turn) if scarce else ())

    def has(self, name, replicas):
        return sum(self.target(replica, name) for replica in replicas)

    def usable(self, name, pool):
        return sum(self.doors[name].may_use.get(replica, 0) for replica in self.of(pool))

    def wants(self, name, pool):
        (model, serves), door = pool, self.doors[name]
        used = sum(door.busy.get(replica, 0) for replica in self.of(pool))
        return used + (door.queued.get(model, 0) if serves else 0)

    def target(self, replica, name):
        return self.targets.get(replica, {}).get(name, 0)

    def of(self, pool):
        return {replica: slots for replica, (of, slots) in self.slots.items() if of == pool}

    def place(self, name, replicas):
        may_use = self.doors[name].may_use
        found = [one for one in replicas if self.target(one, name) or may_use.get(one)]
        return max(found, key=lambda one: (self.target(one, name), may_use.get(one, 0) > 0, one), default=None)

    def aim(self, pool, first):
        mine = self.of(pool)
        given = divided(sum(mine.values()), {name: self.wants(name, pool) for name in self.doors}, first)
        if max(given.values()) > 1:
            self.targets.update(plain_spread(mine, given))
            return
        seats = seated(mine, given, {name: self.place(name, mine) for name in self.doors})
        self.targets.update({one: {name: row.get(one, 0) for name, row in seats.items()} for one in mine})


def plain_spread(slots, given):
    """By replica, by door."""
    behind, rows = dict.fromkeys(given, 0.0), {}
    for replica, count in slots.items():
        for name, amount in given.items():
            behind[name] += count * amount / sum(slots.values())
        row = {name: max(0, int(behind[name] + 1e-9)) for name in given}
        while sum(row.values()) > count:
            row[max((name for name in row if row[name]), key=lambda name: (row[name] - behind[name], name))] -= 1
        while given and sum(row.values()) < count:
            row[max(row, key=lambda name: (behind[name] - row[name], name))] += 1
        for name in given:
            behind[name] -= row[name]
        rows[replica] = row
    return rows
