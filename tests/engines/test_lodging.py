"""Who is loaded and who makes room: the decider alone, without processes or clocks."""

import random

import pytest

from skep.engines.base import Launch
from skep.supervisor.eviction import (
    FIRST_BACK_OFF_S,
    LONGEST_BACK_OFF_S,
    POLL_S,
    POLL_SOON_S,
    DrainModel,
    Eviction,
    LoadModel,
    MemoryBudget,
    ModelSpec,
    ModelUsage,
    ReadmitModel,
    RefuseModel,
    Residency,
    UnloadModel,
    model_specs,
)

IDLE = ModelUsage(busy=0, queued=0, idle_s=100.0)
BUSY = ModelUsage(busy=1, queued=0, idle_s=None)
WAITING = ModelUsage(busy=0, queued=1, idle_s=None)


def two(need=6, have=10, **fields):
    guests = [ModelSpec("a", {"gpu0": need}, **fields), ModelSpec("b", {"gpu0": need}, **fields)]
    return Eviction(guests, MemoryBudget({"gpu0": have}))


def loaded(lodging, model, now=0.0):
    assert lodging.wanted(model, now) == [LoadModel(model)]
    assert lodging.loaded(model, now) == []


def test_the_first_request_loads_a_model_and_the_next_ones_do_nothing():
    lodging = two()
    assert lodging.wanted("a", 0.0) == [LoadModel("a")]
    assert lodging.wanted("a", 1.0) == []
    assert lodging.residency("a") is Residency.LOADING
    assert lodging.loaded("a", 2.0) == []
    assert lodging.loaded("a", 2.0) == []
    assert lodging.wanted("a", 3.0) == []
    assert lodging.poll_s is None


def test_what_is_not_on_demand_is_loaded_at_the_start():
    lodging = Eviction([ModelSpec("a", on_demand=False), ModelSpec("b")])
    assert lodging.begin(0.0) == [LoadModel("a")]
    assert lodging.begin(0.0) == []


def test_two_that_fit_are_loaded_together():
    lodging = two(need=5)
    loaded(lodging, "a")
    assert lodging.wanted("b", 1.0) == [LoadModel("b")]


def test_an_idle_model_gives_way_at_once_but_is_drained_first():
    lodging = two()
    loaded(lodging, "a")
    assert lodging.wanted("b", 100.0) == [DrainModel("a")]  # long loaded; whether it is idle nobody knows yet
    assert lodging.told({"a": IDLE}, 100.0, 100.1) == []  # asked before it was drained: a request may have come since
    assert lodging.told({"a": IDLE, "b": WAITING}, 100.2, 100.3) == [UnloadModel("a")]
    assert lodging.told({"a": IDLE, "b": WAITING}, 100.4, 100.5) == []
    assert lodging.gone("a", 101.0) == [LoadModel("b")]
    assert lodging.gone("a", 101.0) == []


def test_a_busy_model_stays_for_its_turn_and_then_finishes_its_answers():
    lodging = two()
    loaded(lodging, "a")
    assert lodging.wanted("b", 1.0) == []
    assert lodging.told({"a": BUSY, "b": WAITING}, 2.0, 2.0) == []
    assert lodging.told({"a": BUSY, "b": WAITING}, 30.0, 30.0) == [DrainModel("a")]
    assert lodging.told({"a": BUSY, "b": WAITING}, 31.0, 31.0) == []
    assert lodging.told({"a": IDLE, "b": WAITING}, 99.0, 99.0) == [UnloadModel("a")]


def test_a_gap_between_two_requests_is_no_idleness():
    lodging = two()
    loaded(lodging, "a")
    lodging.wanted("b", 5.0)
    assert lodging.told({"a": ModelUsage(0, 0, 0.3), "b": WAITING}, 6.0, 6.0) == []
    assert lodging.told({"a": ModelUsage(0, 0, 4.3), "b": WAITING}, 10.0, 10.0) == []  # an agent that thinks
    assert lodging.told({"a": ModelUsage(0, 0, 5.3), "b": WAITING}, 11.0, 11.0) == [DrainModel("a")]


