"""A hive that another gateway owns, with the real registry; and running replicas that its gateway does not want."""

from functools import partial
from types import SimpleNamespace

import pytest
from test_driver_commands import ONE, SETUP, Posts, Wire, place, row

from skep.cluster.ray_driver import RayDriver, TakenOver
from skep.cluster.replica_registry import OWNED_S, ReplicaRegistry

OLD, NEW = "a:1:x", "b:2:y"


class House:
    """The real registry, asked as an actor is; and gateways before it. Time passes where a test says so."""

    def __init__(self):
        self.now, self.silent = 100.0, False
        self.registry = ReplicaRegistry("h", end_post=None, end_self=None, now=lambda: self.now)
        calls = ("announce", "claim", "forget", "table")
        self.actor = SimpleNamespace(**{call: SimpleNamespace(remote=partial(self._call, call)) for call in calls})

    async def _call(self, name, *args):
        if self.silent:
            raise ConnectionError(name)
        return await getattr(self.registry, name)(*args)

    async def gateway(self, name, *standing):
        """One that has claimed the hive."""
        made = RayDriver(Wire(), {**SETUP, "gateway": name, "key": "k"})
        made._actors, made._wanted, made._registry = Posts(*standing), {}, self.actor
        made._actors.may_end.set()
        await made._claim()
        return made

    async def taken_over(self):
        """By NEW, while OLD was not heard. Two replicas stand."""
        old = await self.gateway(OLD, "m-0", "m-1")
        self.now += OWNED_S + 1
        await self.gateway(NEW, "m-0", "m-1")
        return old


async def test_a_gateway_is_refused_a_hive_that_another_one_has():
    house = House()
    await house.gateway(OLD)
    with pytest.raises(TakenOver, match="already \\(from a:1\\)"):
        await house.gateway(NEW)


async def test_a_gateway_that_lost_its_hive_neither_places_nor_ends_anything_and_goes():
    """Also before it knows: it was stopped, and goes on with an order, with a look, or with its farewell."""
    for act in (
        lambda old: old._repair(old._wanted),
        lambda old: old._ensure(ONE, {}, lambda *_: None),
        *(partial(lambda order, old: old._carry_out(order), order) for order in (
            {"op": "end", "name": "m-0"}, {"op": "leave"}, place(ONE),
        )),
    ):  # fmt: skip
        house = House()
        old = await house.taken_over()
        await act(old)
        assert old._actors.story == []
        assert (await house.registry.state())["owner"] == NEW
        with pytest.raises(TakenOver):
            await old._follow_table()


async def test_where_no_registry_answers_a_gateway_ends_what_it_placed():
    house = House()
    gateway = await house.gateway(OLD, "m-0")
    house.silent = True
    await gateway._carry_out({"op": "end", "name": "m-0"})
    assert gateway._actors.story == [("ends", "m-0"), ("ended", "m-0")]


async def test_what_stands_and_is_not_wanted_is_ended():
    """A gateway that comes back after a crash wants what its settings say now."""
    gateway = await House().gateway(OLD, "m-0", "m-1")
    gateway._wanted, gateway._rows = {"m-0": ONE}, {"m-0": row(ONE)}
    await gateway._repair(gateway._wanted)
    assert gateway._actors.story == [("ends", "m-1"), ("ended", "m-1")]
