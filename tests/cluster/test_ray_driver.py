"""The Ray driver and its client without a cluster: no command is lost or undone, one gateway owns
a hive.
"""

import asyncio

import pytest
from msgspec.structs import replace

from skep.cluster import messages
from skep.cluster.client import ClusterClient
from skep.cluster.ray_driver import RayDriver, TakenOver
from skep.config.settings import Cluster
from skep.engines.agent_checks import AgentCheck
from skep.engines.base import Launch, PlacementRequest
from skep.errors import EngineError
from skep.supervisor.lifecycle import RestartPolicy
from skep.wire.json_pipe import from_document, to_document

SETUP = messages.DriverSetup("10.0.0.1:6379", "h", RestartPolicy(), "g", "k")
ONE = Launch(
    "m-0", "fake", "m", None, slots=2, context_tokens=100, threads=1, place=PlacementRequest()
)


def row(launch, **fields):
    report = {"state": "ready", "why": None, "node": "b", "url": "http://b:1", "pid": 7, **fields}
    return messages.ReplicaReport(
        launch.name, engine="fake", incarnation="one", launch=launch, **report
    )


class Wire(list):
    """A link that records what is sent; `answer` is the reply to every question."""

    answer = None

    def send(self, message):
        self.append(message)

    async def ask(self, _question, _timeout_s):
        return self.answer

    async def close(self):
        pass