def test_what_was_not_used_since_it_was_loaded_is_idle_soon():
    lodging = two()
    loaded(lodging, "a")
    lodging.wanted("b", 0.5)
    assert lodging.told({"a": ModelUsage(0, 0, 9.0), "b": WAITING}, 0.9, 0.9) == []
    assert lodging.told({"a": ModelUsage(0, 0, 9.2), "b": WAITING}, 1.1, 1.1) == [DrainModel("a")]


def test_a_pause_ends_a_turn_that_is_over():
    lodging = two()
    loaded(lodging, "a")
    lodging.wanted("b", 29.0)
    assert lodging.told({"a": ModelUsage(0, 0, 0.2), "b": WAITING}, 29.9, 29.9) == []
    assert lodging.told({"a": ModelUsage(0, 0, 0.4), "b": WAITING}, 30.1, 30.1) == [DrainModel("a")]


def test_of_idle_models_the_one_unused_longest_goes():
    guests = [ModelSpec(name, {"gpu0": 4}) for name in "abc"]
    lodging = Eviction(guests, MemoryBudget({"gpu0": 8}))
    loaded(lodging, "a")
    loaded(lodging, "b")
    lodging.wanted("c", 20.0)
    figures = {"a": ModelUsage(0, 0, 3.0), "b": ModelUsage(0, 0, 9.0), "c": WAITING}
    assert lodging.told(figures, 21.0, 21.0) == [DrainModel("b")]


def test_only_what_is_in_the_way_goes():
    guests = [ModelSpec("a", {"gpu0": 9}), ModelSpec("b", {"gpu1": 9}), ModelSpec("c", {"gpu1": 9})]
    lodging = Eviction(guests, MemoryBudget({"gpu0": 10, "gpu1": 10}))
    loaded(lodging, "a")
    loaded(lodging, "b")
    assert lodging.wanted("c", 100.0) == [DrainModel("b")]


def test_a_small_one_stays_where_a_larger_one_alone_makes_room():
    guests = [ModelSpec("small", {"ram": 2}), ModelSpec("large", {"ram": 8}), ModelSpec("new", {"ram": 7})]
    lodging = Eviction(guests, MemoryBudget({"ram": 10}))
    loaded(lodging, "small", 0.0)
    loaded(lodging, "large", 1.0)
    assert lodging.wanted("new", 100.0) == [DrainModel("large")]


def test_a_pinned_model_gives_way_to_nobody():
    lodging = Eviction([ModelSpec("a", {"ram": 6}, pinned=True), ModelSpec("b", {"ram": 6})], MemoryBudget({"ram": 10}))
    loaded(lodging, "a")
    (refused,) = lodging.wanted("b", 100.0)
    assert isinstance(refused, RefuseModel)
    assert "`b` needs 6 B of ram, which has 4 B beside the pinned `a`; unpin" in refused.why


def test_what_can_never_fit_is_refused_at_once_with_what_to_change():
    lodging = two(need=20)
    (refused,) = lodging.wanted("a", 0.0)
    assert "`a` needs 20 B of gpu0, which has 10 B; take a smaller quantization" in refused.why
    assert lodging.residency("a") is Residency.OUT
    assert not lodging.is_queued("a")


def test_no_more_models_than_allowed_are_loaded():
    lodging = Eviction([ModelSpec("a"), ModelSpec("b"), ModelSpec("c", pinned=True)], MemoryBudget(max_loaded=2))
    loaded(lodging, "c")
    loaded(lodging, "a")
    assert lodging.wanted("b", 100.0) == [DrainModel("a")]
    assert "raise `max_loaded`" in Eviction([ModelSpec("a"), ModelSpec("p", pinned=True, on_demand=False)],
                                           MemoryBudget(max_loaded=1)).never("a")  # fmt: skip


