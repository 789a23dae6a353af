"""Replicas that stand elsewhere: members like others, with a node and a log of their own."""

import asyncio
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from skep.engines.base import Launch, PlacementRequest
from skep.engines.fake import Fake
from skep.errors import EngineError, UserError
from skep.supervisor.control import NO_ANSWER
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.remote_replica import UpstreamLife
from skep.supervisor.replica_set import ReplicaSet, changes
from skep.supervisor.supervisor import Hive, Supervisor

FAR = Launch("m-0", "fake", "m", None, slots=8, context_tokens=100, threads=1, reserve=2, place=PlacementRequest())


class Far:
    """As much of a replica elsewhere as the hive sees. `slots`: that its engine has come to be started with."""

    kind, pid = "replica", None
    engine = Fake()

    def __init__(self, launch, changed, node="a", slots=8):
        self.launch, self.node, self.slots, self._changed = launch, node, slots, changed
        self.life = UpstreamLife(None)
        self.restarted = 0
        self._stopping = asyncio.Event()

    @property
    def model(self):
        return self.launch.model

    @property
    def started(self):
        return replace(self.launch, slots=self.slots)

    @property
    def settled(self):
        return self.life.serving

    def stop(self):
        self._stopping.set()

    def restart(self):
        self.restarted += 1

    async def run(self):
        self.life.state, self.life.url = ReplicaState.READY, f"http://{self.node}:1"
        self._changed()
        await self._stopping.wait()
        self.life.state = ReplicaState.STOPPING
        self._changed()
        await asyncio.sleep(0)
        self.life.state = ReplicaState.STOPPED
        self._changed()

    async def log_since(self, offset, lines):
        said = "one\ntwo\nthree\n"
        text = said[offset:] if offset is not None else "".join(said.splitlines(keepends=True)[-lines:])
        return {"text": text, "offset": len(said)}


NODES = {"m-0": "a", "m-1": "b", "n-0": "b"}


def far(launch, changed):
    return Far(launch, changed, NODES.get(launch.name, "c"))


@asynccontextmanager
async def crew_of(tmp_path, *launches):
    moved = asyncio.Event()

    async def nobody(_name):
        return 0

    crew = ReplicaSet(tmp_path, RestartPolicy(), moved.set, nobody, far)
    async with asyncio.TaskGroup() as tasks:
        crew.add_replicas(launches, tasks)
        async with asyncio.timeout(10):
            while not all(member.settled for member in crew.members):
                moved.clear()
                await moved.wait()
        yield crew, tasks
        await crew.end_all()


def shown(crew, *keys):
    return [tuple(row[key] for key in keys) for row in crew.table(crew.views())["replicas"]]


def test_the_gateway_is_told_the_slots_that_an_engine_was_started_with(tmp_path):
    async def run():
        async with crew_of(tmp_path, replace(FAR, soft_slots=6)) as (crew, _):
            keys = ("slots", "reserve", "soft_slots", "draining")
            assert shown(crew, *keys) == [(8, 2, 6, False)]
            crew.find("m-0").slots = 2
            assert shown(crew, *keys) == [(2, 1, 2, False)], "after a fall-back"

    asyncio.run(run())


def test_a_drained_node_gets_nothing_whoever_comes_there(tmp_path):
    async def run():
        async with crew_of(tmp_path, FAR, replace(FAR, name="m-1"), replace(FAR, name="n-0", model="n")) as (crew, _):
            assert (crew.nodes, crew.at("b")) == (["a", "b"], ["m-1", "n-0"])
            crew.drain("b")
            assert shown(crew, "name", "draining") == [("m-0", False), ("m-1", True), ("n-0", True)]
            crew.find("m-0").node, crew.find("m-1").node = "b", "a"
            assert shown(crew, "name", "draining") == [("m-0", True), ("m-1", False), ("n-0", True)]
            crew.undrain("b")
            assert not any(draining for (draining,) in shown(crew, "draining"))

    asyncio.run(run())


def test_another_set_of_nodes_to_stand_on_restarts_nothing():
    """The cluster has grown: where a replica may stand matters when it is started anew."""
    moved = replace(FAR, place=PlacementRequest(nodes=("x", "y")))
    assert changes([FAR], [moved]).adjusted == ("m-0",)
    assert changes([FAR], [replace(moved, slots=4)]).changed == ("m-0",)


class Aide:
    settled = True

    def __init__(self, failure=None):
        self.story, self._failure, self.settled, self.policy = [], failure, True, None

    async def run(self, supervisor):
        self.story.append(supervisor.phase)
        if self._failure is not None:
            raise self._failure
        await asyncio.Event().wait()

    async def stop(self):
        self.story.append("stop")

    def set_policy(self, policy):
        self.policy = policy

    def row(self):
        return {"name": "cluster", "kind": "cluster", "state": "ready", "url": "10.0.0.1:6379"}


