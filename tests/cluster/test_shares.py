"""Slots of replicas shared by doors: the limit holds over all of them, whatever comes in which order."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.cluster.dividing import divided, seated, spread
from skep.cluster.shares import LEASE_S, TURN_S, Shares
from skep.cluster.wants import Wants

REPLICAS = {"r0": ("m", 4), "r1": ("m", 4), "r2": ("n", 3)}


class Door:
    """A gateway as the ledger sees it: it keeps to the newest answer, and what is under way ends in its own time."""

    def __init__(self, name):
        self.name = name
        self.holds = {}
        self.busy = {}
        self.queued = {}

    def renew(self, shares, now):
        answer = shares.renew(self.name, Wants(busy=dict(self.busy), holds=self.holds, queued=self.queued), now)
        self.holds = dict(answer.shares)
        return answer

    def use(self, replica, wanted):
        """Take slots up to its share; what is above it already is only let go of."""
        held, now = self.holds.get(replica, 0), self.busy.get(replica, 0)
        self.busy[replica] = wanted if wanted <= now else max(now, min(held, wanted))


def made(replicas=None):
    shares = Shares()
    shares.set_replicas(REPLICAS if replicas is None else replicas)
    return shares


def test_one_door_alone_has_every_slot_at_once():
    answer = Door("a").renew(made(), 0.0)
    assert answer.shares == {"r0": 4, "r1": 4, "r2": 3}
    assert answer.doors == 1


def test_a_second_door_gets_its_half_when_the_first_keeps_to_less():
    shares, a, b = made(), Door("a"), Door("b")
    a.renew(shares, 0.0)
    assert set(b.renew(shares, 0.1).shares.values()) == {0}, "the first was not told yet"
    a.renew(shares, 0.5)
    assert a.holds == {"r0": 2, "r1": 2, "r2": 2}  # of 4, 4 and 3
    assert set(b.renew(shares, 0.6).shares.values()) == {0}, "the first has not said that it keeps to it"
    a.renew(shares, 0.9)
    b.renew(shares, 1.0)
    assert all(a.holds[name] + b.holds[name] == slots for name, (_, slots) in REPLICAS.items())


def test_a_slot_that_is_in_use_stays_until_it_is_free():
    shares, a, b = made({"r0": ("m", 4)}), Door("a"), Door("b")
    a.renew(shares, 0.0)
    a.use("r0", 4)
    b.renew(shares, 0.1)
    for now in (0.5, 1.0, 1.5):
        a.renew(shares, now)
        assert b.renew(shares, now).shares["r0"] == 0
    a.use("r0", 2)
    a.renew(shares, 2.0)
    assert b.renew(shares, 2.1).shares["r0"] == 2


def test_slots_that_a_new_door_counts_as_busy_are_not_its_own():
    """A gateway counts every slot of a replica that it does not know as taken, until the engine has said."""
    shares, a, b = made({"r0": ("m", 2)}), Door("a"), Door("b")
    a.renew(shares, 0.0)
    b.busy = {"r0": 1}
    assert b.renew(shares, 0.1).shares["r0"] == 0


def test_a_dead_door_s_share_returns_when_its_lease_is_over():
    shares, a, b = made({"r0": ("m", 4)}), Door("a"), Door("b")
    for now in (0.0, 0.4, 0.8, 1.2):
        a.renew(shares, now)
        b.renew(shares, now)
    assert b.holds["r0"] == 2
    assert b.renew(shares, 1.2 + LEASE_S).shares["r0"] == 2
    answer = b.renew(shares, 1.3 + LEASE_S)
    assert (answer.shares["r0"], answer.doors) == (4, 1)


def test_idle_slots_go_to_the_door_where_requests_wait():
    shares, a, b = made({"r0": ("m", 8)}), Door("a"), Door("b")
    for now in range(4):
        a.renew(shares, now)
        b.renew(shares, now)
    b.use("r0", 4)
    b.queued = {"m": 20}
    for now in range(4, 8):
        a.renew(shares, now)
        b.renew(shares, now)
        b.use("r0", 8)
    assert b.busy["r0"] > 4
    assert a.holds["r0"] + b.holds["r0"] == 8


def test_a_ledger_started_anew_gives_nobody_what_another_holds():
    before, a, b = made({"r0": ("m", 4)}), Door("a"), Door("b")
    for now in range(4):
        a.renew(before, now)
        b.renew(before, now)
    fresh = made({"r0": ("m", 4)})
    a.renew(fresh, 5.0)
    b.renew(fresh, 5.1)
    assert a.holds["r0"] + b.holds["r0"] <= 4
    a.renew(fresh, 5.2 + LEASE_S / 2)
    assert b.renew(fresh, 5.1 + LEASE_S).shares["r0"] == 2, "both are there: as before"


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(("renew", "use", "queue", "die", "slots", "wait")), st.integers(0, 9)
    ),
    max_size=80,
)


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_the_slot_limit_holds_over_all_doors_whatever_happens(events):
    """Where slots are lowered, the limit holds again as soon as what was under way above it has ended."""
    shares, doors, now, slots = made({"r0": ("m", 4), "r1": ("m", 3)}), {}, 0.0, {"r0": 4, "r1": 3}
    for name, what, amount in events:
        now += 0.1
        door = doors.get(name)
        if what == "wait":
            now += amount
            for other in list(doors):  # a door that could not renew in time lets go: nothing is under way any more
                if now - doors[other].renewed_at > LEASE_S:
                    del doors[other]
        elif what == "die":
            doors.pop(name, None)
            shares.leave(name)
        elif what == "renew":
            door = doors.setdefault(name, Door(name))
            door.renew(shares, now)
            door.renewed_at = now
        elif door is not None and what == "use":
            door.use(f"r{amount % 2}", amount)
        elif door is not None and what == "queue":
            door.queued = {"m": amount}
        for replica, limit in slots.items():
            used = sum(max(each.holds.get(replica, 0), each.busy.get(replica, 0)) for each in doors.values())
            assert used <= limit, (replica, doors)


@given(st.integers(0, 200), st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 100), min_size=1))
def test_every_slot_is_given_to_somebody_and_nobody_lacks_while_another_has_more_than_it_wants(slots, wanted):
    given_out = divided(slots, wanted)
    assert sum(given_out.values()) == slots
    lacking = [name for name in wanted if given_out[name] < wanted[name]]
    for name in lacking:
        assert all(given_out[other] <= given_out[name] + 1 or given_out[other] <= wanted[other] for other in wanted)


@given(
    st.lists(st.integers(1, 32), min_size=1, max_size=12),
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
)
def test_each_replica_s_slots_are_spread_over_the_doors_without_rest(slots, wants):
    replicas = {f"r{n}": count for n, count in enumerate(slots)}
    given_out = divided(sum(slots), {f"d{n}": count for n, count in enumerate(wants)})
    columns = spread(replicas, given_out)
    for name, count in replicas.items():
        parts = [column[name] for column in columns.values()]
        assert sum(parts) == count
        assert min(parts) >= 0
    for door, amount in given_out.items():
        assert abs(sum(columns.get(door, {}).values()) - amount) <= len(replicas)


@pytest.mark.parametrize(("many", "slots"), [(3, 2), (3, 1), (8, 2), (13, 3)])
def test_where_doors_are_more_than_slots_each_gets_its_turn(many, slots):
    """Once, the turn went between the first ones by name, and the others never had it."""
    shares, doors = made({"r0": ("m", slots)}), [Door(f"d{number:02}") for number in range(many)]
    had = Counter()
    steps = int(4 * TURN_S * many / slots / 0.4)
    for step in range(steps):
        for door in doors:
            door.queued = {"m": 5}
            door.renew(shares, 0.4 * step)
            had[door.name] += bool(door.holds.get("r0"))
        assert sum(door.holds.get("r0", 0) for door in doors) <= slots
    even = steps * slots / many
    assert all(0.6 * even < had[door.name] < 1.2 * even for door in doors), (even, had)


class Busy:
    """Doors where requests always wait, each as long as `lasts_s`, and how long each door was without one at most."""

    def __init__(self, shares, many, replicas, lasts_s):
        self.shares, self.slots, self.lasts_s = shares, dict(replicas), lasts_s
        self.doors = [Door(f"d{number}") for number in range(many)]
        self.ends = {(door.name, replica): [] for door in self.doors for replica in replicas}
        self.served, self.without_s, self.had_at = Counter(), Counter(), Counter()

    def run(self, seconds):
        for step in range(int(seconds / 0.2)):
            now = step * 0.2
            for number, door in enumerate(self.doors):
                self.work(door, now)
                if step % 2 == number % 2:
                    door.queued = {"m": 5}
                    door.renew(self.shares, now)
            for replica, slots in self.slots.items():
                assert sum(len(self.ends[door.name, replica]) for door in self.doors) <= slots

    def work(self, door, now):
        for replica in self.slots:
            ends = self.ends[door.name, replica] = [end for end in self.ends[door.name, replica] if end > now]
            more = max(0, door.holds.get(replica, 0) - len(ends))
            ends += [now + self.lasts_s] * more
            self.served[door.name] += more
            door.busy[replica] = len(ends)
        self.had_at[door.name] = now if any(door.busy.values()) else self.had_at[door.name]
        self.without_s[door.name] = max(self.without_s[door.name], now - self.had_at[door.name])


@pytest.mark.parametrize(
    ("many", "replicas", "slots", "lasts_s"), [(3, 1, 1, 15.0), (3, 1, 1, 30.0), (3, 2, 1, 30.0), (5, 2, 2, 15.0)]
)
def test_a_turn_is_not_over_before_the_slot_was_free(many, replicas, slots, lasts_s):
    """Once, turns went by while a long answer had the slot, and some doors never had one."""
    names = {f"r{number}": slots for number in range(replicas)}
    play = Busy(made(dict.fromkeys(names, ("m", slots))), many, names, lasts_s)
    play.run(300.0)
    others = -(-(many - replicas * slots) // (replicas * slots))
    assert max(play.without_s.values()) < (others + 1) * lasts_s + TURN_S, play.without_s
    even = 300.0 / lasts_s * replicas * slots / many
    assert all(0.7 * even < count < 1.3 * even for count in play.served.values()), (even, play.served)


@pytest.mark.parametrize(("many", "slots"), [(2, 1), (8, 4), (3, 2)])
def test_what_does_not_serve_is_nobody_s_turn(many, slots):
    """Once, the slots of a replica that was away were the whole part of some doors."""
    shares = made({})
    shares.put("r0", "m", slots)
    shares.put("r1", "m", slots, serves=False)
    play = Busy(shares, many, {"r0": slots}, 2.0)
    play.run(60.0)
    even = sum(play.served.values()) / many
    assert all(0.6 * even < play.served[door.name] < 1.4 * even for door in play.doors), play.served
    shares.put("r1", "m", slots)
    for step in range(8):
        for door in play.doors:
            door.busy = {}
            door.renew(shares, 61.0 + 0.1 * step)
    assert sum(door.holds["r0"] + door.holds["r1"] for door in play.doors) == 2 * slots
    assert all(door.holds["r0"] + door.holds["r1"] for door in play.doors)


def test_a_slot_for_each_that_asks_is_had_at_once_also_where_doors_are_more():
    shares, doors = made({"r0": ("m", 3)}), [Door(name) for name in "abcd"]

    def play(began, asks):
        for step in range(8):
            for door in doors:
                door.busy = {}  # answers are short
                door.use("r0", 3 if door.name == "a" else 0)
                door.queued = {"m": 9} if door.name in asks else {}
                door.renew(shares, began + 0.1 * step)

    play(0.0, "a")
    play(1.0, "ad")
    play(2.0, "a")
    assert doors[0].holds == {"r0": 3}
    play(3.0, "ab")
    assert doors[1].holds["r0"] == 1


@given(
    st.dictionaries(st.sampled_from(("r0", "r1", "r2")), st.integers(0, 3), min_size=1),
    st.lists(st.sampled_from(("r0", "r1", "r2", None)), min_size=9, max_size=12),
)
@settings(max_examples=30)
def test_who_has_one_slot_keeps_its_place(slots, places):
    """As far as there is room, and every slot is somebody's."""
    names = [f"d{number}" for number in range(len(places))]
    given_out = divided(sum(slots.values()), dict.fromkeys(names, 1))
    was = {name: place if place in slots else None for name, place in zip(names, places, strict=True)}
    rows = seated(slots, given_out, was)
    assert Counter(place for row in rows.values() for place in row) == Counter(slots)
    assert set(rows) == {name for name in names if given_out[name]}
    for place, count in slots.items():
        stay = sum(was[name] == place for name in rows)
        assert sum(was[name] == place and place in rows[name] for name in rows) == min(stay, count)


