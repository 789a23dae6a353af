"""The rules of shares as one would first write them: every door and every replica is looked at, every time.

Slow, and meant to be read. `test_quick_shares` holds the real ones to it.
"""

from skep.cluster.dividing import divided
from skep.cluster.shares import LEASE_S, TURN_S


class PlainDoor:
    def __init__(self):
        self.renewed_at = 0.0
        self.busy, self.holds, self.queued, self.may_use = {}, {}, {}, {}

    def said(self, replica):
        return max(self.holds.get(replica, 0), self.busy.get(replica, 0))


class PlainShares:
    def __init__(self, cautious_until=0.0):
        self.cautious_until = cautious_until
        self.slots, self.doors, self.targets, self.aimed_at = {}, {}, {}, {}

    def in_use(self, replica):
        return sum(door.may_use.get(replica, 0) for door in self.doors.values())

    def busy_besides(self, name):
        others = [door.busy for other, door in self.doors.items() if other != name]
        sums = {replica: sum(busy.get(replica, 0) for busy in others) for busy in others for replica in busy}
        return {replica: count for replica, count in sums.items() if count}

    def set_replicas(self, slots):
        if slots != self.slots:
            self.slots = dict(slots)
            for door in self.doors.values():
                door.may_use = {name: door.said(name) for name in slots} | door.may_use  # also of one that went
            self.aim(self.models())

    def models(self):
        return {model for model, _ in self.slots.values()}

    def leave(self, name):
        if self.doors.pop(name, None) is not None:
            self.aim(self.models())

    def expire(self, now):
        for name in [name for name, door in self.doors.items() if now - door.renewed_at > LEASE_S]:
            self.leave(name)

    def renew(self, name, busy, holds, queued, now):
        self.expire(now)
        is_new = name not in self.doors
        if not self.doors and any(holds.values()):
            self.cautious_until = now + LEASE_S
        door = self.doors.setdefault(name, PlainDoor())
        door.renewed_at, door.busy, door.holds, door.queued = now, dict(busy), dict(holds), dict(queued)
        door.may_use = {replica: door.said(replica) for replica in self.slots}
        if is_new:
            self.aim(self.models())
        if len(self.doors) > 1:
            for model in self.models():
                self.relieve(model, now)
        return {replica: self.share(replica, name, door, now) for replica in self.slots}

    def share(self, replica, name, door, now):
        held = door.holds.get(replica, 0)
        if now < self.cautious_until:
            return held
        free = self.slots[replica][1] - self.in_use(replica)
        share = min(self.targets[replica].get(name, 0), max(0, held + free))
        door.may_use[replica] = max(door.may_use[replica], share)
        return share

    def relieve(self, model, now):
        mine = self.of(model)
        waiting = [name for name, door in self.doors.items() if door.queued.get(model)]
        without = tuple(name for name in waiting if not any(self.targets[replica].get(name) for replica in mine))
        spare = any(
            self.targets[replica].get(name, 0) > door.busy.get(replica, 0)
            for name, door in self.doors.items()
            for replica in mine
            if name not in waiting
        )
        if not waiting:
            return
        if without and sum(mine.values()) < len(self.doors):
            if now - self.aimed_at.get(model, now - TURN_S) >= TURN_S:
                self.aim({model}, without)
                self.aimed_at[model] = now
        elif spare or without or len(waiting) > 1:
            self.aim({model})
            self.aimed_at[model] = now

    def of(self, model):
        return {replica: slots for replica, (of, slots) in self.slots.items() if of == model}

    def aim(self, models, first=()):
        for model in models:
            mine = self.of(model)
            wanted = {
                name: door.queued.get(model, 0) + sum(door.busy.get(replica, 0) for replica in mine)
                for name, door in self.doors.items()
            }
            self.targets.update(plain_spread(mine, divided(sum(mine.values()), wanted, first)))
        self.targets = {replica: row for replica, row in self.targets.items() if replica in self.slots}


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
