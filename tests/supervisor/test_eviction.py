"""Who is loaded and who makes room: the decider alone, without processes or clocks."""

import random

import pytest
from msgspec.structs import replace
from supervised import LAUNCH

from skep.engines.base import Launch
from skep.supervisor.eviction import (
    BACK_OFF_S,
    POLL_S,
    POLL_SOON_S,
    Act,
    Action,
    Eviction,
    MemoryBudget,
    ModelSpec,
    ModelUsage,
    Residency,
    model_specs,
)
from skep.units import GIB


def load(model):
    return [Action(Act.LOAD, model)]


def drain(model):
    return [Action(Act.DRAIN, model)]


def unload(model):
    return [Action(Act.UNLOAD, model)]


IDLE = ModelUsage(busy=0, queued=0, idle_s=100.0)
BUSY = ModelUsage(busy=1, queued=0, idle_s=None)
WAITING = ModelUsage(busy=0, queued=1, idle_s=None)


def two_models(need=6, have=10, loads="", **fields):
    """Models `a` and `b` that need so much of one card; some of them are loaded."""
    models = [ModelSpec(name, {"gpu0": need}, **fields) for name in "ab"]
    return eviction_of(models, MemoryBudget({"gpu0": have}), loads)


def eviction_of(models, budget=None, loads=()):
    eviction = Eviction(models, budget)
    for name in loads:
        loaded(eviction, name)
    return eviction


def loaded(eviction, model, now=0.0):
    assert eviction.requested(model, now) == load(model)
    assert eviction.loaded(model, now) == []


def test_an_idle_model_gives_way_at_once_but_is_drained_first():
    eviction = two_models(loads="a")
    # Long loaded; whether it is idle nobody knows yet.
    assert eviction.requested("b", 100.0) == drain("a")
    # Asked before it was drained: a request may have come since.
    assert eviction.take_figures({"a": IDLE}, 100.0, 100.1) == []
    assert eviction.take_figures({"a": IDLE, "b": WAITING}, 100.2, 100.3) == unload("a")
    assert eviction.take_figures({"a": IDLE, "b": WAITING}, 100.4, 100.5) == []
    assert eviction.ended("a", 101.0) == load("b")
    assert eviction.ended("a", 101.0) == []


@pytest.mark.parametrize(
    "waiting", [WAITING, None], ids=["a request waits", "the user asked, without a request"]
)
def test_a_busy_model_stays_for_its_turn_and_then_finishes_its_answers(waiting):
    eviction = two_models(loads="a")
    assert eviction.requested("b", 1.0, by_user=waiting is None) == []
    figures = {"a": BUSY, "b": waiting or ModelUsage(0, 0, None)}
    assert eviction.take_figures(figures, 2.0, 2.0) == []
    assert eviction.take_figures(figures, 30.5, 30.5) == drain("a")
    assert eviction.take_figures(figures, 31.0, 31.0) == []
    assert eviction.take_figures({**figures, "a": IDLE}, 99.0, 99.0) == unload("a")


@pytest.mark.parametrize(
    ("wanted_at", "stays", "goes"),
    [
        (5.0, [(6.0, 0.3), (10.0, 4.3)], (11.0, 5.3)),
        (0.5, [(0.9, 9.0)], (1.1, 9.2)),
        (29.0, [(29.9, 0.2)], (30.1, 0.4)),
    ],
    ids=[
        "between requests of an agent that thinks",
        "not used since it was loaded",
        "after its turn",
    ],
)
def test_a_pause_between_requests_is_no_idleness_yet(wanted_at, stays, goes):
    """(now, idle for so long): when another model waits."""
    eviction = two_models(loads="a")
    eviction.requested("b", wanted_at)
    for now, idle_s in stays:
        assert eviction.take_figures({"a": ModelUsage(0, 0, idle_s), "b": WAITING}, now, now) == []
    now, idle_s = goes
    figures = {"a": ModelUsage(0, 0, idle_s), "b": WAITING}
    assert eviction.take_figures(figures, now, now) == drain("a")


