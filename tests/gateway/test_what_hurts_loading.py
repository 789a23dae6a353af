"""Requests for models that are not loaded, in the order that hurts: each test names what goes wrong."""

import asyncio
import json
import socket
import sys
from types import SimpleNamespace

from skep.engines.base import Launch
from skep.gateway.unloaded_models import UnloadedModels
from skep.supervisor.eviction import MemoryBudget
from skep.supervisor.gateway_child import GatewayChild
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.model_loader import ModelLoader

MODEL = "fake-model"
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "one"}], "max_tokens": 4}


class StubCrew:
    """What `Housing` needs of a crew, without processes: one replica a model, whose state the test says."""

    def __init__(self, *launches):
        self.all = {launch.model: self._member(launch) for launch in launches}
        self.asleep = {launch.model for launch in launches if launch.on_demand}

    def _member(self, launch):
        return SimpleNamespace(
            launch=launch, life=SimpleNamespace(state=ReplicaState.STOPPED, why=None), model=launch.model
        )

    def of_model(self, model):
        return [self.all[model]]

    def is_dormant(self, member):
        return member.model in self.asleep

    def serves(self, model):
        return model not in self.asleep and self.all[model].life.state is ReplicaState.READY

    def wake(self, model, _tasks):
        self.asleep.discard(model)
        self.all[model].life.state = ReplicaState.STARTING

    def hold(self, model, *, back=False):
        pass

    async def unload_model(self, model):
        self.asleep.add(model)


def launch_of(model, **fields):
    return Launch(f"{model}-0", "fake", model, None, slots=1, context_tokens=100, threads=1, **fields)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_gateway_hears_that_a_model_is_not_waited_for_any_more():
    """Its client left before there was room. The next one's request must be told to the supervisor again."""

    async def run():
        crew, published = StubCrew(launch_of("a", on_demand=True), launch_of("b", on_demand=True)), []
        figures = {"a": {"busy": 1, "queued": 0, "idle_s": None}, "b": {"busy": 0, "queued": 0, "idle_s": None}}

        async def status():
            return {"models": figures, "complete": True}

        async with asyncio.TaskGroup() as tasks:
            housing = ModelLoader(
                crew, tasks, status=status, say=lambda _m: None, changed=lambda: published.append(housing.dormant())
            )
            housing.configure([member.launch for member in crew.all.values()], MemoryBudget(max_loaded=1))
            housing.wanted("a")
            crew.all["a"].life.state = ReplicaState.READY
            housing.look()
            housing.wanted("b")
            assert published[-1]["b"]["state"] == "waiting"
            running = tasks.create_task(housing.run())
            await until(lambda: housing.dormant()["b"]["state"] == "unloaded")  # nobody waits for it any more
            running.cancel()
        gateway = UnloadedModels()
        gateway.become(published[-1], ["a"])
        assert gateway.should_request_load("b")

    asyncio.run(run())


def test_an_unload_ends_also_if_the_model_fails_while_it_drains():
    async def run():
        crew = StubCrew(launch_of("a"))

        async def status():
            return {}

        async with asyncio.TaskGroup() as tasks:
            housing = ModelLoader(crew, tasks, status=status, say=lambda _m: None, changed=lambda: None)
            housing.configure([crew.all["a"].launch], MemoryBudget(), begin=True)
            crew.all["a"].life.state = ReplicaState.READY
            housing.look()
            unload = tasks.create_task(housing.unload("a", wait=True, drain_s=0.05))
            await asyncio.sleep(0)
            crew.all["a"].life.state = ReplicaState.FAILED
            housing.look()
            done, _ = await asyncio.wait({unload}, timeout=0.4)
            unload.cancel()
            housing.stop()
        assert done

    asyncio.run(run())


def test_a_newer_gateway_may_tell_more_of_a_model():
    """`skep restart gateway` after an upgrade: the supervisor is the older one."""

    async def run():
        crew = StubCrew(launch_of("a", on_demand=True, idle_unload_s=60.0))
        asked = asyncio.Event()

        async def status():
            asked.set()
            return {"models": {"a": {"busy": 0, "queued": 0, "idle_s": None, "tokens": 7}}, "complete": True}

        async with asyncio.TaskGroup() as tasks:
            housing = ModelLoader(crew, tasks, status=status, say=lambda _m: None, changed=lambda: None)
            housing.configure([crew.all["a"].launch], MemoryBudget())
            housing.wanted("a")
            crew.all["a"].life.state = ReplicaState.READY
            housing.look()
            running = tasks.create_task(housing.run())
            await asked.wait()
            await asyncio.sleep(0.01)
            running.cancel()

    asyncio.run(run())