def test_two_of_unknown_size_do_not_share_a_card():
    guests = [ModelSpec(name, unknown=frozenset({"gpu0"})) for name in "ab"]
    lodging = Eviction(
        [*guests, ModelSpec("c", unknown=frozenset({"gpu1"})), ModelSpec("d", {"gpu0": 1}), ModelSpec("e", {"ram": 1})]
    )
    loaded(lodging, "a")
    loaded(lodging, "c")
    loaded(lodging, "e")
    assert lodging.wanted("b", 100.0) == [DrainModel("a")]
    assert lodging.wanted("d", 101.0) == []  # of known size, and still nobody knows what the other one leaves
    pinned = Eviction([ModelSpec("p", {"gpu0": 1}, pinned=True, on_demand=False), guests[0]])
    assert "`a` and the pinned `p` share gpu0; give `room`" in pinned.never("a")


def test_a_model_goes_after_its_time_without_a_request():
    lodging = Eviction([ModelSpec("a", idle_unload_s=60.0), ModelSpec("p", idle_unload_s=60.0, pinned=True)])
    loaded(lodging, "a")
    loaded(lodging, "p")
    assert lodging.poll_s == POLL_S
    assert lodging.told({"a": BUSY}, 80.0, 80.0) == []
    assert lodging.told({"a": ModelUsage(0, 0, 30.0), "p": IDLE}, 120.0, 120.0) == []
    assert lodging.told({"a": ModelUsage(0, 0, 61.0), "p": IDLE}, 151.0, 151.0) == [DrainModel("a")]
    assert lodging.poll_s == POLL_SOON_S
    assert lodging.told({"a": ModelUsage(0, 0, 62.0)}, 152.0, 152.0) == [UnloadModel("a")]


def test_a_request_that_comes_while_an_idle_model_drains_keeps_it():
    lodging = Eviction([ModelSpec("a", idle_unload_s=60.0)])
    loaded(lodging, "a")
    assert lodging.told({"a": IDLE}, 100.0, 100.0) == [DrainModel("a")]
    assert lodging.wanted("a", 100.1) == [ReadmitModel("a")]
    assert lodging.residency("a") is Residency.IN
    assert not lodging.is_queued("a")


def test_when_nobody_waits_any_more_the_model_that_drained_serves_again():
    lodging = two()
    loaded(lodging, "a")
    assert lodging.wanted("b", 50.0) == [DrainModel("a")]
    assert lodging.told({"a": BUSY, "b": ModelUsage(0, 0, None)}, 51.0, 51.0) == [ReadmitModel("a")]


def test_a_model_asked_for_by_the_user_waits_in_line_without_a_request():
    lodging = two()
    loaded(lodging, "a")
    assert lodging.wanted("b", 1.0, asked=True) == []
    assert lodging.told({"a": BUSY, "b": ModelUsage(0, 0, None)}, 2.0, 2.0) == []
    assert lodging.told({"a": BUSY, "b": ModelUsage(0, 0, None)}, 31.0, 31.0) == [DrainModel("a")]


def test_what_the_user_unloads_goes_when_its_answers_are_finished_and_comes_back_with_a_request():
    lodging = two(pinned=True)
    loaded(lodging, "a")
    assert lodging.unload("a", 1.0) == [DrainModel("a")]
    assert lodging.unload("a", 1.0) == []
    assert lodging.wanted("a", 1.5) == []
    assert lodging.told({"a": ModelUsage(1, 1, None)}, 2.0, 2.0) == []
    assert lodging.told({"a": ModelUsage(0, 1, 0.1)}, 3.0, 3.0) == [UnloadModel("a")]
    assert lodging.gone("a", 4.0) == [LoadModel("a")]


def test_a_user_in_a_hurry_does_not_wait_for_answers():
    lodging = two()
    loaded(lodging, "a")
    lodging.unload("a", 1.0)
    lodging.told({"a": BUSY}, 2.0, 2.0)
    assert lodging.hurry("a", 3.0) == [UnloadModel("a")]
    assert lodging.hurry("a", 3.0) == []


def test_a_load_under_way_can_be_broken_off():
    lodging = two()
    lodging.wanted("a", 0.0)
    assert lodging.unload("a", 1.0) == [UnloadModel("a")]
    assert lodging.loaded("a", 1.0) == []
    assert lodging.gone("a", 2.0) == []
    assert lodging.residency("a") is Residency.OUT