def test_where_doors_are_more_than_slots_an_idle_one_is_had_before_the_turn():
    shares, doors = made({"r0": ("m", 1)}), [Door(name) for name in "abc"]
    for step in range(4):
        for door in doors:
            door.queued = {"m": 1} if door.name == "c" else {}
            door.renew(shares, 0.1 * step)
    assert doors[2].holds == {"r0": 1}
    for step in range(4, 8):  # a second later, and long before its turn
        for door in doors:
            door.queued = {"m": 1} if door.name == "b" else {}
            door.renew(shares, 0.1 * step)
    assert doors[1].holds == {"r0": 1}


def test_one_door_alone_has_everything_at_once_also_while_many_would_rest():
    shares, doors = made({f"r{number}": ("m", 4) for number in range(50)}), [Door(f"d{number}") for number in range(9)]
    for door in doors:
        door.renew(shares, 1.0)
    for door in doors[1:]:
        shares.leave(door.name)
    doors[0].renew(shares, 1.0)
    assert set(doors[0].holds.values()) == {4}


def test_a_door_that_comes_back_too_late_lets_go_of_what_others_were_given():
    shares, a, b = made({"r0": ("m", 8)}), Door("a"), Door("b")
    for now in range(4):
        a.renew(shares, now)
        b.renew(shares, now)
    for now in range(4, 16):
        b.renew(shares, now)
    assert b.holds["r0"] == 8
    assert a.renew(shares, 16.0).shares["r0"] == 0


def test_a_door_at_rest_keeps_its_part_while_another_has_all_that_it_wants():
    """Else whoever is done first finds half of its slots gone when it is asked again."""
    assert divided(16, {"a": 0, "b": 8}) == {"a": 8, "b": 8}
    assert divided(16, {"a": 0, "b": 12}) == {"a": 4, "b": 12}
    assert divided(9, {"a": 0, "b": 2, "c": 3}) == {"a": 3, "b": 3, "c": 3}
