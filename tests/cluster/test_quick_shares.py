"""The ledger's quick rules beside plain ones (`plain_shares`), and a door that says and hears only what is new."""

import random

import pytest
from plain_shares import PlainShares, plain_spread

from skep.cluster.dividing import divided, spread
from skep.cluster.ledger import Ledger
from skep.cluster.renewals import Renewals
from skep.cluster.shares import LEASE_S, PACE_DOORS, PACE_S, Shares
from skep.cluster.wants import Wants

LET_GO_S = LEASE_S - 1.0  # a door that could not renew lets go before its lease is over


def at_once(coroutine):
    """What it returns; it waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


class Door:
    def __init__(self, name):
        self.name = name
        self.renewals = Renewals()
        self.holds, self.busy, self.queued = {}, {}, {}
        self.answered_at = 0.0

    def take(self, shares):
        self.holds |= shares

    def let_go(self):
        self.holds, self.busy = dict.fromkeys(self.holds, 0), {}


class Play:
    """A real ledger and its doors, and the plain rules that are told the same."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.now = 100.0
        self.doors = {}
        self.slots = {}  # by replica: its pool and slots
        self.rows = {}  # by replica: what its post says
        self.silent = set()  # replicas whose posts say nothing
        self.loose = set()  # replicas with fewer slots than are in use already: their limit holds later
        self.count = 0
        self.renewals = self.again = 0
        self.begin(is_successor=False)

    def begin(self, *, is_successor):
        async def never(*_):
            raise AssertionError

        self.ledger = Ledger("h", end_post=never, end_self=never, is_successor=is_successor, now=lambda: self.now)
        self.plain = PlainShares(self.now + LEASE_S if is_successor else 0.0)
        for name in self.slots:
            self.announce(name)

    def announce(self, name):
        pool, slots = self.slots[name]
        self.count += 1
        state = "ready" if pool[1] else self.rng.choice(("starting", "failed", "fetching"))
        row = {"incarnation": self.count, "model": pool[0], "slots": slots, "state": state, "node": "n"}
        at_once(self.ledger.announce(name, row))
        self.rows[name] = row
        self.silent.discard(name)
        known = {each: slots for each, slots in self.plain.slots.items() if each != name}
        same = self.plain.slots.get(name, ("",))[0] == pool
        self.plain.set_replicas(self.slots if same else {**known, name: (pool, slots)})

    def event(self):
        self.now += self.rng.choice((0.01, 0.1, 0.1, 0.4, 1.9))
        self.ledger.look()
        self.plain.expire(self.now)
        self.hear_posts()
        for door in self.doors.values():
            if self.now - door.answered_at > LET_GO_S:
                door.let_go()
        names = ("renew",) * 14 + ("use",) * 6 + ("queue",) * 3 + ("replica",) * 2
        what = self.rng.choice((*names, "silent", "door", "restart", "all", "all"))
        if what == "restart" and self.rng.random() < 0.8:
            what = "renew"
        getattr(self, f"do_{what}")()

    def hear_posts(self):
        """Those that are silent for too long serve no more, and do so again with their next word."""
        for name in [name for name, row in self.ledger._rows.items() if row["state"] == "away"]:
            self.becomes(name, serves=False)
        for name in [name for name in self.slots if name not in self.silent]:
            at_once(self.ledger.announce(name, self.rows[name]))
            self.becomes(name, serves=self.rows[name]["state"] == "ready")

    def becomes(self, name, *, serves):
        (model, served), slots = self.slots[name]
        if served != serves:
            del self.slots[name]
            self.slots[name] = (model, serves), slots
            self.plain.set_replicas(self.slots)

    def do_silent(self):
        self.silent ^= {self.rng.choice(list(self.slots))} if self.slots else set()

    def do_door(self):
        name = self.rng.choice("abcde")
        door = self.doors.pop(name, None)
        if door is None:
            self.doors[name] = Door(f"{name}{self.count}")
            self.count += 1
        elif self.rng.random() < 0.5:
            at_once(self.ledger.leave(door.name))
            self.plain.leave(door.name)
        else:
            self.doors[name] = door  # goes on

    def do_replica(self):
        name = f"r{self.rng.randrange(6)}"
        known = self.slots.pop(name, None)
        if known is not None and self.rng.random() < 0.6:
            at_once(self.ledger.forget(name))
        else:
            model = known[0][0] if known and self.rng.random() < 0.7 else self.rng.choice("mn")
            pool = model, self.rng.random() < 0.8
            slots = self.rng.choice((1, 2, 3, 8))
            self.loose |= {name} if max(self.used(name), self.plain.in_use(name)) > slots else set()
            same = known is not None and known[0] == pool  # one of another pool is another one, and comes last
            self.slots = self.kept(name, (pool, slots)) if same else {**self.slots, name: (pool, slots)}
            self.announce(name)
        self.plain.set_replicas(self.slots)

    def kept(self, name, value):
        """In its place: a table keeps the order in which replicas came."""
        return {each: value if each == name else self.slots.get(each) for each in self.plain.slots}

    def do_use(self):
        for door in self.doors.values():
            for replica in self.slots:
                now, held, wanted = door.busy.get(replica, 0), door.holds.get(replica, 0), self.rng.randrange(9)
                door.busy[replica] = wanted if wanted <= now else max(now, min(held, wanted))

    def do_queue(self):
        for door in self.doors.values():
            door.queued = {model: self.rng.choice((0, 0, 1, 20)) for model in "mnx" if self.rng.random() < 0.8}

    def do_restart(self):
        self.begin(is_successor=True)

    def do_all(self):
        for door in list(self.doors.values()):
            self.renew(door)
            self.now += 0.01

    def do_renew(self):
        if self.doors:
            self.renew(self.rng.choice(list(self.doors.values())))

    def renew(self, door):
        fate = self.rng.random()
        for gone in [name for name in door.holds if name not in self.slots]:
            del door.holds[gone]
            door.busy.pop(gone, None)
        question = door.renewals.question(door.busy, door.holds)
        if fate < 0.05:  # lost on the way
            assert not door.renewals.heard(None)
            return
        answer = self.ask(door, question)
        if "again" in answer:
            assert question["since"] is not None
            assert not door.renewals.heard(answer)
            self.again += 1
            answer = self.ask(door, door.renewals.question(door.busy, door.holds))
        expected = self.plain.renew(door.name, door.busy, door.holds, door.queued, self.now)
        self.renewals += 1
        if fate < 0.12:  # the answer is lost
            assert not door.renewals.heard(None)
            return
        assert door.renewals.heard(answer)
        door.take(answer["shares"])
        door.answered_at = self.now
        assert {name: door.holds[name] for name in expected} == expected
        assert door.renewals.elsewhere == self.plain.busy_besides(door.name)
        assert answer["doors"] == len(self.plain.doors)

    def ask(self, door, question):
        told = {"models": {model: {"queued": count} for model, count in door.queued.items()}}
        said = question["busy"], question["holds"], told
        return at_once(self.ledger.renew(door.name, *said, since=question["since"]))

    def check(self):
        for name, (_, slots) in self.slots.items():
            used = max(self.used(name), self.plain.in_use(name))
            assert used <= slots or name in self.loose, (name, slots, used)
            if used <= slots and self.now >= self.plain.cautious_until:  # a new ledger has not heard all of it yet
                self.loose.discard(name)

    def used(self, name):
        """What the doors do use or may use, whatever the ledger has heard of it."""
        return sum(max(door.holds.get(name, 0), door.busy.get(name, 0)) for door in self.doors.values())