def test_a_load_that_failed_is_told_once_and_tried_again_after_a_while():
    lodging = two()
    lodging.wanted("a", 0.0)
    assert lodging.failed("a", "no memory", 1.0) == [RefuseModel("a", "no memory", FIRST_BACK_OFF_S), UnloadModel("a")]
    assert lodging.failed("a", "no memory", 1.0) == []
    assert lodging.gone("a", 2.0) == []
    assert lodging.wanted("a", 5.0) == [RefuseModel("a", "no memory", 6.0)]
    assert lodging.wanted("a", 11.0) == [LoadModel("a")]
    for expected in (20.0, 40.0, 80.0, 160.0, 300.0, LONGEST_BACK_OFF_S):
        refused, _ = lodging.failed("a", "no memory", 1000.0)
        assert refused.retry_after_s == expected
        lodging.gone("a", 1000.0)
        assert lodging.wanted("a", 1001.0, asked=True) == [LoadModel("a")]  # the user need not wait


def test_a_load_by_hand_that_succeeds_ends_the_back_off():
    """Fetched, failed, mended, loaded by hand and unloaded again: the old reason holds no more."""
    lodging = two()
    lodging.wanted("a", 0.0)
    lodging.failed("a", "no memory", 1.0)
    lodging.gone("a", 1.5)
    assert lodging.wanted("a", 2.0, asked=True) == [LoadModel("a")]
    lodging.loaded("a", 3.0)
    lodging.unload("a", 4.0)
    assert lodging.told({"a": IDLE}, 4.5, 4.5) == [UnloadModel("a")]
    lodging.gone("a", 5.0)
    assert lodging.wanted("a", 5.5) == [LoadModel("a")]


def test_what_made_room_once_is_tried_again_after_a_failure_like_those_on_demand():
    lodging = Eviction([ModelSpec("a", on_demand=False)])
    lodging.begin(0.0)
    lodging.loaded("a", 1.0)
    lodging.unload("a", 2.0)
    lodging.told({"a": IDLE}, 3.0, 3.0)
    lodging.gone("a", 4.0)
    lodging.wanted("a", 5.0)
    assert lodging.failed("a", "no memory", 6.0) == [RefuseModel("a", "no memory", FIRST_BACK_OFF_S), UnloadModel("a")]
    lodging.gone("a", 7.0)
    assert lodging.wanted("a", 16.5) == [LoadModel("a")]


def test_a_pinned_one_that_the_user_swaps_is_in_nobodys_way():
    lodging = Eviction([ModelSpec("a", {"ram": 6}, pinned=True), ModelSpec("b", {"ram": 6})], MemoryBudget({"ram": 10}))
    loaded(lodging, "a")
    assert lodging.never("b") is not None
    assert lodging.never("b", without="a") is None
    assert lodging.unload("a", 1.0) == [DrainModel("a")]
    assert lodging.wanted("b", 1.1, asked=True) == []  # it waits, and is not refused
    assert lodging.told({"a": IDLE, "b": WAITING}, 2.0, 2.0) == [UnloadModel("a")]
    assert lodging.gone("a", 3.0) == [LoadModel("b")]


def test_what_a_reload_ends_while_it_drains_is_gone():
    lodging = two()
    loaded(lodging, "a")
    assert lodging.wanted("b", 50.0) == [DrainModel("a")]
    assert lodging.gone("a", 51.0) == [LoadModel("b")]


def test_one_that_failed_and_is_not_on_demand_is_left_to_the_user():
    lodging = Eviction([ModelSpec("a", on_demand=False)])
    lodging.begin(0.0)
    lodging.failed("a", "no memory", 1.0)
    assert lodging.wanted("a", 100.0) == []
    assert lodging.wanted("a", 100.0, asked=True) == [LoadModel("a")]


