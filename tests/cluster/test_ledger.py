"""The ledger without Ray: posts announce, doors renew, the silent are away, the abandoned end."""

import asyncio

import pytest

from skep.cluster.ledger import AWAY_AFTER_S, Ledger
from skep.cluster.shares import LEASE_S


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def row(name="m-0", incarnation="one", **more):
    told = {"name": name, "model": "m", "slots": 4, "state": "ready", "why": None, "node": "b", "url": "http://b:1"}
    return {**told, "incarnation": incarnation, **more}


def pass_time(clock, ledger, seconds):
    for _ in range(int(seconds / 0.5) + 1):
        clock.now += 0.5
        ledger.look()


@pytest.fixture
def clock():
    return Clock()


def make(clock, ended=None, reached_by=None, **more):
    ended = [] if ended is None else ended

    async def end_post(name, handle):
        ended.append(name)
        (reached_by if reached_by is not None else []).append((name, handle))
        return True

    async def end_self():
        ended.append("ledger")

    told = {"end_post": end_post, "end_self": end_self, "abandoned_after_s": 60.0, "now": clock}
    return Ledger("skep", **told, **more)


def test_a_table_is_told_as_soon_as_it_differs(clock):
    async def play():
        ledger = make(clock)
        first = await ledger.table(0, 1.0)
        waiting = asyncio.create_task(ledger.table(first["version"], 30.0))
        await asyncio.sleep(0)
        assert (await ledger.announce("m-0", row()))["end"] is False
        told = await waiting
        assert told["rows"]["m-0"]["state"] == "ready"
        again = await ledger.announce("m-0", row())
        assert again["end"] is False
        assert (await ledger.table(told["version"], 0.0))["version"] == told["version"], "nothing new was said"

    asyncio.run(play())


def test_a_post_that_was_started_anew_elsewhere_silences_the_one_before(clock):
    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row(incarnation="one"))
        await ledger.announce("m-0", row(incarnation="two", node="c"))
        assert (await ledger.announce("m-0", row(incarnation="one")))["end"] is True
        assert (await ledger.state())["rows"]["m-0"]["node"] == "c"

    asyncio.run(play())


@pytest.mark.parametrize("first", ["old", "new"])
def test_of_one_actor_the_later_life_counts_whoever_speaks_first(clock, first):
    """A cable was out, and the ledger was started anew meanwhile: it knows neither of them."""

    async def play():
        ledger = make(clock)
        posts = {"old": row(incarnation="old", actor="a", life=0), "new": row(incarnation="new", actor="a", life=1)}
        await ledger.announce("m-0", posts[first])
        for _ in range(2):
            await ledger.announce("m-0", posts["old"])
            assert (await ledger.announce("m-0", posts["new"]))["end"] is False
        assert (await ledger.announce("m-0", posts["old"]))["end"] is True
        assert (await ledger.state())["rows"]["m-0"]["incarnation"] == "new"

    asyncio.run(play())


def test_of_two_actors_the_one_that_has_the_name_counts(clock):
    async def play():
        names = {"m-0": None}

        async def holder(name):
            return names[name]

        ledger = make(clock, holder=holder)
        await ledger.announce("m-0", row(incarnation="one", actor="a", life=3))
        other = row(incarnation="two", actor="b", life=0)
        assert await ledger.announce("m-0", other) == {"end": False, "policy": None, "held": False}, "no head: not now"
        assert (await ledger.announce("m-0", row(incarnation="one", actor="a", life=3)))["end"] is False
        names["m-0"] = "b"
        assert (await ledger.announce("m-0", other))["end"] is False
        assert (await ledger.announce("m-0", row(incarnation="one", actor="a", life=3)))["end"] is True
        names["m-0"] = ""
        assert (await ledger.announce("m-0", row(incarnation="three", actor="c", life=0)))["end"] is True
        assert (await ledger.state())["rows"]["m-0"]["incarnation"] == "two"

    asyncio.run(play())


@pytest.mark.parametrize("said", [([["m-0", 1]], {}), ({"m-0": "1"}, {}), ({}, {"m-0": -1}), ({}, {"m-0": 1.5})])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_door_that_is_not_understood_costs_the_others_nothing(clock, said, is_known):
    """Once, its half-heard word made every other door's renewal fail."""

    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row())
        await ledger.renew("a", {}, {}, {})
        if is_known:
            await ledger.renew("c", {}, {}, {})
        with pytest.raises((ValueError, AttributeError)):
            await ledger.renew("c", *said, {})
        told = await ledger.renew("a", {"m-0": 1}, {"m-0": 4}, {})
        assert (told["doors"], told["busy"]) == (1 + is_known, {})
        assert (await ledger.renew("c", {}, {}, {}))["busy"] == {"m-0": 1}, "it is heard as soon as it is understood"

    asyncio.run(play())


