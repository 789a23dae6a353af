"""A hive that another door has taken over, with the real ledger; and what stands that its door does not want."""

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from test_envoy_orders import ONE, SETUP, Hive, Posts, Wire, embassy_of, place, played, ready, row, until

from skep.cluster.envoy import Envoy
from skep.cluster.ledger import Ledger
from skep.cluster.shares import LEASE_S
from skep.cluster.surplus import Surplus
from skep.cluster.tenure import Tenure
from skep.engines.otherdoors import HEED_S

TOLD = {"models": {}, "drained": []}
RENEWAL = {"op": "renew", "busy": {}, "holds": {}, "told": TOLD, "since": None, "drain_s": 30.0}
OLD, NEW = "a:1:x", "b:2:y"


class House:
    """The real ledger, asked as an actor is; and doors before it. Time passes where a test says so."""

    def __init__(self):
        self.now, self.silent = 100.0, False
        self.ledger = Ledger("h", end_post=None, end_self=None, now=lambda: self.now)
        calls = ("announce", "claim", "forget", "instruct", "leave", "renew")
        self.actor = SimpleNamespace(**{call: SimpleNamespace(remote=partial(self._call, call)) for call in calls})

    async def _call(self, name, *args, **more):
        if self.silent:
            raise ConnectionError(name)
        return await getattr(self.ledger, name)(*args, **more)

    async def door(self, name, *standing):
        """One that has claimed the hive."""
        made = Envoy(Wire(), {**SETUP, "door": name, "key": "k"})
        made._tenure = Tenure(name, guest=False, now=lambda: self.now)
        made._surplus = Surplus(lambda: self.now)
        made._stations, made._wanted = Posts(*standing), {}
        made._stations.may_end.set()
        await made._claim(self.actor)
        return made

    async def taken_over(self):
        """By NEW, while OLD was not heard. Two replicas stand."""
        old = await self.door(OLD, "m-0", "m-1")
        await old._carry_out(RENEWAL)
        self.now += LEASE_S + 1
        new = await self.door(NEW, "m-0", "m-1")
        await new._carry_out(RENEWAL)
        return old, new


def test_a_door_that_lost_its_hive_neither_places_nor_ends_and_takes_no_share():
    """Once, its `skep down` ended what the new door served, with its ledger; before that both mended, each its own."""

    async def play():
        house = House()
        old, new = await house.taken_over()
        for _ in range(2):
            assert await old._carry_out(RENEWAL) == {"taken_over": "b:2"}
        house.now += LEASE_S + 1  # of the first of these, which had not heard yet
        assert (await new._carry_out(RENEWAL))["doors"] == 1
        await old._carry_out(place(ONE))
        await until(lambda: "m-0" in old._said)
        assert "another door's (on b:2)" in old._said["m-0"]["why"]
        for order in {"op": "end", "name": "m-0"}, {"op": "adjust", "launch": place(ONE)["launch"]}, {"op": "leave"}:
            await old._carry_out(order)
        assert old._stations.story == []
        assert (await house.ledger.state())["owner"] == NEW

    played(play)


def test_one_that_does_not_know_yet_that_it_lost_its_hive_asks_before_it_ends_anything():
    """It was stopped, and goes on with an order, with a look at what nobody wants, or with its farewell."""

    async def play():
        async def mending(door):
            door._surplus.hear({"shares": {}, "doors": 1, "busy": {}}, whole=True)
            await door._mend(door._wanted)

        for act in (
            mending,
            lambda door: door._carry_out({"op": "end", "name": "m-0"}),
            lambda door: door._carry_out({"op": "leave"}),
        ):
            house = House()
            old, _ = await house.taken_over()
            await act(old)
            assert old._stations.story == []
            assert (await house.ledger.state())["owner"] == NEW

    played(play)


def test_a_hive_that_nobody_has_any_more_is_had_back():
    async def play():
        house = House()
        old, _ = await house.taken_over()
        assert "taken_over" in await old._carry_out(RENEWAL)
        await house.ledger.leave(NEW)
        assert "taken_over" in await old._carry_out(RENEWAL), "a ledger that was started anew knows nobody at first"
        house.now += LEASE_S + 1
        assert "again" in await old._carry_out(RENEWAL)
        assert "shares" in await old._carry_out(RENEWAL)
        assert (await house.ledger.state())["owner"] == OLD

    played(play)


def test_where_no_ledger_answers_a_door_ends_what_it_placed():
    async def play():
        house = House()
        door = await house.door(OLD, "m-0")
        house.silent = True
        await door._carry_out({"op": "end", "name": "m-0"})
        assert door._stations.story == [("ends", "m-0"), ("ended", "m-0")]

    played(play)