def test_whoever_is_later_in_line_does_not_take_the_room_of_an_earlier_one():
    guests = [ModelSpec("a", {"ram": 6}), ModelSpec("large", {"ram": 9}), ModelSpec("small", {"ram": 2})]
    lodging = Eviction(guests, MemoryBudget({"ram": 10}))
    loaded(lodging, "a")
    assert lodging.wanted("large", 1.0) == []
    assert lodging.wanted("small", 2.0) == []
    figures = {"a": BUSY, "large": WAITING, "small": WAITING}
    assert lodging.told(figures, 31.0, 31.0) == [DrainModel("a")]
    lodging.told({**figures, "a": IDLE}, 32.0, 32.0)
    assert lodging.gone("a", 33.0) == [LoadModel("large")]


def test_after_a_reload_those_that_stay_keep_their_state():
    lodging = two()
    loaded(lodging, "a")
    assert lodging.become([ModelSpec("a", {"gpu0": 6}), ModelSpec("c")], MemoryBudget({"gpu0": 20}), 1.0) == []
    assert (lodging.residency("a"), lodging.residency("c"), lodging.models) == (Residency.IN, Residency.OUT, ("a", "c"))


def test_replicas_of_one_model_are_one_guest():
    launch = {"engine": "fake", "weights": None, "slots": 1, "context_tokens": 10, "threads": 1, "on_demand": True}
    launches = [
        Launch("m-0", model="m", room=(("gpu0", 5), ("ram", 1)), gpus=(0,), **launch),
        Launch("m-1", model="m", room=(("gpu1", 5), ("ram", 1)), gpus=(1,), **launch),
        Launch("n-0", model="n", gpus=(1,), idle_unload_s=9.0, **launch),
        Launch("o-0", model="o", pinned=True, **launch),
        Launch("far", model="p", url="http://x:1", **launch),
    ]
    m, n, o = model_specs(launches, {"gpu0": 8, "gpu1": 8, "ram": 9})
    assert (m.room, m.unknown) == ({"gpu0": 5, "ram": 2, "gpu1": 5}, frozenset())
    assert (n.unknown, n.idle_unload_s) == ({"gpu1"}, 9.0)
    assert (o.unknown, o.pinned) == ({"gpu0", "gpu1"}, True)