def test_a_post_that_is_not_understood_costs_the_others_nothing(clock):
    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row())
        for bad in ({"slots": "many"}, {"slots": None}):
            with pytest.raises((ValueError, TypeError)):
                await ledger.announce("m-1", row("m-1", **bad))
        with pytest.raises(KeyError):
            await ledger.announce("m-1", {"incarnation": "two", "model": "m", "slots": 1})
        assert (await ledger.renew("a", {}, {}, {}))["shares"] == {"m-0": 4}
        pass_time(clock, ledger, AWAY_AFTER_S + 1)

    asyncio.run(play())


def test_a_post_s_handle_is_kept_while_it_goes_on_and_not_for_its_successor(clock, monkeypatch):
    reached = []

    async def play():
        ledger = make(clock, reached_by=reached)
        assert (await ledger.announce("m-0", row(), "handle"))["held"] is True
        assert (await ledger.announce("m-0", row(state="busy")))["held"] is True, "it is not sent every time"
        await ledger.announce("m-1", row("m-1", "three"), "old")
        assert (await ledger.announce("m-1", row("m-1", "four")))["held"] is False
        clock.now += 100.0
        monkeypatch.setattr("skep.cluster.ledger.LOOK_EVERY_S", 0.0)
        monkeypatch.setattr("skep.cluster.ledger.PAUSE_S", 1000.0)
        watching = asyncio.create_task(ledger.watch())
        while len(reached) < 2:
            await asyncio.sleep(0)
        watching.cancel()

    asyncio.run(play())
    assert reached == [("m-0", "handle"), ("m-1", None)]


def test_a_door_that_says_only_what_is_new_is_told_only_that(clock):
    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row())
        first = await ledger.renew("a", {}, {}, {})
        assert first["shares"] == {"m-0": 4}
        second = await ledger.renew("a", {}, {"m-0": 4}, {}, since=first["mark"])
        assert (second["shares"], second["busy"]) == ({}, {})
        await ledger.announce("m-1", row("m-1", "two"))
        third = await ledger.renew("a", {"m-0": 1}, {}, {}, since=second["mark"])
        assert third["shares"] == {"m-1": 4}
        other = await ledger.renew("b", {}, {}, {})
        assert (other["shares"], other["busy"]) == ({"m-0": 0, "m-1": 0}, {"m-0": 1}), "all, to who says all"

    asyncio.run(play())


def test_a_ledger_that_does_not_know_what_a_door_said_last_asks_it_to_say_all(clock):
    """Its last answer was lost, the door was silent for too long, or another ledger gave that answer."""

    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row())
        first = await ledger.renew("a", {}, {}, {})
        await ledger.renew("a", {}, {"m-0": 4}, {}, since=first["mark"])
        assert (await ledger.renew("a", {}, {}, {}, since=first["mark"]))["again"], "that was answered already"
        newest = await ledger.renew("a", {}, {"m-0": 4}, {})
        assert (await make(clock).renew("a", {}, {}, {}, since=newest["mark"]))["again"]
        pass_time(clock, ledger, LEASE_S + 1)
        assert (await ledger.renew("a", {}, {}, {}, since=newest["mark"]))["again"]

    asyncio.run(play())


def test_an_ended_replica_is_not_heard_again_but_a_new_one_of_that_name_is(clock):
    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row(incarnation="five"))
        await ledger.forget("m-0")
        assert (await ledger.announce("m-0", row(incarnation="five")))["end"] is True
        assert (await ledger.announce("m-0", row(incarnation="six")))["end"] is False

    asyncio.run(play())


def test_a_silent_post_is_away_and_keeps_its_slots_for_when_it_is_back(clock):
    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row())
        pass_time(clock, ledger, AWAY_AFTER_S + 0.5)
        told = (await ledger.state())["rows"]["m-0"]
        assert (told["state"], told["why"]) == ("away", "no word from node b")
        assert (await ledger.renew("a", {}, {}, {}))["shares"] == {"m-0": 4}

    asyncio.run(play())


