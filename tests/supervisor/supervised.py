"""Replicas, sets of them and whole hives for tests, and ways to wait for what becomes of them."""

import asyncio
import socket
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

from msgspec.structs import replace

from skep.config.gateway_messages import GatewaySetup
from skep.engines.base import Fake, Launch, PlacementRequest
from skep.supervisor.control_commands import run_with_control
from skep.supervisor.lifecycle import Life, ReplicaState, RestartPolicy
from skep.supervisor.replica import Replica, ReplicaMember
from skep.supervisor.replica_set import ReplicaSet
from skep.supervisor.supervisor import Hive, Supervisor

POLICY = RestartPolicy(
    watch_every_s=0.1, watch_timeout_s=0.3, watch_failures=2, first_delay_s=0.05, grace_s=0.3
)
ONCE = replace(POLICY, failures_before_ready=1)
LAUNCH = Launch("m-0", "fake", "m", None, slots=1, context_tokens=100, threads=1)
FAR = replace(LAUNCH, slots=8, reserve=2, place=PlacementRequest())


class Changes:
    """What is called for each change, and waits for one that makes a condition true."""

    def __init__(self):
        self._changed = asyncio.Event()

    def __call__(self, *_):
        self._changed.set()

    async def until(self, condition, timeout_s=20.0):
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


async def until(condition):
    """For what nobody announces."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(folder, launch=LAUNCH, engine=None, policy=POLICY, **fields):
    """A replica, and a way to wait for something of it."""
    changes = Changes()
    replica = Replica(launch, engine or Fake(), folder / "m-0.log", changes, policy, **fields)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(replica.run())
        yield replica, changes.until
        replica.stop()


async def nobody_is_busy(_name):
    return 0


@asynccontextmanager
async def replicas_of(folder, *launches, policy=POLICY, elsewhere=None):
    """A set of replicas being started: the set, how it was after each change, a way to wait, its
    tasks.
    """
    history = []
    changes = Changes()

    def changed():
        history.append(
            {member.launch.name: replicas.shown_state(member) for member in replicas.members}
        )
        changes()

    async with asyncio.TaskGroup() as tasks:
        replicas = ReplicaSet(tasks, folder, policy, changed, nobody_is_busy, elsewhere)
        replicas.add_replicas(launches)
        changed()
        yield SimpleNamespace(replicas=replicas, history=history, until=changes.until, tasks=tasks)
        await replicas.end_all()


class FarReplica(ReplicaMember):
    """As much of a replica on another node as the hive sees.

    `slots`: that its engine has come to be started with.
    """

    engine = Fake()

    def __init__(self, launch, changed):
        self.launch = launch
        self.slots = 8
        self._changed = changed
        self.node = {"m-0": "a", "m-1": "b", "n-0": "b"}.get(launch.name, "c")
        self.life = Life()
        self.restarted = 0
        self._stopping = asyncio.Event()

    @property
    def started(self):
        return replace(self.launch, slots=self.slots)

    def stop(self):
        self._stopping.set()

    async def restart(self):
        self.restarted += 1

    def become(self, state):
        self.life.state = state
        self._changed()

    async def run(self):
        self.life.url = f"http://{self.node}:1"
        self.become(ReplicaState.READY)
        await self._stopping.wait()
        self.become(ReplicaState.STOPPING)
        await asyncio.sleep(0)
        self.become(ReplicaState.STOPPED)

    async def log_since(self, offset, lines):
        log = "one\ntwo\nthree\n"
        if offset is not None:
            text = log[offset:]
        else:
            text = "".join(log.splitlines(keepends=True)[-lines:])
        return {"text": text, "offset": len(log)}


class Service:
    """What keeps replicas on other nodes, for a hive: a cluster that is ready, or fails."""

    def __init__(self, failure=None, not_ended=None, member=FarReplica):
        self.member = member
        self.story = []
        self.settled = True
        self._failure = failure
        self._left = not_ended

    async def run(self):
        self.story.append("starts")
        if self._failure is not None:
            raise self._failure
        await asyncio.Event().wait()

    async def stop(self):
        self.story.append("stop")
        return self._left

    def row(self):
        return {"name": "cluster", "kind": "cluster", "state": "ready", "url": "10.0.0.1:6379"}


ANY_SERVICE = Service()


IDLE_GATEWAY = """
import json, socket, sys
link = socket.socket(fileno=int(sys.argv[2]))
messages, answers = link.makefile("r"), link.makefile("w")
print('{"event": "listening"}', file=answers, flush=True)
for message in map(json.loads, messages):
    if message.get("op") == "exit":
        break
    if "id" in message:
        event = {"drain": "drained"}.get(message["op"], "status")
        answer = {"event": event, "id": message["id"], "status": {}, "left": 0}
        print(json.dumps(answer), file=answers, flush=True)
"""
GATEWAY_ARGV = (sys.executable, "-Sc", IDLE_GATEWAY)


@asynccontextmanager
async def hive_of(
    folder,
    *launches,
    remote=ANY_SERVICE,
    rebuild=None,
    control=None,
    gateway=GATEWAY_ARGV,
    setup=GatewaySetup(),  # noqa: B008 - it is frozen
):
    """A supervisor that is ready. Its gateway is a program that answers and does nothing, unless
    another one is given.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        hive = Hive(launches, gateway, setup, "http://x", folder, drain_s=5.0)
        changes = Changes()
        supervisor = Supervisor(hive, listener, changes, rebuild, remote)
        async with asyncio.TaskGroup() as tasks:
            if control is None:
                run = supervisor.run()
            else:
                run = run_with_control(supervisor, control)
            running = tasks.create_task(run)
            await changes.until(lambda: supervisor.phase == "ready")
            yield supervisor, changes.until
            supervisor.stop()
            await running