# A gateway as the supervisor sees it: keeps the last table it was told, listens when a file is there.
CHILD = """
import json, os, pathlib, socket, sys, time
sock = socket.socket(fileno=int(sys.argv[sys.argv.index("--link-fd") + 1]))
folder = pathlib.Path(sys.argv[1])
link = sock.makefile("rwb")
def say(**what):
    link.write(json.dumps(what).encode() + b"\\n"); link.flush()
ready = False
for line in link:
    message = json.loads(line)
    if message.get("op") == "replicas":
        (folder / str(os.getpid())).write_text(message["mark"])
        if not ready:
            (folder / f"told-{os.getpid()}").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)
            say(event="listening"); ready = True
    elif message.get("op") == "exit":
        break
    elif "id" in message:
        say(id=message["id"], left=0, queued=0, in_flight=0, replicas=[], queues={}, busy={}, tokens={}, ended={})
"""


def test_a_new_gateway_has_the_newest_table(tmp_path):
    """A model was loaded or unloaded between its start and its listening: `skep restart gateway`."""

    async def run():
        listener = socket.socket()
        front = GatewayChild(
            [sys.executable, "-S", "-c", CHILD, str(tmp_path)],
            listener,
            setup={"op": "setup"},
            log=tmp_path / "gateway.log",
            changed=lambda: None,
        )
        front.publish({"mark": "old"})
        (tmp_path / "go").touch()
        running = asyncio.get_running_loop().create_task(front.run())
        await until(lambda: front.listening)
        (tmp_path / "go").unlink()
        replacing = asyncio.get_running_loop().create_task(front.replace(0.1))
        await until(lambda: len(list(tmp_path.glob("told-*"))) == 2)
        front.publish({"mark": "new"})
        (tmp_path / "go").touch()
        await replacing
        await front.status()  # it has read all that was sent before
        said = (tmp_path / str(front.pid)).read_text()
        await front.stop()
        await running
        listener.close()
        assert said == "new"

    asyncio.run(run())


def asked(door, **headers):
    """The status and body of a plain request."""
    data = json.dumps(ASKED).encode()
    lines = b"".join(b"%b: %b\r\n" % (name.replace("_", "-").encode(), value) for name, value in headers.items())
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%bcontent-length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", door.port), timeout=5) as sock:
        sock.sendall(head % (lines, len(data)) + data)
        received = b""
        while part := sock.recv(65536):
            received += part
    return int(received.split()[1]), received


def table(door, **dormant):
    door.send({"op": "replicas", "replicas": [], "models": [MODEL], "dormant": dormant})


def test_a_model_on_demand_is_loaded_also_where_nobody_may_queue(gateway):
    door = gateway(limits={"max_queue": 0})
    table(door, **{MODEL: {"state": "unloaded", "why": None}})
    door.ask(op="status")
    status, received = asked(door, x_skep_max_wait=b"0.1")
    said = door.ask(op="status")
    assert (status, said.get("event")) != (429, None), received


def test_a_model_that_was_given_up_is_refused_with_its_reason(gateway):
    """Unloaded by the user, wanted by a request, and then it did not start: it is `failed`, not dormant."""
    door = gateway()
    table(door, **{MODEL: {"state": "loading", "why": None}})
    door.send({"op": "load_failed", "model": MODEL, "why": "no memory is left", "retry_after_s": 10.0})
    table(door)
    door.ask(op="status")
    _, received = asked(door, x_skep_max_wait=b"0.1")
    assert b"no memory is left" in received, received


class SlowCrew(StubCrew):
    def wake(self, model, _tasks):
        """As the crew does it: one that was given up is told to restart, and does so when its task runs."""
        if self.all[model].life.state is not ReplicaState.FAILED:
            super().wake(model, _tasks)


