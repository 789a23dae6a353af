"""The decider and the plainly written rules answer the same random events alike."""

from dataclasses import replace
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings
from plain_rules import PlainAdmission

from skep.config.keys import Priority
from skep.gateway.admission import Admission
from skep.gateway.values import AdmissionLimits, Arrival, Forward, Reject, ReplicaSpec, Withdraw


def spec(name, slots=2, model="m", **more):
    return ReplicaSpec(name, model, more.pop("url", f"http://{name}"), slots, **more)


class Walk:
    """The same events, drawn by chance, for both deciders; what they answer is compared, and what is read of them.

    Drawn from a seed and not one by one: a difference needs a queue, flows under way and a replica in trouble at once,
    and hundreds of events to come there.
    """

    def __init__(self, seed):
        self.rng = rng = Random(seed)
        limits = AdmissionLimits(
            max_queue=rng.choice([3, 20, 200]), max_wait_s=rng.choice([3, 30]), attempts=rng.choice([1, 2, 3]),
            dead_after_s=6.0, aging_s=rng.choice([1, 30]),
        )  # fmt: skip
        self.now, self.count = 0.0, 0
        self.quick, self.plain = Admission(limits), PlainAdmission(limits)
        self.running, self.waiting = set(), set()
        self.size, self.classes_matter = rng.choice([1, 2, 4, 8, 12]), rng.random() < 0.4
        self.table, self.known = (), []
        self.another_table()

    def go(self, events):
        happens = {
            self.arrive: 40, self.finish: 22, self.hang_up: 4, self.leave_the_queue: 3, self.fail: 6, self.tick: 10,
            self.engine_speaks: 5, self.check: 5, self.another_table: 2, self.shares_change: 1,
        }  # fmt: skip
        for event in self.rng.choices(list(happens), list(happens.values()), k=events):
            self.now += self.rng.choice([0, 0, 0, 0.01, 0.1, 0.5])
            event()
            assert repr(self.quick) == repr(self.plain)
            assert self.quick.in_flight == self.plain.in_flight == len(self.running)
        assert self.quick.to_confirm() == self.plain.to_confirm()
        assert self.quick.anywhere("m", self.now) == self.plain.anywhere("m", self.now)

    def both(self, event, *words, **more):
        answer = getattr(self.quick, event)(*words, **more)
        assert answer == getattr(self.plain, event)(*words, **more)
        for action in answer or ():
            name = action.request_id
            self.running.discard(name)
            self.waiting.discard(name)
            if isinstance(action, Forward):
                self.running.add(name)
            elif isinstance(action, Withdraw):
                self.waiting.add(name)
                self.both("gave_up", name, self.now)

    def take_from(self, names):
        """One of them, if there is one."""
        some = [self.rng.choice(sorted(names))] if names else []
        names.difference_update(some)
        return some

    def arrive(self):
        self.count += 1
        draw = self.rng.choice
        arrival = Arrival(
            f"q{self.count}", draw(["m"] * 9 + ["k"]), draw(list(Priority)), draw("abcdef"), draw([None, *range(12)]),
            draw([0, 0, 10, 500]), draw([None, None, 1.0]),
        )  # fmt: skip
        self.waiting.add(arrival.request_id)
        self.both("arrive", arrival, self.now)

    def finish(self):
        answered, complaint = self.rng.random() < 0.8, self.rng.random() < 0.1
        for name in self.take_from(self.running):
            if answered:
                self.both("answering", name, self.now, complaint=complaint)
            self.both("finished", name, self.now)

    def hang_up(self):
        for name in self.take_from(self.running):
            self.both("hung_up", name, self.now)

    def leave_the_queue(self):
        for name in self.take_from(self.waiting):
            self.both("hung_up", name, self.now)

    def fail(self):
        how = self.rng.choice(["failed", "uncounted", "gave_up", "turned away", "refused"])
        for name in self.take_from(self.running):
            self.waiting.add(name)
            assert self.quick.may_retry(name, self.now) == self.plain.may_retry(name, self.now)
            if how in ("turned away", "refused"):
                self.both("turned_away", name, self.now, complaint=how == "refused")
            elif how == "gave_up":
                self.both("gave_up", name, self.now)
            else:
                self.both("failed", name, self.now, counts=how == "failed")

    def tick(self):
        self.both("tick", self.now)

    def engine_speaks(self):
        meant, busy = self.rng.choice(self.known), self.rng.randrange(4)
        self.both("engine_busy", meant, busy, self.now, self.now)

    def check(self):
        meant, ok = self.rng.choice(self.known), self.rng.random() < 0.6
        self.both("checked", meant, ok, self.now)

    def another_table(self):
        rng, table = self.rng, []
        for number in range(self.size):
            slots, name = rng.choice([1, 2, 3, 5]), f"r{number}"
            more = {"reserve": rng.randrange(slots), "soft_slots": rng.choice([None, 1, 2])}
            if rng.random() < 0.85 or not number:
                table.append(spec(
                    name, slots, rng.choice("mmk") if number % 3 == 2 else "m", confirms=rng.choice(["", "", "slots"]),
                    url=f"http://{name}/{rng.random() < 0.05}", draining=rng.random() < 0.05,
                    release_bound_s=rng.choice([1.0, 4.0]), **(more if self.classes_matter else {}),
                ))  # fmt: skip
        rng.shuffle(table)
        self.set_table(table)

    def shares_change(self):
        more = [self.rng.choice([0, 0, -1, 1]) for _ in self.table]
        changed = [max(one.reserve + 1, one.slots + n) for one, n in zip(self.table, more, strict=True)]
        self.set_table([replace(one, slots=slots) for one, slots in zip(self.table, changed, strict=True)])

    def set_table(self, table):
        self.table = tuple(table)
        self.known = [*self.known, *table][-60:]
        self.both("set_replicas", self.table, self.now, models=("m",))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_both_decide_alike_whatever_happens(seed):
    """Arrivals, ends, hang-ups, failures, breakers, draining, releases, shares, reserved and soft slots."""
    Walk(seed).go(600)


def test_a_replica_without_slots_gets_nothing_and_hurts_nobody():
    decider = Admission()
    decider.set_replicas((spec("r0", 0), spec("r1", 1)), 0.0)
    assert [action.replica.name for action in decider.arrive(Arrival("a", "m", conversation=1), 0.0)] == ["r1"]
    assert decider.arrive(Arrival("b", "m", conversation=2), 0.0) == []
    assert decider.anywhere("m", 0.0) is not None
    (action,) = decider.set_replicas((spec("r0", 1), spec("r1", 1)), 1.0)
    assert (action.request_id, action.replica.name) == ("b", "r0")
    decider.set_replicas((spec("r0", 0), spec("r1", 0)), 1.0)
    (full,) = [*decider.arrive(Arrival("c", "m", max_wait_s=1.0), 1.0), *decider.tick(3.0)]
    assert isinstance(full, Reject)
