"""The Ray driver and its client without a cluster: no command is lost or undone, one gateway owns a hive."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest
from msgspec import structs
from msgspec.structs import replace

from skep.cluster import messages
from skep.cluster.client import ClusterClient
from skep.cluster.ray_driver import RayDriver, TakenOver
from skep.cluster.replica_registry import OWNED_S, ReplicaRegistry
from skep.config.settings import Cluster
from skep.engines.base import Launch, PlacementRequest
from skep.supervisor.lifecycle import RestartPolicy
from skep.wire.json_pipe import to_document

SETUP = messages.DriverSetup("10.0.0.1:6379", "h", RestartPolicy(), "g", "k")
ONE = Launch("m-0", "fake", "m", None, slots=2, context_tokens=100, threads=1, place=PlacementRequest())


def row(launch, **more):
    told = {"state": "ready", "why": None, "node": "b", "url": "http://b:1", "pid": 7, **more}
    return to_document(messages.ReplicaReport(launch.name, engine="fake", incarnation="one", launch=launch, **told))


class Wire(list):
    """A link that records what is sent; `answer` makes the replies."""

    answer = None

    def send(self, message):
        self.append(message)
        if self.answer is not None:
            asyncio.get_running_loop().call_soon(self.answer, message)

    async def close(self):
        pass


class Actors:
    """The actors as the driver calls them: ends wait for `may_end`."""

    avoid, policy = (), SETUP.policy

    def __init__(self, *names):
        self.story, self.names, self.may_end = [], list(names), asyncio.Event()

    async def ensure(self, launch, _standing, _say):
        self.story.append(("ensure", launch.name))

    async def end(self, name, **_headless):
        self.story.append(("ends", name))
        await self.may_end.wait()
        self.story.append(("ended", name))

    async def ask(self, name, method, *_args):
        self.story.append((method, name))

    def all_names(self):
        return self.names


async def forgotten(_name):
    pass


async def claimed(gateway, _policy):
    return gateway


def wanted(*launches, avoid=(), policy=SETUP.policy):
    return messages.WantReplicas(launches, avoid, policy)


def driver_of(link, actors=None):
    made = RayDriver(link, SETUP)
    calls = {"forget": forgotten, "claim": claimed}
    made._actors = actors
    made._registry = SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in calls.items()})
    return made


async def until(what):
    async with asyncio.timeout(5):
        while not what():
            await asyncio.sleep(0.001)


# The driver


async def test_one_that_is_wanted_again_while_others_are_ended_is_not_ended_with_them():
    """What nobody wants is ended one after the other, and each end takes seconds."""
    actors = Actors("a", "b")
    driver = driver_of(Wire(), actors)
    driver._wanted = {}
    mending = asyncio.create_task(driver._repair(driver._wanted))
    await until(lambda: actors.story)
    ((_, first),) = actors.story
    other = {"a": "b", "b": "a"}[first]
    await driver._carry_out(wanted(replace(ONE, name=other)))
    actors.may_end.set()
    await mending
    assert [name for what, name in actors.story if what == "ended"] == [first]
    assert other in driver._wanted


async def test_a_replica_is_not_placed_while_the_one_before_it_is_ended():
    """The end takes its place in the cluster away by its name, whoever has that by then."""
    actors = Actors()
    driver = driver_of(Wire(), actors)
    ending = asyncio.create_task(driver._carry_out(messages.EndReplica("m-0")))
    await until(lambda: actors.story)
    await driver._carry_out(wanted(ONE))
    await asyncio.sleep(0.02)
    assert actors.story == [("ends", "m-0")]
    actors.may_end.set()
    await ending
    await until(lambda: actors.story[-1] == ("ensure", "m-0"))


async def test_one_that_could_not_be_ended_and_is_wanted_again_is_told_as_it_is():
    """Its row is what it was: without being told anew, the new member would start for ever."""
    wire = Wire()
    driver = driver_of(wire, Actors())
    driver._rows = {"m-0": row(ONE)}
    driver._tell()
    driver._tell()
    assert len(wire) == 1
    await driver._carry_out(wanted(ONE))
    assert [told.rows for told in wire] == [(row(ONE),)] * 2


# The cluster client


def ready(client, launch=ONE):
    """A member that serves."""
    member = client.member(launch, lambda: None)
    client.came(member)
    client._hear(messages.ReplicaRows((row(launch),), (launch.name,)))
    return member


def client_of(tmp_path):
    """A client of a driver that has joined, and the link to it."""
    made, wire = ClusterClient(Cluster(SETUP.address, "h"), RestartPolicy(), tmp_path / "driver.log"), Wire()
    made._link = wire
    made._hear(messages.Joined(SETUP.address))
    wire.clear()
    return made, wire


def lose_driver(client, wire):
    """There is another one at once."""
    client._lose_driver()
    client._link, client._joined = wire, True


def restarts(wire):
    return [message.name for message in wire if isinstance(message, messages.RestartReplica)]


async def test_a_restart_that_was_lost_with_a_driver_is_told_to_the_next_one(tmp_path):
    """Its replica gets nothing new until it has been: it would rest for ever."""
    client, wire = client_of(tmp_path)
    member = ready(client)
    member.restart()
    client._remind()
    assert len(restarts(wire)) == 1, "it is being carried out"
    lose_driver(client, wire)
    client._remind()
    assert len(restarts(wire)) == 2
    client._hear(messages.Restarted("m-0", "TimeoutError: "))
    client._remind()
    assert len(restarts(wire)) == 3
    client._hear(messages.Restarted("m-0"))
    client._remind()
    assert len(restarts(wire)) == 3


@pytest.mark.parametrize(
    ("meanwhile", "again"),
    [
        ([{"state": "away", "why": "no word"}, {}], True),
        ([{"state": "waiting", "pid": None}, {}], True),
        ([{"pid": 8}], False),
        ([{"restarts": 1}], False),
    ],
)
async def test_a_restart_is_needless_once_its_engine_is_another_and_not_because_it_was_away(tmp_path, meanwhile, again):
    client, wire = client_of(tmp_path)
    ready(client).restart()
    lose_driver(client, wire)
    for said in meanwhile:
        client._hear(messages.ReplicaRows((row(ONE, **said),), ("m-0",)))
        client._remind()
    assert len(restarts(wire)) == 1 + again


async def test_what_is_not_understood_costs_no_more_than_what_it_said(tmp_path):
    """Not the other replicas of a table; and no longer than it lasts."""
    client, _ = client_of(tmp_path)
    two = replace(ONE, name="m-1")
    one, other = ready(client), ready(client, two)
    bad = {"name": "m-0", "state": "failed"}
    client._hear(messages.ReplicaRows((bad, row(two, pid=9)), ("m-0", "m-1")))
    assert (one.pid, other.pid) == (7, 9)
    assert "cannot be read" in client.row()["why"]
    client.came(client.member(ONE, lambda: None))
    client._hear(messages.ReplicaRows((row(ONE),), ("m-0", "m-1")))
    assert client.row()["why"] is None


async def test_a_new_policy_reaches_the_driver_that_is_there_and_the_next_one(tmp_path):
    client, wire = client_of(tmp_path)
    policy = RestartPolicy(start_deadline_s=9.0)
    client.set_policy(policy)
    assert wire == [wanted(policy=policy)]
    assert client._setup.policy == policy


async def test_a_driver_that_joins_is_told_first_which_nodes_are_drained(tmp_path):
    client, wire = client_of(tmp_path)
    client._avoided = lambda: frozenset({"n2", "n1"})
    client._hear(messages.Joined(SETUP.address))
    assert wire == [wanted(avoid=("n1", "n2"))]
    driver = driver_of(Wire(), Actors())
    await driver._carry_out(wire[0])
    assert driver._actors.avoid == ("n1", "n2")


async def test_what_a_gateway_alone_is_told_of_a_replica_changes_while_its_engine_goes_on(tmp_path):
    client, wire = client_of(tmp_path)
    member = ready(client)
    wire.clear()
    member.launch = replace(ONE, reserve=1)
    assert (member.started.reserve, wire) == (1, [])


async def test_a_leave_that_nobody_answers_is_told_as_something_left_behind(tmp_path):
    for error, left in (None, None), ("the driver is gone", "the cluster cannot be reached"):
        client, wire = client_of(tmp_path)
        wire.answer = lambda said, to=client, what=error: to._hear(messages.Answer(getattr(said, "id", 0), what))
        told = await client.stop()
        assert told is None if left is None else left in told


# A hive that another gateway owns, with the real registry

OLD, NEW = "a:1:x", "b:2:y"


class Ownership:
    """The real registry, asked as an actor is; and gateways before it. Time passes where a test says so."""

    def __init__(self):
        self.now, self.silent = 100.0, False
        self.registry = ReplicaRegistry("h", now=lambda: self.now)
        calls = ("announce", "claim", "forget", "table")
        self.actor = SimpleNamespace(**{call: SimpleNamespace(remote=partial(self._call, call)) for call in calls})

    async def _call(self, name, *args):
        if self.silent:
            raise ConnectionError(name)
        return await getattr(self.registry, name)(*args)

    async def gateway(self, name, *standing):
        """One that has claimed the hive."""
        made = RayDriver(Wire(), structs.replace(SETUP, gateway=name))
        made._actors, made._wanted, made._registry = Actors(*standing), {}, self.actor
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
    hive = Ownership()
    await hive.gateway(OLD)
    with pytest.raises(TakenOver, match="already \\(from a:1\\)"):
        await hive.gateway(NEW)


async def test_a_gateway_that_lost_its_hive_neither_places_nor_ends_anything_and_goes():
    """Also before it knows: it was stopped, and goes on with an order, with a look, or with its farewell."""
    for act in (
        lambda old: old._repair(old._wanted),
        lambda old: old._ensure(ONE, {}, lambda *_: None),
        *(partial(lambda order, old: old._carry_out(order), order) for order in (
            messages.EndReplica("m-0"), messages.Leave(), wanted(ONE),
        )),
    ):  # fmt: skip
        hive = Ownership()
        old = await hive.taken_over()
        await act(old)
        assert old._actors.story == []
        assert (await hive.registry.state())["owner"] == NEW
        with pytest.raises(TakenOver):
            await old._follow_table()


async def test_where_no_registry_answers_a_gateway_ends_what_it_placed():
    hive = Ownership()
    gateway = await hive.gateway(OLD, "m-0")
    hive.silent = True
    await gateway._carry_out(messages.EndReplica("m-0"))
    assert gateway._actors.story == [("ends", "m-0"), ("ended", "m-0")]


async def test_what_stands_and_is_not_wanted_is_ended():
    """A gateway that comes back after a crash wants what its settings say now."""
    gateway = await Ownership().gateway(OLD, "m-0", "m-1")
    gateway._wanted, gateway._rows = {"m-0": ONE}, {"m-0": row(ONE)}
    await gateway._repair(gateway._wanted)
    assert gateway._actors.story == [("ends", "m-1"), ("ended", "m-1")]