@pytest.mark.parametrize("number", range(4))
def test_the_quick_rules_give_what_the_plain_ones_do_and_never_more_than_the_slots(number):
    """Doors come, die and go, words and answers get lost, replicas and slots change, the ledger starts anew."""
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")  # shown when it fails
    play = Play(seed)
    for _ in range(900):
        play.event()
        play.check()
    assert play.renewals > 300
    assert play.again > 0


def test_slots_are_spread_as_the_plain_rule_does_and_nobody_gets_less_than_none():
    """Doors that had a little more than their part before, and many of them: once, one was given -1."""
    rng = random.Random(1)
    for _ in range(300):
        slots = {f"r{number}": rng.choice((1, 2, 3, 8, 16, 32)) for number in range(rng.randint(1, 12))}
        wanted = {f"d{number}": rng.choice((0, 0, rng.randint(0, 400))) for number in range(rng.randint(1, 12))}
        given = divided(sum(slots.values()), wanted)
        columns, rows = spread(slots, given), plain_spread(slots, given)
        assert {name: {door: columns.get(door, {}).get(name, 0) for door in given} for name in slots} == rows
        assert min(min(row.values()) for row in rows.values()) >= 0


def test_many_doors_are_aimed_for_again_only_when_the_last_aim_is_long_enough_ago():
    shares, held = Shares(), {f"d{number}": {} for number in range(20)}
    shares.set_replicas({f"r{number}": ("m", 40) for number in range(50)})
    rest_s = PACE_S * 50 * (PACE_DOORS + 20)

    def round_of_all(now):
        for name, holds in held.items():
            held[name] = {**holds, **shares.renew(name, Wants(holds=holds), now).shares}

    round_of_all(1.0)
    assert sum(map(bool, held["d19"].values())) == 0, "it came while the first ones rested"
    for step in range(1, 6):
        round_of_all(1.0 + step * rest_s)
    assert all(sum(holds.values()) == 100 for holds in held.values())
    assert all(shares.in_use(f"r{number}") == 40 for number in range(50))
