"""The ledger's sums, counted again after every event, also where it rests between aims; and no slot is lost."""

import random

import pytest
from test_quick_shares import LET_GO_S, Door, at_once

from skep.cluster import shares
from skep.cluster.ledger import Ledger
from skep.cluster.shares import PACE_DOORS, PACE_S, Shares
from skep.cluster.wants import Wants


def recount(kept):
    """Everything that `Shares` keeps beside what doors have said is what a count of that gives."""
    doors = kept._doors
    assert set(kept._in_use) == set(kept._slots)
    for replica, (pool, slots) in kept._slots.items():
        may_use = sum(door.may_use.get(replica, 0) for door in doors.values())
        assert (kept._in_use[replica], replica in kept._over) == (may_use, may_use > slots)
        assert kept._pools[pool][replica] == slots
        for door in doors.values():
            like = door.holds.get(replica) == door.target(replica, pool)
            assert like or door.unlike is None or replica in door.unlike
    for pool, mine in kept._pools.items():
        assert mine
        assert kept._sums[pool] == sum(mine.values())
        for door in doors.values():
            targets = door.targets.get(pool, {})
            assert set(targets) <= set(mine)
            assert door.used.get(pool, 0) == sum(door.busy.get(replica, 0) for replica in mine)
            assert door.usable.get(pool, 0) == sum(door.may_use.get(replica, 0) for replica in mine)
            assert door.has.get(pool, 0) == sum(targets.values())
            spare = sum(target > door.busy.get(replica, 0) for replica, target in targets.items())
            assert door.spare.get(pool, spare) == spare
    models = {model for model, _ in kept._pools}
    for door in doors.values():
        assert {pool for said in (door.used, door.usable, door.has, door.spare) for pool in said} <= set(kept._pools)
        assert set(door.got_at) <= models
    waiting = {(model, name) for name, door in doors.items() for model, count in door.queued.items() if count}
    assert waiting == {(model, name) for model, names in kept._waiting.items() for name in names}


class Life:
    def __init__(self, seed):
        self.rng, self.now = random.Random(seed), 100.0
        self.slots, self.doors, self.drained, self.loose, self.count = {}, {}, {}, set(), 0
        self.begin(is_successor=False)

    def begin(self, *, is_successor):
        async def never(*_):
            raise AssertionError

        self.ledger = Ledger("h", end_post=never, end_self=never, is_successor=is_successor, now=lambda: self.now)
        for name in self.slots:
            self.announce(name)

    def announce(self, name):
        self.count += 1
        model, slots = self.slots[name]
        state = self.rng.choice(("ready", "ready", "ready", "starting", "failed"))
        row = {"incarnation": self.count, "model": model, "slots": slots, "state": state, "node": f"n{name}"}
        at_once(self.ledger.announce(name, row))

    def event(self):
        self.now += self.rng.choice((0.01, 0.1, 0.1, 0.4, 1.0))
        self.ledger.look()
        for door in self.doors.values():
            if self.now - door.answered_at > LET_GO_S:
                door.let_go()
        events = (self.some_renew,) * 12 + (self.use,) * 3 + (self.replica,) * 3 + (self.door,) * 2
        self.rng.choice(events)()
        for name in self.rng.sample(sorted(self.slots), len(self.slots) // 3):
            self.announce(name)
        if self.rng.random() < 0.01:
            self.begin(is_successor=True)
        recount(self.ledger._shares)
        for name, (_, slots) in self.slots.items():
            if max(self.used(name), self.ledger._shares.in_use(name)) <= slots:
                self.loose.discard(name)
            assert self.used(name) <= slots or name in self.loose

    def used(self, name):
        return sum(max(door.holds.get(name, 0), door.busy.get(name, 0)) for door in self.doors.values())

    def use(self):
        for door in self.doors.values():
            for replica in self.slots:
                now, held, wanted = door.busy.get(replica, 0), door.holds.get(replica, 0), self.rng.randrange(9)
                door.busy[replica] = wanted if wanted <= now else max(now, min(held, wanted))
            door.queued = {model: self.rng.choice((0, 1, 20)) for model in "mnx"}

    def replica(self):
        """It goes, or it has other slots, or another model while it stands. What is in use counts for a while yet."""
        name = f"r{self.rng.randrange(6)}"
        self.loose.add(name)
        if name in self.slots and self.rng.random() < 0.5:
            del self.slots[name]
            at_once(self.ledger.forget(name))
        else:
            self.slots[name] = (self.rng.choice("mn"), self.rng.choice((1, 2, 3, 8)))
            self.announce(name)

    def door(self):
        name = self.rng.choice("abcde")
        if name not in self.doors:
            self.count += 1
            self.doors[name] = Door(f"{name}{self.count}")
        elif self.rng.random() < 0.5:
            self.drained[self.doors[name].name] = self.rng.choice(([], ["r1"], ["nr2", "r3"]))
        else:
            at_once(self.ledger.leave(self.doors.pop(name).name))

    def some_renew(self):
        for door in self.rng.sample(list(self.doors.values()), self.rng.randint(0, len(self.doors))):
            self.renew(door, lost=self.rng.random())

    def renew(self, door, lost=1.0):
        for gone in [name for name in door.holds if name not in self.slots]:
            del door.holds[gone]
            door.busy.pop(gone, None)
        models = {model: {"queued": count} for model, count in door.queued.items()}
        told = {"models": models, "drained": self.drained.get(door.name, [])}
        for _ in range(2):
            question = door.renewals.question(door.busy, door.holds)
            said = question["busy"], question["holds"], told
            answer = None if lost < 0.05 else at_once(self.ledger.renew(door.name, *said, since=question["since"]))
            if door.renewals.heard(None if lost < 0.1 else answer):
                door.take(answer["shares"])
                door.answered_at = self.now
                return

    def rest(self):
        """Nobody uses anything or waits, everybody renews: every slot is somebody's."""
        for door in self.doors.values():
            door.busy, door.queued = {}, {}
        for _ in range(100):
            self.now += 0.4
            self.ledger.look()
            for door in self.doors.values():
                self.renew(door)
        assert all(self.used(name) == slots for name, (_, slots) in self.slots.items() if self.doors)


@pytest.mark.parametrize("pace_s", [PACE_S, 5e-3, 5e-2])
def test_every_sum_is_what_a_count_gives_and_no_slot_is_lost_however_long_it_rests(monkeypatch, pace_s):
    """At 5e-2, with five doors and six replicas, it rests for 4 s after each aim."""
    monkeypatch.setattr(shares, "PACE_S", pace_s)
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")  # shown when it fails
    life = Life(seed)
    for _ in range(600):
        life.event()
    life.rest()


def test_one_renewal_aims_once_and_rests_once():
    """Another replica, and requests that wait: either is a reason to aim."""
    kept, many = Shares(), 200
    kept.set_replicas({f"r{number}": ("m", 4) for number in range(many)})
    for number in range(8):
        kept.renew(f"d{number}", Wants(), 1.0)
    kept.renew("d0", Wants(), 2.0)
    kept.put("more", "m", 4)
    kept.renew("d5", Wants(queued={"m": 900}), 3.0)
    assert kept._rests_until == pytest.approx(3.0 + PACE_S * (many + 1) * (PACE_DOORS + 8))