def test_a_replica_that_its_door_does_not_want_is_closed_at_all_doors_and_waited_for_before_it_ends():
    """A door that came back within two minutes cut what others had under way on replicas that the load had called."""

    async def play():
        house = House()
        door = await house.door(OLD, "m-0", "m-1")
        door._wanted = {"m-0": ONE}
        door._rows = {"m-0": row(ONE), "m-1": row(replace(ONE, name="m-1"))}
        for name in door._rows:
            await house.ledger.announce(name, {**row(ONE), "model": "m", "slots": 2})
        guest = partial(house.ledger.renew, "g", told={"models": {}})
        await guest(busy={"m-1": 1}, holds={})
        await door._carry_out(RENEWAL)
        await door._mend(door._wanted)
        await door._carry_out(RENEWAL)
        assert (await guest(busy={"m-1": 1}, holds={}))["others"][0]["drained"] == ["m-1"]
        house.now += HEED_S + 1
        await door._carry_out(RENEWAL)
        await door._mend(door._wanted)
        assert door._stations.story == [], "the guest has an answer under way"
        await guest(busy={}, holds={})
        await door._carry_out(RENEWAL)
        await door._mend(door._wanted)
        assert door._stations.story == [("ends", "m-1"), ("ended", "m-1")]

    played(play)


def test_what_nobody_wants_is_waited_for_only_so_long_and_not_at_all_by_a_door_alone():
    now = [0.0]
    surplus = Surplus(lambda: now[0])
    assert surplus.look(["m-1"]) == [], "nothing was heard yet"
    surplus.drain_s = 30.0
    surplus.hear({"shares": {}, "doors": 2, "busy": {"m-1": 1}}, whole=True)
    surplus.hear({"again": True}, whole=True)
    surplus.hear({"shares": {}, "doors": 2, "busy": {"m-2": 0}}, whole=False)
    now[0] = HEED_S + 1
    assert surplus.look(["m-1", "m-2"]) == []
    now[0] += HEED_S + 1
    assert surplus.look(["m-1", "m-2"]) == ["m-2"]
    surplus.keep("m-2")
    assert surplus.closed == ["m-1"]
    now[0] = 31.0
    assert surplus.look(["m-1", "m-2"]) == ["m-1"], "the other one is closed only now"
    surplus.hear({"shares": {}, "doors": 1, "busy": {}}, whole=True)
    assert surplus.look(["m-3"]) == ["m-3"]


# The supervisor's side


def test_a_door_that_lost_its_hive_says_so_and_that_the_other_one_goes_on(tmp_path):
    async def play():
        wire = Wire()
        embassy = embassy_of(wire, tmp_path)
        member = ready(embassy)
        member.lease(2)
        embassy._answered_at = asyncio.get_running_loop().time() - LEASE_S
        wire.answer = lambda said: embassy._hear({"id": said.get("id", 0), "taken_over": "b:2"})
        renewing = asyncio.create_task(embassy._renew_on(Hive()))
        await until(lambda: member.share == 0)
        renewing.cancel()
        told = "another door (on b:2) has taken over the hive `h`"
        assert embassy.row()["why"] == told
        assert await embassy.stop() == f"{told}: what it serves goes on"

    played(play)


def test_an_envoy_that_is_refused_the_hive_is_no_cluster_that_cannot_be_reached(tmp_path):
    """It died and another one came, after another door had the hive: what serves there does not end with this door."""

    async def play():
        embassy = embassy_of(Wire(), tmp_path)
        embassy._link = None
        embassy._joined.clear()
        embassy._hear({"event": "taken", "by": "b:2"})
        assert "goes on" in await embassy.stop()
        embassy._hear({"event": "joined", "address": SETUP["address"], "ray": "2"})
        assert embassy.row()["why"] == "one of 2 gateways"

    played(play)


def answered(others=()):
    return {"shares": {}, "doors": 2, "busy": {}, "owner": None, "mark": 1, "others": list(others)}


async def renewed(embassy, wire, told):
    """The question, after this was answered to the one before."""
    wire.answer = lambda said: embassy._hear({"id": said["id"], **told})
    await embassy._renew(Hive(), {})
    wire.clear()
    await embassy._renew(Hive(), {})
    return wire[0]


def test_what_another_door_drains_is_avoided_by_the_door_that_places(tmp_path):
    async def play():
        wire = Wire()
        embassy = embassy_of(wire, tmp_path)
        question = await renewed(embassy, wire, answered([{"models": {}, "drained": ["n2"]}]))
        assert (question["avoid"], question["told"]["drained"]) == (["n2"], [])
        assert (await renewed(embassy, wire, answered()))["avoid"] == []

    played(play)


def test_what_is_understood_again_is_no_trouble_any_more(tmp_path):
    """One word of another skep during an upgrade was shown until the envoy was started anew."""

    async def play():
        wire = Wire()
        embassy = embassy_of(wire, tmp_path)
        await renewed(embassy, wire, answered([{"models": []}]))
        assert "is not understood" in embassy.row()["why"]
        await renewed(embassy, wire, answered())
        assert embassy.row()["why"] == "one of 2 gateways"
        ready(embassy)
        embassy._hear({"event": "replicas", "rows": [{"name": "m-0", "state": "ready"}]})
        embassy._hear({"event": "replicas", "rows": 7})
        assert "is not understood" in embassy.row()["why"]
        embassy._hear({"event": "replicas", "rows": [row(ONE)]})
        assert embassy.row()["why"] == "one of 2 gateways"

    played(play)