@pytest.mark.parametrize("why", ["away", "failed", "starting", "drained", "its node is drained"])
def test_doors_take_turns_at_what_serves_while_a_replica_does_not(clock, why):
    """Once, one of two doors had the slot of a replica that was away, and served nobody until it was back."""

    async def play():
        ledger, holds, had = make(clock), {"a": {}, "b": {}}, {"a": set(), "b": set()}
        state = why if why in ("failed", "starting") else "ready"
        drained = {"drained": ["m-1"], "its node is drained": ["c"]}.get(why, [])

        async def pass_on(seconds, drained=()):
            for _ in range(int(seconds / 0.5)):
                pass_time(clock, ledger, 0.0)
                await ledger.announce("m-0", row(slots=1))
                for door, held in holds.items():
                    told = {"models": {"m": {"queued": 3}}, "drained": list(drained) if door == "b" else []}
                    held.update((await ledger.renew(door, {}, held, told))["shares"])
                    had[door] |= {name for name, share in held.items() if share}

        await ledger.announce("m-1", row("m-1", node="c", slots=1, state=state))
        await pass_on(30.0 if why == "away" else 6.0, drained)
        had["a"].clear()
        had["b"].clear()
        await pass_on(12.0, drained)
        assert "m-0" in had["a"] & had["b"]
        await ledger.announce("m-1", row("m-1", node="c", slots=1, incarnation="two"))
        await pass_on(2.0)
        assert all(sum(held.values()) == 1 for held in holds.values()), "its slot is back with it"

    asyncio.run(play())


def test_what_a_door_drained_serves_again_when_the_door_is_gone(clock):
    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row())
        await ledger.renew("b", {}, {}, {"drained": ["m-0"]})
        await ledger.renew("a", {}, {}, {})
        assert "m-0" in ledger._shares._pools["m", False]
        await ledger.leave("b")
        assert "m-0" in ledger._shares._pools["m", True]

    asyncio.run(play())


def test_only_one_door_places_replicas_and_its_successor_gets_the_same_key(clock):
    async def play():
        ledger = make(clock)
        assert await ledger.claim("a", "key-a") == {"owner": "a", "key": "key-a"}
        await ledger.renew("a", {}, {}, {})
        assert await ledger.claim("b", "key-b") == {"owner": "a"}
        pass_time(clock, ledger, 30.0)
        assert await ledger.claim("b", "key-b") == {"owner": "b", "key": "key-a"}

    asyncio.run(play())


def test_posts_hear_the_restart_policy_of_the_door_that_places_them(clock):
    async def play():
        ledger = make(clock)
        assert (await ledger.announce("m-0", row()))["policy"] is None, "not told: what it was created with counts"
        await ledger.claim("one", "k")
        await ledger.instruct("one", {"fallbacks": 5})
        await ledger.instruct("another", {"fallbacks": 0})
        assert (await ledger.announce("m-0", row()))["policy"] == {"fallbacks": 5}
        assert (await ledger.table(0, 0.0))["policy"] == {"fallbacks": 5}, "its door sees whether it is known"

    asyncio.run(play())


def test_a_hive_that_no_door_wants_any_more_is_ended(clock, monkeypatch):
    ended = []

    async def play():
        ledger = make(clock, ended)
        await ledger.announce("m-0", row())
        await ledger.renew("a", {}, {}, {})
        monkeypatch.setattr("skep.cluster.ledger.LOOK_EVERY_S", 0.0)
        watching = asyncio.create_task(ledger.watch())
        await asyncio.sleep(0.01)
        assert not ended
        for _ in range(70):
            clock.now += 1.0
            await asyncio.sleep(0.001)
        watching.cancel()

    asyncio.run(play())
    assert ended[:2] == ["m-0", "ledger"]


def test_two_doors_that_begin_at_once_have_one_owner(clock):
    async def play():
        ledger = make(clock)
        first = await ledger.claim("a", "key-a")
        assert await ledger.claim("b", "key-b") == {"owner": "a"}, "before the first has renewed"
        assert first["key"] == "key-a"

    asyncio.run(play())


def test_after_a_pause_nobody_is_away_for_what_could_not_be_heard(clock):
    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row())
        await ledger.renew("a", {}, {}, {})
        pass_time(clock, ledger, 1.0)
        clock.now += 60.0  # the process was stopped
        ledger.look()
        told = await ledger.state()
        assert (told["rows"]["m-0"]["state"], told["doors"]) == ("ready", ["a"])

    asyncio.run(play())


def test_a_young_ledger_says_that_its_table_may_lack_some(clock):
    async def play():
        ledger = make(clock)
        young = await ledger.table(0, 0.0)
        assert young["settling"]
        waiting = asyncio.create_task(ledger.table(young["version"], 100.0))
        await asyncio.sleep(0)
        pass_time(clock, ledger, AWAY_AFTER_S + 1)
        assert (await waiting)["settling"] is False

    asyncio.run(play())


def test_doors_hear_what_others_have_in_use_and_have_drained(clock):
    async def play():
        ledger = make(clock)
        await ledger.announce("m-0", row())
        await ledger.renew("a", {"m-0": 2}, {"m-0": 2}, {"drained": ["b"]})
        told = await ledger.renew("b", {}, {}, {})
        assert (told["busy"], told["others"]) == ({"m-0": 2}, [{"drained": ["b"]}])

    asyncio.run(play())