IDLE_GATEWAY = """
import json, socket, sys
link = socket.socket(fileno=int(sys.argv[-1]))
told, answers = link.makefile("r"), link.makefile("w")
print('{"event": "listening"}', file=answers, flush=True)
idle = {"queued": 0, "in_flight": 0, "busy": {}, "tokens": {}, "ended": {}, "queues": {}, "replicas": [], "left": 0}
for message in map(json.loads, told):
    if message.get("op") == "exit":
        break
    if "id" in message:
        print(json.dumps({"id": message["id"], **idle}), file=answers, flush=True)
"""


@asynccontextmanager
async def hive_of(tmp_path, *launches, services=(), elsewhere=far, rebuild=None, control=None):
    """A supervisor whose gateway is a program that has nothing to do."""
    with socket.socket() as listener:
        hive = Hive(launches, (sys.executable, "-Sc", IDLE_GATEWAY), {}, "http://x", control, tmp_path, drain_s=5.0)
        moved = asyncio.Event()
        supervisor = Supervisor(hive, listener, lambda _s: moved.set(), rebuild, elsewhere=elsewhere, services=services)

        async def until(condition):
            async with asyncio.timeout(10):
                while not condition():
                    moved.clear()
                    await moved.wait()

        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(supervisor.run())
            await until(lambda: supervisor.phase == "ready")
            yield supervisor, until
            supervisor.stop()
            await running


def test_a_hive_knows_its_replicas_elsewhere_by_their_nodes(tmp_path):
    async def run():
        aide = Aide()
        second = replace(FAR, name="m-1")
        async with hive_of(tmp_path, FAR, second, services=[aide]) as (supervisor, _):
            supervisor.replica_set.find("m-1").slots = 3
            rows = {row["name"]: row for row in supervisor.rows({})}
            assert [(rows[name]["node"], rows[name]["slots"]) for name in ("m-0", "m-1")] == [("a", 8), ("b", 3)]
            assert rows["gateway"]["slots"] == 11
            assert (rows["cluster"]["state"], rows["cluster"]["pid"]) == ("ready", None)
            assert [row["name"] for row in supervisor.description()["replicas"]] == ["m-0", "m-1"]
            ask = supervisor._control
            assert (await ask({"op": "drain", "name": "b"}))["replicas"] == ["m-1"]
            with pytest.raises(EngineError, match="is on node `b`, which is drained"):
                await ask({"op": "undrain", "name": "m-1"})
            with pytest.raises(EngineError, match="there is no `z`") as caught:
                await ask({"op": "drain", "name": "z"})
            assert caught.value.hint == "known: m-0, m-1; nodes: a, b"
            assert (await ask({"op": "undrain", "name": "b"}))["replicas"] == ["m-1"]
            told = await ask({"op": "log", "name": "m-0", "lines": 2})
            assert told == {"ok": True, "text": "two\nthree\n", "offset": 14}
            assert (await ask({"op": "log", "name": "m-0", "offset": 8}))["text"] == "three\n"
            assert await ask({"op": "log", "name": "gateway"}) == {"ok": True}, "its log is a file here"
            with pytest.raises(UserError, match="no model `m` that skep starts here"):
                await ask({"op": "scale", "model": "m"})
        assert aide.story == ["starting", "stop"]

    asyncio.run(run())


def test_a_replica_elsewhere_that_does_not_answer_the_gateway_is_not_called_ready(tmp_path):
    """Its node said so once, and nobody may be left to say more: the head is lost."""

    async def run():
        async with hive_of(tmp_path, FAR, replace(FAR, name="m-1")) as (supervisor, _):
            status = {"replicas": [{"name": "m-0", "state": "half-open"}, {"name": "m-1", "state": "up"}]}
            rows = {row["name"]: row for row in supervisor.rows(status)}
            assert (rows["m-0"]["state"], rows["m-0"]["why"]) == ("backoff", NO_ANSWER)
            assert (rows["m-1"]["state"], rows["gateway"]["slots"]) == ("ready", 8)

    asyncio.run(run())


def test_an_aide_that_cannot_go_on_ends_the_hive_with_its_reason(tmp_path):
    async def run():
        with socket.socket() as listener:
            hive = Hive((), (sys.executable, "-Sc", IDLE_GATEWAY), {}, "http://x", None, tmp_path)
            aide = Aide(UserError("no cluster at `x`", hint="start one"))
            with pytest.raises(UserError, match="no cluster at `x`"):
                await Supervisor(hive, listener, lambda _s: None, services=[aide]).run()
        assert aide.story == ["starting", "stop"]

    asyncio.run(run())