class Actors:
    """The actors as the driver calls them: ends wait for `may_end`; `answers` are those to
    questions, by method.
    """

    def __init__(self, *names):
        self.story = []
        self.names = list(names)
        self.may_end = asyncio.Event()
        self.answers = {}

    async def ensure(self, launch, _standing, _say):
        self.story.append(("ensure", launch.name))

    async def end(self, name, **_headless):
        self.story.append(("ends", name))
        await self.may_end.wait()
        self.story.append(("ended", name))

    async def ask(self, name, method, *_args, **_how):
        if method != "report":
            self.story.append((method, name))
        await asyncio.sleep(0)
        answer = self.answers.get(method, ConnectionError("no answer"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def all_names(self):
        return self.names


def wanted(*launches):
    return messages.WantReplicas(launches)


def driver_of(link, actors=None):
    ray_driver = RayDriver(link, SETUP)
    ray_driver._actors = actors
    return ray_driver


def report(launch=ONE, owner=SETUP.gateway, **fields):
    return {"owner": owner, "version": 1, "row": to_document(row(launch, **fields))}


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


# The driver


async def test_one_that_is_wanted_again_while_others_are_ended_is_not_ended_with_them():
    """What nobody wants is ended one after the other, and each end takes seconds."""
    actors = Actors("a", "b")
    driver = driver_of(Wire(), actors)
    driver._launches = {}
    mending = asyncio.create_task(driver._end_all_but_wanted(actors.names))
    await until(lambda: actors.story)
    ((_, first),) = actors.story
    second = {"a": "b", "b": "a"}[first]
    await driver._carry_out(wanted(replace(ONE, name=second)))
    actors.may_end.set()
    await mending
    assert [name for event, name in actors.story if event == "ended"] == [first]
    assert second in driver._launches


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


async def test_reports_are_told_once_and_all_of_them_when_one_has_changed():
    wire = Wire()
    driver = driver_of(wire, Actors())
    driver._rows = {"m-0": row(ONE), "m-1": row(replace(ONE, name="m-1"))}
    driver._tell()
    driver._tell()
    driver._say("m-1", "waiting", None)
    assert [[row.state for row in message.rows] for message in wire] == [
        ["ready", "ready"],
        ["ready", "waiting"],
    ]


@pytest.fixture
def at_once(monkeypatch):
    """Nothing is waited for."""
    for name in ("AWAY_AFTER_S", "LATE_S", "MEND_EVERY_S"):
        monkeypatch.setattr(f"skep.cluster.ray_driver.{name}", 0.0)


async def test_a_silent_replica_is_away_and_asked_again_until_it_is_heard(at_once):
    wire = Wire()
    actors = Actors()
    driver = driver_of(wire, actors)
    actors.answers["report"] = report()
    await driver._carry_out(wanted(ONE))
    await until(lambda: driver._rows and driver._rows["m-0"].state == "ready")
    del actors.answers["report"]
    await until(lambda: driver._rows["m-0"].state == "away")
    assert driver._rows["m-0"].why == "no report from node b"
    await until(lambda: actors.story.count(("ensure", "m-0")) > 2)
    actors.answers["report"] = report(pid=8)
    await until(lambda: driver._rows["m-0"].state == "ready")
    assert wire[-1].rows[0].pid == 8


async def test_a_gateway_ends_when_another_one_has_its_replicas(at_once):
    """It was stopped for a while: the other one's replicas are left alone."""
    actors = Actors("m-0")
    driver = driver_of(Wire(), actors)
    actors.answers["report"] = report(owner="a:1:x")
    await driver._carry_out(wanted(ONE))
    with pytest.raises(TakenOver, match="already \\(from a:1\\)"):
        await asyncio.wait_for(driver._lost_hive, 5.0)
    assert actors.story == [("ensure", "m-0")]


async def test_what_stands_and_is_not_wanted_is_ended():
    """A gateway that comes back after a crash wants what its settings say now."""
    actors = Actors("m-0", "m-1")
    actors.may_end.set()
    driver = driver_of(Wire(), actors)
    driver._launches = {"m-0": ONE}
    driver._rows = {"m-0": row(ONE)}
    await driver._end_all_but_wanted(actors.names)
    assert actors.story == [("ends", "m-1"), ("ended", "m-1")]


# The cluster client


def ready(client, launch=ONE):
    """A member that serves."""
    member = client.member(launch, lambda: None)
    client.add(member)
    client._hear(messages.ReplicaRows((row(launch),)))
    return member


def client_of(tmp_path):
    """A client of a driver that has joined, and the link to it."""
    cluster_client = ClusterClient(
        Cluster(SETUP.address, "h"), RestartPolicy(), tmp_path / "driver.log"
    )
    wire = Wire()
    cluster_client._link = wire
    cluster_client._hear(messages.Joined(SETUP.address))
    wire.clear()
    return cluster_client, wire


async def test_what_was_checked_for_agents_on_a_node_is_known_here(tmp_path):
    client, _ = client_of(tmp_path)
    member = ready(client)
    check = AgentCheck("tool_calls", "ok", "tool calls: ok")
    report = from_document(to_document(row(ONE, checks=(check,))), messages.ReplicaReport)
    client._hear(messages.ReplicaRows((report,)))
    assert member.checks == (check,)


async def test_a_restart_that_nobody_carries_out_is_an_error(tmp_path):
    """Its replica would get nothing new for ever."""
    client, wire = client_of(tmp_path)
    member = ready(client)
    for answer, why in (
        (None, "the cluster does not answer"),
        (messages.Answer(1, "no node"), "no node"),
    ):
        wire.answer = answer
        with pytest.raises(EngineError, match=f"`m-0` cannot be restarted: {why}"):
            await member.restart()
    wire.answer = messages.Answer(1)
    await member.restart()


async def test_one_that_could_not_be_ended_and_is_wanted_again_is_known_as_it_is(tmp_path):
    """Its report is what it was, and is not told again: without it the new member would start for
    ever.
    """
    client, _ = client_of(tmp_path)
    await client.end(ready(client))
    again = client.member(ONE, lambda: None)
    client.add(again)
    assert again.life.serving


async def test_what_a_gateway_alone_is_told_of_a_replica_changes_while_its_engine_goes_on(
    tmp_path,
):
    client, wire = client_of(tmp_path)
    member = ready(client)
    wire.clear()
    member.launch = replace(ONE, reserve=1)
    assert (member.started.reserve, wire) == (1, [])


async def test_a_leave_that_nobody_answers_is_told_as_something_left_behind(tmp_path):
    for error, warning in (None, None), ("the driver is gone", "the cluster cannot be reached"):
        client, wire = client_of(tmp_path)
        wire.answer = messages.Answer(1, error)
        result = await client.stop()
        assert result is None if warning is None else warning in result