class World:
    """Random models in random demand, with engines that take their time; checks what must always hold."""

    def __init__(self, chance, guests, house, flaky=()):
        self.chance, self.now = chance, 0.0
        self.guests = {guest.model: guest for guest in guests}
        self.memory_budget, self.flaky = house, flaky
        self.lodging = Eviction(self.guests.values(), self.memory_budget)
        self.queued = dict.fromkeys(self.guests, 0)
        self.busy = {name: [] for name in self.guests}  # ends of answers
        self.ended = dict.fromkeys(self.guests, None)
        self.state = dict.fromkeys(self.guests, "out")
        self.held = set()
        self.due = []  # (time, event, model)
        self.waited = {}  # since when a model's requests wait

    @classmethod
    def at_random(cls, chance):
        places = ["gpu0", "gpu1", "ram"]
        have = {place: chance.randint(8, 16) for place in places}
        guests = []
        for name in "abcde"[: chance.randint(2, 5)]:
            room = {place: chance.randint(1, 10) for place in chance.sample(places, chance.randint(0, 2))}
            unknown = frozenset(chance.sample(places[:2], 1)) if not room else frozenset()
            idle = chance.choice([None, 5.0])
            guests.append(ModelSpec(name, room, unknown, pinned=chance.random() < 0.15, idle_unload_s=idle))
        house = MemoryBudget(have, chance.choice([None, None, 1, 2, 3]), turn_s=chance.choice([2.0, 10.0]))
        return cls(chance, guests, house, flaky={guest.model for guest in guests if chance.random() < 0.2})

    def do(self, actions):
        for action in actions:
            name = action.model
            match action:
                case LoadModel():
                    assert self.state[name] == "out"
                    self.state[name] = "loading"
                    event = "failed" if name in self.flaky and self.chance.random() < 0.5 else "loaded"
                    self.due.append((self.now + self.chance.uniform(0.1, 4.0), event, name))
                case DrainModel():
                    assert self.state[name] == "in"
                    assert name not in self.held
                    assert not self.guests[name].pinned
                    self.held.add(name)
                case ReadmitModel():
                    self.held.remove(name)
                case UnloadModel():
                    assert not self.busy[name], "unloaded while it served"
                    assert self.state[name] in ("in", "failed")
                    self.state[name] = "leaving"
                    self.due.append((self.now + self.chance.uniform(0.1, 1.0), "gone", name))
                case RefuseModel():
                    self.queued[name] = 0
                    self.waited.pop(name, None)
        self.check_room()

    def check_room(self):
        there = [self.guests[name] for name, state in self.state.items() if state != "out"]
        for place, have in self.memory_budget.room.items():
            assert sum(guest.room.get(place, 0) for guest in there) <= have
        assert self.memory_budget.max_loaded is None or len(there) <= self.memory_budget.max_loaded
        for guest in there:
            assert not any(guest.unknown & other.places for other in there if other is not guest)

    def happen(self):
        for event in sorted(self.due):
            if event[0] <= self.now:
                self.due.remove(event)
                _, kind, name = event
                if kind == "failed":
                    self.state[name] = "failed"
                    self.do(self.lodging.failed(name, "flaky", self.now))
                    assert self.lodging.failed(name, "flaky", self.now) == []
                else:
                    self.state[name] = {"loaded": "in", "gone": "out"}[kind]
                    self.held.discard(name)
                    self.do(getattr(self.lodging, kind)(name, self.now))
                    assert getattr(self.lodging, kind)(name, self.now) == []

    def serve(self):
        for name in self.guests:
            before = len(self.busy[name])
            self.busy[name] = [end for end in self.busy[name] if end > self.now]
            if len(self.busy[name]) < before:
                self.ended[name] = self.now
            if self.state[name] == "in" and name not in self.held:
                self.busy[name] += [self.now + self.chance.uniform(0.1, 3.0) for _ in range(self.queued[name])]
                self.queued[name] = 0
                self.waited.pop(name, None)
            elif self.queued[name]:
                self.waited.setdefault(name, self.now)
                self.do(self.lodging.wanted(name, self.now))

    def figures(self):
        return {
            name: ModelUsage(
                len(self.busy[name]), self.queued[name],
                None if self.ended[name] is None else self.now - self.ended[name],
            )
            for name in self.guests
        }  # fmt: skip

    def step(self, demand):
        self.now += 0.2
        self.happen()
        for name in demand:
            if self.chance.random() < 0.5:
                self.queued[name] += 1
        self.serve()
        if self.lodging.poll_s is not None and self.chance.random() < 0.9:
            asked_at, figures = self.now, self.figures()
            self.do(self.lodging.told(figures, asked_at, self.now))
            assert self.lodging.told(figures, asked_at, self.now) == []
        for name, since in self.waited.items():
            assert self.now - since < 120, f"{name} starves"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_room_suffices_answers_finish_and_nobody_starves(seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    world = World.at_random(chance)
    for _ in range(8):
        demand = chance.sample(sorted(world.guests), chance.randint(0, min(3, len(world.guests))))
        for _ in range(chance.randint(20, 150)):
            world.step(demand)
            if chance.random() < 0.01:
                name = chance.choice(sorted(world.guests))
                stay = world.lodging.residency(name)
                if stay is Residency.IN and not world.guests[name].pinned:
                    world.do(world.lodging.unload(name, world.now))
    for _ in range(1000):  # the demand is over: what waits is served or refused
        world.step([])
    assert not any(world.queued.values())


def test_three_models_in_steady_demand_take_turns():
    guests = [ModelSpec(name, {"gpu0": 6}) for name in "abc"]
    world = World(random.Random(7), guests, MemoryBudget({"gpu0": 10}, turn_s=10.0))
    loads = []
    for _ in range(2000):
        before = dict(world.state)
        world.step("abc")
        loads += [name for name, state in world.state.items() if state == "loading" != before[name]]
    assert set(loads[:3]) == set("abc")
    assert loads[3:6] == loads[:3]
    assert 15 <= len(loads) <= 40  # 400 s: they alternate by turns of 10 s and more, and do not thrash