def test_of_idle_models_the_one_unused_longest_goes():
    models = [ModelSpec(name, {"gpu0": 4}) for name in "abc"]
    eviction = eviction_of(models, MemoryBudget({"gpu0": 8}), loads="ab")
    eviction.requested("c", 20.0)
    figures = {"a": ModelUsage(0, 0, 3.0), "b": ModelUsage(0, 0, 9.0), "c": WAITING}
    assert eviction.take_figures(figures, 21.0, 21.0) == drain("b")


def test_only_what_is_in_the_way_goes():
    models = [
        ModelSpec("a", {"gpu0": 9}),
        ModelSpec("b", {"gpu1": 9}),
        ModelSpec("c", {"gpu1": 9}),
    ]
    eviction = eviction_of(models, MemoryBudget({"gpu0": 10, "gpu1": 10}), loads="ab")
    assert eviction.requested("c", 100.0) == drain("b")


def test_a_pinned_model_gives_way_to_nobody_but_the_user_may_unload_it():
    models = [ModelSpec("a", {"ram": 6}, pinned=True), ModelSpec("b", {"ram": 6})]
    eviction = eviction_of(models, MemoryBudget({"ram": 10}), loads="a")
    (refused,) = eviction.requested("b", 100.0)
    assert refused.act is Act.REFUSE
    assert "`b` needs 6 B of ram, which has 4 B beside the pinned `a`; unpin" in refused.why
    assert eviction.unload("a", 101.0) == drain("a")
    assert eviction.requested("b", 101.1, by_user=True) == []  # it waits, and is not refused
    assert eviction.take_figures({"a": IDLE, "b": WAITING}, 102.0, 102.0) == unload("a")
    assert eviction.ended("a", 103.0) == load("b")


def test_what_can_never_fit_is_refused_at_once_with_what_to_change():
    eviction = two_models(need=20)
    (refused,) = eviction.requested("a", 0.0)
    assert "`a` needs 20 B of gpu0, which has 10 B; take a smaller quantization" in refused.why
    assert eviction.states["a"].residency is Residency.OUT
    assert "a" not in eviction.queue


def test_no_more_models_than_allowed_are_loaded():
    eviction = eviction_of(
        [ModelSpec("a"), ModelSpec("b"), ModelSpec("c", pinned=True)],
        MemoryBudget(max_loaded=2),
        loads="ca",
    )
    assert eviction.requested("b", 100.0) == drain("a")
    assert "raise `max_loaded`" in Eviction(
        [ModelSpec("a"), ModelSpec("p", pinned=True, on_demand=False)], MemoryBudget(max_loaded=1)
    ).why_never("a")


def test_one_of_unknown_size_has_its_cards_alone():
    """Also where the machine's cards are not listed: Intel, AMD, Apple."""
    unsized = [
        replace(LAUNCH, name=f"{model}-0", engine="vllm", model=model, on_demand=True)
        for model in "ab"
    ]
    sized = replace(LAUNCH, name="d-0", model="d", on_demand=True, room=(("gpu0", 1),))
    for room, launches in (({"ram": 64 * GIB}, unsized), ({"gpu0": 24}, [unsized[0], sized])):
        eviction = Eviction(model_specs(launches, room), MemoryBudget(room))
        first, second = (launch.model for launch in launches)
        assert eviction.requested(first, 0.0) == load(first)
        assert eviction.requested(second, 0.1) == []
    pinned = replace(sized, pinned=True, on_demand=False)
    room = {"gpu0": 24}
    eviction = Eviction(model_specs([unsized[0], pinned], room), MemoryBudget(room))
    why = "`a` takes all of gpu0, where `d` is pinned; give `room` if it takes less"
    assert eviction.why_never("a") == why


def test_a_model_goes_after_its_time_without_a_request():
    eviction = eviction_of(
        [ModelSpec("a", idle_unload_s=60.0), ModelSpec("p", idle_unload_s=60.0, pinned=True)],
        loads="ap",
    )
    assert eviction.poll_s == POLL_S
    assert eviction.take_figures({"a": BUSY}, 80.0, 80.0) == []
    assert eviction.take_figures({"a": ModelUsage(0, 0, 30.0), "p": IDLE}, 120.0, 120.0) == []
    figures = {"a": ModelUsage(0, 0, 61.0), "p": IDLE}
    assert eviction.take_figures(figures, 151.0, 151.0) == drain("a")
    assert eviction.poll_s == POLL_SOON_S
    assert eviction.take_figures({"a": ModelUsage(0, 0, 62.0)}, 152.0, 152.0) == unload("a")


