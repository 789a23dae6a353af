"""The registry without Ray: replicas report, one gateway owns the hive, the silent are away, the abandoned end."""

import asyncio

import pytest

from skep.cluster.replica_registry import AWAY_AFTER_S, OWNED_S, ReplicaRegistry


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def row(name="m-0", incarnation="one", **more):
    told = {"name": name, "model": "m", "slots": 4, "state": "ready", "why": None, "node": "b", "url": "http://b:1"}
    return {**told, "incarnation": incarnation, **more}


def pass_time(clock, registry, seconds):
    for _ in range(int(seconds / 0.5) + 1):
        clock.now += 0.5
        registry.look()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def registry(clock):
    return make(clock)


def make(clock, ended=None, names=None):
    """A registry that ends nothing: it notes what it would. `names`: the holder of each name, as Ray has it."""

    class Registry(ReplicaRegistry):
        async def _end_post(self, name, handle):
            ended.append((name, handle))
            return True

        async def _end_self(self):
            ended.append("registry")

        async def _holder(self, name):
            return names[name]

    return Registry("skep", clock)


async def test_a_table_is_told_as_soon_as_it_differs(registry):
    first = await registry.table("g", 0, 1.0)
    waiting = asyncio.create_task(registry.table("g", first["version"], 30.0))
    await asyncio.sleep(0)
    assert (await registry.announce("m-0", row()))["end"] is False
    told = await waiting
    assert told["rows"]["m-0"]["state"] == "ready"
    again = await registry.announce("m-0", row())
    assert again["end"] is False
    told = {"version": told["version"], "owner": None}
    assert await registry.table("g", told["version"], 0.0) == told, "nothing new was said"


async def test_a_post_that_was_started_anew_elsewhere_silences_the_one_before(registry):
    await registry.announce("m-0", row(incarnation="one"))
    await registry.announce("m-0", row(incarnation="two", node="c"))
    assert (await registry.announce("m-0", row(incarnation="one")))["end"] is True
    assert (await registry.state())["rows"]["m-0"]["node"] == "c"


@pytest.mark.parametrize("first", ["old", "new"])
async def test_of_one_actor_the_later_life_counts_whoever_speaks_first(registry, first):
    """A cable was out, and the registry was started anew meanwhile: it knows neither of them."""
    posts = {"old": row(incarnation="old", actor="a", life=0), "new": row(incarnation="new", actor="a", life=1)}
    await registry.announce("m-0", posts[first])
    for _ in range(2):
        await registry.announce("m-0", posts["old"])
        assert (await registry.announce("m-0", posts["new"]))["end"] is False
    assert (await registry.announce("m-0", posts["old"]))["end"] is True
    assert (await registry.state())["rows"]["m-0"]["incarnation"] == "new"


async def test_of_two_actors_the_one_that_has_the_name_counts(clock):
    names = {"m-0": None}
    registry = make(clock, names=names)
    await registry.announce("m-0", row(incarnation="one", actor="a", life=3))
    other = row(incarnation="two", actor="b", life=0)
    assert await registry.announce("m-0", other) == {"end": False, "policy": None, "held": False}, "no head: not now"
    assert (await registry.announce("m-0", row(incarnation="one", actor="a", life=3)))["end"] is False
    names["m-0"] = "b"
    assert (await registry.announce("m-0", other))["end"] is False
    assert (await registry.announce("m-0", row(incarnation="one", actor="a", life=3)))["end"] is True
    names["m-0"] = ""
    assert (await registry.announce("m-0", row(incarnation="three", actor="c", life=0)))["end"] is True
    assert (await registry.state())["rows"]["m-0"]["incarnation"] == "two"


async def test_a_post_that_is_not_understood_costs_the_others_nothing(clock, registry):
    await registry.announce("m-0", row())
    with pytest.raises(KeyError):
        await registry.announce("m-1", {"incarnation": "two", "model": "m", "slots": 1})
    assert list((await registry.state())["rows"]) == ["m-0"]
    pass_time(clock, registry, AWAY_AFTER_S + 1)