def test_a_load_is_not_refused_because_another_replica_changed_meanwhile():
    async def run():
        crew, refused = SlowCrew(launch_of("a")), []

        async def status():
            return {}

        async with asyncio.TaskGroup() as tasks:
            housing = ModelLoader(crew, tasks, status=status, say=refused.append, changed=lambda: None)
            housing.configure([crew.all["a"].launch], MemoryBudget(), begin=True)
            crew.all["a"].life.state = ReplicaState.FAILED
            housing.look()
            refused.clear()
            await housing.load("a", wait=False)
            housing.look()  # some other replica changed
        assert refused == []

    asyncio.run(run())


def test_a_gateway_is_told_of_a_model_that_was_given_up_and_that_it_comes_back():
    """A gateway that was started since refuses with the reason too, for as long as nobody tries again."""

    async def run():
        crew = StubCrew(launch_of("a"))

        async def status():
            return {}

        async with asyncio.TaskGroup() as tasks:
            housing = ModelLoader(crew, tasks, status=status, say=lambda _m: None, changed=lambda: None)
            housing.configure([crew.all["a"].launch], MemoryBudget(), begin=True)
            assert housing.unloaded == {}  # it is being started, as all that is not on demand
            crew.all["a"].life.state, crew.all["a"].life.why = ReplicaState.FAILED, "no memory"
            housing.look()
            gateway = UnloadedModels()
            gateway.become(housing.unloaded, [], ["a"])
            refused = gateway.failure("a", 1e9)
            assert (refused.why, refused.retry_after_s(1e9)) == ("no memory", None)
            crew.all["a"].life.state = ReplicaState.STARTING  # skep restart
            housing.look()
            gateway.become(housing.unloaded, [], ["a"])
            assert gateway.failure("a", 0.0) is None
            assert gateway.states == {"a": "loading"}

    asyncio.run(run())


def test_a_pinned_model_can_be_swapped_by_the_user():
    async def run():
        crew = StubCrew(launch_of("a", pinned=True), launch_of("b", on_demand=True))

        async def status():
            return {"models": {"a": {"busy": 0, "queued": 0, "idle_s": 9.0}}, "complete": True}

        async with asyncio.TaskGroup() as tasks:
            housing = ModelLoader(crew, tasks, status=status, say=lambda _m: None, changed=lambda: None)
            housing.configure([member.launch for member in crew.all.values()], MemoryBudget(max_loaded=1), begin=True)
            crew.all["a"].life.state = ReplicaState.READY
            housing.look()
            running = tasks.create_task(housing.run())
            assert (await housing.swap("a", "b", wait=False, drain_s=None))["state"] == "waiting"
            await until(lambda: "a" in crew.asleep)
            housing.look()
            assert "b" not in crew.asleep
            running.cancel()

    asyncio.run(run())


def test_an_unload_ends_also_if_requests_bring_the_model_back_at_once():
    async def run():
        crew = StubCrew(launch_of("a", on_demand=True))

        async def status():
            return {"models": {"a": {"busy": 0, "queued": 1, "idle_s": None}}, "complete": True}

        async with asyncio.TaskGroup() as tasks:
            housing = ModelLoader(crew, tasks, status=status, say=lambda _m: None, changed=lambda: None)
            housing.configure([crew.all["a"].launch], MemoryBudget())
            housing.wanted("a")
            crew.all["a"].life.state = ReplicaState.READY
            housing.look()
            running = tasks.create_task(housing.run())
            unload = tasks.create_task(housing.unload("a", wait=True, drain_s=None))
            await asyncio.sleep(0)
            housing.wanted("a")
            await until(lambda: "a" in crew.asleep)
            housing.look()
            assert (await unload)["state"] == "loading"
            running.cancel()

    asyncio.run(run())


def test_a_gateway_that_says_what_nobody_understands_is_as_one_that_is_silent():
    async def run():
        crew = StubCrew(launch_of("a", on_demand=True, idle_unload_s=60.0))
        asked = asyncio.Event()

        async def status():
            asked.set()
            return {"models": {"a": {"busy": "many"}}, "complete": True}

        async with asyncio.TaskGroup() as tasks:
            housing = ModelLoader(crew, tasks, status=status, say=lambda _m: None, changed=lambda: None)
            housing.configure([crew.all["a"].launch], MemoryBudget())
            housing.wanted("a")
            crew.all["a"].life.state = ReplicaState.READY
            housing.look()
            running = tasks.create_task(housing.run())
            await asked.wait()
            await asyncio.sleep(0)
            assert not running.done()
            running.cancel()

    asyncio.run(run())