def test_a_request_that_comes_while_an_idle_model_drains_brings_it_back_afterwards():
    eviction = eviction_of([ModelSpec("a", idle_unload_s=60.0)], loads="a")
    assert eviction.take_figures({"a": IDLE}, 100.0, 100.0) == drain("a")
    assert eviction.requested("a", 100.1) == []
    assert eviction.take_figures({"a": WAITING}, 100.2, 100.2) == unload("a")
    assert eviction.ended("a", 101.0) == load("a")


def test_what_the_user_unloads_finishes_its_answers_and_comes_back_with_a_request():
    eviction = two_models(pinned=True, loads="a")
    assert eviction.unload("a", 1.0) == drain("a")
    assert eviction.unload("a", 1.0) == []
    assert eviction.requested("a", 1.5) == []
    assert eviction.take_figures({"a": ModelUsage(1, 1, None)}, 2.0, 2.0) == []
    assert eviction.take_figures({"a": ModelUsage(0, 1, 0.1)}, 3.0, 3.0) == unload("a")
    assert eviction.ended("a", 4.0) == load("a")


def test_a_load_under_way_can_be_broken_off():
    eviction = two_models()
    eviction.requested("a", 0.0)
    assert eviction.unload("a", 1.0) == unload("a")
    assert eviction.loaded("a", 1.0) == []
    assert eviction.ended("a", 2.0) == []
    assert eviction.states["a"].residency is Residency.OUT


def test_a_load_that_failed_is_told_once_and_tried_again_after_a_while():
    eviction = two_models()
    eviction.requested("a", 0.0)
    assert eviction.failed("a", "no memory", 1.0) == [
        Action(Act.REFUSE, "a", "no memory", BACK_OFF_S),
        Action(Act.UNLOAD, "a"),
    ]
    assert eviction.failed("a", "no memory", 1.0) == []
    assert eviction.ended("a", 2.0) == []
    assert eviction.requested("a", 5.0) == [Action(Act.REFUSE, "a", "no memory", BACK_OFF_S - 4.0)]
    # The user need not wait.
    assert eviction.requested("a", 6.0, by_user=True) == load("a")
    eviction.failed("a", "no memory", 7.0)
    eviction.ended("a", 8.0)
    assert eviction.requested("a", 7.0 + BACK_OFF_S) == load("a")


def test_models_that_are_not_on_demand_are_loaded_once_at_the_beginning():
    eviction = Eviction([ModelSpec("a", on_demand=False), ModelSpec("b")])
    assert eviction.begin(0.0) == load("a")
    assert eviction.begin(0.0) == []


def failed_after_an_unload():
    """A model that is not on demand: the user unloaded it, a request loads it, and it fails."""
    eviction = Eviction([ModelSpec("a", on_demand=False), ModelSpec("b")])
    eviction.begin(0.0)
    eviction.loaded("a", 1.0)
    eviction.unload("a", 2.0)
    eviction.take_figures({"a": IDLE}, 3.0, 3.0)
    eviction.ended("a", 4.0)
    eviction.requested("a", 5.0)
    return eviction, eviction.failed("a", "no memory", 6.0)


def test_one_that_the_user_unloaded_comes_and_goes_like_one_on_demand():
    _, actions = failed_after_an_unload()
    assert Action(Act.UNLOAD, "a") in actions


def test_a_load_by_hand_that_succeeds_ends_the_back_off():
    """Fetched, failed, mended, loaded by hand and unloaded again: the old reason holds no more."""
    eviction, _ = failed_after_an_unload()
    eviction.ended("a", 7.0)
    assert eviction.requested("a", 8.0, by_user=True) == load("a")
    eviction.loaded("a", 9.0)
    eviction.unload("a", 10.0)
    assert eviction.take_figures({"a": IDLE}, 10.5, 10.5) == unload("a")
    eviction.ended("a", 11.0)
    assert eviction.requested("a", 11.5) == load("a")


def test_one_that_failed_and_is_not_on_demand_is_left_to_the_user():
    eviction = Eviction([ModelSpec("a", on_demand=False)])
    eviction.begin(0.0)
    eviction.failed("a", "no memory", 1.0)
    assert eviction.requested("a", 100.0) == []
    assert eviction.requested("a", 100.0, by_user=True) == load("a")