async def test_a_post_s_handle_is_kept_while_it_goes_on_and_not_for_its_successor(clock, monkeypatch):
    reached = []
    registry = make(clock, reached)
    assert (await registry.announce("m-0", row(), "handle"))["held"] is True
    assert (await registry.announce("m-0", row(state="busy")))["held"] is True, "it is not sent every time"
    await registry.announce("m-1", row("m-1", "three"), "old")
    assert (await registry.announce("m-1", row("m-1", "four")))["held"] is False
    clock.now += 130.0
    monkeypatch.setattr("skep.cluster.replica_registry.LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("skep.cluster.replica_registry.PAUSE_S", 1000.0)
    watching = asyncio.create_task(registry.watch())
    while len(reached) < 2:
        await asyncio.sleep(0)
    watching.cancel()
    assert reached[:2] == [("m-0", "handle"), ("m-1", None)]


async def test_an_ended_replica_is_not_heard_again_but_a_new_one_of_that_name_is(registry):
    await registry.announce("m-0", row(incarnation="five"))
    await registry.forget("m-0")
    assert (await registry.announce("m-0", row(incarnation="five")))["end"] is True
    assert (await registry.announce("m-0", row(incarnation="six")))["end"] is False


async def test_a_silent_post_is_away_until_it_is_heard_again(clock, registry):
    await registry.announce("m-0", row())
    pass_time(clock, registry, AWAY_AFTER_S + 0.5)
    told = (await registry.state())["rows"]["m-0"]
    assert (told["state"], told["why"]) == ("away", "no report from node b")
    await registry.announce("m-0", row())
    assert (await registry.state())["rows"]["m-0"]["state"] == "ready"


async def test_only_one_gateway_has_the_hive_until_it_is_silent_for_a_while(clock, registry):
    assert [await registry.claim(name, {}) for name in ("a", "b")] == ["a", "a"]
    for _ in range(2):
        pass_time(clock, registry, OWNED_S - 2)
        assert (await registry.table("a", 0, 0.0))["owner"] == "a"
    assert await registry.claim("b", {}) == "a", "who asks for the table is there"
    pass_time(clock, registry, OWNED_S + 1)
    assert await registry.claim("b", {}) == "b"
    assert (await registry.table("a", 0, 0.0))["owner"] == "b"


async def test_posts_hear_the_restart_policy_of_the_gateway_that_has_them(registry):
    assert (await registry.announce("m-0", row()))["policy"] is None, "not told: what it was created with counts"
    await registry.claim("one", {"fallbacks": 5})
    await registry.claim("another", {"fallbacks": 0})
    assert (await registry.announce("m-0", row()))["policy"] == {"fallbacks": 5}


async def test_a_hive_without_a_gateway_is_ended(clock, monkeypatch):
    ended = []
    registry = make(clock, ended)
    await registry.announce("m-0", row())
    await registry.claim("a", {})
    monkeypatch.setattr("skep.cluster.replica_registry.LOOK_EVERY_S", 0.0)
    watching = asyncio.create_task(registry.watch())
    await asyncio.sleep(0.01)
    assert not ended
    for _ in range(70):
        clock.now += 2.0
        await asyncio.sleep(0.001)
    watching.cancel()
    assert ended[:2] == [("m-0", None), "registry"]


async def test_after_a_pause_nobody_is_away_for_what_could_not_be_heard(clock, registry):
    await registry.announce("m-0", row())
    await registry.claim("a", {})
    pass_time(clock, registry, 1.0)
    clock.now += 60.0  # the process was stopped
    registry.look()
    told = await registry.state()
    assert told["rows"]["m-0"]["state"] == "ready"
    assert await registry.claim("b", {}) == "a"


async def test_a_young_registry_says_that_its_table_may_lack_some(clock, registry):
    young = await registry.table("a", 0, 0.0)
    assert young["settling"]
    waiting = asyncio.create_task(registry.table("a", young["version"], 100.0))
    await asyncio.sleep(0)
    pass_time(clock, registry, AWAY_AFTER_S + 1)
    assert (await waiting)["settling"] is False