def test_whoever_is_later_in_line_does_not_take_the_room_of_an_earlier_one():
    models = [
        ModelSpec("a", {"ram": 6}),
        ModelSpec("large", {"ram": 9}),
        ModelSpec("small", {"ram": 2}),
    ]
    eviction = eviction_of(models, MemoryBudget({"ram": 10}), loads="a")
    assert eviction.requested("large", 1.0) == []
    assert eviction.requested("small", 2.0) == []
    figures = {"a": BUSY, "large": WAITING, "small": WAITING}
    assert eviction.take_figures(figures, 31.0, 31.0) == drain("a")
    eviction.take_figures({**figures, "a": IDLE}, 32.0, 32.0)
    assert eviction.ended("a", 33.0) == load("large")


def test_after_a_reload_those_that_stay_keep_their_state():
    eviction = two_models(loads="a")
    models = [ModelSpec("a", {"gpu0": 6}), ModelSpec("c")]
    assert eviction.become(models, MemoryBudget({"gpu0": 20}), 1.0) == []
    states = {name: state.residency for name, state in eviction.states.items()}
    assert states == {"a": Residency.IN, "c": Residency.OUT}


def test_replicas_of_one_model_are_loaded_together():
    launch = {
        "engine": "vllm",
        "weights": None,
        "slots": 1,
        "context_tokens": 10,
        "threads": 1,
        "on_demand": True,
    }
    launches = [
        Launch("m-0", model="m", room=(("gpu0", 5), ("ram", 1)), gpus=(0,), **launch),
        Launch("m-1", model="m", room=(("gpu1", 5), ("ram", 1)), gpus=(1,), **launch),
        Launch("n-0", model="n", gpus=(1,), idle_unload_s=9.0, **launch),
        Launch("o-0", model="o", pinned=True, **launch),
        Launch("far", model="p", url="http://x:1", **launch),
    ]
    m, n, o = model_specs(launches, {"gpu0": 8, "gpu1": 8, "ram": 9})
    assert m.room == {"gpu0": 5, "ram": 2, "gpu1": 5}
    assert (n.room, n.idle_unload_s) == ({"gpu1": 8}, 9.0)
    assert (o.room, o.pinned) == ({"gpu0": 8, "gpu1": 8}, True)


class World:
    """Random models in random demand, with engines that take their time; checks what must always
    hold.
    """

    def __init__(self, chance, models, budget, flaky=()):
        self.chance = chance
        self.now = 0.0
        self.models = {model.model: model for model in models}
        self.memory_budget = budget
        self.flaky = flaky
        self.eviction = Eviction(self.models.values(), self.memory_budget)
        self.queued = dict.fromkeys(self.models, 0)
        self.busy = {name: [] for name in self.models}  # ends of answers
        self.ended = dict.fromkeys(self.models, None)
        self.state = dict.fromkeys(self.models, "out")
        self.held = set()
        self.due = []  # (time, event, model)
        self.waited = {}  # since when a model's requests wait

    @classmethod
    def at_random(cls, chance):
        places = ["gpu0", "gpu1", "ram"]
        have = {place: chance.randint(8, 16) for place in places}
        models = []
        for name in "abcde"[: chance.randint(2, 5)]:
            room = {
                place: chance.randint(1, 10)
                for place in chance.sample(places, chance.randint(0, 2))
            }
            card = chance.choice(places[:2])
            room = room or {card: have[card]}  # of unknown size: the whole card
            idle = chance.choice([None, 5.0])
            models.append(ModelSpec(name, room, pinned=chance.random() < 0.15, idle_unload_s=idle))
        budget = MemoryBudget(
            have, chance.choice([None, None, 1, 2, 3]), turn_s=chance.choice([2.0, 10.0])
        )
        return cls(
            chance,
            models,
            budget,
            flaky={model.model for model in models if chance.random() < 0.2},
        )

    def do(self, actions):
        for action in actions:
            name = action.model
            match action.act:
                case Act.LOAD:
                    assert self.state[name] == "out"
                    self.state[name] = "loading"
                    fails = name in self.flaky and self.chance.random() < 0.5
                    event = "failed" if fails else "loaded"
                    self.due.append((self.now + self.chance.uniform(0.1, 4.0), event, name))
                case Act.DRAIN:
                    assert self.state[name] == "in"
                    assert name not in self.held
                    assert not self.models[name].pinned
                    self.held.add(name)
                case Act.UNLOAD:
                    assert not self.busy[name], "unloaded while it served"
                    assert self.state[name] in ("in", "failed")
                    self.state[name] = "leaving"
                    self.due.append((self.now + self.chance.uniform(0.1, 1.0), "ended", name))
                case Act.REFUSE:
                    self.queued[name] = 0
                    self.waited.pop(name, None)
        self.check_room()

    def check_room(self):
        budget = self.memory_budget
        present = [self.models[name] for name, state in self.state.items() if state != "out"]
        for place, have in budget.room.items():
            assert sum(model.room.get(place, 0) for model in present) <= have
        assert budget.max_loaded is None or len(present) <= budget.max_loaded

    def happen(self):
        for event in sorted(self.due):
            at, kind, name = event
            if at > self.now:
                continue
            self.due.remove(event)
            if kind != "failed":
                self.held.discard(name)
            self.state[name] = {"loaded": "in", "ended": "out", "failed": "failed"}[kind]
            self.do(self.report(kind, name))
            assert self.report(kind, name) == [], "a repeated event repeats no action"

    def report(self, kind, name):
        if kind == "failed":
            return self.eviction.failed(name, "flaky", self.now)
        if kind == "loaded":
            return self.eviction.loaded(name, self.now)
        return self.eviction.ended(name, self.now)

    def serve(self):
        for name in self.models:
            before = len(self.busy[name])
            self.busy[name] = [end for end in self.busy[name] if end > self.now]
            if len(self.busy[name]) < before:
                self.ended[name] = self.now
            if self.state[name] == "in" and name not in self.held:
                self.busy[name] += [
                    self.now + self.chance.uniform(0.1, 3.0) for _ in range(self.queued[name])
                ]
                self.queued[name] = 0
                self.waited.pop(name, None)
            elif self.queued[name]:
                self.waited.setdefault(name, self.now)
                self.do(self.eviction.requested(name, self.now))

    def figures(self):
        return {
            name: ModelUsage(
                len(self.busy[name]),
                self.queued[name],
                None if self.ended[name] is None else self.now - self.ended[name],
            )
            for name in self.models
        }

    def step(self, demand):
        self.now += 0.2
        self.happen()
        for name in demand:
            if self.chance.random() < 0.5:
                self.queued[name] += 1
        self.serve()
        if self.eviction.poll_s is not None and self.chance.random() < 0.9:
            asked_at = self.now
            figures = self.figures()
            self.do(self.eviction.take_figures(figures, asked_at, self.now))
            assert self.eviction.take_figures(figures, asked_at, self.now) == []
        for name, since in self.waited.items():
            assert self.now - since < 120, f"{name} starves"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_room_suffices_answers_finish_and_nobody_starves(seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    world = World.at_random(chance)
    for _ in range(8):
        demand = chance.sample(sorted(world.models), chance.randint(0, min(3, len(world.models))))
        for _ in range(chance.randint(20, 150)):
            world.step(demand)
            if chance.random() < 0.01:
                name = chance.choice(sorted(world.models))
                stay = world.eviction.states[name].residency
                if stay is Residency.IN and not world.models[name].pinned:
                    world.do(world.eviction.unload(name, world.now))
    for _ in range(1000):  # the demand is over: what waits is served or refused
        world.step([])
    assert not any(world.queued.values())


def test_three_models_in_steady_demand_take_turns():
    models = [ModelSpec(name, {"gpu0": 6}) for name in "abc"]
    world = World(random.Random(7), models, MemoryBudget({"gpu0": 10}, turn_s=10.0))
    loads = []
    for _ in range(2000):
        before = dict(world.state)
        world.step("abc")
        loads += [
            name for name, state in world.state.items() if state == "loading" != before[name]
        ]
    assert set(loads[:3]) == set("abc")
    assert loads[3:6] == loads[:3]
    # 400 s: they alternate by turns of 10 s and more, and do not thrash.
    assert 15 <= len(loads) <= 40
